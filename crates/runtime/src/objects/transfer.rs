//! Transfer: moves bytes between objects and a packed buffer of the program, without page faults.
//!
//! What is in RAM is copied at once (`pager/calls/direct`); the rest is collected and read together
//! (`pager/calls/access`).
//!
//! Guarantees: what comes before an object that fails is done.
//! Never: touches the program's buffer while an object is owned.
//! Threads: any, outside the fault path.

use core::ptr;

use deepheap_heap::PAGE;
use deepheap_pager::{
    AccessBuffer, AccessError, AccessReason, CALL_PIECES, Direct, Moves, Operation, Pager, Piece,
};
use deepheap_sys::memory::byte_copy;
use deepheap_sys::threads::signals::open_fault_signal;
use deepheap_sys::threads::tls;

use crate::objects::place::{ObjectError, Place};
use crate::runtime::{Inside, Runtime};
use crate::stats::observe::count_moves;

/// Objects of maps that come into RAM together; they stay until they are copied, as a rule.
const TOGETHER: usize = deepheap_maps::ROWS_MAX;

/// The first object that failed, and why.
type Failure = (usize, ObjectError);

/// What a call is to move: `length` bytes at `offset` of each object, packed in `buffer`.
///
/// Its maker promises that `objects` are `count` live objects, and that `buffer` has
/// `count * length` bytes: room for them, if the operation reads.
pub(super) struct Transfer {
    pub(super) operation: Operation,
    pub(super) objects: *const *const u8,
    pub(super) count: usize,
    pub(super) offset: usize,
    pub(super) length: usize,
    pub(super) buffer: *mut u8,
}

impl Transfer {
    /// Moves the bytes; answers how many objects are done: all, or those before the first that
    /// failed.
    ///
    /// # Safety
    /// The promise above.
    pub(super) unsafe fn run(&self) -> Result<usize, ObjectError> {
        open_fault_signal();
        if self.count == 0 {
            return Ok(0);
        }
        // SAFETY: the caller's promise.
        let done = unsafe {
            match deepheap_maps::owns(*self.objects) {
                true => self.run_in_maps(),
                false => self.run_in_heap(),
            }
        };
        match done {
            Ok(()) => Ok(self.count),
            Err((0, error)) => Err(error),
            Err((index, _)) => Ok(index),
        }
    }

    /// # Safety
    /// As for `run`, and there is an object.
    unsafe fn run_in_heap(&self) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let first = Place::of(unsafe { *self.objects });
        let runtime = first.ok_or((0, ObjectError::NotAnObject))?.runtime;
        let pager = runtime.pager();
        // Only what is not in RAM needs one.
        let mut waiting: Option<Waiting> = None;
        let done = (0..self.count).try_for_each(|index| {
            // SAFETY: the caller's promise.
            let (object, part) =
                unsafe { (*self.objects.add(index), self.buffer.add(index * self.length)) };
            let place = Place { runtime, address: object as usize };
            place.check(self.offset, self.length).map_err(|error| (index, error))?;
            let Some(pager) = pager else {
                // Nothing is managed: ordinary memory.
                // SAFETY: the caller's promise, and the bounds were checked.
                unsafe { self.copy(object, part) };
                return Ok(());
            };
            let begin = place.address + self.offset;
            let (mut at, end) = (begin, begin + self.length);
            while at < end {
                let piece = Piece { address: at, length: (PAGE - at % PAGE).min(end - at) };
                // SAFETY: inside the object's part of the program's buffer.
                let to = unsafe { part.add(at - begin) };
                // Two writes to one object stay in order: none overtakes those that wait.
                let may_overtake = self.operation == Operation::Read
                    || waiting.as_ref().is_none_or(|waiting| waiting.count == 0);
                // SAFETY: as above.
                if may_overtake && unsafe { do_directly(pager, self.operation, piece, to) } {
                    at += piece.length;
                    continue;
                }
                let waiting = waiting.get_or_insert_with(|| Waiting::new(pager, self.operation));
                // SAFETY: as above, for each piece.
                unsafe {
                    match waiting.push(piece, to, index) {
                        true => at += piece.length,
                        false => waiting.flush(runtime)?,
                    }
                }
            }
            Ok(())
        });
        if let Some(waiting) = waiting.as_mut().filter(|waiting| waiting.count > 0) {
            // SAFETY: the caller's promise. What comes before an object that failed is done all
            // the same, and an earlier failure counts.
            unsafe { waiting.flush(runtime) }?;
        }
        done
    }

    /// The same for addresses in maps: what is not in RAM is read side by side, then all is copied.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn run_in_maps(&self) -> Result<(), Failure> {
        let (count, length) = (self.count, self.length);
        // One alone is read when it is touched, and costs nothing more if it is in RAM.
        let gathers = self.operation == Operation::Read && length <= PAGE && count > 1;
        let mut rows = {
            let _inside = Inside::enter();
            vec![0u8; if gathers { count.min(TOGETHER) * length } else { 0 }]
        };
        let done = (0..count).step_by(TOGETHER).try_for_each(|first| {
            let some = first..count.min(first + TOGETHER);
            let mut addresses = [0; TOGETHER];
            for index in some.clone() {
                // SAFETY: the caller's promise.
                let object = unsafe { *self.objects.add(index) };
                let left = deepheap_maps::bytes_from(object);
                let left = left.ok_or((index, ObjectError::NotAnObject))?;
                if self.offset.checked_add(length).is_none_or(|end| end > left) {
                    return Err((index, ObjectError::OutOfBounds));
                }
                addresses[index - first] = object as usize + self.offset;
            }
            let addresses = &addresses[..some.len()];
            let copied = {
                let _inside = Inside::enter();
                match gathers {
                    true => deepheap_maps::gather_absent(addresses, length, &mut rows),
                    false => {
                        deepheap_maps::bring_in(addresses.iter().copied(), length);
                        0
                    }
                }
            };
            for index in some {
                let at = index - first;
                // SAFETY: the caller's promise, and the bounds were checked. Nothing is owned: it
                // may fault.
                unsafe {
                    let part = self.buffer.add(index * length);
                    match copied >> at & 1 {
                        0 => self.copy(*self.objects.add(index), part),
                        _ => part.copy_from_nonoverlapping(rows.as_ptr().add(at * length), length),
                    }
                }
            }
            Ok(())
        });
        let _inside = Inside::enter();
        drop(rows);
        done
    }

    /// Copies through the mapping.
    ///
    /// # Safety
    /// The object has the bytes, and `part` is that of the object.
    unsafe fn copy(&self, object: *const u8, part: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let object = object.cast_mut().add(self.offset);
            match self.operation {
                Operation::Read => part.copy_from_nonoverlapping(object, self.length),
                Operation::Write => object.copy_from_nonoverlapping(part, self.length),
                Operation::Fetch(_) => {}
            }
        }
    }
}

/// Does a piece of an object in RAM; false if only `access` can.
///
/// # Safety
/// The object is live; `part` holds, or has room for, the piece's bytes.
unsafe fn do_directly(pager: &Pager, operation: Operation, piece: Piece, part: *mut u8) -> bool {
    let mapped = piece.address as *mut u8;
    // SAFETY: the caller's promise. Through the mapping the copy faults as a pointer would: nothing
    // is owned. If the fault cannot be served, `access` tells why.
    unsafe {
        let (direct, to, from) = match operation {
            Operation::Read => (pager.read_directly(piece, part), part, mapped.cast_const()),
            _ => (pager.write_directly(piece, part), mapped, part.cast_const()),
        };
        match direct {
            Direct::Done => true,
            Direct::Mapped => byte_copy::copy(to, from, piece.length),
            Direct::Refused => false,
        }
    }
}

/// Pieces that wait to be done in one call of the pager.
struct Waiting {
    pager: &'static Pager,
    operation: Operation,
    buffer: AccessBuffer<'static>,
    pieces: [Piece; CALL_PIECES],
    /// Where the program's bytes of each piece are, and of which object they are.
    parts: [(*mut u8, usize); CALL_PIECES],
    count: usize,
}

impl Waiting {
    fn new(pager: &'static Pager, operation: Operation) -> Waiting {
        Waiting {
            pager,
            operation,
            buffer: pager.access_buffer(),
            pieces: [Piece { address: 0, length: 0 }; CALL_PIECES],
            parts: [(ptr::null_mut(), 0); CALL_PIECES],
            count: 0,
        }
    }

    /// Adds a piece; false if there are as many as a call takes.
    ///
    /// # Safety
    /// `part` holds, or has room for, the piece's bytes.
    unsafe fn push(&mut self, piece: Piece, part: *mut u8, object: usize) -> bool {
        if self.count == CALL_PIECES {
            return false;
        }
        if self.operation == Operation::Write {
            // SAFETY: the caller's promise; the buffer has a page for each piece.
            unsafe {
                self.buffer.bytes(self.count).copy_from_nonoverlapping(part, piece.length);
            }
        }
        self.pieces[self.count] = piece;
        self.parts[self.count] = (part, object);
        self.count += 1;
        true
    }

    /// Does all of them; then none waits.
    ///
    /// # Safety
    /// As for `push`, for all that were pushed.
    unsafe fn flush(&mut self, runtime: &Runtime) -> Result<(), Failure> {
        let mut moves = Moves::default();
        let pieces = &self.pieces[..self.count];
        let done = self.pager.access(self.operation, pieces, &self.buffer, &mut moves);
        count_moves(runtime.stats, tls::lane(), &moves);
        let good = done.map_or_else(|AccessError { piece, .. }| piece, |()| self.count);
        if self.operation == Operation::Read {
            for index in 0..good {
                let bytes = self.buffer.bytes(index);
                // SAFETY: the caller's promise. Nothing is owned: it may fault.
                unsafe {
                    let part = self.parts[index].0;
                    part.copy_from_nonoverlapping(bytes, self.pieces[index].length);
                }
            }
        }
        self.count = 0;
        done.map_err(|AccessError { piece, reason }| {
            let error = match reason {
                AccessReason::NotManaged => ObjectError::NotAnObject,
                AccessReason::OutOfBounds => ObjectError::OutOfBounds,
                AccessReason::Unreadable(_) => ObjectError::Unreadable,
                AccessReason::NoRoom(_) => ObjectError::NoRoom,
            };
            (self.parts[piece].1, error)
        })
    }
}
