//! Holds: keep memory in RAM while the kernel may look at it.
//!
//! Once the heap is managed, a hold pins its pages. Before that no page can be evicted, so nothing
//! is pinned. But the kernel may look again after management has begun: SIGCONT makes a thread wait
//! on its futex anew, and a signal stack is written to when its signal comes. So an early hold
//! leaves a note, and the switch pins the pages of all notes. A later hold leaves a note too,
//! marked as pinned: a thread that is cancelled while it waits in libc, or jumps out of a handler,
//! never drops its holds. When a thread ends, the notes with its name on them end as well.
//!
//! Guarantees: the pages are resident from the return of `Hold::on` to its drop, also if management
//! begins in between: an early hold touches them, and costs two exchanges of one word. No hold
//! outlives its thread, except those `of_nobody`.
//! Never: allocates. Beyond `NOTES` holds at a time, further early ones hold nothing, and later
//! ones stay if their thread is cancelled.
//!
//! Threads: any, outside the fault path. A signal handler may make holds of its own.
//!
//! Why none is missed: an early hold writes its note, then looks for a pager. The switch publishes
//! the pager, then looks at the notes, before any page can leave. Both are sequentially consistent,
//! so one of the two sees the other. If both do, the one that exchanges the word of the note pins:
//! FREE -> noted -> FREE [the holder], or -> noted -> pinned [the switch] -> FREE [the holder].

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use deepheap_heap::{PAGE, SPAN};
use deepheap_maps::PinKind;
use deepheap_sys::memory::mapping::{self, Advice};
use deepheap_sys::threads::tls;

use crate::memory::residency;
use crate::runtime::{Runtime, running_at};

/// Holds that can be noted at a time.
const NOTES: usize = 1 << 14;
/// Notes that threads of one lane try first.
const NOTES_OF_LANE: usize = NOTES / 16;

/// A hold that has not ended.
struct Note {
    /// `FREE`, or what `word_of` says.
    word: AtomicU64,
    /// The area of the thread that ends it; 0: none does. The thread itself sets it after it has
    /// taken the note, and clears it before it gives it back: so a thread that finds its own name
    /// here finds a hold of its own.
    owner: AtomicUsize,
    /// Where the region begins that the pages are of; set with the owner.
    region_base: AtomicUsize,
}

static NOTED: [Note; NOTES] = [const {
    Note {
        word: AtomicU64::new(FREE),
        owner: AtomicUsize::new(0),
        region_base: AtomicUsize::new(0),
    }
}; NOTES];

const FREE: u64 = 0;
/// The pages are pinned: from the beginning, or since management began.
const PINNED: u64 = 1 << 63;
/// Nobody will take the note back.
const FOR_GOOD: u64 = 1 << 62;
/// Bits of a page number, and of a number of pages; the latter is never 0 in a note.
const PAGE_BITS: u32 = 31;

/// Pages that stay in RAM until this is dropped.
#[must_use]
pub struct Hold(Kind);

/// Where a hold is noted; of the others from which address on, and how many bytes.
enum Kind {
    /// Not our memory.
    Foreign,
    Noted(&'static Note),
    /// In a map, which has a note of its own.
    Mapped(usize, usize),
    /// Pinned, and no note was free.
    Pinned(usize, usize),
}

impl Hold {
    /// Holds the pages of `[address, address + length)`. Addresses outside of heaps and maps need
    /// no hold.
    pub fn on(address: usize, length: usize) -> Hold {
        Hold::by(address, length, residency::pin).unwrap_or(Hold(Kind::Foreign))
    }

    /// As `on`, for a call that can do with less memory at a time: none if calls have much pinned.
    pub fn if_few(address: usize, length: usize) -> Option<Hold> {
        Hold::by(address, length, residency::pin_if_few)
    }

    /// As `on`, but the end of the thread does not end it.
    pub fn of_nobody(address: usize, length: usize) -> Hold {
        if deepheap_maps::owns(address as *const u8) {
            residency::pin(address, length);
            return Hold(Kind::Pinned(address, length));
        }
        let hold = Hold::on(address, length);
        if let Kind::Noted(note) = &hold.0 {
            note.disown();
        }
        hold
    }

    fn by(address: usize, length: usize, pin: fn(usize, usize) -> bool) -> Option<Hold> {
        if deepheap_maps::owns(address as *const u8) {
            return Some(Hold::on_map(address, length));
        }
        let Some(runtime) = owner_of(address) else { return Some(Hold(Kind::Foreign)) };
        if let Some(word) = early_word(runtime, address, length) {
            for page in addresses_of(runtime, word) {
                // SAFETY: the caller's memory on our heap; the load changes nothing.
                unsafe { core::ptr::read_volatile(page.max(address) as *const u8) };
            }
            if let Some(note) = take_early_note(runtime, word) {
                return Some(Hold::noted(note, runtime));
            }
        }
        if runtime.pager().is_none() {
            return Some(Hold(Kind::Foreign));
        }
        if !pin(address, length) {
            return None;
        }
        let word = word_of(runtime, address, length, runtime.heap.region_bytes());
        Some(match take_note(word | PINNED) {
            Some(note) => Hold::noted(note, runtime),
            None => Hold(Kind::Pinned(address, length)),
        })
    }

    fn on_map(address: usize, length: usize) -> Hold {
        // A call's pin waits until it can be made.
        let _ = deepheap_maps::pin(address, length, PinKind::Call);
        count_holds(1);
        Hold(Kind::Mapped(address, length))
    }

    fn noted(note: &'static Note, runtime: &Runtime) -> Hold {
        note.region_base.store(runtime.region_base, Ordering::Relaxed);
        note.owner.store(tls::area() as usize, Ordering::Relaxed);
        count_holds(1);
        Hold(Kind::Noted(note))
    }

    /// Holds the pages for as long as the process lives. The same ones take one note, however often
    /// they are named. Some of them may be protected against the program itself.
    pub fn for_good(address: usize, length: usize) {
        if deepheap_maps::owns(address as *const u8) {
            residency::pin(address, length);
            return;
        }
        let Some(runtime) = owner_of(address) else { return };
        if let Some(word) = early_word(runtime, address, length).map(|word| word | FOR_GOOD) {
            for page in addresses_of(runtime, word) {
                // SAFETY: a page of our heap; nothing of it changes. A protected page does not
                // come, and no thread looks at it.
                let _ = unsafe { mapping::advise(page as *mut u8, PAGE, Advice::PopulateRead) };
            }
            let is_noted = |note: &Note| note.word.load(Ordering::SeqCst) & !PINNED == word;
            if notes().any(is_noted) || take_early_note(runtime, word).is_some() {
                return;
            }
        }
        residency::pin(address, length);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        match self.0 {
            Kind::Foreign => {}
            Kind::Noted(note) => note.end(),
            Kind::Mapped(address, length) => {
                count_holds(-1);
                deepheap_maps::unpin(address, length);
            }
            Kind::Pinned(address, length) => residency::unpin(address, length),
        }
    }
}

/// Counts holds of the calling thread. A jump out of a signal handler may lose a count: then the
/// thread's end looks for holds in vain.
fn count_holds(more: i32) {
    let area = tls::area();
    // SAFETY: this thread's own area.
    unsafe { (*area).holds = (*area).holds.wrapping_add_signed(more) };
}

impl Note {
    fn change(&self, from: u64, to: u64) -> bool {
        self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes the calling thread's name off a hold of its own; a hold of nobody's stays one.
    fn disown(&self) {
        if self.owner.swap(0, Ordering::Relaxed) != 0 {
            count_holds(-1);
        }
    }

    /// Ends a hold of the calling thread's, or of nobody's.
    fn end(&self) {
        self.disown();
        let base = self.region_base.load(Ordering::Relaxed);
        let word = self.word.swap(FREE, Ordering::SeqCst);
        if word & PINNED != 0 {
            let (page, pages) = pages_of(word);
            residency::unpin(base + page * PAGE, pages * PAGE);
        }
    }
}

/// The calling thread ends: so do the holds that it never dropped.
pub(crate) fn thread_exit() {
    let area = tls::area();
    // SAFETY: this thread's own area.
    if unsafe { (*area).holds } > 0 {
        let is_own = |note: &&Note| note.owner.load(Ordering::Relaxed) == area as usize;
        NOTED.iter().filter(is_own).for_each(Note::end);
        deepheap_maps::unpin_thread();
    }
}

/// In a forked child: the holds of threads that it does not have end.
pub(crate) fn end_those_of_others() {
    let own = tls::area() as usize;
    for note in &NOTED {
        let owner = note.owner.load(Ordering::Relaxed);
        if owner != 0 && owner != own {
            note.owner.store(0, Ordering::Relaxed);
            note.end();
        }
    }
}

/// The pages to pin as management begins: page numbers, and how many pages follow. The pager is
/// published already.
pub(crate) fn pin_early() -> Vec<(usize, usize)> {
    let mut pinned = Vec::new();
    for note in &NOTED {
        let word = note.word.load(Ordering::SeqCst);
        // A thread that has seen the pager already pins its hold itself.
        let is_early = word != FREE && word & PINNED == 0;
        if is_early && note.change(word, word | PINNED) {
            pinned.push(pages_of(word));
        }
    }
    pinned
}

/// A free note takes the word; none if there is none, or if management has begun and the word is
/// not among those that were pinned then.
fn take_early_note(runtime: &Runtime, word: u64) -> Option<&'static Note> {
    let note = take_note(word)?;
    let is_undone = runtime.pager().is_some() && note.change(word, FREE);
    (!is_undone).then_some(note)
}

/// A free note takes the word; none if there is none.
fn take_note(word: u64) -> Option<&'static Note> {
    let is_free = |note: &Note| note.word.load(Ordering::Relaxed) == FREE;
    notes().find(|note| is_free(note) && note.change(FREE, word))
}

/// All notes, those of the thread's lane first.
fn notes() -> impl Iterator<Item = &'static Note> {
    let (others, own) = NOTED.split_at(tls::lane() * NOTES_OF_LANE);
    own.iter().chain(others)
}

/// The runtime whose heap the address lies in: that of `malloc`, or of a durable heap, which has a
/// pager from its beginning on.
fn owner_of(address: usize) -> Option<&'static Runtime> {
    running_at(address).filter(|runtime| runtime.heap.contains(address))
}

/// What an early hold notes, up to where the memory ends that the heap uses so far; none under
/// management.
fn early_word(runtime: &Runtime, address: usize, length: usize) -> Option<u64> {
    let bytes = runtime.heap.spans_end() * SPAN;
    if runtime.pager().is_some() || address >= runtime.region_base + bytes {
        return None;
    }
    Some(word_of(runtime, address, length, bytes))
}

/// The pages of memory that begins in the first `most` bytes of the region, up to there.
fn word_of(runtime: &Runtime, address: usize, length: usize, most: usize) -> u64 {
    let end = runtime.region_base + most;
    let last = address.saturating_add(length.max(1) - 1).min(end - 1);
    let page = |address: usize| (address - runtime.region_base) / PAGE;
    let pages = page(last) + 1 - page(address);
    (pages as u64) << PAGE_BITS | page(address) as u64
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
