//! Waiting: what mutexes, conditions, semaphores, locks and barriers on the heap have in common.
//!
//! libc's futex wait aborts the program on EFAULT ("The futex facility returned an unexpected error
//! code"), so the page of the object is held in RAM while a thread may wait on it, and that of the
//! time limit, which libc passes again after a signal. That goes for waits that begin before
//! management does, too: SIGCONT, or a debugger, has them begin anew. A wake of a private futex
//! never looks at the page. A wake of a shared one does, and the kernel itself writes to the word
//! of a priority-inheriting or robust mutex, even after the last call of its owner: the page of
//! such an object is pinned from its first use under management to its destruction.
//!
//! Guarantees: an uncontended call costs two loads and two compares more than libc's.
//! Never: pins a page around a call that libc answers without waiting, where it has a `try` form.
//!
//! Threads: any. A thread that is cancelled while it waits leaves its pin behind: one page stays.

use core::sync::atomic::{AtomicUsize, Ordering};

use deepheap::Hold;

/// Whether the page of this object may be evicted while a thread waits on it, now or later.
#[inline(always)]
pub fn is_on_heap<T>(object: *const T) -> bool {
    deepheap::owns(object as usize)
}

/// Whether the object's page may be evicted now.
#[inline(always)]
pub fn is_at_risk<T>(object: *const T) -> bool {
    deepheap::is_managing() && is_on_heap(object)
}

/// The object's page, in RAM while a thread may wait on it.
#[inline]
pub fn hold<T>(object: *const T) -> Hold {
    Hold::on(object as usize, size_of::<T>())
}

/// Pins memory the kernel writes to at times of its own choosing (stacks of threads and signals),
/// for as long as the process lives: nothing tells when the program is done with it.
pub fn hold_for_good(address: usize, len: usize) {
    Hold::for_good(address, len);
}

/// Objects that the kernel knows and that are pinned, by address; a slot is taken once and then
/// changes between its address and `GONE`. When all are taken, further objects are pinned for good.
static KNOWN: [AtomicUsize; KNOWN_MAX] = [const { AtomicUsize::new(FREE) }; KNOWN_MAX];
const KNOWN_MAX: usize = 4096;
const FREE: usize = 0;
const GONE: usize = 1;

/// The slots where an address may be, in the order in which they are filled.
fn slots(address: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    let start = (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..KNOWN_MAX).map(move |step| &KNOWN[(start + step) % KNOWN_MAX])
}

/// Pins an object that the kernel knows at its first use under management, once.
#[cold]
pub fn hold_known<T>(object: *const T) {
    let address = object as usize;
    for slot in slots(address) {
        match slot.load(Ordering::Acquire) {
            FREE => break,
            found if found == address => return,
            _ => {}
        }
    }
    deepheap::pin(address, size_of::<T>());
    for slot in slots(address) {
        let found = slot.load(Ordering::Relaxed);
        let is_open = found == FREE || found == GONE;
        let taken = || slot.compare_exchange(found, address, Ordering::AcqRel, Ordering::Relaxed);
        if is_open && taken().is_ok() {
            return;
        }
    }
}

/// The object is destroyed: ends `hold_known`.
pub fn release_known<T>(object: *const T) {
    if !is_at_risk(object) {
        return;
    }
    let address = object as usize;
    for slot in slots(address) {
        let found = slot.load(Ordering::Acquire);
        if found == FREE {
            return;
        }
        let left = || slot.compare_exchange(found, GONE, Ordering::AcqRel, Ordering::Relaxed);
        if found == address && left().is_ok() {
            deepheap::unpin(address, size_of::<T>());
            return;
        }
    }
}
