//! Thread: the runtime's workers, on stacks of our own, with the program's signals blocked.
//!
//! Guarantees: a worker runs with the signals of `Blocked::all` blocked, from its first
//! instruction; its stack is pinned memory with a guard page below.
//! Never: uses std::thread | allocates by itself (libc's pthread_create does: start workers early).
//! Threads: any; a child of a fork has none of them and spawns its own.

use crate::PAGE;
use crate::errno::{Errno, Result};
use crate::memory::mapping;
use crate::raw_call::raw_call;
use crate::threads::cancellation;
use crate::threads::signals::Blocked;
use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes of a worker's stack, without what libc puts there.
const STACK_BYTES: usize = 256 << 10;
/// See `learn_thread_local_bytes`.
static THREAD_LOCAL_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Stacks of so many bytes or more are not tried.
const STACK_BYTES_MAX: usize = 64 << 20;
/// Bytes of a thread's name, NUL included.
const NAME_BYTES: usize = 16;

/// A running or ended thread. Dropping it detaches: the thread goes on, its stack stays mapped.
#[derive(Debug)]
pub struct ThreadId {
    thread: libc::pthread_t,
    memory: *mut u8,
    stack_bytes: usize,
}

// SAFETY: pthread_t may be joined from any thread, and the memory is unmapped by the joiner alone.
unsafe impl Send for ThreadId {}
// SAFETY: a shared ThreadId has no operations.
unsafe impl Sync for ThreadId {}

/// The arguments that the thread starts with, in the page above its stack.
#[derive(Clone, Copy)]
struct Start {
    run: fn(usize),
    argument: usize,
    name: [u8; NAME_BYTES],
}

/// Runs `run(argument)` in a new thread called `name` (15 bytes of it). EAGAIN, ENOMEM: no room.
pub fn spawn(name: &CStr, run: fn(usize), argument: usize) -> Result<ThreadId> {
    let mut start = Start { run, argument, name: [0; NAME_BYTES] };
    let taken = name.count_bytes().min(NAME_BYTES - 1);
    start.name[..taken].copy_from_slice(&name.to_bytes()[..taken]);
    let mut stack_bytes = STACK_BYTES + THREAD_LOCAL_BYTES.load(Relaxed);
    loop {
        match spawn_on(stack_bytes, &start) {
            // libc needs more for itself than we know of.
            Err(Errno::EINVAL) if stack_bytes < STACK_BYTES_MAX => stack_bytes *= 2,
            spawned => return spawned,
        }
    }
}

fn spawn_on(stack_bytes: usize, start: &Start) -> Result<ThreadId> {
    let memory = mapping::map_pinned(mapped_bytes(stack_bytes))?;
    // SAFETY: `memory` is that long and ours: guard, stack and start page lie in it.
    let created = unsafe {
        libc::mprotect(memory.cast(), PAGE, libc::PROT_NONE);
        let stack = memory.add(PAGE);
        let record = stack.add(stack_bytes).cast::<Start>();
        record.write(*start);
        create(stack, stack_bytes, record)
    };
    match created {
        Ok(thread) => Ok(ThreadId { thread, memory, stack_bytes }),
        Err(errno) => {
            // SAFETY: no thread was made that could use it.
            let _ = unsafe { mapping::unmap(memory, mapped_bytes(stack_bytes)) };
            Err(errno)
        }
    }
}

/// Guard page, stack, and a page for what the thread needs to start.
fn mapped_bytes(stack_bytes: usize) -> usize {
    PAGE + stack_bytes + PAGE
}

/// Learns how much the thread-local variables of the program and its libraries take: libc puts them
/// on the stack of each thread. Takes a lock of the dynamic linker: do not call it under one of
/// ours.
pub fn learn_thread_local_bytes() {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, sum: *mut c_void) -> i32 {
        // SAFETY: libc's records, as long as this runs, and our sum.
        unsafe {
            let (headers, count) = ((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
            for header in core::slice::from_raw_parts(headers, count) {
                if header.p_type == libc::PT_TLS {
                    *sum.cast::<usize>() += (header.p_memsz + header.p_align) as usize;
                }
            }
        }
        0
    }
    let mut sum = 0usize;
    // SAFETY: a function of the right shape, and a sum that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut sum).cast()) };
    THREAD_LOCAL_BYTES.store(sum.next_multiple_of(PAGE), Relaxed);
}

/// # Safety
/// `stack` has `stack_bytes`, `record` holds a Start, and both last as long as the thread.
unsafe fn create(
    stack: *mut u8,
    stack_bytes: usize,
    record: *mut Start,
) -> Result<libc::pthread_t> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // A new thread inherits the mask of the thread that creates it.
    let _blocked = Blocked::all();
    // SAFETY: the attributes are initialised first and destroyed last; the caller's promise for the
    // rest.
    let error = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstack(attributes.as_mut_ptr(), stack.cast(), stack_bytes);
        let error =
            libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), enter, record.cast());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        error
    };
    if error != 0 {
        return Err(Errno::from_raw(error));
    }
    // SAFETY: pthread_create answered 0, so it wrote the thread.
    Ok(unsafe { thread.assume_init() })
}

extern "C" fn enter(record: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` wrote a Start there, and the page lasts as long as the thread.
    let start = unsafe { &*record.cast::<Start>() };
    // SAFETY: the name ends with a NUL: its last byte is never written.
    let _ = unsafe { raw_call!(SYS_prctl, libc::PR_SET_NAME, start.name.as_ptr()) };
    (start.run)(start.argument);
    core::ptr::null_mut()
}

impl ThreadId {
    /// Waits for the thread's end and gives its stack back.
    pub fn join(self) -> Result<()> {
        let this = core::mem::ManuallyDrop::new(self);
        let _off = cancellation::Off::begin();
        // SAFETY: joined once (self is consumed) and never detached (drop does not run).
        let error = unsafe { libc::pthread_join(this.thread, core::ptr::null_mut()) };
        if error != 0 {
            return Err(Errno::from_raw(error));
        }
        // SAFETY: the thread has ended: nobody uses its stack.
        unsafe { mapping::unmap(this.memory, mapped_bytes(this.stack_bytes)) }
    }
}

impl Drop for ThreadId {
    fn drop(&mut self) {
        // SAFETY: neither joined nor detached before: `join` does not run drop.
        unsafe { libc::pthread_detach(self.thread) };
    }
}

/// Processors that this process may run on; at least 1.
pub fn cpu_count() -> usize {
    // SAFETY: zeroed is an empty set, and the kernel fills in at most its size.
    let count = unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) {
            0 => libc::CPU_COUNT(&set) as i64,
            // More processors than a cpu_set_t can name.
            _ => libc::sysconf(libc::_SC_NPROCESSORS_ONLN),
        }
    };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// Sleeps for about `time`.
pub fn sleep(time: core::time::Duration) {
    let nobody = crate::threads::atomic::AtomicU32::new(0);
    crate::threads::futex::wait(&nobody, 0, Some(time));
}

/// How often threads of this process have called `yield_now`: many times means that a thread spins.
static YIELDS: AtomicU64 = AtomicU64::new(0);

/// How often threads of this process have called `yield_now`.
pub fn yields() -> u64 {
    YIELDS.load(Relaxed)
}

/// Lets another thread run.
pub fn yield_now() {
    #[cfg(feature = "schedules")]
    if let Some(scheduler) = crate::threads::schedule::current() {
        return scheduler.point(true);
    }
    YIELDS.fetch_add(1, Relaxed);
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::signals;
    use core::sync::atomic::Ordering;

    static SEEN: AtomicUsize = AtomicUsize::new(0);
    static MASK: AtomicU64 = AtomicU64::new(0);

    fn look(argument: usize) {
        MASK.store(signals::mask(), Ordering::Relaxed);
        SEEN.store(argument, Ordering::Release);
    }

    #[test]
    fn worker_runs_with_its_argument_and_is_deaf() {
        spawn(c"deepheap-a-long-name", look, 42).unwrap().join().unwrap();
        assert_eq!(SEEN.load(Ordering::Acquire), 42);
        // The kernel never blocks KILL and STOP.
        let open = signals::bit(libc::SIGKILL) | signals::bit(libc::SIGSTOP);
        let open = open | signals::SYNCHRONOUS | signals::LIBC_INTERNAL;
        assert_eq!(MASK.load(Ordering::Relaxed), !open);
        assert!(cpu_count() >= 1);
    }
}
