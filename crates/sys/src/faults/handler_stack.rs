//! Handler stack: stacks for the fault path, since the program's alternate signal stack may be too
//! small.
//!
//! A handler with SA_ONSTACK runs on the alternate stack that the program set up: 8 KiB as a rule,
//! of which the kernel's frame takes up to 4. The fault path may have to evict a batch, which needs
//! more. So if the handler is on an alternate stack, the fault path runs on one of ours.
//!
//! As many stacks are in use as threads are in the fault path at a time, up to a limit. Address
//! space for all is reserved at once, with that of the signal stacks behind it if there are any of
//! ours (`deferral` says why). Stacks become usable 64 at a time, when all before them are in use,
//! and take RAM only where they were used.
//!
//! Guarantees: the function runs once, with nearly `STACK_BYTES` of stack, and has returned
//! afterwards. Uses do not nest: other signals are blocked or turned away (`deferral`). RAM of
//! stacks that are not used any more goes back to the system (`trim`).
//! Never: allocates. Waits, asleep, only when every stack is in use, or every one that takes RAM
//! while there is no room for one more.
//! Threads: any, in the signal handler; a worker calls `trim` and `resident_bytes`.

use crate::PAGE;
use crate::errno::{Errno, Result};
use crate::faults::stack_switch;
use crate::memory::index_pool::{GROUP, GROUPS_MAX, IndexPool, groups_for};
use crate::memory::mapping;
use crate::threads::thread;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Bytes of one stack, with the guard page below it.
const STACK_BYTES: usize = 64 * 1024;
/// The most stacks: so many threads can be in the fault path on an alternate stack at a time.
const STACKS_MAX: usize = GROUPS_MAX * GROUP;

static MEMORY: AtomicUsize = AtomicUsize::new(0);
static POOL: IndexPool = IndexPool::new(1);
/// Groups that may be used.
static GROUPS: AtomicUsize = AtomicUsize::new(1);
/// A `fn() -> bool`: whether there is RAM for one more stack. Null: there is.
static HAS_ROOM: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the stacks, and so many bytes behind them; answers where those begin. EEXIST: the
/// stacks are reserved.
pub(crate) fn reserve(behind: usize) -> Result<usize> {
    let bytes = STACKS_MAX * STACK_BYTES + behind;
    let memory = mapping::reserve(bytes, PAGE, 0)?;
    if MEMORY.compare_exchange(0, memory as usize, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // SAFETY: reserved above; another thread was faster, and no other thread knows of ours.
        unsafe { mapping::unmap(memory, bytes) }?;
        return Err(Errno::EEXIST);
    }
    Ok(memory as usize + STACKS_MAX * STACK_BYTES)
}

/// Where the stacks are; nowhere before they are reserved.
pub(crate) fn range() -> Range<usize> {
    match MEMORY.load(Ordering::Relaxed) {
        0 => 0..0,
        memory => memory..memory + STACKS_MAX * STACK_BYTES,
    }
}

/// Reserves the stacks if that is not done, and makes as many groups usable as the processors can
/// use.
pub(crate) fn prepare() -> Result<()> {
    static IS_READY: AtomicBool = AtomicBool::new(false);
    if IS_READY.load(Ordering::Acquire) {
        return Ok(());
    }
    if MEMORY.load(Ordering::Acquire) == 0 {
        match reserve(0) {
            Ok(_) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    let memory = MEMORY.load(Ordering::Acquire);
    let groups = groups_for(thread::cpu_count()).min(GROUPS.load(Ordering::Relaxed));
    (0..groups).try_for_each(|group| commit(memory, group))?;
    if !IS_READY.swap(true, Ordering::AcqRel) {
        (1..groups).for_each(|open| POOL.open_further(open));
    }
    Ok(())
}

/// Allows so many stacks, rounded to whole groups: at least one group, at most all. While
/// `has_room` denies the RAM of one more, threads wait for those that are in use; it runs in signal
/// handlers, with little stack.
pub fn limit(stacks: usize, has_room: fn() -> bool) {
    HAS_ROOM.store(has_room as *mut (), Ordering::Release);
    GROUPS.store(stacks.div_ceil(GROUP).clamp(1, GROUPS_MAX), Ordering::Relaxed);
}

/// Whether stacks were used for the first time since the last `resident_bytes`.
pub fn is_uncounted() -> bool {
    POOL.is_uncounted()
}

/// Bytes of RAM that stacks take; one look at the page tables for each group that is in use.
pub fn resident_bytes() -> usize {
    let memory = MEMORY.load(Ordering::Acquire);
    let bytes = |(first, last): (usize, usize)| {
        let (start, length) = (memory + first * STACK_BYTES, (last + 1 - first) * STACK_BYTES);
        mapping::resident_bytes(start as *const u8, length).unwrap_or(length)
    };
    POOL.count().map(bytes).sum()
}

/// Whether a later `trim` may give something back.
pub fn is_touched() -> bool {
    POOL.is_touched()
}

/// Gives back the RAM of stacks that were not used since the last call.
pub fn trim() {
    let memory = MEMORY.load(Ordering::Acquire);
    POOL.trim(|index| {
        let bottom = memory + index * STACK_BYTES + PAGE;
        // SAFETY: no thread is on this stack, nor can one get it while we hold it. If the kernel
        // refuses, the RAM stays, and stays counted.
        let _ = unsafe { mapping::give_back(bottom as *mut u8, STACK_BYTES - PAGE) };
    });
}

/// Makes a group of stacks usable, again if need be.
fn commit(memory: usize, group: usize) -> Result<()> {
    for index in group * GROUP..(group + 1) * GROUP {
        let bottom = memory + index * STACK_BYTES + PAGE;
        // SAFETY: within what was reserved; the first page of each stack stays without access, so
        // that an overflow stops there and not in the neighbour.
        unsafe { mapping::commit(bottom as *mut u8, STACK_BYTES - PAGE)? };
    }
    Ok(())
}

/// Makes one more group usable; false if the limit or the kernel does not allow it.
fn grow() -> bool {
    let open = POOL.open_groups();
    let may_grow = open < GROUPS.load(Ordering::Relaxed)
        && commit(MEMORY.load(Ordering::Acquire), open).is_ok();
    if may_grow {
        POOL.open_further(open);
    }
    may_grow
}

fn has_room() -> bool {
    let function = HAS_ROOM.load(Ordering::Acquire);
    // SAFETY: `limit` stores a function of this type, and nothing else does.
    function.is_null() || unsafe { core::mem::transmute::<*mut (), fn() -> bool>(function)() }
}

/// Calls `run(argument)`, on a stack of ours if this thread is on the alternate stack `alternate`.
pub(crate) fn call(
    alternate: &libc::stack_t,
    run: extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    let here = &raw const argument as usize;
    let bottom = alternate.ss_sp as usize;
    let memory = MEMORY.load(Ordering::Acquire);
    let on_alternate = alternate.ss_flags & libc::SS_DISABLE == 0
        && (bottom..bottom + alternate.ss_size).contains(&here);
    if !on_alternate || memory == 0 {
        return run(argument);
    }
    let index = POOL.take_sparingly(has_room, grow);
    let top = memory + (index + 1) * STACK_BYTES;
    // SAFETY: `top` ends a stack that is ours alone until `give_back`.
    unsafe { stack_switch::call(top, run, argument) };
    POOL.give_back(index);
}

/// In a forked child: the threads that used the stacks are not here.
pub(crate) fn after_fork() {
    POOL.forget_others();
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn use_much_stack(argument: *mut c_void) {
        let mut room = [0u8; 40_000];
        room[7] = 7;
        core::hint::black_box(&mut room);
        // SAFETY: the test passes a usize.
        unsafe { *argument.cast::<usize>() = room.as_ptr() as usize };
    }

    #[test]
    fn code_on_a_small_alternate_stack_gets_a_large_one() {
        prepare().expect("stacks");
        let mut answer = 0usize;
        let argument = (&raw mut answer).cast::<c_void>();
        let here = &raw const answer as usize;
        // An alternate stack that this frame lies in, and one that it does not.
        let around =
            libc::stack_t { ss_sp: (here - 16_384) as *mut c_void, ss_flags: 0, ss_size: 32_768 };
        call(&around, use_much_stack, argument);
        let memory = MEMORY.load(Ordering::Acquire);
        assert!(
            (memory..memory + STACKS_MAX * STACK_BYTES).contains(&answer),
            "on a stack of ours"
        );
        call(&libc::stack_t { ss_size: 8, ..around }, use_much_stack, argument);
        assert!(
            !(memory..memory + STACKS_MAX * STACK_BYTES).contains(&answer),
            "on the thread's own"
        );
        assert_eq!(POOL.held(), 0);
    }

    /// The exit status of a process that does this.
    fn in_child(act: impl FnOnce()) -> i32 {
        // SAFETY: the child does what the test does, and ends without unwinding into it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let result = std::panic::catch_unwind(core::panic::AssertUnwindSafe(act));
                libc::_exit(i32::from(result.is_err()));
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            status
        }
    }

    /// Threads that are on stacks of ours at this moment, and how many must be.
    static INSIDE: AtomicUsize = AtomicUsize::new(0);
    const THREADS: usize = 256;

    extern "C" fn wait_for_all(_: *mut c_void) {
        let mut room = [1u8; 10_000];
        core::hint::black_box(&mut room);
        INSIDE.fetch_add(1, Ordering::SeqCst);
        while INSIDE.load(Ordering::SeqCst) < THREADS {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn stacks_follow_the_threads_are_counted_and_go_back_when_nobody_uses_them() {
        // The pool is one of the whole process: not while another test uses it.
        let status = in_child(|| {
            prepare().expect("stacks");
            limit(THREADS, || true);
            // What other tests did until now.
            after_fork();
            trim();
            trim();
            assert!(resident_bytes() == 0 && !is_uncounted());
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let here = 0u8;
                        let stack = (&raw const here as usize - 16_384) as *mut c_void;
                        let around = libc::stack_t { ss_sp: stack, ss_flags: 0, ss_size: 32_768 };
                        call(&around, wait_for_all, core::ptr::null_mut());
                    });
                }
            });
            assert!(is_uncounted());
            let bytes = resident_bytes();
            assert!((THREADS * 10_000..THREADS * 5 * PAGE).contains(&bytes), "{bytes}");
            assert!(!is_uncounted());
            trim();
            assert!(resident_bytes() == bytes && is_touched(), "they were used just now");
            trim();
            assert!(resident_bytes() == 0 && !is_touched());
        });
        assert_eq!(status, 0);
    }
}
