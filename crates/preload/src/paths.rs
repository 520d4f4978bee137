//! Paths: the calls that take a file name, and those that make a descriptor from one.
//!
//! Guarantees: as `guarded`.
//!
//! Threads: any.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{FILE, dev_t, gid_t, key_t, mode_t, off_t, size_t, ssize_t, timespec, timeval, uid_t};

use crate::guarded::guarded;

// `open` and its kin are variadic in C, but the mode travels in the next argument register.
guarded! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = |pins| pins.text(path);
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = |pins| pins.text(path);
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = |pins| pins.text(path);
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = |pins| pins.text(path);
    fn __open_2(path: *const c_char, flags: c_int) -> c_int = |pins| pins.text(path);
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int = |pins| pins.text(path);
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int
        = |pins| pins.text(path);
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int
        = |pins| pins.text(path);
    fn creat(path: *const c_char, mode: mode_t) -> c_int = |pins| pins.text(path);
    fn creat64(path: *const c_char, mode: mode_t) -> c_int = |pins| pins.text(path);
}

guarded! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE = |pins| pins.text(path);
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE = |pins| pins.text(path);
    fn freopen(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE
        = |pins| pins.text(path);
    fn freopen64(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE
        = |pins| pins.text(path);
    fn opendir(path: *const c_char) -> *mut c_void = |pins| pins.text(path);

    fn access(path: *const c_char, mode: c_int) -> c_int = |pins| pins.text(path);
    fn faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int
        = |pins| pins.text(path);
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int = |pins| pins.text(path);
    fn eaccess(path: *const c_char, mode: c_int) -> c_int = |pins| pins.text(path);
    fn rename(old: *const c_char, new: *const c_char) -> c_int
        = |pins| { pins.text(old); pins.text(new) };
    fn renameat(from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int
        = |pins| { pins.text(old); pins.text(new) };
    fn renameat2(
        from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint,
    ) -> c_int = |pins| { pins.text(old); pins.text(new) };
    fn link(old: *const c_char, new: *const c_char) -> c_int
        = |pins| { pins.text(old); pins.text(new) };
    fn linkat(
        from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_int,
    ) -> c_int = |pins| { pins.text(old); pins.text(new) };
    fn symlink(target: *const c_char, path: *const c_char) -> c_int
        = |pins| { pins.text(target); pins.text(path) };
    fn symlinkat(target: *const c_char, folder: c_int, path: *const c_char) -> c_int
        = |pins| { pins.text(target); pins.text(path) };
    fn unlink(path: *const c_char) -> c_int = |pins| pins.text(path);
    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int
        = |pins| pins.text(path);
    fn remove(path: *const c_char) -> c_int = |pins| pins.text(path);
    fn rmdir(path: *const c_char) -> c_int = |pins| pins.text(path);
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int = |pins| pins.text(path);
    fn mkdirat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int
        = |pins| pins.text(path);
    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int = |pins| pins.text(path);
    fn mknodat(folder: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int
        = |pins| pins.text(path);
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int = |pins| pins.text(path);
    fn mkfifoat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int
        = |pins| pins.text(path);
    fn chdir(path: *const c_char) -> c_int = |pins| pins.text(path);
    fn chroot(path: *const c_char) -> c_int = |pins| pins.text(path);
    fn chmod(path: *const c_char, mode: mode_t) -> c_int = |pins| pins.text(path);
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int = |pins| pins.text(path);
    fn fchmodat(folder: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int
        = |pins| pins.text(path);
    fn chown(path: *const c_char, owner: uid_t, group: gid_t) -> c_int = |pins| pins.text(path);
    fn lchown(path: *const c_char, owner: uid_t, group: gid_t) -> c_int = |pins| pins.text(path);
    fn fchownat(
        folder: c_int, path: *const c_char, owner: uid_t, group: gid_t, flags: c_int,
    ) -> c_int = |pins| pins.text(path);
    fn truncate(path: *const c_char, len: off_t) -> c_int = |pins| pins.text(path);
    fn truncate64(path: *const c_char, len: off_t) -> c_int = |pins| pins.text(path);
    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int
        = |pins| { pins.text(path); pins.value(times) };
    fn utimes(path: *const c_char, times: *const timeval) -> c_int
        = |pins| { pins.text(path); pins.array(times, 2) };
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int
        = |pins| { pins.text(path); pins.array(times, 2) };
    fn futimesat(folder: c_int, path: *const c_char, times: *const timeval) -> c_int
        = |pins| { pins.text(path); pins.array(times, 2) };
    fn utimensat(
        folder: c_int, path: *const c_char, times: *const timespec, flags: c_int,
    ) -> c_int = |pins| { pins.text(path); pins.array(times, 2) };
    fn futimens(descriptor: c_int, times: *const timespec) -> c_int
        = |pins| pins.array(times, 2);
    fn pathconf(path: *const c_char, name: c_int) -> c_long = |pins| pins.text(path);
    fn ftok(path: *const c_char, project: c_int) -> key_t = |pins| pins.text(path);

    fn readlink(path: *const c_char, target: *mut c_char, room: size_t) -> ssize_t
        = |pins| { pins.text(path); pins.bytes(target, room) };
    fn readlinkat(
        folder: c_int, path: *const c_char, target: *mut c_char, room: size_t,
    ) -> ssize_t = |pins| { pins.text(path); pins.bytes(target, room) };
    fn __readlink_chk(
        path: *const c_char, target: *mut c_char, room: size_t, size: size_t,
    ) -> ssize_t = |pins| { pins.text(path); pins.bytes(target, room) };
    fn __readlinkat_chk(
        folder: c_int, path: *const c_char, target: *mut c_char, room: size_t, size: size_t,
    ) -> ssize_t = |pins| { pins.text(path); pins.bytes(target, room) };
    fn getcwd(path: *mut c_char, room: size_t) -> *mut c_char = |pins| pins.bytes(path, room);
    fn __getcwd_chk(path: *mut c_char, room: size_t, size: size_t) -> *mut c_char
        = |pins| pins.bytes(path, room);
    fn realpath @ c"GLIBC_2.3"(path: *const c_char, resolved: *mut c_char) -> *mut c_char
        = |pins| pins.text(path);

    fn mkstemp(template: *mut c_char) -> c_int = |pins| pins.text(template);
    fn mkstemp64(template: *mut c_char) -> c_int = |pins| pins.text(template);
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int = |pins| pins.text(template);
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int = |pins| pins.text(template);
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int = |pins| pins.text(template);
    fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int = |pins| pins.text(template);
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int
        = |pins| pins.text(template);
    fn mkdtemp(template: *mut c_char) -> *mut c_char = |pins| pins.text(template);

    fn glob @ c"GLIBC_2.27"(
        pattern: *const c_char, flags: c_int, failed: *mut c_void, found: *mut c_void,
    ) -> c_int = |pins| pins.text(pattern);
    fn ftw(path: *const c_char, visit: *mut c_void, most: c_int) -> c_int = |pins| pins.text(path);
    fn nftw @ c"GLIBC_2.3.3"(
        path: *const c_char, visit: *mut c_void, most: c_int, flags: c_int,
    ) -> c_int = |pins| pins.text(path);

    fn scandir(
        path: *const c_char, found: *mut c_void, filter: *mut c_void, compare: *mut c_void,
    ) -> c_int = |pins| pins.text(path);
    fn scandir64(
        path: *const c_char, found: *mut c_void, filter: *mut c_void, compare: *mut c_void,
    ) -> c_int = |pins| pins.text(path);
    fn scandirat(
        folder: c_int, path: *const c_char, found: *mut c_void, filter: *mut c_void,
        compare: *mut c_void,
    ) -> c_int = |pins| pins.text(path);
    fn scandirat64(
        folder: c_int, path: *const c_char, found: *mut c_void, filter: *mut c_void,
        compare: *mut c_void,
    ) -> c_int = |pins| pins.text(path);
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int = |pins| pins.text(name);

    fn mount(
        source: *const c_char, target: *const c_char, kind: *const c_char, flags: libc::c_ulong,
        options: *const c_void,
    ) -> c_int = |pins| {
        pins.text(source);
        pins.text(target);
        pins.text(kind);
        pins.text(options.cast())
    };
    fn umount(path: *const c_char) -> c_int = |pins| pins.text(path);
    fn umount2(path: *const c_char, flags: c_int) -> c_int = |pins| pins.text(path);
    fn inotify_add_watch(descriptor: c_int, path: *const c_char, mask: u32) -> c_int
        = |pins| pins.text(path);
}
