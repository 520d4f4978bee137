//! Random: bytes that the kernel gives each program when it starts, and others when asked.
//!
//! Guarantees: `of_process` gives the same bytes for as long as the process runs the program, and
//! in its forked children; others can neither choose nor guess them. `fill` gives bytes that nobody
//! had before.
//! Never: allocates; `of_process` never blocks or enters the kernel.
//! Threads: any, also in a signal handler.

use crate::errno::{Errno, Result};
use crate::raw_call::raw_call_again;

/// Bytes of `of_process`.
pub const RANDOM_BYTES: usize = 16;

/// The random bytes of this process (AT_RANDOM). libc makes its stack guards from the same bytes:
/// derive what you need from them, and never reveal them. Zeros where the kernel gives none, which
/// Linux always does.
pub fn of_process() -> [u8; RANDOM_BYTES] {
    // SAFETY: no pointers; the value is looked up in what the kernel left on the first stack.
    let address = unsafe { libc::getauxval(libc::AT_RANDOM) };
    let bytes = core::ptr::with_exposed_provenance::<[u8; RANDOM_BYTES]>(address as usize);
    if bytes.is_null() {
        return [0; RANDOM_BYTES];
    }
    // SAFETY: the kernel's promise (getauxval(3)): the address of sixteen bytes, on the first
    // stack, which stay where they are; bytes have no alignment.
    unsafe { bytes.read() }
}

/// Fills the bytes with new random ones, which can serve as a key. Blocks only while the machine
/// has just started.
pub fn fill(bytes: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the kernel writes within `rest`.
        done += match unsafe { raw_call_again!(SYS_getrandom, rest.as_mut_ptr(), rest.len(), 0) }? {
            0 => return Err(Errno::EIO),
            more => more,
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_is_new_each_time() {
        let mut all = [[0; 300]; 2];
        all.iter_mut().for_each(|bytes| fill(bytes).expect("random bytes"));
        assert_ne!(all[0], all[1]);
        assert!(all[1][256..].iter().any(|&byte| byte != 0), "to the end");
    }

    #[test]
    fn they_are_there_and_stay_the_same() {
        assert_ne!(of_process(), [0; RANDOM_BYTES]);
        assert_eq!(of_process(), of_process());
    }
}
