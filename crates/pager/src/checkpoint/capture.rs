//! Capture: lets threads that write go on before a cut has ended.
//!
//! The instant of a cut is when all resident pages are protected. From its release on, a thread
//! that writes to one of them takes the protection off that page itself, once the checkpoint has
//! the object as it was at the instant, or can have it:
//!
//! ```text
//!   the object is    what the thread does before
//!   captured         nothing
//!   as stored        it notes that the object is captured
//!   changed          it copies the object for the checkpoint, and notes that it is captured;
//!                    if no copy is free it sleeps until the checkpoint has written some
//! ```
//!
//! The checkpoint notes the same of each object that it has looked at, and gives those that were
//! copied a block with the copy. So at its end the backing block of every object holds what the
//! object was at the instant, whatever the object is by then.
//!
//! The premise of the argument in `checkpoint` still holds: a write to a page comes before the page
//! is protected, and belongs to the cut; or after all pages were, and after this object was
//! captured, and does not. A thread that has made a write that does not, and goes on, can only make
//! more of that kind: other pages are protected as well, the gate is closed, and writes past the
//! mapping look whether there is a cut (`direct`).
//!
//! Only resident objects are captured: others cannot be reached while the gate is closed. Threads
//! that fault on them, allocate or free wait for the end of the cut.
//!
//! Guarantees: `close` returns when no thread captures; no thread begins to before the next `open`.
//! Never: allocates; waits while it owns an object.
//! Threads: those that write, in their SIGBUS handler, outside the gate; and the one that makes the
//! checkpoint, whose `stop`, `open` and `close` come in this order.

use deepheap_residency::ownership::DescriptorId;
use deepheap_residency::staging::{CALL_PIECES, StagingBuffer};
use deepheap_sys::threads::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use deepheap_sys::threads::futex;

use crate::PAGE;

/// Objects that are copied at a time: as many pages as a staging buffer has.
pub(crate) const COPIES: usize = 2 * CALL_PIECES;

/// There is no cut.
const IDLE: u32 = 0;
/// Pages are being protected: a thread that writes to one waits for a moment.
const STOPPED: u32 = 1;
/// Writers go on.
const OPEN: u32 = 2;

/// Nobody has the copy.
const FREE: u32 = u32::MAX;
/// A thread has it, and has not filled it.
const TAKEN: u32 = u32::MAX - 1;

/// The state by which writers go on during a cut.
pub(crate) struct Capture {
    /// `IDLE -> STOPPED [stop] -> OPEN [open] -> IDLE [close]`, or back from `STOPPED` at once.
    phase: AtomicU32,
    /// Threads that capture.
    inside: AtomicU32,
    /// Where the copies are.
    memory: AtomicUsize,
    /// For each copy the object that it holds for the checkpoint, or `FREE`, or `TAKEN`.
    copies: [AtomicU32; COPIES],
    /// Changes when copies have become free.
    progress: AtomicU32,
    longest_wait_ns: AtomicU64,
}

/// A copy of an object, as it was at the instant of the cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy(usize);

impl Copy {
    /// Where to look for the next one.
    pub(crate) fn after(self) -> usize {
        self.0 + 1
    }
}

impl Capture {
    pub(crate) fn new() -> Capture {
        Capture {
            phase: AtomicU32::new(IDLE),
            inside: AtomicU32::new(0),
            memory: AtomicUsize::new(0),
            copies: [const { AtomicU32::new(TAKEN) }; COPIES],
            progress: AtomicU32::new(0),
            longest_wait_ns: AtomicU64::new(0),
        }
    }

    /// Whether there is a cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.phase.load(Ordering::SeqCst) != IDLE
    }

    /// Changes when copies have become free: a thread that finds none sleeps until then.
    pub(crate) fn progress(&self) -> u32 {
        self.progress.load(Ordering::SeqCst)
    }

    /// Sleeps until the progress is another than this.
    pub(crate) fn await_progress(&self, seen: u32) {
        futex::wait(&self.progress, seen, None);
    }

    /// Notes how long a thread was held up.
    pub(crate) fn note_wait(&self, ns: u64) {
        self.longest_wait_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// From now on a thread that writes to a protected page waits for `open` or `close`.
    pub(crate) fn stop(&self) {
        self.longest_wait_ns.store(0, Ordering::Relaxed);
        self.phase.store(STOPPED, Ordering::SeqCst);
    }

    /// All pages are protected: writers go on, and have this memory for copies.
    pub(crate) fn open(&self, buffer: &StagingBuffer<'_>) {
        self.memory.store(buffer.address() as usize, Ordering::Relaxed);
        self.copies.iter().for_each(|copy| copy.store(FREE, Ordering::Relaxed));
        self.set_phase(OPEN);
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        self.set_phase(IDLE);
        self.note_progress();
        loop {
            // Dekker with `enter`: it announces itself, then looks; we set the phase, then look.
            match self.inside.load(Ordering::SeqCst) {
                0 => return,
                inside => futex::wait(&self.inside, inside, None),
            };
        }
    }

    /// The longest that a thread was held up by a write since the pages were protected.
    pub(crate) fn longest_wait_ns(&self) -> u64 {
        self.longest_wait_ns.load(Ordering::Relaxed)
    }

    /// A copy that the checkpoint has not written yet, and whose it is.
    pub(crate) fn next_full(&self, from: usize) -> Option<(Copy, DescriptorId)> {
        (from..COPIES).find_map(|at| {
            let id = self.copies[at].load(Ordering::Acquire);
            (id < TAKEN).then_some((Copy(at), DescriptorId(id)))
        })
    }

    /// Where it is: a page.
    pub(crate) fn address(&self, Copy(at): Copy) -> *mut u8 {
        (self.memory.load(Ordering::Relaxed) + at * PAGE) as *mut u8
    }

    /// Wakes those that wait for a copy.
    pub(crate) fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.progress, u32::MAX);
    }

    fn set_phase(&self, phase: u32) {
        self.phase.store(phase, Ordering::SeqCst);
        futex::wake(&self.phase, u32::MAX);
    }

    /// Announces a thread that captures, waiting while pages are being protected; false if there is
    /// no cut.
    pub(crate) fn enter(&self) -> bool {
        while self.is_cut() {
            self.inside.fetch_add(1, Ordering::SeqCst);
            if self.phase.load(Ordering::SeqCst) == OPEN {
                return true;
            }
            self.leave();
            futex::wait(&self.phase, STOPPED, None);
        }
        false
    }

    /// The thread does not capture any more.
    pub(crate) fn leave(&self) {
        let before = self.inside.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.phase.load(Ordering::SeqCst) != OPEN {
            futex::wake(&self.inside, 1);
        }
    }

    /// A copy that nobody has.
    pub(crate) fn take(&self) -> Option<Copy> {
        let take = |copy: &AtomicU32| {
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            copy.load(relaxed) == FREE
                && copy.compare_exchange(FREE, TAKEN, acquire, relaxed).is_ok()
        };
        self.copies.iter().position(take).map(Copy)
    }

    /// It holds nothing, or the checkpoint has written it.
    pub(crate) fn give_back(&self, Copy(at): Copy) {
        self.copies[at].store(FREE, Ordering::Release);
    }

    /// It holds this object for the checkpoint.
    pub(crate) fn fill(&self, Copy(at): Copy, DescriptorId(id): DescriptorId) {
        self.copies[at].store(id, Ordering::Release);
    }
}
