//! Durable: a heap whose file outlives its process.
//!
//! | noun | file |
//! |---|---|
//! | where every page lies | `layout` |
//! | what is known of every page, in RAM | `index` |
//! | pages on their way from and to the device | `pages` |
//! | a store, saved in such a file and opened again | `saved` |
//! | a checkpoint as it is read | `checkpoint` |
//! | the file: made, opened | `file` |
//! | a checkpoint that is being made | `saving` |
//! | a table that is read page by page | `saved_table` |
//! | checkpoints that are kept under a name | `snapshots` |
//! | places of the log: free ones, and segments that move to them | `places` |
//! | looking for damage | `verify` |
//! | what damage has left | `salvage` |
//! | the store's tables, made anew from the log | `rebuild` |
//! | what can go wrong | `error` |
//!
//! The file is drawn in `docs/internals/on-disk-format.md`. A checkpoint writes the table pages
//! that changed beside those of the last one, then the index pages above them, and syncs. Then it
//! writes the older of the two superblocks, and syncs again. The superblock is the only commit.
//!
//! Guarantees: whatever is not finished when the process or the power ends is as if it had never
//! begun; a byte that changes on the device is found when it is loaded.
//! Never: overwrites what the last checkpoint uses; repeats a sync that failed.
//! Threads: one at a time, for each file.

pub mod checkpoint;
pub mod error;
pub mod file;
pub mod places;
pub mod rebuild;
pub mod salvage;
pub mod saved;
pub mod saved_table;
pub mod saving;
pub mod snapshots;
pub mod verify;

mod index;
mod layout;
mod pages;
