//! Pager: the engines that move objects between RAM and the store, and what a fault does.
//!
//! Guarantees: no write of the program is lost, whichever threads fault, evict, collect or fork at
//! the same time (`residency` has the owner of each object, `evict` the reason why its bytes are
//! final); the page buffer, the object cache and everything counted in `budget` stay within the RAM
//! budget.
//! Never: touches managed memory (it would fault on itself), allocates after construction.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod ahead;
mod budget;
mod calls;
mod checkpoint;
mod evict;
mod fault;
mod fork;
mod gate;
mod lanes;
#[cfg(all(test, feature = "schedules"))]
mod models;
mod moves;
mod pager;
mod patience;
mod reclaim;
#[cfg(all(test, feature = "schedules"))]
mod schedules;
mod survey;
mod takeover;
#[cfg(test)]
mod tests;
mod tier;
pub mod trace;
mod workers;

pub use deepheap_residency::counters::Counted;
pub use deepheap_residency::ownership::TableTraffic;
pub use deepheap_residency::promises::{NoPromise, Overcommit};
pub use deepheap_residency::saved_places;
pub use deepheap_residency::staging::CALL_PIECES;

pub use budget::rebalance::spared_ns;
pub use budget::{Usage, handler_stacks, overhead_of_managing};
pub use calls::access::{AccessBuffer, AccessError, AccessReason, Operation, Piece};
pub use calls::direct::Direct;
pub use checkpoint::{CheckpointBuffer, Cut, CutError};
pub use evict::compression::Compress;
pub use fault::report::{FaultError, FaultKind, FaultReport};
pub use fault::sources::SOURCES_MAX;
pub use lanes::lanes_shift;
pub use moves::Moves;
pub use pager::{Options, Pager, StartError};
pub use survey::Survey;
pub use workers::Workers;

pub(crate) use deepheap_heap::PAGE;
