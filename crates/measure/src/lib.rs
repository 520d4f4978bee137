//! Measures: sizes as people write them, and the buckets of histograms.
//!
//! Things that the product and its benchmarks must agree on: the runtime reads its settings and
//! counts its latencies by them, and so do the benchmarks and the C applications.
//!
//! Never: knows memory, does I/O. Depends on no other crate.
//! Threads: pure functions.

pub mod buckets;
pub mod size;
