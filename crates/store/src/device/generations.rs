//! Generations: the device of each generation of forked children, up to ours. A child reads on the
//! devices that it has inherited, and writes to its own.
//!
//! Guarantees: the device of a generation stays the same.
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: any; `become_child` in a child that has no other thread yet.

use std::sync::{Arc, OnceLock};

use deepheap_sys::errno::Errno;
use deepheap_sys::threads::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::device::Device;
use crate::error::StoreError;

/// Generations of forked children, each a child of the one before, that a store can serve.
pub const GENERATIONS_MAX: usize = 64;

/// See the file's header.
pub(crate) struct Generations {
    devices: [OnceLock<Arc<dyn Device>>; GENERATIONS_MAX],
    current: AtomicUsize,
    /// The errno of the last failed write; 0 if none failed.
    failure: AtomicI32,
}

impl Generations {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        let mut devices = [const { OnceLock::new() }; GENERATIONS_MAX];
        devices[0] = OnceLock::from(device);
        Self { devices, current: AtomicUsize::new(0), failure: AtomicI32::new(0) }
    }

    /// Which generation this is.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }

    /// The device of a generation.
    pub(crate) fn device(&self, generation: usize) -> &dyn Device {
        match self.devices[generation].get() {
            Some(device) => device.as_ref(),
            None => unreachable!("a segment names a device that was never set"),
        }
    }

    /// The device that new segments go to.
    pub(crate) fn device_now(&self) -> &dyn Device {
        self.device(self.current())
    }

    /// Bytes of memory that the devices take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.devices.iter().filter_map(OnceLock::get).map(|device| device.memory_bytes()).sum()
    }

    /// A child writes to its own device from here on; returns its generation.
    ///
    /// Errors: `TooManyForks`.
    pub(crate) fn become_child(&self, own: Arc<dyn Device>) -> Result<usize, StoreError> {
        let generation = self.current() + 1;
        if generation >= GENERATIONS_MAX || self.devices[generation].set(own).is_err() {
            return Err(StoreError::TooManyForks);
        }
        self.devices[..generation].iter().filter_map(OnceLock::get).for_each(|it| it.after_fork());
        self.current.store(generation, Ordering::Release);
        Ok(generation)
    }

    /// Why the last failed write failed, if one ever did.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        match self.failure.load(Ordering::Acquire) {
            0 => None,
            errno => Some(StoreError::Io(Errno::from_raw(errno))),
        }
    }

    pub(crate) fn fail(&self, errno: Errno) {
        self.failure.store(errno.raw(), Ordering::Release);
    }
}
