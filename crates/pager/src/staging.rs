//! Staging: pinned, aligned buffers into which the device reads before a page is installed.
//!
//! Guarantees: a buffer belongs to one thread from `take` to the drop of its guard.
//! Never: allocates. Waits only when every buffer is in use, and then by yielding.
//! Threads: any, also in a signal handler.

use deepheap_sys::atomic::{AtomicU32, AtomicU64, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::mapping;
use deepheap_sys::thread;

/// Buffers of a pool.
pub(crate) const BUFFERS: usize = 64;

/// A pool of 64 buffers of one size.
pub struct Staging {
    memory: *mut u8,
    bytes: usize,
    taken: AtomicU64,
    /// Bytes of each buffer that were ever used.
    used: [AtomicU32; BUFFERS],
}

// SAFETY: the mapping lives as long as the process; a buffer has one owner at a time, by `taken`.
unsafe impl Send for Staging {}
// SAFETY: as above.
unsafe impl Sync for Staging {}

/// One buffer, given back when dropped.
pub struct StagingBuffer<'a> {
    pool: &'a Staging,
    index: u32,
}

impl Staging {
    /// A pool of buffers of `bytes` each (a multiple of the page size), untouched so far.
    pub fn new(bytes: usize) -> Result<Staging> {
        let memory = mapping::map_pinned(BUFFERS * bytes)?;
        let used = [const { AtomicU32::new(0) }; BUFFERS];
        Ok(Staging { memory, bytes, taken: AtomicU64::new(0), used })
    }

    /// Bytes of DRAM that the buffers take.
    pub fn noted_bytes(&self) -> usize {
        self.used.iter().map(|used| used.load(Ordering::Relaxed) as usize).sum()
    }

    /// In a forked child: what threads of the parent held is free.
    pub fn forget_others(&self) {
        self.taken.store(0, Ordering::Relaxed);
    }

    /// A free buffer, of which `bytes` from its start will be used, or what is noted before.
    pub fn take(&self, bytes: usize) -> StagingBuffer<'_> {
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            let index = (!taken).trailing_zeros();
            if index as usize >= BUFFERS {
                thread::yield_now();
                continue;
            }
            let with = taken | (1 << index);
            if self
                .taken
                .compare_exchange_weak(taken, with, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                let buffer = StagingBuffer { pool: self, index };
                buffer.note(bytes);
                return buffer;
            }
        }
    }
}

impl StagingBuffer<'_> {
    /// Notes that so many bytes of the buffer, from its start, will be used.
    pub fn note(&self, bytes: usize) {
        if self.unnoted(bytes) > 0 {
            self.used().store(bytes as u32, Ordering::Relaxed);
        }
    }

    /// How many of the first `bytes` of the buffer nobody has used so far.
    pub fn unnoted(&self, bytes: usize) -> usize {
        bytes.saturating_sub(self.used().load(Ordering::Relaxed) as usize)
    }

    fn used(&self) -> &AtomicU32 {
        &self.pool.used[self.index as usize]
    }

    /// Where the buffer is.
    pub fn address(&self) -> *mut u8 {
        // SAFETY: the index is below BUFFERS, the mapping has that many buffers.
        unsafe { self.pool.memory.add(self.index as usize * self.pool.bytes) }
    }
}

impl Drop for StagingBuffer<'_> {
    fn drop(&mut self) {
        self.pool.taken.fetch_and(!(1 << self.index), Ordering::Release);
    }
}
