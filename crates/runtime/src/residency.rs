//! Residency: keeping pages in RAM while the kernel, or a child, needs to find them there.
//!
//! A system call that meets an evicted page answers EFAULT. Whoever wraps system calls asks
//! `is_managing`, pins what the call uses, calls again, and unpins.
//!
//! Threads: any, outside the fault path.

use deepheap_sys::tls;

use crate::runtime::running;
use crate::stats::Counter;

/// Whether any memory is under management; before that no system call can fail because of us, and
/// `pin` does nothing.
#[inline]
pub fn is_managing() -> bool {
    running().is_some_and(|runtime| runtime.pager().is_some())
}

/// Makes the managed pages of a range resident and keeps them so until `unpin` of the same range.
/// Other addresses are ignored. Call it only if `is_managing`, and `unpin` only after `pin`.
pub fn pin(address: usize, length: usize) {
    let Some(runtime) = running() else { return };
    if let Some(pager) = runtime.pager() {
        runtime.stats.add(tls::lane(), Counter::Pins, 1);
        pager.pin(address, length);
    }
}

/// Ends one `pin` of the same range.
pub fn unpin(address: usize, length: usize) {
    if let Some(pager) = running().and_then(|runtime| runtime.pager()) {
        pager.unpin(address, length);
    }
}

/// As `pin`, on the program's wish: false if it would have too much pinned.
pub(crate) fn pin_for_long(address: usize, length: usize) -> bool {
    let Some(runtime) = running() else { return false };
    let Some(pager) = runtime.pager() else { return false };
    let pinned = pager.pin_for_long(address, length);
    if pinned {
        runtime.stats.add(tls::lane(), Counter::Pins, 1);
    }
    pinned
}

/// Ends one `pin_for_long` of the same range.
pub(crate) fn unpin_for_long(address: usize, length: usize) {
    if let Some(pager) = running().and_then(|runtime| runtime.pager()) {
        pager.unpin_for_long(address, length);
    }
}

/// Makes the managed pages of a range resident once, without keeping them.
pub fn touch(address: usize, length: usize) {
    if let Some(pager) = running().and_then(|runtime| runtime.pager()) {
        pager.touch(address, length);
    }
}

/// Counts a system call that was tried again because of an evicted page.
pub fn count_efault_retry() {
    if let Some(runtime) = running() {
        runtime.stats.add(tls::lane(), Counter::EfaultRetries, 1);
    }
}
