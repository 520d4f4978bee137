//! Fork: a child with a copy of our memory, whose mappings lost their userfaultfd.
//!
//! Every way to fork calls the runtime's `fork_prepare`, then `fork_parent` and `fork_child`.
//! `fork`, `daemon` and `forkpty` do so through atfork handlers. `_Fork`, `clone` and the system
//! calls that fork (see `system_call`) are bracketed here.
//!
//! Guarantees: our atfork handlers are registered before all others. So they run last before the
//! fork and first after it: another handler in the child would read zeros from evicted pages.
//! Never: does anything for children that share the memory (`vfork`, `CLONE_VM`): they share the
//! userfaultfd too.
//!
//! Threads: any; the runtime holds its locks between prepare and parent or child.

use core::ffi::{c_int, c_long, c_void};
use core::mem::ManuallyDrop;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

use deepheap::stream_list;
use libc::pid_t;

use crate::calls::calls;
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

/// Registers our handlers, unless that is done; false if libc had no room for them. The first call
/// may come from the constructor of a library that runs before ours.
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

calls! {
    // What every library's `pthread_atfork` calls: ours come first.
    fn __register_atfork(
        before: Handler, in_parent: Handler, in_child: Handler, library: *mut c_void,
    ) -> c_int = by(|real| {
        register();
        real(before, in_parent, in_child, library)
    });
    fn _Fork() -> pid_t = by(|real| bracketed(|| c_long::from(real())) as pid_t);
    // Variadic in C; the three optional arguments travel where the fixed ones would.
    fn clone(
        entry: Option<Entry>, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent_id: *mut c_void, storage: *mut c_void, child_id: *mut c_void,
    ) -> c_int = by(|real| {
        let call = |entry, argument| {
            real(Some(entry), stack, flags, argument, parent_id, storage, child_id)
        };
        match entry {
            None => {
                seam::set_errno(libc::EINVAL);
                -1
            }
            Some(entry) if flags & libc::CLONE_VM != 0 => call(entry, argument),
            Some(entry) => clone_apart(entry, argument, call),
        }
    });
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

type Entry = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What a child of `clone` runs, handed over in the parent's stack frame, which the child has a
/// copy of.
struct Start {
    entry: Entry,
    argument: *mut c_void,
}

unsafe extern "C" fn start(record: *mut c_void) -> c_int {
    child();
    // SAFETY: the copy of the record that `clone_apart` made, which nobody drops.
    unsafe {
        let start = &*record.cast::<Start>();
        (start.entry)(start.argument)
    }
}

/// `clone` of a process with its own copy of our memory; the child reads its copy of the record.
fn clone_apart(
    entry: Entry,
    argument: *mut c_void,
    call: impl Fn(Entry, *mut c_void) -> c_int,
) -> c_int {
    let mut record = ManuallyDrop::new(Start { entry, argument });
    prepare();
    let outcome = call(start, (&raw mut record).cast());
    let errno = seam::errno();
    parent();
    seam::set_errno(errno);
    outcome
}
