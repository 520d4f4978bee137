//! Holds: memory that the kernel may look at, in RAM while it may.
//!
//! Once the heap is managed a hold pins its pages. Before that nothing can be evicted, but the
//! kernel may still look when that has changed: a thread waits on a futex, and SIGCONT has it wait
//! anew; a signal stack is written to when its signal comes. So an early hold is noted, and the
//! pages of all notes are pinned as management begins.
//!
//! Guarantees: the pages are resident from the return of `Hold::on` to its drop, also if management
//! begins in between. Costs two exchanges of one word while the heap is plain.
//! Never: allocates. Beyond `NOTES` early holds at a time, further ones hold nothing.
//!
//! Threads: any, outside the fault path. A signal handler may make holds of its own.
//!
//! Why none is missed: an early hold writes its note, then looks for a pager; who begins management
//! publishes the pager, then looks at the notes, before any page can leave. Both are sequentially
//! consistent, so one sees the other. If both do, the exchange of the note's word decides who pins:
//! FREE -> noted -> FREE [the holder], or -> noted -> pinned [who begins] -> FREE [the holder].

use core::sync::atomic::{AtomicU64, Ordering};

use deepheap_heap::{PAGE, SPAN};
use deepheap_sys::tls;

use crate::runtime::{Runtime, running};
use crate::stats::Counter;

/// Early holds there can be at a time.
const NOTES: usize = 1 << 14;
/// Notes that threads of one lane try first.
const NOTES_OF_LANE: usize = NOTES / 16;

/// The notes: `FREE`, or a word of `word_of`.
static EARLY: [AtomicU64; NOTES] = [const { AtomicU64::new(FREE) }; NOTES];

const FREE: u64 = 0;
/// The pages were pinned as management began.
const PINNED: u64 = 1 << 63;
/// Bits of a page number, and of a number of pages; the latter is never 0 in a note.
const PAGE_BITS: u32 = 31;

/// Pages that stay in RAM until this is dropped.
#[must_use]
pub struct Hold(Kind);

enum Kind {
    /// Not our memory.
    Foreign,
    Noted {
        note: &'static AtomicU64,
    },
    Pinned {
        address: usize,
        length: usize,
    },
}

impl Hold {
    /// Holds the pages of `[address, address + length)`. Addresses outside the heap need no hold.
    pub fn on(address: usize, length: usize) -> Hold {
        let Some(runtime) = running() else { return Hold(Kind::Foreign) };
        if !runtime.heap.contains(address) {
            return Hold(Kind::Foreign);
        }
        if runtime.pager().is_none() && address < end_of_spans(runtime) {
            let last = address.saturating_add(length.max(1) - 1).min(end_of_spans(runtime) - 1);
            let word = word_of(runtime, address, last);
            touch(address, last);
            if let Some(note) = take_note(word) {
                let undo = || note.compare_exchange(word, FREE, Ordering::SeqCst, Ordering::SeqCst);
                if !runtime.is_managed_for_sure() || undo().is_err() {
                    return Hold(Kind::Noted { note });
                }
            }
        }
        let Some(pager) = runtime.pager() else { return Hold(Kind::Foreign) };
        runtime.stats.add(tls::lane(), Counter::Pins, 1);
        pager.pin(address, length);
        Hold(Kind::Pinned { address, length })
    }

    /// Holds the pages for as long as the process lives.
    pub fn for_good(self) {
        core::mem::forget(self);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (address, length) = match self.0 {
            Kind::Foreign => return,
            Kind::Noted { note } => {
                let word = note.swap(FREE, Ordering::SeqCst);
                let Some(runtime) = running().filter(|_| word & PINNED != 0) else { return };
                let (page, pages) = pages_of(word);
                (runtime.region_base + page * PAGE, pages * PAGE)
            }
            Kind::Pinned { address, length } => (address, length),
        };
        if let Some(pager) = running().and_then(|runtime| runtime.pager()) {
            pager.unpin(address, length);
        }
    }
}

/// What is to be pinned as management begins: page numbers, and how many pages follow. The pager is
/// published already.
pub(crate) fn pin_early() -> Vec<(usize, usize)> {
    let mut pinned = Vec::new();
    for note in &EARLY {
        let word = note.load(Ordering::SeqCst);
        if word != FREE
            && note
                .compare_exchange(word, word | PINNED, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        {
            pinned.push(pages_of(word));
        }
    }
    pinned
}

/// A free note takes the word.
fn take_note(word: u64) -> Option<&'static AtomicU64> {
    let first = tls::lane() * NOTES_OF_LANE;
    let note = |step: usize| &EARLY[(first + step) % NOTES];
    (0..NOTES).map(note).find(|note| {
        note.load(Ordering::Relaxed) == FREE
            && note.compare_exchange(FREE, word, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    })
}

/// Where the memory ends that the heap uses so far.
fn end_of_spans(runtime: &Runtime) -> usize {
    runtime.region_base + runtime.heap.spans_end() * SPAN
}

fn word_of(runtime: &Runtime, first: usize, last: usize) -> u64 {
    let page = |address: usize| (address - runtime.region_base) / PAGE;
    let pages = page(last) + 1 - page(first);
    (pages as u64) << PAGE_BITS | page(first) as u64
}

fn pages_of(word: u64) -> (usize, usize) {
    let low = |word: u64| (word & ((1 << PAGE_BITS) - 1)) as usize;
    (low(word), low(word >> PAGE_BITS))
}

/// Has the kernel give every page memory, so that it is found when management begins.
fn touch(first: usize, last: usize) {
    for page in (first & !(PAGE - 1)..=last).step_by(PAGE) {
        // SAFETY: memory that the heap uses, readable while it is plain; the load changes nothing.
        unsafe { core::ptr::read_volatile(page.max(first) as *const u8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_keeps_the_largest_region() {
        let pages = crate::runtime::REGION_BYTES / PAGE;
        for (page, count) in [(0, 1), (pages - 1, 1), (7, pages - 7)] {
            let word = (count as u64) << PAGE_BITS | page as u64;
            assert_eq!(pages_of(word | PINNED), (page, count));
        }
    }
}
