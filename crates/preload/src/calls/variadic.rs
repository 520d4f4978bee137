//! Variadic: C functions with `...`.
//!
//! Guarantees: `variadic!` defines an entry point that lays its arguments out as a System V
//! `va_list` and calls a Rust function with the fixed arguments and a pointer to the list. A
//! cancelled thread unwinds through its frame.
//! Threads: any.

use core::ffi::{c_char, c_int, c_void};

use libc::size_t;

use crate::real::real;

/// A System V x86_64 `va_list`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VaList {
    next_general: u32,
    next_float: u32,
    overflow: *mut usize,
    saved: *mut u8,
}

/// Bytes of the six general registers in the register save area.
const GENERAL_BYTES: u32 = 48;

impl VaList {
    /// The next argument, a pointer.
    ///
    /// # Safety
    /// The caller of the variadic function passed one more pointer.
    pub unsafe fn pointer<T>(&mut self) -> *const T {
        if self.next_general < GENERAL_BYTES {
            // SAFETY: within the save area the entry point filled.
            let slot = unsafe { self.saved.add(self.next_general as usize) };
            self.next_general += 8;
            // SAFETY: slots are 8-byte aligned and hold one register each.
            return unsafe { *slot.cast::<*const T>() };
        }
        // SAFETY: the caller's promise: one more argument lies on its stack.
        unsafe {
            let value = *self.overflow;
            self.overflow = self.overflow.add(1);
            value as *const c_void as *const T
        }
    }
}

/// Formats the program's arguments into a buffer with some room, as `vsnprintf`.
pub fn into(format: *const c_char) -> impl Fn(*mut c_char, size_t, *mut VaList) -> c_int {
    let real = real!(vsnprintf: fn(*mut c_char, size_t, *const c_char, *mut VaList) -> c_int);
    // SAFETY: the program's format and arguments; the callers' buffers have that room.
    move |buffer, room, list| unsafe { real(buffer, room, format, list) }
}

/// As `into`, with the checks of a fortified program.
pub fn into_checked(
    flag: c_int,
    format: *const c_char,
) -> impl Fn(*mut c_char, size_t, *mut VaList) -> c_int {
    let real = real!(
        __vsnprintf_chk:
            fn(*mut c_char, size_t, c_int, size_t, *const c_char, *mut VaList) -> c_int
    );
    // SAFETY: as `into`.
    move |buffer, room, list| unsafe { real(buffer, room, flag, room, format, list) }
}

/// Defines `name(fixed..., ...)` which calls `body(fixed..., *mut VaList)`. `fixed` is the number
/// of fixed arguments, `register` the one that carries the list: the argument register after them.
macro_rules! variadic {
    ($($name:ident: $fixed:literal, $register:literal => $body:ident -> $result:ty;)*) => {$(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> $result {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "sub rsp, 0xd0",
                "mov [rsp], rdi",
                "mov [rsp + 0x08], rsi",
                "mov [rsp + 0x10], rdx",
                "mov [rsp + 0x18], rcx",
                "mov [rsp + 0x20], r8",
                "mov [rsp + 0x28], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 0x30], xmm0",
                "movaps [rsp + 0x40], xmm1",
                "movaps [rsp + 0x50], xmm2",
                "movaps [rsp + 0x60], xmm3",
                "movaps [rsp + 0x70], xmm4",
                "movaps [rsp + 0x80], xmm5",
                "movaps [rsp + 0x90], xmm6",
                "movaps [rsp + 0xa0], xmm7",
                "2:",
                "mov dword ptr [rsp + 0xb0], 8 * {fixed}",
                "mov dword ptr [rsp + 0xb4], 48",
                "lea rax, [rbp + 16]",
                "mov [rsp + 0xb8], rax",
                "mov [rsp + 0xc0], rsp",
                concat!("lea ", $register, ", [rsp + 0xb0]"),
                "call {body}",
                "leave",
                ".cfi_def_cfa rsp, 8",
                "ret",
                ".cfi_endproc",
                fixed = const $fixed,
                body = sym $body
            )
        }
    )*};
}
pub(crate) use variadic;
