//! Wish: the RAM budget that another process has asked for, a word in the statistics page.
//!
//! `deepheap set` writes it and wakes the viewer; `control/ceiling` decides what it means.
//!
//! Never: is trusted. Another process may write any number.
//! Threads: any, of any process; a reader acts on what it reads at that moment.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// In the place of a wish: this process hears none.
const NOT_HEARD: u64 = u64::MAX;

/// Bytes; 0 if nobody has wished.
#[repr(transparent)]
pub struct Wish(AtomicU64);

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
        self.0.store(NOT_HEARD, Relaxed);
    }

    /// Another process: wishes.
    pub(crate) fn set(&self, bytes: u64) {
        self.0.store(bytes, Relaxed);
    }

    /// As it stands, for the page of a child.
    pub(crate) fn copy(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
