//! Fork: what the pager does so that parent and child both keep every byte.
//!
//! The gate is closed around `fork`, so nothing is half-way. Afterwards every resident page is
//! shared copy-on-write and must be made exclusive before eviction, in both processes. The child's
//! mappings have lost their userfaultfd: until it has registered them with one of its own, an
//! evicted page would read as zeros, so that comes first.
//!
//! Threads: the forking one, in its `pthread_atfork` handlers.

use deepheap_heap::SPAN;
use deepheap_sys::atomic::Ordering;
use deepheap_sys::errno::Errno;
use deepheap_sys::userfaultfd::Userfaultfd;

use crate::descriptor::State;
use crate::pager::Pager;

impl Pager {
    /// Before `fork`: waits until nobody moves an object, and keeps it so.
    pub fn fork_prepare(&self) {
        self.gate.close();
        self.descriptors.for_each(|_, descriptor| {
            if descriptor.state().state() == State::Resident {
                descriptor.set_may_be_shared(true);
            }
        });
    }

    /// After `fork` in the parent.
    pub fn fork_parent(&self) {
        self.gate.open();
    }

    /// After `fork` in the child, before it runs anything of the program. The gate stays closed
    /// until `open_after_fork`.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub unsafe fn fork_child(&self) -> Result<(), Errno> {
        // SAFETY: by our contract.
        unsafe { self.gate.forget_others() };
        self.access_staging.forget_others();
        self.pages_staging.forget_others();
        let mut resident = 0;
        self.descriptors.for_each(|_, descriptor| {
            resident += usize::from(descriptor.state().state() == State::Resident);
        });
        let assumed = self.take_over.lock().assumed();
        self.page_buffer.recount(resident + assumed + self.staged_pages());
        let own = Userfaultfd::open()?;
        // SAFETY: by our contract nobody else uses the old one.
        drop(unsafe { self.userfaultfd.replace(own) });
        let spans = self.managed_spans.load(Ordering::Acquire);
        if spans > 0 {
            self.register(self.region_base, spans * SPAN)?;
        }
        self.zapper.get().after_fork();
        for context in &self.contexts {
            // SAFETY: a thread of the parent may have held it, waiting at the closed gate; it is
            // not here, and whoever waits there has not begun to use the context.
            unsafe { context.force_unlock() };
            context.lock().after_fork()?;
        }
        Ok(())
    }

    /// In the child, once the store has a device of its own: objects may move again.
    pub fn open_after_fork(&self) {
        self.gate.open();
    }
}
