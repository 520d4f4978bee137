//! Packer: the lists that packing one batch of objects into blocks needs.
//!
//! Threads: one at a time, under the lock of the packer.

use deepheap_heap::PageNo;
use deepheap_store::{Content, Plan};
use deepheap_sys::page_extractor::BATCH_MAX;

use crate::ownership::{DescriptorId, OwnedList};

/// What packing a batch needs: too large for a signal handler's stack.
pub(crate) struct Packer {
    pub(crate) plan: Plan,
    /// What leaves; and, from `BATCH_MAX` on, what does so because it is next in its sequence.
    pub(crate) leaving: [(PageNo, DescriptorId); 2 * BATCH_MAX],
    /// Which of what leaves does so as part of its sequence, now or later.
    pub(crate) is_sequence: [bool; BATCH_MAX],
    /// The objects to be packed, as they are.
    pub(crate) objects: ToPack,
    /// The compressed pages to be packed.
    pub(crate) pages: ToPack,
    /// The owned objects that go into the current block.
    pub(crate) owned: OwnedList<BATCH_MAX>,
}

/// A list of what shares blocks: indices in `Packer::leaving`, and what each will take.
pub(crate) struct ToPack {
    pub(crate) which: [u16; BATCH_MAX],
    pub(crate) sizes: [u16; BATCH_MAX],
    pub(crate) count: usize,
}

impl ToPack {
    const fn new() -> ToPack {
        ToPack { which: [0; BATCH_MAX], sizes: [0; BATCH_MAX], count: 0 }
    }

    pub(crate) fn push(&mut self, index: usize, bytes: usize) {
        self.which[self.count] = index as u16;
        self.sizes[self.count] = bytes as u16;
        self.count += 1;
    }
}

impl Packer {
    /// The list of what goes into blocks of this content.
    pub(crate) fn list(&mut self, content: Content) -> &mut ToPack {
        match content {
            Content::Objects => &mut self.objects,
            Content::Pages => &mut self.pages,
        }
    }

    pub(crate) fn new() -> Packer {
        let none = (PageNo(0), DescriptorId(0));
        Packer {
            plan: Plan::new(),
            leaving: [none; 2 * BATCH_MAX],
            is_sequence: [false; BATCH_MAX],
            objects: ToPack::new(),
            pages: ToPack::new(),
            owned: OwnedList::new(),
        }
    }
}
