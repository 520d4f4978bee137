//! Thread: the start and the end of every thread of the program.
//!
//! Guarantees: when the program's last thread ends, the process does, with status 0, although
//! workers of the runtime are left. A thread has its signal stack before its own code runs and
//! believes about SIGBUS what its creator did; at its end the runtime's caches are flushed and the
//! signal stack is given back, after the program's own key destructors. A stack the program
//! provides from the heap is pinned for good.
//!
//! Threads: `pthread_create` from any; the start runs in the new thread.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use libc::{pthread_attr_t, pthread_key_t, pthread_t};

use crate::pins::Pins;
use crate::program_call::for_program;
use crate::real::real;
use crate::waiting::hold_for_good;
use crate::{plain, signal_stack, thread_state};

type Body = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Body, *mut c_void) -> c_int;

/// Destructors of other keys may free memory; ours comes back to be last.
const ROUNDS: usize = 3;
const NO_KEY: u32 = u32::MAX;
static EXIT_KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// Threads of the program that live. libc counts too, but counts the runtime's workers as well.
static LIVING: AtomicUsize = AtomicUsize::new(1);

/// What a new thread runs; freed by it.
struct Start {
    body: Body,
    argument: *mut c_void,
    believes_blocked: bool,
}

for_program! {
    fn pthread_create(
        thread: *mut pthread_t, attributes: *const pthread_attr_t, body: Body,
        argument: *mut c_void,
    ) -> c_int => create_for_program;
}

unsafe extern "C" fn create_for_program(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    body: Body,
    argument: *mut c_void,
) -> c_int {
    let real = real!(pthread_create: Create);
    let mut pins = Pins::new();
    pins.value(attributes);
    pin_stack(attributes);
    // SAFETY: this thread's own block; a plain record that the new thread owns and frees, or, if
    // there is none, we do; the identity is handed over in user mode.
    unsafe {
        let believes_blocked = (*thread_state::current()).believes_blocked;
        let record = plain::malloc(size_of::<Start>()).cast::<Start>();
        if record.is_null() {
            return libc::EAGAIN;
        }
        record.write(Start { body, argument, believes_blocked });
        LIVING.fetch_add(1, Ordering::Relaxed);
        let outcome = real(thread, attributes, start, record.cast());
        if outcome != 0 {
            LIVING.fetch_sub(1, Ordering::Relaxed);
            plain::free(record.cast());
        }
        outcome
    }
}

/// libc keeps the thread's descriptor on its stack, and the kernel writes to it (rseq, the identity
/// word that `pthread_join` waits on) without asking us.
fn pin_stack(attributes: *const pthread_attr_t) {
    if attributes.is_null() {
        return;
    }
    let (mut bottom, mut bytes) = (null_mut(), 0);
    // SAFETY: the program's attributes, and places for the answers.
    let known = unsafe { libc::pthread_attr_getstack(attributes, &mut bottom, &mut bytes) } == 0;
    if known {
        hold_for_good(bottom as usize, bytes);
    }
}

extern "C" fn start(record: *mut c_void) -> *mut c_void {
    // SAFETY: the record `create_for_program` made for this thread alone.
    let start = unsafe {
        let start = record.cast::<Start>().read();
        plain::free(record);
        (*thread_state::current()).believes_blocked = start.believes_blocked;
        start
    };
    signal_stack::enter();
    arm_exit(1);
    (start.body)(start.argument)
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
    deepheap::thread_exit();
    signal_stack::leave();
}

/// In a forked child there is one thread.
pub fn forked() {
    LIVING.store(1, Ordering::Relaxed);
}

/// Makes the key and prepares the first thread. Without a key, threads keep their caches when they
/// end.
pub fn prepare() {
    let mut key: pthread_key_t = 0;
    // SAFETY: a place for the key and a destructor that lives as long as the process.
    if unsafe { libc::pthread_key_create(&mut key, Some(at_exit)) } == 0 {
        EXIT_KEY.store(key, Ordering::Relaxed);
    }
    signal_stack::enter();
    arm_exit(1);
}
