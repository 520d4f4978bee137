//! Staging: pinned, aligned buffers into which the device reads before a page is installed.
//!
//! Guarantees: a buffer belongs to one thread from `take` to the drop of its guard.
//! Never: allocates. Waits only when every buffer is in use.
//! Threads: any, also in a signal handler.

use deepheap_sys::atomic::{AtomicU32, AtomicU64, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::futex;
use deepheap_sys::mapping;

/// Buffers of a pool.
pub(crate) const BUFFERS: usize = 64;

/// A pool of 64 buffers of one size.
pub struct Staging {
    memory: *mut u8,
    bytes: usize,
    taken: AtomicU64,
    /// Threads that wait for a buffer.
    waiting: AtomicU32,
    /// Changes when a buffer is given back while somebody waits.
    given_back: AtomicU32,
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
        let [waiting, given_back] = [const { AtomicU32::new(0) }; 2];
        Ok(Staging { memory, bytes, taken: AtomicU64::new(0), waiting, given_back, used })
    }

    /// Bytes of DRAM that the buffers take.
    pub fn noted_bytes(&self) -> usize {
        self.used.iter().map(|used| used.load(Ordering::Relaxed) as usize).sum()
    }

    /// In a forked child: what threads of the parent held is free.
    pub fn forget_others(&self) {
        self.taken.store(0, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// A free buffer, of which `bytes` from its start will be used, or what is noted before.
    pub fn take(&self, bytes: usize) -> StagingBuffer<'_> {
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            let index = (!taken).trailing_zeros();
            if index as usize >= BUFFERS {
                self.wait();
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

    /// Waits until a buffer is given back, unless one is free. Sequentially consistent: either we
    /// see the buffer that is given back, or who gives it back sees us waiting (`drop`).
    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let seen = self.given_back.load(Ordering::SeqCst);
        if self.taken.load(Ordering::SeqCst) == u64::MAX {
            futex::wait(&self.given_back, seen, None);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
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
        self.pool.taken.fetch_and(!(1 << self.index), Ordering::SeqCst);
        if self.pool.waiting.load(Ordering::SeqCst) > 0 {
            self.pool.given_back.fetch_add(1, Ordering::SeqCst);
            futex::wake(&self.pool.given_back, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn who_finds_no_buffer_sleeps_until_one_is_given_back() {
        let pool = Staging::new(4096).expect("memory");
        std::thread::scope(|scope| {
            for thread in 0..4 * BUFFERS {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..200 {
                        let buffer = pool.take(1);
                        // SAFETY: the buffer is ours alone.
                        unsafe { buffer.address().cast::<usize>().write_volatile(thread) };
                        if (thread + round) % 16 == 0 {
                            std::thread::sleep(Duration::from_micros(50));
                        }
                        // SAFETY: as above.
                        assert_eq!(unsafe { buffer.address().cast::<usize>().read() }, thread);
                    }
                });
            }
        });
        assert_eq!(pool.taken.load(Ordering::Relaxed), 0);
        assert_eq!(pool.waiting.load(Ordering::Relaxed), 0);
    }
}
