//! deepheap: a heap deeper than your RAM.
//!
//! One heap a process. It is ordinary memory until the program has allocated more than its RAM
//! budget; from then on the pages it does not use wait in a log-structured store on an SSD, and
//! come back when they are touched, under the same address.
//!
//! ```no_run
//! let config = deepheap::Config::parse("ram:256M,store:/var/tmp")?;
//! deepheap::init(config)?;
//! let bytes = deepheap::malloc(1 << 30);
//! assert!(!bytes.is_null());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod allocate;
mod children;
pub mod config;
pub mod config_error;
pub mod doctor;
pub mod doctor_store;
mod fault_handler;
mod fork;
mod global_allocator;
pub mod histogram;
mod holds;
pub mod machine;
mod object_box;
pub mod object_placement;
mod object_report;
mod object_trial;
pub mod objects;
mod observe;
pub mod process;
mod residency;
mod runtime;
pub mod size;
pub mod stats;
pub mod stats_page;
pub mod stats_report;
pub mod store_place;
mod workers;

pub use allocate::{
    aligned_alloc, calloc, free, give_up, malloc, owns, realloc, thread_exit, usable_size,
};
pub use config::{CachePolicy, Config, ConfigError, parse_size};
pub use deepheap_sys::fault_signal;
pub use deepheap_sys::own_descriptor::is_own as is_own_descriptor;
pub use deepheap_sys::pinned_allocator::PinnedAllocator;
pub use deepheap_sys::stream_list;
pub use fork::{fork_child, fork_parent, fork_prepare};
pub use global_allocator::DeepHeap;
pub use holds::Hold;
pub use object_box::{ObjectBox, Pinned};
pub use object_placement::ObjectPlacement;
pub use observe::{FIRST_PROCESS_VARIABLE, exit_summary, stats};
pub use residency::{count_efault_retry, is_managing, pin, touch, unpin};
pub use runtime::{InitError, init};
pub use stats::Stats;
pub use stats_report::{stats_json, summary};
