//! deepheap: the runtime in this process, with --ram as its budget and its store in --dir.

use std::path::Path;

use crate::failure::Failure;

/// Starts the runtime of this process; `more` settings are as `DEEPHEAP_CONF` takes them.
pub fn start(ram_bytes: u64, dir: &Path, more: &str) -> Result<(), Failure> {
    let text = settings(ram_bytes, dir, more);
    let refused = |why: &dyn core::fmt::Display| Failure::Refused(format!("deepheap: {why}"));
    let config = deepheap::Config::parse(&text).map_err(|error| refused(&error))?;
    deepheap::init(config).map_err(|error| refused(&error))
}

/// The runtime's statistics, as its own JSON.
pub fn statistics() -> Option<serde_json::Value> {
    serde_json::from_str(&deepheap::stats_json(&deepheap::stats()?)).ok()
}

/// The settings in the syntax of `DEEPHEAP_CONF`.
pub fn settings(ram_bytes: u64, dir: &Path, more: &str) -> String {
    let store = dir.to_string_lossy().replace('\\', "\\\\").replace(',', "\\,");
    format!("ram:{ram_bytes},store:{store},{more}")
}
