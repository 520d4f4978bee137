//! Access: reads and writes objects for the program without page faults, many at a time.
//!
//! An object in the page buffer is read and written there, through the mapping; a cached one in its
//! slot. A stored one is brought into the object cache first, many reads at a time so that
//! the device's queue is full. The program's own buffers are never touched here: bytes go through
//! an `AccessBuffer`, because a thread that owns an object must not fault.
//!
//! Guarantees: agrees with plain pointers that other threads use at the same time: an object is
//! owned, or pinned in the page buffer, while its bytes are copied. Of two pieces of one call
//! that name the same object the later one is done second. Memory is bounded by `CALL_PIECES`.
//! Never: allocates; waits for room in the log, or for another object, while it owns one.
//! Threads: any, outside the fault path, with all signals blocked: a signal handler that touched an
//! object which its own thread owns would wait for ever.

use deepheap_heap::PageNo;
use deepheap_store::StoreError;
use deepheap_sys::errno::Errno;
use deepheap_sys::signals::Blocked;

use crate::PAGE;
use crate::balancer::Balancer;
use crate::counters::Counted;
use crate::flight::{Flight, Landed};
use crate::gate::Level;
use crate::install::page_at;
use crate::moves::Moves;
use crate::ownership::{CameBy, Descriptor, Flag, Found, Owned, Pin, Place, UNKNOWN_HASH};
use crate::pager::Pager;
use crate::policy::replacement;
use crate::promises::NoPromise;
use crate::staging::{CALL_PIECES, StagingBuffer};

/// A set of pieces of a call, a bit each, by position.
pub(crate) type Pieces = u64;

const _: () = assert!(CALL_PIECES <= Pieces::BITS as usize);

/// What to do with the bytes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// From the object to the buffer.
    Read,
    /// From the buffer to the object.
    Write,
    /// Into DRAM, no further, for this reason.
    Fetch(CameBy),
}

impl Operation {
    fn only_fetches(self) -> bool {
        matches!(self, Operation::Fetch(_))
    }
}

/// Consecutive bytes of one page of the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where they begin, an address of managed memory.
    pub address: usize,
    /// How many there are; all on the page of the first.
    pub length: usize,
}

/// Why an access stopped, and at which piece of the call; those before it are done.
#[derive(Clone, Copy, Debug)]
pub struct AccessError {
    /// The index of the first piece that is not done.
    pub piece: usize,
    /// Why.
    pub reason: AccessReason,
}

/// See `AccessError`.
#[derive(Clone, Copy, Debug)]
pub enum AccessReason {
    /// The address is not managed.
    NotManaged,
    /// The object ends before.
    OutOfBounds,
    /// The object could not be read: device error, or bytes that fail their checksum.
    Unreadable(StoreError),
    /// Nothing can leave the object cache, because the store takes no more writes.
    NoRoom(StoreError),
}

/// Pinned memory for the bytes of a call's pieces.
pub struct AccessBuffer<'a>(StagingBuffer<'a>);

impl AccessBuffer<'_> {
    /// Where the bytes of the piece with this index go, or come from: a page.
    pub fn bytes(&self, piece: usize) -> *mut u8 {
        debug_assert!(piece < CALL_PIECES);
        // SAFETY: the first half of the buffer has a page for each piece.
        unsafe { self.0.address().add(piece * PAGE) }
    }

    /// Where blocks are read to: a page for each piece.
    fn blocks(&self) -> *mut u8 {
        // SAFETY: the second half of the buffer.
        unsafe { self.0.address().add(CALL_PIECES * PAGE) }
    }
}

/// The progress of a piece.
#[derive(Clone, Copy)]
enum Progress {
    Done,
    /// Claimed, and in the call's flight.
    Reading,
    /// Another thread owns its object, or it needs a slot.
    Later,
    /// Its object cannot be read.
    Damaged(StoreError),
}

/// One call and its progress. All of its pieces lie in managed memory, within their objects.
struct Call<'a> {
    operation: Operation,
    pieces: &'a [Piece],
    buffer: &'a AccessBuffer<'a>,
    slots: [Option<u32>; CALL_PIECES],
    /// The objects to be read, and for which piece each.
    flight: Flight<CALL_PIECES>,
    piece_of: [u8; CALL_PIECES],
}

impl Pager {
    /// A buffer for `access`. The fault path never takes one, so the holder may fault.
    pub fn access_buffer(&self) -> AccessBuffer<'_> {
        AccessBuffer(self.staging.access.take())
    }

    /// Does `operation` with up to `CALL_PIECES` pieces. Blocks all signals meanwhile.
    pub fn access(
        &self,
        operation: Operation,
        pieces: &[Piece],
        buffer: &AccessBuffer<'_>,
        moves: &mut Moves,
    ) -> Result<(), AccessError> {
        let pieces = &pieces[..pieces.len().min(CALL_PIECES)];
        let _blocked = Blocked::all();
        // The table knows pages of plain spans only once they are taken over.
        self.take_over_spans();
        self.stage(&buffer.0, 2 * pieces.len() * PAGE, moves);
        self.limit_table(moves);
        let _passage = self.gate.enter(Level::Mover);
        let (good, bad) = self.good_pieces(pieces);
        let (slots, piece_of) = ([None; CALL_PIECES], [0; CALL_PIECES]);
        let (pieces, flight) = (&pieces[..good], Flight::new());
        let mut call = Call { operation, pieces, buffer, slots, flight, piece_of };
        let done = self.access_call(&mut call, moves);
        for slot in call.slots.into_iter().flatten() {
            self.cache.give_back(slot);
        }
        self.signal_eviction();
        // The bad piece comes after all that were tried.
        done.and(bad.map_or(Ok(()), Err))
    }

    /// Sets the reuse count of the object of a page, up to `REUSE_MAX`, or to `ONCE`. A hint.
    pub fn advise(&self, address: usize, reuse: u8) {
        let Some(page) = self.managed_page(address) else { return };
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        if let Some(Place::Cached(id) | Place::Busy(id)) = self.ownership.peek(page) {
            // The object may have left meanwhile: then the policy misjudges another one a little.
            self.ownership.descriptor(id).set_reuse(reuse);
        }
    }

    /// How many pieces come before the first bad one, and what is wrong with that one.
    fn good_pieces(&self, pieces: &[Piece]) -> (usize, Option<AccessError>) {
        for (piece, &Piece { address, length }) in pieces.iter().enumerate() {
            let reason = match self.managed_page(address) {
                None => AccessReason::NotManaged,
                Some(page) => match self.offset_in_object(page, Piece { address, length }) {
                    Some(_) => continue,
                    None => AccessReason::OutOfBounds,
                },
            };
            return (piece, Some(AccessError { piece, reason }));
        }
        (pieces.len(), None)
    }

    /// Where a piece begins in the object of its page, from the first kept byte on; None if it is
    /// not within the object.
    pub(crate) fn offset_in_object(&self, page: PageNo, piece: Piece) -> Option<usize> {
        let offset = (piece.address % PAGE).checked_sub(self.heap.kept_offset(page))?;
        (offset + piece.length <= self.kept_bytes(page)).then_some(offset)
    }

    fn access_call(&self, call: &mut Call<'_>, moves: &mut Moves) -> Result<(), AccessError> {
        let count = call.pieces.len();
        let bulk = match call.operation {
            Operation::Write => self.write_in_bulk(call.pieces, call.buffer, moves),
            _ => 0,
        };
        let is_done = |index: usize| bulk & (1 << index) != 0;
        // Take slots first, while nothing is owned: reclaim may wait for the log. A piece without a
        // slot is done now if it needs none, and later otherwise.
        for index in 0..count {
            let page = self.frames.page_at(call.pieces[index].address);
            if !is_done(index) && self.wants_slot(call.operation, page) {
                call.slots[index] = self.slot_for(page, moves).unwrap_or(None);
            }
        }
        let mut later: Pieces = 0;
        let mut damaged: Option<AccessError> = None;
        for index in (0..count).filter(|&index| !is_done(index)) {
            // An earlier piece of the same object that has to wait goes first.
            let page = |piece: &Piece| piece.address / PAGE;
            let before = call.pieces[..index].iter().enumerate();
            let behind = later != 0
                && before
                    .filter(|(at, _)| later & (1 << at) != 0)
                    .any(|(_, piece)| page(piece) == page(&call.pieces[index]));
            let progress = if behind { Progress::Later } else { self.begin_piece(call, index) };
            later |= Pieces::from(matches!(progress, Progress::Later)) << index;
            if let (None, Progress::Damaged(error)) = (damaged, progress) {
                damaged =
                    Some(AccessError { piece: index, reason: AccessReason::Unreadable(error) });
            }
        }
        let failed = [self.read_pieces(call), damaged].into_iter().flatten();
        let mut failed = failed.min_by_key(|failed| failed.piece);
        while later != 0 && failed.is_none_or(|failed| later.trailing_zeros() < failed.piece as u32)
        {
            let index = later.trailing_zeros() as usize;
            later &= later - 1;
            if let Err(reason) = self.do_alone(call, index, moves) {
                failed = Some(AccessError { piece: index, reason });
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether a piece of the page will need a cache slot, as things stand.
    fn wants_slot(&self, operation: Operation, page: PageNo) -> bool {
        match self.ownership.place(page) {
            Place::Zero => operation == Operation::Write,
            Place::Stored(_) => true,
            // What is written lies there as it is. The descriptor may be another object's by now:
            // a hint.
            Place::Cached(id) => {
                operation == Operation::Write && self.ownership.descriptor(id).has(Flag::Compressed)
            }
            Place::Busy(_) | Place::Lost => false,
        }
    }

    /// A cache slot for the object of the page, reclaiming if need be. Owns nothing.
    pub(crate) fn slot_for(
        &self,
        page: PageNo,
        moves: &mut Moves,
    ) -> Result<Option<u32>, StoreError> {
        let bytes = self.kept_bytes(page);
        const RECLAIM_OBJECTS: usize = 64;
        const LOOKS_MAX: usize = 64;
        for _ in 0..LOOKS_MAX {
            if let Some(slot) = self.cache.take(bytes) {
                return Ok(Some(slot));
            }
            if !self.reclaim(RECLAIM_OBJECTS, moves)? {
                // All objects are in the page buffer, or owned.
                self.wake_evictor();
                deepheap_sys::thread::yield_now();
            }
        }
        Ok(None)
    }

    /// Does the piece at once if that needs no read from the device; otherwise claims its object
    /// for reading.
    fn begin_piece(&self, call: &mut Call<'_>, index: usize) -> Progress {
        let page = self.frames.page_at(call.pieces[index].address);
        let writes = call.operation == Operation::Write;
        loop {
            let found = self.ownership.look(page);
            if call.operation.only_fetches() && !matches!(found, Found::Stored(_)) {
                return Progress::Done; // in DRAM, on its way there, or nowhere
            }
            match found {
                Found::Zero if writes => {
                    let Some(slot) = call.slots[index] else { return Progress::Later };
                    if !self.try_promise(page) {
                        return Progress::Later;
                    }
                    let Some(owned) = self.ownership.claim_fresh(page) else {
                        self.end_promise(page);
                        continue;
                    };
                    if !self.slot_fits(call, index, page) {
                        self.end_as_zero(owned);
                        return Progress::Later;
                    }
                    // SAFETY: the slot is ours alone.
                    if let Err(errno) = unsafe { self.read_fresh(page, self.cache.address(slot)) } {
                        self.end_as_zero(owned);
                        return Progress::Damaged(StoreError::Io(errno));
                    }
                    self.sources.take(page);
                    call.slots[index] = None;
                    self.finish_piece(call, index, owned, slot);
                    return Progress::Done;
                }
                Found::Zero if self.sources.cover(page, 1) => {
                    let staging = self.take_staging(PAGE);
                    // It stays `Zero`, so it needs no promise.
                    let Some(owned) = self.ownership.claim_fresh(page) else { continue };
                    // SAFETY: the staging page is ours alone.
                    let read = unsafe { self.read_fresh(page, staging.address()) };
                    self.ownership.zero(owned);
                    if let Err(errno) = read {
                        return Progress::Damaged(StoreError::Io(errno));
                    }
                    self.copy_piece(call, index, staging.address());
                    return Progress::Done;
                }
                Found::Zero => {
                    let (bytes, length) = (call.buffer.bytes(index), call.pieces[index].length);
                    // SAFETY: a page of the buffer is this piece's.
                    unsafe { bytes.write_bytes(0, length) };
                    return Progress::Done;
                }
                Found::Cached(id) => {
                    let Some(owned) = self.ownership.claim_cached(page, id) else { continue };
                    let descriptor = self.ownership.of(&owned);
                    let progress = match descriptor.has(Flag::Compressed) {
                        true => self.do_compressed(call, index, &owned),
                        false => {
                            self.copy_in_slot(call, index, &owned, descriptor.slot());
                            Progress::Done
                        }
                    };
                    if writes {
                        self.cache.provide_spare(descriptor.slot()); // for the next write
                    }
                    descriptor.set_reuse(replacement::touched(descriptor.reuse()));
                    self.ownership.cached(owned);
                    return progress;
                }
                Found::Stored(block) => {
                    if call.slots[index].is_none() && call.operation != Operation::Read {
                        return match writes {
                            true => Progress::Later,
                            false => Progress::Done, // no room: a prefetch is a wish
                        };
                    }
                    let Some(owned) = self.ownership.claim_stored(page, block) else { continue };
                    if !self.slot_fits(call, index, page) {
                        self.ownership.stored(owned, block);
                        continue;
                    }
                    let whole = call.pieces[index].length == self.kept_bytes(page);
                    if let (true, true, Some(slot)) = (writes, whole, call.slots[index]) {
                        call.slots[index] = None;
                        self.finish_piece(call, index, owned, slot);
                        return Progress::Done;
                    }
                    call.piece_of[call.flight.len()] = index as u8;
                    call.flight.push(owned, page, block);
                    return Progress::Reading;
                }
                Found::Lost => return Progress::Damaged(StoreError::Io(Errno::EIO)),
                Found::OnItsWay(_) => return Progress::Later,
                Found::Resident(_) => {
                    let Some(pinned) = self.ownership.try_pin(page, Pin::Call) else { continue };
                    self.copy_piece(call, index, self.resident_bytes(page));
                    self.ownership.descriptor(pinned).drop_pin(Pin::Call);
                    return Progress::Done;
                }
            }
        }
    }

    /// Fills `into` with what an owned page that was `Zero` stands for.
    ///
    /// # Safety
    /// `into` is the owner's alone, and has room for the object.
    unsafe fn read_fresh(&self, page: PageNo, into: *mut u8) -> Result<(), Errno> {
        if self.sources.is_of_file(page) {
            // SAFETY: the caller's promise; an object of a file is a page.
            return unsafe { self.sources.read(page, 1, into) };
        }
        // SAFETY: the caller's promise.
        unsafe { into.write_bytes(0, self.kept_bytes(page)) };
        Ok(())
    }

    /// Whether the slot that was taken for the piece is large enough for its object, which is owned
    /// now: the page may hold another object by now, of another size. If not, gives the slot back.
    fn slot_fits(&self, call: &mut Call<'_>, index: usize, page: PageNo) -> bool {
        match call.slots[index] {
            Some(slot) if self.cache.slot_bytes(slot) < self.kept_bytes(page) => {
                self.cache.give_back(slot);
                call.slots[index] = None;
                false
            }
            _ => true,
        }
    }

    /// Reads all claimed objects at once, and does their pieces.
    fn read_pieces(&self, call: &mut Call<'_>) -> Option<AccessError> {
        if call.flight.len() == 0 {
            return None;
        }
        let mut flight = core::mem::replace(&mut call.flight, Flight::new());
        // SAFETY: the second half of the buffer, which is this thread's alone.
        let mut reads = unsafe { self.begin(&flight, call.buffer.blocks()) };
        // The program has not asked for neighbours: no larger cache would have saved these reads.
        let is_wanted = call.operation != Operation::Fetch(CameBy::Neighbour);
        self.finish(&flight, &mut reads, is_wanted);
        let mut failed: Option<AccessError> = None;
        for at in 0..flight.len() {
            let (piece, block) = (usize::from(call.piece_of[at]), flight.block(at));
            let landed = self.landed(&flight, &reads, at);
            let done =
                landed.and_then(|landed| self.do_landed(call, piece, &mut flight, at, landed));
            match done {
                Ok(()) => {}
                Err(error) => {
                    self.ownership.stored(flight.take(at), block);
                    if failed.is_none_or(|failed| piece < failed.piece) {
                        let reason = AccessReason::Unreadable(error);
                        failed = Some(AccessError { piece, reason });
                    }
                }
            }
        }
        failed
    }

    /// Does the piece of the object `at` of the flight, which was read and matched its checksum,
    /// and publishes it. After an error it is still in the flight.
    fn do_landed(
        &self,
        call: &mut Call<'_>,
        index: usize,
        flight: &mut Flight<CALL_PIECES>,
        at: usize,
        landed: Landed<'_>,
    ) -> Result<(), StoreError> {
        let block = flight.block(at);
        // What is only fetched stays compressed, in a slot of that size.
        if let Landed::Compressed(bytes) = landed
            && call.operation.only_fetches()
            && let Some(slot) = self.cache.take_compressed(bytes)
        {
            let owned = flight.take(at);
            self.ownership.of(&owned).set(Flag::Compressed, true);
            self.finish_fetch(call, owned, slot);
            return Ok(());
        }
        match (landed, call.slots[index]) {
            (Landed::Plain(object), None) => {
                self.copy_piece(call, index, object.as_ptr().cast_mut());
                self.ownership.stored(flight.take(at), block);
            }
            (Landed::Plain(object), Some(slot)) => {
                call.slots[index] = None;
                // SAFETY: the slot is ours alone and has room for the object.
                unsafe {
                    let to = self.cache.address(slot);
                    to.copy_from_nonoverlapping(object.as_ptr(), object.len());
                }
                self.finish_piece(call, index, flight.take(at), slot);
            }
            (Landed::Compressed(_), None) => {
                let staging = self.take_staging(PAGE);
                // SAFETY: the staging page is ours alone.
                let page = unsafe { page_at(staging.address()) };
                self.make_page(flight, at, landed, page)?;
                self.copy_piece(call, index, staging.address());
                self.ownership.stored(flight.take(at), block);
            }
            (Landed::Compressed(_), Some(slot)) => {
                // SAFETY: the slot is ours alone, and `slot_fits`: the object is a page.
                let page = unsafe { page_at(self.cache.address(slot)) };
                self.make_page(flight, at, landed, page)?;
                call.slots[index] = None;
                self.finish_piece(call, index, flight.take(at), slot);
            }
        }
        Ok(())
    }

    /// Does the piece of an owned object that lies compressed in its slot. A write needs the
    /// piece's own slot, where the object lies as it is from then on.
    fn do_compressed(&self, call: &mut Call<'_>, index: usize, owned: &Owned) -> Progress {
        let descriptor = self.ownership.of(owned);
        let staging = self.take_staging(PAGE);
        let (target, new_slot) = match (call.operation, call.slots[index]) {
            (Operation::Write, None) => return Progress::Later,
            (Operation::Write, Some(slot)) if self.cache.slot_bytes(slot) < PAGE => {
                self.cache.give_back(slot);
                call.slots[index] = None;
                return Progress::Later;
            }
            (Operation::Write, Some(slot)) => (self.cache.address(slot), Some(slot)),
            _ => (staging.address(), None),
        };
        // SAFETY: the slot, or the staging page, is ours alone and a page long.
        if let Err(error) = self.unpress(owned, unsafe { page_at(target) }) {
            return Progress::Damaged(error);
        }
        match new_slot {
            None => self.copy_piece(call, index, target),
            Some(slot) => {
                call.slots[index] = None;
                self.cache.give_back(descriptor.slot());
                descriptor.set_slot(slot);
                descriptor.set(Flag::Compressed, false);
                self.cache.set_owner(slot, owned.id());
                self.copy_in_slot(call, index, owned, slot);
            }
        }
        Progress::Done
    }

    /// The owned object's bytes are in the slot: does the piece there, and publishes the object as
    /// cached.
    fn finish_piece(&self, call: &Call<'_>, index: usize, owned: Owned, slot: u32) {
        self.copy_in_slot(call, index, &owned, slot);
        self.finish_fetch(call, owned, slot);
    }

    /// Publishes an owned object, which is in the slot, as cached.
    fn finish_fetch(&self, call: &Call<'_>, owned: Owned, slot: u32) {
        let mut note: fn(&Balancer, &Descriptor) = Balancer::arrives;
        if let Operation::Fetch(came_by) = call.operation {
            self.ownership.of(&owned).set_came_by(came_by);
            match came_by {
                CameBy::Neighbour => note = Balancer::leaves,
                CameBy::Trail => self.count(Counted::TrailBrought, 1),
                CameBy::Itself | CameBy::Scan | CameBy::Followed => {}
            }
        }
        self.put_in_cache(owned, slot, note);
    }

    /// Does the piece in the slot of the owned object. What is written counts as changed: the hash
    /// that would show whether it is costs more than most writes.
    fn copy_in_slot(&self, call: &Call<'_>, index: usize, owned: &Owned, slot: u32) {
        self.copy_piece(call, index, self.cache.address(slot));
        if call.operation == Operation::Write {
            self.drop_backing(owned);
            self.ownership.of(owned).set_hash(UNKNOWN_HASH);
        }
    }

    /// Copies the piece's bytes between the buffer and the object, whose first byte is at `object`.
    fn copy_piece(&self, call: &Call<'_>, index: usize, object: *mut u8) {
        let Piece { address, length } = call.pieces[index];
        let (page, bytes) = (self.frames.page_at(address), call.buffer.bytes(index));
        // SAFETY: the object is owned, or pinned, by the caller, and the piece lies in it (and on
        // one page); the buffer's page is this thread's.
        unsafe {
            let object = object.add(address % PAGE - self.heap.kept_offset(page));
            match call.operation {
                Operation::Read => bytes.copy_from_nonoverlapping(object, length),
                Operation::Write => object.copy_from_nonoverlapping(bytes, length),
                Operation::Fetch(_) => {}
            }
        }
    }

    /// Has a promise at hand for a page that is about to be written for the first time.
    fn have_promise_ready(&self, page: PageNo) -> Result<(), AccessReason> {
        match self.promise(page) {
            Ok(()) => {
                self.end_promise(page);
                Ok(())
            }
            Err(NoPromise::Store(error)) => Err(AccessReason::NoRoom(error)),
            Err(NoPromise::Tables) => Err(AccessReason::NoRoom(StoreError::Full)),
        }
    }

    /// Does one piece that had to wait. Owns nothing while it waits.
    fn do_alone(
        &self,
        call: &mut Call<'_>,
        index: usize,
        moves: &mut Moves,
    ) -> Result<(), AccessReason> {
        let page = self.frames.page_at(call.pieces[index].address);
        loop {
            if call.slots[index].is_none() && self.wants_slot(call.operation, page) {
                call.slots[index] = match self.slot_for(page, moves) {
                    Ok(slot) => slot,
                    Err(_) if call.operation == Operation::Read => None,
                    Err(error) => return Err(AccessReason::NoRoom(error)),
                };
            }
            match self.begin_piece(call, index) {
                Progress::Done => return Ok(()),
                Progress::Damaged(error) => return Err(AccessReason::Unreadable(error)),
                Progress::Reading => {
                    let failed = self.read_pieces(call);
                    return failed.map_or(Ok(()), |error| Err(error.reason));
                }
                Progress::Later => match self.ownership.look(page) {
                    Found::OnItsWay(seen) => self.ownership.wait(seen),
                    Found::Zero => self.have_promise_ready(page)?,
                    Found::Resident(_) | Found::Stored(_) | Found::Cached(_) | Found::Lost => {}
                },
            }
        }
    }
}
