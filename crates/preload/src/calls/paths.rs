//! Paths: the calls that take a file name.
//!
//! Guarantees: as `calls` says of each row.
//! Threads: any.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{
    FILE, dev_t, gid_t, key_t, mode_t, off_t, size_t, ssize_t, stat as Status,
    statfs as FileSystem, statvfs as FileSystemVector, statx as Extended, timespec, timeval, uid_t,
    utimbuf,
};

use crate::buffers::pins::PAGE;
use crate::calls::{Opaque, Text, calls};

calls! {
    // Variadic in C, but the mode travels in the next argument register.
    fn open, open64(path: Text, flags: c_int, mode: mode_t) -> c_int = pin;
    fn openat, openat64(folder: c_int, path: Text, flags: c_int, mode: mode_t) -> c_int = pin;
    fn __open_2, __open64_2, umount2, swapon(path: Text, flags: c_int) -> c_int = pin;
    fn __openat_2, __openat64_2, unlinkat(folder: c_int, path: Text, flags: c_int) -> c_int = pin;
    fn creat, creat64, mkdir, mkfifo, chmod, lchmod(path: Text, mode: mode_t) -> c_int = pin;

    fn fopen, fopen64, setmntent(path: Text, mode: Opaque) -> *mut FILE = pin;
    fn freopen, freopen64(path: Text, mode: Opaque, old: Opaque) -> *mut FILE = pin;
    fn catopen(name: Text, flags: c_int) -> *mut c_void = pin;
    fn opendir(path: Text) -> *mut c_void = pin;

    fn access, euidaccess, eaccess(path: Text, mode: c_int) -> c_int = pin;
    fn faccessat(folder: c_int, path: Text, mode: c_int, flags: c_int) -> c_int = pin;
    fn rename, link(old: Text, new: Text) -> c_int = pin;
    fn renameat(from: c_int, old: Text, to: c_int, new: Text) -> c_int = pin;
    fn renameat2, move_mount(from: c_int, old: Text, to: c_int, new: Text, flags: c_uint)
        -> c_int = pin;
    fn linkat(from: c_int, old: Text, to: c_int, new: Text, flags: c_int) -> c_int = pin;
    fn symlink(target: Text, path: Text) -> c_int = pin;
    fn symlinkat(target: Text, folder: c_int, path: Text) -> c_int = pin;
    fn unlink, remove, rmdir, chdir, umount, swapoff, acct(path: Text) -> c_int = pin;
    fn mkdirat, mkfifoat(folder: c_int, path: Text, mode: mode_t) -> c_int = pin;
    fn mknod(path: Text, mode: mode_t, device: dev_t) -> c_int = pin;
    fn mknodat(folder: c_int, path: Text, mode: mode_t, device: dev_t) -> c_int = pin;
    fn fchmodat(folder: c_int, path: Text, mode: mode_t, flags: c_int) -> c_int = pin;
    fn chown, lchown(path: Text, owner: uid_t, group: gid_t) -> c_int = pin;
    fn fchownat(folder: c_int, path: Text, owner: uid_t, group: gid_t, flags: c_int) -> c_int = pin;
    fn truncate, truncate64(path: Text, len: off_t) -> c_int = pin;
    fn utime(path: Text, times: *const utimbuf) -> c_int = pin;
    fn utimes, lutimes(path: Text, times: *const timeval [2]) -> c_int = pin;
    fn futimesat(folder: c_int, path: Text, times: *const timeval [2]) -> c_int = pin;
    fn utimensat(folder: c_int, path: Text, times: *const timespec [2], flags: c_int)
        -> c_int = pin;
    fn pathconf(path: Text, name: c_int) -> c_long = pin;
    fn ftok(path: Text, project: c_int) -> key_t = pin;

    fn readlink(path: Text, target: *mut c_char [room], room: size_t) -> ssize_t = pin;
    fn readlinkat(folder: c_int, path: Text, target: *mut c_char [room], room: size_t)
        -> ssize_t = pin;
    fn __readlink_chk(path: Text, target: *mut c_char [room], room: size_t, size: size_t)
        -> ssize_t = pin;
    fn __readlinkat_chk(
        folder: c_int, path: Text, target: *mut c_char [room], room: size_t, size: size_t,
    ) -> ssize_t = pin;
    fn getcwd(path: *mut c_char [room], room: size_t) -> *mut c_char = pin;
    fn __getcwd_chk(path: *mut c_char [room], room: size_t, size: size_t) -> *mut c_char = pin;
    fn realpath @ c"GLIBC_2.3"(path: Text, resolved: Opaque) -> *mut c_char = pin;
    fn __realpath_chk(path: Text, resolved: Opaque, size: size_t) -> *mut c_char = pin;

    fn mktemp, mkdtemp(template: Text) -> *mut c_char = pin;
    fn tmpnam, tmpnam_r(name: *mut c_char [L_TMPNAM]) -> *mut c_char = pin;
    // Held, for it says no errno.
    fn tempnam(folder: Text, prefix: Opaque) -> *mut c_char = hold;
    fn mkstemp, mkstemp64(template: Text) -> c_int = pin;
    fn mkostemp, mkostemp64(template: Text, flags: c_int) -> c_int = pin;
    fn mkstemps, mkstemps64(template: Text, suffix: c_int) -> c_int = pin;
    fn mkostemps, mkostemps64(template: Text, suffix: c_int, flags: c_int) -> c_int = pin;

    fn glob @ c"GLIBC_2.27", glob64 @ c"GLIBC_2.27"(
        pattern: Text, flags: c_int, failed: Opaque, found: Opaque,
    ) -> c_int = pin;
    fn ftw, ftw64(path: Text, visit: Opaque, most: c_int) -> c_int = pin;
    fn nftw64 @ c"GLIBC_2.3.3", nftw @ c"GLIBC_2.3.3"(
        path: Text, visit: Opaque, most: c_int, flags: c_int,
    ) -> c_int = pin;
    fn scandir, scandir64(path: Text, found: Opaque, filter: Opaque, compare: Opaque)
        -> c_int = pin;
    fn scandirat, scandirat64(
        folder: c_int, path: Text, found: Opaque, filter: Opaque, compare: Opaque,
    ) -> c_int = pin;

    fn memfd_create(name: Text, flags: c_uint) -> c_int = pin;
    fn mount(source: Text, target: Text, kind: Text, flags: c_ulong, options: Text) -> c_int = pin;
    fn quotactl(command: c_int, device: Text, id: c_int, value: *mut c_void [PAGE]) -> c_int = pin;
    fn fsopen(kind: Text, flags: c_uint) -> c_int = pin;
    fn fsconfig(context: c_int, command: c_uint, key: Text, value: *const c_void [PAGE], aux: c_int)
        -> c_int = pin;
    fn fspick, open_tree(folder: c_int, path: Text, flags: c_uint) -> c_int = pin;
    fn mount_setattr(
        folder: c_int, path: Text, flags: c_uint, attributes: *mut c_void [size], size: size_t,
    ) -> c_int = pin;
    fn fanotify_mark(descriptor: c_int, flags: c_uint, mask: u64, folder: c_int, path: Text)
        -> c_int = pin;
    fn name_to_handle_at(
        folder: c_int, path: Text, handle: *mut c_uint [handle_words(handle)], mount: *mut c_int,
        flags: c_int,
    ) -> c_int = pin;
    fn open_by_handle_at(mount: c_int, handle: *mut c_uint [handle_words(handle)], flags: c_int)
        -> c_int = pin;
    fn inotify_add_watch(descriptor: c_int, path: Text, mask: u32) -> c_int = pin;

    fn stat, stat64, lstat, lstat64(path: Text, status: *mut Status) -> c_int = pin;
    fn fstatat, fstatat64(folder: c_int, path: Text, status: *mut Status, flags: c_int)
        -> c_int = pin;
    fn statx(folder: c_int, path: Text, flags: c_int, mask: c_uint, status: *mut Extended)
        -> c_int = pin;

    // For programs linked before glibc 2.33.
    fn __xstat, __xstat64, __lxstat, __lxstat64(version: c_int, path: Text, status: *mut Status)
        -> c_int = pin;
    fn __fxstat, __fxstat64(version: c_int, descriptor: c_int, status: *mut Status)
        -> c_int = pin(not own descriptor);
    fn __xmknod(version: c_int, path: Text, mode: mode_t, device: *mut dev_t) -> c_int = pin;
    fn __xmknodat(version: c_int, folder: c_int, path: Text, mode: mode_t, device: *mut dev_t)
        -> c_int = pin;
    fn __fxstatat, __fxstatat64(
        version: c_int, folder: c_int, path: Text, status: *mut Status, flags: c_int,
    ) -> c_int = pin;

    fn statfs, statfs64(path: Text, status: *mut FileSystem) -> c_int = pin;
    fn statvfs, statvfs64(path: Text, status: *mut FileSystemVector) -> c_int = pin;

    fn getxattr, lgetxattr(path: Text, name: Text, value: *mut c_void [room], room: size_t)
        -> ssize_t = pin;
    fn fgetxattr(file: c_int, name: Text, value: *mut c_void [room], room: size_t) -> ssize_t = pin;
    fn setxattr, lsetxattr(
        path: Text, name: Text, value: *const c_void [len], len: size_t, flags: c_int,
    ) -> c_int = pin;
    fn fsetxattr(file: c_int, name: Text, value: *const c_void [len], len: size_t, flags: c_int)
        -> c_int = pin;
    fn listxattr, llistxattr(path: Text, names: *mut c_char [room], room: size_t) -> ssize_t = pin;
    fn flistxattr(file: c_int, names: *mut c_char [room], room: size_t) -> ssize_t = pin;
    fn removexattr, lremovexattr(path: Text, name: Text) -> c_int = pin;
    fn fremovexattr(file: c_int, name: Text) -> c_int = pin;
}

/// Room for a name that `tmpnam` makes.
const L_TMPNAM: usize = 20;

/// The words of a `struct file_handle`: its first says how many bytes follow the second.
fn handle_words(handle: *const c_uint) -> usize {
    if handle.is_null() {
        return 0;
    }
    // SAFETY: the program's own handle, read in user mode.
    2 + unsafe { *handle }.min(libc::MAX_HANDLE_SZ as u32).div_ceil(4) as usize
}
