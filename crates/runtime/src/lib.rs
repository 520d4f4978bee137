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

mod control;
mod durable;
pub mod maps;
mod memory;
pub mod objects;
#[doc(hidden)]
pub mod process;
mod runtime;
mod settings;
pub mod stats;

pub use deepheap_durable::OpenError;
pub use deepheap_durable::heap_file::HeapFile;
pub use deepheap_durable::{inspect as durable_inspect, repair as durable_repair};
pub use deepheap_pager::Overcommit;
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
#[cfg(feature = "device-hook")]
pub use process::tier_hook;
pub use settings::config::{self, Config, ConfigError, parse_size};
pub use settings::limits::Limit;
pub use settings::obstacles;
pub use stats::Stats;
pub use stats::observe::stats;
pub use stats::report::{stats_json, summary};
pub use stats::table as stats_table;

// What only the preload library, the command and the benchmarks need.
#[doc(hidden)]
pub use {
    deepheap_measure::size,
    deepheap_pager::Survey,
    deepheap_sys::{
        faults::fault_signal,
        files::{own_descriptor::is_own as is_own_descriptor, stream_list},
        memory::pinned_allocator::PinnedAllocator,
        threads::tls::area as thread_area,
    },
    memory::allocate::give_up,
    memory::areas::{
        area_bytes_min, before_protect, give_up_area, is_area_mapped, map_area, map_hole,
        map_over_area, unmap_area,
    },
    memory::holds::Hold,
    memory::residency::{are_few, count_efault_retry, is_managing, may_leave, pin, touch, unpin},
    memory::thread_cache::thread_exit,
    process::fork::{fork_child, fork_parent, fork_prepare},
    process::rights::provide,
    process::start::has_address_space,
    settings::{machine, store_location},
    stats::observe::{FIRST_PROCESS_VARIABLE, exit_summary, note_unmanaged},
    stats::{page as stats_page, report as stats_report},
};
