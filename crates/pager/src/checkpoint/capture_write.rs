//! Capture a write: what a thread does that writes to a protected page during a cut (`capture`).
//!
//! Guarantees: the protection of a page ends only after its object is captured.
//! Never: allocates; waits while it owns an object.
//! Threads: those that write, in their SIGBUS handler, outside the gate.

use deepheap_heap::PageNo;
use deepheap_residency::ownership::{Flag, Owned, Place, State};
use deepheap_sys::memory::own_memory::{self, Part};
use deepheap_sys::process::clock;

use crate::pager::Pager;

/// A thread that captures an object does so with others in its aligned block of so many pages: the
/// checkpoint has to look at each of them, and one fault costs as much as some such looks.
const BLOCK: u32 = 16;

/// What came of a write during a cut.
enum Written {
    /// It can be tried again.
    Free,
    /// The object is not in the page buffer, or its bytes cannot be read: the gate is the way.
    Elsewhere,
    /// Another thread owned the object: look again.
    Again,
    /// No copy is free.
    NoCopy,
}

impl Pager {
    /// A fault during a cut: lets the thread go on if it writes to a resident page. False: the
    /// fault is another one.
    pub(crate) fn is_captured(&self, page: PageNo) -> bool {
        if !self.capture.is_cut() {
            return false;
        }
        let began_ns = clock::monotonic_ns();
        let is_captured = self.capture_while_open(page);
        if is_captured {
            let wait_ns = clock::monotonic_ns() - began_ns;
            self.capture.note_wait(wait_ns);
        }
        is_captured
    }

    fn capture_while_open(&self, page: PageNo) -> bool {
        while self.capture.enter() {
            let seen = self.capture.progress();
            let written = self.capture_page(page);
            self.capture.leave();
            match written {
                Written::Free => return true,
                Written::Elsewhere => return false,
                Written::Again => {}
                Written::NoCopy => self.capture.await_progress(seen),
            }
        }
        false
    }

    /// Captures the object of a page, and takes the protection off the page.
    fn capture_page(&self, page: PageNo) -> Written {
        let Some(Place::Busy(id)) = self.residency.ownership.peek(page) else {
            return Written::Elsewhere;
        };
        let Some(owned) = self.residency.ownership.claim_resident(page, id) else {
            let descriptor = self.residency.ownership.descriptor(id);
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
        let written = self.capture_owned(&owned);
        self.residency.ownership.put_back(owned);
        if !matches!(written, Written::Free) {
            return written;
        }
        let first = page.0 / BLOCK * BLOCK;
        let is_captured = |page: &u32| self.is_captured_in_passing(PageNo(*page));
        let after = (page.0 + 1..first + BLOCK).take_while(is_captured).count() as u32;
        let before = (first..page.0).rev().take_while(is_captured).count() as u32;
        // Only now can anybody write to them.
        let together = self.residency.frames.unprotect(PageNo(page.0 - before), before + 1 + after);
        // The program may have mapped something else over one of them.
        match together.or_else(|_| self.residency.frames.unprotect(page, 1)) {
            Ok(()) => Written::Free,
            Err(_) => Written::Elsewhere,
        }
    }

    /// Captures the object of a page if it is resident and nobody owns it.
    fn is_captured_in_passing(&self, page: PageNo) -> bool {
        let Some(Place::Busy(id)) = self.residency.ownership.peek(page) else { return false };
        let Some(owned) = self.residency.ownership.claim_resident(page, id) else { return false };
        let written = self.capture_owned(&owned);
        self.residency.ownership.put_back(owned);
        matches!(written, Written::Free)
    }

    /// Notes that an owned, resident object is captured, and makes it true.
    fn capture_owned(&self, owned: &Owned) -> Written {
        let descriptor = self.residency.ownership.of(owned);
        if descriptor.has(Flag::Captured) {
            return Written::Free;
        }
        let page = descriptor.page();
        if !self.residency.heap.page_is_free(page) {
            let Some(copy) = self.capture.take() else { return Written::NoCopy };
            let (from, to) = (self.residency.frames.address_of(page), self.capture.address(copy));
            let length = self.residency.kept_bytes(page);
            // SAFETY: the copy is ours alone, and has a page.
            let copied = unsafe { own_memory::copy(&[Part { from, to, length }]) };
            if copied != Ok(1) {
                self.capture.give_back(copy);
                return Written::Elsewhere;
            }
            // SAFETY: just copied.
            let bytes = unsafe { core::slice::from_raw_parts(to, length) };
            match self.is_as_stored(descriptor, bytes) {
                true => self.capture.give_back(copy),
                false => self.capture.fill(copy, owned.id()),
            }
        }
        descriptor.set(Flag::Captured, true);
        Written::Free
    }
}
