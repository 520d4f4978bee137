//! Trace: `simulate` and `advise`, which replay what a program did under other RAM.

pub(crate) mod advise;
pub(crate) mod chart;
pub(crate) mod simulate;
