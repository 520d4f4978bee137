//! Policy: decisions. Observations in, decisions out.
//!
//! Guarantees: the same observations give the same decisions.
//! Never: takes a lock, looks at a clock, does I/O, has memory of its own that its caller should
//! account for: the caller that makes a table hands in the memory for it.
#![cfg_attr(not(test), warn(unreachable_pub))]
#![forbid(unsafe_code)]
#![warn(clippy::cast_lossless)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

use core::ops::Deref;
use core::sync::atomic::AtomicU32;

pub mod balance;
pub mod budget_split;
pub mod fair_share;
pub mod ghost;
pub mod history;
pub mod more_ram;
pub mod replacement;
pub mod sequence;
pub mod stall_bound;
pub mod stride;
pub mod tier;
pub mod trail;
pub mod trail_run;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Memory for a table: numbers that are 0 at first.
pub trait Memory: Deref<Target = [AtomicU32]> {}

impl<T: Deref<Target = [AtomicU32]>> Memory for T {}

/// The whole part of a number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates: what is below 0 or no number becomes 0"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
fn zeros(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}
