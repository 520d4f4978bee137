//! Compact: makes room in the object cache without losing an object from it.
//!
//! When a size class needs a slab and none is left, but another class has a slab's worth of free
//! slots scattered over its slabs, the objects of its sparsest slab move into them.
//!
//! Guarantees: an object moves only while it is owned here; its bytes, home and place in the
//! cache's queues stay as they are.
//! Never: allocates, does I/O, waits for an object: what somebody else owns stays where it is.
//! Threads: whoever evicts, inside the mover's gate.

use crate::descriptor::DescriptorId;
use crate::object_table::Place;
use crate::pager::Pager;

impl Pager {
    /// Empties one slab of the object cache for other size classes; false if there was none to be
    /// emptied this way.
    pub(crate) fn compact(&self) -> bool {
        self.cache.compact(|id, from, to| self.move_slot(id, from, to))
    }

    /// Moves the object of a descriptor from one slot to another, if it is in the first one.
    fn move_slot(&self, id: DescriptorId, from: u32, to: u32) -> bool {
        let descriptor = self.descriptors.get(id);
        if !self.table.replace(descriptor.page(), Place::Cached(id), Place::Busy(id)) {
            return false;
        }
        // The owner noted beside a slot may be an earlier one, which is elsewhere by now.
        let moves = descriptor.slot() == from;
        if moves {
            let (source, target) = (self.cache.address(from), self.cache.address(to));
            // SAFETY: the object is ours, and with it its slot; `to` was taken for us and is of
            // the same class. Both are pinned.
            unsafe { source.copy_to_nonoverlapping(target, self.cache.slot_bytes(from)) };
            descriptor.set_slot(to);
        }
        self.publish_cached(id);
        moves
    }
}
