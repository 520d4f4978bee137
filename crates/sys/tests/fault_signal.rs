//! Fault signal: who gets a SIGBUS, and what the program's own handler may do in it.
//!
//! SIGBUS is one for a process: each promise runs in a child of its own, which answers by how it
//! ends.

#![allow(clippy::unwrap_used)] // all of this file is a test

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicUsize};
use deepheap_child as child;
use deepheap_sys::PAGE;
use deepheap_sys::faults::fault_signal::{self, Fault, Verdict};
use deepheap_sys::memory::mapping;
use deepheap_sys::memory::userfaultfd::{Copy, Userfaultfd};
use deepheap_sys::threads::signals;

static UFFD: AtomicPtr<Userfaultfd> = AtomicPtr::new(core::ptr::null_mut());
static MANAGED: AtomicUsize = AtomicUsize::new(0);
static SOURCE: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static CHAINED: AtomicUsize = AtomicUsize::new(0);

const PAGES: usize = 16;

/// Ours: pages 0..8 are filled with 5, 8..12 are not ours, 12..16 are ours and lost.
fn ours(fault: &Fault) -> Verdict {
    HANDLED.fetch_add(1, Relaxed);
    // SAFETY: as under `Saved`: an errno of the handler's own must not be seen by the program.
    unsafe { *libc::__errno_location() = libc::EXDEV };
    let page = fault.address.wrapping_sub(MANAGED.load(Relaxed)) / PAGE;
    match page {
        0..8 => {
            // SAFETY: leaked by `prepare`; the address is registered, the source a page of its own.
            let copied = unsafe {
                (*UFFD.load(Relaxed)).copy(
                    fault.address & !(PAGE - 1),
                    SOURCE.load(Relaxed) as *const u8,
                    PAGE,
                )
            };
            assert_eq!(copied, Ok(Copy::Done));
            Verdict::Retry
        }
        12..16 => Verdict::Fatal,
        _ => Verdict::NotOurs,
    }
}

/// The program's: puts zeros in place of the page that was touched, so that the access succeeds.
extern "C" fn theirs(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    CHAINED.fetch_add(1, Relaxed);
    // SAFETY: the kernel's info; nobody needs what is there.
    unsafe {
        let address = (*info).si_addr() as usize & !(PAGE - 1);
        // A managed page, touched inside the program's handler, is ours as ever.
        assert_eq!(touch(7), 5);
        if (*info).si_code > 0 {
            mapping::replace(address as *mut u8, PAGE).unwrap();
        }
    }
}

fn prepare() {
    let memory = mapping::map_pinned(PAGES * PAGE).unwrap();
    let source = mapping::map_pinned(PAGE).unwrap();
    // SAFETY: a page of our own.
    unsafe { source.write_bytes(5, PAGE) };
    let uffd = Box::new(Userfaultfd::open().unwrap());
    uffd.register_missing(memory as usize, PAGES * PAGE).unwrap();
    UFFD.store(Box::into_raw(uffd), SeqCst);
    MANAGED.store(memory as usize, SeqCst);
    SOURCE.store(source as usize, SeqCst);
}

/// Reads the first byte of a page.
fn touch(page: usize) -> u8 {
    // SAFETY: mapped by `prepare`.
    unsafe { ((MANAGED.load(Relaxed) + page * PAGE) as *const u8).read_volatile() }
}

fn action(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: zeroed is a valid sigaction.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

fn install_theirs(flags: i32) {
    let action = action(theirs as *const () as usize, flags | libc::SA_SIGINFO);
    // SAFETY: a handler with three arguments, as its flags say.
    unsafe { assert_eq!(libc::sigaction(libc::SIGBUS, &action, core::ptr::null_mut()), 0) };
}

/// Runs `body` in a child; answers its wait status.
fn in_child(body: fn()) -> i32 {
    child::wait(child::fork(body))
}

fn dies_of_sigbus(status: i32) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS
}

#[test]
fn a_fault_of_ours_is_repaired_and_errno_kept() {
    let status = in_child(|| {
        prepare();
        fault_signal::install(ours).unwrap();
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOSPC };
        assert_eq!(touch(0), 5);
        assert_eq!(deepheap_sys::Errno::last(), deepheap_sys::Errno::ENOSPC);
        // SAFETY: mapped by `prepare`.
        unsafe { ((MANAGED.load(Relaxed) + PAGE) as *mut u8).write_volatile(1) };
        assert_eq!(HANDLED.load(Relaxed), 2);
    });
    assert_eq!(status, 0);
}

#[test]
fn a_fault_that_is_not_ours_goes_to_the_programs_handler() {
    let status = in_child(|| {
        prepare();
        install_theirs(0);
        fault_signal::install(ours).unwrap();
        let mask = signals::mask();
        assert_eq!(touch(8), 0);
        assert_eq!(CHAINED.load(Relaxed), 1);
        assert_eq!(signals::mask(), mask);
        assert_eq!(HANDLED.load(Relaxed), 2, "the touch in the program's handler was ours");
        // Sent, not caused: the handler is not asked, the program is.
        // SAFETY: no memory arguments.
        unsafe { libc::raise(libc::SIGBUS) };
        assert_eq!((CHAINED.load(Relaxed), HANDLED.load(Relaxed)), (2, 2));
    });
    assert_eq!(status, 0);
}

/// Sends this thread a SIGBUS as the kernel does for the first page of ours.
fn send_fault(code: i32) {
    // SAFETY: zeroed is a valid siginfo; the kernel copies it, and its address lies at byte 16.
    unsafe {
        let mut info: libc::siginfo_t = core::mem::zeroed();
        (info.si_signo, info.si_code) = (libc::SIGBUS, code);
        (&raw mut info).cast::<usize>().add(2).write(MANAGED.load(Relaxed));
        let (process, thread) = (libc::getpid(), libc::gettid());
        let call = libc::SYS_rt_tgsigqueueinfo;
        assert_eq!(libc::syscall(call, process, thread, libc::SIGBUS, &raw const info), 0);
    }
}

#[test]
fn memory_errors_go_to_the_program() {
    let status = in_child(|| {
        prepare();
        install_theirs(0);
        fault_signal::install(ours).unwrap();
        for (index, code) in [libc::BUS_MCEERR_AR, libc::BUS_MCEERR_AO].into_iter().enumerate() {
            send_fault(code);
            assert_eq!(CHAINED.load(Relaxed), index + 1);
            assert_eq!(HANDLED.load(Relaxed), 1, "the touch in the program's handler was ours");
        }
        // Nobody has touched it yet: the program may ignore that.
        fault_signal::set_previous(action(libc::SIG_IGN, 0));
        send_fault(libc::BUS_MCEERR_AO);
    });
    assert_eq!(status, 0);
    let status = in_child(|| {
        prepare();
        fault_signal::install(ours).unwrap();
        fault_signal::set_previous(action(libc::SIG_DFL, 0));
        send_fault(libc::BUS_MCEERR_AO);
    });
    assert!(dies_of_sigbus(status), "{status:#x}");
}

#[test]
fn a_handler_that_is_reset_when_called_is_called_once() {
    let status = in_child(|| {
        prepare();
        install_theirs(libc::SA_RESETHAND);
        fault_signal::install(ours).unwrap();
        touch(8);
        assert_eq!(CHAINED.load(Relaxed), 1);
        touch(9);
    });
    assert!(dies_of_sigbus(status), "{status:#x}");
}

#[test]
fn without_a_handler_of_the_program_the_access_dies_of_sigbus() {
    for page in [9, 13] {
        static PAGE_TOUCHED: AtomicUsize = AtomicUsize::new(0);
        PAGE_TOUCHED.store(page, Relaxed);
        for handler in [libc::SIG_DFL, libc::SIG_IGN] {
            static HANDLER: AtomicUsize = AtomicUsize::new(0);
            HANDLER.store(handler, Relaxed);
            let status = in_child(|| {
                prepare();
                fault_signal::install(ours).unwrap();
                fault_signal::set_previous(action(HANDLER.load(Relaxed), 0));
                touch(PAGE_TOUCHED.load(Relaxed));
            });
            assert!(dies_of_sigbus(status), "{status:#x}");
        }
    }
}

#[test]
fn a_sent_sigbus_kills_by_default_and_is_ignored_if_the_program_says_so() {
    let sent = || {
        prepare();
        fault_signal::install(ours).unwrap();
        // Rust's own handler, for stack overflows, is there from the start of the process.
        fault_signal::set_previous(action(libc::SIG_DFL, 0));
        // SAFETY: no memory arguments.
        unsafe { libc::raise(libc::SIGBUS) };
    };
    assert!(dies_of_sigbus(in_child(sent)));
    let ignored = || {
        prepare();
        fault_signal::install(ours).unwrap();
        fault_signal::set_previous(action(libc::SIG_IGN, 0));
        // SAFETY: no memory arguments.
        unsafe { libc::raise(libc::SIGBUS) };
        assert_eq!(touch(0), 5);
    };
    assert_eq!(in_child(ignored), 0);
}

#[test]
fn previous_is_what_was_set_and_is_whole_while_it_changes() {
    let status = in_child(|| {
        prepare();
        install_theirs(libc::SA_NODEFER);
        fault_signal::install(ours).unwrap();
        let previous = fault_signal::previous();
        assert_eq!(previous.sa_sigaction, theirs as *const () as usize);
        assert_eq!(previous.sa_flags, libc::SA_SIGINFO | libc::SA_NODEFER);
        let old = fault_signal::set_previous(action(1000, 1000));
        assert_eq!(old.sa_sigaction, theirs as *const () as usize);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for value in 1000..11_000 {
                        fault_signal::set_previous(action(value, value as i32));
                    }
                });
            }
            for _ in 0..100_000 {
                let previous = fault_signal::previous();
                assert_eq!(previous.sa_sigaction, previous.sa_flags as usize);
            }
        });
    });
    assert_eq!(status, 0);
}

/// Gives the thread an alternate stack of little more than the kernel's frame.
fn use_a_small_alternate_stack() {
    // SAFETY: getauxval has no memory arguments.
    let frame = unsafe {
        libc::getauxval(51 /* AT_MINSIGSTKSZ */)
    };
    let small = frame as usize + 2048;
    let stack = mapping::map_pinned(2 * PAGE + small).unwrap();
    let stack = libc::stack_t { ss_sp: stack.cast(), ss_flags: 0, ss_size: small };
    // SAFETY: mapped above.
    unsafe { assert_eq!(libc::sigaltstack(&stack, core::ptr::null_mut()), 0) };
}

#[test]
fn the_handler_runs_on_the_programs_alternate_stack_and_a_small_one_is_enough() {
    let status = in_child(|| {
        prepare();
        fault_signal::install(ours).unwrap();
        use_a_small_alternate_stack();
        assert_eq!(touch(0), 5);
    });
    assert_eq!(status, 0);
}

/// Needs more stack than a handler has.
fn insatiable(_: &Fault) -> Verdict {
    let stack = core::hint::black_box([1u8; 80 << 10]);
    assert_eq!(stack[70 << 10], 1);
    Verdict::Fatal
}

#[test]
fn a_handler_that_outgrows_its_stack_ends_at_the_page_below() {
    let status = in_child(|| {
        prepare();
        fault_signal::install(insatiable).unwrap();
        use_a_small_alternate_stack();
        touch(0);
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
}
