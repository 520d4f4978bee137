//! All benchmarks draw their operations from these: random numbers, Zipf's law, bijections; and
//! the histogram of how long they took.
//!
//! `deepheap-bench` takes it in as a crate; `crates/libload` makes it a library for the C
//! applications of the papers.
//!
//! Guarantees: the same seed gives the same numbers on every machine.
//! Threads: see each module.

pub mod histogram;
pub mod permutation;
pub mod random;
pub mod zipf;
