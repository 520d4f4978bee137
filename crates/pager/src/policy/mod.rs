//! Policy: decisions of the pager. Observations in, decisions out: no I/O, no locks, no clock.
#![forbid(unsafe_code)]

pub mod balance;
pub mod budget_split;
pub mod fair_share;
pub mod ghost;
pub mod history;
pub mod replacement;
pub mod replay;
pub mod sequence;
pub mod stall_bound;
pub mod stride;
pub mod tier;
pub mod trail;
pub mod way;
