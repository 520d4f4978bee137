//! Objects: allocation of objects on pages of their own, and access to them without page faults.
//!
//! Guarantees: the calls agree with plain pointers that other threads use at the same time.
//! Never: panics on bad input.
//! Threads: any, outside the fault path.

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

/// Allocates `count` objects of `size` bytes; null means ENOMEM.
pub fn allocate(_count: usize, _size: usize) -> *mut u8 {
    core::ptr::null_mut()
}

/// Bytes from one element of an array of objects to the next.
pub fn stride(size: usize) -> usize {
    size
}

/// Copies bytes of the object to `buffer`.
///
/// # Safety
/// `object` is live; `buffer` has room for `length` bytes.
pub unsafe fn read(
    _object: *const u8,
    _offset: usize,
    _buffer: *mut u8,
    _length: usize,
) -> Result<(), ObjectError> {
    Err(ObjectError::Resources)
}

/// Copies bytes from `buffer` into the object.
///
/// # Safety
/// `object` is live; `buffer` holds `length` bytes.
pub unsafe fn write(
    _object: *mut u8,
    _offset: usize,
    _buffer: *const u8,
    _length: usize,
) -> Result<(), ObjectError> {
    Err(ObjectError::Resources)
}

/// Copies `length` bytes of each object, packed, to `buffer`.
///
/// # Safety
/// The objects are live; `buffer` has room for `count * length` bytes.
pub unsafe fn gather(
    _objects: *const *const u8,
    _count: usize,
    _offset: usize,
    _length: usize,
    _buffer: *mut u8,
) -> Result<usize, ObjectError> {
    Err(ObjectError::Resources)
}

/// Copies `length` bytes for each object, packed in `buffer`, into the objects.
///
/// # Safety
/// The objects are live; `buffer` holds `count * length` bytes.
pub unsafe fn scatter(
    _objects: *const *mut u8,
    _count: usize,
    _offset: usize,
    _length: usize,
    _buffer: *const u8,
) -> Result<usize, ObjectError> {
    Err(ObjectError::Resources)
}

/// Starts to bring the objects into RAM; answers how many were started.
///
/// # Safety
/// The objects are live.
pub unsafe fn prefetch(_objects: *const *const u8, _count: usize) -> Result<usize, ObjectError> {
    Err(ObjectError::Resources)
}

/// Keeps the object in RAM, touchable without a fault, until `unpin`.
pub fn pin(_object: *const u8) -> Result<(), ObjectError> {
    Err(ObjectError::Resources)
}

/// Ends one `pin`.
pub fn unpin(_object: *const u8) -> Result<(), ObjectError> {
    Err(ObjectError::Resources)
}

/// Tells how the object will be used.
pub fn advise(_object: *const u8, _advice: Advice) -> Result<(), ObjectError> {
    Err(ObjectError::Resources)
}
