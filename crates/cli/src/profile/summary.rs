//! Summary: where a program waited, in a few lines for a terminal.
//!
//! Guarantees: no line is longer than 80 columns.
//! Threads: pure.

use std::collections::{BTreeSet, HashMap};

use deepheap::internal::stats_report::{count, duration};
use deepheap::stats::FaultKind;

use crate::profile::stacks::{Function, Stacks};

/// Lines of each of the two lists.
const LINES: usize = 10;
const COLUMNS: usize = 80;
/// A function hands on if it has a part as small as this left.
const HANDED_ON: u64 = 100;
/// The two shares in front of a function.
const NUMBERS: usize = 18;
/// What executes Python's functions.
const INTERPRETER: &str = "_PyEval_EvalFrameDefault";

/// The summary.
pub fn text(stacks: &Stacks) -> String {
    let waited_ns = stacks.waited_ns();
    if stacks.samples.is_empty() {
        return "deepheap: it waited in no fault: it stayed within its RAM\n".to_owned();
    }
    let faults = stacks.samples.iter().map(|sample| sample.faults).sum();
    let (samples, lost) = (stacks.samples.len() as u64, stacks.lost);
    let lost = if lost > 0 { format!(", {} lost", count(lost)) } else { String::new() };
    let mut text = format!(
        "deepheap: waited {} in {} faults ({} samples{lost})\n  {}\n",
        duration(waited_ns),
        count(faults),
        count(samples),
        kinds(stacks),
    );
    let times = Times::of(stacks);
    let share = |ns: u64| format!("{:.1} %", ns as f64 * 100.0 / waited_ns.max(1) as f64);
    let mut list = |head: &str, by: fn(&Times, usize) -> u64| {
        text += &format!("\n     own    total  {head}\n");
        for at in times.most(by) {
            let (own, total) = (share(times.own_ns[at]), share(times.total_ns[at]));
            text += &format!("{own:>8} {total:>8}  {}\n", shown(&stacks.functions[at]));
        }
    };
    list("functions that waited", |times, at| times.own_ns[at]);
    list("functions that called them, where paths part", Times::parting_ns);
    let is_named = |name: &str| stacks.functions.iter().any(|function| function.name == name);
    let has_python = stacks.functions.iter().any(|function| function.file.ends_with(".py"));
    if is_named(INTERPRETER) && !has_python {
        text += "\nPython's own functions are named with `python3 -X perf`, from Python 3.12 on.\n";
    }
    text
}

/// The parts of the time by kind of fault.
fn kinds(stacks: &Stacks) -> String {
    let waited_ns = stacks.waited_ns().max(1);
    let part = |(kind, words): (FaultKind, &str)| {
        let samples = stacks.samples.iter().filter(|sample| sample.kind == Some(kind));
        let ns: u64 = samples.map(|sample| sample.waited_ns).sum();
        (ns > 0).then(|| format!("{:.0} % {words}", ns as f64 * 100.0 / waited_ns as f64))
    };
    let words = [
        (FaultKind::Stored, "on SSD"),
        (FaultKind::Cached, "compressed in RAM"),
        (FaultKind::Zero, "touched first"),
        (FaultKind::Waited, "for another thread"),
    ];
    words.into_iter().filter_map(part).collect::<Vec<_>>().join(", ")
}

/// Time by function: in it, in it and what it called, and in what took most of what it called.
struct Times {
    own_ns: Vec<u64>,
    total_ns: Vec<u64>,
    most_called_ns: Vec<u64>,
}

impl Times {
    fn of(stacks: &Stacks) -> Times {
        let none = vec![0; stacks.functions.len()];
        let [own_ns, total_ns, most_called_ns] = [none.clone(), none.clone(), none];
        let mut times = Times { own_ns, total_ns, most_called_ns };
        let mut called_ns: HashMap<(usize, usize), u64> = HashMap::new();
        for sample in &stacks.samples {
            if let Some(&last) = sample.frames.last() {
                times.own_ns[last] += sample.waited_ns;
            }
            // A function that calls itself counts once.
            for at in sample.frames.iter().collect::<BTreeSet<_>>() {
                times.total_ns[*at] += sample.waited_ns;
            }
            for call in sample.frames.windows(2).collect::<BTreeSet<_>>() {
                *called_ns.entry((call[0], call[1])).or_default() += sample.waited_ns;
            }
        }
        for ((caller, _), ns) in called_ns {
            times.most_called_ns[caller] = times.most_called_ns[caller].max(ns);
        }
        times
    }

    /// The time of a function and what it called, unless it only hands on: then that tells more
    /// which it calls.
    fn parting_ns(&self, at: usize) -> u64 {
        let total_ns = self.total_ns[at];
        let hands_on = self.most_called_ns[at] >= total_ns - total_ns / HANDED_ON;
        let has_called = self.most_called_ns[at] > 0;
        if hands_on || !has_called { 0 } else { total_ns }
    }

    /// The functions with the most by some measure, most first.
    fn most(&self, by: fn(&Times, usize) -> u64) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.own_ns.len()).filter(|at| by(self, *at) > 0).collect();
        all.sort_by_key(|at| core::cmp::Reverse(by(self, *at)));
        all.truncate(LINES);
        all
    }
}

/// A function and its file, as far as there is room.
fn shown(function: &Function) -> String {
    let room = COLUMNS - NUMBERS - 1;
    let Function { name, file } = function;
    let is_told = file.is_empty() || name.starts_with(&format!("{file}+"));
    let file = if is_told { String::new() } else { format!("  ({file})") };
    let left = room.saturating_sub(file.chars().count()).max(room / 2);
    let text = if name.chars().count() > left {
        name.chars().take(left - 3).chain("...".chars()).chain(file.chars()).collect()
    } else {
        name.clone() + &file
    };
    text.chars().take(room).collect()
}
