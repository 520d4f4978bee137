//! Invariants: one walk over the pager's lists and tables, comparing each with the others.
//!
//! Guarantees: if `check_invariants` returns, then every descriptor stands in exactly one list,
//! which its state allows; each entry of the object table that names a descriptor names that of its
//! page; and the counts of page buffer, object cache, ranges and promises are those of lists and
//! table.
//! Never: changes anything, waits: a lock that is held is an error by itself.
//! Threads: any, while no thread moves an object: the gate is closed, or no other thread is left.

use deepheap_heap::{PAGES_PER_SPAN, PageNo};
use deepheap_residency::ownership::{Descriptor, DescriptorId, List, Place, State};
use deepheap_residency::ranges::RangeNo;

use crate::pager::Pager;
use crate::tests::place_quietly;

/// The sums of the walk.
#[derive(Default)]
struct Sums {
    /// Memory pages that are not `Zero`.
    promised: usize,
    resident: usize,
    cached: usize,
    in_lanes: usize,
}

impl Pager {
    /// Panics if a structure contradicts itself or another one.
    pub(crate) fn check_invariants(&self) {
        self.residency.count_found();
        let mut sums = Sums::default();
        self.residency.ownership.descriptors.check_invariants(|id, descriptor, list| {
            self.check_descriptor(id, descriptor, list, &mut sums);
        });
        self.check_table(&sums);
        // A thread outside the gate may have a page reserved already.
        assert!(
            self.residency.frames.page_buffer.pages() >= sums.resident,
            "pages of the page buffer"
        );
        assert_eq!(self.residency.cache.objects(), sums.cached, "slots that are held");
        let packer_is_held = self.packers.iter().any(|packer| packer.try_lock().is_none());
        assert!(!packer_is_held, "a packer is locked");
        assert!(self.plain_spans.is_unlocked(), "the list of plain spans is locked");
        assert!(self.ahead.queues.is_unlocked(), "a queue of the fetchers is locked");
    }

    /// Checks a descriptor that stands in a list.
    fn check_descriptor(
        &self,
        id: DescriptorId,
        descriptor: &Descriptor,
        list: List,
        sums: &mut Sums,
    ) {
        let (page, state) = (descriptor.page(), descriptor.state());
        let (allowed, place) = match list {
            List::Probation | List::Protected | List::Unevictable => {
                sums.resident += 1;
                (State::Resident, Place::Busy(id))
            }
            List::InLane => {
                sums.in_lanes += 1;
                let lanes = self.lanes_of(page).expect("a page in a lane");
                assert!(!lanes.is_exiled(page), "{page:?} is in its lane and exiled");
                assert_eq!(lanes.occupant(lanes.lane_of(page)), Some(page), "who has the lane");
                (State::Resident, Place::Busy(id))
            }
            List::CacheSmall | List::CacheMain | List::CacheDense | List::CacheLeaving => {
                sums.cached += 1;
                let slot = descriptor.slot();
                assert_eq!(self.residency.cache.owner_of(slot), Some(id), "who has slot {slot}");
                (State::Cached, Place::Cached(id))
            }
        };
        assert_eq!(state, allowed, "{id:?} of {page:?} is listed in {list:?}");
        assert_eq!(self.residency.ownership.place(page), place, "{page:?} is listed in {list:?}");
    }

    /// The other direction: checks the table's entry of every managed page.
    fn check_table(&self, sums: &Sums) {
        const RANGE_PAGES: u32 = (deepheap_sys::memory::page_extractor::RANGE / crate::PAGE) as u32;
        let pages = self.residency.frames.managed_spans() * PAGES_PER_SPAN;
        let mut seen = Sums::default();
        if let Some(lanes) = &self.lanes {
            seen.in_lanes = lanes.occupants().count();
        }
        for first in (0..pages as u32).step_by(RANGE_PAGES as usize) {
            let before = seen.resident;
            for page in (first..first + RANGE_PAGES).map(PageNo) {
                let place = place_quietly(&self.residency.ownership, page);
                seen.promised +=
                    usize::from(place != Place::Zero && self.residency.promises.covers(page));
                let (id, is_resident) = match place {
                    Place::Busy(id) => (id, true),
                    Place::Cached(id) => (id, false),
                    Place::Zero | Place::Stored(_) | Place::Lost => continue,
                };
                // The walk over the lists has checked this descriptor.
                assert_eq!(self.residency.ownership.descriptor(id).page(), page, "{id:?}");
                seen.resident += usize::from(is_resident && !self.is_in_lane(page));
                seen.cached += usize::from(!is_resident);
            }
            let range = RangeNo::of(PageNo(first));
            assert_eq!(
                self.residency.frames.ranges.pages(range),
                Some(seen.resident - before),
                "{range:?}"
            );
        }
        assert_eq!(self.residency.promises.taken(), seen.promised, "promises that pages have");
        // No page is named twice, so equal numbers mean the same pages.
        assert_eq!((seen.resident, seen.cached), (sums.resident, sums.cached), "objects in RAM");
        assert_eq!(seen.in_lanes, sums.in_lanes, "objects in lanes");
    }
}
