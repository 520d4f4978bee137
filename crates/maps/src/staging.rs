//! Staging: buffers through which pages come into maps, of the whole process.
//!
//! Guarantees: a buffer has one user; its memory is ours, so touching it faults into nobody.
//! Never: allocates after `prepare` | waits while its caller holds a shard.
//! Threads: any, also in a signal handler.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;

use deepheap_sys::errno::Result;
use deepheap_sys::{PAGE, mapping, thread};

/// Pages of a buffer.
pub const BUFFER_PAGES: usize = 64;
/// Pages beside them, for what is read on the way.
pub const SCRATCH_PAGES: usize = 2;
const ALL_PAGES: usize = BUFFER_PAGES + SCRATCH_PAGES;
/// Buffers of the process: reads under way at a time.
const BUFFERS: usize = 64;
/// How long a thread sleeps that finds none.
const PAUSE: Duration = Duration::from_micros(100);

static MEMORY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static TAKEN: [AtomicU32; BUFFERS] = [const { AtomicU32::new(0) }; BUFFERS];

/// Maps the buffers; each takes RAM once it is used. Once, under a lock of the caller's.
pub fn prepare() -> Result<()> {
    if MEMORY.load(Ordering::Acquire).is_null() {
        let memory = mapping::map_pinned(BUFFERS * ALL_PAGES * PAGE)?;
        MEMORY.store(memory, Ordering::Release);
    }
    Ok(())
}

/// In the child of a fork: the other threads' buffers are free.
pub fn after_fork() {
    for taken in &TAKEN {
        taken.store(0, Ordering::Relaxed);
    }
}

/// A buffer; free again on drop.
pub struct Buffer(usize);

impl Buffer {
    /// Takes one; waits for it.
    pub fn take() -> Buffer {
        loop {
            // The first free one: few buffers have RAM.
            let free = TAKEN.iter().position(|taken| {
                taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            });
            match free {
                Some(index) => return Buffer(index),
                None => thread::sleep(PAUSE),
            }
        }
    }

    /// A page of it, which the holder of the buffer has alone.
    pub fn page(&self, index: usize) -> *mut u8 {
        assert!(index < BUFFER_PAGES, "a page of the buffer");
        MEMORY.load(Ordering::Acquire).wrapping_add((self.0 * ALL_PAGES + index) * PAGE)
    }

    /// `SCRATCH_PAGES` beside them.
    pub fn scratch(&self) -> *mut u8 {
        self.page(BUFFER_PAGES - 1).wrapping_add(PAGE)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        TAKEN[self.0].store(0, Ordering::Release);
    }
}
