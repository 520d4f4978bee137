//! Files: commands about the files of durable heaps and of maps.

pub(crate) mod durable;
pub(crate) mod map_log;
pub(crate) mod maps;
