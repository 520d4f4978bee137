//! Calls: what the runtime asks of this process's maps.

pub(crate) mod access;
pub(crate) mod durable;
pub(crate) mod pins;
pub(crate) mod table;
