//! Processes: the end of children, limits, usage, identity and scheduling. Calls that change what
//! the program may do are in `rights`.
//!
//! Guarantees: as `calls` says of each row. A child that was waited for never loses its status.
//! Threads: any.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{
    gid_t, id_t, idtype_t, iovec, pid_t, pthread_t, rlimit, rusage, sched_param, siginfo_t, size_t,
    sysinfo as SystemInformation, timespec, uid_t, utmpx, utsname, winsize,
};

use crate::buffers::guarded::{Code, guard};
use crate::buffers::pins::{PAGE, Pins};
use crate::calls::{Opaque, Text, calls};

calls! {
    fn wait(status: *mut c_int) -> pid_t = hold;
    fn waitpid(child: pid_t, status: *mut c_int, options: c_int) -> pid_t = hold;
    fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t = hold;
    fn wait4(child: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t = hold;
    fn waitid(kind: idtype_t, id: id_t, information: *mut siginfo_t, options: c_int)
        -> c_int = hold;

    fn getrusage(who: c_int, usage: *mut rusage) -> c_int = pin;
    fn getrlimit, getrlimit64(resource: c_uint, limit: *mut rlimit) -> c_int = pin;
    fn setrlimit, setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int = pin;
    fn prlimit, prlimit64(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit)
        -> c_int = pin;
    fn uname(name: *mut utsname) -> c_int = pin;
    fn sysinfo(information: *mut SystemInformation) -> c_int = pin;
    fn sethostname, setdomainname(name: *const c_char [len], len: size_t) -> c_int = pin;
    fn getgroups(room: c_int, groups: *mut gid_t [room]) -> c_int = pin;
    fn __getgroups_chk(room: c_int, groups: *mut gid_t [room], size: size_t) -> c_int = pin;
    fn getresuid(real: *mut uid_t, effective: *mut uid_t, saved: *mut uid_t) -> c_int = pin;
    fn getresgid(real: *mut gid_t, effective: *mut gid_t, saved: *mut gid_t) -> c_int = pin;
    fn getcpu(cpu: *mut c_uint, node: *mut c_uint) -> c_int = pin;
    fn klogctl(action: c_int, text: *mut c_char [len], len: c_int) -> c_int = pin;

    fn capget(header: *mut [c_uint; 2], data: *mut [c_uint; 6]) -> c_int = pin;
    fn init_module(image: *const c_void [len], len: size_t, parameters: Text) -> c_int = pin;
    fn delete_module(name: Text, flags: c_uint) -> c_int = pin;
    fn modify_ldt(operation: c_int, entries: *mut c_void [bytes], bytes: c_ulong) -> c_int = pin;
    fn arch_prctl(operation: c_int, value: *mut c_ulong) -> c_int = pin;
    fn pidfd_send_signal(
        process: c_int, signal: c_int, information: *mut siginfo_t, flags: c_uint,
    ) -> c_int = pin;
    // The records of logged-in users.
    fn pututline, pututxline(record: *const utmpx) -> *mut utmpx = pin;
    // Held, for they say no errno.
    fn updwtmp, updwtmpx(path: Text, record: *const utmpx) -> () = hold;

    fn sched_setaffinity @ c"GLIBC_2.3.4"(
        process: pid_t, size: size_t, set: *const c_void [size],
    ) -> c_int = pin;
    // Deepheap asks for its processors, below a pin, too.
    fn sched_getaffinity @ c"GLIBC_2.3.4"(process: pid_t, size: size_t, set: *mut c_void) -> c_int
        = program(|real| guard(|pins| pins.bytes(set, size), || real(process, size, set)));
    fn sched_setparam(process: pid_t, parameters: *const sched_param) -> c_int = pin;
    fn sched_getparam(process: pid_t, parameters: *mut sched_param) -> c_int = pin;
    fn sched_setscheduler(process: pid_t, policy: c_int, parameters: *const sched_param)
        -> c_int = pin;
    fn sched_rr_get_interval(process: pid_t, interval: *mut timespec) -> c_int = pin;
    fn pthread_setaffinity_np @ c"GLIBC_2.34"(
        thread: pthread_t, size: size_t, set: *const c_void [size],
    ) -> Code = pin;
    fn pthread_getaffinity_np @ c"GLIBC_2.32"(
        thread: pthread_t, size: size_t, set: *mut c_void [size],
    ) -> Code = pin;
    fn pthread_setschedparam(
        thread: pthread_t, policy: c_int, parameters: *const sched_param,
    ) -> Code = pin;
    fn pthread_setname_np(thread: pthread_t, name: Text) -> Code = pin;
    fn pthread_getname_np(thread: pthread_t, name: *mut c_char [room], room: size_t) -> Code = pin;
    fn ttyname_r(descriptor: c_int, name: *mut c_char [room], room: size_t) -> Code = pin;
    fn __ttyname_r_chk(
        descriptor: c_int, name: *mut c_char [room], room: size_t, size: size_t,
    ) -> Code = pin;
    // They do not say that they could not set the window's size.
    fn openpty(
        first: Opaque, second: Opaque, name: Opaque, terminal: Opaque, window: *const winsize,
    ) -> c_int = hold;
    fn forkpty(first: Opaque, name: Opaque, terminal: Opaque, window: *const winsize)
        -> c_int = hold;

    // Variadic in C; the optional arguments travel where fixed ones would.
    fn ptrace(request: c_uint, process: pid_t, address: usize, data: usize) -> c_long
        = pin(|pins| pin_traced(pins, request, address, data));
}

/// The memory that `ptrace` reads or writes in this process: `data` names a page at most; sets of
/// registers are named by an `iovec` there.
pub fn pin_traced(pins: &mut Pins, request: c_uint, address: usize, data: usize) {
    pins.bytes(data as *const u8, PAGE);
    match request {
        libc::PTRACE_GETREGSET | libc::PTRACE_SETREGSET if data != 0 => {
            // SAFETY: these requests' argument; the program's own memory, read in user mode.
            let registers = unsafe { &*(data as *const iovec) };
            pins.bytes(registers.iov_base.cast_const(), registers.iov_len);
        }
        libc::PTRACE_PEEKSIGINFO => pins.bytes(address as *const u8, PAGE),
        _ => {}
    }
}
