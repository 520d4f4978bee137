//! Fork: how the pager lets parent and child both keep every byte.
//!
//! The gate is closed around `fork`, so no object is between two places. Afterwards every resident
//! page is shared copy-on-write and must be made exclusive before eviction, in both processes. The
//! child's mappings have lost their userfaultfd. Until it has registered them with one of its own,
//! an evicted page would read as zeros; so it does that first.
//!
//! Threads: the forking one, in its `pthread_atfork` handlers.

use deepheap_residency::ownership::{Flag, State};
use deepheap_store::Device;
use deepheap_sys::errno::Errno;
use deepheap_sys::threads::waits::Cause;

use crate::gate::Forking;
use crate::pager::Pager;

impl Pager {
    /// Before `fork`: waits until no thread moves an object, and lets none begin.
    pub fn fork_prepare(&self) {
        let mut left_in_lanes = None;
        self.gate.close(Cause::Fork, || {
            left_in_lanes = self.lanes.as_ref().map(|lanes| self.empty_lanes(lanes));
        });
        let table_is_frozen = self.residency.ownership.table.freeze();
        *self.forking.lock() = Forking { left_in_lanes, table_is_frozen };
        self.residency.ownership.descriptors.for_each(|_, descriptor| {
            if descriptor.state() == State::Resident {
                descriptor.set(Flag::Shared, true);
            }
        });
    }

    /// After `fork` in the parent. `file` makes another file for the object table; it is called if
    /// pages in the one that was used are the child's as well from now on.
    pub fn fork_parent(&self, file: impl FnOnce() -> Option<Box<dyn Device>>) {
        let forked = core::mem::take(&mut *self.forking.lock());
        if forked.table_is_frozen
            && let Some(file) = file()
        {
            self.add_table_file(file);
        }
        self.gate.open();
    }

    /// After `fork` in the child, before it runs anything of the program. The gate stays closed
    /// until `open_after_fork`.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub unsafe fn fork_child(&self) -> Result<(), Errno> {
        let residency = &self.residency;
        // SAFETY: by our contract.
        unsafe { self.gate.forget_others() };
        residency.staging.all().iter().for_each(|pool| pool.forget_others());
        self.workers.forget_others();
        // What the parent counted is the parent's.
        residency.counters.clear();
        residency.trace.become_child();
        residency.ownership.table.give_up_file();
        let mut resident = 0;
        residency.ownership.descriptors.for_each(|_, descriptor| {
            let is_resident = descriptor.state() == State::Resident;
            resident += usize::from(is_resident && !self.is_in_lane(descriptor.page()));
        });
        let assumed = self.plain_spans.lock().assumed;
        residency.frames.page_buffer.recount(resident + assumed + residency.staging.staged_pages());
        // SAFETY: by our contract.
        unsafe {
            let left = self.forking.lock().left_in_lanes.take();
            if let (Some(lanes), Some(left)) = (&self.lanes, left) {
                self.lanes_of_child(lanes, &left)?;
            }
            residency.frames.after_fork()?;
        }
        if let Some(lanes) = &self.lanes {
            self.register_windows(lanes)?;
        }
        for context in &self.contexts {
            // SAFETY: a thread of the parent may have held it while it waited at the closed gate.
            // That thread does not exist here, and a thread that waits there has not begun to use
            // the context.
            unsafe { context.force_unlock() };
            context.lock().after_fork()?;
        }
        Ok(())
    }

    /// In the child, once the store has a device of its own: objects may move again. Pages of the
    /// object table leave RAM to `file`.
    pub fn open_after_fork(&self, file: Option<Box<dyn Device>>) {
        *self.forking.lock() = Forking::default();
        self.balancer.more_ram.begin_anew();
        if let Some(file) = file {
            self.add_table_file(file);
        }
        self.gate.open();
    }
}
