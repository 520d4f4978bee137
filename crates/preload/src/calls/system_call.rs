//! System call: calls by number, through libc's `syscall`.
//!
//! Guarantees: a number whose function moves more than a page, follows pointers, takes long or is
//! watched goes to the wrapper of that function. A futex wait finds its word and its time limit
//! resident. Forks by number are bracketed like `fork`. Masks and handlers by number keep SIGBUS
//! open and ours. Asynchronous I/O is refused. Any other call is made with a page behind each of
//! its arguments pinned, once the heap is managed.
//! Threads: any.

use core::ffi::{c_int, c_long, c_uint, c_void};

use libc::timespec;

use crate::buffers::guarded;
use crate::buffers::pins::{PAGE, Pins};
use crate::calls::calls;
use crate::calls::{descriptors, files, ipc, paths, polling, processes, sockets};
use crate::memory::mapping;
use crate::process::exec;
use crate::process::lists::List;
use crate::process::{fork, rights};
use crate::real::real;
use crate::refusal::{ASYNCHRONOUS_IO, refuse};
use crate::signals;
use crate::signals::set::FAULT_BIT;
use crate::threads::waiting::hold;

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

/// Whether the call makes a child with a copy of our memory.
fn forks(number: c_long, first: usize) -> bool {
    let flags = match number {
        libc::SYS_fork | libc::SYS_vfork => return true,
        libc::SYS_clone => first as u64,
        // SAFETY: `struct clone_args` of the program, which begins with the flags.
        libc::SYS_clone3 if first != 0 => unsafe { *(first as *const u64) },
        _ => return false,
    };
    flags & libc::CLONE_VM as u64 == 0
}

/// A register as an argument of a wrapper: its low bytes.
///
/// # Safety
/// `T` is a number or a pointer.
#[inline(always)]
unsafe fn word<T>(register: usize) -> T {
    const { assert!(size_of::<T>() <= size_of::<usize>()) };
    // SAFETY: the caller's promise; on x86_64 the low bytes come first.
    unsafe { core::mem::transmute_copy(&register) }
}

/// A result as `syscall` returns it.
trait Answer {
    fn long(self) -> c_long;
}

macro_rules! answers {
    ($($type:ty)*) => {$(
        impl Answer for $type {
            #[inline(always)]
            fn long(self) -> c_long { self as c_long }
        }
    )*};
}
answers!(i32 i64 isize *mut c_void);

/// Numbers, and the wrappers that they go to with these registers.
macro_rules! routes {
    ([$($register:ident)*]
    $($number:ident $room:ident::$function:ident $(::$inner:ident)? ($($word:ident)*);)*) => {
        /// Makes the call by the wrapper of its function, if it has a route.
        fn routed(number: c_long, [$($register),*]: [usize; 6]) -> Option<c_long> {
            match number {
                // SAFETY: the arguments of that function, as the program passes them: numbers and
                // pointers.
                $(libc::$number => Some(unsafe {
                    $room::$function $(::$inner)? ($(word($word)),*).long()
                }),)*
                _ => None,
            }
        }
    };
}

routes! { [a b c d e f]
    SYS_read files::read(a b c); SYS_pread64 files::pread64(a b c d);
    SYS_write files::write(a b c); SYS_pwrite64 files::pwrite64(a b c d);
    SYS_readv files::readv(a b c); SYS_writev files::writev(a b c);
    SYS_preadv files::preadv64(a b c d); SYS_pwritev files::pwritev64(a b c d);
    SYS_preadv2 files::preadv64v2(a b c d f); SYS_pwritev2 files::pwritev64v2(a b c d f);
    SYS_process_vm_readv files::process_vm_readv(a b c d e f);
    SYS_process_vm_writev files::process_vm_writev(a b c d e f);
    SYS_vmsplice files::vmsplice::of_program(a b c d);
    SYS_fstat files::fstat(a b); SYS_fcntl files::fcntl(a b c); SYS_ioctl files::ioctl(a b c);

    SYS_close descriptors::close::of_program(a); SYS_dup descriptors::dup::of_program(a);
    SYS_dup2 descriptors::dup2::of_program(a b); SYS_dup3 descriptors::dup3::of_program(a b c);
    SYS_close_range descriptors::close_range::of_program(a b c);

    SYS_getxattr paths::getxattr(a b c d); SYS_setxattr paths::setxattr(a b c d e);
    SYS_lgetxattr paths::lgetxattr(a b c d); SYS_lsetxattr paths::lsetxattr(a b c d e);
    SYS_fgetxattr paths::fgetxattr(a b c d); SYS_fsetxattr paths::fsetxattr(a b c d e);
    SYS_listxattr paths::listxattr(a b c); SYS_llistxattr paths::llistxattr(a b c);
    SYS_flistxattr paths::flistxattr(a b c);

    SYS_sendto sockets::sendto(a b c d e f); SYS_recvfrom sockets::recvfrom(a b c d e f);
    SYS_sendmsg sockets::sendmsg(a b c); SYS_recvmsg sockets::recvmsg(a b c);
    SYS_sendmmsg sockets::sendmmsg(a b c d); SYS_recvmmsg sockets::recvmmsg(a b c d e);
    SYS_accept sockets::accept(a b c); SYS_accept4 sockets::accept4(a b c d);
    SYS_getsockopt sockets::getsockopt(a b c d e); SYS_setsockopt sockets::setsockopt(a b c d e);

    SYS_wait4 processes::wait4(a b c d); SYS_prctl rights::prctl(a b c d e);
    SYS_getgroups processes::getgroups(a b); SYS_setgroups rights::setgroups(a b);
    SYS_syslog processes::klogctl(a b c);
    SYS_init_module processes::init_module(a b c);

    SYS_poll polling::poll(a b c); SYS_select polling::select(a b c d e);
    SYS_epoll_wait polling::epoll_wait(a b c d);

    SYS_msgsnd ipc::msgsnd(a b c d); SYS_msgrcv ipc::msgrcv(a b c d e);
    SYS_semop ipc::semop(a b c); SYS_semtimedop ipc::semtimedop(a b c d);
    SYS_semctl ipc::semctl(a b c d);

    SYS_madvise mapping::madvise::of_program(a b c);
    SYS_process_madvise mapping::process_madvise(a b c d e);
    SYS_mmap mapping::mmap::of_program(a b c d e f); SYS_munmap mapping::munmap::of_program(a b);
    SYS_mremap mapping::mremap::of_program(a b c d e);
    SYS_mprotect mapping::mprotect::of_program(a b c);
    SYS_pkey_mprotect mapping::pkey_mprotect::of_program(a b c d);
    SYS_shmat mapping::shmat::of_program(a b c); SYS_mincore mapping::mincore(a b c);
    SYS_mlock mapping::mlock::of_program(a b); SYS_mlock2 mapping::mlock2::of_program(a b c);
    SYS_mlockall mapping::mlockall::of_program(a);

    SYS_sigaltstack signals::stack::sigaltstack(a b);
    SYS_rt_sigprocmask signals::mask::change_word(a b c);
    SYS_rt_sigaction signals::action::change_by_word(a b c);
}

/// Which argument is a signal mask of one word.
fn mask_of(number: c_long) -> Option<usize> {
    match number {
        libc::SYS_rt_sigsuspend | libc::SYS_rt_sigtimedwait => Some(0),
        libc::SYS_signalfd | libc::SYS_signalfd4 => Some(1),
        libc::SYS_ppoll => Some(3),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some(4),
        _ => None,
    }
}

/// An argument that may be longer than a page, and its bytes.
fn long_argument(number: c_long, words: &[usize; 6]) -> (usize, usize) {
    match number {
        libc::SYS_ppoll => (0, words[1].saturating_mul(size_of::<libc::pollfd>())),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
            (1, words[2].saturating_mul(size_of::<libc::epoll_event>()))
        }
        libc::SYS_getrandom => (0, words[1]),
        libc::SYS_getdents64 | libc::SYS_getdents => (1, words[2]),
        libc::SYS_mq_timedsend | libc::SYS_mq_timedreceive => (1, words[2]),
        libc::SYS_sched_setaffinity | libc::SYS_sched_getaffinity => (2, words[1]),
        _ => (0, 0),
    }
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
    let mut words = [a, b, c, d, e, f];
    if let Some(answer) = routed(number, words) {
        return answer;
    }
    let open: u64;
    let pair: [usize; 2];
    // SAFETY: the program's masks, read in user mode. The copies outlive the call.
    unsafe {
        if let Some(mask) = mask_of(number).map(|index| &mut words[index])
            && *mask != 0
        {
            open = *(*mask as *const u64) & !FAULT_BIT;
            *mask = &raw const open as usize;
        } else if number == libc::SYS_pselect6 && f != 0 && *(f as *const usize) != 0 {
            // Its mask is behind a pointer and a length.
            let [mask, len] = *(f as *const [usize; 2]);
            open = *(mask as *const u64) & !FAULT_BIT;
            pair = [&raw const open as usize, len];
            words[5] = &raw const pair as usize;
        }
    }
    let real = real!(syscall: Call);
    // SAFETY: the program's own arguments, in its own order.
    let call =
        || unsafe { real(number, words[0], words[1], words[2], words[3], words[4], words[5]) };
    if rights::gives_up(number) {
        crate::process::provision::provide();
    }
    match number {
        libc::SYS_futex => futex(&[a, e], d, b, &call),
        libc::SYS_io_setup | libc::SYS_io_uring_setup => {
            c_long::from(refuse(&ASYNCHRONOUS_IO, libc::ENOSYS))
        }
        libc::SYS_execve => {
            exec::attempt(a as *const _, &[b as List, c as List], || call() as c_int).into()
        }
        libc::SYS_execveat => {
            exec::attempt(b as *const _, &[c as List, d as List], || call() as c_int).into()
        }
        // vfork cannot return twice through this function; fork can.
        // SAFETY: no arguments.
        libc::SYS_vfork => fork::bracketed(|| unsafe { real(libc::SYS_fork, 0, 0, 0, 0, 0, 0) }),
        _ if forks(number, a) => fork::bracketed(call),
        _ => guarded::guard(
            |pins: &mut Pins| {
                let (index, bytes) = long_argument(number, &words);
                pins.bytes(words[index] as *const u8, bytes);
                if number == libc::SYS_ptrace {
                    processes::pin_traced(pins, a as c_uint, c, d);
                }
                for pointer in words {
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
