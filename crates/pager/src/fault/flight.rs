//! Flight: owned objects on their way from the store, their reads, and the buffers of the reads.
//!
//! Objects of a flight are claimed, their reads begun and finished, and the objects landed. Objects
//! that share a block share one read.
//!
//! Guarantees: an object lands only after its bytes matched the checksum that the store keeps.
//! Never: allocates; waits for anything but the device.
//! Threads: one, inside the gate.

use core::ops::Range;

use deepheap_heap::PageNo;
use deepheap_residency::Residency;
use deepheap_residency::contents::fill_page;
use deepheap_residency::ownership::{DescriptorId, Owned, OwnedList};
use deepheap_store::packed::{self, Content};
use deepheap_store::{Block, BlockRead, StoreError};
use deepheap_sys::threads::waits::{Cause, Wait};

use crate::PAGE;
use crate::budget::balancer::Balancer;

/// Stored objects, `N` at most, that were claimed to be read together.
pub(crate) struct Flight<const N: usize> {
    pub(crate) objects: OwnedList<N>,
    pages: [PageNo; N],
    blocks: [Block; N],
    count: usize,
}

/// An object that was read and matched its checksum.
#[derive(Clone, Copy)]
pub(crate) enum Landed<'r> {
    /// Its bytes.
    Plain(&'r [u8]),
    /// A page, compressed.
    Compressed(&'r [u8]),
}

/// The reads of a flight.
pub(crate) struct Reads<'b, const N: usize> {
    requests: [BlockRead<'b>; N],
    /// For each object the index of its read.
    request_of: [u8; N],
    count: usize,
}

impl<'b, const N: usize> Reads<'b, N> {
    /// One read for each of the blocks; `read` makes it, for an object and into a buffer of this
    /// number.
    fn of(blocks: &[Block], mut read: impl FnMut(usize, usize) -> BlockRead<'b>) -> Self {
        let requests = core::array::from_fn(|_| BlockRead::packed(Block(0), &mut []));
        let mut reads = Reads { requests, request_of: [0; N], count: 0 };
        for (index, block) in blocks.iter().enumerate() {
            // The last read first: mostly it is a neighbour that has the same block.
            let same = |at: &usize| reads.requests[*at].block == *block;
            let at = (0..reads.count).rev().find(same).unwrap_or(reads.count);
            if at == reads.count {
                reads.requests[at] = read(index, at);
                reads.count += 1;
            }
            reads.request_of[index] = at as u8;
        }
        reads
    }

    /// The blocks that were read and matched their checksums, and their bytes.
    pub(crate) fn good(&self) -> impl Iterator<Item = (Block, &[u8])> {
        let requests = self.requests[..self.count].iter();
        let good = requests.filter(|request| request.result.is_ok());
        good.map(|request| (request.block, &*request.buf))
    }
}

impl<const N: usize> Flight<N> {
    pub(crate) const fn new() -> Self {
        let (pages, blocks) = ([PageNo(0); N], [Block(0); N]);
        Flight { objects: OwnedList::empty(), pages, blocks, count: 0 }
    }

    /// Adds an object that was claimed in its block.
    pub(crate) fn push(&mut self, owned: Owned, page: PageNo, block: Block) {
        (self.pages[self.count], self.blocks[self.count]) = (page, block);
        self.count += 1;
        self.objects.push(owned);
    }

    /// Objects that were claimed.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The pages of the objects, in order.
    pub(crate) fn pages(&self) -> &[PageNo] {
        &self.pages[..self.count]
    }

    /// The blocks of the objects, in order.
    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks[..self.count]
    }

    pub(crate) fn block(&self, index: usize) -> Block {
        self.blocks[index]
    }

    pub(crate) fn id(&self, index: usize) -> DescriptorId {
        self.objects.id(index)
    }

    /// Reverses the order, before the flight begins.
    pub(crate) fn reverse(&mut self) {
        self.objects.reverse();
        self.pages[..self.count].reverse();
        self.blocks[..self.count].reverse();
    }

    /// Takes an object out.
    pub(crate) fn take(&mut self, index: usize) -> Owned {
        self.objects.take(index)
    }

    /// Claims a stored object and adds it to the flight; false if another thread has it.
    pub(crate) fn claim(&mut self, residency: &Residency, page: PageNo, block: Block) -> bool {
        let Some(owned) = residency.ownership.claim_stored(page, block) else { return false };
        self.push(owned, page, block);
        true
    }

    /// Publishes a part of the flight as stored again.
    pub(crate) fn give_back(&mut self, residency: &Residency, range: Range<usize>) {
        for index in range {
            let block = self.block(index);
            residency.ownership.stored(self.take(index), block);
        }
    }

    /// Whether each object fills a page and has a block of its own. Then the bytes that are read
    /// are those that are installed.
    pub(crate) fn are_whole(&self, residency: &Residency) -> bool {
        self.pages().iter().zip(self.blocks()).all(|(&page, &block)| {
            residency.kept_bytes(page) == PAGE && residency.store.share_in(block).is_none()
        })
    }

    /// Begins the reads of a flight, into a page of `buffer` each, one behind the other.
    ///
    /// # Safety
    /// `buffer` has a page for each object, which is the caller's alone during 'b.
    pub(crate) unsafe fn begin<'b>(&self, residency: &Residency, buffer: *mut u8) -> Reads<'b, N> {
        Reads::of(self.blocks(), |index, at| {
            // SAFETY: the caller's promise; each read has a number of its own.
            let buf = unsafe { core::slice::from_raw_parts_mut(buffer.add(at * PAGE), PAGE) };
            block_read(residency, self.pages[index], self.blocks[index], buf)
        })
    }

    /// Finishes the reads: all have been answered. If the objects are `wanted` now, tells the
    /// balancer what the reads cost, and how many of them a larger cache would have saved.
    pub(crate) fn finish(
        &self,
        residency: &Residency,
        balancer: &Balancer,
        reads: &mut Reads<'_, N>,
        wanted: bool,
    ) {
        if reads.count == 0 {
            return;
        }
        let pages = self.pages();
        let wait = Wait::begin();
        let before = balancer.begin_reads(pages.len());
        residency.store.read(&mut reads.requests[..reads.count]);
        let after = balancer.end_reads(pages.len());
        let wait_ns = wait.end(Cause::Device);
        if wanted {
            let under_way = (before + after) as u64 / 2;
            let ns = wait_ns * pages.len() as u64 / under_way;
            let left_recently =
                |page: &&PageNo| residency.ownership.descriptors.ghost.left_recently(page.0);
            let known = pages.iter().filter(left_recently).count();
            balancer.note_reads(pages.len(), ns, known);
        }
    }

    /// An object that was read, whose hash is noted unless it is compressed; or why it could not be
    /// read.
    pub(crate) fn landed<'r>(
        &self,
        residency: &Residency,
        reads: &'r Reads<'_, N>,
        index: usize,
    ) -> Result<Landed<'r>, StoreError> {
        let (page, block) = (self.pages[index], self.blocks[index]);
        let request = &reads.requests[usize::from(reads.request_of[index])];
        let hash = request.result?;
        let landed =
            object_in(residency, page, block, request.buf).ok_or(StoreError::Corrupt(block))?;
        if let Landed::Plain(object) = landed {
            // A block that the object fills was hashed when it was verified.
            let hash = if object.len() == PAGE { hash } else { residency.store.hash(object) };
            residency.ownership.descriptor(self.id(index)).set_hash(hash);
        }
        Ok(landed)
    }

    /// Makes the page of an object of the flight that has landed, and notes its hash.
    pub(crate) fn make_page(
        &self,
        residency: &Residency,
        index: usize,
        landed: Landed<'_>,
        page: &mut [u8; PAGE],
    ) -> Result<(), StoreError> {
        match landed {
            Landed::Plain(object) => fill_page(page, object),
            Landed::Compressed(bytes) => {
                if !residency.decompress(bytes, page) {
                    return Err(StoreError::Corrupt(self.blocks[index]));
                }
                let hash = residency.store.hash(page);
                residency.ownership.descriptor(self.id(index)).set_hash(hash);
            }
        }
        Ok(())
    }
}

/// A read of the block that holds the object of a page.
pub(crate) fn block_read<'a>(
    residency: &Residency,
    page: PageNo,
    block: Block,
    buf: &'a mut [u8],
) -> BlockRead<'a> {
    match residency.is_packed(page) || residency.store.share_in(block).is_some() {
        true => BlockRead::packed(block, buf),
        false => BlockRead::new(block, u64::from(page.0), buf),
    }
}

/// The object of a page in its block, whose bytes were read and verified.
pub(crate) fn object_in<'a>(
    residency: &Residency,
    page: PageNo,
    block: Block,
    bytes: &'a [u8],
) -> Option<Landed<'a>> {
    let kept = residency.kept_bytes(page);
    if residency.store.share_in(block).is_some() {
        return packed::find(bytes, Content::Pages, page.0)
            .filter(|_| kept == PAGE)
            .map(Landed::Compressed);
    }
    let object = match residency.is_packed(page) {
        true => packed::find(bytes, Content::Objects, page.0).filter(|object| object.len() == kept),
        false => bytes.get(..kept),
    };
    object.map(Landed::Plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_a_block_share_one_read_wherever_they_stand() {
        let blocks = [5, 7, 7, 5, 9, 7].map(Block);
        let mut first_of = Vec::new();
        let reads = Reads::<8>::of(&blocks, |index, at| {
            assert_eq!(at, first_of.len());
            first_of.push(index);
            BlockRead::packed(blocks[index], &mut [])
        });
        assert_eq!((reads.count, first_of), (3, vec![0, 1, 4]));
        assert_eq!(reads.request_of[..6], [0, 1, 1, 0, 2, 1]);
    }
}
