//! Objects: allocation of objects on pages of their own, and access to them without page faults.
//!
//! The calls without faults take the address of any live allocation of the heap, and of an element
//! of an array of objects. What is in RAM is copied at once (`pager/direct`), the rest is collected
//! and read together (`pager/access`).
//!
//! Guarantees: the calls agree with plain pointers that other threads use at the same time.
//! Never: panics on bad input; touches the program's buffers while an object is owned.
//! Threads: any, outside the fault path.

pub(crate) mod boxed;

use core::ptr;

use deepheap_heap::{ObjectShape, PAGE, PageNo};
use deepheap_maps::PinKind;
use deepheap_pager::{
    AccessBuffer, AccessError, AccessReason, CALL_PIECES, Direct, Moves, Operation, Pager, Piece,
};
use deepheap_policy::replacement::{ONCE, REUSE_MAX};
use deepheap_sys::memory::byte_copy;
use deepheap_sys::threads::signals::open_fault_signal;
use deepheap_sys::threads::tls;

use crate::memory::allocate::free;
use crate::process::start::start_from_environment;
use crate::runtime::{Inside, Runtime, running, running_at};
use crate::stats::observe::count_moves;

/// Why a call could not be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectError {
    /// The pointer is not a live allocation of this heap.
    NotAnObject,
    /// Offset and length reach beyond the object.
    OutOfBounds,
    /// The device failed, or bytes do not match their checksum.
    Unreadable,
    /// The store takes no more, so nothing can be evicted.
    NoRoom,
    /// Memory or descriptors are lacking.
    Resources,
}

/// Pages of one object that `prefetch` looks at: as many as the pager keeps waiting.
const PAGES_AHEAD: usize = 1024;

/// What is known of how an object will be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Soon and often: keep it in RAM if there is a choice.
    Hot,
    /// Not soon: let it go first.
    Cold,
    /// In address order.
    Sequential,
    /// Once: let it go after the next use.
    Once,
}

/// Allocates `count` objects of `size` bytes, each on pages of its own and, alone, packed to its
/// size in RAM and on the SSD (SSDAlloc, sections 3.1 and 3.4); null means ENOMEM. Elements of an
/// array are `stride(size)` bytes apart. No object at all, or any number of no bytes, counts as
/// one of one byte.
pub fn allocate(count: usize, size: usize) -> *mut u8 {
    let runtime = running().or_else(start_from_environment);
    runtime.map_or(ptr::null_mut(), |runtime| runtime.allocate_objects(count, size))
}

impl Runtime {
    /// As `allocate`, of this heap.
    pub(crate) fn allocate_objects(&'static self, count: usize, size: usize) -> *mut u8 {
        open_fault_signal();
        let (count, size) = if size == 0 { (1, 1) } else { (count.max(1), size) };
        let stride = stride(size);
        if count > 1 && stride < PAGE {
            return count.checked_mul(stride).map_or(ptr::null_mut(), |bytes| self.malloc(bytes));
        }
        if self.is_read_only() {
            return ptr::null_mut();
        }
        let allocated = self.relieved(|| self.heap.allocate_object_array(count, size));
        allocated.map_or(ptr::null_mut(), |allocated| allocated.ptr as *mut u8)
    }
}

/// `realloc` for an array of objects: as many elements as `bytes` reach into, the old ones' bytes
/// kept; null means ENOMEM, and then nothing has changed.
///
/// # Safety
/// `array` is the first element of the live array of the runtime's heap that `shape` describes;
/// dead afterwards.
pub(crate) unsafe fn resize_array(
    runtime: &'static Runtime,
    array: *mut u8,
    shape: ObjectShape,
    bytes: usize,
) -> *mut u8 {
    let count = bytes.div_ceil(shape.stride).max(1);
    if count == shape.count {
        return array;
    }
    let moved = runtime.allocate_objects(count, shape.size);
    if moved.is_null() {
        // Fewer elements fit where they are.
        return if count < shape.count { array } else { moved };
    }
    for index in 0..count.min(shape.count) {
        let offset = index * shape.stride;
        // SAFETY: both arrays have that element, of that size.
        unsafe { moved.add(offset).copy_from_nonoverlapping(array.add(offset), shape.size) };
    }
    // SAFETY: the caller's promise.
    unsafe { free(array) };
    moved
}

/// Bytes from one element of an array of objects of `size` bytes to the next: whole pages, or for
/// less than 128 bytes, of which arrays are memory pages, the size rounded up to 8.
pub fn stride(size: usize) -> usize {
    deepheap_heap::stride(size.max(1))
}

/// Copies `length` bytes at `offset` of the object to `buffer`.
///
/// # Errors
/// [`ObjectError`]; `buffer` may hold a part of the bytes then.
///
/// # Safety
/// `object` is live; `buffer` has room for `length` bytes.
pub unsafe fn read(
    object: *const u8,
    offset: usize,
    buffer: *mut u8,
    length: usize,
) -> Result<(), ObjectError> {
    // SAFETY: the caller's promise, for one object.
    unsafe { gather(&object, 1, offset, length, buffer) }.map(|_| ())
}

/// Copies `length` bytes from `buffer` to `offset` of the object.
///
/// # Errors
/// [`ObjectError`]; a part of the bytes may be written then.
///
/// # Safety
/// `object` is live; `buffer` holds `length` bytes.
pub unsafe fn write(
    object: *mut u8,
    offset: usize,
    buffer: *const u8,
    length: usize,
) -> Result<(), ObjectError> {
    // SAFETY: the caller's promise, for one object.
    unsafe { scatter(&object, 1, offset, length, buffer) }.map(|_| ())
}

/// Copies `length` bytes at `offset` of each object, packed, to `buffer`. Returns how many objects
/// were read: all, or those before the first that failed.
///
/// # Errors
/// [`ObjectError`] of the first object; nothing was read then.
///
/// # Safety
/// The objects are live; `buffer` has room for `count * length` bytes.
pub unsafe fn gather(
    objects: *const *const u8,
    count: usize,
    offset: usize,
    length: usize,
    buffer: *mut u8,
) -> Result<usize, ObjectError> {
    // SAFETY: the caller's promise.
    unsafe { transfer(Operation::Read, objects, count, offset, length, buffer) }
}

/// Copies `length` bytes for each object, packed in `buffer`, to `offset` of the objects. Returns
/// how many objects were written: all, or those before the first that failed.
///
/// # Errors
/// [`ObjectError`] of the first object; nothing was written then.
///
/// # Safety
/// The objects are live; `buffer` holds `count * length` bytes.
pub unsafe fn scatter(
    objects: *const *mut u8,
    count: usize,
    offset: usize,
    length: usize,
    buffer: *const u8,
) -> Result<usize, ObjectError> {
    let (objects, buffer) = (objects.cast::<*const u8>(), buffer.cast_mut());
    // SAFETY: the caller's promise; a write only reads the buffer.
    unsafe { transfer(Operation::Write, objects, count, offset, length, buffer) }
}

/// Starts to bring the objects into RAM, of larger ones as many pages as may wait at a time
/// (1024); a worker does the rest. Returns how many were started: not those that are in
/// RAM already, nor those that find the queue full.
///
/// # Errors
/// `NotAnObject` if one of them lies outside of the heap; none is started then.
///
/// # Safety
/// The objects are live.
pub unsafe fn prefetch(objects: *const *const u8, count: usize) -> Result<usize, ObjectError> {
    open_fault_signal();
    // SAFETY: the caller's promise.
    let address = |index: usize| unsafe { *objects.add(index) } as usize;
    if count == 0 {
        return Ok(0);
    }
    if deepheap_maps::owns(address(0) as *const u8) {
        return prefetch_in_maps((0..count).map(address));
    }
    let runtime = running_at(address(0)).ok_or(ObjectError::NotAnObject)?;
    if (0..count).any(|index| !runtime.heap.contains(address(index))) {
        return Err(ObjectError::NotAnObject);
    }
    let Some(pager) = runtime.pager() else { return Ok(0) };
    const TOGETHER: usize = 256;
    let mut started = 0;
    for first in (0..count).step_by(TOGETHER) {
        // Read before the pager blocks signals: the program's list may lie in managed memory.
        let mut addresses = [0; TOGETHER];
        let mut some = 0;
        for object in (first..count.min(first + TOGETHER)).map(address) {
            let pages = pages_of(object, size_of(runtime, object).unwrap_or(1).max(1));
            if pages.len() == 1 {
                addresses[some] = object;
                some += 1;
            } else {
                started += usize::from(pager.prefetch(pages.take(PAGES_AHEAD)) > 0);
            }
        }
        started += pager.prefetch(addresses[..some].iter().copied());
    }
    Ok(started)
}

/// Keeps the object in RAM, touchable without a fault, until `unpin`.
///
/// # Errors
/// `NotAnObject`; `Resources` if the pinned pages would be more than half of the page buffer, or if
/// memory cannot be managed at all. In a map the page of the address is pinned; there may be pins
/// of a quarter of its RAM.
pub fn pin(object: *const u8) -> Result<(), ObjectError> {
    open_fault_signal();
    if deepheap_maps::owns(object) {
        let pinned = deepheap_maps::pin(object as usize, 1, PinKind::Wish);
        return pinned.map_err(|_| ObjectError::Resources);
    }
    let bytes = bytes_of(object)?;
    // A pin in plain mode would be forgotten when it ends, and the unpin would end another's.
    if running_at(object as usize).and_then(|runtime| runtime.managed()).is_none() {
        return Err(ObjectError::Resources);
    }
    let is_pinned = crate::memory::residency::pin_for_long(object as usize, bytes);
    is_pinned.then_some(()).ok_or(ObjectError::Resources)
}

/// Ends one `pin`.
///
/// # Errors
/// `NotAnObject`.
pub fn unpin(object: *const u8) -> Result<(), ObjectError> {
    if deepheap_maps::owns(object) {
        deepheap_maps::unpin(object as usize, 1);
        return Ok(());
    }
    let bytes = bytes_of(object)?;
    crate::memory::residency::unpin_for_long(object as usize, bytes);
    Ok(())
}

/// Tells how the object will be used. A hint: nothing depends on it but speed.
///
/// # Errors
/// `NotAnObject`.
pub fn advise(object: *const u8, advice: Advice) -> Result<(), ObjectError> {
    let bytes = bytes_of(object)?;
    let runtime = running_at(object as usize);
    let Some(pager) = runtime.and_then(|runtime| runtime.pager()) else { return Ok(()) };
    let pages = pages_of(object as usize, bytes);
    match advice {
        Advice::Hot => {
            pager.prefetch(pages.clone());
            pages.for_each(|page| pager.advise(page, REUSE_MAX));
        }
        Advice::Sequential => {
            pager.prefetch(pages);
        }
        Advice::Cold => pages.for_each(|page| pager.advise(page, 0)),
        Advice::Once => pages.for_each(|page| pager.advise(page, ONCE)),
    }
    Ok(())
}

/// `prefetch` for addresses in maps.
fn prefetch_in_maps(addresses: impl Iterator<Item = usize> + Clone) -> Result<usize, ObjectError> {
    let pointer = |address: usize| address as *const u8;
    if addresses.clone().any(|address| !deepheap_maps::owns(pointer(address))) {
        return Err(ObjectError::NotAnObject);
    }
    let _inside = Inside::enter();
    Ok(addresses.filter(|&address| deepheap_maps::prefetch(pointer(address))).count())
}

/// `transfer` for addresses in maps: what is not in RAM is read side by side, then all is copied.
///
/// # Safety
/// As for `transfer`.
unsafe fn transfer_in_maps(
    operation: Operation,
    objects: *const *const u8,
    count: usize,
    offset: usize,
    length: usize,
    buffer: *mut u8,
) -> Result<usize, ObjectError> {
    // Objects of so many come together; those that come into RAM stay until they are copied, as a
    // rule.
    const TOGETHER: usize = deepheap_maps::ROWS_MAX;
    // One alone is read when it is touched, and costs nothing more if it is in RAM.
    let gathers = operation == Operation::Read && length <= PAGE && count > 1;
    let mut rows = {
        let _inside = Inside::enter();
        vec![0u8; if gathers { count.min(TOGETHER) * length } else { 0 }]
    };
    let done = (0..count).step_by(TOGETHER).try_for_each(|first| {
        let some = first..count.min(first + TOGETHER);
        let mut addresses = [0; TOGETHER];
        for index in some.clone() {
            // SAFETY: the caller's promise.
            let object = unsafe { *objects.add(index) };
            let left = deepheap_maps::bytes_from(object);
            let left = left.ok_or((index, ObjectError::NotAnObject))?;
            if offset.checked_add(length).is_none_or(|end| end > left) {
                return Err((index, ObjectError::OutOfBounds));
            }
            addresses[index - first] = object as usize + offset;
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
            // SAFETY: the caller's promise, and the bounds were checked. Nothing is owned: it may
            // fault.
            unsafe {
                let part = buffer.add(index * length);
                match copied >> at & 1 {
                    0 => copy_plainly(operation, *objects.add(index), offset, part, length),
                    _ => part.copy_from_nonoverlapping(rows.as_ptr().add(at * length), length),
                }
            }
        }
        Ok(())
    });
    let _inside = Inside::enter();
    drop(rows);
    match done {
        Ok(()) => Ok(count),
        Err((0, error)) => Err(error),
        Err((index, _)) => Ok(index),
    }
}

/// Bytes of the live allocation that starts at `object`; from an element of less than 128 bytes,
/// whose own are not known, to the end of its page: the same for as long as it lives.
fn bytes_of(object: *const u8) -> Result<usize, ObjectError> {
    let runtime = running_at(object as usize).ok_or(ObjectError::NotAnObject)?;
    let at = object as usize;
    let to_the_end = || is_inside(runtime, at).then(|| PAGE - at % PAGE);
    size_of(runtime, at).or_else(to_the_end).ok_or(ObjectError::NotAnObject)
}

/// Whether `address` is that of a live object, not of memory pages.
pub fn is_object(address: *const u8) -> bool {
    let runtime = running_at(address as usize);
    runtime.is_some_and(|runtime| runtime.heap.object_at(address as usize).is_some())
}

/// Whether memory pages that are in use are there, and no allocation or free room for one begins:
/// an element of an array of small objects. The caller answers for the bounds.
fn is_inside(runtime: &Runtime, object: usize) -> bool {
    is_in_use(runtime, object)
        && !runtime.heap.is_object_page(page_no(runtime, object))
        && runtime.heap.usable_size(object).is_none()
}

/// Whether a page that is in use is there.
fn is_in_use(runtime: &Runtime, address: usize) -> bool {
    runtime.heap.contains(address) && !runtime.heap.page_is_free(page_no(runtime, address))
}

/// The page of an address of the heap.
fn page_no(runtime: &Runtime, address: usize) -> PageNo {
    PageNo(((address - runtime.region_base) / PAGE) as u32)
}

/// The pages of a range, by their addresses.
fn pages_of(address: usize, bytes: usize) -> impl ExactSizeIterator<Item = usize> + Clone {
    (page_of(address)..address + bytes).step_by(PAGE)
}

/// Where the page of an address begins.
fn page_of(address: usize) -> usize {
    address & !(PAGE - 1)
}

/// Bytes of the live allocation, or of the element of a live array of objects, that starts there.
fn size_of(runtime: &Runtime, object: usize) -> Option<usize> {
    let element = runtime.heap.object_at(object).map(|shape| shape.size);
    element.or_else(|| runtime.heap.allocation_size(object))
}

/// Whether the bytes may be touched: `NotAnObject` or `OutOfBounds` if not.
fn check(
    runtime: &Runtime,
    object: usize,
    offset: usize,
    length: usize,
) -> Result<(), ObjectError> {
    let end = offset.checked_add(length).ok_or(ObjectError::OutOfBounds)?;
    match size_of(runtime, object) {
        Some(bytes) if end > bytes => Err(ObjectError::OutOfBounds),
        Some(_) => Ok(()),
        None if !is_inside(runtime, object) => Err(ObjectError::NotAnObject),
        None => match object.checked_add(end) {
            Some(end) if are_in_use(runtime, object + offset, end) => Ok(()),
            _ => Err(ObjectError::OutOfBounds),
        },
    }
}

/// Whether all pages from the first byte to the last one before `end` are in use; without bytes,
/// the page that comes before. How far an object among them reaches, the pager knows.
fn are_in_use(runtime: &Runtime, first: usize, end: usize) -> bool {
    (page_of(first.min(end - 1))..end).step_by(PAGE).all(|page| is_in_use(runtime, page))
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
    /// # Errors
    /// The first object that failed, and why.
    ///
    /// # Safety
    /// As for `push`, for all that were pushed.
    unsafe fn flush(&mut self, runtime: &Runtime) -> Result<(), (usize, ObjectError)> {
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

/// Moves bytes between objects and the packed buffer.
///
/// # Safety
/// The objects are live; `buffer` holds, or has room for, `count * length` bytes.
unsafe fn transfer(
    operation: Operation,
    objects: *const *const u8,
    count: usize,
    offset: usize,
    length: usize,
    buffer: *mut u8,
) -> Result<usize, ObjectError> {
    open_fault_signal();
    if count == 0 {
        return Ok(0);
    }
    // SAFETY: the caller's promise.
    let first = unsafe { *objects };
    if deepheap_maps::owns(first) {
        // SAFETY: the caller's promise.
        return unsafe { transfer_in_maps(operation, objects, count, offset, length, buffer) };
    }
    let runtime = running_at(first.addr()).ok_or(ObjectError::NotAnObject)?;
    let pager = runtime.pager();
    // Only what is not in RAM needs one.
    let mut waiting: Option<Waiting> = None;
    let mut failed = None;
    'objects: for index in 0..count {
        // SAFETY: the caller's promise.
        let (object, part) = unsafe { (*objects.add(index), buffer.add(index * length)) };
        if let Err(error) = check(runtime, object as usize, offset, length) {
            failed = Some((index, error));
            break;
        }
        let Some(pager) = pager else {
            // Nothing is managed: ordinary memory.
            // SAFETY: the caller's promise, and the bounds were checked.
            unsafe { copy_plainly(operation, object, offset, part, length) };
            continue;
        };
        let (mut at, end) = (object as usize + offset, object as usize + offset + length);
        while at < end {
            let piece = Piece { address: at, length: (PAGE - at % PAGE).min(end - at) };
            // SAFETY: inside the object's part of the program's buffer.
            let to = unsafe { part.add(at - (object as usize + offset)) };
            // Two writes to one object stay in order: none overtakes those that wait.
            let may_overtake = operation == Operation::Read
                || waiting.as_ref().is_none_or(|waiting| waiting.count == 0);
            // SAFETY: as above.
            if may_overtake && unsafe { do_directly(pager, operation, piece, to) } {
                at += piece.length;
                continue;
            }
            let waiting = waiting.get_or_insert_with(|| Waiting::new(pager, operation));
            // SAFETY: as above.
            if unsafe { waiting.push(piece, to, index) } {
                at += piece.length;
                continue;
            }
            // SAFETY: as above, for each piece.
            if let Err(error) = unsafe { waiting.flush(runtime) } {
                failed = Some(error);
                break 'objects;
            }
        }
    }
    if let Some(waiting) = &mut waiting
        && waiting.count > 0
    {
        // SAFETY: as above. What comes before an object that failed is done all the same.
        if let Err(error) = unsafe { waiting.flush(runtime) } {
            failed = Some(error);
        }
    }
    match failed {
        None => Ok(count),
        Some((0, error)) => Err(error),
        Some((done, _)) => Ok(done),
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

/// # Safety
/// Both are `length` bytes long.
unsafe fn copy_plainly(
    operation: Operation,
    object: *const u8,
    offset: usize,
    part: *mut u8,
    length: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let object = object.cast_mut().add(offset);
        match operation {
            Operation::Read => part.copy_from_nonoverlapping(object, length),
            Operation::Write => object.copy_from_nonoverlapping(part, length),
            Operation::Fetch(_) => {}
        }
    }
}
