//! Maps: the `dh_` functions of files that processes map together.
//!
//! Guarantees: a bad argument is answered with NULL or a `DH_E...`, never with a crash; why a call
//! failed stays readable by `dh_last_error`.
//! Threads: any thread.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

use deepheap::maps::{self, Advice, MapError, MapOptions, Stats as MapStats};

use crate::durable::{path_of, refuse, text_of};
use crate::error::{DH_EFILE, DH_EINVAL, DH_EOBJECT, set_errno};

/// Stores are seen by all processes, and go to the file. The default.
pub const DH_MAP_SHARED: c_int = 1;
/// Stores are this process's alone: copy on write into the heap.
pub const DH_MAP_PRIVATE: c_int = 4;
/// A file of ours, with a log: `dh_sync` is atomic.
pub const DH_MAP_LOG: c_int = 2;
/// Soon: read it ahead.
pub const DH_MAP_WILLNEED: c_int = 0;
/// Not soon: it may leave RAM.
pub const DH_MAP_DONTNEED: c_int = 1;
/// In no order.
pub const DH_MAP_RANDOM: c_int = 2;
/// In order.
pub const DH_MAP_SEQUENTIAL: c_int = 3;

fn no_map(reason: &dyn core::fmt::Display, errno: c_int) -> *mut c_void {
    set_errno(refuse(reason, errno));
    null_mut()
}

fn zero_or_code(result: Result<(), MapError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error @ MapError::NotAMap) => refuse(&error, DH_EOBJECT),
        Err(error) => refuse(&error, DH_EFILE),
    }
}

/// Maps a file; NULL and errno if that fails.
///
/// # Safety
/// `path` is a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_map(
    path: *const c_char,
    length: usize,
    prot: c_int,
    flags: u32,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Some(path) = (unsafe { text_of(path) }) else {
        return no_map(&"the path is NULL", libc::EINVAL);
    };
    if prot != libc::PROT_READ && prot != libc::PROT_READ | libc::PROT_WRITE {
        return no_map(&"prot is PROT_READ, or PROT_READ | PROT_WRITE", libc::EINVAL);
    }
    let is_private = flags & DH_MAP_PRIVATE as u32 != 0;
    let of_file = (DH_MAP_SHARED | DH_MAP_LOG) as u32;
    if flags & !(of_file | DH_MAP_PRIVATE as u32) != 0 || is_private && flags & of_file != 0 {
        let reason = "flags are 0, DH_MAP_SHARED, DH_MAP_LOG or DH_MAP_PRIVATE alone";
        return no_map(&reason, libc::EINVAL);
    }
    let writes = prot & libc::PROT_WRITE != 0;
    let has_log = flags & DH_MAP_LOG as u32 != 0;
    let options = MapOptions { writes, length: length as u64, ram: 0, has_log, is_private };
    match maps::map(path_of(path), options) {
        Ok(at) => at.cast(),
        Err(failure) => no_map(&failure, failure.errno()),
    }
}

/// Ends a map.
///
/// # Safety
/// No thread uses its memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_unmap(map: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    zero_or_code(unsafe { maps::unmap(map.cast()) })
}

/// Makes the mapped file longer or shorter; NULL and errno if that fails.
///
/// # Safety
/// No thread of this process uses its memory meanwhile, nor the old address if it has moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_remap(map: *mut c_void, length: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    match unsafe { maps::resize(map.cast(), length as u64) } {
        Ok(at) => at.cast(),
        Err(error) => no_map(&error, error.errno()),
    }
}

/// Makes a part of a map durable.
#[unsafe(no_mangle)]
pub extern "C" fn dh_sync(address: *const c_void, length: usize) -> c_int {
    zero_or_code(maps::sync(address.cast(), length))
}

/// Tells how a part of a map will be used.
#[unsafe(no_mangle)]
pub extern "C" fn dh_map_advise(address: *const c_void, length: usize, advice: c_int) -> c_int {
    let advice = match advice {
        DH_MAP_WILLNEED => Advice::WillNeed,
        DH_MAP_DONTNEED => Advice::DontNeed,
        DH_MAP_RANDOM => Advice::Random,
        DH_MAP_SEQUENTIAL => Advice::Sequential,
        _ => return refuse(&"no such advice", DH_EINVAL),
    };
    zero_or_code(maps::advise(address.cast(), length, advice))
}

/// Tells what a map has done.
///
/// # Safety
/// `out` is NULL or has room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_map_stats(address: *const c_void, out: *mut MapStats) -> c_int {
    if out.is_null() {
        return refuse(&"there is no room for the statistics: the pointer is NULL", DH_EINVAL);
    }
    match maps::stats(address.cast()) {
        // SAFETY: the caller's promise.
        Ok(stats) => unsafe { out.write(stats) },
        Err(error) => return zero_or_code(Err(error)),
    }
    0
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use super::*;

    #[test]
    fn impossible_arguments_are_refused_with_a_reason() {
        let path = c"/no/such/file".as_ptr();
        let read = libc::PROT_READ;
        // SAFETY: C strings and NULL.
        unsafe {
            for (path, prot, flags, words) in [
                (core::ptr::null(), read, 0, "NULL"),
                (path, libc::PROT_WRITE, 0, "PROT_READ"),
                (path, read, DH_MAP_LOG as u32, "No such file"),
                (path, read, 5, "DH_MAP_PRIVATE"),
                (path, read, 0, "No such file"),
            ] {
                assert!(dh_map(path, 0, prot, flags).is_null());
                let reason = CStr::from_ptr(crate::durable::dh_last_error()).to_string_lossy();
                assert!(reason.contains(words), "{reason}");
            }
            let mut stats = MapStats::default();
            let byte = 0u8;
            let place: *const c_void = (&raw const byte).cast();
            assert_eq!(dh_unmap(place.cast_mut()), DH_EOBJECT);
            assert_eq!(dh_map_stats(place, &mut stats), DH_EOBJECT);
            assert_eq!(dh_map_stats(place, null_mut()), DH_EINVAL);
            assert_eq!(dh_sync(place, 1), DH_EOBJECT);
            assert_eq!(dh_map_advise(place, 1, DH_MAP_RANDOM), DH_EOBJECT);
            assert_eq!(dh_map_advise(place, 1, 9), DH_EINVAL);
        }
    }
}
