//! Memory: `malloc`, `mmap` and their kin, and where what they return lies.

pub(crate) mod allocation;
pub(crate) mod mapping;
pub(crate) mod placement;
pub(crate) mod plain;
