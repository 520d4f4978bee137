//! Wish: the RAM budget, and the profile, that another process has asked for, in the statistics
//! page.
//!
//! `deepheap set` and `deepheap profile` write it and wake the viewer; `control/ceiling` decides
//! what a budget means.
//!
//! Never: is trusted. Another process may write any number.
//! Threads: any, of any process; a reader acts on what it reads at that moment.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// In the place of a wish: this process hears none.
const NOT_HEARD: u64 = u64::MAX;

/// Numbers; 0 if nobody has wished.
#[repr(C)]
pub struct Wish {
    budget_bytes: AtomicU64,
    profile: AtomicU64,
}

impl Wish {
    /// The budget that was wished, in bytes.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.copy()).filter(|&bytes| bytes != 0 && bytes != NOT_HEARD)
    }

    /// Whether wishes are heard.
    pub fn is_heard(&self) -> bool {
        self.copy() != NOT_HEARD
    }

    /// The process itself: shows the others that wishes are not heard.
    pub(crate) fn refuse(&self) {
        self.budget_bytes.store(NOT_HEARD, Relaxed);
    }

    /// Another process: wishes.
    pub(crate) fn set(&self, bytes: u64) {
        self.budget_bytes.store(bytes, Relaxed);
    }

    /// The profile that was wished, or 0.
    pub(crate) fn profile(&self) -> u64 {
        self.profile.load(Relaxed)
    }

    /// Another process: wishes this process's faults to be in it.
    pub(crate) fn set_profile(&self, number: u64) {
        self.profile.store(number, Relaxed);
    }

    /// The budget as it stands, for the page of a child.
    pub(crate) fn copy(&self) -> u64 {
        self.budget_bytes.load(Relaxed)
    }
}
