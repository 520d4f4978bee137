//! Guarded: a libc call whose buffers are pinned if they must be.
//!
//! In SIGBUS mode the kernel answers EFAULT where it meets an evicted page. So the wrapper pins the
//! managed buffers before the call, once any span is under management.
//!
//! Guarantees: the call is made once. It is made a second time only if it met EFAULT because
//! management began while it ran. An EFAULT that is the program's own fault stays EFAULT.
//! Never: loops. Costs one load while everything is plain.
//! Threads: any.

use core::ffi::c_int;

use crate::buffers::pins::Pins;
use crate::seam;

/// The result of a libc function, and how it says EFAULT.
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
#[repr(transparent)]
pub struct Code(pub c_int);

impl Outcome for Code {
    #[inline]
    fn is_fault(self) -> bool {
        self.0 == libc::EFAULT
    }
}

/// Makes the call, with the buffers that `buffers` names pinned if any span is managed.
#[inline(always)]
pub fn guard<R: Outcome>(buffers: impl Fn(&mut Pins), call: impl Fn() -> R) -> R {
    if !deepheap::internal::is_managing() {
        let outcome = call();
        if !outcome.is_fault() || !deepheap::internal::is_managing() {
            return outcome;
        }
        deepheap::internal::count_efault_retry();
    }
    pinned(&buffers, &call)
}

#[inline(never)]
fn pinned<R: Outcome>(buffers: &dyn Fn(&mut Pins), call: &dyn Fn() -> R) -> R {
    let mut pins = Pins::new();
    buffers(&mut pins);
    call()
}
