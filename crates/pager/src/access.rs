//! Access: reads and writes objects for the program without page faults, many at a time.
//!
//! What is in the page buffer is read and written there, through the mapping; what is cached, in
//! its slot; what is stored is brought into the object cache first, a window of reads at a time so
//! that the device's queue is full. The program's own buffers are never touched here: bytes go
//! through an `AccessBuffer`, because who owns an object must not fault.
//!
//! Guarantees: agrees with plain pointers that other threads use at the same time: an object is
//! owned, or pinned in the page buffer, while its bytes are copied. Of two pieces of one window
//! that name the same object the later one comes second. Memory is bounded by the window.
//! Never: allocates; waits for room in the log, or for another object, while it owns one.
//! Threads: any, outside the fault path, with all signals blocked: a handler that touched an object
//! which its own thread owns would wait for ever.

use deepheap_heap::PageNo;
use deepheap_store::{Block, BlockRead, ContentHash, StoreError};
use deepheap_sys::signals::Blocked;

use crate::PAGE;
use crate::balancer::Balancer;
use crate::descriptor::{DescriptorId, State};
use crate::evict::Moves;
use crate::gate::Level;
use crate::object_table::Place;
use crate::pager::Pager;
use crate::policy::replacement;
use crate::staging::StagingBuffer;

/// Pieces of a window: what is asked of the device together.
pub const WINDOW_PIECES: usize = 64;

/// Some pieces of a window, a bit each, by position.
pub(crate) type Pieces = u64;

const _: () = assert!(WINDOW_PIECES <= Pieces::BITS as usize);

/// Bytes of an `AccessBuffer`: a page of the program's bytes and a block for each piece.
pub(crate) const ACCESS_BUFFER_BYTES: usize = 2 * WINDOW_PIECES * PAGE;

/// What to do with the bytes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// From the object to the buffer.
    Read,
    /// From the buffer to the object.
    Write,
    /// Into DRAM, no further.
    Fetch,
    /// As `Fetch`, of an object beside one that is wanted.
    FetchBeside,
}

impl Operation {
    fn only_fetches(self) -> bool {
        matches!(self, Operation::Fetch | Operation::FetchBeside)
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

/// Why an access stopped, and at which piece of the window; those before it are done.
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

/// Pinned memory for the bytes of a window's pieces.
pub struct AccessBuffer<'a>(StagingBuffer<'a>);

impl AccessBuffer<'_> {
    /// Where the bytes of the piece with this index go, or come from: a page.
    pub fn bytes(&self, piece: usize) -> *mut u8 {
        debug_assert!(piece < WINDOW_PIECES);
        // SAFETY: the first half of the buffer has a page for each piece.
        unsafe { self.0.address().add(piece * PAGE) }
    }

    /// Where the block of the piece is read to.
    fn block(&self, piece: usize) -> *mut u8 {
        // SAFETY: the second half of the buffer has a page for each piece.
        unsafe { self.0.address().add((WINDOW_PIECES + piece) * PAGE) }
    }
}

/// How far a piece is.
#[derive(Clone, Copy)]
enum Progress {
    Done,
    /// Owned, and to be read from this block.
    Reading(DescriptorId, Block),
    /// Somebody else is moving it, or it wants a slot.
    Later,
}

/// A window on its way. All of its pieces lie in managed memory, within their objects.
struct Window<'a> {
    operation: Operation,
    pieces: &'a [Piece],
    buffer: &'a AccessBuffer<'a>,
    slots: [Option<u32>; WINDOW_PIECES],
}

impl Pager {
    /// A buffer for `access`. The fault path never wants one, so the holder may fault.
    pub fn access_buffer(&self) -> AccessBuffer<'_> {
        AccessBuffer(self.access_staging.take(0))
    }

    /// Does `operation` with up to `WINDOW_PIECES` pieces. Blocks all signals meanwhile.
    pub fn access(
        &self,
        operation: Operation,
        pieces: &[Piece],
        buffer: &AccessBuffer<'_>,
        moves: &mut Moves,
    ) -> Result<(), AccessError> {
        let pieces = &pieces[..pieces.len().min(WINDOW_PIECES)];
        let _blocked = Blocked::all();
        // What was plain is nowhere in the table before it was taken over.
        self.take_over_spans();
        self.stage(&buffer.0, 2 * pieces.len() * PAGE, moves);
        let _passage = self.gate.enter(Level::Mover);
        let (good, bad) = self.good_pieces(pieces);
        let slots = [None; WINDOW_PIECES];
        let mut window = Window { operation, pieces: &pieces[..good], buffer, slots };
        let done = self.access_window(&mut window, moves);
        for slot in window.slots.into_iter().flatten() {
            self.cache.give_back(slot);
        }
        self.signal_eviction();
        // The bad one is behind all that were tried.
        done.and(bad.map_or(Ok(()), Err))
    }

    /// Sets the reuse count of the object of a page, up to `REUSE_MAX`, or to `ONCE`. A hint.
    pub fn advise(&self, address: usize, reuse: u8) {
        let Some(page) = self.managed_page(address) else { return };
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        if let Place::Cached(id) | Place::Busy(id) = self.table.load(page) {
            // The object may have left meanwhile: then another one is judged a little wrong.
            self.descriptors.get(id).set_reuse(reuse);
        }
    }

    /// How many pieces come before the first bad one, and what is wrong with that.
    fn good_pieces(&self, pieces: &[Piece]) -> (usize, Option<AccessError>) {
        for (piece, &Piece { address, length }) in pieces.iter().enumerate() {
            let reason = match self.managed_page(address) {
                None => AccessReason::NotManaged,
                Some(page) if address % PAGE + length > self.unit_bytes(page) => {
                    AccessReason::OutOfBounds
                }
                Some(_) => continue,
            };
            return (piece, Some(AccessError { piece, reason }));
        }
        (pieces.len(), None)
    }

    fn access_window(&self, window: &mut Window<'_>, moves: &mut Moves) -> Result<(), AccessError> {
        let count = window.pieces.len();
        let bulk = match window.operation {
            Operation::Write => self.write_in_bulk(window.pieces, window.buffer, moves),
            Operation::Read | Operation::Fetch | Operation::FetchBeside => 0,
        };
        let is_done = |index: usize| bulk & (1 << index) != 0;
        // Slots first, while nothing is owned: reclaim may wait for the log. Without one, what can
        // be done without is done, and the rest later.
        for index in 0..count {
            let page = self.page_at(window.pieces[index].address);
            if !is_done(index) && self.wants_slot(window.operation, page) {
                window.slots[index] = self.slot_for(page, moves).unwrap_or(None);
            }
        }
        let mut progress = [Progress::Done; WINDOW_PIECES];
        let mut later: Pieces = 0;
        for (index, progress) in progress.iter_mut().enumerate().take(count) {
            if is_done(index) {
                continue;
            }
            // Another piece of the same object that has to wait goes first.
            let page = |piece: &Piece| piece.address / PAGE;
            let before = window.pieces[..index].iter().enumerate();
            let behind = later != 0
                && before
                    .filter(|(at, _)| later & (1 << at) != 0)
                    .any(|(_, piece)| page(piece) == page(&window.pieces[index]));
            *progress = if behind { Progress::Later } else { self.begin_piece(window, index) };
            later |= Pieces::from(matches!(progress, Progress::Later)) << index;
        }
        let mut failed = self.read_pieces(window, &progress[..count]);
        while later != 0 && failed.is_none_or(|failed| later.trailing_zeros() < failed.piece as u32)
        {
            let index = later.trailing_zeros() as usize;
            later &= later - 1;
            if let Err(reason) = self.do_alone(window, index, moves) {
                failed = Some(AccessError { piece: index, reason });
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether a piece of the page will need a cache slot, as things stand.
    fn wants_slot(&self, operation: Operation, page: PageNo) -> bool {
        match self.table.load(page) {
            Place::Zero => operation == Operation::Write,
            Place::Stored(_) => true,
            Place::Cached(_) | Place::Busy(_) => false,
        }
    }

    /// A cache slot for the object of the page, reclaiming if need be. Owns nothing.
    pub(crate) fn slot_for(
        &self,
        page: PageNo,
        moves: &mut Moves,
    ) -> Result<Option<u32>, StoreError> {
        let bytes = self.unit_bytes(page);
        const RECLAIM_OBJECTS: usize = 64;
        const LOOKS_MAX: usize = 64;
        for _ in 0..LOOKS_MAX {
            if let Some(slot) = self.cache.take(bytes) {
                return Ok(Some(slot));
            }
            if self.reclaim(RECLAIM_OBJECTS, moves)? == 0 {
                // Everything is in the page buffer, or on its way.
                self.wake_evictor();
                deepheap_sys::thread::yield_now();
            }
        }
        Ok(None)
    }

    /// Does the piece at once if that needs no device, or claims its object for reading.
    fn begin_piece(&self, window: &mut Window<'_>, index: usize) -> Progress {
        let page = self.page_at(window.pieces[index].address);
        let writes = window.operation == Operation::Write;
        loop {
            let place = self.table.load(page);
            let stored = matches!(place, Place::Stored(_));
            if window.operation.only_fetches() && !stored {
                return Progress::Done; // in DRAM, on its way there, or nowhere
            }
            match place {
                Place::Zero if writes => {
                    let Some(slot) = window.slots[index] else { return Progress::Later };
                    let Some(id) = self.claim_fresh(page) else { continue };
                    if !self.slot_fits(window, index, page) {
                        self.unclaim(page, &[id], |_| Place::Zero);
                        return Progress::Later;
                    }
                    window.slots[index] = None;
                    // SAFETY: the slot is ours alone.
                    unsafe { self.cache.address(slot).write_bytes(0, self.unit_bytes(page)) };
                    self.finish_piece(window, index, id, slot);
                    return Progress::Done;
                }
                Place::Zero => {
                    let (bytes, length) = (window.buffer.bytes(index), window.pieces[index].length);
                    // SAFETY: a page of the buffer is this piece's.
                    unsafe { bytes.write_bytes(0, length) };
                    return Progress::Done;
                }
                Place::Cached(id) => {
                    if !self.table.replace(page, place, Place::Busy(id)) {
                        continue;
                    }
                    let descriptor = self.descriptors.get(id);
                    self.copy_in_slot(window, index, id, descriptor.slot());
                    descriptor.set_reuse(replacement::touched(descriptor.reuse()));
                    self.publish_cached(id);
                    return Progress::Done;
                }
                Place::Stored(block) => {
                    if window.slots[index].is_none() && window.operation != Operation::Read {
                        return match writes {
                            true => Progress::Later,
                            false => Progress::Done, // no room: a prefetch is a wish
                        };
                    }
                    let Some(id) = self.claim_stored(page, block) else { continue };
                    if !self.slot_fits(window, index, page) {
                        self.unclaim(page, &[id], |_| Place::Stored(block));
                        continue;
                    }
                    let whole = window.pieces[index].length == self.unit_bytes(page);
                    if let (true, true, Some(slot)) = (writes, whole, window.slots[index]) {
                        window.slots[index] = None;
                        self.finish_piece(window, index, id, slot);
                        return Progress::Done;
                    }
                    return Progress::Reading(id, block);
                }
                Place::Busy(id) => {
                    if self.descriptors.get(id).state().state() != State::Resident {
                        return Progress::Later;
                    }
                    let Some(pinned) = self.try_pin(page) else { continue };
                    self.copy_piece(window, index, self.address_of(page) as *mut u8);
                    self.descriptors.get(pinned).drop_pin();
                    return Progress::Done;
                }
            }
        }
    }

    /// Whether the slot that was taken for the piece is large enough for its object, now that it is
    /// owned: another one, of another size, may have come to the page since. If not, the slot is
    /// given back.
    fn slot_fits(&self, window: &mut Window<'_>, index: usize, page: PageNo) -> bool {
        match window.slots[index] {
            Some(slot) if self.cache.slot_bytes(slot) < self.unit_bytes(page) => {
                self.cache.give_back(slot);
                window.slots[index] = None;
                false
            }
            _ => true,
        }
    }

    /// Reads what was claimed, all at once, and does those pieces.
    fn read_pieces(&self, window: &mut Window<'_>, progress: &[Progress]) -> Option<AccessError> {
        let mut owned = [(0, DescriptorId(0), Block(0)); WINDOW_PIECES];
        let mut count = 0;
        for (index, progress) in progress.iter().enumerate() {
            if let Progress::Reading(id, block) = *progress {
                owned[count] = (index, id, block);
                count += 1;
            }
        }
        let owned = &owned[..count];
        let mut requests: [BlockRead<'_>; WINDOW_PIECES] = core::array::from_fn(|at| {
            let Some(&(index, id, block)) = owned.get(at) else {
                return BlockRead::packed(Block(0), &mut []);
            };
            // SAFETY: the piece's block page of the buffer, which is this thread's alone.
            let buf = unsafe { core::slice::from_raw_parts_mut(window.buffer.block(index), PAGE) };
            self.block_read(self.descriptors.get(id).page(), block, buf)
        });
        if count > 0 {
            self.store.read(&mut requests[..count]);
        }
        let mut failed: Option<AccessError> = None;
        for (&(index, id, block), request) in owned.iter().zip(&requests) {
            let page = self.descriptors.get(id).page();
            let object = request
                .result
                .and_then(|_| self.object_in(page, request.buf).ok_or(StoreError::Corrupt(block)));
            match object {
                Ok(object) => self.arrive(window, index, id, block, object),
                Err(error) => {
                    self.unclaim(page, &[id], |_| Place::Stored(block));
                    if failed.is_none_or(|failed| index < failed.piece) {
                        let reason = AccessReason::Unreadable(error);
                        failed = Some(AccessError { piece: index, reason });
                    }
                }
            }
        }
        failed
    }

    /// The object was read, and is what it ought to be.
    fn arrive(
        &self,
        window: &mut Window<'_>,
        index: usize,
        id: DescriptorId,
        block: Block,
        object: &[u8],
    ) {
        let descriptor = self.descriptors.get(id);
        let Some(slot) = window.slots[index].take() else {
            self.copy_piece(window, index, object.as_ptr().cast_mut());
            self.unclaim(descriptor.page(), &[id], |_| Place::Stored(block));
            return;
        };
        // SAFETY: the slot is ours alone and has room for the object.
        unsafe {
            self.cache.address(slot).copy_from_nonoverlapping(object.as_ptr(), object.len());
        }
        descriptor.set_hash(ContentHash::of(object));
        self.finish_piece(window, index, id, slot);
    }

    /// The owned object's bytes are in the slot: does the piece there, and publishes the object as
    /// cached.
    fn finish_piece(&self, window: &Window<'_>, index: usize, id: DescriptorId, slot: u32) {
        self.copy_in_slot(window, index, id, slot);
        if window.operation == Operation::FetchBeside {
            self.descriptors.get(id).set_neighbour();
            self.put_in_cache(id, slot, Balancer::arrives_beside);
        } else {
            self.put_in_cache(id, slot, Balancer::arrives);
        }
    }

    /// Does the piece in the slot of the owned object. What was written there is changed, if it
    /// really is: the stored copy is worth nothing then.
    fn copy_in_slot(&self, window: &Window<'_>, index: usize, id: DescriptorId, slot: u32) {
        let bytes = self.cache.address(slot);
        self.copy_piece(window, index, bytes);
        if window.operation != Operation::Write {
            return;
        }
        let descriptor = self.descriptors.get(id);
        let length = self.unit_bytes(descriptor.page());
        // SAFETY: the slot is the owner's alone and holds the object.
        let hash = ContentHash::of(unsafe { core::slice::from_raw_parts(bytes, length) });
        if hash != descriptor.hash() {
            self.drop_home(descriptor);
            descriptor.set_hash(hash);
        }
    }

    /// Copies the piece's bytes between the buffer and the object, whose first byte is at `object`.
    fn copy_piece(&self, window: &Window<'_>, index: usize, object: *mut u8) {
        let Piece { address, length } = window.pieces[index];
        let bytes = window.buffer.bytes(index);
        // SAFETY: the object is owned, or pinned, by the caller, and the piece lies in it (and on
        // one page); the buffer's page is this thread's.
        unsafe {
            let object = object.add(address % PAGE);
            match window.operation {
                Operation::Read => bytes.copy_from_nonoverlapping(object, length),
                Operation::Write => object.copy_from_nonoverlapping(bytes, length),
                Operation::Fetch | Operation::FetchBeside => {}
            }
        }
    }

    /// Does one piece that had to wait; owns nothing while it waits.
    fn do_alone(
        &self,
        window: &mut Window<'_>,
        index: usize,
        moves: &mut Moves,
    ) -> Result<(), AccessReason> {
        let page = self.page_at(window.pieces[index].address);
        loop {
            if window.slots[index].is_none() && self.wants_slot(window.operation, page) {
                window.slots[index] = match self.slot_for(page, moves) {
                    Ok(slot) => slot,
                    Err(_) if window.operation == Operation::Read => None,
                    Err(error) => return Err(AccessReason::NoRoom(error)),
                };
            }
            let progress = self.begin_piece(window, index);
            match progress {
                Progress::Done => return Ok(()),
                Progress::Reading(..) => {
                    let mut alone = [Progress::Done; WINDOW_PIECES];
                    alone[index] = progress;
                    let failed = self.read_pieces(window, &alone);
                    return failed.map_or(Ok(()), |error| Err(error.reason));
                }
                Progress::Later => {
                    if let Place::Busy(id) = self.table.load(page) {
                        let descriptor = self.descriptors.get(id);
                        let seen = descriptor.state();
                        if self.table.load(page) == Place::Busy(id)
                            && seen.state() != State::Resident
                        {
                            descriptor.wait_while(seen);
                        }
                    }
                }
            }
        }
    }
}
