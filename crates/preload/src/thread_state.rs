//! Thread state: what this library remembers for each thread.
//!
//! Guarantees: one initial-exec TLS block, zero at the start of a thread, readable in a signal
//! handler without a call.
//! Never: allocates (std's thread-locals in a shared library may).
//!
//! Threads: each its own.

use core::arch::{asm, global_asm};

/// One thread's block.
#[repr(C)]
pub struct ThreadState {
    /// Our signal stack's mapping, or zero.
    pub signal_stack: usize,
    /// Whether the program believes SIGBUS blocked in this thread.
    pub believes_blocked: bool,
}

global_asm!(
    ".pushsection .tbss.deepheap_preload_thread,\"awT\",@nobits",
    ".balign 16",
    ".globl deepheap_preload_thread",
    ".hidden deepheap_preload_thread",
    ".type deepheap_preload_thread,@object",
    ".size deepheap_preload_thread,16",
    "deepheap_preload_thread:",
    ".zero 16",
    ".popsection",
);

const _: () = assert!(size_of::<ThreadState>() == 16);

/// The calling thread's block; valid until the thread ends.
#[inline]
pub fn current() -> *mut ThreadState {
    let block: *mut ThreadState;
    // SAFETY: the initial-exec sequence of the x86_64 TLS ABI: thread pointer plus the offset the
    // linker or the dynamic linker filled in.
    unsafe {
        asm!(
            "mov {block}, qword ptr [rip + deepheap_preload_thread@GOTTPOFF]",
            "add {block}, qword ptr fs:[0]",
            block = out(reg) block,
            options(nostack, pure, readonly),
        );
    }
    block
}
