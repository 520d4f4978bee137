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
mod area_table;
mod areas;
mod budget;
mod children;
pub mod config;
mod config_check;
mod config_error;
mod config_text;
mod config_value;
mod durable;
mod durable_allocate;
mod durable_checkpoint;
mod durable_compact;
mod durable_error;
pub mod durable_inspect;
mod durable_open;
mod durable_options;
pub mod durable_repair;
mod durable_snapshots;
mod durable_state;
mod durable_ticket;
mod durable_worker;
mod fault_handler;
mod fork;
mod full_wait;
mod global_allocator;
mod growth;
mod heap_map;
mod histogram;
mod holds;
mod least_ram;
mod limits;
#[doc(hidden)]
pub mod machine;
pub mod maps;
mod object_box;
pub mod objects;
mod observe;
pub mod obstacles;
mod pool;
mod pool_share;
mod private_maps;
mod private_table;
#[doc(hidden)]
pub mod process;
mod provision;
mod release;
mod relief;
mod residency;
mod resize;
mod rights;
mod runtime;
mod second_tier;
mod stall_share;
mod start;
pub mod stats;
#[doc(hidden)]
pub mod stats_page;
#[doc(hidden)]
pub mod stats_report;
pub mod stats_table;
mod store_full;
#[doc(hidden)]
pub mod store_location;
mod switch;
mod thrashing;
mod thread_cache;
#[cfg(feature = "device-hook")]
pub mod tier_hook;
mod trace_file;
mod trace_recorder;
mod viewer;
mod workers;

pub use allocate::{aligned_alloc, calloc, free, malloc, owns, usable_size};
pub use config::{Config, ConfigError, parse_size};
pub use deepheap_durable::OpenError;
pub use deepheap_durable::heap_file::HeapFile;
pub use deepheap_pager::Overcommit;
pub use deepheap_sys::errno::Errno;
pub use durable::DurableHeap;
pub use durable_compact::Compacted;
pub use durable_error::CheckpointError;
pub use durable_options::DurableOptions;
pub use durable_ticket::Ticket;
pub use durable_worker::Checkpoint;
pub use global_allocator::DeepHeap;
pub use limits::Limit;
pub use object_box::{ObjectBox, Pinned};
pub use observe::stats;
pub use resize::realloc;
pub use start::{InitError, init};
pub use stats::Stats;
pub use stats_report::{stats_json, summary};

// What only the preload library, the command and the benchmarks need.
#[doc(hidden)]
pub use {
    allocate::give_up,
    areas::{
        area_bytes_min, before_protect, give_up_area, is_area_mapped, map_area, map_hole,
        map_over_area, unmap_area,
    },
    deepheap_measure::size,
    deepheap_pager::Survey,
    deepheap_sys::{
        faults::fault_signal,
        files::{own_descriptor::is_own as is_own_descriptor, stream_list},
        memory::pinned_allocator::PinnedAllocator,
        threads::tls::area as thread_area,
    },
    fork::{fork_child, fork_parent, fork_prepare},
    holds::Hold,
    observe::{FIRST_PROCESS_VARIABLE, exit_summary, note_unmanaged},
    residency::{are_few, count_efault_retry, is_managing, may_leave, pin, touch, unpin},
    rights::provide,
    start::has_address_space,
    thread_cache::thread_exit,
};
