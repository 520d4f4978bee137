//! Check: whether settings are possible together, on a machine.
//!
//! Guarantees: a refusal says what to do.
//! Threads: pure.

use deepheap_heap::PAGE;
use deepheap_policy::budget_split;

use crate::settings::config::{
    Config, OBJECT_SIZE_MAX, RAM_MIN_BYTES, SEGMENT_MAX_BYTES, SEGMENT_MIN_BYTES, STORE_MAX_BYTES,
    STORE_MIN_BYTES,
};
use crate::settings::error::ConfigError;
use crate::settings::machine::Machine;
use crate::settings::value::range_text;
use crate::stats::report::bytes;

/// The smallest page buffer, in bytes: what the pager takes in any case.
const PAGE_BUFFER_MIN_BYTES: u64 = (budget_split::LEAST * PAGE) as u64;

impl Config {
    /// Whether the settings are possible together, on a machine.
    ///
    /// # Errors
    /// What is impossible, and why.
    pub fn check(&self, machine: Machine) -> Result<(), ConfigError> {
        let refuse_value = |key: &str, value: String, reason: String| {
            Err(ConfigError::new(format!("{key} {value} is impossible: {reason}")))
        };
        let refuse = |key, size, reason| refuse_value(key, bytes(size), reason);
        let at_least = |key, size, least| match size < least {
            true => refuse(key, size, format!("give at least {}", bytes(least))),
            false => Ok(()),
        };
        at_least("ram", self.ram, RAM_MIN_BYTES)?;
        if self.ram > machine.usable_bytes().max(RAM_MIN_BYTES) {
            let owner = match machine.cgroup_limit_bytes {
                Some(_) => "the memory cgroup of this process is limited to",
                None => "this machine has only",
            };
            let has = bytes(machine.usable_bytes());
            let reason = format!("{owner} {has}; give less, or leave it at 50%");
            return refuse("ram", self.ram, reason);
        }
        if let (Some(_), Some(pool)) = (self.stall_of_ram(), &self.pool) {
            let reason = "the programs of a pool get RAM by what they want, not by a bound on \
                          stalls; leave out pool, or give stall:off";
            return refuse_value("pool", pool.clone(), reason.to_owned());
        }
        let tier_size = self.tier.as_ref().map_or(self.store_size, |tier| tier.size);
        for (key, size) in [("store_size", self.store_size), ("tier", tier_size)] {
            let size = size.bytes_of(STORE_MAX_BYTES);
            at_least(key, size, STORE_MIN_BYTES)?;
            if size > STORE_MAX_BYTES {
                let most = bytes(STORE_MAX_BYTES);
                return refuse(key, size, format!("the store takes {most} at most"));
            }
        }
        let segment = self.segment_bytes;
        if !segment.is_power_of_two() || !(SEGMENT_MIN_BYTES..=SEGMENT_MAX_BYTES).contains(&segment)
        {
            let reason = "give a power of two from 128K to 8M".to_owned();
            return refuse("segment", segment, reason);
        }
        if let Some(sizes) = &self.objects {
            let (min, max) = (*sizes.start(), *sizes.end());
            let refuse = |reason| refuse_value("objects", range_text(sizes), reason);
            if min > max {
                return refuse(format!("give the smaller first, {}", range_text(&(max..=min))));
            }
            if min == 0 {
                return refuse("the smallest object has 1 byte".to_owned());
            }
            if max > OBJECT_SIZE_MAX {
                let most = bytes(OBJECT_SIZE_MAX as u64);
                return refuse(format!("the largest object has {most}"));
            }
        }
        if let Some(share) = self.page_buffer {
            if self.is_managed_early() {
                let reason = "with a bound on stalls, or a pool, its size follows the RAM that \
                              there is; leave out page_buffer, or give stall:off and no pool";
                return refuse_value("page_buffer", share.to_string(), reason.to_owned());
            }
            let size = share.bytes_of(self.ram);
            if size > self.ram {
                let reason = format!("the whole budget is {}; give a part of it", bytes(self.ram));
                return refuse("page_buffer", size, reason);
            }
            at_least("page_buffer", size, PAGE_BUFFER_MIN_BYTES)?;
        }
        Ok(())
    }
}
