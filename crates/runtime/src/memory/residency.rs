//! Residency: keeps pages in RAM while the kernel, or a forked child, needs them there.
//!
//! A system call on an evicted page answers EFAULT. A wrapper of system calls asks `is_managing`,
//! pins the memory that the call uses, calls again, and unpins.
//!
//! Memory of maps is as that of heaps: what is not in RAM is brought there, and pinned.
//!
//! Threads: any, outside the fault path.

use deepheap_heap::PAGE;
use deepheap_maps::{self as maps, PinKind};
use deepheap_pager::Pager;
use deepheap_sys::threads::tls;

use crate::number;
use crate::runtime::{Runtime, is_durable_open, running, running_at};

/// Whether any memory is under management, or mapped by us; before that no system call can fail
/// because of us, and `pin` does nothing.
#[inline]
pub fn is_managing() -> bool {
    running().is_some_and(|runtime| runtime.pager().is_some()) || is_durable_open() || maps::any()
}

/// Whether an address lies in a heap or in a map: what is there may leave RAM, now or later.
#[inline]
pub fn may_leave(address: usize) -> bool {
    let is_in = |runtime: &Runtime| runtime.heap.contains(address);
    running_at(address).is_some_and(is_in) || maps::owns(address as *const u8)
}

/// Makes the managed pages of a range resident and keeps them so until `unpin` of the same range.
/// True: call `unpin`. Other addresses, and heaps that are not managed yet, are ignored.
pub fn pin(address: usize, length: usize) -> bool {
    if maps::owns(address as *const u8) {
        return maps::pin(address, length, PinKind::Object).is_ok();
    }
    pin_by(address, |pager| {
        pager.pin(address, length);
        true
    })
}

/// As `pin`, for a call that can do with less memory at a time: false, too, if calls would have
/// much pinned then. A map's pins wait until there are few enough.
pub(crate) fn pin_if_few(address: usize, length: usize) -> bool {
    if maps::owns(address as *const u8) {
        return pin(address, length);
    }
    pin_by(address, |pager| pager.pin_if_few(address, length))
}

/// Whether `pin_if_few` of so many bytes of the process's heap would be made now.
pub fn are_few(bytes: usize) -> bool {
    let pager = running().and_then(|runtime| runtime.pager());
    pager.is_none_or(|pager| pager.are_few(bytes.div_ceil(PAGE)))
}

/// Has the pager of an address pin something, and counts that.
fn pin_by(address: usize, pin: impl FnOnce(&Pager) -> bool) -> bool {
    let Some(runtime) = running_at(address) else { return false };
    let is_pinned = runtime.pager().is_some_and(pin);
    if is_pinned {
        runtime.stats.add(tls::lane(), number!(pins), 1);
    }
    is_pinned
}

/// Ends one `pin` of the same range.
pub fn unpin(address: usize, length: usize) {
    if maps::owns(address as *const u8) {
        maps::unpin(address, length);
        return;
    }
    if let Some(pager) = running_at(address).and_then(|runtime| runtime.pager()) {
        pager.unpin(address, length);
    }
}

/// As `pin`, on the program's wish: false if it would have too much pinned.
pub(crate) fn pin_for_long(address: usize, length: usize) -> bool {
    pin_by(address, |pager| pager.pin_for_long(address, length))
}

/// Ends one `pin_for_long` of the same range.
pub(crate) fn unpin_for_long(address: usize, length: usize) {
    if let Some(pager) = running_at(address).and_then(|runtime| runtime.pager()) {
        pager.unpin_for_long(address, length);
    }
}

/// Makes the managed pages of a range resident once, without keeping them.
pub fn touch(address: usize, length: usize) {
    if maps::owns(address as *const u8) {
        if pin(address, length) {
            unpin(address, length);
        }
        return;
    }
    if let Some(pager) = running_at(address).and_then(|runtime| runtime.pager()) {
        pager.touch(address, length);
    }
}

/// Counts a system call that was tried again because of an evicted page.
pub fn count_efault_retry() {
    if let Some(runtime) = running() {
        runtime.stats.add(tls::lane(), number!(efault_retries), 1);
    }
}
