//! A log of checked blocks on a device.
//!
//! The store keeps 4 KiB blocks: one object each, or several packed together. It writes them in
//! whole segments, appended to a log; it never overwrites a block in place; it verifies a checksum
//! on every read. Segments whose blocks are mostly dead are collected: the caller moves the live
//! objects, the store reuses the segment.
//!
//! | noun | file |
//! |---|---|
//! | the numbers of blocks and segments | `block` |
//! | several objects in a block, and which go together | `packed`, `pack` |
//! | what a block's bytes hash to, and ought to | `checksum` |
//! | where the bytes go: the device, and a file as a device | `device`, `file_device` |
//! | every persisted byte | `format` |
//! | the states of a segment | `segment` |
//! | free segments, reservations, buckets | `space`, on the `list`s of segments |
//! | the two heads of the log, the writer, the sealed segments | `log` |
//! | blocks on their way back, and the last of them | `read`, `recent` |
//! | victims of collection | `garbage` |
//! | when to collect, and what | `policy` |
//! | what a fork needs | `fork` |
//! | what threads wait for | `event` |
//! | counters | `stats` |
//! | all of them together | `store` |
#![forbid(unsafe_code)]

pub mod block;
pub mod checksum;
pub mod device;
pub mod error;
pub mod file_device;
pub mod fork;
pub mod format;
pub mod garbage;
pub mod log;
pub mod pack;
pub mod packed;
pub mod policy;
pub mod read;
pub mod stats;
pub mod store;

mod event;
mod list;
mod recent;
mod segment;
mod space;

pub use block::{BLOCK_BYTES, BLOCK_UNITS, Block};
pub use checksum::{CHECKSUM_BYTES_PER_BLOCK, ContentHash};
pub use device::{Device, Read, Write};
pub use error::StoreError;
pub use file_device::FileDevice;
pub use fork::{Frozen, PinToken};
pub use garbage::{Objects, PackedObject, Victim, VictimObject, WholeObject};
pub use log::{Head, Writer};
pub use pack::Plan;
pub use packed::{PACKED_MAX, PackedBlock, cost};
pub use policy::VictimPolicy;
pub use read::BlockRead;
pub use stats::StoreStats;
pub use store::{Options, Store};
