//! Internal: what the preload library, the command and the benchmarks need, and no program.
//!
//! Never: kept as it is for the sake of others.

pub use deepheap_durable::{inspect, repair};
pub use deepheap_measure::size;
pub use deepheap_pager::Survey;
pub use deepheap_sys::faults::{deferral, fault_signal};
pub use deepheap_sys::files::descriptor_mail;
pub use deepheap_sys::files::own_descriptor::is_own as is_own_descriptor;
pub use deepheap_sys::files::stream_list;
pub use deepheap_sys::memory::pinned_allocator::PinnedAllocator;
pub use deepheap_sys::threads::tls::area as thread_area;

pub use crate::memory::allocate::give_up;
pub use crate::memory::areas::{
    area_bytes_min, before_protect, give_up_area, is_area_mapped, map_area, map_hole,
    map_over_area, unmap_area,
};
pub use crate::memory::holds::Hold;
pub use crate::memory::residency::{
    are_few, count_efault_retry, is_managing, may_leave, pin, touch, unpin,
};
pub use crate::memory::thread_cache::thread_exit;
pub use crate::process::fork::{fork_child, fork_parent, fork_prepare};
pub use crate::process::host;
pub use crate::process::parent::PARENT_VARIABLE;
pub use crate::process::rights::provide;
pub use crate::process::start::has_address_space;
#[cfg(feature = "device-hook")]
pub use crate::process::tier_hook;
pub use crate::settings::config::{self, parse_size};
pub use crate::settings::{machine, obstacles, store_location};
pub use crate::stats::observe::{
    FIRST_PROCESS_VARIABLE, append_json, exit_summary, note_unmanaged,
};
pub use crate::stats::{page as stats_page, profile, report as stats_report, table as stats_table};
