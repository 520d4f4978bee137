//! deepheap: the runtime in this process, with --ram as its budget and its store in --dir.

use crate::failure::Failure;
use crate::workload::Workload;

/// Starts the runtime of this process.
pub fn start(workload: &Workload) -> Result<(), Failure> {
    let text = settings(workload);
    let refused = |why: &dyn core::fmt::Display| Failure::Refused(format!("deepheap: {why}"));
    let config = deepheap::Config::parse(&text).map_err(|error| refused(&error))?;
    deepheap::init(config).map_err(|error| refused(&error))
}

/// The runtime's statistics, as its own JSON.
pub fn statistics() -> Option<serde_json::Value> {
    serde_json::from_str(&deepheap::stats_json(&deepheap::stats()?)).ok()
}

/// The settings in the syntax of `DEEPHEAP_CONF`.
fn settings(workload: &Workload) -> String {
    let store = workload.dir.to_string_lossy().replace('\\', "\\\\").replace(',', "\\,");
    format!("ram:{},store:{store},{}", workload.ram_bytes, workload.conf)
}
