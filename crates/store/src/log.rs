//! Log: the store, and what goes in and out of it: blocks that are appended, written, read back,
//! collected, and kept for forked children.

pub(crate) mod blocks;
pub(crate) mod event;
pub mod fork;
pub mod garbage;
pub mod head;
pub mod identity;
pub mod options;
pub mod read;
pub(crate) mod recent;
pub(crate) mod retry;
pub mod stats;
pub mod store;
pub(crate) mod tiers;
pub mod writer;
