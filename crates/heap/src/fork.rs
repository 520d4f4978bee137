//! Fork: holding every lock of the heap across a fork.
//!
//! Guarantees: the child finds every structure whole. Thread caches need no lock: a bin is
//! well-formed after every store to it (`thread_cache.rs`). What a lost thread held outside of
//! its cache at that instant (a batch on its way, a run or object being freed) stays out of use in
//! the child, and its statistics may be off by as much.
//! Never: allocates.
//! Threads: `fork_prepare` and then `after_fork`, by the forking thread; in between
//! nothing else of the heap may be called by it.

use deepheap_sys::lock::Guard;

use crate::central_list::Available;
use crate::coalescing::Spans;
use crate::heap::Heap;
use crate::object_space::Space;
use crate::pool::POOL_LOCKS;
use crate::size_class::SMALL_CLASSES;
use crate::thread_cache::ThreadCache;

/// Every lock of the heap. Dropping it releases them, in parent and child alike.
pub(crate) struct ForkGuards {
    _lists: [Guard<'static, Available>; SMALL_CLASSES],
    _spans: Guard<'static, Spans>,
    _caches: Guard<'static, ()>,
    _pools: [Guard<'static, ()>; POOL_LOCKS],
    _objects: Guard<'static, Space>,
}

impl Heap {
    /// Takes every lock of the heap.
    pub fn fork_prepare(&'static self) {
        let guards = ForkGuards {
            _lists: core::array::from_fn(|list| self.lists[list].lock()),
            _spans: self.map.runs.lock(),
            _caches: self.caches.lock(),
            _pools: core::array::from_fn(|lock| self.objects.pools.lock_of_pools(lock)),
            _objects: self.objects.space.lock(),
        };
        *self.fork_guards.lock() = Some(guards);
    }

    /// Releases them, in parent and child. Threads that waited for them are not in the child.
    pub fn after_fork(&'static self) {
        *self.fork_guards.lock() = None;
    }

    /// In the child, after `after_fork`: empties and pools the caches of the threads that are no
    /// more. Then drain `take_freed`.
    pub fn reclaim_orphans(&self, own: Option<&ThreadCache>) {
        let own = own.map(|cache| core::ptr::from_ref(cache.memory()));
        for cache in self.caches.taken().filter(|&cache| Some(core::ptr::from_ref(cache)) != own) {
            self.empty(cache);
            self.caches.give_back(cache);
        }
    }
}
