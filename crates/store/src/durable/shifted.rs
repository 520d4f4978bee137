//! Shifted device: a stretch of a device, as a device of its own.
//!
//! Guarantees: nothing outside the stretch is read, written or given back through it.
//! Never: allocates, waits.
//! Threads: as the device.

use std::sync::Arc;

use deepheap_sys::errno::{Errno, Result};

use crate::device::{Device, Read, Write};

/// See the file's header.
pub struct ShiftedDevice {
    inner: Arc<dyn Device>,
    start: u64,
    len: u64,
}

impl ShiftedDevice {
    /// The `len` bytes from `start` on.
    pub fn new(inner: Arc<dyn Device>, start: u64, len: u64) -> Self {
        Self { inner, start, len }
    }

    /// Where on the device the bytes lie.
    fn shifted(&self, offset: u64, len: u64) -> Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.start + offset),
            _ => Err(Errno::ENXIO),
        }
    }
}

impl Device for ShiftedDevice {
    fn read(&self, batch: &mut [Read<'_>]) {
        // All or none: a caller who asks for what is not there is wrong about the rest, too.
        if batch.iter().any(|read| self.shifted(read.offset, read.buf.len() as u64).is_err()) {
            batch.iter_mut().for_each(|read| read.result = Err(Errno::ENXIO));
            return;
        }
        batch.iter_mut().for_each(|read| read.offset += self.start);
        self.inner.read(batch);
        batch.iter_mut().for_each(|read| read.offset -= self.start);
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        if batch.iter().any(|write| self.shifted(write.offset, write.data.len() as u64).is_err()) {
            batch.iter_mut().for_each(|write| write.result = Err(Errno::ENXIO));
            return;
        }
        batch.iter_mut().for_each(|write| write.offset += self.start);
        self.inner.write(batch);
        batch.iter_mut().for_each(|write| write.offset -= self.start);
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(self.shifted(offset, len)?, len)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.reserve(self.shifted(offset, len)?, len)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn after_fork(&self) {
        self.inner.after_fork();
    }
}
