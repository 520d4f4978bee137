//! Fork: holding every lock of the heap across a fork, or while it is saved.
//!
//! Guarantees: the child finds every structure whole. Thread caches need no lock: a bin is
//! well-formed after every store to it (`thread_cache.rs`). A thread that the child does not have
//! may hold something outside its cache at that instant: a batch, a run or an object being freed.
//! That stays out of use in the child, and its statistics may be off by as much.
//! Never: allocates.
//! Threads: the forking one (`Heap::fork_prepare`); until it drops the guards it calls nothing else
//! of the heap but `Heap::save`.

use deepheap_sys::lock::Guard;

use crate::address_map::AddressMap;
use crate::central_list::{Available, CentralList};
use crate::coalescing::Spans;
use crate::object_space::Space;
use crate::objects::Objects;
use crate::pool::POOL_LOCKS;
use crate::size_class::SMALL_CLASSES;
use crate::thread_cache::Caches;

/// Guards of all locks of the heap. Dropping them releases the locks, in parent and child alike.
pub(crate) struct ForkGuards {
    _lists: [Guard<'static, Available>; SMALL_CLASSES],
    spans: Guard<'static, Spans>,
    _caches: Guard<'static, ()>,
    _pools: [Guard<'static, ()>; POOL_LOCKS],
    objects: Guard<'static, Space>,
}

impl ForkGuards {
    pub(crate) fn take(
        lists: &'static [CentralList],
        map: &'static AddressMap,
        caches: &'static Caches,
        objects: &'static Objects,
    ) -> ForkGuards {
        ForkGuards {
            _lists: core::array::from_fn(|list| lists[list].lock()),
            spans: map.runs.lock(),
            _caches: caches.lock(),
            _pools: core::array::from_fn(|lock| objects.pools.lock_of_pools(lock)),
            objects: objects.space.lock(),
        }
    }

    /// The first span never begun, and the first name that no chunk of objects ever had.
    pub(crate) fn ends(&self) -> (usize, usize) {
        (self.spans.begun(), self.objects.chunks_end as usize)
    }
}
