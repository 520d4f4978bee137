//! Process facts: limits, usage, identity, scheduling, and the end of children.
//!
//! Guarantees: as `guarded`. A child that was waited for never loses its status.
//!
//! Threads: any.

use core::ffi::{c_char, c_int, c_uint};

use libc::{
    cpu_set_t, gid_t, id_t, idtype_t, pid_t, pthread_t, rlimit, rusage, sched_param, siginfo_t,
    size_t, sysinfo as SystemInformation, uid_t, utsname,
};

use crate::guarded::{guarded, guarded_code, held};
use crate::real::real;
use crate::waiting::hold;

held! {
    fn wait(status: *mut c_int) -> pid_t = hold(status);
    fn waitpid(child: pid_t, status: *mut c_int, options: c_int) -> pid_t = hold(status);
    fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t
        = (hold(status), hold(usage));
    fn wait4(child: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t
        = (hold(status), hold(usage));
    fn waitid(kind: idtype_t, id: id_t, information: *mut siginfo_t, options: c_int) -> c_int
        = hold(information);
}

guarded! {
    fn getrusage(who: c_int, usage: *mut rusage) -> c_int = |pins| pins.value(usage);
    fn getrlimit(resource: c_uint, limit: *mut rlimit) -> c_int = |pins| pins.value(limit);
    fn getrlimit64(resource: c_uint, limit: *mut rlimit) -> c_int = |pins| pins.value(limit);
    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int = |pins| pins.value(limit);
    fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int = |pins| pins.value(limit);
    fn prlimit(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int
        = |pins| { pins.value(new); pins.value(old) };
    fn prlimit64(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int
        = |pins| { pins.value(new); pins.value(old) };
    fn uname(name: *mut utsname) -> c_int = |pins| pins.value(name);
    fn sysinfo(information: *mut SystemInformation) -> c_int = |pins| pins.value(information);
    fn sethostname(name: *const c_char, len: size_t) -> c_int = |pins| pins.bytes(name, len);
    fn getgroups(room: c_int, groups: *mut gid_t) -> c_int
        = |pins| pins.array(groups, usize::try_from(room).unwrap_or(0));
    fn __getgroups_chk(room: c_int, groups: *mut gid_t, size: size_t) -> c_int
        = |pins| pins.array(groups, usize::try_from(room).unwrap_or(0));
    fn setgroups(count: size_t, groups: *const gid_t) -> c_int = |pins| pins.array(groups, count);
    fn getresuid(real: *mut uid_t, effective: *mut uid_t, saved: *mut uid_t) -> c_int
        = |pins| { pins.value(real); pins.value(effective); pins.value(saved) };
    fn getresgid(real: *mut gid_t, effective: *mut gid_t, saved: *mut gid_t) -> c_int
        = |pins| { pins.value(real); pins.value(effective); pins.value(saved) };
    fn getcpu(cpu: *mut c_uint, node: *mut c_uint) -> c_int
        = |pins| { pins.value(cpu); pins.value(node) };
    fn klogctl(action: c_int, text: *mut c_char, len: c_int) -> c_int
        = |pins| pins.bytes(text, usize::try_from(len).unwrap_or(0));

    fn sched_setaffinity @ c"GLIBC_2.3.4"(process: pid_t, size: size_t, set: *const cpu_set_t)
        -> c_int = |pins| pins.bytes(set, size);
    fn sched_getaffinity @ c"GLIBC_2.3.4"(process: pid_t, size: size_t, set: *mut cpu_set_t)
        -> c_int = |pins| pins.bytes(set, size);
    fn sched_setparam(process: pid_t, parameters: *const sched_param) -> c_int
        = |pins| pins.value(parameters);
    fn sched_getparam(process: pid_t, parameters: *mut sched_param) -> c_int
        = |pins| pins.value(parameters);
    fn sched_setscheduler(process: pid_t, policy: c_int, parameters: *const sched_param) -> c_int
        = |pins| pins.value(parameters);
    fn sched_rr_get_interval(process: pid_t, interval: *mut libc::timespec) -> c_int
        = |pins| pins.value(interval);
}

guarded_code! {
    fn pthread_setaffinity_np @ c"GLIBC_2.34"(
        thread: pthread_t, size: size_t, set: *const cpu_set_t,
    ) = |pins| pins.bytes(set, size);
    fn pthread_getaffinity_np @ c"GLIBC_2.32"(
        thread: pthread_t, size: size_t, set: *mut cpu_set_t,
    ) = |pins| pins.bytes(set, size);
    fn pthread_setname_np(thread: pthread_t, name: *const c_char) = |pins| pins.text(name);
    fn pthread_getname_np(thread: pthread_t, name: *mut c_char, room: size_t)
        = |pins| pins.bytes(name, room);
    fn ttyname_r(descriptor: c_int, name: *mut c_char, room: size_t)
        = |pins| pins.bytes(name, room);
}

/// What `prctl` may read or write behind its second argument: the longest is a thread's name; a
/// filter program (SECCOMP) names more memory, which its own header says.
const PRCTL_BYTES: usize = 128;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_int {
    let real = real!(prctl: unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int);
    let buffers = |pins: &mut crate::pins::Pins| {
        pins.bytes(second as *const u8, PRCTL_BYTES);
        pins.bytes(third as *const u8, PRCTL_BYTES);
        if option == libc::PR_SET_SECCOMP && deepheap::owns(third) {
            // SAFETY: SECCOMP_MODE_FILTER's argument is a filter program of the program's own.
            let filter = unsafe { &*(third as *const libc::sock_fprog) };
            pins.array(filter.filter, usize::from(filter.len));
        }
    };
    // SAFETY: the program's own arguments.
    crate::guarded::guard(buffers, || unsafe { real(option, second, third, fourth, fifth) })
}
