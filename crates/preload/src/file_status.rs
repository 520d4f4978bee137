//! File status: `stat` and its kin, file systems, folders.
//!
//! Guarantees: as `guarded`. The `__xstat` forms serve programs linked before glibc 2.33.
//!
//! Threads: any.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{size_t, ssize_t, stat as Status, statfs as FileSystem, statvfs as FileSystemVector};

use crate::guarded::guarded;

guarded! {
    fn stat(path: *const c_char, status: *mut Status) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn stat64(path: *const c_char, status: *mut Status) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn lstat(path: *const c_char, status: *mut Status) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn lstat64(path: *const c_char, status: *mut Status) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn fstat(descriptor: c_int, status: *mut Status) -> c_int = |pins| pins.value(status);
    fn fstat64(descriptor: c_int, status: *mut Status) -> c_int = |pins| pins.value(status);
    fn fstatat(folder: c_int, path: *const c_char, status: *mut Status, flags: c_int) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn fstatat64(folder: c_int, path: *const c_char, status: *mut Status, flags: c_int) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn statx(
        folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut libc::statx,
    ) -> c_int = |pins| { pins.text(path); pins.value(status) };

    fn __xstat(version: c_int, path: *const c_char, status: *mut Status) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn __xstat64(version: c_int, path: *const c_char, status: *mut Status) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn __lxstat(version: c_int, path: *const c_char, status: *mut Status) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn __lxstat64(version: c_int, path: *const c_char, status: *mut Status) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn __fxstat(version: c_int, descriptor: c_int, status: *mut Status) -> c_int
        = |pins| pins.value(status);
    fn __fxstat64(version: c_int, descriptor: c_int, status: *mut Status) -> c_int
        = |pins| pins.value(status);
    fn __fxstatat(
        version: c_int, folder: c_int, path: *const c_char, status: *mut Status, flags: c_int,
    ) -> c_int = |pins| { pins.text(path); pins.value(status) };
    fn __fxstatat64(
        version: c_int, folder: c_int, path: *const c_char, status: *mut Status, flags: c_int,
    ) -> c_int = |pins| { pins.text(path); pins.value(status) };

    fn statfs(path: *const c_char, status: *mut FileSystem) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn statfs64(path: *const c_char, status: *mut FileSystem) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn fstatfs(descriptor: c_int, status: *mut FileSystem) -> c_int = |pins| pins.value(status);
    fn fstatfs64(descriptor: c_int, status: *mut FileSystem) -> c_int = |pins| pins.value(status);
    fn statvfs(path: *const c_char, status: *mut FileSystemVector) -> c_int
        = |pins| { pins.text(path); pins.value(status) };
    fn statvfs64(path: *const c_char, status: *mut FileSystemVector) -> c_int
        = |pins| { pins.text(path); pins.value(status) };

    fn getdents64(descriptor: c_int, entries: *mut c_void, room: size_t) -> ssize_t
        = |pins| pins.bytes(entries, room);
    fn getdirentries(
        descriptor: c_int, entries: *mut c_char, room: size_t, position: *mut i64,
    ) -> ssize_t = |pins| pins.bytes(entries, room);
}
