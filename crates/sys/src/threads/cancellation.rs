//! Cancellation: keeps `pthread_cancel` from ending a thread in code of ours that must call libc.
//!
//! Code that runs often makes raw calls (`raw_call`). Code that runs once, such as the start of the
//! runtime and of management, reads files through `std`, whose `open` and `read` are cancellation
//! points of libc. A thread that unwound there would leave locks held; and POSIX does not allow
//! `malloc` to be a cancellation point.
//!
//! Guarantees: while an `Off` lives, no call of its thread acts on a pending cancellation; the
//! program's own state is restored on drop, and the cancellation stays pending until then.
//! Never: allocates | enters the kernel | acts on a cancellation itself, unless the program has
//! made its thread's cancellation asynchronous: then it acts on drop.
//! Threads: any, also in a signal handler. Guards of a thread end in the reverse order of their
//! beginning.

use core::ffi::c_int;
use core::marker::PhantomData;

const DISABLE: c_int = 1; // PTHREAD_CANCEL_DISABLE

unsafe extern "C" {
    // The only function of libc for cancellation that may be called from a signal handler.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// While it lives, the calling thread is not cancelled.
#[derive(Debug)]
#[must_use = "cancellation is let in again when the guard is dropped"]
pub struct Off {
    before: c_int,
    // The state belongs to the thread: `*const ()` makes the guard !Send.
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Off {
    /// Keeps cancellation off from now on.
    pub fn begin() -> Off {
        let mut before = 0;
        // SAFETY: a state that libc knows, and room for the old one. It cannot fail.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Off { before, _stays_on_its_thread: PhantomData }
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: the state that libc told before.
        unsafe { pthread_setcancelstate(self.before, &mut ours) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_before_comes_back() {
        let state = || {
            let off = Off::begin();
            off.before
        };
        let enabled = state();
        {
            let _off = Off::begin();
            assert_eq!(state(), DISABLE);
            assert_eq!(state(), DISABLE, "an inner guard leaves the outer one's state");
        }
        assert_eq!(state(), enabled);
    }
}
