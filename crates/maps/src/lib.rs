//! Named maps: files larger than RAM, mapped by several processes with one copy in RAM and one
//! budget for all of them.
//!
//! The pages in RAM are in a sparse memory file, at the offsets of the file itself; every process
//! maps it. A hole there is a fault of ours: the page is read from the file and put into place. To
//! evict a page any process puts it into a pipe, makes a hole, reads the pipe, and writes what was
//! changed. There is no index: a page of the file is where it is.
//!
//! ```text
//!   table ─► access, on_fault ─► fill, gather ─► evict ─► settle    the file: backing, writers
//!     │                 ▲          └──► recover ──┘  ▲              the RAM: a sparse file, unmap
//!     ├──► pins ────────┘               ownership, entries          the tables: member, control
//!     └──► join, resize
//! ```
//!
//! Guarantees: no store is lost while a process of the map lives, even if all others die at any
//! point; what `sync` has answered Ok for is durable.
//! Never: runs in a thread of another process; knows of heaps.
//! Threads: each file says who may call it.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod calls;
mod error;
mod log;
mod moves;
mod region;
#[cfg(any(test, debug_assertions))]
mod strict_tests;
mod tables;
#[cfg(test)]
mod tests;

pub use calls::access::{
    Advice, Stats, advise, bring_in, bytes_from, gather_absent, owns, prefetch, stats, sync,
};
pub use calls::pins::{PinKind, TooMuch};
pub use calls::table::{
    MAPS_MAX, any, close, fork_child, fork_parent, fork_prepare, on_fault, open, pin, resize,
    unpin, unpin_thread, write_all,
};
pub use error::{MapError, SyncError};
pub use log::look::{Look, look};
pub use moves::gather::ROWS_MAX;
pub use region::join::Request;
pub use region::list::{Listed, Process, list};
#[cfg(any(test, debug_assertions))]
pub use strict_tests::check_invariants;
pub use tables::control::{BUDGET_MIN, PARTICIPANTS_MAX, Writes};
