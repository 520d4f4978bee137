//! Start: the beginning and the end of every thread of the program.
//!
//! The program's threads are those of `pthread_create` and `thrd_create`, those that call a
//! SIGEV_THREAD function, and libc's own that start the latter and never end.
//!
//! Guarantees:
//! - When the program's last thread ends, the process ends with status 0, although workers of the
//!   runtime are left.
//! - A thread has its signal stack before its own code runs, and believes about SIGBUS what its
//!   creator did.
//! - At its end, after the program's own key destructors, the runtime's caches are flushed and the
//!   signal stack is given back.
//! - A thread's stack on the heap is pinned while the thread lives (`stack`).
//!
//! Threads: `pthread_create` from any; `start` runs in the new thread.

use core::ffi::{c_int, c_void};
use core::ptr::null;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use libc::{clockid_t, mqd_t, pthread_attr_t, pthread_key_t, pthread_t, sigevent, timespec};

use crate::buffers::guarded::guard;
use crate::buffers::pins::Pins;
use crate::calls::{Argument, Opaque, calls};
use crate::memory::plain;
use crate::process::sharing;
use crate::real::real;
use crate::refusal::refused;
use crate::signals;
use crate::threads;
use crate::threads::stack::OwnStack;

type Posix = extern "C" fn(*mut c_void) -> *mut c_void;
type C11 = extern "C" fn(*mut c_void) -> c_int;
type Create =
    unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Posix, *mut c_void) -> c_int;

/// The function of a thread, as the program wrote it.
#[derive(Clone, Copy)]
enum Body {
    Posix(Posix),
    C11(C11),
}

/// How often our key's destructor runs. Others may free memory, so ours comes back to be last.
const ROUNDS: usize = 3;
const NO_KEY: u32 = u32::MAX;
static EXIT_KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// Living threads of the program. libc's count includes the runtime's workers.
static LIVING: AtomicUsize = AtomicUsize::new(1);

/// The function of a new thread; freed by it.
struct Start {
    body: Body,
    argument: *mut c_void,
    believes_blocked: bool,
    stack: Option<&'static OwnStack>,
}

/// The results of C11's functions.
const THRD_ERROR: c_int = 2;
const THRD_NOMEM: c_int = 3;

calls! {
    fn pthread_create(
        thread: *mut pthread_t, attributes: *const pthread_attr_t, body: Posix,
        argument: *mut c_void,
    ) -> c_int = program(|_real| create(thread, attributes, Body::Posix(body), argument));
    fn thrd_create(thread: *mut pthread_t, body: C11, argument: *mut c_void) -> c_int = same({
        // A `thrd_t` is a `pthread_t`.
        match create(thread, null(), Body::C11(body), argument) {
            0 => 0,
            libc::ENOMEM => THRD_NOMEM,
            _ => THRD_ERROR,
        }
    });
    fn pthread_join, pthread_tryjoin_np(thread: pthread_t, result: Opaque)
        -> c_int = by(|real| threads::stack::joined(thread, real(thread, result)));
    fn pthread_timedjoin_np(thread: pthread_t, result: Opaque, until: *const timespec)
        -> c_int = by(|real| {
        let _held = until.hold();
        threads::stack::joined(thread, real(thread, result, until))
    });
    fn pthread_clockjoin_np(
        thread: pthread_t, result: Opaque, clock: clockid_t, until: *const timespec,
    ) -> c_int = by(|real| {
        let _held = until.hold();
        threads::stack::joined(thread, real(thread, result, clock, until))
    });
    fn timer_create @ c"GLIBC_2.3.3"(
        clock: clockid_t, event: *const sigevent, timer: *mut *mut c_void,
    ) -> c_int = by(|real| {
        let _held = timer.hold();
        with_notice(event, notify, &TIMERS, &|event| real(clock, event, timer))
    });
    fn mq_notify(queue: mqd_t, event: *const sigevent) -> c_int
        = by(|real| with_notice(event, notify_once, &QUEUES, &|event| real(queue, event)));
}

/// Starts a thread of the program: `pthread_create`.
fn create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    body: Body,
    argument: *mut c_void,
) -> c_int {
    let real = real!(pthread_create: Create);
    let mut pins = Pins::new();
    pins.value(attributes);
    // SAFETY: the program's attributes, or null.
    let stack = unsafe { threads::stack::hold(attributes) };
    // SAFETY: this thread's own area; a plain record that the new thread owns and frees, or, if
    // there is none, we do; the identity is handed over in user mode.
    unsafe {
        let believes_blocked = (*deepheap::internal::thread_area()).believes_blocked;
        let record = plain::malloc(size_of::<Start>()).cast::<Start>();
        let mut outcome = libc::EAGAIN;
        if !record.is_null() {
            record.write(Start { body, argument, believes_blocked, stack });
            LIVING.fetch_add(1, Ordering::Relaxed);
            outcome = real(thread, attributes, start, record.cast());
        }
        if outcome != 0 {
            if !record.is_null() {
                LIVING.fetch_sub(1, Ordering::Relaxed);
            }
            plain::free(record.cast());
            stack.inspect(|stack| stack.end());
        }
        outcome
    }
}

extern "C" fn start(record: *mut c_void) -> *mut c_void {
    // SAFETY: the record `create` made for this thread alone.
    let start = unsafe {
        let start = record.cast::<Start>().read();
        plain::free(record);
        (*deepheap::internal::thread_area()).believes_blocked = start.believes_blocked;
        start
    };
    start.stack.inspect(|stack| stack.begin());
    signals::stack::enter();
    arm_exit(1);
    match start.body {
        Body::Posix(body) => body(start.argument),
        // As `thrd_join` reads it.
        Body::C11(body) => body(start.argument) as usize as *mut c_void,
    }
}

/// The argument of a SIGEV_THREAD function. libc makes a thread for each call.
struct Notice {
    body: extern "C" fn(usize),
    value: usize,
}

/// `struct sigevent` as far as SIGEV_THREAD uses it; the libc crate hides the end.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    value: usize,
    signal: c_int,
    kind: c_int,
    body: extern "C" fn(usize),
    attributes: *const pthread_attr_t,
    _rest: [usize; 4],
}
const _: () = assert!(size_of::<Event>() == size_of::<sigevent>());

/// libc's threads that never end and start the others, one for timers and one for message queues.
static TIMERS: AtomicBool = AtomicBool::new(false);
static QUEUES: AtomicBool = AtomicBool::new(false);

/// Calls the program's function in a thread that libc made for a message queue, which calls once.
extern "C" fn notify_once(notice: usize) {
    // SAFETY: the record `with_notice` made for this one call.
    let told = unsafe {
        let told = (notice as *const Notice).read();
        plain::free(notice as *mut c_void);
        told
    };
    tell(&told);
}

/// As `notify_once`, for timers, which keep their record.
extern "C" fn notify(notice: usize) {
    // SAFETY: the record `with_notice` made, never freed: nothing tells when a timer's last thread
    // has begun.
    tell(unsafe { &*(notice as *const Notice) });
}

fn tell(notice: &Notice) {
    LIVING.fetch_add(1, Ordering::Relaxed);
    signals::mask::open_in_foreign_thread();
    signals::stack::enter();
    arm_exit(1);
    (notice.body)(notice.value);
}

/// Makes the call with an event whose function is one of ours, if the event asks for a thread.
fn with_notice(
    event: *const sigevent,
    notify: extern "C" fn(usize),
    starter: &AtomicBool,
    call: &dyn Fn(*const sigevent) -> c_int,
) -> c_int {
    // SAFETY: the program's own event, or null.
    let asked = unsafe { event.cast::<Event>().as_ref() };
    let Some(asked) = asked.filter(|asked| asked.kind == libc::SIGEV_THREAD) else {
        return guard(|pins| pins.value(event), || call(event));
    };
    // SAFETY: the program's attributes, or null.
    unsafe { threads::stack::hold_for_good(asked.attributes) };
    let mut pins = Pins::new();
    pins.value(asked.attributes);
    // SAFETY: a plain record for `notify`.
    unsafe {
        let record = plain::malloc(size_of::<Notice>()).cast::<Notice>();
        if record.is_null() {
            return refused(libc::EAGAIN);
        }
        record.write(Notice { body: asked.body, value: asked.value });
        let ours = Event { body: notify, value: record as usize, ..*asked };
        let outcome = call((&raw const ours).cast());
        if outcome != 0 {
            plain::free(record.cast());
        } else if !starter.swap(true, Ordering::Relaxed) {
            LIVING.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }
}

/// Has `at_exit` called, `round` deep, when the calling thread ends.
fn arm_exit(round: usize) {
    let key = EXIT_KEY.load(Ordering::Relaxed);
    if key != NO_KEY {
        // SAFETY: our own key; the value is a small number, never followed.
        unsafe { libc::pthread_setspecific(key, round as *const c_void) };
    }
}

extern "C" fn at_exit(round: *mut c_void) {
    let round = round as usize;
    if round < ROUNDS {
        arm_exit(round + 1);
        return;
    }
    if LIVING.fetch_sub(1, Ordering::AcqRel) == 1 {
        // As libc does when its count falls to nothing.
        // SAFETY: the last thread of the program; what runs at exit runs here.
        unsafe { libc::exit(0) };
    }
    deepheap::internal::thread_exit();
    signals::stack::leave();
}

/// In a forked child there is one thread.
pub fn forked() {
    sharing::note();
    threads::stack::forked();
    TIMERS.store(false, Ordering::Relaxed);
    QUEUES.store(false, Ordering::Relaxed);
    LIVING.store(1, Ordering::Relaxed);
}

/// Makes the key and prepares the first thread, which may have begun with SIGBUS blocked. Without a
/// key, threads keep their caches when they end.
pub fn prepare() {
    sharing::note();
    signals::mask::open_in_foreign_thread();
    let mut key: pthread_key_t = 0;
    // SAFETY: a place for the key and a destructor that lives as long as the process.
    if unsafe { libc::pthread_key_create(&mut key, Some(at_exit)) } == 0 {
        EXIT_KEY.store(key, Ordering::Relaxed);
    }
    signals::stack::enter();
    arm_exit(1);
}
