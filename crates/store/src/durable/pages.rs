//! Pages: pages of a durable heap, many at a time, from the device and to it.
//!
//! Guarantees: pages that lie side by side are one request. A page that fails its checksum, or
//! that the device refuses, is read once more by itself.
//! Never: allocates after `new` more than the list of a batch.
//! Threads: one at a time.

use deepheap_sys::errno::Errno;
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;

use crate::device::table_file::PageLack;
use crate::device::{Device, Write};
use crate::durable::error::DurableError;
use crate::durable::layout::{Layout, Node};
use crate::format::BLOCK_BYTES;

/// Pages that are read or written together.
pub(crate) const BATCH_PAGES: usize = 256;

impl PageLack {
    /// As an error.
    pub(crate) fn of(self, layout: &Layout, node: Node) -> DurableError {
        match self {
            PageLack::Refused(errno) => DurableError::Io(errno),
            PageLack::Damaged => layout.damaged(node),
        }
    }
}

/// The meaning of a device's error on a read. Written pages lie before the end of the file: an end
/// is damage.
pub(crate) fn lack_of(errno: Errno) -> PageLack {
    if errno == Errno::ENODATA { PageLack::Damaged } else { PageLack::Refused(errno) }
}

/// Reads 4096 bytes that have no checksum of ours; twice if need be.
pub(crate) fn read_bare(device: &dyn Device, offset: u64, page: &mut [u8]) -> Result<(), PageLack> {
    device.read_at(offset, page).or_else(|_| device.read_at(offset, page)).map_err(lack_of)
}

/// Collects pages and writes them, many at a time.
pub(crate) struct PageWriter {
    buffer: AlignedBuffer,
    /// Bytes that are collected.
    filled: usize,
    /// Where they go: an offset, and so many bytes from there.
    runs: Vec<(u64, usize)>,
}

impl PageWriter {
    /// Errors: `Io` if memory is lacking.
    pub(crate) fn new() -> Result<Self, DurableError> {
        let buffer = AlignedBuffer::new(BATCH_PAGES * BLOCK_BYTES, 0)?;
        Ok(Self { buffer, filled: 0, runs: Vec::with_capacity(BATCH_PAGES) })
    }

    /// The page is to be written there: at once if there is no room for more, else later.
    pub(crate) fn push(
        &mut self,
        device: &dyn Device,
        offset: u64,
        page: &[u8],
    ) -> Result<(), Errno> {
        let end = self.filled + page.len();
        self.buffer.as_mut_slice()[self.filled..end].copy_from_slice(page);
        self.filled = end;
        match self.runs.last_mut() {
            Some((start, len)) if *start + *len as u64 == offset => *len += page.len(),
            _ => self.runs.push((offset, page.len())),
        }
        if end == self.buffer.capacity() { self.flush(device) } else { Ok(()) }
    }

    /// Writes what is collected. After an error some of it may be there; none is kept.
    pub(crate) fn flush(&mut self, device: &dyn Device) -> Result<(), Errno> {
        let mut rest = &self.buffer.as_mut_slice()[..self.filled];
        let mut writes = Vec::with_capacity(self.runs.len());
        for &(offset, len) in &self.runs {
            let piece;
            (piece, rest) = rest.split_at(len);
            writes.push(Write::new(offset, piece));
        }
        device.write(&mut writes);
        let outcome = writes.iter().try_for_each(|write| write.result);
        drop(writes);
        self.filled = 0;
        self.runs.clear();
        outcome
    }
}
