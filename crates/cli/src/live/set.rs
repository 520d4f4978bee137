//! Set command: changes the RAM budget of a running process.
//!
//! Guarantees: what it prints is what the process itself tells; a budget that it cannot have is
//! refused before it is told anything.
//! Never: waits for longer than `PATIENCE`.
//! Threads: none but main.

use std::thread::sleep;
use std::time::{Duration, Instant};

use deepheap::Stats;
use deepheap::internal::config::RAM_MIN_BYTES;
use deepheap::internal::stats_page::{Request, StatsPage};
use deepheap::internal::stats_report::bytes;
use deepheap_tools::process::Process;

use crate::arguments::Set;
use crate::live::stat;
use crate::refusal::{Refusal, print_out};
use crate::trace::simulate;

/// Time between two looks whether it has been taken over, ...
const LOOK: Duration = Duration::from_millis(50);
/// ... and for all of them.
const PATIENCE: Duration = Duration::from_secs(10);
/// Page buffer and cache keep so much together, however small the budget is.
const LEAST_BYTES: u64 = 4 << 20;

/// Changes it, and tells how it went.
pub fn set(arguments: &Set) -> Result<(), Refusal> {
    let ram = simulate::ram(&arguments.ram)?;
    let process = stat::find(&arguments.process)?;
    let page = process.page().map_err(Refusal::missing)?;
    let before = page.snapshot();
    refuse_impossible(ram, &process, &page, &before)?;
    process.wish(Request::Budget(ram)).map_err(Refusal::missing)?;
    let (name, pid, now) = (&process.name, process.pid(), bytes(ram));
    let was = bytes(page.wish().bytes().unwrap_or(before.budget_bytes));
    let change = format!("{name} ({pid}): RAM budget {was} -> {now}");
    if before.managing == 0 {
        return print_out(format!(
            "{change} from when its heap next grows: it is not managed yet, for it has stayed \
             within its RAM\n"
        ));
    }
    let after = follow(&process, ram)?;
    if after.budget_bytes != ram {
        let seconds = PATIENCE.as_secs();
        return Err(Refusal::missing(format!(
            "{name} ({pid}) has not taken the RAM budget of {now} over in {seconds} s: if it is \
             stopped, it does when it runs again"
        )));
    }
    let used = bytes(after.used_bytes());
    let rest = if after.used_bytes() > ram { ", and it goes on giving back" } else { "" };
    print_out(format!("{change}, {used} in use{rest}\n"))
}

/// Says why the process cannot have this budget, if it cannot.
fn refuse_impossible(
    ram: u64,
    process: &Process,
    page: &StatsPage,
    stats: &Stats,
) -> Result<(), Refusal> {
    let (name, pid, asked) = (&process.name, process.pid(), bytes(ram));
    let refuse = |text: String| Err(Refusal::new(text));
    if ram < RAM_MIN_BYTES {
        let least = bytes(RAM_MIN_BYTES);
        return refuse(format!("in --ram: {asked} are too little: give at least {least}"));
    }
    if !page.wish().is_heard() {
        return refuse(format!(
            "the RAM budget of {name} ({pid}) moves by itself, for it has a bound on stalls (--ram \
             auto, --stall) or is in a pool: start it with a fixed --ram to set it"
        ));
    }
    if ram > stats.budget_most_bytes {
        let most = bytes(stats.budget_most_bytes);
        return refuse(format!(
            "in --ram: {asked} are more than the {most} that {name} ({pid}) began with, and its \
             tables are laid out for that: give no more, or start it with more"
        ));
    }
    // What does not become less with the budget.
    let fixed = stats.heap_metadata_bytes + stats.store_memory_bytes + stats.other_bytes;
    if ram < stats.budget_bytes && ram < fixed + LEAST_BYTES {
        let least = bytes(fixed + LEAST_BYTES);
        return refuse(format!(
            "in --ram: {asked} are too little for {name} ({pid}), whose tables and buffers need \
             more: give at least {least}"
        ));
    }
    Ok(())
}

/// Waits until the process has the budget and uses no more; what it tells then, or in the end.
fn follow(process: &Process, ram: u64) -> Result<Stats, Refusal> {
    let begin = Instant::now();
    loop {
        process.ask(false);
        sleep(LOOK);
        let stats = process.page().map_err(Refusal::missing)?.snapshot();
        let is_done = stats.budget_bytes == ram && stats.used_bytes() <= ram;
        if is_done || begin.elapsed() >= PATIENCE {
            return Ok(stats);
        }
    }
}
