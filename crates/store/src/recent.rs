//! Recent: the packed blocks that were read last. Objects that left RAM together are often wanted
//! together, and lie in one block then: it is read once.
//!
//! Blocks go by the *filling* of their segment that they are from: a number that no block had
//! before, as a block's own may have.
//!
//! Guarantees: `copy` gives the bytes that were kept for this filling, or none.
//! Never: allocates, waits.
//! Threads: any, also in a signal handler, with all signals blocked. A lock for each place,
//! innermost and only ever tried.

use deepheap_sys::atomic::{AtomicU32, AtomicU64, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::lock::Lock;
use deepheap_sys::pinned_array::PinnedArray;

use crate::block::BLOCK_BYTES;

/// The blocks, in places that are filled in turn.
pub(crate) struct Recent {
    /// The filling of each place, 0 for none. A hint to who does not hold the lock of the place,
    /// which protects it.
    fillings: PinnedArray<AtomicU64>,
    next: AtomicU32,
    blocks: PinnedArray<Lock<[u8; BLOCK_BYTES]>>,
}

impl Recent {
    /// Places for so many blocks.
    pub(crate) fn new(places: usize) -> Result<Recent> {
        Ok(Recent {
            fillings: PinnedArray::new(places)?,
            next: AtomicU32::new(0),
            blocks: PinnedArray::new(places)?,
        })
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.fillings.mapped_bytes() + self.blocks.mapped_bytes()
    }

    /// How many blocks are kept.
    pub(crate) fn places(&self) -> usize {
        self.blocks.len()
    }

    /// Keeps a block that was read, unless another thread is at its place.
    pub(crate) fn keep(&self, filling: u64, bytes: &[u8]) {
        let place = self.next.fetch_add(1, Ordering::Relaxed) as usize % self.places();
        if let Some(mut kept) = self.blocks[place].try_lock() {
            kept.copy_from_slice(bytes);
            self.fillings[place].store(filling, Ordering::Relaxed);
        }
    }

    /// Copies the block of this filling; false if it is not here, or another thread is at its
    /// place.
    pub(crate) fn copy(&self, filling: u64, to: &mut [u8]) -> bool {
        let is_it = |kept: &AtomicU64| kept.load(Ordering::Relaxed) == filling;
        let Some(place) = self.fillings.iter().position(is_it) else { return false };
        let Some(kept) = self.blocks[place].try_lock() else { return false };
        let is_still = is_it(&self.fillings[place]);
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
        const PLACES: usize = 16;
        let recent = Recent::new(PLACES).expect("memory");
        let mut bytes = vec![0; BLOCK_BYTES];
        assert!(!recent.copy(1, &mut bytes));
        for filling in 1..=100 {
            recent.keep(filling, &block(filling));
        }
        for filling in 1..=100 {
            let is_kept = recent.copy(filling, &mut bytes);
            assert_eq!(is_kept, filling > 100 - PLACES as u64, "{filling}");
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
