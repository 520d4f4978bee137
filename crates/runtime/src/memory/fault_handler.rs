//! Fault handler: from SIGBUS to the pager or the maps, and what to say when an access must stop.
//!
//! Guarantees: an access that cannot be served ends as SIGBUS for the program, with the reason
//! logged, or, if a call of ours made it, as the call's error; it is never served with bytes that
//! failed their checksum.
//! Never: allocates, touches managed memory.
//! Threads: the faulting one, in the signal handler, other signals kept out.

use core::time::Duration;

use deepheap_heap::PAGE;
use deepheap_pager::{FaultError, FaultKind, NoPromise, Pager};
use deepheap_policy::sequence::Sequences;
use deepheap_store::StoreError;
use deepheap_sys::errno::Errno;
use deepheap_sys::faults::fault_signal::{Fault, Verdict};
use deepheap_sys::memory::byte_copy;
use deepheap_sys::process::clock;
use deepheap_sys::process::log::Piece;
use deepheap_sys::say;
use deepheap_sys::threads::waits::{self, Cause, Wait};
use deepheap_sys::threads::{thread, tls};

use crate::control::workers;
use crate::memory::relief;
use crate::number;
use crate::process::children::forget_dead_children;
use crate::runtime::{running, running_at};
use crate::stats::longest_waits::LongestWaits;
use crate::stats::observe::count_moves;
use crate::stats::profile;

/// Blocks of the store in a MiB.
const BLOCKS_PER_MIB: u64 = (1 << 20) / PAGE as u64;
/// Between two looks for space that a forked child withholds.
const WITHHELD_PAUSE: Duration = Duration::from_millis(20);

const _: () = assert!(size_of::<Sequences>() == size_of::<[usize; 29]>());
const _: () = assert!(align_of::<Sequences>() <= align_of::<usize>());

/// Whether a thread may be on one more handler stack; takes the room for it.
pub(crate) fn has_room_for_stack() -> bool {
    running().and_then(|runtime| runtime.pager()).is_none_or(Pager::try_stage_stack)
}

pub(crate) fn on_fault(fault: &Fault) -> Verdict {
    match deepheap_maps::on_fault(fault) {
        Verdict::NotOurs => {}
        verdict => return verdict,
    }
    let Some(runtime) = running_at(fault.address) else { return Verdict::NotOurs };
    let Some(pager) = runtime.pager() else { return Verdict::NotOurs };
    let start_ns = clock::monotonic_ns();
    // SAFETY: the area belongs to this thread, and nothing below uses these words.
    let area = unsafe { &mut *tls::area() };
    let [waited_for, words @ ..] = &mut area.spare;
    // SAFETY: the words have its size and alignment. They are 0, which is a value for integers and
    // bools, or what it was at an earlier fault: nothing else uses them.
    let sequences = unsafe { &mut *core::ptr::from_mut(words).cast::<Sequences>() };
    let page_address = fault.address & !(PAGE - 1);
    // The page, and in the bits that its address leaves free how often.
    let (waited_page, count) = (*waited_for & !(PAGE - 1), *waited_for & (PAGE - 1));
    let repeats = if waited_page == page_address { count } else { 0 };
    let mut reliefs = 0;
    waits::begin_to_look();
    let resolved = loop {
        match pager.resolve(fault.address, sequences, repeats) {
            Err(FaultError::NoPromise(_)) if ask_for_relief(pager, reliefs) => reliefs += 1,
            resolved => break resolved,
        }
    };
    match resolved {
        Ok(report) => {
            *waited_for = match report.kind {
                FaultKind::Waited if report.is_present => {
                    page_address | (repeats + 1).min(PAGE - 1)
                }
                FaultKind::Waited => page_address | 1,
                _ => 0,
            };
            let shard = tls::lane();
            let now_ns = clock::monotonic_ns();
            let ns = now_ns - start_ns;
            if ns >= LongestWaits::LEAST_NS {
                runtime.stats.note_wait(waits::cause_since(ns), ns, now_ns);
            }
            runtime.stats.record(shard, report.kind, ns);
            let stall_ns = if report.kind == FaultKind::Zero { report.moves.stall_ns } else { ns };
            if stall_ns > 0 {
                runtime.stats.add(shard, number!(fault_stall_ns), stall_ns);
            }
            runtime.stats.sample(shard, fault.instruction());
            profile::note(fault, report.kind, ns);
            pager.note_fault(fault.address, &report, start_ns, ns);
            if report.ahead > 0 {
                runtime.stats.add(shard, number!(prefetched), report.ahead.into());
            }
            if report.moves.stall_ns > 0 || report.moves.evicted() > 0 {
                count_moves(runtime.stats, shard, &report.moves);
                pager.rebalance_here();
            }
            Verdict::Retry
        }
        Err(FaultError::NotManaged) => Verdict::NotOurs,
        Err(FaultError::Withheld) => {
            let durable = runtime.durable.as_ref();
            if durable.is_some_and(|durable| !durable.waits_for_checkpoint(start_ns)) {
                explain_full_file(durable.and_then(|of| of.path.to_str()), fault.address);
                return Verdict::Fatal;
            }
            // Space that only a forked child, or a reader, keeps from us comes back when it ends.
            forget_dead_children(runtime, pager);
            thread::sleep(WITHHELD_PAUSE);
            Verdict::Retry
        }
        // SAFETY: the context of this fault. A call tells the program itself what is wrong.
        Err(_) if unsafe { byte_copy::abandon(fault.context) } => Verdict::Retry,
        Err(error) => {
            workers::say_write_failure(pager);
            explain(pager, fault.address, error);
            Verdict::Fatal
        }
    }
}

fn ask_for_relief(pager: &Pager, asked_before: u32) -> bool {
    let wait = Wait::begin();
    let is_relieved = relief::ask(pager, asked_before);
    wait.end(Cause::Log);
    is_relieved
}

fn explain_full_file(path: Option<&str>, address: usize) {
    say!(
        "the access to ",
        Piece::Hex(address as u64),
        " stops: RAM is full, and the durable heap's file ",
        path.unwrap_or(""),
        " is full of its last checkpoint and what was changed since; make checkpoints more \
         often, or a heap with a larger store_size; the last checkpoint is whole"
    );
}

fn explain(pager: &Pager, address: usize, error: FaultError) {
    let nothing = Piece::Text("");
    let (problem, detail, fix) = match error {
        FaultError::NotManaged | FaultError::Withheld => return,
        FaultError::Unreadable(StoreError::Corrupt(block)) => (
            "the store returned bytes that fail their checksum (block ",
            Piece::Number(u64::from(block.0)),
            "); check the device, its data is not to be trusted",
        ),
        FaultError::Unreadable(StoreError::Io(errno)) => {
            ("the store cannot be read: ", Piece::Error(errno), "; check the device")
        }
        FaultError::Unreadable(_) => ("no such block", nothing, ""),
        FaultError::Lost => (
            "a page of the object table could not be read again, so nobody knows where its 1024 \
             objects are; check the device beside the store",
            nothing,
            "",
        ),
        FaultError::NoRoom(StoreError::Io(errno)) => (
            "RAM is full and the store takes no more writes: ",
            Piece::Error(errno),
            "; free space at the store, or check the device",
        ),
        FaultError::NoRoom(_) => {
            ("RAM and the store are full; use a larger --store-size", nothing, "")
        }
        FaultError::NoPromise(NoPromise::Store(StoreError::Full)) => (
            "the page is touched for the first time, and there is no room for it in RAM or in the \
             store, of which so many MiB are usable: ",
            Piece::Number(pager.store().stats().reservable_blocks / BLOCKS_PER_MIB),
            "; free space at the store, or use a larger --store-size; with --overcommit strict \
             the allocation fails instead",
        ),
        FaultError::NoPromise(NoPromise::Store(StoreError::Io(errno))) => (
            "the store has no space for a page that is touched for the first time: ",
            Piece::Error(errno),
            "; check the device",
        ),
        FaultError::NoPromise(_) => (
            "the page is touched for the first time, and the RAM budget has no room for the tables \
             of more pages; give more --ram",
            nothing,
            "",
        ),
        FaultError::File(Errno::ENODATA) => {
            ("the file of a private map has been cut short by somebody else", nothing, "")
        }
        FaultError::File(errno) => (
            "the file of a private map cannot be read: ",
            Piece::Error(errno),
            "; check the device",
        ),
        FaultError::Install(Errno::ENOENT) => {
            ("the program has mapped something else over memory of the heap", nothing, "")
        }
        FaultError::Install(Errno::EEXIST) => {
            ("the page is there and faults all the same", nothing, "")
        }
        FaultError::Install(errno) => ("the kernel cannot map the page: ", Piece::Error(errno), ""),
    };
    say!("the access to ", Piece::Hex(address as u64), " stops: ", problem, detail, fix);
}
