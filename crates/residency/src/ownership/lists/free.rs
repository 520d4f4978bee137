//! Free descriptors: which descriptors are not in use, lowest first, and whose RAM goes back.
//!
//! A heap of small objects that has just begun fills the cache with many of them. Later its object
//! table has grown, the cache holds fewer, and most descriptors are free for good. So a thread that
//! needs a descriptor gets one of the lowest of its shard. The free ones gather at the end, where
//! whole groups of them can give their RAM back.
//!
//! Guarantees: a descriptor is handed out once until it is given back. RAM is dropped only of
//! groups of which none is handed out, nor handed out meanwhile.
//! Never: allocates, waits.
//! Threads: any; the words of a run belong to the lock of its shard (`lists`), the counts to no
//! lock.

use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::ownership::descriptor::{Descriptor, DescriptorId};

/// Adjacent descriptors whose bits are one word, and which belong to one shard.
pub(super) const RUN: usize = 64;
/// Runs whose descriptors are whole pages of RAM together.
pub(super) const GROUP_RUNS: usize = 4;
const GROUP: usize = GROUP_RUNS * RUN;
const GROUP_BYTES: usize = GROUP * core::mem::size_of::<Descriptor>();
const _: () = assert!(GROUP_BYTES.is_multiple_of(deepheap_sys::PAGE));
const ALL: u64 = u64::MAX;

/// See the file's header.
pub(super) struct FreeDescriptors {
    count: usize,
    /// Shards, a power of two.
    shards: usize,
    /// A bit for each descriptor that is in use, or does not exist; a word for each run.
    used: PinnedArray<AtomicU64>,
    /// A bit for each word of `used` that has no bit left; those of a shard lie side by side.
    full: PinnedArray<AtomicU64>,
    /// Whether a group may have RAM.
    in_ram: PinnedArray<AtomicU8>,
    groups_in_ram: AtomicUsize,
    /// Groups from here on were never used.
    groups_used: AtomicUsize,
}

impl FreeDescriptors {
    /// All of `count` descriptors are free; their runs belong to so many shards in turn.
    pub(super) fn new(count: usize, shards: usize) -> Result<FreeDescriptors> {
        let groups = count.div_ceil(GROUP);
        let runs = groups * GROUP_RUNS;
        let free = FreeDescriptors {
            count,
            shards,
            used: PinnedArray::new(runs)?,
            full: PinnedArray::new(shards * full_words(runs, shards))?,
            in_ram: PinnedArray::new(groups)?,
            groups_in_ram: AtomicUsize::new(0),
            groups_used: AtomicUsize::new(0),
        };
        for id in count..groups * GROUP {
            free.set_used(id / RUN, 1 << (id % RUN));
        }
        Ok(free)
    }

    /// Bytes of RAM that descriptors take.
    pub(super) fn bytes(&self) -> usize {
        self.groups_in_ram.load(Ordering::Relaxed) * GROUP_BYTES
    }

    /// Descriptors that were ever in use are among the first so many.
    pub(super) fn ever_used(&self) -> usize {
        (self.groups_used.load(Ordering::Relaxed) * GROUP).min(self.count)
    }

    /// Takes one of the lowest of a shard, which is locked.
    pub(super) fn take(&self, shard: usize) -> Option<DescriptorId> {
        let words = full_words(self.used.len(), self.shards);
        let full = &self.full[shard * words..][..words];
        let word = full.iter().position(|word| word.load(Ordering::Relaxed) != ALL)?;
        let bit = full[word].load(Ordering::Relaxed).trailing_ones() as usize;
        let run = (word * RUN + bit) * self.shards + shard;
        let free = !self.used.get(run)?.load(Ordering::Relaxed);
        let bit = free.trailing_zeros() as usize;
        self.set_used(run, 1 << bit);
        let group = run / GROUP_RUNS;
        if self.in_ram[group].load(Ordering::Relaxed) == 0
            && self.in_ram[group].swap(1, Ordering::Relaxed) == 0
        {
            self.groups_in_ram.fetch_add(1, Ordering::Relaxed);
            self.groups_used.fetch_max(group + 1, Ordering::Relaxed);
        }
        Some(DescriptorId((run * RUN + bit) as u32))
    }

    /// Takes one back. Its shard is locked.
    pub(super) fn give(&self, id: DescriptorId) {
        let run = id.0 as usize / RUN;
        self.set_free(run, 1 << (id.0 as usize % RUN));
    }

    /// Whether a descriptor is in use.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn is_used(&self, id: DescriptorId) -> bool {
        self.used[id.0 as usize / RUN].load(Ordering::Relaxed) >> (id.0 as usize % RUN) & 1 != 0
    }

    /// The next group from `from` on that has RAM.
    pub(super) fn next_in_ram(&self, from: usize) -> Option<usize> {
        let groups = &self.in_ram[..self.groups_used.load(Ordering::Relaxed)];
        let rest = groups.get(from..)?;
        let offset = rest.iter().position(|group| group.load(Ordering::Relaxed) != 0)?;
        Some(from + offset)
    }

    /// Withholds a run of which none is in use; false if one is. Its shard is locked.
    pub(super) fn withhold(&self, run: usize) -> bool {
        let is_free = self.used[run].load(Ordering::Relaxed) == 0;
        if is_free {
            self.set_used(run, ALL);
        }
        is_free
    }

    /// Ends `withhold`. Its shard is locked.
    pub(super) fn put_back(&self, run: usize) {
        self.set_free(run, ALL);
    }

    /// Notes that a group, whose runs are withheld, has no RAM any more.
    pub(super) fn note_dropped(&self, group: usize) {
        self.in_ram[group].store(0, Ordering::Relaxed);
        self.groups_in_ram.fetch_sub(1, Ordering::Relaxed);
    }

    /// The descriptors of a group.
    pub(super) fn of_group(group: usize) -> core::ops::Range<usize> {
        group * GROUP..(group + 1) * GROUP
    }

    fn set_used(&self, run: usize, bits: u64) {
        let now = self.used[run].load(Ordering::Relaxed) | bits;
        self.used[run].store(now, Ordering::Relaxed);
        if now == ALL {
            let (word, bit) = self.full_bit(run);
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
    }

    fn set_free(&self, run: usize, bits: u64) {
        let before = self.used[run].load(Ordering::Relaxed);
        debug_assert_eq!(before & bits, bits, "a free descriptor is given back");
        self.used[run].store(before & !bits, Ordering::Relaxed);
        if before == ALL {
            let (word, bit) = self.full_bit(run);
            word.store(word.load(Ordering::Relaxed) & !bit, Ordering::Relaxed);
        }
    }

    fn full_bit(&self, run: usize) -> (&AtomicU64, u64) {
        let (shard, place) = (run & (self.shards - 1), run >> self.shards.trailing_zeros());
        let words = full_words(self.used.len(), self.shards);
        (&self.full[shard * words + place / RUN], 1 << (place % RUN))
    }
}

/// Words of `full` for each shard, where there are so many runs.
fn full_words(runs: usize, shards: usize) -> usize {
    runs.div_ceil(shards * RUN)
}
