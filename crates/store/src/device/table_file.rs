//! Table file: pages of 4096 bytes that another room keeps out of RAM, each at a place of its own.
//!
//! No log and no index: page `n` is at byte `4096 n`. The owner of a page keeps its checksum, which
//! is bound to its number: an older version of the page, or another page, does not pass.
//!
//! Guarantees: `read` answers `Ok` only for the bytes that were written last.
//! Never: allocates, locks, or touches anything but the device and the bytes that it is given.
//! Threads: any; no two of them use the same page at the same time.

use deepheap_sys::errno::Errno;

use crate::block::checksum::Secret;
use crate::device::{Device, Write};
use crate::format::BLOCK_BYTES;

/// Pages that are written together, at most.
pub const TOGETHER_MAX: usize = 32;

/// See the file's header.
pub struct TableFile {
    device: Box<dyn Device>,
    secret: Secret,
}

/// Why a page cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageLack {
    /// The device refused it, twice.
    Refused(Errno),
    /// It is not what was written.
    Damaged,
}

impl TableFile {
    pub(crate) fn new(device: Box<dyn Device>, secret: Secret) -> Self {
        Self { device, secret }
    }

    /// The checksum of a page with these bytes.
    pub fn checksum(&self, page: u32, bytes: &[u8]) -> u64 {
        self.secret.hash(bytes).bound_to(page.into())
    }

    /// Reads a page; once more if that fails.
    ///
    /// Errors: `PageLack`; the bytes are of no use then.
    pub fn read(&self, page: u32, checksum: u64, bytes: &mut [u8]) -> Result<(), PageLack> {
        self.read_once(page, checksum, bytes).or_else(|_| self.read_once(page, checksum, bytes))
    }

    fn read_once(&self, page: u32, checksum: u64, bytes: &mut [u8]) -> Result<(), PageLack> {
        self.device.read_at(offset(page), bytes).map_err(PageLack::Refused)?;
        match self.checksum(page, bytes) == checksum {
            true => Ok(()),
            false => Err(PageLack::Damaged),
        }
    }

    /// Writes pages, `TOGETHER_MAX` at most: those numbered in `pages` lie one behind the other in
    /// `bytes`.
    ///
    /// Errors: what the device says of the first one that it refuses. All of them have to be
    /// written again then.
    pub fn write(&self, pages: &[u32], bytes: &[u8]) -> Result<(), Errno> {
        let mut writes = [const { Write { offset: 0, data: &[], result: Ok(()) } }; TOGETHER_MAX];
        let count = pages.len().min(TOGETHER_MAX);
        for ((write, page), data) in writes.iter_mut().zip(pages).zip(bytes.chunks(BLOCK_BYTES)) {
            *write = Write::new(offset(*page), data);
        }
        self.device.write(&mut writes[..count]);
        writes[..count].iter().try_for_each(|write| write.result)
    }
}

fn offset(page: u32) -> u64 {
    u64::from(page) * BLOCK_BYTES as u64
}
