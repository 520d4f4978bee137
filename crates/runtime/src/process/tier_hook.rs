//! Tier hook: what benchmarks and tests put around the device of the second tier.
//!
//! Only with the feature `device-hook`, which nothing that is shipped has.
//! Threads: set before the start, read when the second tier is opened.

use std::sync::OnceLock;

use deepheap_store::Device;

use crate::process::provision::Ground;

/// Puts a device around another one.
pub type Hook = fn(Box<dyn Device>) -> Box<dyn Device>;

/// Makes the device of the second tier another one, say as slow as a disk.
pub static TIER_HOOK: OnceLock<Hook> = OnceLock::new();

/// The ground of the second tier with the device that the hook makes of its own.
pub(crate) fn hooked(ground: Ground) -> Ground {
    match TIER_HOOK.get() {
        Some(hook) => Ground { device: hook(ground.device), ..ground },
        None => ground,
    }
}
