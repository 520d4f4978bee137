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
use deepheap_policy::replacement;
use deepheap_residency::contents::page_at;
use deepheap_residency::counters::Counted;
use deepheap_residency::object_cache::Slot;
use deepheap_residency::ownership::{
    CameBy, DescriptorId, Flag, Found, Owned, Pin, Place, UNKNOWN_HASH,
};
use deepheap_residency::promises::NoPromise;
use deepheap_residency::staging::{CALL_PIECES, StagingBuffer};
use deepheap_store::{Block, StoreError};
use deepheap_sys::errno::Errno;
use deepheap_sys::threads::signals::Blocked;

use crate::PAGE;
use crate::fault::flight::{Flight, Landed};
use crate::gate::Level;
use crate::moves::Moves;
use crate::pager::Pager;
use crate::patience::Patience;

/// A set of pieces of a call, a bit each, by position.
pub(crate) type Pieces = u64;

/// Objects that leave the cache together for a slot.
pub(crate) const RECLAIM_OBJECTS: usize = 64;

const _: () = assert!(CALL_PIECES <= Pieces::BITS as usize);

/// The work on the bytes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// From the object to the buffer.
    Read,
    /// From the buffer to the object.
    Write,
    /// Into DRAM, no further, for this reason.
    Fetch(CameBy),
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
    /// Its object has changed since the look: look again.
    Changed,
}

/// The progress of a piece, or why its object cannot be read.
type Begun = Result<Progress, StoreError>;

/// One call and its progress. All of its pieces lie in managed memory, within their objects.
struct Call<'a> {
    operation: Operation,
    pieces: &'a [Piece],
    buffer: &'a AccessBuffer<'a>,
    slots: [Option<Slot<'a>>; CALL_PIECES],
    /// The objects to be read, and for which piece each.
    flight: Flight<CALL_PIECES>,
    piece_of: [u8; CALL_PIECES],
    /// The first piece that could not be done.
    failed: Option<AccessError>,
}

impl Call<'_> {
    /// Gives back the slot that was taken for the piece, if it has no room for so many bytes: those
    /// of the object, which is owned now. The page may hold another one by now, of another size.
    fn drop_small_slot(&mut self, index: usize, bytes: usize) {
        drop(self.slots[index].take_if(|slot| slot.bytes() < bytes));
    }

    fn fail(&mut self, piece: usize, reason: AccessReason) {
        if self.failed.is_none_or(|failed| piece < failed.piece) {
            self.failed = Some(AccessError { piece, reason });
        }
    }
}

impl Pager {
    /// A buffer for `access`. The fault path never takes one, so the holder may fault.
    pub fn access_buffer(&self) -> AccessBuffer<'_> {
        AccessBuffer(self.residency.staging.access.take())
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
        let (slots, piece_of) = ([const { None }; CALL_PIECES], [0; CALL_PIECES]);
        let (pieces, flight) = (&pieces[..good], Flight::new());
        let mut call = Call { operation, pieces, buffer, slots, flight, piece_of, failed: bad };
        self.access_call(&mut call, moves);
        let failed = call.failed;
        drop(call);
        self.signal_eviction();
        failed.map_or(Ok(()), Err)
    }

    /// Sets the reuse count of the object of a page, up to `REUSE_MAX`, or to `ONCE`. A hint.
    pub fn advise(&self, address: usize, reuse: u8) {
        let Some(page) = self.managed_page(address) else { return };
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        if let Some(Place::Cached(id) | Place::Busy(id)) = self.residency.ownership.peek(page) {
            // The object may have left meanwhile: then the policy misjudges another one a little.
            self.residency.ownership.descriptor(id).set_reuse(reuse);
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
        let offset = (piece.address % PAGE).checked_sub(self.residency.heap.kept_offset(page))?;
        (offset + piece.length <= self.residency.kept_bytes(page)).then_some(offset)
    }

    fn access_call<'a>(&'a self, call: &mut Call<'a>, moves: &mut Moves) {
        let count = call.pieces.len();
        let bulk = match call.operation {
            Operation::Write => self.write_in_bulk(call.pieces, call.buffer, moves),
            _ => 0,
        };
        let is_done = |index: usize| bulk & (1 << index) != 0;
        // Take slots first, while nothing is owned: reclaim may wait for the log. A piece without a
        // slot is done now if it needs none, and later otherwise.
        for index in 0..count {
            let page = self.residency.frames.page_at(call.pieces[index].address);
            if !is_done(index) && self.wants_slot(call.operation, page) {
                call.slots[index] = self.slot_for(page, moves).unwrap_or(None);
            }
        }
        let mut later: Pieces = 0;
        for index in (0..count).filter(|&index| !is_done(index)) {
            // An earlier piece of the same object that has to wait goes first.
            let page = |piece: usize| call.pieces[piece].address / PAGE;
            let waits = |piece: usize| later & (1 << piece) != 0 && page(piece) == page(index);
            let is_later = later != 0 && (0..index).any(waits);
            match if is_later { Ok(Progress::Later) } else { self.begin_piece(call, index) } {
                Ok(Progress::Later) => later |= 1 << index,
                Ok(_) => {}
                Err(error) => call.fail(index, AccessReason::Unreadable(error)),
            }
        }
        self.read_pieces(call);
        while later != 0 {
            let index = later.trailing_zeros() as usize;
            later &= later - 1;
            if call.failed.is_some_and(|failed| failed.piece < index) {
                return;
            }
            if let Err(reason) = self.do_alone(call, index, moves) {
                call.fail(index, reason);
            }
        }
    }

    /// Whether a piece of the page will need a cache slot, as things stand.
    fn wants_slot(&self, operation: Operation, page: PageNo) -> bool {
        match self.residency.ownership.place(page) {
            Place::Zero => operation == Operation::Write,
            Place::Stored(_) => true,
            // A written object lies there as it is. The descriptor may be another object's by now:
            // a hint.
            Place::Cached(id) => {
                operation == Operation::Write
                    && self.residency.ownership.descriptor(id).has(Flag::Compressed)
            }
            Place::Busy(_) | Place::Lost => false,
        }
    }

    /// A cache slot for the object of the page, reclaiming if need be. Owns nothing.
    pub(crate) fn slot_for(
        &self,
        page: PageNo,
        moves: &mut Moves,
    ) -> Result<Option<Slot<'_>>, StoreError> {
        let bytes = self.residency.kept_bytes(page);
        const LOOKS_MAX: usize = 64;
        for _ in 0..LOOKS_MAX {
            if let Some(slot) = self.residency.cache.take(bytes) {
                return Ok(Some(slot));
            }
            if !self.reclaim(RECLAIM_OBJECTS, Patience::Waits, moves)? {
                // All objects are in the page buffer, or owned.
                self.workers.wake_evictor();
                deepheap_sys::threads::thread::yield_now();
            }
        }
        Ok(None)
    }

    /// Does the piece at once if that needs no read from the device; otherwise claims its object
    /// for reading.
    fn begin_piece(&self, call: &mut Call<'_>, index: usize) -> Begun {
        let page = self.residency.frames.page_at(call.pieces[index].address);
        loop {
            let found = self.residency.ownership.look(page);
            if matches!(call.operation, Operation::Fetch(_)) && !matches!(found, Found::Stored(_)) {
                return Ok(Progress::Done); // in DRAM, on its way there, or nowhere
            }
            let progress = match found {
                Found::Zero if call.operation == Operation::Write => {
                    self.write_fresh(call, index, page)
                }
                Found::Zero if self.sources.cover(page, 1) => self.read_file(call, index, page),
                Found::Zero => {
                    let (bytes, length) = (call.buffer.bytes(index), call.pieces[index].length);
                    // SAFETY: a page of the buffer is this piece's.
                    unsafe { bytes.write_bytes(0, length) };
                    Ok(Progress::Done)
                }
                Found::Cached(id) => self.do_cached(call, index, page, id),
                Found::Stored(block) => Ok(self.begin_stored(call, index, page, block)),
                Found::Lost => Err(StoreError::Io(Errno::EIO)),
                Found::OnItsWay(_) => Ok(Progress::Later),
                Found::Resident(_) => {
                    let Some(pinned) = self.residency.ownership.try_pin(page, Pin::Call) else {
                        continue;
                    };
                    self.copy_piece(call, index, self.resident_bytes(page));
                    self.residency.ownership.descriptor(pinned).drop_pin(Pin::Call);
                    Ok(Progress::Done)
                }
            };
            if !matches!(progress, Ok(Progress::Changed)) {
                return progress;
            }
        }
    }

    /// Writes the first bytes of an object, in a slot.
    fn write_fresh(&self, call: &mut Call<'_>, index: usize, page: PageNo) -> Begun {
        if call.slots[index].is_none() {
            return Ok(Progress::Later);
        }
        let Some(promise) = self.residency.try_promise(page) else { return Ok(Progress::Later) };
        let Some(owned) = self.residency.claim_promised(promise) else {
            return Ok(Progress::Changed);
        };
        call.drop_small_slot(index, self.residency.kept_bytes(page));
        let Some(slot) = call.slots[index].take() else {
            self.residency.to_zero(owned);
            return Ok(Progress::Later);
        };
        // SAFETY: the slot is ours alone.
        if let Err(errno) = unsafe { self.read_fresh(page, slot.address()) } {
            self.residency.to_zero(owned);
            return Err(StoreError::Io(errno));
        }
        self.sources.take(page);
        self.finish_piece(call, index, owned, slot);
        Ok(Progress::Done)
    }

    /// Reads a page that may be a file's. It stays `Zero`, so it needs no promise.
    fn read_file(&self, call: &Call<'_>, index: usize, page: PageNo) -> Begun {
        let staging = self.residency.take_staging(PAGE);
        let Some(owned) = self.residency.ownership.claim_fresh(page) else {
            return Ok(Progress::Changed);
        };
        // SAFETY: the staging page is ours alone.
        let read = unsafe { self.read_fresh(page, staging.address()) };
        self.residency.ownership.zero(owned);
        read.map_err(StoreError::Io)?;
        self.copy_piece(call, index, staging.address());
        Ok(Progress::Done)
    }

    /// Does the piece of a cached object in its slot.
    fn do_cached(
        &self,
        call: &mut Call<'_>,
        index: usize,
        page: PageNo,
        id: DescriptorId,
    ) -> Begun {
        let Some(owned) = self.residency.ownership.claim_cached(page, id) else {
            return Ok(Progress::Changed);
        };
        let descriptor = self.residency.ownership.of(&owned);
        let mut progress = Ok(Progress::Done);
        match descriptor.has(Flag::Compressed) {
            true => progress = self.do_compressed(call, index, &owned),
            false => {
                let object = self.residency.cache.address(descriptor.slot());
                self.copy_in_slot(call, index, &owned, object);
            }
        }
        if call.operation == Operation::Write {
            self.residency.cache.provide_spare(descriptor.slot()); // for the next write
        }
        descriptor.set_reuse(replacement::touched(descriptor.reuse()));
        self.residency.ownership.cached(owned);
        progress
    }

    /// Does the piece of an owned object that lies compressed in its slot. A write needs the
    /// piece's own slot, where the object lies as it is from then on.
    fn do_compressed(&self, call: &mut Call<'_>, index: usize, owned: &Owned) -> Begun {
        let descriptor = self.residency.ownership.of(owned);
        if call.operation != Operation::Write {
            let staging = self.residency.take_staging(PAGE);
            // SAFETY: the staging page is ours alone.
            self.residency.unpress(owned, unsafe { page_at(staging.address()) })?;
            self.copy_piece(call, index, staging.address());
            return Ok(Progress::Done);
        }
        call.drop_small_slot(index, PAGE);
        let Some(slot) = call.slots[index].take() else { return Ok(Progress::Later) };
        let page = slot.address();
        // SAFETY: the slot is ours alone and a page long.
        self.residency.unpress(owned, unsafe { page_at(page) })?;
        drop(self.residency.change_slot(owned, slot));
        descriptor.set(Flag::Compressed, false);
        self.copy_in_slot(call, index, owned, page);
        Ok(Progress::Done)
    }

    /// Claims a stored object for reading. An object that is written as a whole is not read.
    fn begin_stored(
        &self,
        call: &mut Call<'_>,
        index: usize,
        page: PageNo,
        block: Block,
    ) -> Progress {
        let had_slot = call.slots[index].is_some();
        match call.operation {
            Operation::Write if !had_slot => return Progress::Later,
            Operation::Fetch(_) if !had_slot => return Progress::Done, // it is a wish
            _ => {}
        }
        let Some(owned) = self.residency.ownership.claim_stored(page, block) else {
            return Progress::Changed;
        };
        let kept = self.residency.kept_bytes(page);
        call.drop_small_slot(index, kept);
        if had_slot && call.slots[index].is_none() {
            self.residency.ownership.stored(owned, block);
            return Progress::Changed;
        }
        if call.operation == Operation::Write
            && call.pieces[index].length == kept
            && let Some(slot) = call.slots[index].take()
        {
            self.finish_piece(call, index, owned, slot);
            return Progress::Done;
        }
        call.piece_of[call.flight.len()] = index as u8;
        call.flight.push(owned, page, block);
        Progress::Reading
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
        unsafe { into.write_bytes(0, self.residency.kept_bytes(page)) };
        Ok(())
    }

    /// Reads all claimed objects at once, and does their pieces.
    fn read_pieces(&self, call: &mut Call<'_>) {
        if call.flight.len() == 0 {
            return;
        }
        let mut flight = core::mem::replace(&mut call.flight, Flight::new());
        // SAFETY: the second half of the buffer, which is this thread's alone.
        let mut reads = unsafe { flight.begin(&self.residency, call.buffer.blocks()) };
        // The program has not asked for neighbours: no larger cache would have saved these reads.
        let is_wanted = call.operation != Operation::Fetch(CameBy::Neighbour);
        flight.finish(&self.residency, &self.balancer, &mut reads, is_wanted);
        for at in 0..flight.len() {
            let (piece, block) = (usize::from(call.piece_of[at]), flight.block(at));
            let landed = flight.landed(&self.residency, &reads, at);
            let done =
                landed.and_then(|landed| self.do_landed(call, piece, &mut flight, at, landed));
            if let Err(error) = done {
                self.residency.ownership.stored(flight.take(at), block);
                call.fail(piece, AccessReason::Unreadable(error));
            }
        }
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
        // An object that is only fetched stays compressed, in a slot of that size.
        if let Landed::Compressed(bytes) = landed
            && let Operation::Fetch(_) = call.operation
            && let Some(slot) = self.residency.cache.take_compressed(bytes)
        {
            let owned = flight.take(at);
            self.residency.ownership.of(&owned).set(Flag::Compressed, true);
            self.finish_fetch(call, owned, slot);
            return Ok(());
        }
        let slot = call.slots[index].take();
        let staging;
        let object = match (landed, slot.as_ref().map(Slot::address)) {
            (Landed::Plain(object), None) => object.as_ptr().cast_mut(),
            (Landed::Plain(object), Some(to)) => {
                // SAFETY: the slot is ours alone and has room for the object.
                unsafe { to.copy_from_nonoverlapping(object.as_ptr(), object.len()) };
                to
            }
            (Landed::Compressed(_), None) => {
                staging = self.residency.take_staging(PAGE);
                staging.address()
            }
            (Landed::Compressed(_), Some(to)) => to,
        };
        if let Landed::Compressed(_) = landed {
            // SAFETY: the staging page is ours alone, or the slot, which fits the object: a page.
            flight.make_page(&self.residency, at, landed, unsafe { page_at(object) })?;
        }
        let (block, owned) = (flight.block(at), flight.take(at));
        match slot {
            Some(slot) => self.finish_piece(call, index, owned, slot),
            None => {
                self.copy_piece(call, index, object);
                self.residency.ownership.stored(owned, block);
            }
        }
        Ok(())
    }

    /// The owned object's bytes are in the slot of the piece: does the piece there, and publishes
    /// the object as cached.
    fn finish_piece(&self, call: &Call<'_>, index: usize, owned: Owned, slot: Slot<'_>) {
        self.copy_in_slot(call, index, &owned, slot.address());
        self.finish_fetch(call, owned, slot);
    }

    /// Publishes an owned object, which is in the slot, as cached.
    fn finish_fetch(&self, call: &Call<'_>, owned: Owned, slot: Slot<'_>) {
        let descriptor = self.residency.ownership.of(&owned);
        self.balancer.arrives(descriptor);
        if let Operation::Fetch(came_by) = call.operation {
            descriptor.set_came_by(came_by);
            match came_by {
                CameBy::Neighbour => self.balancer.leaves(descriptor),
                CameBy::Trail => self.residency.count(Counted::TrailBrought, 1),
                CameBy::Itself | CameBy::Scan | CameBy::Followed => {}
            }
        }
        self.residency.to_cached(owned, slot);
    }

    /// Does the piece in the slot of the owned object, which begins at `object`. A written object
    /// counts as changed: the hash that would show whether it is costs more than most writes.
    fn copy_in_slot(&self, call: &Call<'_>, index: usize, owned: &Owned, object: *mut u8) {
        self.copy_piece(call, index, object);
        if call.operation == Operation::Write {
            self.residency.drop_backing(owned);
            self.residency.ownership.of(owned).set_hash(UNKNOWN_HASH);
        }
    }

    /// Copies the piece's bytes between the buffer and the object, whose first byte is at `object`.
    fn copy_piece(&self, call: &Call<'_>, index: usize, object: *mut u8) {
        let Piece { address, length } = call.pieces[index];
        let (page, bytes) = (self.residency.frames.page_at(address), call.buffer.bytes(index));
        // SAFETY: the object is owned, or pinned, by the caller, and the piece lies in it (and on
        // one page); the buffer's page is this thread's.
        unsafe {
            let object = object.add(address % PAGE - self.residency.heap.kept_offset(page));
            match call.operation {
                Operation::Read => bytes.copy_from_nonoverlapping(object, length),
                Operation::Write => object.copy_from_nonoverlapping(bytes, length),
                Operation::Fetch(_) => {}
            }
        }
    }

    /// Does one piece that had to wait. Owns nothing while it waits.
    fn do_alone<'a>(
        &'a self,
        call: &mut Call<'a>,
        index: usize,
        moves: &mut Moves,
    ) -> Result<(), AccessReason> {
        let page = self.residency.frames.page_at(call.pieces[index].address);
        loop {
            if call.slots[index].is_none() && self.wants_slot(call.operation, page) {
                call.slots[index] = match self.slot_for(page, moves) {
                    Ok(slot) => slot,
                    Err(_) if call.operation == Operation::Read => None,
                    Err(error) => return Err(AccessReason::NoRoom(error)),
                };
            }
            match self.begin_piece(call, index).map_err(AccessReason::Unreadable)? {
                Progress::Done => return Ok(()),
                Progress::Reading => {
                    self.read_pieces(call);
                    return Ok(());
                }
                Progress::Later | Progress::Changed => match self.residency.ownership.look(page) {
                    Found::OnItsWay(seen) => self.residency.ownership.wait(seen),
                    // Have a promise at hand.
                    Found::Zero => match self.residency.promise(page) {
                        Ok(promise) => drop(promise),
                        Err(NoPromise::Store(error)) => return Err(AccessReason::NoRoom(error)),
                        Err(NoPromise::Tables) => {
                            return Err(AccessReason::NoRoom(StoreError::Full));
                        }
                    },
                    Found::Resident(_) | Found::Stored(_) | Found::Cached(_) | Found::Lost => {}
                },
            }
        }
    }
}
