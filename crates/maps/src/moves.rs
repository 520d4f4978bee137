//! Moves: how pages come into a map's RAM and leave it.

pub(crate) mod evict;
pub(crate) mod fill;
pub(crate) mod gather;
pub(crate) mod recover;
pub(crate) mod settle;
pub(crate) mod staging;
pub(crate) mod writers;
