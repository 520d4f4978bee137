//! Extended attributes: `getxattr` and its kin.
//!
//! Guarantees: as `guarded`.
//!
//! Threads: any.

use core::ffi::{c_char, c_int, c_void};

use libc::{size_t, ssize_t};

use crate::guarded::guarded;

guarded! {
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t)
        -> ssize_t = |pins| { pins.text(path); pins.text(name); pins.bytes(value, room) };
    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t)
        -> ssize_t = |pins| { pins.text(path); pins.text(name); pins.bytes(value, room) };
    fn fgetxattr(file: c_int, name: *const c_char, value: *mut c_void, room: size_t)
        -> ssize_t = |pins| { pins.text(name); pins.bytes(value, room) };
    fn setxattr(
        path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int,
    ) -> c_int = |pins| { pins.text(path); pins.text(name); pins.bytes(value, len) };
    fn lsetxattr(
        path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int,
    ) -> c_int = |pins| { pins.text(path); pins.text(name); pins.bytes(value, len) };
    fn fsetxattr(
        file: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int,
    ) -> c_int = |pins| { pins.text(name); pins.bytes(value, len) };
    fn listxattr(path: *const c_char, names: *mut c_char, room: size_t) -> ssize_t
        = |pins| { pins.text(path); pins.bytes(names, room) };
    fn llistxattr(path: *const c_char, names: *mut c_char, room: size_t) -> ssize_t
        = |pins| { pins.text(path); pins.bytes(names, room) };
    fn flistxattr(file: c_int, names: *mut c_char, room: size_t) -> ssize_t
        = |pins| pins.bytes(names, room);
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int
        = |pins| { pins.text(path); pins.text(name) };
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int
        = |pins| { pins.text(path); pins.text(name) };
    fn fremovexattr(file: c_int, name: *const c_char) -> c_int = |pins| pins.text(name);
}
