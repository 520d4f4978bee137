//! Packer: packs objects into blocks of the log.
//!
//! `Packing` says which of many objects share a block, and `Builder` fills one. Reclaim,
//! checkpoints, the collector and bulk writes use them, each with lists and claims of its own.
//!
//! Never: allocates, does I/O.
//! Threads: plain values. A `Packer` has one user at a time, under its lock.

use deepheap_heap::PageNo;
use deepheap_policy::replacement::DENSE_SAMPLE;
use deepheap_residency::codec::dense::DenseCompressor;
use deepheap_residency::ownership::{DescriptorId, OwnedList};
use deepheap_store::{Block, Content, PackedBlock, Plan, Writer, packed};
use deepheap_sys::memory::page_extractor::BATCH_MAX;

use crate::PAGE;

/// The memory of reclaim for a batch, and of a checkpoint: too large for a signal handler's stack.
pub(crate) struct Packer {
    pub(crate) packing: Packing<BATCH_MAX>,
    /// The objects that are to leave. Those from `BATCH_MAX` on were added because they come next
    /// in a sequence.
    pub(crate) leaving: [(PageNo, DescriptorId); 2 * BATCH_MAX],
    /// Which of what leaves does so as part of its sequence, now or later.
    pub(crate) is_sequence: [bool; BATCH_MAX],
    /// The owned objects that go into the current block.
    pub(crate) owned: OwnedList<BATCH_MAX>,
    /// None: objects leave as they are (`dense`).
    dense: Option<DenseCompressor>,
    /// Objects that were asked about (`compressor`).
    asked: u32,
}

impl Packer {
    pub(crate) fn new(dense: Option<DenseCompressor>) -> Packer {
        Packer {
            packing: Packing::new(),
            leaving: [(PageNo(0), DescriptorId(0)); 2 * BATCH_MAX],
            is_sequence: [false; BATCH_MAX],
            owned: OwnedList::empty(),
            dense,
            asked: 0,
        }
    }

    /// What makes the object dense that is about to leave the cache; none: it leaves as it is.
    /// While that does not pay, few are made dense.
    pub(crate) fn compressor(&mut self, pays: bool) -> Option<&mut DenseCompressor> {
        self.asked = self.asked.wrapping_add(1);
        let is_tried = pays || self.asked.is_multiple_of(DENSE_SAMPLE);
        self.dense.as_mut().filter(|_| is_tried)
    }
}

/// Up to `N` objects of each content, as indices in a list of the caller's; and which of them share
/// a block.
pub(crate) struct Packing<const N: usize> {
    plan: Plan,
    /// Of each content.
    lists: [ToPack<N>; 2],
}

/// The objects of one content: their indices, and what each will take, bytes.
struct ToPack<const N: usize> {
    which: [u16; N],
    sizes: [u16; N],
    count: usize,
}

impl<const N: usize> Packing<N> {
    pub(crate) const fn new() -> Self {
        let none = [const { ToPack { which: [0; N], sizes: [0; N], count: 0 } }; 2];
        Packing { plan: Plan::new(), lists: none }
    }

    pub(crate) fn clear(&mut self) {
        self.lists.iter_mut().for_each(|list| list.count = 0);
    }

    pub(crate) fn push(&mut self, content: Content, index: usize, bytes: usize) {
        let list = &mut self.lists[at(content)];
        (list.which[list.count], list.sizes[list.count]) = (index as u16, bytes as u16);
        list.count += 1;
    }

    /// Plans the blocks of this content, forgetting those of the other; returns how many they are.
    pub(crate) fn plan(&mut self, content: Content) -> usize {
        let list = &self.lists[at(content)];
        if list.count == 0 { 0 } else { self.plan.assign(&list.sizes[..list.count]) }
    }

    /// The indices of all objects of this content.
    pub(crate) fn all(&self, content: Content) -> impl Iterator<Item = usize> {
        let list = &self.lists[at(content)];
        list.which[..list.count].iter().map(|&index| usize::from(index))
    }

    /// The indices of the objects that share a planned block of this content.
    pub(crate) fn members(&self, content: Content, block: usize) -> impl Iterator<Item = usize> {
        let list = &self.lists[at(content)];
        self.plan.objects(block).map(|member| usize::from(list.which[member]))
    }

    /// Whether a planned block is worth writing now.
    pub(crate) fn is_well_filled(&self, block: usize) -> bool {
        self.plan.is_well_filled(block)
    }
}

/// The place of a content's list.
fn at(content: Content) -> usize {
    usize::from(content == Content::Pages)
}

/// A block that is being filled.
pub(crate) struct Builder<'b> {
    block: PackedBlock<'b>,
    content: Content,
    /// The cost of its objects together, units.
    cost: u32,
}

impl<'b> Builder<'b> {
    /// An empty block in this memory, whose bytes are of no interest.
    pub(crate) fn new(memory: &'b mut [u8; PAGE], content: Content) -> Self {
        Builder { block: PackedBlock::begin_with(memory, content), content, cost: 0 }
    }

    /// Whether one more object of so many bytes fits.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.block.fits(bytes)
    }

    /// Adds an object, which fits.
    pub(crate) fn push(&mut self, page: PageNo, object: &[u8]) {
        self.block.push(page.0, object);
        self.cost += packed::cost(object.len());
    }

    /// Appends the block, which has an object, to the log; the writer has room.
    pub(crate) fn append(self, writer: &mut Writer<'_>) -> Block {
        let count = self.block.count();
        match self.content {
            Content::Objects => writer.append_packed(self.block.finish(), self.cost),
            Content::Pages => writer.append_pages(self.block.finish(), count),
        }
    }
}
