//! Thread cache: one thread's stock of free objects, a bin per size class.
//!
//! A bin is a stack of addresses, apart from the objects. An object in a cache is free for the
//! cache's thread and allocated for all others. Caches are pooled: a thread that ends leaves its
//! cache to the next one.
//!
//! Guarantees: a bin never holds more than its class's capacity, all medium bins together never
//! more than [`MEDIUM_BYTES_MAX`]; a fork at any instant leaves every bin well-formed.
//! Never: touches a cached object.
//! Threads: a cache belongs to the thread that has the handle; others read its counts, and the
//! child of a fork empties the caches of threads that it does not have.

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{self, Relaxed};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, compiler_fence};

use deepheap_sys::errno::{self, Errno};
use deepheap_sys::memory::mapping;
use deepheap_sys::narrow::Narrow;
use deepheap_sys::threads::lock::Lock;

use crate::Heap;
use crate::slabs::size_class::{
    CLASS_TABLE, CLASSES, LAST_CLASS, SIZE_CLASSES, SMALL_CLASSES, small_class_of,
};

/// Bytes of medium objects that one cache keeps.
pub(crate) const MEDIUM_BYTES_MAX: usize = 2 << 20;
/// Length of the array of slots; a power of two, so that a mask replaces bounds checks.
const SLOTS: usize = 4096;
/// A bin starts by taking this many objects at a time, and doubles.
const FIRST_BATCH: u32 = 4;

/// One bin: the slots `[floor, ceiling)`, in use below `top`. The slot below `floor` is never
/// used and stays 0.
#[derive(Default)]
pub(crate) struct Bin {
    top: AtomicU32,
    floor: AtomicU32,
    ceiling: AtomicU32,
    /// How many objects to take next time.
    batch: AtomicU32,
}

/// The memory of a cache. Everything is atomic because statistics read it from other threads;
/// relaxed loads and stores cost as little as plain ones.
#[repr(C)]
pub(crate) struct CacheMemory {
    bins: [Bin; CLASS_TABLE],
    slots: [AtomicUsize; SLOTS],
    medium_bytes: AtomicUsize,
    /// The next one of all caches of the heap.
    next: AtomicPtr<CacheMemory>,
    /// The next one in the pool.
    next_pooled: AtomicPtr<CacheMemory>,
    /// Nonzero while a thread has it.
    taken: AtomicU32,
}

/// One thread's stock of free objects: a handle of one word. Use it with the heap that made it.
pub struct ThreadCache {
    memory: &'static CacheMemory,
}

/// A bin being filled, from the top down.
pub(crate) struct Filling {
    memory: &'static CacheMemory,
    slot: u32,
}

impl Filling {
    /// Adds an address.
    #[inline(always)]
    pub(crate) fn add(&mut self, address: usize) {
        self.slot -= 1;
        self.memory.slot(self.slot).store(address, Relaxed);
    }
}

/// The result of an attempt to cache an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Push {
    Cached,
    Full,
    /// It is the object that was cached last.
    Twice,
}

impl ThreadCache {
    /// A cache for the calling thread, from the pool or from fresh pinned memory. ENOMEM if
    /// there is none.
    pub fn new_in(heap: &Heap) -> errno::Result<ThreadCache> {
        Ok(ThreadCache { memory: heap.caches.take()? })
    }

    /// The fast path: an object of at least `size` bytes, aligned to 16, if the bin has one. Only
    /// sizes up to 16 KiB are served here.
    #[inline(always)]
    pub fn allocate(&mut self, size: usize) -> Option<usize> {
        self.pop(small_class_of(size)?)
    }

    /// The cache as one word for a thread-local slot; never null.
    #[inline]
    pub fn into_raw(self) -> *mut c_void {
        core::ptr::from_ref(self.memory).cast_mut().cast()
    }

    /// Takes the word back.
    ///
    /// # Safety
    /// `raw` came from `into_raw`, and no other handle made of it is used by another thread or
    /// at the same time.
    #[inline(always)]
    pub unsafe fn from_raw(raw: *mut c_void) -> ThreadCache {
        // SAFETY: `raw` is what `into_raw` made of a `&'static CacheMemory`.
        ThreadCache { memory: unsafe { &*raw.cast::<CacheMemory>().cast_const() } }
    }

    /// The object cached last in the bin of `class`.
    #[inline(always)]
    pub(crate) fn pop(&mut self, class: u8) -> Option<usize> {
        let bin = &self.memory.bins[class as usize];
        let top = bin.top.load(Relaxed);
        if top == bin.floor.load(Relaxed) {
            return None;
        }
        let address = self.memory.slot(top - 1).load(Relaxed);
        bin.top.store(top - 1, Relaxed);
        Some(address)
    }

    /// Caches the object at `address`.
    #[inline(always)]
    pub(crate) fn push(&mut self, class: u8, address: usize) -> Push {
        let bin = &self.memory.bins[class as usize];
        let top = bin.top.load(Relaxed);
        // Below the floor there is a 0, which is no object's address.
        if self.memory.slot(top.wrapping_sub(1)).load(Relaxed) == address {
            return Push::Twice;
        }
        if top == bin.ceiling.load(Relaxed) {
            return Push::Full;
        }
        self.memory.slot(top).store(address, Relaxed);
        // A fork may happen here: the slot must not come after the count.
        compiler_fence(Ordering::Release);
        bin.top.store(top + 1, Relaxed);
        Push::Cached
    }

    /// How many objects of `class`, whose bin is empty, to take from the central list; twice as
    /// many each time, up to half a bin.
    pub(crate) fn next_batch(&mut self, class: u8) -> usize {
        let bin = &self.memory.bins[class as usize];
        let half = u32::from(SIZE_CLASSES[class as usize].bin_capacity / 2).max(1);
        let batch = bin.batch.load(Relaxed).clamp(FIRST_BATCH.min(half), half);
        bin.batch.store(batch * 2, Relaxed);
        batch as usize
    }

    /// Fills the empty bin of `class`: `fill` adds up to `want` addresses and returns how many.
    /// The first one will be popped first.
    pub(crate) fn fill<E>(
        &mut self,
        class: u8,
        want: usize,
        fill: impl FnOnce(&mut Filling) -> Result<usize, E>,
    ) -> Result<(), E> {
        let bin = &self.memory.bins[class as usize];
        let floor = bin.floor.load(Relaxed);
        debug_assert_eq!(bin.top.load(Relaxed), floor);
        let mut filling = Filling { memory: self.memory, slot: floor + want.to_u32() };
        let got = fill(&mut filling)?.to_u32();
        let lowest = filling.slot;
        if lowest > floor {
            for offset in 0..got {
                let address = self.memory.slot(lowest + offset).load(Relaxed);
                self.memory.slot(floor + offset).store(address, Relaxed);
            }
        }
        compiler_fence(Ordering::Release);
        bin.top.store(floor + got, Relaxed);
        Ok(())
    }

    /// Takes the older half of the bin of `class` out and hands it to `flush`.
    pub(crate) fn drain_half<R>(&mut self, class: u8, flush: impl FnOnce(&[usize]) -> R) -> R {
        let bin = &self.memory.bins[class as usize];
        let count = (bin.top.load(Relaxed) - bin.floor.load(Relaxed)).div_ceil(2);
        self.memory.drain(class, count, flush)
    }

    /// Caches a medium object of `bytes` bytes if there is room for it.
    pub(crate) fn push_medium(&mut self, class: u8, address: usize, bytes: usize) -> bool {
        let held = self.memory.medium_bytes.load(Relaxed);
        if held + bytes > MEDIUM_BYTES_MAX || self.push(class, address) != Push::Cached {
            return false;
        }
        self.memory.medium_bytes.store(held + bytes, Relaxed);
        true
    }

    /// The medium object cached last in the bin of `class`.
    pub(crate) fn pop_medium(&mut self, class: u8) -> Option<usize> {
        let address = self.pop(class)?;
        let bytes = SIZE_CLASSES[class as usize].size as usize;
        let held = self.memory.medium_bytes.load(Relaxed);
        self.memory.medium_bytes.store(held.saturating_sub(bytes), Relaxed);
        Some(address)
    }

    pub(crate) fn memory(&self) -> &'static CacheMemory {
        self.memory
    }
}

impl CacheMemory {
    /// Masked, so that the compiler needs no bounds check; every bin's slots are below `SLOTS`.
    #[inline(always)]
    fn slot(&self, index: u32) -> &AtomicUsize {
        &self.slots[index as usize & (SLOTS - 1)]
    }

    fn initialise(&self) {
        let mut next = 0;
        for (bin, class) in self.bins[..=CLASSES].iter().zip(&SIZE_CLASSES).skip(1) {
            let floor = next + 1;
            next = floor + u32::from(class.bin_capacity);
            bin.floor.store(floor, Relaxed);
            bin.top.store(floor, Relaxed);
            bin.ceiling.store(next, Relaxed);
        }
    }

    /// Takes the `count` oldest objects of the bin of `class` out and hands them to `flush`.
    fn drain<R>(&self, class: u8, count: u32, flush: impl FnOnce(&[usize]) -> R) -> R {
        const BATCH_MAX: u32 = 128;
        let bin = &self.bins[class as usize];
        let (floor, top) = (bin.floor.load(Relaxed), bin.top.load(Relaxed));
        let count = count.min(top - floor).min(BATCH_MAX);
        let mut batch = [0; BATCH_MAX as usize];
        for (slot, address) in (floor..).zip(&mut batch[..count as usize]) {
            *address = self.slot(slot).load(Relaxed);
        }
        // The child of a fork must never find an object here that is free in its slab. So the
        // bin is empty while its slots move (at a fork just then the objects leak in the child),
        // and is whole again before the slab's bits change.
        bin.top.store(floor, Relaxed);
        compiler_fence(Ordering::SeqCst);
        for offset in 0..top - floor - count {
            let address = self.slot(floor + count + offset).load(Relaxed);
            self.slot(floor + offset).store(address, Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
        bin.top.store(top - count, Relaxed);
        compiler_fence(Ordering::SeqCst);
        flush(&batch[..count as usize])
    }

    /// Takes everything out of every bin, by batches, and hands it to `flush`.
    pub(crate) fn drain_all(&self, mut flush: impl FnMut(u8, &[usize])) {
        for class in 1..=LAST_CLASS {
            while self.held(class) > 0 {
                self.drain(class, u32::MAX, |addresses| flush(class, addresses));
            }
            self.bins[class as usize].batch.store(0, Relaxed);
        }
        self.medium_bytes.store(0, Relaxed);
    }

    /// Objects in the bin of `class`.
    pub(crate) fn held(&self, class: u8) -> usize {
        let bin = &self.bins[class as usize];
        bin.top.load(Relaxed).saturating_sub(bin.floor.load(Relaxed)) as usize
    }

    /// Bytes of all cached objects.
    pub(crate) fn held_bytes(&self) -> usize {
        let bytes = |class: u8| self.held(class) * SIZE_CLASSES[class as usize].size as usize;
        (1..=LAST_CLASS).map(bytes).sum()
    }
}

/// All caches of a heap, in use or pooled. Their memory is never unmapped: a heap lives as long as
/// its process, and a thread-local slot may keep a handle.
pub(crate) struct Caches {
    pub(crate) lock: Lock<()>,
    first: AtomicPtr<CacheMemory>,
    /// A stack of those that no thread has; changes under the lock.
    pooled: AtomicPtr<CacheMemory>,
    count: AtomicUsize,
}

impl Caches {
    pub(crate) const fn new() -> Self {
        let [first, pooled] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];
        Self { lock: Lock::new(()), first, pooled, count: AtomicUsize::new(0) }
    }

    fn take(&self) -> errno::Result<&'static CacheMemory> {
        let _lock = self.lock.lock();
        // SAFETY: null, or of `map_one`, which never unmaps, by a thread that had the lock.
        let pooled: Option<&'static CacheMemory> =
            unsafe { self.pooled.load(Relaxed).cast_const().as_ref() };
        let memory = match pooled {
            Some(memory) => {
                self.pooled.store(memory.next_pooled.load(Relaxed), Relaxed);
                memory
            }
            None => self.map_one()?,
        };
        memory.taken.store(1, Relaxed);
        Ok(memory)
    }

    /// Puts an emptied cache back.
    pub(crate) fn give_back(&self, memory: &'static CacheMemory) {
        let _lock = self.lock.lock();
        memory.taken.store(0, Relaxed);
        memory.next_pooled.store(self.pooled.load(Relaxed), Relaxed);
        self.pooled.store(core::ptr::from_ref(memory).cast_mut(), Relaxed);
    }

    fn map_one(&self) -> errno::Result<&'static CacheMemory> {
        let mapped = mapping::map_pinned(size_of::<CacheMemory>())?;
        let start = NonNull::new(mapped.cast::<CacheMemory>()).ok_or(Errno::ENOMEM)?;
        // SAFETY: the mapping is page-aligned, as long as a CacheMemory, zeroed (all its fields
        // are atomics, for which zero is a value) and never unmapped.
        let memory: &'static CacheMemory = unsafe { start.as_ref() };
        memory.initialise();
        memory.next.store(self.first.load(Relaxed), Relaxed);
        self.first.store(start.as_ptr(), Ordering::Release);
        self.count.fetch_add(1, Relaxed);
        Ok(memory)
    }

    /// Every cache; caches are only ever added, at the front.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static CacheMemory> {
        let mut next = self.first.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            // SAFETY: `first` and every `next` are null or come from `map_one`, which never
            // unmaps; the acquire load above sees them initialised.
            let memory: &'static CacheMemory = unsafe { next.cast_const().as_ref() }?;
            next = memory.next.load(Relaxed);
            Some(memory)
        })
    }

    /// Every cache that a thread has.
    pub(crate) fn taken(&self) -> impl Iterator<Item = &'static CacheMemory> {
        self.iter().filter(|memory| memory.taken.load(Relaxed) != 0)
    }

    /// Bytes of memory the caches take up.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.count.load(Relaxed) * size_of::<CacheMemory>()
    }
}

impl Drop for Caches {
    /// Of a heap that is closed: nobody has a cache of it any more.
    fn drop(&mut self) {
        let mut next = *self.first.get_mut();
        while !next.is_null() {
            // SAFETY: `map_one` mapped it, and nobody uses it any more.
            unsafe {
                let memory = next;
                next = (*memory).next.load(Relaxed);
                let _ = mapping::unmap(memory.cast(), size_of::<CacheMemory>());
            }
        }
    }
}

const _: () = {
    let mut used = 0;
    let mut class = 1;
    while class <= CLASSES {
        used += 1 + SIZE_CLASSES[class].bin_capacity as usize;
        class += 1;
    }
    assert!(used <= SLOTS && SMALL_CLASSES < CLASSES);
};
