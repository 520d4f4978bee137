//! Saved: the tables of a durable heap: saved, loaded, and mended when some of them are lost.

pub(crate) mod calls;
pub(crate) mod mend;
pub(crate) mod rebuild_objects;
pub(crate) mod rebuild_runs;
pub(crate) mod tables;
