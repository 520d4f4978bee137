//! Fork: a child with a copy of our memory, whose mappings lost their userfaultfd.
//!
//! Every way to fork calls the runtime's `fork_prepare`, then `fork_parent` and `fork_child`.
//! `fork`, `daemon` and `forkpty` do so through atfork handlers. `_Fork`, `clone` and the system
//! calls that fork (see `system_call`) are bracketed here.
//!
//! Guarantees: our atfork handlers are registered before all others. So they run last before the
//! fork and first after it: another handler in the child would read zeros from evicted pages.
//! Children that share the memory (`vfork`, `CLONE_VM`) share the userfaultfd too, and need only a
//! signal stack.
//! Threads: any; the runtime holds its locks between prepare and parent or child.

use core::ffi::{c_int, c_long, c_void};
use core::mem::ManuallyDrop;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

use deepheap::internal::{Hold, fork_parent, fork_prepare, stream_list};
use libc::pid_t;

use crate::buffers::pins::PAGE;
use crate::calls::calls;
use crate::real::real;
use crate::refusal::refused;
use crate::seam;
use crate::signals;
use crate::threads;

fn child() {
    deepheap::internal::fork_child();
    threads::start::forked();
}

extern "C" fn before_fork() {
    stream_list::fork_prepare();
    fork_prepare();
}

extern "C" fn in_parent() {
    fork_parent();
    stream_list::fork_parent();
}

extern "C" fn in_child() {
    child();
    stream_list::fork_child();
}

type Handler = Option<extern "C" fn()>;

/// Registers our handlers, unless that is done; false if libc had no room for them. The first call
/// may come from the constructor of a library that runs before ours.
pub fn register() -> bool {
    const NOT_YET: u32 = 0;
    const DONE: u32 = 1;
    const FAILED: u32 = 2;
    static STATE: AtomicU32 = AtomicU32::new(NOT_YET);
    let (order, raw) = (Ordering::AcqRel, Ordering::Acquire);
    if STATE.compare_exchange(NOT_YET, DONE, order, raw).is_ok() {
        deepheap::internal::host();
        let register =
            real!(__register_atfork: fn(Handler, Handler, Handler, *mut c_void) -> c_int);
        // SAFETY: three functions that live as long as the process, of no library that is unloaded.
        let outcome =
            unsafe { register(Some(before_fork), Some(in_parent), Some(in_child), null_mut()) };
        if outcome != 0 {
            STATE.store(FAILED, Ordering::Release);
        }
    }
    STATE.load(Ordering::Acquire) == DONE
}

calls! {
    // Every library's `pthread_atfork` calls this: ours come first.
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
            None => refused(libc::EINVAL),
            Some(entry) if flags & libc::CLONE_VM != 0 => {
                clone_sharing(entry, argument, stack, flags, call)
            }
            Some(entry) => clone_apart(entry, argument, call),
        }
    });
}

/// Makes a forking call that runs no atfork handlers.
pub fn bracketed(call: impl FnOnce() -> c_long) -> c_long {
    fork_prepare();
    let outcome = call();
    seam::keep_errno(if outcome == 0 { child } else { fork_parent });
    outcome
}

type Entry = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The function that a child of `clone` runs. One with its own copy of our memory gets it in its
/// copy of the parent's stack frame.
struct Start {
    entry: Entry,
    argument: *mut c_void,
}

unsafe extern "C" fn start(record: *mut c_void) -> c_int {
    child();
    // SAFETY: the copy of the record that `clone_apart` made, which nobody drops.
    unsafe {
        let start = &*record.cast::<Start>();
        // Returning would end this thread, and leave the process to its workers.
        libc::_exit((start.entry)(start.argument))
    }
}

/// `clone` of a process with its own copy of our memory; the child reads its copy of the record.
fn clone_apart(
    entry: Entry,
    argument: *mut c_void,
    call: impl Fn(Entry, *mut c_void) -> c_int,
) -> c_int {
    let mut record = ManuallyDrop::new(Start { entry, argument });
    fork_prepare();
    let outcome = call(start, (&raw mut record).cast());
    seam::keep_errno(fork_parent);
    outcome
}

/// The function that a child runs that shares our memory.
struct SharedStart {
    start: Start,
    /// The signal stack for it, or zero.
    signal_stack: usize,
    is_thread: bool,
}

unsafe extern "C" fn start_sharing(record: *mut c_void) -> c_int {
    // SAFETY: the record that `clone_sharing` made for this child alone.
    unsafe {
        let SharedStart { start, signal_stack, is_thread } = record.cast::<SharedStart>().read();
        if signal_stack != 0 {
            signals::stack::set(signal_stack);
        }
        let outcome = (start.entry)(start.argument);
        if signal_stack != 0 {
            // The rest needs only the page that is pinned.
            signals::stack::unmap(signal_stack);
        }
        if is_thread { outcome } else { libc::_exit(outcome) }
    }
}

/// `clone` of a process that shares our memory, or of a thread. The kernel takes its signal stack
/// away, unless the parent waits for it: it gets one of ours, for a fault on a stack of the heap
/// would kill it. If it does not return from its function it leaves that stack behind.
fn clone_sharing(
    entry: Entry,
    argument: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    call: impl Fn(Entry, *mut c_void) -> c_int,
) -> c_int {
    let waits = flags & libc::CLONE_VFORK != 0;
    let mut shared = SharedStart {
        start: Start { entry, argument },
        signal_stack: if waits { 0 } else { signals::stack::map() },
        is_thread: flags & libc::CLONE_THREAD != 0,
    };
    if waits {
        return call(start_sharing, (&raw mut shared).cast());
    }
    let signal_stack = shared.signal_stack;
    if signal_stack == 0 {
        return refused(libc::ENOMEM);
    }
    // The page that the child uses before it has a signal stack, and after it has lost it.
    Hold::for_good((stack as usize).wrapping_sub(PAGE), PAGE);
    // The new stack outlives this frame, and nobody uses it before the child has read the record.
    let record = signals::stack::record(signal_stack);
    // SAFETY: the stack is ours, and longer than the record.
    unsafe { record.cast::<SharedStart>().write(shared) };
    let outcome = call(start_sharing, record);
    if outcome == -1 {
        seam::keep_errno(|| signals::stack::give_back(signal_stack));
    }
    outcome
}
