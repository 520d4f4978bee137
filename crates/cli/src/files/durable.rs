//! Durable commands: `deepheap inspect`, `fsck`, `rollback`, `rm-snapshot` and `compact`.
//!
//! Guarantees: `fsck` ends with status 0 only if nothing is damaged, and with 1 if something is;
//! after a repair also if something was lost.
//! Never: changes the file, in `inspect` and in `fsck` without `--repair`.
//! Threads: none but main.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use deepheap::internal::inspect::{self, Fsck, Inspection};
use deepheap::internal::repair;
use deepheap::internal::stats_report::bytes;
use deepheap::{DurableHeap, HeapFile, OpenError};

use crate::arguments::OfFile;
use crate::refusal::{Refusal, print_out};

/// Findings that are shown.
const SHOWN_MAX: usize = 20;

/// Shows what is in the file.
pub fn inspect(of: &OfFile) -> Result<(), Refusal> {
    let inspection = on(of, inspect::inspect)?;
    print_out(text(&of.file, &inspection))
}

fn text(file: &Path, of: &Inspection) -> String {
    let mut out = format!("{}: a durable heap\n", file.display());
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<12}{text}");
    };
    let closing = if of.is_clean { ", when the heap was closed" } else { "" };
    let made = ago(of.time);
    line("checkpoint", format!("number {}, made {made}{closing}", of.checkpoint));
    line("address", format!("{:#x}, {} from there", of.region_base, bytes(of.region_len)));
    let (allocated, objects) = (bytes(of.allocated_bytes), bytes(of.object_bytes));
    line("holds", format!("{allocated}; {} objects of {objects} among it", of.objects));
    let garbage = bytes(of.log_bytes.saturating_sub(of.live_bytes));
    let (log, most, live) = (bytes(of.log_bytes), bytes(of.log_bytes_most), bytes(of.live_bytes));
    line("log", format!("{log} of {most}: {live} live, {garbage} are garbage or room"));
    line("file", format!("{} of the disk", bytes(of.disk_bytes)));
    if let Some(place) = of.damaged_superblock {
        let text = "is damaged: a process or the power ended while a checkpoint was committed, or \
                    the device has lost it; then the heap may be at the checkpoint before the last";
        line("superblock", format!("{place:?} {text}"));
    }
    for snapshot in &of.snapshots {
        let made = ago(snapshot.time);
        line("snapshot", format!("{}: checkpoint {}, {made}", snapshot.name, snapshot.checkpoint));
    }
    if !of.snapshots.is_empty() {
        line("kept", format!("{} of the log for snapshots alone", bytes(of.snapshot_bytes)));
    }
    for (name, address) in &of.roots {
        line("root", format!("{address:#x} {name}"));
    }
    out
}

/// How long ago something was that was so many seconds after 1970.
pub fn ago(time: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match now.saturating_sub(time) {
        seconds @ 0..120 => format!("{seconds} s ago"),
        seconds @ 120..7200 => format!("{} minutes ago", seconds / 60),
        seconds @ 7200..172_800 => format!("{} hours ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// Verifies the file.
pub fn fsck(of: &OfFile) -> Result<(), Refusal> {
    let Fsck { report, contradiction } = on(of, inspect::fsck)?;
    let mut out = format!(
        "{}: {} pages of tables and {} blocks were read\n",
        of.file.display(),
        report.pages,
        report.blocks
    );
    for finding in report.findings.iter().take(SHOWN_MAX) {
        let _ = writeln!(out, "  {finding}");
    }
    let more = report.findings.len().saturating_sub(SHOWN_MAX) as u64 + report.unlisted;
    if more > 0 {
        let _ = writeln!(out, "  and {more} more");
    }
    if let Some(contradiction) = &contradiction {
        let _ = writeln!(out, "  {contradiction}");
    }
    verdict(out, report.is_clean() && contradiction.is_none(), "heap")
}

/// Prints what was found, and whether the heap or map is damaged.
pub fn verdict(mut out: String, is_clean: bool, what: &str) -> Result<(), Refusal> {
    match is_clean {
        true => out += "Nothing is damaged.\n",
        false => out += &format!("The {what} is damaged.\n"),
    }
    print_out(out)?;
    if is_clean { Ok(()) } else { Err(Refusal::told()) }
}

/// Makes damaged tables of the file whole again.
pub fn repair(of: &OfFile) -> Result<(), Refusal> {
    let shown = of.file.display();
    let Some(repair) = on(of, repair::repair)? else {
        print_out(format!("{shown}: the tables are whole, there is nothing to repair\n"))?;
        return fsck(of);
    };
    let mut out = format!("{shown}: checkpoint {} has whole tables again\n", repair.checkpoint);
    let _ = writeln!(out, "  made anew: {} damaged pages of tables", repair.pages);
    for what in &repair.changed {
        let _ = writeln!(out, "  changed: {what}");
    }
    for what in &repair.lost {
        let _ = writeln!(out, "  lost: {what}");
    }
    if repair.lost.is_empty() {
        let _ = writeln!(out, "It holds what checkpoint {} held.", repair.content_of);
    }
    print_out(out)?;
    fsck(of)?;
    if repair.lost.is_empty() { Ok(()) } else { Err(Refusal::told()) }
}

/// Makes the heap what it was in a snapshot.
pub fn roll_back(of: &OfFile, name: &str) -> Result<(), Refusal> {
    let made = on(of, |file| DurableHeap::roll_back(file, name))?;
    let shown = of.file.display();
    print_out(format!("{shown}: checkpoint {made} is what {name} was\n"))
}

/// Removes a snapshot.
pub fn remove_snapshot(of: &OfFile, name: &str) -> Result<(), Refusal> {
    on(of, |file| DurableHeap::remove_snapshot_of(file, name))?;
    let shown = of.file.display();
    print_out(format!("{shown}: {name} is removed; `deepheap compact` gives its space back\n"))
}

/// Moves what lives together, and gives back the rest.
pub fn compact(of: &OfFile) -> Result<(), Refusal> {
    let done = on(of, DurableHeap::compact)?;
    let freed = bytes(done.disk_bytes_before.saturating_sub(done.disk_bytes));
    let left = bytes(done.disk_bytes);
    let mut out = format!("{}: {freed} given back, {left} left\n", of.file.display());
    if let Some(why) = &done.uncollected {
        let _ = writeln!(out, "  what lives was not moved together: {why}");
    }
    print_out(out)
}

/// The answer of a call on the file, with its reason if it fails.
fn on<'a, T>(
    of: &'a OfFile,
    call: impl FnOnce(HeapFile<'a>) -> Result<T, OpenError>,
) -> Result<T, Refusal> {
    let done = HeapFile::with_key_file(&of.file, of.key.as_deref()).and_then(call);
    done.map_err(|error| Refusal::new(format!("{}: {error}", of.file.display())))
}
