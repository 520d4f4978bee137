//! Capture a write: what a thread does that writes to a protected page during a cut (`capture`).
//!
//! Guarantees: the protection of a page ends only after its object is captured.
//! Never: allocates; waits while it owns an object.
//! Threads: those that write, in their SIGBUS handler, outside the gate.

use deepheap_heap::PageNo;
use deepheap_residency::Residency;
use deepheap_residency::ownership::{Flag, Owned, Place, State};
use deepheap_sys::memory::own_memory::{self, Part};
use deepheap_sys::threads::waits::{Cause, Wait};

use crate::checkpoint::capture::Capture;
use crate::checkpoint::is_as_stored;

/// A thread that captures an object does so with others in its aligned block of so many pages: the
/// checkpoint has to look at each of them, and one fault costs as much as some such looks.
const BLOCK: u32 = 16;

/// The outcome of a write during a cut.
enum Written {
    /// It can be tried again.
    Free,
    /// The object is not in the page buffer, or its bytes cannot be read: the thread waits at the
    /// gate.
    Elsewhere,
    /// Another thread owned the object: look again.
    Again,
    /// No copy is free.
    NoCopy,
}

impl Capture {
    /// A fault during a cut: lets the thread go on if it writes to a resident page. False: the
    /// fault is another one.
    pub(crate) fn is_captured(&self, residency: &Residency, page: PageNo) -> bool {
        if !self.is_cut() {
            return false;
        }
        let wait = Wait::begin();
        let is_captured = self.capture_while_open(residency, page);
        let wait_ns = wait.end(Cause::Checkpoint);
        if is_captured {
            self.note_wait(wait_ns);
        }
        is_captured
    }

    fn capture_while_open(&self, residency: &Residency, page: PageNo) -> bool {
        while self.enter() {
            let seen = self.progress();
            let written = self.capture_page(residency, page);
            self.leave();
            match written {
                Written::Free => return true,
                Written::Elsewhere => return false,
                Written::Again => {}
                Written::NoCopy => self.await_progress(seen),
            }
        }
        false
    }

    /// Captures the object of a page, and takes the protection off the page.
    fn capture_page(&self, residency: &Residency, page: PageNo) -> Written {
        let Some(Place::Busy(id)) = residency.ownership.peek(page) else {
            return Written::Elsewhere;
        };
        let Some(owned) = residency.ownership.claim_resident(page, id) else {
            let descriptor = residency.ownership.descriptor(id);
            let word = descriptor.word();
            return match word.state() {
                State::Leaving => {
                    descriptor.wait_while(word);
                    Written::Again
                }
                State::Resident => Written::Again,
                State::Free | State::Arriving | State::Cached => Written::Elsewhere,
            };
        };
        let written = self.capture_owned(residency, &owned);
        residency.ownership.put_back(owned);
        if !matches!(written, Written::Free) {
            return written;
        }
        let first = page.0 / BLOCK * BLOCK;
        let is_captured = |page: &u32| self.is_captured_in_passing(residency, PageNo(*page));
        let after = (page.0 + 1..first + BLOCK).take_while(is_captured).count() as u32;
        let before = (first..page.0).rev().take_while(is_captured).count() as u32;
        // Only now can anybody write to them.
        let together = residency.frames.unprotect(PageNo(page.0 - before), before + 1 + after);
        // The program may have mapped something else over one of them.
        match together.or_else(|_| residency.frames.unprotect(page, 1)) {
            Ok(()) => Written::Free,
            Err(_) => Written::Elsewhere,
        }
    }

    /// Captures the object of a page if it is resident and nobody owns it.
    fn is_captured_in_passing(&self, residency: &Residency, page: PageNo) -> bool {
        let Some(Place::Busy(id)) = residency.ownership.peek(page) else { return false };
        let Some(owned) = residency.ownership.claim_resident(page, id) else { return false };
        let written = self.capture_owned(residency, &owned);
        residency.ownership.put_back(owned);
        matches!(written, Written::Free)
    }

    /// Notes that an owned, resident object is captured, and makes it true.
    fn capture_owned(&self, residency: &Residency, owned: &Owned) -> Written {
        let descriptor = residency.ownership.of(owned);
        if descriptor.has(Flag::Captured) {
            return Written::Free;
        }
        let page = descriptor.page();
        if !residency.heap.page_is_free(page) {
            let Some(copy) = self.take() else { return Written::NoCopy };
            let (from, to) = (residency.frames.address_of(page), self.address(copy));
            let length = residency.kept_bytes(page);
            // SAFETY: the copy is ours alone, and has a page.
            let copied = unsafe { own_memory::copy(&[Part { from, to, length }]) };
            if copied != Ok(1) {
                self.give_back(copy);
                return Written::Elsewhere;
            }
            // SAFETY: just copied.
            let bytes = unsafe { core::slice::from_raw_parts(to, length) };
            match is_as_stored(&residency.store, descriptor, bytes) {
                true => self.give_back(copy),
                false => self.fill(copy, owned.id()),
            }
        }
        descriptor.set(Flag::Captured, true);
        Written::Free
    }
}
