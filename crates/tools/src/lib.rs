//! Tools: what looks at deepheap from outside, for the command and the benchmarks.
//!
//! Never: is linked into a program.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod doctor;
pub mod drive;
pub mod process;
pub mod sample;
pub mod simulation;

pub use deepheap_pager::trace;

/// Files that are mapped by several processes, seen from outside.
pub mod maps {
    pub use deepheap_maps::{Listed, Look, MapError, Process, list, look};
}
