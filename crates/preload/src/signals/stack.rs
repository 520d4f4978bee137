//! Stack: a resident alternate stack for every thread.
//!
//! Coroutines run on stacks from `malloc`, which may be evicted. The kernel must find a resident
//! stack for the frame of our SIGBUS handler.
//!
//! The stacks lie behind the handler stacks of the runtime, so that signals may come during a fault
//! (`deferral`). The kernel keeps ours where the program sets a stack of its own: the relay moves
//! frames there for the handlers that ask for it, as the kernel would. So it may be evicted.
//!
//! A stack that disarms itself, or is tiny, is the kernel's business, and ends
//! that: frames would lie in each other's way.
//!
//! Guarantees: every thread has an alternate stack of plain memory with a guard page below it,
//! unless the kernel uses the program's, which is pinned then. The program is told of its own
//! stack, or that it has none.
//! Never: allocates, locks.
//! Threads: each for itself, also in a handler.

use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use deepheap::internal::{Hold, deferral};
use libc::stack_t;

use crate::buffers::pins::PAGE;
use crate::calls::calls;
use crate::real::real;
use crate::seam;

/// Usable bytes of a thread's signal stack.
const STACK_BYTES: usize = 64 * 1024;
/// Bytes of its mapping: with the guard page.
const MAPPING_BYTES: usize = PAGE + STACK_BYTES;
/// A smaller stack of the program's has no room for what the relay takes besides the frame.
const RELAYED_MIN: usize = 2 * libc::MINSIGSTKSZ;
/// So many threads have their stacks behind the handler stacks; those of others lie anywhere.
const STACKS_MAX: usize = 32 << 10;
/// Numbers of a word of `TAKEN`.
const WORD: usize = u64::BITS as usize;

/// Where these places are; 0: nowhere.
static FIRST: AtomicUsize = AtomicUsize::new(0);
/// A bit for each that a thread has. In the child of a fork those of the parent's other threads
/// stay taken, as their memory does.
static TAKEN: [AtomicU64; STACKS_MAX / WORD] = [const { AtomicU64::new(0) }; STACKS_MAX / WORD];

type SetStack = unsafe extern "C" fn(*const stack_t, *mut stack_t) -> c_int;

/// What the kernel is told of a stack of `map`.
fn description(mapping: usize) -> stack_t {
    let bottom = mapping + PAGE;
    deferral::alternate(bottom, STACK_BYTES).unwrap_or(stack_t {
        ss_sp: with_exposed_provenance_mut(bottom),
        ss_flags: 0,
        ss_size: STACK_BYTES,
    })
}

/// Whether this is the signal stack of the calling thread.
pub fn is_ours(stack: &stack_t) -> bool {
    own().is_some_and(|own| own.ss_sp == stack.ss_sp)
}

/// The calling thread's signal stack, also while the kernel knows of one of the program's.
pub fn own() -> Option<stack_t> {
    // SAFETY: this thread's own area.
    let mapping = unsafe { (*deepheap::internal::thread_area()).signal_stack };
    (mapping != 0).then(|| description(mapping))
}

/// The middle of the calling thread's signal stack, which it has.
pub fn middle() -> usize {
    // SAFETY: this thread's own area.
    unsafe { (*deepheap::internal::thread_area()).signal_stack + PAGE + STACK_BYTES / 2 }
}

/// The signal stack that the program gave to the calling thread, and the kernel does not know.
pub fn of_program() -> Option<stack_t> {
    // SAFETY: this thread's own area.
    let [bottom, bytes] = unsafe { &(*deepheap::internal::thread_area()).program_stack };
    let (bytes, bottom) = (bytes.load(Ordering::Acquire), bottom.load(Ordering::Acquire));
    let ss_sp = with_exposed_provenance_mut(bottom);
    (bytes != 0).then_some(stack_t { ss_sp, ss_flags: 0, ss_size: bytes })
}

/// Whether an address lies on a stack; its end does, as the kernel sees it.
pub fn is_on(stack: &stack_t, address: usize) -> bool {
    let bottom = stack.ss_sp as usize;
    address > bottom && address - bottom <= stack.ss_size
}

/// Notes the calling thread's stack, or none: a signal in between finds a whole one or none.
fn note(stack: Option<&stack_t>) {
    // SAFETY: this thread's own area.
    let [bottom, bytes] = unsafe { &(*deepheap::internal::thread_area()).program_stack };
    bytes.store(0, Ordering::Release);
    if let Some(stack) = stack {
        bottom.store(stack.ss_sp as usize, Ordering::Release);
        bytes.store(stack.ss_size, Ordering::Release);
    }
}

/// Reserves the places, once, before there are stacks; `relay` is what the kernel calls for each
/// handler. Without address space for them the stacks lie anywhere.
pub fn reserve(relay: usize) {
    if let Ok(first) = deferral::reserve(STACKS_MAX * MAPPING_BYTES, relay) {
        FIRST.store(first, Ordering::Release);
    }
}

/// Takes the lowest free place for a stack behind the handler stacks.
fn take_place() -> Option<usize> {
    let first = FIRST.load(Ordering::Acquire);
    if first == 0 {
        return None;
    }
    TAKEN.iter().enumerate().find_map(|(number, word)| {
        let free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let taken = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).ok()?;
        let index = number * WORD + taken.trailing_ones() as usize;
        Some(first + index * MAPPING_BYTES)
    })
}

/// The number of a place.
fn place_of(mapping: usize) -> Option<usize> {
    let first = FIRST.load(Ordering::Relaxed);
    let index = mapping.wrapping_sub(first) / MAPPING_BYTES;
    (first != 0 && index < STACKS_MAX).then_some(index)
}

/// Lets another thread have a place.
fn leave_place(index: usize) {
    TAKEN[index / WORD].fetch_and(!(1 << (index % WORD)), Ordering::AcqRel);
}

/// Maps anonymous memory, in place of what is there if that is ours.
fn map_at(at: usize, bytes: usize, protection: c_int) -> Option<usize> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    // What is given back is to become one mapping with its neighbours: no stack any more.
    let stack = if protection == libc::PROT_NONE { 0 } else { libc::MAP_STACK };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | stack;
    let map = real!(mmap: fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void);
    let at = with_exposed_provenance_mut(at);
    // SAFETY: a fresh private mapping, or in a place of the calling thread's.
    let mapping = unsafe { map(at, bytes, protection, flags | fixed, -1, 0) };
    (mapping != libc::MAP_FAILED).then_some(mapping as usize)
}

/// Maps a signal stack; zero without memory for it.
pub fn map() -> usize {
    const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
    if let Some(mapping) = take_place() {
        if map_at(mapping + PAGE, STACK_BYTES, READ_WRITE).is_some() {
            return mapping;
        }
        place_of(mapping).inspect(|place| leave_place(*place));
        return 0;
    }
    let Some(mapping) = map_at(0, MAPPING_BYTES, READ_WRITE) else { return 0 };
    let protect = real!(mprotect: fn(*mut c_void, usize, c_int) -> c_int);
    // SAFETY: the first page of a fresh mapping.
    unsafe { protect(with_exposed_provenance_mut(mapping), PAGE, libc::PROT_NONE) };
    mapping
}

/// Has the calling thread use a stack of `map`.
pub fn set(mapping: usize) {
    // SAFETY: a description of a mapping that lasts.
    unsafe { real!(sigaltstack: SetStack)(&description(mapping), null_mut()) };
}

/// Where a record may lie on a stack of `map` that nobody uses yet.
pub fn record(mapping: usize) -> *mut c_void {
    with_exposed_provenance_mut(mapping + PAGE)
}

/// Unmaps a stack of `map` that the calling thread has, and is not on: the kernel refuses then, and
/// the stack stays.
pub fn unmap(mapping: usize) {
    let none = stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: a description that disables.
    if unsafe { real!(sigaltstack: SetStack)(&none, null_mut()) } == 0 {
        give_back(mapping);
    }
}

/// Unmaps a stack of `map` that no thread has.
pub fn give_back(mapping: usize) {
    if let Some(place) = place_of(mapping) {
        // Empty: its record too. If the kernel refuses, nobody has the place any more.
        if map_at(mapping + PAGE, STACK_BYTES, libc::PROT_NONE).is_some() {
            leave_place(place);
        }
        return;
    }
    let unmap = real!(munmap: fn(*mut c_void, usize) -> c_int);
    // SAFETY: `map` made it, and nobody uses it.
    unsafe { unmap(with_exposed_provenance_mut(mapping), MAPPING_BYTES) };
}

/// Gives the calling thread a signal stack, unless it has one. Without memory for it the thread
/// goes on with its own stack.
pub fn enter() {
    let state = deepheap::internal::thread_area();
    let mut old = stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: a query into this stack; this thread's own area.
    unsafe {
        if real!(sigaltstack: SetStack)(core::ptr::null(), &mut old) != 0
            || old.ss_flags & libc::SS_DISABLE == 0
        {
            return;
        }
        let mapping = map();
        if mapping != 0 {
            (*state).signal_stack = mapping;
            set(mapping);
        }
    }
}

/// Takes the calling thread's signal stack away at its end.
pub fn leave() {
    let state = deepheap::internal::thread_area();
    // SAFETY: this thread's own area.
    let mapping = unsafe { core::mem::take(&mut (*state).signal_stack) };
    note(None);
    // A thread that runs on it right now keeps it.
    if mapping != 0 {
        unmap(mapping);
    }
}

calls! {
    fn sigaltstack(new: *const stack_t, old: *mut stack_t) -> c_int
        = by(|real| change(new, old, real));
}

/// Whether the relay can do what the kernel would with this stack.
fn is_relays(stack: &stack_t) -> bool {
    matches!(stack.ss_flags, 0 | libc::SS_ONSTACK)
        && stack.ss_size >= RELAYED_MIN
        && (stack.ss_sp as usize).checked_add(stack.ss_size).is_some()
}

/// `sigaltstack` as the program means it, where `set` is libc's.
fn change(
    new: *const stack_t,
    old: *mut stack_t,
    set: impl Fn(*const stack_t, *mut stack_t) -> c_int,
) -> c_int {
    const NONE: stack_t = stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: this thread's own area.
    let mapping = unsafe { (*deepheap::internal::thread_area()).signal_stack };
    let mut before = NONE;
    let programs = of_program();
    let is_on = programs.is_some_and(|stack| is_on(&stack, &raw const before as usize));
    // SAFETY: the program's descriptions, copied so that the kernel sees plain memory.
    unsafe {
        let outcome = if new.is_null() {
            set(core::ptr::null(), &mut before)
        } else if is_on {
            seam::set_errno(libc::EPERM);
            return -1;
        } else {
            let wanted = *new;
            let is_none = wanted.ss_flags & libc::SS_DISABLE != 0;
            let (kernels, relays) = if mapping != 0 && (is_none || is_relays(&wanted)) {
                (description(mapping), (!is_none).then_some(&wanted))
            } else {
                seam::keep_all_signals_out();
                Hold::for_good(wanted.ss_sp as usize, wanted.ss_size);
                (wanted, None)
            };
            let outcome = set(&kernels, &mut before);
            if outcome == 0 {
                note(relays);
            }
            outcome
        };
        if outcome == 0 && !old.is_null() {
            if is_ours(&before) {
                let ss_flags = if is_on { libc::SS_ONSTACK } else { 0 };
                before = programs.map_or(NONE, |stack| stack_t { ss_flags, ..stack });
            }
            *old = before;
        }
        outcome
    }
}
