//! Holds: memory that the kernel may look at, in RAM while it may.
//!
//! Once the heap is managed a hold pins its pages. Before that nothing can be evicted, but the
//! kernel may still look when that has changed: a thread waits on a futex, and SIGCONT has it wait
//! anew; a signal stack is written to when its signal comes. So an early hold is noted, and the
//! pages of all notes are pinned as management begins.
//!
//! Guarantees: the pages are resident from the return of `Hold::on` to its drop, also if management
//! begins in between: an early hold touches them, and costs two exchanges of one word.
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
use deepheap_sys::mapping::{self, Advice};
use deepheap_sys::tls;

use crate::residency;
use crate::runtime::{Runtime, running};

/// Early holds there can be at a time.
const NOTES: usize = 1 << 14;
/// Notes that threads of one lane try first.
const NOTES_OF_LANE: usize = NOTES / 16;

/// The notes: `FREE`, or what `early_word` says.
static EARLY: [AtomicU64; NOTES] = [const { AtomicU64::new(FREE) }; NOTES];

const FREE: u64 = 0;
/// The pages were pinned as management began.
const PINNED: u64 = 1 << 63;
/// Nobody will take the note back.
const FOR_GOOD: u64 = 1 << 62;
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
        let Some(runtime) = owner_of(address) else { return Hold(Kind::Foreign) };
        if let Some(word) = early_word(runtime, address, length) {
            for page in addresses_of(runtime, word) {
                // SAFETY: the caller's memory on our heap; the load changes nothing.
                unsafe { core::ptr::read_volatile(page.max(address) as *const u8) };
            }
            if let Some(note) = take_note(runtime, word) {
                return Hold(Kind::Noted { note });
            }
        }
        if runtime.pager().is_none() {
            return Hold(Kind::Foreign);
        }
        residency::pin(address, length);
        Hold(Kind::Pinned { address, length })
    }

    /// Holds the pages for as long as the process lives. The same ones take one note, however often
    /// they are named. Some of them may be protected against the program itself.
    pub fn for_good(address: usize, length: usize) {
        let Some(runtime) = owner_of(address) else { return };
        if let Some(word) = early_word(runtime, address, length).map(|word| word | FOR_GOOD) {
            for page in addresses_of(runtime, word) {
                // SAFETY: a page of our heap; nothing of it changes. What is protected stays away,
                // and nobody looks at it.
                let _ = unsafe { mapping::advise(page as *mut u8, PAGE, Advice::PopulateRead) };
            }
            let is_noted = |note: &AtomicU64| note.load(Ordering::SeqCst) & !PINNED == word;
            if notes().any(is_noted) || take_note(runtime, word).is_some() {
                return;
            }
        }
        residency::pin(address, length);
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
        residency::unpin(address, length);
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

/// A free note takes the word; none if there is none, or if management has begun and the word is
/// not among those that were pinned then.
fn take_note(runtime: &Runtime, word: u64) -> Option<&'static AtomicU64> {
    let change = |note: &AtomicU64, from: u64, to: u64| {
        note.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    };
    let note =
        notes().find(|note| note.load(Ordering::Relaxed) == FREE && change(note, FREE, word))?;
    let is_undone = runtime.pager().is_some() && change(note, word, FREE);
    (!is_undone).then_some(note)
}

/// All notes, those of the thread's lane first.
fn notes() -> impl Iterator<Item = &'static AtomicU64> {
    let (others, own) = EARLY.split_at(tls::lane() * NOTES_OF_LANE);
    own.iter().chain(others)
}

/// The runtime, if the address is one of the heap's.
fn owner_of(address: usize) -> Option<&'static Runtime> {
    running().filter(|runtime| runtime.heap.contains(address))
}

/// What an early hold notes, up to where the memory ends that the heap uses so far; none under
/// management.
fn early_word(runtime: &Runtime, address: usize, length: usize) -> Option<u64> {
    let end = runtime.region_base + runtime.heap.spans_end() * SPAN;
    if runtime.pager().is_some() || address >= end {
        return None;
    }
    let last = address.saturating_add(length.max(1) - 1).min(end - 1);
    let page = |address: usize| (address - runtime.region_base) / PAGE;
    let pages = page(last) + 1 - page(address);
    Some((pages as u64) << PAGE_BITS | page(address) as u64)
}

/// Where the pages of a note are.
fn addresses_of(runtime: &Runtime, word: u64) -> impl Iterator<Item = usize> {
    let (page, pages) = pages_of(word);
    (0..pages).map(move |index| runtime.region_base + (page + index) * PAGE)
}

fn pages_of(word: u64) -> (usize, usize) {
    let low = |word: u64| (word & ((1 << PAGE_BITS) - 1)) as usize;
    (low(word), low(word >> PAGE_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_keeps_the_largest_region() {
        let pages = crate::runtime::REGION_BYTES / PAGE;
        for (page, count) in [(0, 1), (pages - 1, 1), (7, pages - 7)] {
            let word = (count as u64) << PAGE_BITS | page as u64;
            assert_eq!(pages_of(word | PINNED | FOR_GOOD), (page, count));
        }
    }
}
