//! Chunk: consecutive pages of objects of one shape; a step of a pool, or one array.
//!
//! ```text
//! Unused -> Pooled [Pools::grow]             Unused -> Array [Objects::allocate_array]
//! Pooled -> Idle   [Pools::retire]           Array  -> Held  [Objects::free]
//! Idle   -> Held   [ObjectSpace::take_idle]  Held   -> Idle  [ObjectSpace::put_idle, resident]
//! Held   -> Unused [ObjectSpace::destroy]
//! ```
//!
//! `Idle` and `Held` chunks have no live object. An idle one waits for its bytes to be ended; a
//! held one belongs to the thread that ends them.
//!
//! Guarantees: a chunk's place and shape change only while it is `Unused`.
//! Never: locks.
//! Threads: place and shape are read from anywhere, also in signal handlers. A `Pooled` chunk's
//! counts change under the lock of its pool; leaving `Array` is a compare-exchange, from any
//! thread; every other state belongs to the lock of `ObjectSpace` or to the thread that holds the
//! chunk.

use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, Ordering};

use deepheap_sys::memory::pinned_array::Zeroed;
use deepheap_sys::narrow::Narrow;

use crate::objects::shape::Shape;
use crate::table::Saved;

/// Chunks start and end at multiples of so many pages. So the pager may install the fresh pages of
/// such a group together: all have the same shape.
pub const PAGES_PER_GROUP: usize = 16;

/// The state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ChunkState {
    Unused = 0,
    Pooled = 1,
    Array = 2,
    Idle = 3,
    Held = 4,
}

/// One chunk: a cache line. Pages are counted from the region's first page or, where a field says
/// so, from the chunk's.
/// Saved as it is; of a loaded one the fields from `open` on, but for `fresh`, are made anew.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Chunk {
    first: AtomicU32,
    /// How many pages objects lie on; the rest of its last group of pages is unused.
    pages: AtomicU32,
    stride: AtomicU32,
    tail: AtomicU32,
    batch: AtomicU32,
    state: AtomicU32,
    /// Blocks of the store promised for it.
    blocks: AtomicU32,
    /// Its pool's number; pooled only.
    pub pool: AtomicU32,
    /// Strides with room for an object; pooled only, as all that follows.
    pub open: AtomicU32,
    /// Strides with a live object or in quarantine.
    pub busy: AtomicU32,
    /// No page of the chunk below this one is open.
    pub hint: AtomicU32,
    /// Objects from this one on were never handed out.
    pub fresh: AtomicU32,
    /// Its neighbours among the pool's chunks with room; the next chunk of any other list.
    pub next: AtomicU32,
    pub previous: AtomicU32,
    reserved: [AtomicU32; 2],
}

// SAFETY: atomic integers, for which zero is a value, and which need no drop.
unsafe impl Zeroed for Chunk {}
// SAFETY: 16 atomic integers of 4 bytes, in a type of 64 bytes.
unsafe impl Saved for Chunk {}

// The format of saved chunks: `docs/internals/on-disk-format.md`.
const _: () = {
    assert!(size_of::<Chunk>() == 64);
    assert!(offset_of!(Chunk, state) == 20 && offset_of!(Chunk, pool) == 28);
    assert!(offset_of!(Chunk, fresh) == 44 && offset_of!(Chunk, reserved) == 56);
};

impl Chunk {
    /// Writes everything of an unused chunk but its state.
    pub(crate) fn shape_as(&self, first: usize, slots: usize, shape: Shape, blocks: u64) {
        self.first.store(first.to_u32(), Relaxed);
        self.pages.store((slots * shape.stride as usize).to_u32(), Relaxed);
        self.stride.store(shape.stride, Relaxed);
        self.tail.store(shape.tail, Relaxed);
        self.batch.store(shape.batch, Relaxed);
        self.blocks.store(blocks.to_u32(), Relaxed);
    }

    /// Its first page.
    #[inline]
    pub(crate) fn first(&self) -> usize {
        self.first.load(Relaxed) as usize
    }

    /// How many pages its objects lie on.
    #[inline]
    pub(crate) fn pages(&self) -> usize {
        self.pages.load(Relaxed) as usize
    }

    /// The pages that its objects lie on.
    pub(crate) fn range(&self) -> Range<usize> {
        self.first()..self.first() + self.pages()
    }

    /// The groups of pages that it has.
    pub(crate) fn groups(&self) -> Range<usize> {
        self.first() / PAGES_PER_GROUP..self.range().end.div_ceil(PAGES_PER_GROUP)
    }

    /// How its objects lie.
    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        Shape {
            stride: self.stride.load(Relaxed).max(1),
            tail: self.tail.load(Relaxed),
            batch: self.batch.load(Relaxed).max(1),
        }
    }

    /// Whether `shape`, which `shape()` answered, is what it has: a loaded chunk's may be anything.
    pub(crate) fn is_saved_shape(&self, shape: Shape) -> bool {
        (self.stride.load(Relaxed), self.batch.load(Relaxed)) == (shape.stride, shape.batch)
    }

    /// How many strides it has: objects or, where they are batched, batches.
    pub(crate) fn slots(&self) -> usize {
        self.pages() / self.shape().stride as usize
    }

    /// Blocks of the store promised for it.
    pub(crate) fn blocks(&self) -> u64 {
        u64::from(self.blocks.load(Relaxed))
    }

    /// Its state.
    #[inline]
    pub(crate) fn state(&self) -> ChunkState {
        match self.state.load(Acquire) {
            1 => ChunkState::Pooled,
            2 => ChunkState::Array,
            3 => ChunkState::Idle,
            4 => ChunkState::Held,
            _ => ChunkState::Unused,
        }
    }

    /// Whether its state is one of those above: a loaded chunk's may be anything.
    pub(crate) fn has_state(&self) -> bool {
        self.state.load(Acquire) <= ChunkState::Held as u32
    }

    /// Sets the state to `to`; the caller owns the chunk.
    pub(crate) fn set_state(&self, to: ChunkState) {
        self.state.store(to as u32, Release);
    }

    /// Changes the state to `to` if it is `from` now; of two threads one succeeds.
    pub(crate) fn change_state(&self, from: ChunkState, to: ChunkState) -> bool {
        self.state.compare_exchange(from as u32, to as u32, AcqRel, Relaxed).is_ok()
    }
}

/// Adds to a count that only the holder of a lock changes; returns the new value.
pub(crate) fn add(count: &AtomicU32, more: u32) -> u32 {
    let sum = count.load(Ordering::Relaxed).wrapping_add(more);
    count.store(sum, Ordering::Relaxed);
    sum
}

/// Subtracts from a count that only the holder of a lock changes; returns the new value.
pub(crate) fn subtract(count: &AtomicU32, less: u32) -> u32 {
    add(count, less.wrapping_neg())
}
