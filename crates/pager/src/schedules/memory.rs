//! Memory: what schedules have of it. Pages of the object table have four entries each here, and
//! leave RAM whenever they can.
//!
//! Threads: `table_evictor` is one of a schedule's.

use deepheap_sim::SimDevice;

use super::World;
use crate::PAGE;
use crate::gate::Level;
use crate::pager::Pager;

/// From now on as many pages of the table leave as can, and staging takes no room of the page
/// buffer.
pub(super) fn limit(pager: &Pager, region_bytes: usize) {
    pager.add_table_file(Box::new(SimDevice::new(region_bytes as u64, 1)));
    pager.residency.ownership.table.set_limit(0);
    for staging in pager.residency.staging.all() {
        let bytes =
            if core::ptr::eq(staging, &pager.residency.staging.pages) { 2 } else { 128 } * PAGE;
        let buffers: Vec<_> = (0..staging.count()).map(|_| staging.take()).collect();
        buffers.iter().for_each(|buffer| buffer.note(bytes));
    }
}

/// Panics if no page of the table left, or none came back.
pub(super) fn check_traffic(pager: &Pager) {
    let traffic = pager.table_traffic();
    assert!(traffic.written > 0 && traffic.read > 0, "{traffic:?}");
}

impl World {
    /// Has pages of the table leave all the time.
    pub(super) fn table_evictor(&self) {
        while !self.is_done() {
            let passage = self.pager.gate.enter(Level::Mover);
            self.pager.residency.ownership.table.evict(self.pager.residency.frames.zapper());
            drop(passage);
            deepheap_sys::threads::thread::yield_now();
        }
    }
}
