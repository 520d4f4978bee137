//! Tables: what all processes of a map have in common in /dev/shm, and the locks of its shards.

pub(crate) mod control;
pub(crate) mod entries;
pub(crate) mod member;
pub(crate) mod ownership;
pub(crate) mod streams;
