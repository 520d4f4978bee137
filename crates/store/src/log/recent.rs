//! Recent: the packed blocks that were read last. Objects that left RAM together share a block, and
//! are often wanted together: the block is then read once.
//!
//! A block is known by a *filling*: a number that no block had before. Its own number will not do,
//! since the segment may have been freed and filled again.
//!
//! Guarantees: `copy` gives the bytes that were kept for this filling, or none.
//! Never: allocates, waits.
//! Threads: any, also in a signal handler, with all signals blocked. Each slot has a lock, the
//! innermost one; threads try it and never wait for it.

use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicU64, Ordering};
use deepheap_sys::threads::lock::Lock;

use crate::format::BLOCK_BYTES;

/// The blocks, in slots that are filled in turn.
pub(crate) struct Recent {
    /// The filling in each slot, 0 for none. The lock of the slot protects it; without the lock it
    /// is a hint.
    fillings: PinnedArray<AtomicU64>,
    next: AtomicU32,
    blocks: PinnedArray<Lock<[u8; BLOCK_BYTES]>>,
}

impl Recent {
    /// Slots for so many blocks.
    pub(crate) fn new(slots: usize) -> Result<Recent> {
        Ok(Recent {
            fillings: PinnedArray::new(slots)?,
            next: AtomicU32::new(0),
            blocks: PinnedArray::new(slots)?,
        })
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.fillings.mapped_bytes() + self.blocks.mapped_bytes()
    }

    /// How many blocks are kept.
    pub(crate) fn slots(&self) -> usize {
        self.blocks.len()
    }

    /// Keeps a block that was read, unless another thread has its slot.
    pub(crate) fn keep(&self, filling: u64, bytes: &[u8]) {
        let slot = self.next.fetch_add(1, Ordering::Relaxed) as usize % self.slots();
        if let Some(mut kept) = self.blocks[slot].try_lock() {
            kept.copy_from_slice(bytes);
            self.fillings[slot].store(filling, Ordering::Relaxed);
        }
    }

    /// Copies the block of this filling; false if it is not here, or another thread has its
    /// slot.
    pub(crate) fn copy(&self, filling: u64, to: &mut [u8]) -> bool {
        let is_it = |kept: &AtomicU64| kept.load(Ordering::Relaxed) == filling;
        let Some(slot) = self.fillings.iter().position(is_it) else { return false };
        let Some(kept) = self.blocks[slot].try_lock() else { return false };
        let is_still = is_it(&self.fillings[slot]);
        if is_still {
            to.copy_from_slice(&*kept);
        }
        is_still
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(filling: u64) -> Vec<u8> {
        filling.to_le_bytes().repeat(BLOCK_BYTES / 8)
    }

    #[test]
    fn the_last_blocks_are_kept_and_no_others() {
        const SLOTS: usize = 16;
        let recent = Recent::new(SLOTS).expect("memory");
        let mut bytes = vec![0; BLOCK_BYTES];
        assert!(!recent.copy(1, &mut bytes));
        for filling in 1..=100 {
            recent.keep(filling, &block(filling));
        }
        for filling in 1..=100 {
            let is_kept = recent.copy(filling, &mut bytes);
            assert_eq!(is_kept, filling > 100 - SLOTS as u64, "{filling}");
            assert!(!is_kept || bytes == block(filling), "{filling}");
        }
    }

    #[test]
    fn what_is_copied_while_others_keep_is_one_whole_block() {
        const THREADS: u64 = 4;
        let recent = Recent::new(16).expect("memory");
        let copied = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let recent = &recent;
                    scope.spawn(move || {
                        let mut bytes = vec![0; BLOCK_BYTES];
                        let mut copied = 0;
                        for round in 1..20_000u64 {
                            recent.keep(round * THREADS + thread, &block(round * THREADS + thread));
                            let wanted = round * THREADS + round % THREADS;
                            if recent.copy(wanted, &mut bytes) {
                                assert!(bytes == block(wanted), "{wanted}");
                                copied += 1;
                            }
                        }
                        copied
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<u32>()
        });
        assert!(copied > 0, "nothing was found: the test shows nothing");
    }
}
