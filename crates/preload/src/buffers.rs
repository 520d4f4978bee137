//! Buffers: the memory that a call hands to the kernel, pinned while the call uses it.

pub(crate) mod guarded;
pub(crate) mod pins;
pub(crate) mod transfer;
pub(crate) mod vectors;
