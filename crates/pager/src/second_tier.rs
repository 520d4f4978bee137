//! Second tier: which of the objects that leave RAM go there.
//!
//! They are changed pages that scans brought. Where one leaves, all of them in its group of 1 MiB
//! that are in the cache go together, so that they lie together on the disk; `policy/tier` says how
//! many. A page of the second tier that was wanted alone goes to the SSD the next time it leaves.
//!
//! Guarantees: without a second tier nothing is marked, measured or decided.
//! Never: waits, allocates.
//! Threads: any, inside the gate.

use deepheap_heap::PageNo;
use deepheap_store::Block;
use deepheap_sys::clock;
use deepheap_sys::page_extractor::BATCH_MAX;

use crate::PAGE;
use crate::flight::Flight;
use crate::ownership::{DescriptorId, Owned, Place};
use crate::packer::Packer;
use crate::pager::Pager;

/// Pages that go together: 1 MiB, aligned.
const GROUP: u32 = BATCH_MAX as u32;

impl Pager {
    /// So many pages more may go to the second tier, and `most` until the next call; before the
    /// first call as many as there are.
    pub fn allow_second_tier(&self, more: u64, most: u64) {
        self.tier_mix.allow(more, most);
    }

    /// From now on pages go to store and second tier by turns, as with two devices of swap.
    pub fn take_turns(&self) {
        self.tier_mix.take_turns();
    }

    /// A scan has gone on by so many pages.
    pub(crate) fn note_scan(&self, pages: u32) {
        if self.store.second_tier().is_some() {
            self.tier_mix.note_scan(pages, clock::monotonic_ns());
        }
    }

    /// The objects of a flight of several come in sequence.
    pub(crate) fn mark_sequence<const N: usize>(&self, flight: &Flight<N>) {
        if self.store.second_tier().is_some() && flight.len() > 1 {
            for index in 0..flight.len() {
                self.ownership.descriptor(flight.id(index)).set_in_sequence();
            }
        }
    }

    /// An unchanged page leaves the page buffer. If it came alone, it is not for the second tier.
    pub(crate) fn promote(&self, owned: &Owned) {
        let descriptor = self.ownership.of(owned);
        let is_slow = |block: Block| self.store.is_in_second_tier(block);
        let is_alone = !descriptor.is_in_sequence() && !self.tier_mix.takes_turns();
        if is_alone && descriptor.backing().is_some_and(is_slow) {
            self.drop_backing(owned);
        }
    }

    /// Chooses what goes to the second tier, of the groups in which something is among the first
    /// `count` objects that leave, in the order of addresses; returns how many it lists, in
    /// `leaving` from `BATCH_MAX` on. What leaves and is of such a group is marked in
    /// `is_sequence`: it is listed, or waits for its group.
    pub(crate) fn choose_sequences(&self, packer: &mut Packer, count: usize) -> usize {
        packer.is_sequence[..count].fill(false);
        let Some(second) = self.store.second_tier_to_fill() else { return 0 };
        if self.tier_mix.takes_turns() {
            return self.choose_by_turns(packer, count);
        }
        let disk_ns = second.read_latency().map_or(0, |latency| latency.as_nanos() as u64);
        let (mix, seen) = (&self.tier_mix, self.tier_mix.seen(disk_ns));
        let (mut chosen, mut first) = (0, 0);
        while first < count {
            let group = packer.leaving[first].0.0 / GROUP;
            let leaving = packer.leaving[first..count].iter();
            let end = first + leaving.take_while(|(page, _)| page.0 / GROUP == group).count();
            let is_known = packer.leaving[first..end]
                .iter()
                .any(|&(page, id)| self.is_changed_in_sequence(page, id));
            if is_known {
                let room = &mut packer.leaving[BATCH_MAX + chosen..];
                let pages = self.gather(group, &mut room[..GROUP as usize]);
                let goes_on = self.lies_before(PageNo(group * GROUP));
                let head = seen.on_ssd(pages, goes_on, mix.allowed());
                let from = room.get(head).map_or(PageNo(u32::MAX), |(page, _)| *page);
                if head < pages {
                    if chosen + pages - head <= BATCH_MAX {
                        room.copy_within(head..pages, 0);
                        mix.pay(pages - head);
                        chosen += pages - head;
                    }
                    for index in first..end {
                        let (page, id) = packer.leaving[index];
                        packer.is_sequence[index] =
                            page.0 >= from.0 && self.is_changed_in_sequence(page, id);
                    }
                }
            }
            first = end;
        }
        chosen
    }

    /// As `choose_sequences`: every other page of what leaves.
    fn choose_by_turns(&self, packer: &mut Packer, count: usize) -> usize {
        let mut chosen = 0;
        for index in 0..count {
            let (page, id) = packer.leaving[index];
            let is_changed = self.ownership.descriptors.get(id).backing().is_none();
            if is_changed && self.kept_bytes(page) == PAGE && page.0 % 2 == 1 {
                packer.leaving[BATCH_MAX + chosen] = (page, id);
                packer.is_sequence[index] = true;
                chosen += 1;
            }
        }
        chosen
    }

    /// Lists the changed pages of a group that are in the cache and came in sequence, in order;
    /// returns how many.
    fn gather(&self, group: u32, list: &mut [(PageNo, DescriptorId)]) -> usize {
        let mut count = 0;
        for page in (group * GROUP..(group + 1) * GROUP).map(PageNo) {
            if let Some(Place::Cached(id)) = self.ownership.peek(page)
                && self.is_changed_in_sequence(page, id)
            {
                list[count] = (page, id);
                count += 1;
            }
        }
        count
    }

    /// Whether an object in the cache is a page that a scan brought and that was changed since. It
    /// is not owned, so the answer may change.
    fn is_changed_in_sequence(&self, page: PageNo, id: DescriptorId) -> bool {
        let descriptor = self.ownership.descriptors.get(id);
        descriptor.is_in_sequence()
            && descriptor.backing().is_none()
            && self.kept_bytes(page) == PAGE
    }

    /// Whether the page before this one is in the second tier.
    fn lies_before(&self, page: PageNo) -> bool {
        let before = page.0.checked_sub(1).and_then(|before| self.ownership.peek(PageNo(before)));
        matches!(before, Some(Place::Stored(block)) if self.store.is_in_second_tier(block))
    }
}
