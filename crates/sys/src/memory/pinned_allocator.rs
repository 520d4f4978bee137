//! Pinned allocator: memory for deepheap's own Rust values, so that it never faults on itself.
//!
//! Guarantees: memory comes from `map_pinned` only.
//! Never: is called in a signal handler or on the fault path | calls malloc.
//! Threads: any; one lock. A fork takes it before and frees it after (`fork_prepare`,
//! `fork_parent`, `fork_child`).
//!
//! A small block has a power of two up to 16 KiB, each with a free list (the links are inside free
//! blocks, which are pinned). It is cut from a chunk of 256 KiB that is never given back. A large
//! block is a mapping of its own.

use crate::PAGE;
use crate::memory::mapping;
use crate::threads::lock::{Guard, Lock};
use crate::threads::signals::Blocked;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

const SMALL_SHIFT_MIN: u32 = 4;
const SMALL_SHIFT_MAX: u32 = 14;
const CLASSES: usize = (SMALL_SHIFT_MAX - SMALL_SHIFT_MIN + 1) as usize;
const CHUNK_BYTES: usize = 256 << 10;

/// The allocator; all its state is static, so that the global allocator can be a constant.
#[derive(Clone, Copy, Debug, Default)]
pub struct PinnedAllocator;

static SMALL: Lock<Small> =
    Lock::new(Small { free: [ptr::null_mut(); CLASSES], chunk: ptr::null_mut(), chunk_left: 0 });

struct Small {
    /// By class: the first free block. The first word of a free block points to the next one.
    free: [*mut u8; CLASSES],
    /// The rest of the newest chunk.
    chunk: *mut u8,
    chunk_left: usize,
}

// SAFETY: the pointers are to memory that only the holder of the lock uses.
unsafe impl Send for Small {}

impl PinnedAllocator {
    /// Whether there is address space for about a mebibyte. Where Rust allocates a value and there
    /// is none, it ends the process; who can do without asks first.
    pub fn has_room() -> bool {
        // A block of a chunk, which then stays, and a mapping of its own.
        const BLOCK: Layout = Layout::new::<[u64; 1 << 11]>();
        const MAPPING: Layout = Layout::new::<[u64; 1 << 17]>();
        [BLOCK, MAPPING].into_iter().all(|layout| {
            // SAFETY: sizes above 0; a block goes back with its layout.
            unsafe {
                let block = PinnedAllocator.alloc(layout);
                if !block.is_null() {
                    PinnedAllocator.dealloc(block, layout);
                }
                !block.is_null()
            }
        })
    }

    /// Before a fork: no thread is in the allocator until `fork_parent` or `fork_child`.
    pub fn fork_prepare() {
        core::mem::forget(SMALL.lock());
    }

    /// After a fork, in the parent.
    ///
    /// # Safety
    /// This thread called `fork_prepare`.
    pub unsafe fn fork_parent() {
        // SAFETY: this thread forgot the only guard. Others may wait.
        unsafe { SMALL.unlock_forgotten() };
    }

    /// After a fork, in the child.
    ///
    /// # Safety
    /// The forking thread called `fork_prepare`.
    pub unsafe fn fork_child() {
        // SAFETY: the guard was forgotten; threads that waited are not here.
        unsafe { SMALL.force_unlock() };
    }
}

/// The class of a layout, or None if it is large.
fn class(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).next_power_of_two();
    let shift = bytes.trailing_zeros().max(SMALL_SHIFT_MIN);
    (shift <= SMALL_SHIFT_MAX).then_some((shift - SMALL_SHIFT_MIN) as usize)
}

const fn class_bytes(class: usize) -> usize {
    1 << (class as u32 + SMALL_SHIFT_MIN)
}

impl Small {
    fn allocate(&mut self, class: usize) -> *mut u8 {
        let block = self.free[class];
        if !block.is_null() {
            // SAFETY: a block on a free list holds the next one in its first word (`free`).
            self.free[class] = unsafe { block.cast::<*mut u8>().read() };
            return block;
        }
        let bytes = class_bytes(class);
        // Blocks are aligned to their size: skip what is in the way, at most a block.
        let skip = |chunk: *mut u8| (chunk as usize).wrapping_neg() % bytes;
        if self.chunk_left < skip(self.chunk) + bytes {
            let Ok(chunk) = mapping::map_pinned(CHUNK_BYTES) else { return ptr::null_mut() };
            (self.chunk, self.chunk_left) = (chunk, CHUNK_BYTES);
        }
        let skip = skip(self.chunk);
        let block = self.chunk.wrapping_add(skip);
        self.chunk = block.wrapping_add(bytes);
        self.chunk_left -= skip + bytes;
        block
    }

    /// # Safety
    /// `block` is of this class, handed out by `allocate`, and nobody uses it any more.
    unsafe fn free(&mut self, class: usize, block: *mut u8) {
        // SAFETY: blocks are at least 16 bytes, 16-aligned, and this one is ours now.
        unsafe { block.cast::<*mut u8>().write(self.free[class]) };
        self.free[class] = block;
    }
}

/// A handler of the program that forked now would find the lock taken by the code that it
/// interrupted, and the lists half changed.
fn small() -> (Guard<'static, Small>, Blocked) {
    let blocked = Blocked::all();
    (SMALL.lock(), blocked)
}

/// Bytes of the mapping of a large layout: pages, and room to align.
fn large_bytes(layout: Layout) -> Option<usize> {
    layout.size().checked_next_multiple_of(PAGE).filter(|_| layout.align() <= PAGE)
}

// SAFETY: blocks are as large and aligned as asked (a class is a power of two of at least both; a
// mapping is page-aligned), disjoint, and stay until freed. It never unwinds.
unsafe impl GlobalAlloc for PinnedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = class(layout) {
            return small().0.allocate(class);
        }
        let Some(bytes) = large_bytes(layout) else { return ptr::null_mut() };
        mapping::map_pinned(bytes).unwrap_or(ptr::null_mut())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(class) = class(layout) {
            // SAFETY: the caller's promise: allocated with this layout, so of this class.
            unsafe { small().0.free(class, block) };
        } else if let Some(bytes) = large_bytes(layout) {
            // SAFETY: the caller's promise: a mapping of its own, of this length.
            let _ = unsafe { mapping::unmap(block, bytes) };
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { self.alloc(layout) };
        // A new mapping is zeroed already.
        if !block.is_null() && class(layout).is_some() {
            // SAFETY: just allocated, of at least this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_disjoint_and_used_again() {
        let sizes = [1, 16, 17, 100, 4096, 5000, 16384, 16385, 1 << 20];
        let aligns = [1, 16, 64, 4096];
        let mut blocks = Vec::new();
        for round in 0..20u8 {
            for size in sizes {
                for align in aligns {
                    let layout = Layout::from_size_align(size, align).unwrap();
                    // SAFETY: a layout of at least a byte.
                    let block = unsafe { PinnedAllocator.alloc(layout) };
                    assert!(!block.is_null() && (block as usize).is_multiple_of(align));
                    // SAFETY: as long as the layout says.
                    unsafe { block.write_bytes(round, size) };
                    blocks.push((block, layout, round));
                }
            }
        }
        for (block, layout, round) in &blocks {
            for at in [0, layout.size() / 2, layout.size() - 1] {
                // SAFETY: inside the block.
                assert_eq!(unsafe { block.add(at).read() }, *round);
            }
        }
        let mut given_back = 0;
        for (block, layout, _) in blocks {
            // SAFETY: allocated above with this layout.
            unsafe { PinnedAllocator.dealloc(block, layout) };
            given_back += usize::from(mapping::resident_bytes(block, PAGE).is_err());
        }
        assert!(given_back > 0, "large blocks are unmapped");
        let layout = Layout::new::<[u8; 100]>();
        // SAFETY: allocated and freed with one layout, as long as it says.
        unsafe {
            let block = PinnedAllocator.alloc_zeroed(layout);
            assert!((0..100).all(|at| block.add(at).read() == 0));
            PinnedAllocator.dealloc(block, layout);
        }
    }

    #[test]
    fn alignment_above_a_page_is_refused_where_it_cannot_be_kept() {
        let layout = Layout::from_size_align(1 << 20, 1 << 16).unwrap();
        // SAFETY: a layout of at least a byte.
        assert!(unsafe { PinnedAllocator.alloc(layout) }.is_null());
    }
}
