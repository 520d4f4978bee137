//! Call site: where in the program an allocation is asked for, if C++'s `operator new` asks malloc.
//!
//! All of a program's `new` reaches malloc from one instruction of libstdc++ or libc++. The return
//! address of `operator new` itself is some words up the stack, and for one call instruction always
//! as many: its function has laid out its frame by then. How many is found once, by calls of our
//! own whose return address is known.
//!
//! Guarantees: only a call instruction that was seen in such a call is looked beyond; any other is
//! a call site itself. Only the C++ library's own operators are called, never a program's. Where
//! `objects:auto` is not set, nothing is.
//! Never: allocates managed memory, unwinds, takes a lock after `learn`.
//!
//! Threads: `learn` once, from the constructor, before `caller::learn`, so that what the operators
//! allocate for us is plain; `of` from any.

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deepheap::ObjectPlacement;

use crate::{allocation, seam};

/// The forms of `operator new`, those that others call first; whether they take an alignment.
const OPERATORS: [(&CStr, bool); 8] = [
    (c"_Znwm", false),
    (c"_Znam", false),
    (c"_ZnwmRKSt9nothrow_t", false),
    (c"_ZnamRKSt9nothrow_t", false),
    (c"_ZnwmSt11align_val_t", true),
    (c"_ZnamSt11align_val_t", true),
    (c"_ZnwmSt11align_val_tRKSt9nothrow_t", true),
    (c"_ZnamSt11align_val_tRKSt9nothrow_t", true),
];
/// Calls on the way from a call site to malloc at most, malloc's own not counted.
const HOPS_MAX: usize = 4;
/// Words of the stack between two of them at most.
const WORDS_MAX: usize = 64;
/// What the calls of our own ask for, in bytes.
const PROBE_BYTES: usize = 64;

/// A return address in an operator, and how many words above it the operator's own return address
/// stands.
struct Hop {
    address: AtomicUsize,
    words: AtomicUsize,
}

static HOPS: [Hop; OPERATORS.len()] =
    [const { Hop { address: AtomicUsize::new(0), words: AtomicUsize::new(0) } }; OPERATORS.len()];
/// While an operator is called by us: where its return address stands.
static PROBE: AtomicUsize = AtomicUsize::new(0);
/// What such a call showed: the first return address on its way that no hop leads on from.
static FOUND: Hop = Hop { address: AtomicUsize::new(0), words: AtomicUsize::new(0) };
/// Whether it came to an entry point of ours.
static IS_SEEN: AtomicBool = AtomicBool::new(false);

/// The call site of an allocation whose return address stands at `frame`.
///
/// # Safety
/// `frame` is where the caller of an entry point of ours has its return address, which has not
/// returned yet.
pub unsafe fn of(frame: *const usize) -> usize {
    let mut at = frame;
    for _ in 0..HOPS_MAX {
        // SAFETY: `frame`, or the return address of a function that has not returned: `words_above`
        // is of the very call that stands here, so the frame is laid out as it was then.
        let address = unsafe { at.read() };
        match words_above(address) {
            // SAFETY: as above.
            Some(words) => at = unsafe { at.add(words) },
            None => return address,
        }
    }
    // SAFETY: as above.
    unsafe { at.read() }
}

/// Looks at an allocation that an operator asks for because we called it; any other is none of this
/// function's business.
///
/// # Safety
/// As `of`.
#[inline]
pub unsafe fn observe(frame: *const usize) {
    let ours = PROBE.load(Ordering::Relaxed);
    // Another thread's stack is farther away.
    if ours.wrapping_sub(frame as usize) <= HOPS_MAX * WORDS_MAX * size_of::<usize>() {
        // SAFETY: the caller's promise; both lie on this thread's stack, ours above.
        unsafe { note(frame, ours as *const usize) };
    }
}

/// # Safety
/// As `of`; `ours` is above `frame`, on the same stack.
#[cold]
unsafe fn note(frame: *const usize, ours: *const usize) {
    IS_SEEN.store(true, Ordering::Relaxed);
    let mut at = frame;
    while at < ours {
        // SAFETY: on the stack, between two words that are.
        let address = unsafe { at.read() };
        let above = (ours as usize - at as usize) / size_of::<usize>();
        match words_above(address) {
            Some(words) => at = at.wrapping_add(words),
            None => {
                FOUND.address.store(address, Ordering::Relaxed);
                FOUND.words.store(above, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// How many words above this return address that of the function stands in which it is; none if it
/// is not in an operator.
fn words_above(address: usize) -> Option<usize> {
    let hop = HOPS.iter().find(|hop| hop.address.load(Ordering::Relaxed) == address)?;
    let words = hop.words.load(Ordering::Relaxed);
    (words != 0).then_some(words)
}

fn add((address, words): (usize, usize)) {
    let free = HOPS.iter().find(|hop| hop.address.load(Ordering::Relaxed) == 0);
    let is_sound = words <= WORDS_MAX && is_of_the_library(address as *mut c_void);
    if let Some(hop) = free.filter(|_| is_sound) {
        hop.words.store(words, Ordering::Relaxed);
        hop.address.store(address, Ordering::Relaxed);
    }
}

/// Learns from the operators of the C++ library, if the settings need it and there is one.
pub fn learn() {
    if seam::objects() != Some(ObjectPlacement::Auto) {
        return;
    }
    let operators = OPERATORS.map(|(name, is_aligned)| {
        // SAFETY: a C string, and a handle that dlsym knows.
        (unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }, is_aligned)
    });
    let there = || operators.into_iter().filter(|(operator, _)| !operator.is_null());
    if !there().all(|(operator, _)| is_of_the_library(operator)) {
        // The library's own forms call those that the program has replaced.
        return;
    }
    for (operator, is_aligned) in there() {
        // From two places of the stack: a frame that aligns itself may lie differently.
        if let Some(hop) = probe(operator, is_aligned, 0)
            && probe(operator, is_aligned, 1) == Some(hop)
        {
            add(hop);
        }
    }
}

/// Whether code is the C++ library's. A program's own `operator new` may do what it likes.
fn is_of_the_library(code: *mut c_void) -> bool {
    // SAFETY: all zeros is what dladdr leaves where it finds nothing.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: dladdr takes any address and fills our own struct.
    if unsafe { libc::dladdr(code, &mut found) } == 0 || found.dli_fname.is_null() {
        return false;
    }
    // SAFETY: dladdr found a library, whose name is a C string while it is loaded.
    let path = unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    [&b"libstdc++.so"[..], b"libc++.so", b"libc++abi.so"].iter().any(|of| name.starts_with(of))
}

/// Calls an operator, so many times 16 bytes deeper in the stack; answers the hop that is not known
/// yet, if there is one.
fn probe(operator: *mut c_void, is_aligned: bool, deeper: usize) -> Option<(usize, usize)> {
    static NOTHROW: u8 = 0;
    let nothrow = &raw const NOTHROW;
    let (second, third) =
        if is_aligned { (PROBE_BYTES, nothrow as usize) } else { (nothrow as usize, 0) };
    FOUND.address.store(0, Ordering::Relaxed);
    IS_SEEN.store(false, Ordering::Relaxed);
    let place = PROBE.as_ptr();
    // SAFETY: an operator new, with the arguments of its form; those it does not have it does not
    // read.
    let block = unsafe { call(operator, PROBE_BYTES, second, third, 16 * deeper, place) };
    PROBE.store(0, Ordering::Relaxed);
    if !IS_SEEN.load(Ordering::Relaxed) {
        // It is not our malloc that it asks: the block is somebody else's, and stays.
        return None;
    }
    // SAFETY: our entry point made the block, for us.
    unsafe { allocation::free(block) };
    let address = FOUND.address.load(Ordering::Relaxed);
    (address != 0).then(|| (address, FOUND.words.load(Ordering::Relaxed)))
}

/// Calls `operator(size, second, third)` with `deeper` bytes of the stack unused, and notes at
/// `place` where its return address stands.
///
/// # Safety
/// Of the operator; `deeper` is a multiple of 16.
#[unsafe(naked)]
unsafe extern "C" fn call(
    _operator: *mut c_void,
    _size: usize,
    _second: usize,
    _third: usize,
    _deeper: usize,
    _place: *mut usize,
) -> *mut c_void {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, r8",
        "lea rax, [rsp - 8]",
        "mov [r9], rax",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "call rax",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
    )
}
