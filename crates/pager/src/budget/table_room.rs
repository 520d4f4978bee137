//! Table room: keeps the pages of the object table that are in RAM within their part of the budget.
//!
//! A page of the table cannot leave while an object of it is in RAM. So where too many cannot
//! leave, objects leave RAM first, the oldest of the cache. With an object here and one there, few
//! objects stay in RAM; such a program is slow, but it goes on within its budget.
//!
//! Guarantees: a thread that brings pages of the table makes room for as many, sooner or later,
//! while objects and pages can be written.
//! Never: allocates; is called by a thread that owns an object.
//! Threads: faulting ones in their handler, callers of `access`, and workers.

use deepheap_residency::ownership::TableTraffic;
use deepheap_store::Device;
use deepheap_sys::threads::waits::{Cause, Wait};

use crate::gate::Level;
use crate::moves::Moves;
use crate::pager::Pager;
use crate::patience::Patience;

/// How many pages above the limit are the evictor's alone: beyond, each thread makes room itself.
const SLACK: usize = 64;
/// Objects that leave the cache together.
const OBJECTS: usize = 64;
/// How often one call tries to have objects leave.
const ROUNDS: usize = 8;

impl Pager {
    /// Pages of the object table that have changed leave RAM to this device from now on, which is
    /// this process's own. While no thread moves an object.
    pub fn add_table_file(&self, device: Box<dyn Device>) {
        self.residency.ownership.table.add_file(self.residency.store.table_file(device));
    }

    /// The pages of the object table that came and left.
    pub fn table_traffic(&self) -> TableTraffic {
        self.residency.ownership.table.traffic()
    }

    /// Whether too much of the table is in RAM.
    pub(crate) fn has_table_excess(&self) -> bool {
        self.residency.ownership.table.excess() > 0
    }

    /// Makes room if much too much of the table is in RAM. Outside of the gate.
    #[inline]
    pub(crate) fn limit_table(&self, moves: &mut Moves) {
        if self.residency.ownership.table.excess() > SLACK {
            let _passage = self.gate.enter(Level::Mover);
            let wait = Wait::begin();
            self.make_table_room(moves);
            wait.end(Cause::Table);
        }
    }

    /// As `limit_table`, inside of the gate.
    #[inline]
    pub(crate) fn limit_table_inside(&self) {
        if self.residency.ownership.table.excess() > SLACK {
            self.residency.ownership.table.evict(self.residency.frames.zapper());
        }
    }

    /// Takes pages of the table out of RAM, if there are too many; objects of them first, if need
    /// be. False if nothing more can leave now. Inside of the gate.
    #[cold]
    pub(crate) fn make_table_room(&self, moves: &mut Moves) -> bool {
        for _ in 0..ROUNDS {
            let left = self.residency.ownership.table.evict(self.residency.frames.zapper());
            if left > 0 || !self.has_table_excess() {
                return true;
            }
            // An object that cannot be written stays, and so does its page of the table.
            match self.reclaim_objects(OBJECTS, Patience::Waits, moves) {
                Ok(false) | Err(_) => return false,
                Ok(true) => {}
            }
        }
        true
    }

    /// As `make_table_room`, for the evictor.
    pub fn trim_table(&self, moves: &mut Moves) -> bool {
        let _passage = self.gate.enter(Level::Mover);
        self.has_table_excess() && self.make_table_room(moves)
    }
}
