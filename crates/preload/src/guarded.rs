//! Guarded: a libc call whose buffers the kernel reads or writes.
//!
//! In SIGBUS mode the kernel answers EFAULT where it meets an evicted page. So, once any span is
//! under management, the call's managed buffers are pinned before it is made. Some calls lose
//! something when they meet EFAULT at their end (`accept` its connection, `wait` its child), or may
//! be under way for long: what they use is held from before management begins on.
//!
//! Guarantees: the call is made once, and once more only if it met EFAULT before anything was
//! pinned (management began while it ran). A true EFAULT of the program stays EFAULT.
//! Never: loops. Costs one load while everything is plain.
//!
//! Threads: any.

use core::ffi::c_int;

use crate::pins::Pins;
use crate::seam;

/// What a libc function returns, and how it says EFAULT.
pub trait Outcome: Copy {
    /// Whether this is a failure with EFAULT.
    fn is_fault(self) -> bool;
}

fn errno_is_fault() -> bool {
    seam::errno() == libc::EFAULT
}

macro_rules! negative {
    ($($type:ty),*) => {$(
        impl Outcome for $type {
            #[inline]
            fn is_fault(self) -> bool {
                self == -1 && errno_is_fault()
            }
        }
    )*};
}
negative!(i32, i64, isize);

impl<T> Outcome for *mut T {
    #[inline]
    fn is_fault(self) -> bool {
        (self.is_null() || self as isize == -1) && errno_is_fault()
    }
}

/// The outcome of a function that returns an error number instead of setting errno.
#[derive(Clone, Copy)]
pub struct Code(pub c_int);

impl Outcome for Code {
    #[inline]
    fn is_fault(self) -> bool {
        self.0 == libc::EFAULT
    }
}

/// Makes the call with the buffers that `buffers` names pinned, if any of them is managed.
#[inline(always)]
pub fn guard<R: Outcome>(buffers: impl Fn(&mut Pins), call: impl Fn() -> R) -> R {
    if !deepheap::is_managing() {
        let outcome = call();
        if !outcome.is_fault() || !deepheap::is_managing() {
            return outcome;
        }
        deepheap::count_efault_retry();
    }
    pinned(&buffers, &call)
}

#[inline(never)]
fn pinned<R: Outcome>(buffers: &dyn Fn(&mut Pins), call: &dyn Fn() -> R) -> R {
    let mut pins = Pins::new();
    buffers(&mut pins);
    call()
}

/// Defines wrappers: libc's signature, then what to pin.
///
/// `fn` is an ordinary function, `code fn` one that returns its error number. A name may carry
/// the symbol version that is wanted: `fn glob @ c"GLIBC_2.27"(..)`.
macro_rules! guarded {
    ($(fn $name:ident $(@ $version:literal)? ($($argument:ident: $type:ty),* $(,)?) -> $result:ty
        = |$pins:ident| $buffers:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let real = $crate::real::real!(
                $name $(@ $version)?: unsafe extern "C" fn($($type),*) -> $result
            );
            $crate::guarded::guard(
                |$pins: &mut $crate::pins::Pins| { $buffers; },
                // SAFETY: the program's own arguments, under libc's own contract.
                || unsafe { real($($argument),*) },
            )
        }
    )*};
}
pub(crate) use guarded;

/// Defines wrappers of functions that wait, or that lose something if they meet EFAULT at their
/// end: libc's signature, then what is held meanwhile, from before management begins on.
macro_rules! held {
    ($(fn $name:ident $(@ $version:literal)? ($($argument:ident: $type:ty),* $(,)?) -> $result:ty
        = $held:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let real = $crate::real::real!(
                $name $(@ $version)?: unsafe extern "C" fn($($type),*) -> $result
            );
            let _held = $held;
            // SAFETY: the program's own arguments, under libc's own contract.
            unsafe { real($($argument),*) }
        }
    )*};
}
pub(crate) use held;

/// As `guarded!`, for functions that return an error number.
macro_rules! guarded_code {
    ($(fn $name:ident $(@ $version:literal)? ($($argument:ident: $type:ty),* $(,)?)
        = |$pins:ident| $buffers:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> core::ffi::c_int {
            let real = $crate::real::real!(
                $name $(@ $version)?: unsafe extern "C" fn($($type),*) -> core::ffi::c_int
            );
            $crate::guarded::guard(
                |$pins: &mut $crate::pins::Pins| { $buffers; },
                // SAFETY: the program's own arguments, under libc's own contract.
                || $crate::guarded::Code(unsafe { real($($argument),*) }),
            ).0
        }
    )*};
}
pub(crate) use guarded_code;
