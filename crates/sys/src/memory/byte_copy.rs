//! Byte copy: copies bytes that other threads may change meanwhile, or that may turn out to be
//! unreadable.
//!
//! The compiler cannot look into the copy: it neither assumes that the bytes stay as they are nor
//! reads them twice. A copy that was made while another thread wrote is any mixture of old and new
//! bytes; the caller finds that out and throws it away. Eight bytes, or four, go as one, as by a
//! pointer.
//!
//! Guarantees: a fault in the copy is served as any other. One that cannot be served ends the copy
//! with false, if the fault handler asks `abandon`.
//! Never: allocates, calls anything.
//! Threads: any, also in a signal handler.

use core::arch::global_asm;
use core::ffi::c_void;

// A leaf without a frame: unwinders and debuggers need no more than the return address. The code
// from `begin` to `end` faults on nothing but the bytes.
global_asm!(
    ".pushsection .text.deepheap_byte_copy,\"ax\",@progbits",
    ".globl deepheap_byte_copy",
    ".hidden deepheap_byte_copy",
    ".globl deepheap_byte_copy_begin",
    ".hidden deepheap_byte_copy_begin",
    ".globl deepheap_byte_copy_end",
    ".hidden deepheap_byte_copy_end",
    ".globl deepheap_byte_copy_failed",
    ".hidden deepheap_byte_copy_failed",
    ".type deepheap_byte_copy,@function",
    ".p2align 4",
    "deepheap_byte_copy:",
    ".cfi_startproc",
    "deepheap_byte_copy_begin:",
    "cmp rdx, 8",
    "je 8f",
    "cmp rdx, 4",
    "je 4f",
    "mov rcx, rdx",
    "rep movsb",
    "mov eax, 1",
    "ret",
    "8:",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "mov eax, 1",
    "ret",
    "4:",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "mov eax, 1",
    "ret",
    "deepheap_byte_copy_end:",
    "deepheap_byte_copy_failed:",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size deepheap_byte_copy, . - deepheap_byte_copy",
    ".popsection",
);

unsafe extern "C" {
    fn deepheap_byte_copy(to: *mut u8, from: *const u8, length: usize) -> bool;
    fn deepheap_byte_copy_begin();
    fn deepheap_byte_copy_end();
    fn deepheap_byte_copy_failed();
}

/// Copies `length` bytes. False if a fault ended it; some of the bytes are copied then.
///
/// # Safety
/// `to` has room for the bytes, `from` holds as many, and they do not overlap. Threads may read and
/// write them at the same time only as the program itself allows, or through this function, or if
/// their owner throws away what it finds.
#[inline]
#[must_use]
pub unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> bool {
    #[cfg(feature = "schedules")]
    {
        // Another thread may run in the middle.
        let half = length / 2;
        // SAFETY: the caller's promise, for both halves.
        let first = unsafe { deepheap_byte_copy(to, from, half) };
        crate::threads::schedule::point();
        // SAFETY: as above.
        first && unsafe { deepheap_byte_copy(to.add(half), from.add(half), length - half) }
    }
    // SAFETY: the caller's promise. The direction flag is clear, as the ABI says.
    #[cfg(not(feature = "schedules"))]
    unsafe {
        deepheap_byte_copy(to, from, length)
    }
}

/// If the interrupted code was copying, has it end with false and answers true.
///
/// # Safety
/// `context` is the `ucontext_t` of the signal handler that calls this, for a fault.
pub unsafe fn abandon(context: *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = &mut registers[libc::REG_RIP as usize];
    let begin = deepheap_byte_copy_begin as *const () as i64;
    let end = deepheap_byte_copy_end as *const () as i64;
    let was_copying = (begin..end).contains(at);
    if was_copying {
        *at = deepheap_byte_copy_failed as *const () as i64;
    }
    was_copying
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_arrive_and_no_others() {
        let from: Vec<u8> = (0..5000).map(|at| at as u8 | 1).collect();
        for length in [0, 1, 7, 8, 127, 128, 4096, 4999] {
            let mut to = vec![0; 5000];
            // SAFETY: both are longer.
            assert!(unsafe { copy(to.as_mut_ptr(), from.as_ptr(), length) });
            assert_eq!(to[..length], from[..length]);
            assert!(to[length..].iter().all(|&byte| byte == 0));
        }
    }
}
