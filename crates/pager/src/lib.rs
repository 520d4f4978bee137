//! Pager: the engines that move objects between RAM and the store, and what a fault does.
//!
//! Guarantees: no write of the program is lost, whichever threads fault, evict, collect or fork at
//! the same time (`residency` says who owns an object, `evict` why its bytes are final); the page
//! buffer, the object cache and everything counted in `budget` stay within the RAM budget.
//! Never: touches managed memory (it would fault on itself), allocates after construction.

mod access;
mod balancer;
mod budget;
mod bulk;
mod capture;
mod capture_write;
mod checkpoint;
mod collect;
mod compact;
mod companions;
mod compression;
mod counters;
mod direct;
mod discard;
mod evict;
mod eviction_context;
mod fault;
mod fault_report;
mod fetch;
mod fetcher;
mod flight;
mod fork;
mod from_file;
mod gate;
mod install;
mod lane_exit;
mod lane_fault;
mod lanes;
mod moves;
mod neighbours;
mod packer;
mod pager;
mod pin;
mod plain_spans;
mod prefetch;
mod press;
mod rebalance;
mod reclaim;
mod refused_pins;
mod room;
#[cfg(all(test, feature = "schedules"))]
mod schedules;
mod second_tier;
mod sources;
mod stand_in;
mod survey;
mod table_room;
mod takeover;
#[cfg(test)]
mod tests;
mod tier_mix;
pub mod trace;
pub mod trace_format;
mod window;

pub use deepheap_residency::ownership::TableTraffic;
pub use deepheap_residency::promises::{NoPromise, Overcommit};
pub use deepheap_residency::saved_places;
pub use deepheap_residency::staging::CALL_PIECES;

pub use access::{AccessBuffer, AccessError, AccessReason, Operation, Piece};
pub use budget::{Usage, handler_stacks, overhead_of_managing};
pub use checkpoint::{CheckpointBuffer, Cut, CutError};
pub use compression::Compress;
pub use counters::Counted;
pub use direct::Direct;
pub use fault_report::{FaultError, FaultKind, FaultReport};
pub use lanes::lanes_shift;
pub use moves::Moves;
pub use pager::{Options, Pager, StartError};
pub use sources::SOURCES_MAX;
pub use survey::Survey;

pub(crate) use deepheap_heap::PAGE;
