//! Rights: calls by which a program gives up what it may do: other users, groups and capabilities,
//! another root, other name spaces, a filter of system calls.
//!
//! Guarantees: before such a call the runtime has opened what it may need later.
//! Threads: any.

use core::ffi::{c_char, c_int, c_long};

use libc::{gid_t, size_t, uid_t};

use crate::buffers::guarded::guard;
use crate::buffers::pins::Pins;
use crate::calls::{Text, calls};
use crate::process::provision::provide;

calls! {
    fn setuid, seteuid, setfsuid(user: uid_t) -> c_int = pin(provided);
    fn setreuid(real: uid_t, effective: uid_t) -> c_int = pin(provided);
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int = pin(provided);
    fn setgid, setegid, setfsgid(group: gid_t) -> c_int = pin(provided);
    fn setregid(real: gid_t, effective: gid_t) -> c_int = pin(provided);
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int = pin(provided);
    fn setgroups(count: size_t, groups: *const gid_t [count]) -> c_int = pin(provided);
    fn initgroups(user: Text, group: gid_t) -> c_int = pin(provided);
    fn capset(header: *mut c_char [CAPSET_BYTES], data: *const c_char [CAPSET_BYTES]) -> c_int
        = pin(provided);
    fn chroot(path: Text) -> c_int = pin(provided);
    fn pivot_root(new: Text, old: Text) -> c_int = pin(provided);
    fn unshare(flags: c_int) -> c_int = pin(provided);
    fn setns(space: c_int, kind: c_int) -> c_int = pin(provided);

    // Variadic in C; the optional arguments travel where fixed ones would.
    fn prctl(option: c_int, second: usize, third: usize, fourth: usize, fifth: usize) -> c_int
        = by(|real| {
            if option == libc::PR_SET_SECCOMP {
                provide();
            }
            let buffers = |pins: &mut Pins| pin_option(pins, option, second, third);
            guard(buffers, || real(option, second, third, fourth, fifth))
        });
}

/// The longest of what `capset` reads: two structures of three words.
const CAPSET_BYTES: usize = 24;

/// Whether the system call of this number gives up rights.
pub fn gives_up(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_setuid
            | libc::SYS_setreuid
            | libc::SYS_setresuid
            | libc::SYS_setfsuid
            | libc::SYS_setgid
            | libc::SYS_setregid
            | libc::SYS_setresgid
            | libc::SYS_setfsgid
            | libc::SYS_setgroups
            | libc::SYS_capset
            | libc::SYS_chroot
            | libc::SYS_pivot_root
            | libc::SYS_unshare
            | libc::SYS_setns
            | libc::SYS_seccomp
            | libc::SYS_landlock_restrict_self
    )
}

/// The bytes that `prctl` may read or write behind its second and third argument: the longest is a
/// thread's name; a filter program (SECCOMP) names more memory, which its own header says.
const PRCTL_BYTES: usize = 128;

fn pin_option(pins: &mut Pins, option: c_int, second: usize, third: usize) {
    pins.bytes(second as *const u8, PRCTL_BYTES);
    pins.bytes(third as *const u8, PRCTL_BYTES);
    if option == libc::PR_SET_SECCOMP && deepheap::internal::may_leave(third) {
        // SAFETY: SECCOMP_MODE_FILTER's argument is a filter program of the program's own.
        let filter = unsafe { &*(third as *const libc::sock_fprog) };
        pins.array(filter.filter, usize::from(filter.len));
    }
}
