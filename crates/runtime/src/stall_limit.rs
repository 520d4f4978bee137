//! Stall limit: the part of its run time that a program may stand in faults, as a setting.
//!
//! Guarantees: there is none that cannot be held.
//! Threads: plain data.

use core::fmt;
use core::ops::RangeInclusive;

/// Bounds that can be held: below, a single read of the device breaks it; above, RAM decides
/// nothing.
const STALL_PPM: RangeInclusive<u32> = 1_000..=500_000;

/// A part of the run time that a program may stand in faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimit {
    ppm: u32,
}

impl StallLimit {
    /// So many millionths of the run time; none if that bound cannot be held.
    pub fn of_ppm(ppm: u32) -> Option<StallLimit> {
        STALL_PPM.contains(&ppm).then_some(StallLimit { ppm })
    }

    /// Millionths of the run time.
    pub fn ppm(self) -> u32 {
        self.ppm
    }

    pub(crate) fn parse(text: &str) -> Option<StallLimit> {
        let percent: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
        // What is no number, and what is too large for one, becomes 0 and the largest.
        StallLimit::of_ppm((percent * 1e4).round() as u32)
    }
}

impl fmt::Display for StallLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}%", f64::from(self.ppm) / 1e4)
    }
}
