//! Random: bytes that the kernel gives each program when it starts.
//!
//! Guarantees: the same bytes for as long as the process runs the program, and in its forked
//! children; others can neither choose nor guess them.
//! Never: allocates | blocks | enters the kernel.
//! Threads: any, also in a signal handler.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_there_and_stay_the_same() {
        assert_ne!(of_process(), [0; RANDOM_BYTES]);
        assert_eq!(of_process(), of_process());
    }
}
