//! Stat command: shows the counters of a process once, or again and again until it ends; or lists
//! all processes.
//!
//! Guarantees: `--json` is one line an interval; a terminal is redrawn in place without flicker,
//! anything else gets one screen after the other.
//! Never: slows the process down: it only reads a page of shared memory.
//! Threads: none but main.

pub(crate) mod screen;

use std::io::{IsTerminal, stdout};
use std::thread::sleep;
use std::time::Duration;

use deepheap::internal::stats_report::{bytes, share};
use deepheap::stats_json;
use deepheap_tools::process::Process;
use deepheap_tools::process::list::ProcessList;
use deepheap_tools::sample::Sample;

use crate::arguments::Stat;
use crate::live::stat::screen::screen;
use crate::refusal::{Refusal, print_out, wants_colour};

const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K\n";
const CLEAR_BELOW: &str = "\x1b[J";
const CLEAR: &str = "\x1b[H\x1b[2J";
/// Heads of the columns of numbers in the list.
const HEADS: &str = "       RAM     in use     on SSD     waited     in all";

/// Shows it, or lists all.
pub fn stat(arguments: &Stat) -> Result<(), Refusal> {
    let Some(asked) = &arguments.process else { return list(arguments.json) };
    let process = find(asked)?;
    let page = process.page().map_err(Refusal::missing)?;
    let mut sample = Sample::of(&page, process.pid());
    let Some(seconds) = arguments.watch else {
        return print_out(text(arguments, &process, &sample, None));
    };
    let redraws = stdout().is_terminal() && !arguments.json;
    if redraws {
        print_out(CLEAR)?;
    }
    let mut earlier = None;
    loop {
        let text = text(arguments, &process, &sample, earlier.as_ref());
        if redraws {
            let lines = text.replace('\n', CLEAR_LINE);
            print_out(format!("{HOME}{lines}{CLEAR_BELOW}"))?;
        } else {
            print_out(text)?;
        }
        sleep(Duration::from_secs_f64(seconds));
        let page = match process.page() {
            Ok(page) => page,
            Err(_) if !process.is_running() => return ended(arguments, &process),
            Err(error) => return Err(Refusal::missing(error)),
        };
        earlier = Some(core::mem::replace(&mut sample, Sample::of(&page, process.pid())));
    }
}

/// The process with this id, or the only one of this name.
pub(crate) fn find(asked: &str) -> Result<Process, Refusal> {
    if let Ok(pid) = asked.parse() {
        return Process::find(pid).map_err(Refusal::missing);
    }
    let mut named = ProcessList::default().find_new(&[]);
    named.retain(|(process, _)| process.name == asked);
    match named.len() {
        0 => Err(Refusal::missing(format!(
            "no process of the name '{asked}' runs under deepheap: `deepheap stat` lists those \
             that do"
        ))),
        1 => Ok(named.remove(0).0),
        _ => {
            let pids: Vec<String> = named.iter().map(|(it, _)| it.pid().to_string()).collect();
            let pids = pids.join(", ");
            Err(Refusal::new(format!("'{asked}' is the name of several: choose one of {pids}")))
        }
    }
}

/// A line for each process that runs under deepheap.
fn list(is_json: bool) -> Result<(), Refusal> {
    let mut found = ProcessList::default().find_new(&[]);
    found.sort_by_key(|(process, _)| process.pid());
    let samples = found.iter().map(|(process, page)| (process, Sample::of(page, process.pid())));
    if is_json {
        return print_out(samples.map(|(_, it)| stats_json(&it.stats) + "\n").collect::<String>());
    }
    if found.is_empty() {
        return print_out("No process that this user may look into runs under deepheap.\n");
    }
    let mut text = format!("{:>8} {:<16} {HEADS}\n", "PID", "NAME");
    for (process, sample) in samples {
        let stats = &sample.stats;
        let [budget, used, stored] =
            [stats.budget_bytes, stats.used_bytes(), stats.stored_bytes].map(bytes);
        let (pid, name) = (process.pid(), &process.name);
        // In a column there is no room for more words.
        let [now, all] = [stats.stall_share_now_ppm, stats.stall_share_ppm]
            .map(|ppm| share(ppm).replace("less than", "<"));
        text += &format!(
            "{pid:>8} {name:<16} {budget:>10} {used:>10} {stored:>10} {now:>10} {all:>10}\n"
        );
    }
    print_out(text)
}

fn text(arguments: &Stat, process: &Process, sample: &Sample, earlier: Option<&Sample>) -> String {
    if arguments.json {
        return stats_json(&sample.stats) + "\n";
    }
    let mut text = screen(&process.name, process.pid(), sample, earlier, wants_colour(&stdout()));
    if arguments.watch.is_some() && !stdout().is_terminal() {
        text.push('\n');
    }
    text
}

fn ended(arguments: &Stat, process: &Process) -> Result<(), Refusal> {
    if arguments.json {
        return Ok(());
    }
    print_out(format!("\n{} ({}) has ended.\n", process.name, process.pid()))
}
