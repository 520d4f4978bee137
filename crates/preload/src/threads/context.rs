//! Context: functions that a wrapper cannot call, since they save or restore their caller's
//! registers, or look at their caller. The entry point touches what the kernel will use, and jumps
//! to libc.
//!
//! Guarantees: `getcontext`, `setcontext`, `swapcontext`, `sigsetjmp` and `siglongjmp` find their
//! signal masks resident and SIGBUS open in them, and `dlopen` its path. `dlopen` sees the caller
//! of it. It ignores RTLD_DEEPBIND: such a library would find libc's `free` before ours, and the
//! program hands it memory of ours (PHP does so with its extensions).
//! Never: pins, since nothing runs after the jump. The pages were touched a moment before.
//! Threads: any.

use core::arch::naked_asm;
use core::ffi::{c_char, c_void};

use crate::process::exec::touch_text;
use crate::real::real;
use crate::signals::set::FAULT_BIT;

/// Bytes of a `ucontext_t` and of a `sigjmp_buf`.
const CONTEXT_BYTES: usize = size_of::<libc::ucontext_t>();
const JUMP_BYTES: usize = 200;

fn touch(start: usize, len: usize) {
    if deepheap::internal::is_managing() && deepheap::internal::may_leave(start) {
        deepheap::internal::touch(start, len);
    }
}

/// Opens SIGBUS in the mask of a context: the kernel gets it from there.
fn open_mask(context: usize) {
    let context = context as *mut libc::ucontext_t;
    // SAFETY: the program's own context, which libc is about to read. The program made a mask with
    // SIGBUS blocked, so it may be written.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        if *mask & FAULT_BIT != 0 {
            *mask &= !FAULT_BIT;
        }
    }
}

/// An entry point that calls `prepare` with its two first arguments and jumps to the address it
/// returns, after `last`, an instruction.
macro_rules! jumps {
    ($($name:ident, |$first:ident, $second:ident| $touching:expr $(, $last:literal)?;)*) => {$(
        const _: () = {
            extern "C" fn prepare($first: usize, $second: usize) -> *mut c_void {
                $touching;
                real!($name: unsafe extern "C" fn()) as *mut c_void
            }

            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    "push rdi",
                    "push rsi",
                    "sub rsp, 8",
                    "call {prepare}",
                    "add rsp, 8",
                    "pop rsi",
                    "pop rdi",
                    $($last,)?
                    "jmp rax",
                    prepare = sym prepare,
                )
            }
        };
    )*};
}

jumps! {
    getcontext, |context, _second| touch(context, CONTEXT_BYTES);
    setcontext, |context, _second| { touch(context, CONTEXT_BYTES); open_mask(context) };
    swapcontext, |old, new| {
        touch(old, CONTEXT_BYTES);
        touch(new, CONTEXT_BYTES);
        open_mask(new)
    };
    setjmp, |buffer, _second| touch(buffer, JUMP_BYTES);
    __sigsetjmp, |buffer, saves_mask| if saves_mask != 0 { touch(buffer, JUMP_BYTES) };
    siglongjmp, |buffer, _second| touch(buffer, JUMP_BYTES);
    longjmp, |buffer, _second| touch(buffer, JUMP_BYTES);
    _longjmp, |buffer, _second| touch(buffer, JUMP_BYTES);
    __longjmp_chk, |buffer, _second| touch(buffer, JUMP_BYTES);
    dlopen, |path, _flags| touch_path(path), "and esi, ~8";
    dlmopen, |_space, path| touch_path(path);
}

const _: () = assert!(libc::RTLD_DEEPBIND == 8);

fn touch_path(path: usize) {
    if deepheap::internal::is_managing() {
        touch_text(path as *const c_char);
    }
}
