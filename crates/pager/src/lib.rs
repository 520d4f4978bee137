//! Residency: who is in DRAM, and the fault path.
//!
//! Guarantees: no write of the program is lost, whatever faults, evicts, collects or forks at the
//! same time (`object_table` says who owns an object, `evict` why its bytes are final); the page
//! buffer, the object cache and everything counted in `budget` stay within the RAM budget.
//! Never: touches managed memory (it would fault on itself), allocates after construction.

mod access;
mod balancer;
mod budget;
mod bulk;
mod collect;
mod compact;
mod descriptor;
mod discard;
mod evict;
mod fault;
mod fetch;
mod fork;
mod gate;
mod neighbours;
mod object_cache;
mod object_table;
mod page_buffer;
mod pager;
mod pin;
pub mod policy;
mod prefetch;
mod ranges;
mod reclaim;
#[cfg(all(test, feature = "schedules"))]
mod schedules;
mod staging;
mod takeover;

pub use access::{AccessBuffer, AccessError, AccessReason, Operation, Piece, WINDOW_PIECES};
pub use budget::{Usage, overhead_of_managing};
pub use collect::Collected;
pub use evict::Moves;
pub use fault::{FaultError, FaultKind, FaultReport};
pub use pager::{Options, Pager, StartError};
pub use policy::replacement::CachePolicy;

pub(crate) use deepheap_heap::PAGE;
