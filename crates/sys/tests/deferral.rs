//! Deferral: signals that come while a thread is in the fault path, at any instruction of it.
//!
//! Each promise runs in a child of its own. The relay is an ordinary handler here: it lets a signal
//! in where it is.

#![allow(clippy::unwrap_used)] // all of this file is a test

use core::arch::asm;
use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use deepheap_child as child;
use deepheap_sys::PAGE;
use deepheap_sys::faults::{
    deferral,
    fault_signal::{self, Fault, Verdict},
};
use deepheap_sys::memory::mapping;
use deepheap_sys::memory::userfaultfd::Userfaultfd;
use deepheap_sys::threads::signals::{self, SYNCHRONOUS};
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use std::os::unix::thread::JoinHandleExt;

const PAGES: usize = 64;
const STACK_BYTES: usize = 64 << 10;
const THREADS: usize = 4;
/// All signals that can be blocked.
const ALL: u64 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

static UFFD: AtomicPtr<Userfaultfd> = AtomicPtr::new(core::ptr::null_mut());
static MANAGED: AtomicUsize = AtomicUsize::new(0);
static SOURCE: AtomicUsize = AtomicUsize::new(0);
static STACKS: AtomicUsize = AtomicUsize::new(0);
/// What the fault's handler does besides its work.
static ACT: AtomicUsize = AtomicUsize::new(0);
/// Signals that were turned away, and those that were let in.
static DEFERRED: AtomicUsize = AtomicUsize::new(0);
static ADMITTED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The value of the thread's last one; it must be the one before and 1.
    static LAST: Cell<i32> = const { Cell::new(0) };
    static IS_IN_FAULT: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn relay(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own arguments, or those of a fault that is over.
    unsafe {
        if deferral::defer(signal, info, context.cast::<ucontext_t>()) {
            DEFERRED.fetch_add(1, SeqCst);
            return;
        }
        assert!(!IS_IN_FAULT.get(), "let in during a fault");
        ADMITTED.fetch_add(1, SeqCst);
        if signal == libc::SIGRTMIN() {
            let value = (*info).si_value().sival_ptr as usize as i32;
            assert_eq!(LAST.replace(value) + 1, value, "in order");
        }
        if signal == libc::SIGBUS {
            let theirs = fault_signal::begin_previous();
            assert_ne!(theirs.sa_sigaction, libc::SIG_DFL);
        }
    }
}

fn ours(fault: &Fault) -> Verdict {
    let page = fault.address & !(PAGE - 1);
    if !(0..PAGES * PAGE).contains(&page.wrapping_sub(MANAGED.load(Relaxed))) {
        return Verdict::NotOurs;
    }
    IS_IN_FAULT.set(true);
    let act = ACT.load(Relaxed) as *const ();
    if !act.is_null() {
        // SAFETY: the tests store functions of this type.
        unsafe { core::mem::transmute::<*const (), fn()>(act)() };
    }
    // SAFETY: leaked by `prepare`; the address is registered, the source a page of its own.
    unsafe {
        let source = SOURCE.load(Relaxed) as *const u8;
        (*UFFD.load(Relaxed)).copy(page, source, PAGE).unwrap();
    }
    IS_IN_FAULT.set(false);
    Verdict::Retry
}

/// Gives the calling thread the signal stack of that number.
fn take_stack(number: usize) {
    let bottom = STACKS.load(Relaxed) + number * STACK_BYTES;
    // SAFETY: within the reservation; this thread's own part of it.
    unsafe {
        mapping::commit(bottom as *mut u8, STACK_BYTES).unwrap();
        let stack = deferral::alternate(bottom, STACK_BYTES).unwrap();
        assert_eq!(libc::sigaltstack(&stack, core::ptr::null_mut()), 0);
    }
}

fn catch(signal: c_int) {
    // SAFETY: a handler with three arguments, as its flags say.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = relay as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        (&raw mut action.sa_mask).cast::<u64>().write(!SYNCHRONOUS);
        assert_eq!(libc::sigaction(signal, &action, core::ptr::null_mut()), 0);
    }
}

/// Whether the kernel blocks no signals for the fault's handler.
fn is_open() -> bool {
    // SAFETY: the kernel's action has four words.
    unsafe {
        let mut action = [0u64; 4];
        let at = (&raw mut action).cast::<c_void>();
        let none = core::ptr::null::<c_void>();
        assert_eq!(libc::syscall(libc::SYS_rt_sigaction, libc::SIGBUS, none, at, 8), 0);
        let is_deferring = action[1] as c_int & libc::SA_NODEFER == 0;
        assert_eq!(action[3], if is_deferring { ALL } else { 0 });
        !is_deferring
    }
}

fn prepare_without_checks() {
    let memory = mapping::map_pinned(PAGES * PAGE).unwrap();
    let source = mapping::map_pinned(PAGE).unwrap();
    // SAFETY: a page of our own.
    unsafe { source.write_bytes(5, PAGE) };
    let uffd = Box::new(Userfaultfd::open().unwrap());
    uffd.register_missing(memory as usize, PAGES * PAGE).unwrap();
    UFFD.store(Box::into_raw(uffd), SeqCst);
    MANAGED.store(memory as usize, SeqCst);
    SOURCE.store(source as usize, SeqCst);
    // The harness has handlers for overflows of stacks.
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let stacks = deferral::reserve(STACK_BYTES * (THREADS + 1), relay as *const () as usize);
    STACKS.store(stacks.unwrap(), SeqCst);
    take_stack(0);
    catch(libc::SIGUSR1);
    catch(libc::SIGRTMIN());
    fault_signal::install(ours).unwrap();
}

/// As `prepare_without_checks`, where the kernel blocks no signals.
fn prepare() {
    prepare_without_checks();
    assert!(is_open());
}

/// Reads the first byte of a page.
fn touch(page: usize) {
    // SAFETY: mapped by `prepare`.
    let byte = unsafe { ((MANAGED.load(Relaxed) + page * PAGE) as *const u8).read_volatile() };
    assert_eq!(byte, 5);
}

fn drop_pages(first: usize, pages: usize) {
    let start = MANAGED.load(Relaxed) + first * PAGE;
    // SAFETY: mapped by `prepare`; nobody needs what is there.
    unsafe {
        assert_eq!(libc::madvise(start as *mut c_void, pages * PAGE, libc::MADV_DONTNEED), 0)
    };
}

fn queue_for(thread: libc::pthread_t, value: i32) {
    let value = libc::sigval { sival_ptr: value as usize as *mut c_void };
    // SAFETY: no memory arguments. The call is no cancellation point.
    unsafe { assert_eq!(pthread_sigqueue(thread, libc::SIGRTMIN(), value), 0) };
}

/// Sends this thread the next value.
fn queue(value: i32) {
    // SAFETY: no arguments.
    queue_for(unsafe { libc::pthread_self() }, value);
}

unsafe extern "C" {
    fn pthread_sigqueue(thread: libc::pthread_t, signal: c_int, value: libc::sigval) -> c_int;
    #[link_name = "deepheap_fault_end"]
    fn end();
    #[link_name = "deepheap_fault_return"]
    fn last();
}

/// Runs `body` in a child; answers its wait status.
fn in_child(body: impl FnOnce()) -> i32 {
    child::wait(child::fork(body))
}

fn dies_of(status: i32, signal: c_int) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal
}

#[test]
fn signals_in_a_fault_come_after_it_in_their_order() {
    fn send() {
        queue(1);
        queue(2);
        // SAFETY: no memory arguments.
        unsafe { libc::raise(libc::SIGUSR1) };
        queue(3);
    }
    let status = in_child(|| {
        prepare();
        let mask = signals::mask();
        ACT.store(send as *const () as usize, SeqCst);
        for fault in 0..PAGES {
            LAST.set(0);
            touch(fault);
            assert_eq!(ADMITTED.load(SeqCst), (fault + 1) * 4);
            assert_eq!(
                DEFERRED.load(SeqCst),
                fault + 1,
                "the first of a fault; others are blocked"
            );
            assert_eq!(LAST.get(), 3);
            assert_eq!(signals::mask(), mask);
        }
        assert!(is_open());
    });
    assert_eq!(status, 0);
}

static STEPS: AtomicUsize = AtomicUsize::new(0);
static TARGET: AtomicUsize = AtomicUsize::new(0);
const TRAP_FLAG: i64 = 0x100;

/// Counts the instructions at the end of a fault, and sends a signal before that of number
/// `TARGET`.
extern "C" fn step(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's context.
    let registers = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    let (end, last) = (end as *const () as usize, last as *const () as usize);
    let sends = (end..=last).contains(&at) && STEPS.fetch_add(1, SeqCst) == TARGET.load(SeqCst);
    if sends {
        queue(LAST.get() + 1);
    }
    if sends || at == last {
        registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
    }
}

#[test]
fn a_signal_at_any_instruction_of_a_faults_end_comes_once() {
    /// From the next instruction on each one traps, until the kernel takes the context back.
    fn begin_steps() {
        // SAFETY: the flags of this thread; `step` handles the traps.
        unsafe { asm!("pushf", "or qword ptr [rsp], 0x100", "popf") };
    }
    let status = in_child(|| {
        prepare();
        ACT.store(begin_steps as *const () as usize, SeqCst);
        // SAFETY: a handler with three arguments. It blocks all others.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = step as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigfillset(&mut action.sa_mask);
            assert_eq!(libc::sigaction(libc::SIGTRAP, &action, core::ptr::null_mut()), 0);
        }
        for target in 0.. {
            TARGET.store(target, SeqCst);
            STEPS.store(0, SeqCst);
            drop_pages(0, 1);
            touch(0);
            if STEPS.load(SeqCst) <= target {
                assert!(target >= 6, "{target} steps are not the end of the handler");
                break;
            }
            assert_eq!(LAST.get(), target as i32 + 1, "before instruction {target}");
            assert_eq!(ADMITTED.load(SeqCst), target + 1);
            assert_eq!(DEFERRED.load(SeqCst), target + 1);
        }
    });
    assert_eq!(status, 0);
}

static IS_OVER: AtomicBool = AtomicBool::new(false);

#[test]
fn signals_at_any_time_in_faults_of_several_threads_come_once_and_in_order() {
    const ROUND: i32 = 20;
    const DEFERRED_WANTED: usize = 50;
    let status = in_child(|| {
        prepare();
        let threads: Vec<_> = (1..=THREADS)
            .map(|number| {
                std::thread::spawn(move || {
                    // std has given the thread a stack of its own.
                    take_stack(number);
                    let pages = PAGES / THREADS;
                    let first = (number - 1) * pages;
                    while !IS_OVER.load(SeqCst) {
                        (first..first + pages).for_each(touch);
                        drop_pages(first, pages);
                    }
                })
            })
            .collect();
        let mut value = 0;
        while DEFERRED.load(SeqCst) < DEFERRED_WANTED {
            for _ in 0..ROUND {
                value += 1;
                threads.iter().for_each(|thread| queue_for(thread.as_pthread_t(), value));
            }
            while ADMITTED.load(SeqCst) < value as usize * THREADS {
                std::thread::yield_now();
            }
        }
        IS_OVER.store(true, SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(ADMITTED.load(SeqCst), value as usize * THREADS);
        assert!(is_open());
    });
    assert_eq!(status, 0);
}

/// What `act` sends in a fault is let in after it: so many signals.
fn comes_after_the_fault(act: fn(), signals: usize) {
    let status = in_child(|| {
        prepare();
        ACT.store(act as *const () as usize, SeqCst);
        catch(libc::SIGSEGV);
        // SAFETY: zeroed is a valid sigaction.
        let mut theirs: libc::sigaction = unsafe { core::mem::zeroed() };
        theirs.sa_sigaction = relay as *const () as usize;
        fault_signal::set_previous(theirs);
        let mask = signals::mask();
        touch(0);
        assert_eq!(ADMITTED.load(SeqCst), signals);
        assert_eq!(signals::mask(), mask);
        touch(1);
        assert!(is_open());
    });
    assert_eq!(status, 0);
}

/// Sends a signal, once.
fn send_once(signal: c_int) {
    static IS_SENT: AtomicBool = AtomicBool::new(false);
    if !IS_SENT.swap(true, SeqCst) {
        // SAFETY: no memory arguments.
        unsafe { libc::raise(signal) };
        assert_eq!(ADMITTED.load(SeqCst), 0);
    }
}

fn send_bus() {
    send_once(libc::SIGBUS);
}

fn queue_and_send_bus() {
    if LAST.get() == 0 {
        queue(1);
    }
    send_bus();
}

#[test]
fn signals_of_faults_that_are_sent_in_a_fault_come_after_it() {
    comes_after_the_fault(|| send_once(libc::SIGSEGV), 1);
    comes_after_the_fault(send_bus, 1);
    comes_after_the_fault(queue_and_send_bus, 2);
}

#[test]
fn a_fault_of_the_fault_path_kills() {
    fn touch_another() {
        touch(9);
    }
    fn touch_nothing() {
        // SAFETY: none: it must kill.
        unsafe { asm!("mov eax, [8]", out("eax") _) };
    }
    let breaks: [(fn(), c_int); 2] =
        [(touch_another, libc::SIGBUS), (touch_nothing, libc::SIGSEGV)];
    for (act, signal) in breaks {
        for is_caught in [false, true] {
            let status = in_child(|| {
                prepare();
                ACT.store(act as *const () as usize, SeqCst);
                if is_caught {
                    catch(libc::SIGSEGV);
                }
                touch(0);
            });
            assert!(dies_of(status, signal), "{status:#x}");
        }
    }
}

#[test]
fn an_alternate_stack_of_the_program_ends_it() {
    let status = in_child(|| {
        prepare();
        touch(0);
        let stack = mapping::map_pinned(4 * PAGE).unwrap();
        let stack = libc::stack_t { ss_sp: stack.cast(), ss_flags: 0, ss_size: 4 * PAGE };
        // SAFETY: mapped above.
        unsafe { assert_eq!(libc::sigaltstack(&stack, core::ptr::null_mut()), 0) };
        assert!(is_open());
        ACT.store(
            (|| assert_eq!(!signals::mask() & !(1 << 8 | 1 << 18), 0)) as fn() as usize,
            SeqCst,
        );
        touch(1);
        assert!(!is_open());
        touch(2);
    });
    assert_eq!(status, 0);
}

#[test]
fn a_handler_that_is_not_relayed_rules_it_out() {
    extern "C" fn theirs(_: c_int) {}
    let status = in_child(|| {
        // SAFETY: a handler with one argument.
        unsafe { libc::signal(libc::SIGWINCH, theirs as *const () as usize) };
        prepare_without_checks();
        assert!(!is_open());
        touch(0);
    });
    assert_eq!(status, 0);
}
