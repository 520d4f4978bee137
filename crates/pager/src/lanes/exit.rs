//! Lane exit: takes objects out of their lanes, to the cache.
//!
//! The bytes of an object that leaves are final: it is owned, so nobody maps its page; the page is
//! unmapped, and when that call returns every processor has flushed its TLB; and only then are its
//! bytes read, through the alias. A store before the flush is in the frame, one after it faults and
//! waits for the owner. Other lanes of the frame stay mapped: their pages are others.
//!
//! Guarantees: a pinned object stays in its lane.
//! Never: allocates, but for a fork; waits under the lock of a lane.
//! Threads: as `lanes`. A fork's, while no other moves an object.

use core::ptr::null_mut;

use deepheap_heap::{LANE_BYTES, PAGES_PER_SPAN, PageNo};
use deepheap_residency::object_cache::Slot;
use deepheap_residency::ownership::{Found, Owned, Place};
use deepheap_residency::ranges::RangeNo;
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::page_extractor::RANGE;
use deepheap_sys::memory::pinned_array::PinnedArray;

use crate::PAGE;
use crate::evict::is_all_zero;
use crate::lanes::{LaneNo, Lanes, LeftInLanes};
use crate::moves::Moves;
use crate::pager::Pager;

/// Objects that leave their lanes together before a fork.
const TOGETHER: usize = 64;

/// Why an object stays in its lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stays {
    /// It is pinned, or the kernel does not unmap it.
    Pinned,
    /// Another thread owns it.
    Owned,
}

impl Pager {
    /// Takes an object out of the program's reach, which is in a lane whose lock is held. Its bytes
    /// are in the lane, which is empty for all others to see.
    pub(crate) fn unmap_occupant(
        &self,
        lanes: &Lanes,
        lane: LaneNo,
        page: PageNo,
    ) -> Result<Owned, Stays> {
        let Place::Busy(id) = self.residency.ownership.place(page) else {
            debug_assert!(false, "{page:?} is in a lane and not resident");
            return Err(Stays::Owned);
        };
        let Some(owned) = self.residency.ownership.claim_resident(page, id) else {
            return Err(Stays::Owned);
        };
        if self.residency.ownership.of(&owned).is_pinned() || !self.unmap_lane_page(page) {
            self.residency.ownership.put_back(owned);
            return Err(Stays::Pinned);
        }
        lanes.set_occupant(lane, None);
        Ok(owned)
    }

    fn unmap_lane_page(&self, page: PageNo) -> bool {
        let iov_base = self.residency.frames.address_of(page) as *mut libc::c_void;
        // SAFETY: a page of a window: its bytes stay in the file.
        unsafe { self.residency.frames.zapper().zap(&[libc::iovec { iov_base, iov_len: PAGE }]) }
            .is_ok()
    }

    /// Publishes an object that has left its lane with these bytes. The slot, which has room for
    /// them, is its own or is given back.
    pub(crate) fn publish_left(
        &self,
        owned: Owned,
        bytes: &[u8],
        slot: Slot<'_>,
        moves: &mut Moves,
    ) {
        let page = self.residency.ownership.of(&owned).page();
        let is_free = self.residency.heap.page_is_free(page);
        if is_free || is_all_zero(bytes) {
            moves.free += u32::from(is_free);
            moves.zero += u32::from(!is_free);
            return self.residency.to_zero(owned);
        }
        let to = slot.address();
        // SAFETY: the slot is ours alone, and as long as that.
        let data = unsafe {
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            core::slice::from_raw_parts(to, bytes.len())
        };
        self.cache_object(owned, slot, data, moves);
    }

    /// Ends an object in a lane, which no allocation uses any more: it leaves its lane, unless it
    /// is pinned. False if it has to be looked at again.
    pub(crate) fn end_in_lane(&self, lanes: &Lanes, page: PageNo) -> bool {
        let lane = lanes.lane_of(page);
        let lock = lanes.lock(lane);
        if lanes.occupant(lane) != Some(page) {
            return false;
        }
        match self.unmap_occupant(lanes, lane, page) {
            Ok(owned) => self.residency.to_zero(owned),
            Err(Stays::Pinned) => {
                let Place::Busy(id) = self.residency.ownership.place(page) else { return false };
                let Some(owned) = self.residency.ownership.claim_resident(page, id) else {
                    return false;
                };
                self.residency.drop_backing(&owned);
                self.residency.ownership.put_back(owned);
            }
            Err(Stays::Owned) => return false,
        }
        drop(lock);
        true
    }

    /// Where the first kept byte of an object can be reached that is resident, and pinned or owned.
    pub(crate) fn resident_bytes(&self, page: PageNo) -> *mut u8 {
        match self.lanes_of(page) {
            Some(lanes) if !lanes.is_exiled(page) => lanes.bytes_of(lanes.lane_of(page)),
            _ => {
                (self.residency.frames.address_of(page) + self.residency.heap.kept_offset(page))
                    as *mut u8
            }
        }
    }

    // Forks. While the gate is closed to movers.

    /// Takes all objects out of their lanes, which the child would share: windows are shared
    /// memory. Those that cannot leave are copied, for the child.
    pub(crate) fn empty_lanes(&self, lanes: &Lanes) -> LeftInLanes {
        let mut moves = Moves::default();
        let mut found = lanes.occupants().peekable();
        while found.peek().is_some() {
            let some = core::array::from_fn(|_| found.next());
            self.empty_some(lanes, &some, &mut moves);
        }
        let left: Vec<LaneNo> = lanes.occupants().map(|(lane, _)| lane).collect();
        let bytes = match left.len() {
            0 => None,
            count => PinnedArray::<u8>::new(count * LANE_BYTES).ok(),
        };
        if let Some(copies) = &bytes {
            for (index, &lane) in left.iter().enumerate() {
                // SAFETY: a lane and a place for each; the program may write meanwhile, as it may
                // at any time before the fork.
                unsafe {
                    let to = copies.as_ptr().add(index * LANE_BYTES);
                    to.copy_from_nonoverlapping(lanes.bytes_of(lane), LANE_BYTES);
                }
            }
        }
        LeftInLanes { lanes: left, bytes }
    }

    /// Takes some objects out of their lanes, with one flush of the TLBs.
    fn empty_some(
        &self,
        lanes: &Lanes,
        some: &[Option<(LaneNo, PageNo)>; TOGETHER],
        moves: &mut Moves,
    ) {
        let mut leaving: [Option<(Owned, LaneNo, Slot<'_>)>; TOGETHER] = [const { None }; TOGETHER];
        let mut ranges = [libc::iovec { iov_base: null_mut(), iov_len: PAGE }; TOGETHER];
        // While nothing is owned: it may have to wait for the log.
        let slots = some.map(|it| it.and_then(|(_, page)| self.slot_for(page, moves).ok()?));
        let mut count = 0;
        for (slot, found) in slots.into_iter().zip(some) {
            let (Some(slot), Some((lane, page))) = (slot, *found) else { continue };
            let Some(owned) = self.claim_unpinned(page) else { continue };
            ranges[count].iov_base = self.residency.frames.address_of(page) as *mut libc::c_void;
            leaving[count] = Some((owned, lane, slot));
            count += 1;
        }
        // SAFETY: pages of windows, whose bytes stay in the file.
        let zapped = unsafe { self.residency.frames.zapper().zap(&ranges[..count]) }.is_ok();
        for (owned, lane, slot) in leaving.into_iter().flatten() {
            if !zapped {
                self.residency.ownership.put_back(owned);
                continue;
            }
            let kept = self.residency.kept_bytes(self.residency.ownership.of(&owned).page());
            lanes.set_occupant(lane, None);
            // SAFETY: nobody has the lane mapped, and nobody else fills it.
            let bytes = unsafe { core::slice::from_raw_parts(lanes.bytes_of(lane), kept) };
            self.publish_left(owned, bytes, slot, moves);
        }
    }

    /// Claims an object in a lane, unless it is pinned. Only the collector owns one for a moment.
    fn claim_unpinned(&self, page: PageNo) -> Option<Owned> {
        loop {
            match self.residency.ownership.look(page) {
                Found::Resident(seen) => {
                    let Some(owned) = self.residency.ownership.claim_resident(page, seen.id())
                    else {
                        continue;
                    };
                    if !self.residency.ownership.of(&owned).is_pinned() {
                        return Some(owned);
                    }
                    self.residency.ownership.put_back(owned);
                    return None;
                }
                Found::OnItsWay(seen) => self.residency.ownership.wait(seen),
                _ => return None,
            }
        }
    }

    /// In the child: lanes of its own, with what was left in them, and windows on them.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub(crate) unsafe fn lanes_of_child(
        &self,
        lanes: &Lanes,
        left: &LeftInLanes,
    ) -> Result<(), Errno> {
        let residency = &self.residency;
        // SAFETY: by our contract.
        unsafe { lanes.become_child()? };
        if left.bytes.is_none() && !left.lanes.is_empty() {
            return Err(Errno::ENOMEM);
        }
        for (index, &lane) in left.lanes.iter().enumerate() {
            let (Some(copies), Some(page)) = (&left.bytes, lanes.occupant(lane)) else { continue };
            let _ = lanes.use_frame(page);
            // SAFETY: as in `empty_lanes`; nobody else is here.
            unsafe {
                let from = copies.as_ptr().add(index * LANE_BYTES);
                lanes.bytes_of(lane).copy_from_nonoverlapping(from, LANE_BYTES);
            }
        }
        // Its mappings are new, and have no page tables yet.
        for first in (0..residency.frames.managed_spans() * PAGES_PER_SPAN).step_by(RANGE / PAGE) {
            let range = RangeNo::of(PageNo(first as u32));
            if residency.heap.is_lane_page(PageNo(first as u32))
                && residency.frames.ranges.close(range, 0)
            {
                residency.frames.ranges.open(range, 0);
            }
        }
        self.each_window(lanes, |first, pages| {
            // SAFETY: pages of windows on the parent's file.
            unsafe { lanes.map(first, pages, residency.frames.address_of(first)) }
        })
    }

    /// In the child, which has registered all of its memory: registers the windows as such.
    pub(crate) fn register_windows(&self, lanes: &Lanes) -> Result<(), Errno> {
        self.each_window(lanes, |first, pages| self.residency.frames.register_shared(first, pages))
    }

    /// Calls `act` with each range of pages of windows that are not exiled.
    fn each_window(
        &self,
        lanes: &Lanes,
        act: impl Fn(PageNo, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        for span in 0..self.residency.frames.managed_spans() {
            let (mut first, end) = (span * PAGES_PER_SPAN, (span + 1) * PAGES_PER_SPAN);
            let in_window = |page: &usize| !lanes.is_exiled(PageNo(*page as u32));
            while first < end && self.residency.heap.is_lane_page(PageNo(first as u32)) {
                let pages = (first..end).take_while(in_window).count();
                if pages > 0 {
                    act(PageNo(first as u32), pages)?;
                }
                first += pages + 1;
            }
        }
        Ok(())
    }
}
