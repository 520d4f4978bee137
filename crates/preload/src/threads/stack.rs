//! Stack: the memory of the heap that the program gives to a thread as its stack.
//!
//! libc keeps the thread's descriptor and its thread-local variables there, ours among them. The
//! kernel writes there at any time: system calls that libc makes by itself use buffers on the
//! stack, a signal's frame comes where the stack ends just then, and after the thread's last
//! instruction its identity is cleared for `pthread_join`. So all of it is in RAM until the kernel
//! has left it.
//!
//! ```text
//!   FREE ──► TAKEN, held ──► its thread's identity ──► FREE
//!            [hold]          [begin: the thread]       [joined; look_after: the thread is gone]
//! ```
//!
//! Guarantees: the pin ends before `pthread_join` returns. That of a thread that nobody joins ends
//! when the next thread with such a stack is made, or joined.
//! Never: allocates. Beyond `STACKS` such threads at a time, further stacks are pinned for good.
//! Threads: any. The thread that exchanges the word of a slot for `TAKEN` owns the rest of it.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

use deepheap::internal::Hold;
use libc::{pid_t, pthread_attr_t, pthread_t};

use crate::seam;

/// Stacks that are held at a time.
const STACKS: usize = 1024;
const FREE: u32 = 0;
/// Held, and its thread has not said which one it is; or somebody ends the hold.
const TAKEN: u32 = u32::MAX;

/// A stack, held for a thread.
pub struct OwnStack {
    /// `FREE`, `TAKEN` or the thread's identity.
    word: AtomicU32,
    held: UnsafeCell<Held>,
}

struct Held {
    hold: Option<Hold>,
    bottom: usize,
    bytes: usize,
}

// SAFETY: the rest of a slot is its owner's, which exchanged the word; the word's release and
// acquire hand it over. The fields that `covers` reads of a slot in use only change while it is
// not.
unsafe impl Sync for OwnStack {}

static SLOTS: [OwnStack; STACKS] = [const {
    OwnStack {
        word: AtomicU32::new(FREE),
        held: UnsafeCell::new(Held { hold: None, bottom: 0, bytes: 0 }),
    }
}; STACKS];

/// How many slots were ever in use, from the first one on.
static USED: AtomicU32 = AtomicU32::new(0);

/// The stack that the attributes name, if it may leave RAM.
///
/// # Safety
/// Null, or attributes of the program.
unsafe fn stack_of(attributes: *const pthread_attr_t) -> Option<(usize, usize)> {
    let (mut bottom, mut bytes) = (null_mut(), 0);
    // SAFETY: the caller's promise, and places for the answers.
    let is_known = !attributes.is_null()
        && unsafe { libc::pthread_attr_getstack(attributes, &mut bottom, &mut bytes) } == 0;
    (is_known && deepheap::internal::may_leave(bottom as usize)).then_some((bottom as usize, bytes))
}

/// Holds the stack that the attributes name for as long as the process lives: libc makes thread
/// after thread on it.
///
/// # Safety
/// As `stack_of`.
pub unsafe fn hold_for_good(attributes: *const pthread_attr_t) {
    // SAFETY: the caller's promise.
    if let Some((bottom, bytes)) = unsafe { stack_of(attributes) } {
        Hold::for_good(bottom, bytes);
    }
}

/// Holds the stack that the attributes name for one thread.
///
/// # Safety
/// As `stack_of`.
pub unsafe fn hold(attributes: *const pthread_attr_t) -> Option<&'static OwnStack> {
    // SAFETY: the caller's promise.
    let (bottom, bytes) = unsafe { stack_of(attributes) }?;
    look_after();
    let Some(index) = SLOTS.iter().position(|slot| slot.take(FREE)) else {
        Hold::for_good(bottom, bytes);
        return None;
    };
    USED.fetch_max(index as u32 + 1, Ordering::AcqRel);
    let hold = Some(Hold::of_nobody(bottom, bytes));
    // SAFETY: we have taken the slot.
    unsafe { *SLOTS[index].held.get() = Held { hold, bottom, bytes } };
    Some(&SLOTS[index])
}

/// Passes the outcome of a join on. If it succeeded the thread's stack is no longer held.
pub fn joined(thread: pthread_t, outcome: c_int) -> c_int {
    if outcome == 0 {
        // The thread's descriptor is on its stack.
        for (slot, word) in held() {
            if slot.covers(thread as usize) && slot.take(word) {
                slot.end();
            }
        }
    }
    outcome
}

/// Ends the holds for threads that are gone.
fn look_after() {
    for (slot, word) in held() {
        if is_gone(word) && slot.take(word) {
            slot.end();
        }
    }
}

/// In a forked child: the calling thread has another identity, and there is no other thread.
pub fn forked() {
    let here = 0u8;
    for (slot, _) in held() {
        if slot.covers((&raw const here) as usize) {
            slot.begin();
        }
    }
}

/// The slots whose threads have begun.
fn held() -> impl Iterator<Item = (&'static OwnStack, u32)> {
    let used = USED.load(Ordering::Acquire) as usize;
    let word_of = |slot: &'static OwnStack| (slot, slot.word.load(Ordering::Acquire));
    SLOTS[..used].iter().map(word_of).filter(|(_, word)| !matches!(*word, FREE | TAKEN))
}

/// Whether the kernel has ended the thread: then it has left its stack.
fn is_gone(thread: u32) -> bool {
    // SAFETY: two numbers; no signal is sent.
    let ask = || unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread as pid_t, 0) };
    seam::keep_errno(ask) == -1
}

impl OwnStack {
    fn take(&self, from: u32) -> bool {
        self.word.compare_exchange(from, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The calling thread runs on this stack.
    pub fn begin(&self) {
        // SAFETY: no arguments.
        let own = unsafe { libc::gettid() };
        self.word.store(own as u32, Ordering::Release);
    }

    /// Ends the hold. The slot is the caller's.
    pub fn end(&self) {
        // SAFETY: the caller has taken the slot.
        unsafe { (*self.held.get()).hold = None };
        self.word.store(FREE, Ordering::Release);
    }

    fn covers(&self, address: usize) -> bool {
        // SAFETY: two words that were written before the word that the caller has loaded. Another
        // thread may write them again meanwhile; then the caller's exchange of the word fails.
        unsafe {
            let held = self.held.get();
            address.wrapping_sub((*held).bottom) < (*held).bytes
        }
    }
}
