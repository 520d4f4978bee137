//! Fork: holding every lock of the heap across a fork, or while it is saved.
//!
//! Guarantees: the child finds every structure whole. Thread caches need no lock: a bin is
//! well-formed after every store to it (`thread_cache.rs`). A thread that the child does not have
//! may hold something outside its cache at that instant: a batch, a run or an object being freed.
//! That stays out of use in the child, and its statistics may be off by as much.
//!
//! A handler may fork while the code that it interrupted has locks of the heap: signals are open
//! there, since to block them would cost more than what is done under the locks. Such a lock is
//! left to that code. It goes on after the handler in the parent, and if the handler returns in
//! the child, there too, and finds everything as it left it: nobody but the holder changes what a
//! lock guards. Until then the child does nothing that needs the locks.
//! Never: allocates.
//! Threads: the forking one (`Heap::fork_prepare`); until it drops the guards it calls nothing else
//! of the heap but `Heap::save`.

use deepheap_sys::threads::lock::Guard;

use crate::address_map::AddressMap;
use crate::objects::Objects;
use crate::objects::pool::POOL_LOCKS;
use crate::objects::space::Space;
use crate::runs::coalescing::Spans;
use crate::slabs::central_list::{Available, CentralList};
use crate::slabs::size_class::SMALL_CLASSES;
use crate::slabs::thread_cache::Caches;

/// Guards of all locks of the heap. Dropping them releases the locks, in parent and child alike.
pub(crate) struct ForkGuards {
    lists: [Option<Guard<'static, Available>>; SMALL_CLASSES],
    spans: Option<Guard<'static, Spans>>,
    caches: Option<Guard<'static, ()>>,
    pools: [Option<Guard<'static, ()>>; POOL_LOCKS],
    objects: Option<Guard<'static, Space>>,
}

impl ForkGuards {
    pub(crate) fn take(
        lists: &'static [CentralList],
        map: &'static AddressMap,
        caches: &'static Caches,
        objects: &'static Objects,
    ) -> ForkGuards {
        ForkGuards {
            lists: core::array::from_fn(|list| lists[list].lock.lock_unless_mine()),
            spans: map.runs.lock.lock_unless_mine(),
            caches: caches.lock.lock_unless_mine(),
            pools: core::array::from_fn(|lock| objects.pools.locks[lock].lock_unless_mine()),
            objects: objects.space.lock.lock_unless_mine(),
        }
    }

    /// Whether the code that this thread was in before the handler has none of the locks.
    pub(crate) fn are_all(&self) -> bool {
        self.lists.iter().all(Option::is_some)
            && self.spans.is_some()
            && self.caches.is_some()
            && self.pools.iter().all(Option::is_some)
            && self.objects.is_some()
    }

    /// The first span never begun, and the first name that no chunk of objects ever had.
    pub(crate) fn ends(&self) -> Option<(usize, usize)> {
        Some((self.spans.as_ref()?.next, self.objects.as_ref()?.chunks_end as usize))
    }
}
