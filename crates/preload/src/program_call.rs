//! Program call: tells the program's calls of a wrapper from the runtime's own.
//!
//! The runtime is linked into this library, so its calls of `madvise`, `open` or `sigaction` reach
//! the wrappers too. Where a wrapper would do something else than libc, the entry point looks at
//! the return address: a caller inside this library goes straight to libc.
//!
//! Guarantees: decided by address, so it holds for every thread of the runtime and inside its fault
//! handler; until `caller::learn` has run every caller is the program.
//!
//! Threads: any.

/// Defines exported entry points: `fn name(arguments) -> result => body`, where `body` is a
/// function of the same signature that serves the program. Only rax is touched before the jump, so
/// all arguments arrive in place, those on the stack too.
macro_rules! for_program {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty => $body:ident;)*) => {$(
        const _: () = {
            unsafe extern "C" fn direct($($argument: $type),*) -> $result {
                let real = $crate::real::real!($name: unsafe extern "C" fn($($type),*) -> $result);
                // SAFETY: the runtime's own arguments, under libc's own contract.
                unsafe { real($($argument),*) }
            }

            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                core::arch::naked_asm!(
                    "mov rax, [rsp]",
                    "sub rax, [rip + {own}]",
                    "cmp rax, [rip + {own} + 8]",
                    "jb 2f",
                    "jmp {body}",
                    "2:",
                    "jmp {direct}",
                    own = sym $crate::caller::OWN,
                    body = sym $body,
                    direct = sym direct,
                )
            }
        };
    )*};
}
pub(crate) use for_program;
