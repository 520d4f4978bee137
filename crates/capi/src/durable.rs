//! Durable: the `dh_` functions of heaps whose file outlives the process.
//!
//! The handle of a heap is where its memory begins. So it is the same in every process, and can be
//! kept in the heap itself; one that is not open here is refused.
//!
//! Guarantees: a bad argument is answered with NULL or a `DH_E...`, never with a crash; the reason
//! of the last failure of a thread stays readable by `dh_last_error`.
//! Threads: any thread.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use deepheap::{Checkpoint, CheckpointError, DurableHeap, DurableOptions, OpenError};

use crate::allocation::or_enomem;
use crate::error::{DH_EFILE, DH_EINVAL, DH_EMEMORY, set_errno};

/// Bytes of a reason, with the zero at its end.
const REASON_BYTES: usize = 512;

thread_local! {
    /// Why the last call of this thread failed. It needs no drop, so nothing is registered for it.
    static REASON: UnsafeCell<[u8; REASON_BYTES]> = const { UnsafeCell::new([0; REASON_BYTES]) };
}

/// The target of a `dh_heap *`: the memory of the heap.
#[repr(C)]
pub struct Heap([u8; 0]);

/// The struct of `dh_checkpoint_info`; the fields as in deepheap.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckpointInfo {
    /// Checkpoints are counted from 1, the making of the heap.
    pub number: u64,
    /// How long threads that wrote were held up.
    pub pause_ns: u64,
    /// How long all of it took.
    pub time_ns: u64,
    /// Objects that were written for it.
    pub objects: u64,
    /// Bytes of tables that were written for it.
    pub table_bytes: u64,
}

/// Notes why a call failed; returns the code.
pub(crate) fn refuse(reason: &dyn core::fmt::Display, code: c_int) -> c_int {
    explain(reason);
    code
}

/// Notes why a call failed, for `dh_last_error`.
pub(crate) fn explain(reason: &dyn core::fmt::Display) {
    let text = reason.to_string();
    let mut length = text.len().min(REASON_BYTES - 1);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    // SAFETY: the bytes of this thread, to which no reference lasts.
    REASON.with(|bytes| unsafe {
        let bytes = &mut *bytes.get();
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        bytes[length..].fill(0);
    });
}

/// The heap of a handle, if this process has it open.
fn heap_of(handle: *mut Heap) -> Option<DurableHeap> {
    let heap = DurableHeap::at(handle.cast()).filter(|heap| heap.base() == handle.cast());
    if heap.is_none() {
        explain(&match handle.is_null() {
            true => "the heap is NULL",
            false => "this process does not have the heap open: it was closed, or never opened",
        });
    }
    heap
}

/// None for NULL.
///
/// # Safety
/// NULL, or a C string.
pub(crate) unsafe fn text_of<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

pub(crate) fn path_of(text: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(text.to_bytes()))
}

fn code_of(made: Result<Checkpoint, CheckpointError>, info: *mut CheckpointInfo) -> c_int {
    let made = match made {
        Ok(made) => made,
        Err(error) => return refuse(&error, DH_EFILE),
    };
    if !info.is_null() {
        // SAFETY: the caller of `dh_checkpoint` has room for it.
        unsafe {
            info.write(CheckpointInfo {
                number: made.number,
                pause_ns: made.pause.as_nanos() as u64,
                time_ns: made.time.as_nanos() as u64,
                objects: made.objects,
                table_bytes: made.table_bytes,
            });
        }
    }
    0
}

/// Why the last call of this thread on a durable heap or a map failed; "" if none did.
#[unsafe(no_mangle)]
pub extern "C" fn dh_last_error() -> *const c_char {
    REASON.with(|bytes| bytes.get().cast_const().cast())
}

/// Makes or opens a durable heap; NULL and errno if that fails.
///
/// # Safety
/// `path` is a C string; `options` is one or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_open(path: *const c_char, options: *const c_char) -> *mut Heap {
    // SAFETY: the caller's promise.
    let (path, options) = unsafe { (text_of(path), text_of(options)) };
    let open = || {
        let options = options.unwrap_or(c"").to_str();
        let options = options.map_err(|_| OpenError::Options("the options are no UTF-8".into()))?;
        let options = DurableOptions::parse(options)?;
        let path = path.ok_or_else(|| OpenError::Options("the path is NULL".into()))?;
        DurableHeap::open(path_of(path), &options)
    };
    match open() {
        Ok(heap) => heap.base().cast(),
        Err(error) => {
            explain(&error);
            set_errno(error.errno());
            null_mut()
        }
    }
}

/// The result of an allocation in a durable heap. Null: sets errno, EROFS if it was opened for
/// reading alone.
fn or_errno(heap: Option<DurableHeap>, allocated: *mut u8) -> *mut c_void {
    let allocated = or_enomem(allocated);
    if allocated.is_null() && heap.is_some_and(|heap| heap.is_read_only()) {
        set_errno(libc::EROFS);
    }
    allocated
}

/// Allocates `size` bytes of a durable heap.
///
/// # Safety
/// `heap` came from `dh_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_heap_malloc(heap: *mut Heap, size: usize) -> *mut c_void {
    let heap = heap_of(heap);
    or_errno(heap, heap.map_or(null_mut(), |heap| heap.malloc(size)))
}

/// Allocates `size` bytes of a durable heap at a multiple of `align`.
///
/// # Safety
/// As `dh_heap_malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_heap_aligned_alloc(
    heap: *mut Heap,
    align: usize,
    size: usize,
) -> *mut c_void {
    let heap = heap_of(heap).filter(|_| align.is_power_of_two());
    or_errno(heap, heap.map_or(null_mut(), |heap| heap.aligned_alloc(align, size)))
}

/// Allocates `count` objects of a durable heap.
///
/// # Safety
/// As `dh_heap_malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_heap_oalloc(
    heap: *mut Heap,
    count: usize,
    object_size: usize,
) -> *mut c_void {
    let heap = heap_of(heap);
    or_errno(heap, heap.map_or(null_mut(), |heap| heap.allocate_objects(count, object_size)))
}

/// Makes what a heap holds durable; `info`, if it is not NULL, tells what that took.
///
/// # Safety
/// `heap` came from `dh_open`; `info` is NULL or has room for what it points to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_checkpoint_info(heap: *mut Heap, info: *mut CheckpointInfo) -> c_int {
    match heap_of(heap) {
        Some(heap) => code_of(heap.checkpoint(), info),
        None => DH_EINVAL,
    }
}

/// Makes what a heap holds durable.
///
/// # Safety
/// `heap` came from `dh_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_checkpoint(heap: *mut Heap) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { dh_checkpoint_info(heap, null_mut()) }
}

/// Makes a checkpoint and keeps it under a name.
///
/// # Safety
/// `heap` came from `dh_open`; `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_snapshot(heap: *mut Heap, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_snapshot(heap, name, |heap, name| heap.snapshot(name).map(drop)) }
}

/// Keeps a snapshot no longer.
///
/// # Safety
/// As `dh_snapshot`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_remove_snapshot(heap: *mut Heap, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_snapshot(heap, name, |heap, name| heap.remove_snapshot(name)) }
}

/// # Safety
/// As `dh_snapshot`.
unsafe fn with_snapshot(
    heap: *mut Heap,
    name: *const c_char,
    change: impl FnOnce(DurableHeap, &str) -> Result<(), CheckpointError>,
) -> c_int {
    let Some(heap) = heap_of(heap) else { return DH_EINVAL };
    // SAFETY: the caller's promise.
    let Some(Ok(name)) = (unsafe { text_of(name) }).map(CStr::to_str) else {
        return refuse(&"the name is NULL, or no UTF-8", DH_EINVAL);
    };
    match change(heap, name) {
        Ok(()) => 0,
        Err(error) if error.is_about_name() => refuse(&error, DH_EINVAL),
        Err(error) => refuse(&error, DH_EFILE),
    }
}

/// Asks for a checkpoint of what a heap holds now; `ticket`, if it is not NULL, gets what to wait
/// for.
///
/// # Safety
/// `heap` came from `dh_open`; `ticket` is NULL or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_checkpoint_async(heap: *mut Heap, ticket: *mut u64) -> c_int {
    let Some(heap) = heap_of(heap) else { return DH_EINVAL };
    let asked = heap.checkpoint_async();
    if !ticket.is_null() {
        // SAFETY: the caller's promise.
        unsafe { ticket.write(asked.number()) };
    }
    0
}

/// Waits until a checkpoint that was asked for is durable. Ticket 0 does not wait: it tells of the
/// newest checkpoint, or why the worker has failed to make one since.
///
/// # Safety
/// As `dh_checkpoint_info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_checkpoint_wait(
    heap: *mut Heap,
    ticket: u64,
    info: *mut CheckpointInfo,
) -> c_int {
    let Some(heap) = heap_of(heap) else { return DH_EINVAL };
    if ticket == 0 {
        return code_of(heap.newest_checkpoint(), info);
    }
    match heap.ticket(ticket) {
        Some(ticket) => code_of(ticket.wait(), info),
        None => refuse(&"the heap has handed out no such ticket", DH_EINVAL),
    }
}

/// Makes a checkpoint and closes the heap.
///
/// # Safety
/// `heap` came from `dh_open`, and nobody uses it or its memory any more; if this fails it is as it
/// was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_close(heap: *mut Heap) -> c_int {
    let Some(open) = heap_of(heap) else { return DH_EINVAL };
    // SAFETY: the caller's promise.
    code_of(unsafe { open.close() }, null_mut())
}

/// Gives an address of a heap a name; NULL takes the name away.
///
/// # Safety
/// `heap` came from `dh_open`; `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_set_root(
    heap: *mut Heap,
    name: *const c_char,
    address: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let (heap, name) = (heap_of(heap), unsafe { text_of(name) });
    let (Some(heap), Some(Ok(name))) = (heap, name.map(CStr::to_str)) else { return DH_EINVAL };
    let (reason, code) = match heap.set_root(name, address.cast()) {
        Ok(()) => return 0,
        Err(deepheap::Errno::EROFS) => {
            ("the heap was opened for reading alone: nothing in it can be changed", DH_EFILE)
        }
        Err(deepheap::Errno::ENOSPC) => ("the heap has as many roots as it can have", DH_EMEMORY),
        Err(_) => ("a root is an address of its heap, under a name of 1 to 56 bytes", DH_EINVAL),
    };
    refuse(&reason, code)
}

/// The address that has this name; NULL if none has.
///
/// # Safety
/// As `dh_set_root`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_root(heap: *mut Heap, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    let (heap, name) = (heap_of(heap), unsafe { text_of(name) });
    match (heap, name.map(CStr::to_str)) {
        (Some(heap), Some(Ok(name))) => heap.root(name).cast(),
        _ => null_mut(),
    }
}
