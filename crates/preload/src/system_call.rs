//! System call: calls by number, through libc's `syscall`.
//!
//! Guarantees: a futex wait finds its word and its time limit resident. Forks by number are
//! bracketed like `fork`. Masks by number keep SIGBUS open. Asynchronous I/O is refused. Reads and
//! writes by number go to the wrappers of their names. Any other call that meets EFAULT is made
//! once more with a page behind each of its arguments pinned.
//!
//! Threads: any.

use core::ffi::{c_int, c_long, c_uint, c_void};

use libc::timespec;

use crate::calls::calls;
use crate::pins::{PAGE, Pins};
use crate::real::real;
use crate::refusal::{ASYNCHRONOUS_IO, refuse};
use crate::waiting::hold;
use crate::{descriptors, files, fork, guarded, seam, signal_mask};

type Call = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

calls! {
    fn syscall(
        number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
    ) -> c_long = program(syscall_of_program);
}

/// Futex commands, without the private and clock bits.
const FUTEX_COMMAND: usize = 0x7f;
const FUTEX_WAKE: usize = 1;
const FUTEX_WAKE_BITSET: usize = 10;
const FUTEX_PRIVATE: usize = 128;

/// `struct clone_args`, as far as it says whether this is a fork.
#[repr(C)]
struct CloneArguments {
    flags: u64,
    process_descriptor: u64,
    child_id: u64,
    parent_id: u64,
    exit_signal: u64,
    stack: u64,
}

/// Whether the call makes a child with a copy of our memory.
fn forks(number: c_long, first: usize) -> bool {
    let flags = match number {
        libc::SYS_fork | libc::SYS_vfork => return true,
        libc::SYS_clone => first as u64,
        // SAFETY: the call's own argument block, read in user mode.
        libc::SYS_clone3 if first != 0 => unsafe { (*(first as *const CloneArguments)).flags },
        _ => return false,
    };
    flags & libc::CLONE_VM as u64 == 0
}

unsafe extern "C" fn syscall_of_program(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let real = real!(syscall: Call);
    // SAFETY: the program's own arguments, in its own order.
    let call = || unsafe { real(number, a, b, c, d, e, f) };
    match number {
        libc::SYS_futex => futex(&[a, e], d, b, &call),
        libc::SYS_io_setup | libc::SYS_io_uring_setup => {
            c_long::from(refuse(&ASYNCHRONOUS_IO, libc::ENOSYS))
        }
        // SAFETY: the call's own sets of one word.
        libc::SYS_rt_sigprocmask => unsafe {
            c_long::from(signal_mask::change_word(a as c_int, b as *const u64, c as *mut u64))
        },
        // SAFETY: the arguments of the functions of these names.
        libc::SYS_read => unsafe { files::read(a as c_int, b as *mut c_void, c) as c_long },
        // SAFETY: as above.
        libc::SYS_write => unsafe { files::write(a as c_int, b as *mut c_void, c) as c_long },
        // SAFETY: as above.
        libc::SYS_close => unsafe { c_long::from(descriptors::close_of_program(a as c_int)) },
        // SAFETY: as above.
        libc::SYS_close_range => unsafe {
            let (first, last) = (a as c_uint, b as c_uint);
            c_long::from(descriptors::close_range_of_program(first, last, c as c_int))
        },
        libc::SYS_dup | libc::SYS_fcntl | libc::SYS_fstat
            if deepheap::is_own_descriptor(a as c_int) =>
        {
            seam::set_errno(libc::EBADF);
            -1
        }
        // SAFETY: as above.
        libc::SYS_dup2 => unsafe {
            c_long::from(descriptors::dup2_of_program(a as c_int, b as c_int))
        },
        // SAFETY: as above.
        libc::SYS_dup3 => unsafe {
            c_long::from(descriptors::dup3_of_program(a as c_int, b as c_int, c as c_int))
        },
        // vfork cannot return twice through this function; fork can.
        // SAFETY: no arguments.
        libc::SYS_vfork => fork::bracketed(|| unsafe { real(libc::SYS_fork, 0, 0, 0, 0, 0, 0) }),
        _ if forks(number, a) => fork::bracketed(call),
        _ => guarded::guard(
            |pins: &mut Pins| {
                for pointer in [a, b, c, d, e, f] {
                    pins.bytes(pointer as *const u8, PAGE);
                }
            },
            call,
        ),
    }
}

/// A wake of a private futex does not look at its page; everything else does, and a wait may do so
/// again when management has begun.
fn futex(words: &[usize; 2], until: usize, operation: usize, call: &dyn Fn() -> c_long) -> c_long {
    let command = operation & FUTEX_COMMAND;
    let is_wake = command == FUTEX_WAKE || command == FUTEX_WAKE_BITSET;
    if is_wake && operation & FUTEX_PRIVATE != 0 {
        return call();
    }
    // Some commands have a number in place of the time limit; then there is nothing to hold.
    let until = hold(until as *const timespec);
    let _held = [hold(words[0] as *const u32), hold(words[1] as *const u32), until];
    call()
}
