//! Fork: a child with a copy of our memory, whose mappings lost their userfaultfd.
//!
//! Guarantees: `fork`, `daemon`, `forkpty` (through handlers that are registered before anybody
//! else's, so that ours are the last before the fork and the first after it: the child of another's
//! handler would read zeros for what is away), `_Fork`, `clone` and the system calls that fork (see
//! `system_call`) all go through the runtime's `fork_prepare`, `fork_parent` and `fork_child`.
//! Never: touched by children that share the memory (`vfork`, `CLONE_VM`): they share the
//! userfaultfd too.
//!
//! Threads: any; between prepare and parent or child the runtime holds its locks.

use core::ffi::{c_int, c_long, c_void};
use core::mem::ManuallyDrop;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

use deepheap::stream_list;
use libc::pid_t;

use crate::real::real;
use crate::{seam, thread};

extern "C" fn prepare() {
    deepheap::fork_prepare();
}

extern "C" fn parent() {
    deepheap::fork_parent();
}

extern "C" fn child() {
    deepheap::fork_child();
    thread::forked();
}

extern "C" fn prepare_with_streams() {
    stream_list::fork_prepare();
    prepare();
}

extern "C" fn parent_with_streams() {
    parent();
    stream_list::fork_parent();
}

extern "C" fn child_with_streams() {
    child();
    stream_list::fork_child();
}

type Handler = Option<extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// Registers our handlers, if they are not yet; false if libc had no room for them. Whoever
/// allocates first may be the constructor of a library that runs before ours, as may be who forks.
pub fn register() -> bool {
    const NOT_YET: u32 = 0;
    const DONE: u32 = 1;
    const FAILED: u32 = 2;
    static STATE: AtomicU32 = AtomicU32::new(NOT_YET);
    let (order, raw) = (Ordering::AcqRel, Ordering::Acquire);
    if STATE.compare_exchange(NOT_YET, DONE, order, raw).is_ok() {
        deepheap::process::host();
        let (before, after) = (prepare_with_streams as extern "C" fn(), parent_with_streams);
        // SAFETY: three functions that live as long as the process, of no library that is unloaded.
        let outcome = unsafe {
            real!(__register_atfork: Register)(
                Some(before),
                Some(after as extern "C" fn()),
                Some(child_with_streams as extern "C" fn()),
                null_mut(),
            )
        };
        if outcome != 0 {
            STATE.store(FAILED, Ordering::Release);
        }
    }
    STATE.load(Ordering::Acquire) == DONE
}

/// What every library's `pthread_atfork` calls: ours come first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    before: Handler,
    in_parent: Handler,
    in_child: Handler,
    library: *mut c_void,
) -> c_int {
    register();
    // SAFETY: the program's own arguments.
    unsafe { real!(__register_atfork: Register)(before, in_parent, in_child, library) }
}

/// Makes a forking call that runs no atfork handlers.
pub fn bracketed(call: impl FnOnce() -> c_long) -> c_long {
    prepare();
    let outcome = call();
    let errno = seam::errno();
    if outcome == 0 {
        child()
    } else {
        parent()
    }
    seam::set_errno(errno);
    outcome
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    let real = real!(_Fork: unsafe extern "C" fn() -> pid_t);
    // SAFETY: no arguments.
    bracketed(|| c_long::from(unsafe { real() })) as pid_t
}

type Entry = unsafe extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(
    Entry,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// What a child of `clone` runs, handed over in the parent's stack frame, which the child has a
/// copy of.
struct Start {
    entry: Entry,
    argument: *mut c_void,
}

unsafe extern "C" fn start(record: *mut c_void) -> c_int {
    child();
    // SAFETY: the copy of the record that `clone` below made, which nobody drops.
    unsafe {
        let start = &*record.cast::<Start>();
        (start.entry)(start.argument)
    }
}

/// Variadic in C; the three optional arguments travel where the fixed ones would.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    entry: Option<Entry>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_id: *mut c_void,
    storage: *mut c_void,
    child_id: *mut c_void,
) -> c_int {
    let real = real!(clone: Clone);
    let Some(entry) = entry else {
        seam::set_errno(libc::EINVAL);
        return -1;
    };
    if flags & libc::CLONE_VM != 0 {
        // SAFETY: the program's own arguments.
        return unsafe { real(entry, stack, flags, argument, parent_id, storage, child_id) };
    }
    let mut record = ManuallyDrop::new(Start { entry, argument });
    let record = (&raw mut record).cast();
    prepare();
    // SAFETY: the program's own arguments; the child reads its copy of the record.
    let outcome = unsafe { real(start, stack, flags, record, parent_id, storage, child_id) };
    let errno = seam::errno();
    parent();
    seam::set_errno(errno);
    outcome
}
