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

#![cfg_attr(not(test), warn(unreachable_pub))]

mod control;
mod durable;
#[doc(hidden)]
pub mod internal;
pub mod maps;
mod memory;
pub mod objects;
mod process;
mod runtime;
mod settings;
pub mod stats;

pub use deepheap_durable::OpenError;
pub use deepheap_durable::heap_file::HeapFile;
pub use deepheap_pager::{Compress, Overcommit};
pub use deepheap_sys::errno::Errno;
pub use durable::compact::Compacted;
pub use durable::error::CheckpointError;
pub use durable::options::DurableOptions;
pub use durable::worker::Checkpoint;
pub use durable::{DurableHeap, Ticket};
pub use memory::allocate::{aligned_alloc, calloc, free, malloc, owns, usable_size};
pub use memory::global_allocator::DeepHeap;
pub use memory::resize::realloc;
pub use objects::boxed::{ObjectBox, Pinned};
pub use process::start::{InitError, init};
pub use settings::config::{Config, ConfigError, SecondTier, Share, StallLimit};
pub use settings::obstacles::Finding;
pub use settings::store_location::StoreLocationError;
pub use stats::Stats;
pub use stats::observe::stats;
pub use stats::report::{stats_json, summary};
