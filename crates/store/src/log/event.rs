//! Event: threads wait for it; a notification wakes them.
//!
//! To wait: take a `ticket`, look whether what you want is there, and if not, `wait` with the
//! ticket. The wait returns at once if there was a `notify` since the ticket was taken.
//!
//! Guarantees: no wake-up is lost; `notify` makes a system call only if a thread waits.
//! Never: allocates.
//! Threads: any.

use core::time::Duration;

use deepheap_sys::threads::atomic::{AtomicU32, Ordering};
use deepheap_sys::threads::futex;

/// Something that threads wait for.
pub(crate) struct Event {
    /// Number of notifications, wrapping.
    notified: AtomicU32,
    /// Threads between the start and the end of `wait`.
    waiters: AtomicU32,
}

/// The moment at which a thread began to look for what it wants.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u32);

impl Event {
    pub(crate) const fn new() -> Self {
        Self { notified: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    /// To be taken before looking.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.notified.load(Ordering::SeqCst))
    }

    /// Returns after a notification since the ticket, after `limit`, or for no reason.
    pub(crate) fn wait(&self, ticket: Ticket, limit: Option<Duration>) {
        // SeqCst on both sides: either `notify` sees the waiter, or the waiter (by the kernel's
        // comparison) sees the notification.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wait(&self.notified, ticket.0, limit);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes everybody whose ticket is older.
    pub(crate) fn notify(&self) {
        self.notified.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.notified, u32::MAX);
        }
    }

    /// In a forked child: the threads that waited are not here.
    pub(crate) fn forget_waiters(&self) {
        self.waiters.store(0, Ordering::SeqCst);
    }
}
