//! Summary: where a program waited, and what allocated memory that was cold, in a few lines for a
//! terminal.
//!
//! Guarantees: no line is longer than 80 columns.
//! Threads: pure.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use deepheap::internal::stats_report::{bytes, count, duration};
use deepheap::stats::FaultKind;

use crate::profile::stacks::{Function, Stacks};

/// Lines of functions, and of stacks.
const FUNCTIONS: usize = 10;
const STACKS: usize = 5;
const COLUMNS: usize = 80;
/// What is in front of a stack that waited, and of one that allocated.
const PART: usize = 10;
const INDENT: usize = 6;
/// Lines of a stack that allocated: what calls the allocator says more than that does.
const CALLERS: usize = 3;
/// The two shares in front of a function.
const NUMBERS: usize = 18;
/// What executes Python's functions.
const INTERPRETER: &str = "_PyEval_EvalFrameDefault";

/// The summary.
pub fn text(stacks: &Stacks) -> String {
    let waited_ns = stacks.weight();
    if stacks.samples.is_empty() && stacks.lost > 0 {
        return "deepheap: no fault could be noted: make room in /dev/shm, and allow \
                process_vm_readv\n"
            .to_owned();
    }
    if stacks.samples.is_empty() {
        return "deepheap: it waited in no fault: it stayed within its RAM\n".to_owned();
    }
    let faults = stacks.samples.iter().map(|sample| sample.faults).sum();
    let mut text = format!(
        "deepheap: waited {} in {} faults ({})\n  {}\n",
        duration(waited_ns),
        count(faults),
        samples(stacks),
        kinds(stacks),
    );
    let times = Times::of(stacks);
    let share = |ns: u64| format!("{:.1} %", ns as f64 * 100.0 / waited_ns.max(1) as f64);
    text += "\n     own    total  function\n";
    for at in times.most() {
        let (own, total) = (share(times.own_ns[at]), share(times.total_ns[at]));
        text += &format!("{own:>8} {total:>8}  {}\n", shown(&stacks.functions[at]));
    }
    text += "\n    part  stack, from the function that waited to those that called it\n";
    for (ns, _, frames) in largest(stacks, STACKS) {
        text += &format!("{:>8}  {}\n", share(ns), path(stacks, frames, PART, 1));
    }
    let is_named = |name: &str| stacks.functions.iter().any(|function| function.name == name);
    let has_python = stacks.functions.iter().any(|function| function.file.ends_with(".py"));
    if is_named(INTERPRETER) && !has_python {
        text += "\nPython's own functions are named with `python3 -X perf`, from Python 3.12 on.\n";
    }
    text
}

/// What allocated memory that was cold.
pub fn allocated(stacks: &Stacks) -> String {
    if stacks.weight() == 0 {
        return format!("deepheap: nothing that it allocated was cold ({})\n", samples(stacks));
    }
    let sum = |at: usize| bytes(stacks.samples.iter().map(|sample| sample.places[at]).sum());
    let mut text = format!(
        "deepheap: {} was cold at most ({})\n  {} on SSD, {} compressed in RAM\n\n\
         {:>10} {:>10} {:>10}  allocated by\n",
        bytes(stacks.weight()),
        samples(stacks),
        sum(2),
        sum(1),
        "on SSD",
        "compressed",
        "in RAM",
    );
    let largest = largest(stacks, FUNCTIONS);
    for (_, places, frames) in largest.into_iter().filter(|(cold, ..)| *cold > 0) {
        let [in_ram, compressed, stored] = places.map(bytes);
        let path = path(stacks, frames, INDENT, CALLERS);
        text += &format!("{stored:>10} {compressed:>10} {in_ram:>10}\n      {path}\n");
    }
    text
}

fn samples(stacks: &Stacks) -> String {
    let (samples, lost) = (count(stacks.samples.len() as u64), stacks.lost);
    let lost = if lost > 0 { format!(", {} lost", count(lost)) } else { String::new() };
    format!("{samples} samples{lost}")
}

/// The parts of the time by kind of fault.
fn kinds(stacks: &Stacks) -> String {
    let waited_ns = stacks.weight().max(1);
    let part = |(kind, words): (FaultKind, &str)| {
        let samples = stacks.samples.iter().filter(|sample| sample.kind == Some(kind));
        let ns: u64 = samples.map(|sample| sample.weight).sum();
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

/// Time by function: in it, and in it and what it called.
struct Times {
    own_ns: Vec<u64>,
    total_ns: Vec<u64>,
}

impl Times {
    fn of(stacks: &Stacks) -> Times {
        let none = vec![0; stacks.functions.len()];
        let mut times = Times { own_ns: none.clone(), total_ns: none };
        for sample in &stacks.samples {
            if let Some(&last) = sample.frames.last() {
                times.own_ns[last] += sample.weight;
            }
            // A function that calls itself counts once.
            for at in sample.frames.iter().collect::<BTreeSet<_>>() {
                times.total_ns[*at] += sample.weight;
            }
        }
        times
    }

    /// The functions that waited most, most first.
    fn most(&self) -> Vec<usize> {
        let mut all: Vec<usize> =
            (0..self.own_ns.len()).filter(|at| self.own_ns[*at] > 0).collect();
        all.sort_by_key(|at| Reverse(self.own_ns[*at]));
        all.truncate(FUNCTIONS);
        all
    }
}

/// The stacks with the largest weights, largest first: weight, bytes by place, functions.
fn largest(stacks: &Stacks, most: usize) -> Vec<(u64, [u64; 3], &[usize])> {
    let mut sums: BTreeMap<&[usize], (u64, [u64; 3])> = BTreeMap::new();
    for sample in &stacks.samples {
        let (weight, places) = sums.entry(&sample.frames).or_default();
        *weight += sample.weight;
        places.iter_mut().zip(sample.places).for_each(|(sum, bytes)| *sum += bytes);
    }
    let mut sums: Vec<_> =
        sums.into_iter().map(|(frames, (weight, places))| (weight, places, frames)).collect();
    sums.sort_by_key(|(weight, ..)| Reverse(*weight));
    sums.truncate(most);
    sums
}

/// A stack, as much of it as there is room for in so many lines behind so many columns.
fn path(stacks: &Stacks, frames: &[usize], columns: usize, lines: usize) -> String {
    // Some for the dots.
    let room = COLUMNS - columns - 5;
    let (mut before, mut line, mut left) = (String::new(), String::new(), lines);
    for at in frames.iter().rev() {
        let name: String = stacks.functions[*at].name.chars().take(room).collect();
        if line.is_empty() {
            line = name;
        } else if line.chars().count() + " < ".len() + name.chars().count() <= room {
            line += " < ";
            line += &name;
        } else if left > 1 {
            left -= 1;
            before += &format!("{line} <\n{:columns$}", "");
            line = name;
        } else {
            line += " < ..";
            break;
        }
    }
    before + &line
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
