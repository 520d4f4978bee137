//! A log of checked blocks on a device.
//!
//! The store keeps 4 KiB blocks: one object each, or several packed together. It writes them in
//! whole segments, appended to a log; it never overwrites a block in place; it verifies a checksum
//! on every read. Segments whose blocks are mostly dead are collected: the caller moves the live
//! objects, the store reuses the segment.
//!
//! | folder | what is in it |
//! |---|---|
//! | `block` | a block: its number, its checksum, how it is encrypted, which objects share it |
//! | `device` | where the bytes go: the device, and a file as a device |
//! | `format` | every byte on the device: segments, their directories, packed blocks, tables |
//! | `space` | segments: their states, which are free, reserved, pinned, worth emptying |
//! | `log` | what goes in and out: store, writer, reads, collection, forks, second tier |
//! | `durable` | a heap whose file outlives its process, and a store in it |
//! | `map_log` | the file of a map that writes out of place |
//! | `error` | what can go wrong |
//!
//! `log/store` imports the parts. The rest of `log` imports `log/store`, which does not know it. No
//! two modules import each other.
#![cfg_attr(not(test), warn(unreachable_pub))]
#![forbid(unsafe_code)]
#![warn(clippy::cast_lossless)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

pub mod block;
pub mod device;
pub mod durable;
pub mod error;
pub mod format;
pub mod log;
pub mod map_log;

mod space;

pub use block::checksum::ContentHash;
pub use block::cipher::{KEY_BYTES, Key};
pub use block::pack::Plan;
pub use block::table::{TABLE_BYTES_PER_BLOCK, share};
pub use block::{BLOCK_UNITS, Block};
pub use device::file::{FileDevice, RING_BYTES};
pub use device::table_file::{PageLack, TableFile};
pub use device::{Device, Read, Write};
pub use durable::checkpoint::{Checkpoint, Snapshot, VisitPage};
pub use durable::error::DurableError;
pub use durable::file::{DurableFile, SuperblockId, Superblocks};
pub use durable::places::{give_back_free, move_down};
pub use durable::rebuild::RebuiltLog;
pub use durable::salvage::Salvage;
pub use durable::saved::SavedUpTo;
pub use durable::saved_table::SavedTable;
pub use durable::saving::Saving;
pub use error::StoreError;
pub use format::packed::{Content, PACKED_MAX, PackedBlock, cost};
pub use format::saved::{CHECKSUMS, SCALARS, SEGMENTS, SHARERS, SNAPSHOTS, TAGS};
pub use format::superblock::{HeapShape, Stamp, TableShape, WORDS};
pub use format::{BLOCK_BYTES, packed};
pub use log::fork::{Frozen, PinToken};
pub use log::garbage::{Objects, PackedObject, Victim, VictimObject, WholeObject};
pub use log::head::Head;
pub use log::identity::Identity;
pub use log::options::{BUFFERS_MIN, Options};
pub use log::read::BlockRead;
pub use log::stats::StoreStats;
pub use log::store::Store;
pub use log::writer::Writer;
pub use map_log::{MapLog, MapLogError, Survey};
pub use space::Goal;
