//! Fault handler: from SIGBUS to the pager, and what to say when an access must stop.
//!
//! Guarantees: an access that cannot be served ends as SIGBUS for the program, with the reason
//! logged; it is never served with bytes that failed their checksum.
//! Never: allocates, touches managed memory.
//! Threads: the faulting one, in the signal handler, all signals blocked.

use core::time::Duration;

use deepheap_pager::policy::sequence::Sequences;
use deepheap_pager::{FaultError, FaultKind as Kind};
use deepheap_store::StoreError;
use deepheap_sys::fault_signal::{Fault, Verdict};
use deepheap_sys::log::{Piece, say};
use deepheap_sys::{clock, thread, tls};

use crate::children;
use crate::object_placement::{Return, SITES_OF_PROCESS};
use crate::runtime::running;
use crate::stats::{Counter, FaultKind};
use crate::workers;

/// Between two looks for space that a forked child withholds.
const WITHHELD_PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn on_fault(fault: &Fault) -> Verdict {
    let Some(runtime) = running() else { return Verdict::NotOurs };
    let Some(pager) = runtime.pager() else { return Verdict::NotOurs };
    let start_ns = clock::monotonic_ns();
    // SAFETY: the area belongs to this thread, and nothing below uses these words.
    let area = unsafe { &mut *tls::area() };
    let [waited_for, words @ ..] = &mut area.spare;
    let mut sequences = Sequences::new(words);
    let page_address = fault.address & !(deepheap_heap::PAGE - 1);
    let repeated = *waited_for == page_address;
    match pager.resolve(fault.address, &mut sequences, repeated) {
        Ok(report) => {
            *waited_for = if report.kind == Kind::Waited { page_address } else { 0 };
            let kind = match report.kind {
                Kind::Zero => FaultKind::Zero,
                Kind::Cached => FaultKind::Cached,
                Kind::Stored => FaultKind::Stored,
                Kind::Waited => FaultKind::Waited,
            };
            let shard = tls::lane();
            let is_read = kind == FaultKind::Stored;
            if (is_read || kind == FaultKind::Cached) && SITES_OF_PROCESS.has_trials() {
                SITES_OF_PROCESS.faulted(&Return {
                    address: page_address,
                    is_read,
                    epoch: pager.epoch() as u32,
                    window: pager.epochs_in_ram() as u32,
                });
            }
            runtime.stats.record(shard, kind, clock::monotonic_ns() - start_ns);
            if report.ahead > 0 {
                runtime.stats.add(shard, Counter::Prefetched, report.ahead.into());
            }
            if report.moves.stall_ns > 0 {
                runtime.count_moves(shard, &report.moves);
            }
            Verdict::Retry
        }
        Err(FaultError::NotManaged) => Verdict::NotOurs,
        Err(FaultError::Withheld) => {
            // Space that only a forked child keeps from us comes back when it ends.
            children::forget_the_dead(pager.store());
            thread::sleep(WITHHELD_PAUSE);
            Verdict::Retry
        }
        Err(error) => {
            workers::say_write_failure(pager);
            explain(fault.address, error);
            Verdict::Fatal
        }
    }
}

fn explain(address: usize, error: FaultError) {
    let address = Piece::Hex(address as u64);
    match error {
        FaultError::NotManaged | FaultError::Withheld => {}
        FaultError::Unreadable(StoreError::Corrupt(block)) => say(&[
            Piece::Text("the access to "),
            address,
            Piece::Text(" stops: the store returned bytes that fail their checksum (block "),
            Piece::Number(u64::from(block.0)),
            Piece::Text("); check the device, its data is not to be trusted"),
        ]),
        FaultError::Unreadable(StoreError::Io(errno)) => say(&[
            Piece::Text("the access to "),
            address,
            Piece::Text(" stops: the store cannot be read: "),
            Piece::Error(errno),
            Piece::Text("; check the device"),
        ]),
        FaultError::Unreadable(_) => {
            say(&[Piece::Text("the access to "), address, Piece::Text(" stops: no such block")]);
        }
        FaultError::NoRoom(StoreError::Io(errno)) => say(&[
            Piece::Text("the access to "),
            address,
            Piece::Text(" stops: RAM is full and the store takes no more writes: "),
            Piece::Error(errno),
            Piece::Text("; free space at the store, or check the device"),
        ]),
        FaultError::NoRoom(_) => say(&[
            Piece::Text("the access to "),
            address,
            Piece::Text(" stops: RAM and the store are full; use a larger --store-size"),
        ]),
        FaultError::Install(errno) => say(&[
            Piece::Text("the access to "),
            address,
            Piece::Text(" stops: the kernel cannot map the page: "),
            Piece::Error(errno),
        ]),
    }
}
