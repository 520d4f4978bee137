//! Second tier: which of the objects that leave RAM go there.
//!
//! They are changed pages that scans or trails brought. Where one of a scan leaves, all of them in
//! a group of 1 MiB that are in the cache go together, so that they lie together on the disk; where
//! one of a trail leaves, those behind it in the history (`policy/trail_run`), in that order.
//! `policy/tier` says how many. A page of the second tier that was wanted alone goes to the SSD the
//! next time it leaves.
//!
//! Guarantees: without a second tier nothing is measured or decided.
//! Never: waits, allocates.
//! Threads: any, inside the gate.

pub(crate) mod mix;

use deepheap_heap::PageNo;
use deepheap_policy::tier::{self, Seen};
use deepheap_policy::trail_run::{PLACES_MAX, TrailRun, Where};
use deepheap_residency::Residency;
use deepheap_residency::ownership::{CameBy, DescriptorId, Owned, Place};
use deepheap_store::Block;
use deepheap_sys::memory::page_extractor::BATCH_MAX;
use deepheap_sys::process::clock;

use crate::PAGE;
use crate::ahead::History;
use crate::reclaim::packer::Packer;
use crate::tier::mix::TierMix;

/// Pages that go together: 1 MiB, aligned.
const GROUP: u32 = BATCH_MAX as u32;
/// So many groups before that of a page that leaves go first, if they are of its sequence.
const RUN_MAX: u32 = 64;
/// Trail runs that are looked for at a time. Some are short: of pages that stayed longer than
/// others.
const TRAIL_RUNS: usize = 32;

/// How many pages of a sequence leave now.
pub(crate) struct Chosen {
    /// So many of the first pages listed go to the store, ...
    pub(crate) to_store: usize,
    /// ... and so many of the others to the second tier.
    pub(crate) to_second: usize,
}

/// The second tier, with the parts that decide what goes there.
pub(crate) struct Tier<'a> {
    pub(crate) residency: &'a Residency,
    pub(crate) mix: &'a TierMix,
    pub(crate) history: Option<&'a History>,
}

impl Tier<'_> {
    /// A scan has gone on by so many pages.
    pub(crate) fn note_scan(&self, pages: u32) {
        if self.residency.store.second_tier().is_some() {
            self.mix.note_scan(pages, clock::monotonic_ns());
        }
    }

    /// An unchanged page leaves the page buffer. If it came alone, it is not for the second tier.
    pub(crate) fn promote(&self, owned: &Owned) {
        let descriptor = self.residency.ownership.of(owned);
        let is_slow = |block: Block| self.residency.store.is_in_second_tier(block);
        let is_alone = !matches!(descriptor.came_by(), CameBy::Scan | CameBy::Followed);
        if is_alone && descriptor.backing().is_some_and(is_slow) {
            self.residency.drop_backing(owned);
        }
    }

    /// The first leaving object that is a changed page of a sequence, if there is a second tier.
    pub(crate) fn first_in_sequence(&self, leaving: &[(PageNo, DescriptorId)]) -> Option<PageNo> {
        self.residency.store.second_tier_to_fill()?;
        let is_known = |&&(page, id): &&_| self.is_changed_in_sequence(page, id);
        leaving.iter().find(is_known).map(|&(page, _)| page)
    }

    /// Chooses what leaves in the place of the first `count` objects, or of some of them: the
    /// oldest group of the sequence to which the page `first` belongs, or else a trail. It is
    /// listed in `leaving` from `BATCH_MAX` on. An object that is marked in `is_sequence` is
    /// listed, too, or waits until its group is the oldest.
    pub(crate) fn choose_sequence(
        &self,
        packer: &mut Packer,
        count: usize,
        first: Option<PageNo>,
    ) -> Chosen {
        packer.is_sequence[..count].fill(false);
        let none = Chosen { to_store: 0, to_second: 0 };
        let Some(second) = self.residency.store.second_tier_to_fill() else { return none };
        let disk_ns = second.read_latency().map_or(0, |latency| latency.as_nanos() as u64);
        let seen = self.mix.seen(disk_ns);
        let Some(first) = first else { return self.choose_trail_run(packer, count, seen) };
        let group = self.begin_of_run(first.0 / GROUP);
        let pages = self.gather(group, &mut packer.leaving[BATCH_MAX..]);
        if pages < tier::RUN_LEAST {
            return self.choose_trail_run(packer, count, seen);
        }
        let near = group * GROUP..(group + RUN_MAX) * GROUP;
        for (index, &(page, id)) in packer.leaving[..count].iter().enumerate() {
            packer.is_sequence[index] =
                near.contains(&page.0) && self.is_changed_in_sequence(page, id);
        }
        let before = (group * GROUP).checked_sub(1).map(PageNo);
        let goes_on = before.is_some_and(|page| self.has(page));
        let to_store = seen.on_ssd(pages, goes_on, self.mix.allowed());
        Chosen { to_store, to_second: pages - to_store }
    }

    /// As `choose_sequence`: of the trails that the program followed again, the oldest of which
    /// something goes to the second tier.
    fn choose_trail_run(&self, packer: &mut Packer, count: usize, seen: Seen) -> Chosen {
        let none = Chosen { to_store: 0, to_second: 0 };
        let Some(history) = self.history else { return none };
        let Packer { leaving, is_sequence, .. } = packer;
        let (leaving, list) = leaving.split_at_mut(BATCH_MAX);
        let leaving = &leaving[..count];
        let index_of = |page| leaving.binary_search_by_key(&page, |(page, _)| page.0).ok();
        let allowed = self.mix.allowed();
        let mut is_met = [false; BATCH_MAX];
        for _ in 0..TRAIL_RUNS {
            let places = leaving.iter().zip(&is_met).filter_map(|(&(page, id), is_met)| {
                let is_new = !is_met && self.is_changed_on_trail(page, id);
                is_new.then(|| history.find(page.0))?
            });
            let Some(place) = places.min() else { break };
            let run = TrailRun::gather(history, place, list, |page| {
                if let Some(index) = index_of(page) {
                    is_met[index] = true;
                }
                self.where_is(PageNo(page))
            });
            let to_store = seen.on_ssd(run.pages, run.goes_on, allowed);
            if to_store < run.pages {
                // The pages behind it wait for their turn.
                let behind = history.from(run.end).take(PLACES_MAX).map(|(page, _)| page);
                let listed = list[..run.pages].iter().map(|(page, _)| page.0);
                for index in listed.chain(behind).filter_map(index_of) {
                    let (page, id) = leaving[index];
                    is_sequence[index] |= self.is_changed_on_trail(page, id);
                }
                return Chosen { to_store, to_second: run.pages - to_store };
            }
            if allowed < BATCH_MAX as u64 {
                break;
            }
        }
        none
    }

    /// Where a page of a trail is, and under which descriptor.
    fn where_is(&self, page: PageNo) -> Where<(PageNo, DescriptorId)> {
        match self.residency.ownership.peek(page) {
            Some(Place::Cached(id)) if self.is_changed_on_trail(page, id) => {
                Where::MayGo((page, id))
            }
            Some(Place::Stored(block)) if self.residency.store.is_in_second_tier(block) => {
                Where::SecondTier
            }
            Some(Place::Stored(_)) => Where::Ssd,
            _ => Where::Stays,
        }
    }

    /// Lists the changed pages of a group that are in the cache and came in sequence, in order;
    /// returns how many.
    fn gather(&self, group: u32, list: &mut [(PageNo, DescriptorId)]) -> usize {
        let mut count = 0;
        for page in (group * GROUP..(group + 1) * GROUP).map(PageNo) {
            if let Some(Place::Cached(id)) = self.residency.ownership.peek(page)
                && self.is_changed_in_sequence(page, id)
            {
                list[count] = (page, id);
                count += 1;
            }
        }
        count
    }

    /// The first group of the run of groups that are in the cache, up to this one, whose pages came
    /// in sequence: so that what is read in order lies in that order on the disk.
    fn begin_of_run(&self, group: u32) -> u32 {
        let waits = |page: u32| match self.residency.ownership.peek(PageNo(page)) {
            Some(Place::Cached(id)) => self.is_changed_in_sequence(PageNo(page), id),
            _ => false,
        };
        let least = group.saturating_sub(RUN_MAX);
        let mut begin = group;
        while begin > least && waits(begin * GROUP - 1) && waits(begin * GROUP) {
            begin -= 1;
        }
        begin
    }

    /// Whether an object in the cache is a page that a scan brought and that was changed since. It
    /// is not owned, so the answer may change.
    fn is_changed_in_sequence(&self, page: PageNo, id: DescriptorId) -> bool {
        let came_by = self.residency.ownership.descriptor(id).came_by();
        came_by == CameBy::Scan && self.is_changed_page(page, id)
    }

    /// The same of one that a trail brought, by which the program came.
    fn is_changed_on_trail(&self, page: PageNo, id: DescriptorId) -> bool {
        let came_by = self.residency.ownership.descriptor(id).came_by();
        came_by == CameBy::Followed && self.is_changed_page(page, id)
    }

    fn is_changed_page(&self, page: PageNo, id: DescriptorId) -> bool {
        let is_changed = self.residency.ownership.descriptor(id).backing().is_none();
        is_changed && self.residency.kept_bytes(page) == PAGE
    }

    /// Whether it has the object of `page`, if that is known without waiting.
    pub(crate) fn has(&self, page: PageNo) -> bool {
        let Some(Place::Stored(block)) = self.residency.ownership.peek(page) else { return false };
        self.residency.store.is_in_second_tier(block)
    }
}
