//! Compact: makes room in the object cache without losing an object from it.
//!
//! When a size class needs a slab and none is left, but another class has a slab's worth of free
//! slots scattered over its slabs, the objects of its sparsest slab move into them.
//!
//! Guarantees: an object moves only while it is owned here; its bytes, its backing block and its
//! position in the cache's queues stay as they are.
//! Never: allocates, does I/O, waits for an object: one that another thread owns stays where it is.
//! Threads: any that evicts, inside the mover's gate.

use deepheap_residency::Residency;
use deepheap_residency::ownership::DescriptorId;

/// Empties one slab of the object cache for other size classes; false if it could not empty one.
pub(crate) fn compact(residency: &Residency) -> bool {
    residency.cache.compact(|id, from, to| move_slot(residency, id, from, to))
}

/// Moves the object of a descriptor from one slot to another, if it still is in the first one.
pub(crate) fn move_slot(residency: &Residency, id: DescriptorId, from: u32, to: u32) -> bool {
    let page = residency.ownership.descriptor(id).page();
    let Some(owned) = residency.ownership.claim_cached(page, id) else { return false };
    let descriptor = residency.ownership.of(&owned);
    // The descriptor noted beside a slot may be an earlier one, whose object is elsewhere by
    // now.
    let moves = descriptor.slot() == from;
    if moves {
        let (source, target) = (residency.cache.address(from), residency.cache.address(to));
        // SAFETY: we own the object, and with it its slot; `to` was taken for us and is of the
        // same class. Both are pinned.
        unsafe { source.copy_to_nonoverlapping(target, residency.cache.slot_bytes(from)) };
        descriptor.set_slot(to);
    }
    residency.ownership.cached(owned);
    moves
}
