//! Waiting: what mutexes, conditions, semaphores, read-write locks and barriers on the heap share.
//!
//! libc's futex wait ends the program on EFAULT ("The futex facility returned an unexpected error
//! code"). So the object's page is held in RAM while a thread may wait on it, and so is the page of
//! the time limit, which libc passes again after a signal. Waits that begin before management does
//! are held too, since SIGCONT or a debugger makes them begin anew.
//!
//! A wake of a private futex never looks at the page. A wake of a shared one does, and the kernel
//! itself writes to the word of a priority-inheriting or robust mutex, even after its owner's last
//! call. The page of such an object is pinned from its first use under management to its
//! destruction.
//!
//! Guarantees: an uncontended call costs two loads and two compares more than libc's.
//! Never: pins a page around a call that libc answers without waiting, if it has a `try` form.
//! Threads: any. The pin of a thread that is cancelled while it waits ends with the thread.

use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering};

use deepheap::internal::Hold;
use libc::{pthread_barrier_t, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, sem_t};

/// Whether the page of this object may be evicted while a thread waits on it, now or later.
#[inline(always)]
pub fn is_on_heap<T>(object: *const T) -> bool {
    deepheap::internal::may_leave(object as usize)
}

/// Whether the object's page may be evicted now.
#[inline(always)]
fn is_at_risk<T>(object: *const T) -> bool {
    deepheap::internal::is_managing() && is_on_heap(object)
}

/// The object's page, in RAM while a thread may wait on it.
#[inline]
pub fn hold<T>(object: *const T) -> Hold {
    Hold::on(object as usize, size_of::<T>())
}

/// An object that threads wait on, whose layout is part of glibc's ABI.
pub trait Waited {
    /// Where the object says that the kernel knows it, and which bits of that word do: it is shared
    /// between processes, robust or priority-inheriting.
    const KNOWN: (usize, u32);
    /// Whether its destruction waits for threads that are still leaving.
    const DESTRUCTION_WAITS: bool = false;
}

const ANY: u32 = u32::MAX;

impl Waited for pthread_mutex_t {
    const KNOWN: (usize, u32) = (16, 16 | 32 | 128);
}
impl Waited for pthread_cond_t {
    const KNOWN: (usize, u32) = (36, 1);
    const DESTRUCTION_WAITS: bool = true;
}
impl Waited for pthread_rwlock_t {
    const KNOWN: (usize, u32) = (28, ANY);
}
impl Waited for sem_t {
    const KNOWN: (usize, u32) = (8, ANY);
}
impl Waited for pthread_barrier_t {
    const KNOWN: (usize, u32) = (12, ANY);
    const DESTRUCTION_WAITS: bool = true;
}

/// Whether the kernel knows the object, and its page may be evicted now.
#[inline(always)]
fn is_known_at_risk<T: Waited>(object: *const T) -> bool {
    let (offset, bits) = T::KNOWN;
    // SAFETY: an initialised object of the program, with a word there.
    is_at_risk(object) && unsafe { *object.byte_add(offset).cast::<u32>() } & bits != 0
}

/// Pins an object that the kernel knows, from its first use under management to `destroy`.
#[inline(always)]
pub fn pin_known<T: Waited>(object: *const T) {
    if is_known_at_risk(object) {
        pin_once(object);
    }
}

/// Takes a lock by `attempt`, which never waits; by `real` only if that answers EBUSY.
#[inline(always)]
pub fn try_first<T: Waited>(
    lock: *mut T,
    attempt: impl Fn(*mut T) -> c_int,
    real: impl Fn(*mut T) -> c_int,
) -> c_int {
    if !is_on_heap(lock) {
        return real(lock);
    }
    pin_known(lock);
    let outcome = attempt(lock);
    if outcome != libc::EBUSY {
        return outcome;
    }
    let _held = hold(lock);
    real(lock)
}

/// Destroys an object by `real`. If that succeeds its long pin ends.
pub fn destroy<T: Waited>(object: *mut T, real: impl Fn(*mut T) -> c_int) -> c_int {
    let _held = T::DESTRUCTION_WAITS.then(|| hold(object));
    let was_known = is_known_at_risk(object);
    let outcome = real(object);
    if outcome == 0 && was_known {
        unpin_known(object);
    }
    outcome
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

/// Pins the object, unless it is pinned already.
#[cold]
fn pin_once<T>(object: *const T) {
    let address = object as usize;
    for slot in slots(address) {
        match slot.load(Ordering::Acquire) {
            FREE => break,
            found if found == address => return,
            _ => {}
        }
    }
    if !deepheap::internal::pin(address, size_of::<T>()) {
        return;
    }
    for slot in slots(address) {
        let found = slot.load(Ordering::Relaxed);
        let is_open = found == FREE || found == GONE;
        let taken = || slot.compare_exchange(found, address, Ordering::AcqRel, Ordering::Relaxed);
        if is_open && taken().is_ok() {
            return;
        }
    }
}

/// Ends `pin_once`.
#[cold]
fn unpin_known<T>(object: *const T) {
    let address = object as usize;
    for slot in slots(address) {
        let found = slot.load(Ordering::Acquire);
        if found == FREE {
            return;
        }
        let left = || slot.compare_exchange(found, GONE, Ordering::AcqRel, Ordering::Relaxed);
        if found == address && left().is_ok() {
            deepheap::internal::unpin(address, size_of::<T>());
            return;
        }
    }
}
