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
//! | which objects share a packed block | `pack` |
//! | what a block's bytes hash to, and ought to | `checksum` |
//! | where the bytes go: the device, and a file as a device | `device`, `file_device` |
//! | every byte on the device: segments, their directories, packed blocks | `format` |
//! | the states of a segment | `segment` |
//! | free segments, reservations, buckets | `space`, on the `list`s of segments |
//! | the two heads of the log, the writer, the sealed segments | `head`, `log` |
//! | segments that the device refused | `retry_schedule`, `retry` |
//! | blocks on their way back, and the last of them | `read`, `recent` |
//! | victims of collection | `garbage` |
//! | when to collect, and what | `policy` |
//! | what the device is told to be free | `discards` |
//! | what a fork needs | `pins`, `fork` |
//! | a slower store behind the store | `tiers` |
//! | what threads wait for | `event` |
//! | counters | `stats` |
//! | how it is laid out, who it is | `options`, `identity` |
//! | all of them together | `store` |
//! | pages that another room keeps out of RAM | `table_file` |
//! | a heap whose file outlives its process | `durable` |
//! | a store, saved in such a file and opened again | `saved` |
//! | the file of a map that writes out of place | `map_log` |
//!
//! `store` imports the parts. The ways through it (`log`, `retry`, `read`, `garbage`, `fork`,
//! `tiers`) import `store`, which does not know them. No two modules import each other.
#![forbid(unsafe_code)]

pub mod block;
mod busy;
pub mod checksum;
pub mod cipher;
pub mod device;
pub mod durable;
pub mod error;
pub mod file_device;
pub mod fork;
pub mod format;
pub mod garbage;
pub mod head;
pub mod identity;
pub mod log;
pub mod map_log;
pub mod options;
pub mod pack;
pub mod read;
pub mod saved;
pub mod stats;
pub mod store;
pub mod table_file;

mod discards;
mod event;
mod list;
mod pins;
mod policy;
mod recent;
mod retry;
mod retry_schedule;
mod seal;
mod segment;
mod sharers;
mod space;
mod tiers;

pub use block::{BLOCK_UNITS, Block};
pub use checksum::ContentHash;
pub use cipher::{KEY_BYTES, Key};
pub use device::{Device, Read, Write};
pub use durable::error::DurableError;
pub use durable::file::{DurableFile, Snapshot, SuperblockId, Superblocks};
pub use durable::rebuild::RebuiltLog;
pub use durable::salvage::Salvage;
pub use durable::saved_table::SavedTable;
pub use durable::saving::Saving;
pub use error::StoreError;
pub use file_device::{FileDevice, RING_BYTES};
pub use fork::{Frozen, PinToken};
pub use format::packed::{Content, PACKED_MAX, PackedBlock, cost};
pub use format::saved::{CHECKSUMS, SCALARS, SEGMENTS, SHARERS, SNAPSHOTS, TAGS};
pub use format::superblock::{HeapShape, Stamp, TableShape, WORDS};
pub use format::{BLOCK_BYTES, packed};
pub use garbage::{Objects, PackedObject, Victim, VictimObject, WholeObject};
pub use head::Head;
pub use identity::Identity;
pub use log::Writer;
pub use map_log::{MapLog, MapLogError, Survey};
pub use options::{BUFFERS_MIN, Options};
pub use pack::Plan;
pub use read::BlockRead;
pub use saved::SavedUpTo;
pub use sharers::share;
pub use stats::StoreStats;
pub use store::{Store, TABLE_BYTES_PER_BLOCK};
pub use table_file::{PageLack, TableFile};
