//! Lane fault: a fault on a page whose object lies in a lane.
//!
//! ```text
//!   Zero, Cached   claim it ► take out who has the lane ► fill the lane ► map ► Resident
//!   Resident       it is in its lane and was unmapped: own it, map
//!   Stored         fetch it into the cache, then as above
//! ```
//!
//! Who has the lane leaves for the cache, to the slot of the object that comes if that is large
//! enough: then nothing has to be reclaimed, and objects in RAM stay usable when nothing can be
//! written. The object that comes is *exiled* instead, to a page of the page buffer, if the lane
//! cannot be had: who is there is pinned; or the thread wants both at once, for one instruction
//! (`Lanes::alternates`), which would otherwise take the lane from itself for ever.
//!
//! Guarantees: as `fault`. Of two objects that are owned at once neither is waited for: the second
//! claim is a try.
//! Never: allocates; waits under the lock of a lane, but for a range to be opened (`ranges`).
//! Threads: as `fault`.

use deepheap_heap::{LANE_BYTES, PageNo};
use deepheap_store::StoreError;
use deepheap_sys::log::{Piece, say};
use deepheap_sys::mapping;
use deepheap_sys::userfaultfd::Copy;

use crate::PAGE;
use crate::fault::PRESENT_MAX;
use crate::fault_report::{FaultError, FaultKind, FaultReport, Served};
use crate::gate::Level;
use crate::lane_exit::Stays;
use crate::lanes::{LaneNo, Lanes};
use crate::moves::Moves;
use crate::ownership::{DescriptorId, Found, Owned, Pin, Seen};
use crate::page_buffer::Reserved;
use crate::pager::Pager;
use crate::policy::replacement::Rank;
use crate::policy::sequence::Sequences;

/// How often a fault begins anew, because other threads were faster, before the access is tried
/// again.
const TRIES: usize = 32;
/// From so many exiled pages on, one comes home for each that goes: each costs the kernel two
/// mappings, of which a process has 65,530.
const EXILED_MAX: usize = 8192;

/// What one try came to.
enum Step {
    /// The object is in reach.
    Served(FaultKind),
    /// The page is mapped, and was.
    Present,
    /// Something has changed: look again.
    Again,
    /// The object was fetched into the cache; what `fetch` has told.
    Fetched(Served),
    /// A page of the page buffer is needed, for exile.
    NeedsPage,
}

/// What a fault has at hand.
struct Attempt<'a> {
    /// A slot of the cache for who has the lane.
    spare: Option<u32>,
    /// A page of the page buffer, if one is reserved.
    reserved: Option<Reserved<'a>>,
    /// The object may be exiled.
    may_exile: bool,
    /// It is to be exiled.
    wants_exile: bool,
    repeats: usize,
}

/// Where an object that comes is now.
#[derive(Clone, Copy)]
enum From {
    Zero,
    Cached(DescriptorId),
}

impl Pager {
    /// The lanes, if the page is of a span whose objects lie in lanes.
    pub(crate) fn lanes_of(&self, page: PageNo) -> Option<&Lanes> {
        self.lanes.as_ref().filter(|_| self.heap.is_lane_page(page))
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
        let wants_exile = lanes.alternates(page);
        let mut attempt =
            Attempt { spare: None, reserved: None, may_exile: true, wants_exile, repeats };
        let served = self.bring_to_lane(lanes, page, sequences, &mut attempt, &mut moves);
        if attempt.wants_exile && lanes.exiled_pages() > EXILED_MAX {
            self.bring_one_home(lanes, &mut moves);
        }
        self.signal_eviction();
        served.map(|(served, is_present)| {
            let Served { kind, ahead, passed } = served;
            FaultReport { kind, ahead, passed, moves, is_present }
        })
    }

    /// The tries, and what is needed for them, which is got while nothing is owned.
    fn bring_to_lane<'a>(
        &'a self,
        lanes: &Lanes,
        page: PageNo,
        sequences: &mut Sequences,
        attempt: &mut Attempt<'a>,
        moves: &mut Moves,
    ) -> Result<(Served, bool), FaultError> {
        self.limit_table(moves);
        self.have_frame(lanes, page, moves);
        let mut fetched = None;
        let mut answer = Ok((FaultKind::Waited, false));
        for _ in 0..TRIES {
            if attempt.wants_exile && attempt.may_exile && attempt.reserved.is_none() {
                attempt.reserved = Some(self.reserve_page(moves, 0));
            }
            let passage = self.gate.enter(Level::Mover);
            let step = self.try_lane(lanes, page, sequences, attempt, moves);
            // A fork must find no slot that a thread outside the gate has.
            if let Some(slot) = attempt.spare.take() {
                self.cache.give_back(slot);
            }
            drop(passage);
            match step {
                Ok(Step::Served(kind)) => answer = Ok((kind, false)),
                Ok(Step::Present) => answer = Ok((FaultKind::Waited, true)),
                Ok(Step::Fetched(served)) => {
                    fetched = Some(served);
                    continue;
                }
                Ok(Step::NeedsPage) if attempt.may_exile => {
                    attempt.wants_exile = true;
                    continue;
                }
                Ok(Step::NeedsPage) => {}
                Ok(Step::Again) => continue,
                Err(error) => answer = Err(error),
            }
            break;
        }
        attempt.reserved = None;
        let (kind, is_present) = answer?;
        let served = match (kind, fetched) {
            (FaultKind::Waited, _) | (_, None) => Served { kind, ahead: 0, passed: 1 },
            (_, Some(fetched)) => fetched,
        };
        Ok((served, is_present))
    }

    /// The frame of a page takes RAM from now on, for which this thread makes room.
    fn have_frame(&self, lanes: &Lanes, page: PageNo, moves: &mut Moves) {
        if lanes.has_frame(page) {
            return;
        }
        let reserved = self.reserve_page(moves, 0);
        if lanes.use_frame(page) {
            // Until `rebalance` lowers the limit.
            self.budget.note_staged(reserved.keep());
        }
    }

    fn try_lane(
        &self,
        lanes: &Lanes,
        page: PageNo,
        sequences: &mut Sequences,
        attempt: &mut Attempt<'_>,
        moves: &mut Moves,
    ) -> Result<Step, FaultError> {
        let from = match self.ownership.look(page) {
            Found::Lost => return Err(FaultError::Lost),
            Found::OnItsWay(seen) => {
                self.ownership.wait(seen);
                return Ok(Step::Again);
            }
            Found::Resident(_) if lanes.is_exiled(page) => {
                let is_present = self.wait_for(page, attempt.repeats)?;
                return Ok(if is_present {
                    Step::Present
                } else {
                    Step::Served(FaultKind::Waited)
                });
            }
            Found::Resident(seen) => return self.map_again(lanes, page, seen, attempt),
            Found::Stored(block) => {
                // None: other threads have all that could leave the cache. The store is not full.
                let Some(slot) = self.slot_for(page, moves).map_err(FaultError::NoRoom)? else {
                    return Ok(Step::Again);
                };
                let mut slot = Some(slot);
                // It goes to the slot: no page is installed for it.
                let mut reserved = self.frames.page_buffer.adopt(1);
                let fetched = self.fetch(page, block, sequences, &mut reserved, &mut slot);
                if let Some(slot) = slot {
                    self.cache.give_back(slot);
                }
                return Ok(fetched?.map_or(Step::Again, Step::Fetched));
            }
            Found::Zero => From::Zero,
            Found::Cached(id) => {
                self.go_on_ahead(page, sequences);
                From::Cached(id)
            }
        };
        let step = self.enter_lane(lanes, page, from, attempt, moves)?;
        if matches!(step, Step::Served(FaultKind::Cached)) {
            let window = crate::window::Window::of(page, sequences.of(page.0));
            if window.count == 1 {
                self.ask_next(page, sequences, true);
            }
            sequences.pass(page.0, 1);
        }
        Ok(step)
    }

    /// Maps an object that is in its lane. It is owned meanwhile: otherwise another thread could
    /// take it out, and we would map the page on what came there instead.
    fn map_again(
        &self,
        lanes: &Lanes,
        page: PageNo,
        seen: Seen,
        attempt: &Attempt<'_>,
    ) -> Result<Step, FaultError> {
        let lane = lanes.lane_of(page);
        let _lock = lanes.lock(lane);
        if lanes.occupant(lane) != Some(page) {
            return Ok(Step::Again);
        }
        let Some(owned) = self.ownership.claim_seen(page, seen) else { return Ok(Step::Again) };
        let mapped = self.frames.map_shared(page);
        self.ownership.put_back(owned);
        match mapped {
            Err(errno) => Err(FaultError::Install(errno)),
            Ok(Copy::Exists) if attempt.repeats >= PRESENT_MAX => {
                Err(FaultError::Install(deepheap_sys::errno::Errno::EEXIST))
            }
            Ok(Copy::Exists) => Ok(Step::Present),
            Ok(Copy::Done | Copy::Partial(_)) => Ok(Step::Served(FaultKind::Cached)),
        }
    }

    /// Brings an object from the cache, or a fresh one, to its lane, or to exile.
    fn enter_lane(
        &self,
        lanes: &Lanes,
        page: PageNo,
        from: From,
        attempt: &mut Attempt<'_>,
        moves: &mut Moves,
    ) -> Result<Step, FaultError> {
        let lane = lanes.lane_of(page);
        if attempt.wants_exile
            && let Some(reserved) = &mut attempt.reserved
        {
            let Some(owned) = self.claim_from(page, from) else { return Ok(Step::Again) };
            self.exile(lanes, page, from, owned, reserved)?;
            return Ok(Step::Served(kind_of(from)));
        }
        if let Some(occupant) = lanes.occupant(lane)
            && !self.can_exchange(lanes, page, from, occupant)
        {
            match (self.have_spare(attempt, occupant, moves), from) {
                (Ok(true), _) => {}
                // What is in RAM stays usable when nothing can be written.
                (Ok(false), _) | (Err(_), From::Cached(_)) => return Ok(Step::NeedsPage),
                (Err(error), From::Zero) => return Err(FaultError::NoRoom(error)),
            }
        }
        let lock = lanes.lock(lane);
        let Some(newcomer) = self.claim_from(page, from) else { return Ok(Step::Again) };
        let Some(occupant) = lanes.occupant(lane) else {
            let entered = self.fill_lane(lanes, (page, lane), from, newcomer);
            drop(lock);
            return entered.map(Step::Served);
        };
        debug_assert_ne!(occupant, page, "a resident object is claimed as another");
        let kept = self.kept_bytes(occupant);
        let fits = |slot: u32| self.cache.slot_bytes(slot) >= kept;
        let own_slot = match from {
            // An exiled page's object keeps its slot until its window is mapped.
            From::Cached(id) if !lanes.is_exiled(page) => {
                Some(self.ownership.descriptor(id).slot()).filter(|&slot| fits(slot))
            }
            From::Cached(_) | From::Zero => None,
        };
        let spare = if own_slot.is_some() { None } else { attempt.spare.filter(|&it| fits(it)) };
        let Some(slot) = own_slot.or(spare) else {
            self.return_to(from, newcomer);
            drop(lock);
            // Another object has the lane by now, and wants another slot.
            if let Some(slot) = attempt.spare.take() {
                self.cache.give_back(slot);
            }
            return Ok(Step::Again);
        };
        let leaving = match self.unmap_occupant(lanes, lane, occupant) {
            Ok(leaving) => leaving,
            Err(stays) => {
                self.return_to(from, newcomer);
                drop(lock);
                return Ok(match stays {
                    Stays::Pinned => Step::NeedsPage,
                    Stays::Owned => {
                        if let Some(seen) = self.ownership.seen_on_its_way(occupant) {
                            self.ownership.wait(seen);
                        }
                        Step::Again
                    }
                });
            }
        };
        let mut bytes = [0; LANE_BYTES];
        // SAFETY: the lane is ours: its lock is held, and nobody has it mapped.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(lanes.bytes_of(lane), LANE_BYTES) };
        let keeps_slot = own_slot.is_some();
        let entered = self.fill_lane_keeping(lanes, (page, lane), from, newcomer, keeps_slot);
        if !keeps_slot {
            attempt.spare = None;
        }
        self.publish_left(leaving, &bytes[..kept], slot, moves);
        drop(lock);
        entered.map(Step::Served)
    }

    fn claim_from(&self, page: PageNo, from: From) -> Option<Owned> {
        match from {
            From::Zero => self.ownership.claim_fresh(page),
            From::Cached(id) => self.ownership.claim_cached(page, id),
        }
    }

    /// Publishes an object that was claimed as it was.
    fn return_to(&self, from: From, owned: Owned) {
        match from {
            From::Zero => self.ownership.zero(owned),
            From::Cached(_) => self.ownership.cached(owned),
        }
    }

    /// Whether the occupant can have the slot of the object that comes. A hint.
    fn can_exchange(&self, lanes: &Lanes, page: PageNo, from: From, occupant: PageNo) -> bool {
        let From::Cached(id) = from else { return false };
        let slot = self.ownership.descriptor(id).slot();
        !lanes.is_exiled(page) && self.cache.slot_bytes(slot) >= self.kept_bytes(occupant)
    }

    /// Has a slot for the occupant at hand; false if there is none to be had.
    fn have_spare(
        &self,
        attempt: &mut Attempt<'_>,
        occupant: PageNo,
        moves: &mut Moves,
    ) -> Result<bool, StoreError> {
        let kept = self.kept_bytes(occupant);
        if let Some(slot) = attempt.spare
            && self.cache.slot_bytes(slot) < kept
        {
            self.cache.give_back(slot);
            attempt.spare = None;
        }
        if attempt.spare.is_none() {
            attempt.spare = self.slot_for(occupant, moves)?;
        }
        Ok(attempt.spare.is_some())
    }

    /// Puts an owned object into its lane, which is empty, and maps it. Its slot is free then.
    fn fill_lane(
        &self,
        lanes: &Lanes,
        place: (PageNo, LaneNo),
        from: From,
        owned: Owned,
    ) -> Result<FaultKind, FaultError> {
        self.fill_lane_keeping(lanes, place, from, owned, false)
    }

    /// As `fill_lane`; with `keeps_slot` its slot is the caller's.
    fn fill_lane_keeping(
        &self,
        lanes: &Lanes,
        (page, lane): (PageNo, LaneNo),
        from: From,
        owned: Owned,
        keeps_slot: bool,
    ) -> Result<FaultKind, FaultError> {
        let (to, kept) = (lanes.bytes_of(lane), self.kept_bytes(page));
        debug_assert!(kept <= LANE_BYTES, "{kept} bytes in a lane");
        let slot = match from {
            From::Zero => None,
            From::Cached(_) => Some(self.ownership.of(&owned).slot()),
        };
        // SAFETY: the lane is ours: its lock is held, and nobody has it mapped; the slot is the
        // object's, which is owned.
        unsafe {
            match slot {
                None => to.write_bytes(0, kept),
                Some(slot) => to.copy_from_nonoverlapping(self.cache.address(slot), kept),
            }
        }
        if lanes.is_exiled(page) {
            // The window comes back. Until it is registered a touch maps what is in the lane: the
            // object.
            let address = self.frames.address_of(page);
            // SAFETY: the page's own mapping, which is empty: its object is elsewhere, and owned.
            if let Err(errno) = unsafe { lanes.map(page, 1, address) } {
                debug_assert!(!keeps_slot);
                self.return_to(from, owned);
                return Err(FaultError::Install(errno));
            }
            lanes.set_exiled(page, false);
            if self.frames.register_shared(page, 1).is_err() {
                self.keep_for_ever(&owned);
            }
        }
        self.note_found(self.ownership.of(&owned));
        lanes.set_occupant(lane, Some(page));
        let mapped = self.frames.map_shared(page);
        self.ownership.arrive_in_lane(owned);
        if let Some(slot) = slot.filter(|_| !keeps_slot) {
            self.cache.give_back(slot);
        }
        // If it is not mapped it is in its lane all the same.
        mapped.map(|_| kind_of(from)).map_err(FaultError::Install)
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
        let (offset, kept) = (self.heap.kept_offset(page), self.kept_bytes(page));
        let slot = match from {
            From::Zero => None,
            From::Cached(_) => Some(self.ownership.of(&owned).slot()),
        };
        // SAFETY: for a page of the caller's, all zeros; the slot is the object's, which is owned.
        let fill = |to: *mut u8| unsafe {
            match slot {
                Some(slot) => {
                    to.add(offset).copy_from_nonoverlapping(self.cache.address(slot), kept);
                }
                // A page that nobody has written would not be there.
                None => to.write_volatile(0),
            }
        };
        let refused = match lanes.is_exiled(page) {
            true => {
                let staging = self.take_staging(PAGE);
                // SAFETY: the staging page is ours alone, and a page long; the page is registered.
                unsafe {
                    staging.address().write_bytes(0, PAGE);
                    fill(staging.address());
                    self.frames.copy_in(page, 1, staging.address(), |_| {}).refused
                }
            }
            false => {
                self.frames.ranges.enter(page);
                let address = self.frames.address_of(page);
                // SAFETY: the page is the object's alone, which is not mapped, and owned.
                let made = unsafe { mapping::replace_page(address as *mut u8, fill) };
                match made {
                    Ok(()) => {
                        lanes.set_exiled(page, true);
                        if self.frames.register(address, PAGE).is_err() {
                            self.keep_for_ever(&owned);
                        }
                    }
                    Err(_) => self.frames.ranges.leave(page),
                }
                made.err()
            }
        };
        if let Some(errno) = refused {
            self.return_to(from, owned);
            return Err(FaultError::Install(errno));
        }
        self.note_found(self.ownership.of(&owned));
        if let Some(slot) = slot {
            self.cache.give_back(slot);
        }
        self.ownership.arrive(owned, Rank::Probation);
        reserved.install(1);
        Ok(())
    }

    /// The kernel has mapped a page and does not watch it: it must never leave.
    #[cold]
    fn keep_for_ever(&self, owned: &Owned) {
        self.ownership.of(owned).add_pin(Pin::Long);
        say(&[Piece::Text("a small object stays in RAM: the kernel does not watch its page")]);
    }

    /// Brings an exiled page whose object is not in the page buffer back to its window.
    fn bring_one_home(&self, lanes: &Lanes, moves: &mut Moves) {
        const LOOKS: usize = 64;
        for _ in 0..LOOKS {
            let Some(page) = lanes.next_exiled(self.frames.managed_spans()) else { return };
            let is_here = matches!(
                self.ownership.peek(page),
                Some(crate::ownership::Place::Busy(_) | crate::ownership::Place::Lost)
            );
            if is_here {
                continue;
            }
            let mut sequences = Sequences::default();
            let mut attempt = Attempt {
                spare: None,
                reserved: None,
                may_exile: false,
                wants_exile: false,
                repeats: 0,
            };
            // Who touches it is told what went wrong.
            let _ = self.bring_to_lane(lanes, page, &mut sequences, &mut attempt, moves);
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
