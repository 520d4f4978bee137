//! Pages: pages of a durable heap, many at a time, from the device and to it.
//!
//! Guarantees: pages that lie side by side are one request. A page that fails its checksum, or
//! that the device refuses, is read once more by itself.
//! Never: allocates after `new` more than the list of a batch.
//! Threads: one at a time.

use deepheap_sys::errno::Errno;
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;

use crate::block::checksum::Secret;
use crate::block::cipher::{Cipher, Piece};
use crate::device::table_file::PageLack;
use crate::device::{Device, Read, Write};
use crate::durable::error::DurableError;
use crate::durable::index::checksum;
use crate::durable::layout::{Layout, Node};
use crate::format::BLOCK_BYTES;
use crate::format::index::Entry;

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

/// What the device says of a read. What was written lies before the end of the file: an end is
/// damage.
fn lack_of(errno: Errno) -> PageLack {
    if errno == Errno::ENODATA { PageLack::Damaged } else { PageLack::Refused(errno) }
}

/// Reads 4096 bytes that have no checksum of ours; twice if need be.
pub(crate) fn read_bare(device: &dyn Device, offset: u64, page: &mut [u8]) -> Result<(), PageLack> {
    device.read_at(offset, page).or_else(|_| device.read_at(offset, page)).map_err(lack_of)
}

/// Whether the bytes are those of the page that the entry tells of; decrypts them.
pub(crate) fn is_right(
    secret: &Secret,
    cipher: Option<&Cipher>,
    (node, entry): (Node, Entry),
    page: &mut [u8],
) -> bool {
    let piece = Piece::Page { checkpoint: entry.checkpoint(), node: node.0 };
    cipher.is_none_or(|cipher| cipher.open(piece, page, entry.tag()))
        && checksum(secret, node, page) == entry.checksum()
}

/// Reads pages and verifies them.
pub(crate) struct PageReader<'a> {
    device: &'a dyn Device,
    layout: &'a Layout,
    secret: &'a Secret,
    /// What the pages are encrypted with.
    cipher: Option<&'a Cipher>,
    buffer: AlignedBuffer,
}

impl<'a> PageReader<'a> {
    /// Errors: `Io` if memory is lacking.
    pub(crate) fn new(
        device: &'a dyn Device,
        layout: &'a Layout,
        secret: &'a Secret,
        cipher: Option<&'a Cipher>,
    ) -> Result<Self, DurableError> {
        let buffer = AlignedBuffer::new(BATCH_PAGES * BLOCK_BYTES, 0)?;
        Ok(Self { device, layout, secret, cipher, buffer })
    }

    /// Reads the pages, `BATCH_PAGES` at most, and hands on what came of each, in their order,
    /// until that fails. The pages have entries, and rise.
    pub(crate) fn read(
        &mut self,
        wanted: &[(Node, Entry)],
        mut visit: impl FnMut(Node, Result<&[u8], PageLack>) -> Result<(), DurableError>,
    ) -> Result<(), DurableError> {
        let bytes = &mut self.buffer.as_mut_slice()[..wanted.len() * BLOCK_BYTES];
        let offset = |&(node, entry): &(Node, Entry)| self.layout.offset(node, entry.slot());
        let follows = |one: &(Node, Entry), next: &(Node, Entry)| {
            offset(next) == offset(one) + BLOCK_BYTES as u64
        };
        let mut reads = Vec::with_capacity(wanted.len());
        let mut rest = &mut *bytes;
        for run in wanted.chunk_by(follows) {
            let piece;
            (piece, rest) = rest.split_at_mut(run.len() * BLOCK_BYTES);
            reads.push(Read::new(offset(&run[0]), piece));
        }
        self.device.read(&mut reads);
        // A run that failed as a whole may have failed at one page: its bytes decide.
        drop(reads);
        for (page, wanted) in bytes.chunks_mut(BLOCK_BYTES).zip(wanted) {
            let &(node, entry) = wanted;
            let is_right =
                |page: &mut [u8]| is_right(self.secret, self.cipher, (node, entry), page);
            let mut outcome = Ok(());
            if !is_right(page) {
                outcome = self.device.read_at(offset(wanted), page).map_err(lack_of);
                if outcome.is_ok() && !is_right(page) {
                    outcome = Err(PageLack::Damaged);
                }
            }
            visit(node, outcome.map(|()| &*page))?;
        }
        Ok(())
    }

    /// As `read`, of all pages of `nodes` that `entry` knows of.
    pub(crate) fn read_all(
        &mut self,
        nodes: impl Iterator<Item = Node>,
        entry: impl Fn(Node) -> Entry,
        mut visit: impl FnMut(Node, Result<&[u8], PageLack>) -> Result<(), DurableError>,
    ) -> Result<(), DurableError> {
        let mut batch = Vec::with_capacity(BATCH_PAGES);
        for node in nodes {
            let entry = entry(node);
            if entry.is_none() {
                continue;
            }
            batch.push((node, entry));
            if batch.len() == BATCH_PAGES {
                self.read(&batch, &mut visit)?;
                batch.clear();
            }
        }
        self.read(&batch, &mut visit)
    }
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
