//! Lane fault: a fault on a page whose object lies in a lane.
//!
//! ```text
//!   Zero, Cached   claim it ► take the occupant out ► fill the lane ► map ► Resident
//!   Resident       it is in its lane and was unmapped: own it, map
//!   Stored         fetch it into the cache, then as above
//! ```
//!
//! The occupant of the lane goes to the cache. It gets the slot that the newcomer leaves, if that
//! is large enough: then nothing has to be reclaimed, and objects in RAM stay usable when nothing
//! can be written. If the occupant cannot go, the newcomer is *exiled* instead, to a page of the
//! page buffer. It cannot go if it is pinned, or if one instruction of the thread wants both
//! objects (`Lanes::alternates`): they would otherwise take the lane from each other for ever.
//!
//! Guarantees: as `fault`. Of two objects that are owned at once neither is waited for: the second
//! claim is a try.
//! Never: allocates; waits under the lock of a lane, but for a range to be opened (`ranges`).
//! Threads: as `fault`.

use deepheap_heap::{LANE_BYTES, PageNo};
use deepheap_policy::replacement::Rank;
use deepheap_policy::sequence::Sequences;
use deepheap_residency::object_cache::Slot;
use deepheap_residency::ownership::{DescriptorId, Found, Owned, Pin, Place, Seen};
use deepheap_residency::page_buffer::Reserved;
use deepheap_store::StoreError;
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::mapping;
use deepheap_sys::memory::userfaultfd::Copy;
use deepheap_sys::process::log::{Piece, say};

use crate::PAGE;
use crate::ahead::window::Window;
use crate::calls::access::RECLAIM_OBJECTS;
use crate::fault::PRESENT_MAX;
use crate::fault::report::{FaultError, FaultKind, FaultReport};
use crate::gate::Level;
use crate::lanes::Lanes;
use crate::lanes::exit::Stays;
use crate::moves::Moves;
use crate::pager::Pager;

/// How often a fault begins anew, because other threads were faster, before the access is tried
/// again.
const TRIES: usize = 32;
/// From so many exiled pages on, one comes home for each that goes: each costs the kernel two
/// mappings, of which a process has 65,530.
const EXILED_MAX: usize = 8192;

/// The result of one try.
enum Step {
    /// The object is mapped.
    Served(FaultKind),
    /// The page is resident: whether it was mapped already.
    Waited { is_present: bool },
    /// Something has changed: look again.
    Again,
    /// The object was fetched into the cache; what `fetch` has told.
    Fetched(FaultReport),
    /// A page of the page buffer is needed, for exile.
    NeedsPage,
}

/// Whether the newcomer may be exiled.
enum Exile<'a> {
    Never,
    Possible,
    /// It is to be, to this page of the page buffer.
    Ready(Reserved<'a>),
}

/// Where the newcomer is now.
#[derive(Clone, Copy)]
enum From {
    Zero,
    Cached(DescriptorId),
}

impl Pager {
    /// The lanes, if the page is of a span whose objects lie in lanes.
    pub(crate) fn lanes_of(&self, page: PageNo) -> Option<&Lanes> {
        self.lanes.as_ref().filter(|_| self.residency.heap.is_lane_page(page))
    }

    /// Whether the object of a page is in its lane if it is resident. For its owner, or a hint.
    pub(crate) fn is_in_lane(&self, page: PageNo) -> bool {
        self.lanes_of(page).is_some_and(|lanes| !lanes.is_exiled(page))
    }

    /// As `resolve`, for a page of `lanes_of`.
    pub(crate) fn resolve_in_lane(
        &self,
        lanes: &Lanes,
        page: PageNo,
        sequences: &mut Sequences,
        repeats: usize,
    ) -> Result<FaultReport, FaultError> {
        let mut moves = Moves::default();
        let mut exile = Exile::Possible;
        if lanes.alternates(page) {
            exile = Exile::Ready(self.reserve_page(&mut moves, 0));
        }
        let served = self.bring_to_lane(lanes, page, sequences, exile, repeats, &mut moves);
        if lanes.exiled_pages() > EXILED_MAX && lanes.is_exiled(page) {
            self.bring_one_home(lanes, &mut moves);
        }
        self.signal_eviction();
        Ok(FaultReport { moves, ..served? })
    }

    /// The tries, and what is needed for them, which is got while nothing is owned.
    fn bring_to_lane<'a>(
        &'a self,
        lanes: &Lanes,
        page: PageNo,
        sequences: &mut Sequences,
        mut exile: Exile<'a>,
        repeats: usize,
        moves: &mut Moves,
    ) -> Result<FaultReport, FaultError> {
        self.limit_table(moves);
        self.have_frame(lanes, page, moves);
        let (mut fetched, mut step) = (None, Ok(Step::Again));
        for _ in 0..TRIES {
            let passage = self.gate.enter(Level::Mover);
            step = self.try_lane(lanes, page, sequences, &mut exile, repeats, moves);
            drop(passage);
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Fetched(served)) => fetched = Some(served),
                Ok(Step::NeedsPage) if matches!(exile, Exile::Possible) => {
                    exile = Exile::Ready(self.reserve_page(moves, 0));
                }
                _ => break,
            }
        }
        let waited = FaultReport::of(FaultKind::Waited, 0, 1);
        Ok(match step? {
            Step::Served(kind) => fetched.unwrap_or(FaultReport { kind, ..waited }),
            Step::Waited { is_present } => FaultReport { is_present, ..waited },
            Step::Again | Step::Fetched(_) | Step::NeedsPage => waited,
        })
    }

    /// The frame of a page takes RAM from now on, for which this thread makes room.
    fn have_frame(&self, lanes: &Lanes, page: PageNo, moves: &mut Moves) {
        if lanes.has_frame(page) {
            return;
        }
        let reserved = self.reserve_page(moves, 0);
        if lanes.use_frame(page) {
            // Until `rebalance` lowers the limit.
            self.residency.staging.note_staged(reserved);
        }
    }

    fn try_lane(
        &self,
        lanes: &Lanes,
        page: PageNo,
        sequences: &mut Sequences,
        exile: &mut Exile<'_>,
        repeats: usize,
        moves: &mut Moves,
    ) -> Result<Step, FaultError> {
        let from = match self.residency.ownership.look(page) {
            Found::Lost => return Err(FaultError::Lost),
            Found::OnItsWay(seen) => {
                self.residency.ownership.wait(seen);
                return Ok(Step::Again);
            }
            Found::Resident(_) if lanes.is_exiled(page) => {
                return Ok(Step::Waited { is_present: self.wait_for(page, repeats)? });
            }
            Found::Resident(seen) => return self.map_again(lanes, page, seen, repeats),
            Found::Stored(block) => {
                // None: other threads have all that could leave the cache. The store is not full.
                let mut slot = self.slot_in_fault(page, moves)?;
                if slot.is_none() {
                    return Ok(Step::Again);
                }
                // It goes to the slot: no page is installed for it.
                let mut reserved = self.residency.frames.page_buffer.adopt(1);
                let fetched = self.fetch(page, block, sequences, &mut reserved, &mut slot)?;
                return Ok(fetched.map_or(Step::Again, Step::Fetched));
            }
            Found::Zero => From::Zero,
            Found::Cached(id) => {
                self.asker().go_on_ahead(page, sequences);
                From::Cached(id)
            }
        };
        let step = self.enter_lane(lanes, page, from, exile, moves)?;
        if matches!(step, Step::Served(FaultKind::Cached)) {
            if Window::of(page, sequences.of(page.0)).count == 1 {
                self.asker().ask_next(page, sequences, true);
            }
            sequences.pass(page.0, 1);
        }
        Ok(step)
    }

    /// As `slot_for`, with the patience of `make_room`: objects that need no write may stand behind
    /// those that the store refuses, and what a forked child keeps comes back when it ends.
    fn slot_in_fault(
        &self,
        page: PageNo,
        moves: &mut Moves,
    ) -> Result<Option<Slot<'_>>, FaultError> {
        let mut refused = 0;
        loop {
            // Ask before: a child that ends meanwhile gives back the space that we do not find.
            let withheld = self.residency.store.is_pinned();
            match self.slot_for(page, moves) {
                Err(StoreError::Full) if withheld => return Err(FaultError::Withheld),
                Err(error) if refused * RECLAIM_OBJECTS > self.residency.cache.objects() => {
                    return Err(FaultError::NoRoom(error));
                }
                Err(_) => refused += 1,
                Ok(slot) => return Ok(slot),
            }
            deepheap_sys::threads::thread::yield_now();
        }
    }

    /// Maps an object that is in its lane. It is owned meanwhile: otherwise another thread could
    /// take it out, and we would map the page on what came there instead.
    fn map_again(
        &self,
        lanes: &Lanes,
        page: PageNo,
        seen: Seen,
        repeats: usize,
    ) -> Result<Step, FaultError> {
        let lane = lanes.lane_of(page);
        let _lock = lanes.lock(lane);
        if lanes.occupant(lane) != Some(page) {
            return Ok(Step::Again);
        }
        let Some(owned) = self.residency.ownership.claim_resident(page, seen.id()) else {
            return Ok(Step::Again);
        };
        let mapped = self.residency.frames.map_shared(page);
        self.residency.ownership.put_back(owned);
        match mapped.map_err(FaultError::Install)? {
            Copy::Exists if repeats >= PRESENT_MAX => Err(FaultError::Install(Errno::EEXIST)),
            Copy::Exists => Ok(Step::Waited { is_present: true }),
            Copy::Done | Copy::Partial(_) => Ok(Step::Served(FaultKind::Cached)),
        }
    }

    /// Brings an object from the cache, or a fresh one, to its lane, or to exile.
    fn enter_lane(
        &self,
        lanes: &Lanes,
        page: PageNo,
        from: From,
        exile: &mut Exile<'_>,
        moves: &mut Moves,
    ) -> Result<Step, FaultError> {
        if let Exile::Ready(reserved) = exile {
            let Some(owned) = self.claim_from(page, from) else { return Ok(Step::Again) };
            self.exile(lanes, page, from, owned, reserved)?;
            *exile = Exile::Possible;
            return Ok(Step::Served(kind_of(from)));
        }
        let mut spare = None;
        if let Some(occupant) = lanes.occupant(lanes.lane_of(page))
            && self.slot_left_by(lanes, page, from, occupant).is_none()
        {
            spare = match from {
                From::Zero => self.slot_in_fault(occupant, moves)?,
                // An object in RAM stays usable when nothing can be written.
                From::Cached(_) => self.slot_for(occupant, moves).unwrap_or(None),
            };
            if spare.is_none() {
                return Ok(Step::NeedsPage);
            }
        }
        self.exchange(lanes, page, from, spare, moves)
    }

    /// Brings an object to its lane. The occupant of the lane goes to the slot that the newcomer
    /// leaves, or else to the spare one.
    fn exchange(
        &self,
        lanes: &Lanes,
        page: PageNo,
        from: From,
        spare: Option<Slot<'_>>,
        moves: &mut Moves,
    ) -> Result<Step, FaultError> {
        let lane = lanes.lane_of(page);
        let lock = lanes.lock(lane);
        let Some(newcomer) = self.claim_from(page, from) else { return Ok(Step::Again) };
        let Some(occupant) = lanes.occupant(lane) else {
            return self.fill_lane(lanes, page, from, newcomer).0.map(Step::Served);
        };
        debug_assert_ne!(occupant, page, "a resident object is claimed as another");
        let kept = self.residency.kept_bytes(occupant);
        let takes_left = self.slot_left_by(lanes, page, from, occupant).is_some();
        let spare = spare.filter(|slot| slot.bytes() >= kept);
        if !takes_left && spare.is_none() {
            // Another object has the lane by now, and wants another slot.
            self.return_to(from, newcomer);
            return Ok(Step::Again);
        }
        let leaving = match self.unmap_occupant(lanes, lane, occupant) {
            Ok(leaving) => leaving,
            Err(stays) => {
                self.return_to(from, newcomer);
                drop(lock);
                if stays == Stays::Pinned {
                    return Ok(Step::NeedsPage);
                }
                if let Some(seen) = self.residency.ownership.seen_on_its_way(occupant) {
                    self.residency.ownership.wait(seen);
                }
                return Ok(Step::Again);
            }
        };
        let mut bytes = [0; LANE_BYTES];
        // SAFETY: the lane is ours: its lock is held, and nobody has it mapped.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(lanes.bytes_of(lane), LANE_BYTES) };
        let (entered, left) = self.fill_lane(lanes, page, from, newcomer);
        // With `takes_left` the newcomer is cached and not exiled: it leaves its slot even if it
        // cannot be mapped. Without, there is a spare.
        let Some(slot) = left.filter(|_| takes_left).or(spare) else {
            unreachable!("a newcomer from the cache leaves a slot");
        };
        self.publish_left(leaving, &bytes[..kept], slot, moves);
        entered.map(Step::Served)
    }

    fn claim_from(&self, page: PageNo, from: From) -> Option<Owned> {
        match from {
            From::Zero => self.residency.ownership.claim_fresh(page),
            From::Cached(id) => self.residency.ownership.claim_cached(page, id),
        }
    }

    /// Publishes an object that was claimed as it was.
    fn return_to(&self, from: From, owned: Owned) {
        match from {
            From::Zero => self.residency.ownership.zero(owned),
            From::Cached(_) => self.residency.ownership.cached(owned),
        }
    }

    /// The slot that the newcomer leaves when it comes to its lane, if the occupant fits there. The
    /// object of an exiled page keeps its slot until its window is mapped. A hint until the
    /// newcomer is owned.
    fn slot_left_by(
        &self,
        lanes: &Lanes,
        page: PageNo,
        from: From,
        occupant: PageNo,
    ) -> Option<u32> {
        let slot = self.slot_of(from).filter(|_| !lanes.is_exiled(page))?;
        (self.residency.cache.slot_bytes(slot) >= self.residency.kept_bytes(occupant))
            .then_some(slot)
    }

    /// The slot of an object that is cached.
    fn slot_of(&self, from: From) -> Option<u32> {
        match from {
            From::Zero => None,
            From::Cached(id) => Some(self.residency.ownership.descriptor(id).slot()),
        }
    }

    /// Puts an owned object into its lane, whose lock is held and which is empty, and maps it.
    /// Answers besides the slot that it has left.
    fn fill_lane(
        &self,
        lanes: &Lanes,
        page: PageNo,
        from: From,
        owned: Owned,
    ) -> (Result<FaultKind, FaultError>, Option<Slot<'_>>) {
        let lane = lanes.lane_of(page);
        let (to, kept) = (lanes.bytes_of(lane), self.residency.kept_bytes(page));
        debug_assert!(kept <= LANE_BYTES, "{kept} bytes in a lane");
        let slot = self.slot_of(from);
        // SAFETY: the lane is ours: its lock is held, and nobody has it mapped; the slot is the
        // object's, which is owned.
        unsafe {
            match slot {
                None => to.write_bytes(0, kept),
                Some(slot) => to.copy_from_nonoverlapping(self.residency.cache.address(slot), kept),
            }
        }
        if lanes.is_exiled(page) {
            // The window comes back. Until it is registered a touch maps what is in the lane: the
            // object.
            let address = self.residency.frames.address_of(page);
            // SAFETY: the page's own mapping, which is empty: its object is elsewhere, and owned.
            if let Err(errno) = unsafe { lanes.map(page, 1, address) } {
                self.return_to(from, owned);
                return (Err(FaultError::Install(errno)), None);
            }
            lanes.set_exiled(page, false);
            if self.residency.frames.register_shared(page, 1).is_err() {
                self.keep_for_ever(&owned);
            }
        }
        self.note_found(self.residency.ownership.of(&owned));
        lanes.set_occupant(lane, Some(page));
        let mapped = self.residency.frames.map_shared(page);
        let left = slot.map(|slot| self.residency.cache.slot(slot));
        self.residency.ownership.arrive_in_lane(owned);
        // If it is not mapped it is in its lane all the same.
        (mapped.map(|_| kind_of(from)).map_err(FaultError::Install), left)
    }

    /// Exiles an owned object: it gets a page of the page buffer.
    fn exile(
        &self,
        lanes: &Lanes,
        page: PageNo,
        from: From,
        owned: Owned,
        reserved: &mut Reserved<'_>,
    ) -> Result<(), FaultError> {
        let residency = &self.residency;
        let (offset, kept) = (residency.heap.kept_offset(page), residency.kept_bytes(page));
        let slot = self.slot_of(from);
        // SAFETY: for a page of the caller's, all zeros; the slot is the object's, which is owned.
        let fill = |to: *mut u8| unsafe {
            match slot {
                Some(slot) => {
                    to.add(offset).copy_from_nonoverlapping(residency.cache.address(slot), kept);
                }
                // A page that nobody has written would not be there.
                None => to.write_volatile(0),
            }
        };
        let refused = match lanes.is_exiled(page) {
            true => {
                let staging = residency.take_staging(PAGE);
                // SAFETY: the staging page is ours alone, and a page long; the page is registered.
                unsafe {
                    staging.address().write_bytes(0, PAGE);
                    fill(staging.address());
                    residency.frames.copy_in(page, 1, staging.address(), |_| {}).refused
                }
            }
            false => {
                residency.frames.ranges.enter(page);
                let address = residency.frames.address_of(page);
                // SAFETY: the page is the object's alone, which is not mapped, and owned.
                let made = unsafe { mapping::replace_page(address as *mut u8, fill) };
                match made {
                    Ok(()) => {
                        lanes.set_exiled(page, true);
                        if residency.frames.register(address, PAGE).is_err() {
                            self.keep_for_ever(&owned);
                        }
                    }
                    Err(_) => residency.frames.ranges.leave(page),
                }
                made.err()
            }
        };
        if let Some(errno) = refused {
            self.return_to(from, owned);
            return Err(FaultError::Install(errno));
        }
        self.note_found(residency.ownership.of(&owned));
        match from {
            From::Zero => residency.to_resident(owned, Rank::Probation, reserved),
            From::Cached(_) => residency.cached_to_resident(owned, Rank::Probation, reserved),
        }
        Ok(())
    }

    /// The kernel has mapped a page and does not watch it: it must never leave.
    #[cold]
    fn keep_for_ever(&self, owned: &Owned) {
        self.residency.ownership.of(owned).add_pin(Pin::Long);
        say(&[Piece::Text("a small object stays in RAM: the kernel does not watch its page")]);
    }

    /// Brings an exiled page whose object is not in the page buffer back to its window.
    fn bring_one_home(&self, lanes: &Lanes, moves: &mut Moves) {
        const LOOKS: usize = 64;
        for _ in 0..LOOKS {
            let Some(page) = lanes.next_exiled(self.residency.frames.managed_spans()) else {
                return;
            };
            if matches!(self.residency.ownership.peek(page), Some(Place::Busy(_) | Place::Lost)) {
                continue; // it is here
            }
            let mut sequences = Sequences::default();
            // An error is reported to the next thread that touches the page.
            let _ = self.bring_to_lane(lanes, page, &mut sequences, Exile::Never, 0, moves);
            return;
        }
    }
}

fn kind_of(from: From) -> FaultKind {
    match from {
        From::Zero => FaultKind::Zero,
        From::Cached(_) => FaultKind::Cached,
    }
}
