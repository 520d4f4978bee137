//! Runs: consecutive pages, allocated and free: tags, bins of free runs, areas of mappings.

pub(crate) mod areas;
pub(crate) mod coalescing;
pub(crate) mod free_runs;
pub(crate) mod grant;
pub(crate) mod resize;
pub(crate) mod tags;
