//! Stat command: shows the counters of a process once, or again and again until it ends.
//!
//! Guarantees: `--json` is one line an interval; a terminal is redrawn in place without flicker,
//! anything else gets one screen after the other.
//! Never: slows the process down: it only reads a page of shared memory.
//! Threads: none but main.

pub(crate) mod screen;

use std::io::{IsTerminal, stdout};
use std::thread::sleep;
use std::time::Duration;

use deepheap::stats_json;
use deepheap_tools::process::Process;
use deepheap_tools::sample::Sample;

use crate::arguments::Stat;
use crate::live::stat::screen::screen;
use crate::refusal::{Refusal, print_out, wants_colour};

const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K\n";
const CLEAR_BELOW: &str = "\x1b[J";
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows it.
pub fn stat(arguments: &Stat) -> Result<(), Refusal> {
    let process = Process::find(arguments.pid).map_err(Refusal::missing)?;
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
