//! Calls: what the program asks of its memory otherwise than by touching it.
//!
//! It reads and writes objects (`direct` without an owner, `access` with one, `bulk` past the
//! cache), pins pages for system calls (`pin`), and frees them (`discard`).

pub(crate) mod access;
pub(crate) mod bulk;
pub(crate) mod direct;
pub(crate) mod discard;
pub(crate) mod pin;
pub(crate) mod pins;
