//! Trace: what faults, evictions and writes did; `format` is the file that it is kept in.

pub mod format;

pub use deepheap_residency::trace::{Happened, LANES, Record, Trace, UNIT_NS};
