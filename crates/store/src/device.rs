//! Device: where the bytes of the store go.
//!
//! Guarantees: `read` and `write` take batches, so that a device that can have many requests in
//! flight does; each request carries its own result, and `Ok` means its whole length.
//! Never: (for implementers) allocates or locks anything that program code can hold in `read`.
//! Threads: any, at the same time; no two concurrent writes overlap.

pub(crate) mod busy;
pub mod file;
pub mod generations;
pub mod table_file;

pub use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;

use crate::format::BLOCK_BYTES;

/// One read of a batch. Offset, address and length are multiples of 4096.
#[derive(Debug)]
pub struct Read<'a> {
    /// Where on the device, bytes.
    pub offset: u64,
    /// Where to put what is read; the whole of it is read.
    pub buf: &'a mut [u8],
    /// What became of it.
    pub result: Result<()>,
}

impl<'a> Read<'a> {
    /// A read that has not been tried yet: its result is an error until it has.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self { offset, buf, result: Err(Errno::EIO) }
    }

    /// Whether it begins where another ends: they may be one request.
    pub fn follows(&self, other: &Read<'_>) -> bool {
        self.offset == other.offset + other.buf.len() as u64
    }
}

/// One write of a batch. Offset, address and length are multiples of 4096.
#[derive(Debug)]
pub struct Write<'a> {
    /// Where on the device, bytes.
    pub offset: u64,
    /// The bytes to write.
    pub data: &'a [u8],
    /// What became of it.
    pub result: Result<()>,
}

impl<'a> Write<'a> {
    /// A write that has not been tried yet: its result is an error until it has.
    pub fn new(offset: u64, data: &'a [u8]) -> Self {
        Self { offset, data, result: Err(Errno::EIO) }
    }
}

/// Where the bytes of the store go: five methods, and some that most devices need not change.
pub trait Device: Send + Sync {
    /// Makes one read.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut reads = [Read::new(offset, buf)];
        self.read(&mut reads);
        reads[0].result
    }

    /// Makes one write.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut writes = [Write::new(offset, data)];
        self.write(&mut writes);
        writes[0].result
    }

    /// Reads the batch; each request's `result` says what became of it.
    fn read(&self, batch: &mut [Read<'_>]);

    /// Writes the batch; each request's `result` says what became of it.
    fn write(&self, batch: &mut [Write<'_>]);

    /// Makes what was written survive power loss. A failure is final; the caller never repeats it.
    fn sync(&self) -> Result<()>;

    /// The range holds nothing of value any more: it may be trimmed, and its space given back.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Bytes that can be addressed; a device that grows when written answers `u64::MAX`.
    fn len(&self) -> u64;

    /// Whether nothing can be stored at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes sure that later writes to the range will not lack space.
    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Bytes that `reserve` may still find; `None`: the device has all of its length.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes of memory that the device takes beside what it is given, the kernel's for it included.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Called in a forked child before it uses an inherited device: whatever the parent shares
    /// with it (rings, worker threads) must not be used from here on. Reads must go on working.
    fn after_fork(&self) {}
}

/// Writes a superblock, which need not be aligned. Errors: those of the device; ENOMEM.
pub(crate) fn write_superblock(
    device: &dyn Device,
    offset: u64,
    bytes: &[u8; BLOCK_BYTES],
) -> Result<()> {
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES, 0)?;
    buffer.as_mut_slice().copy_from_slice(bytes);
    device.write_at(offset, buffer.as_mut_slice())
}

/// A device without any space: nothing can be written, so there is nothing to read.
pub(crate) struct NoDevice;

impl Device for NoDevice {
    fn read(&self, batch: &mut [Read<'_>]) {
        batch.iter_mut().for_each(|read| read.result = Err(Errno::ENODATA));
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        batch.iter_mut().for_each(|write| write.result = Err(Errno::ENOSPC));
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::ENOTSUP)
    }

    fn len(&self) -> u64 {
        u64::MAX
    }

    fn reserve(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::ENOSPC)
    }
}
