//! Options: the settings of a durable heap, `key:value` pairs separated by commas as in
//! `DEEPHEAP_CONF`.
//!
//! | key | meaning |
//! |---|---|
//! | `ram` | its part of the RAM budget of the process: a size, or percent of it (50%) |
//! | `size` | address space, which cannot grow later: a size (256G); at creation only |
//! | `store_size` | the most that the file may take: a size (as `size`); at creation only |
//! | `address` | where it lives, hexadecimal; at creation only |
//! | `checkpoint` | makes one after each such time if anything changed: `500ms`, `10s`, `5min` |
//! | `encrypt` | the file of the key: the heap is encrypted |
//! | `segment`, `compress`, `page_buffer` | as in `DEEPHEAP_CONF` |
//! | `readonly` (no value) | the last checkpoint is opened to be read, beside a writer as well |
//! | `snapshot` | with `readonly`: the checkpoint of this name instead |

use core::ops::RangeInclusive;
use core::time::Duration;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use deepheap_durable::OpenError;
use deepheap_heap::SPAN;
use deepheap_pager::Overcommit;

use crate::settings::config::{Config, ConfigError, STORE_MAX_BYTES, STORE_MIN_BYTES, Share};
use crate::settings::machine::Machine;
use crate::settings::value::Given;
use crate::stats::report::bytes;

/// Address space of a heap, if nothing is said.
const SIZE_DEFAULT: u64 = 256 << 30;
/// The largest region: 2^30 pages.
const SIZE_MAX: u64 = 1 << 42;
/// Durable heaps live from here on, if nothing is said, at multiples of `PLACE_BYTES`.
const PLACES_BASE: u64 = 0x3000_0000_0000;
const PLACE_BYTES: u64 = 64 << 30;
const PLACES: u64 = 512;

/// Intervals that checkpoints can have.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_hours(24);

/// The settings of a durable heap.
#[derive(Clone, Debug, PartialEq)]
pub struct DurableOptions {
    /// Its part of the RAM budget.
    pub ram: Share,
    /// Bytes of address space.
    pub size: u64,
    /// The most bytes that the file may take; none: as `size`.
    pub store_size: Option<u64>,
    /// Where it lives; none: somewhere.
    pub address: Option<u64>,
    /// How often a worker makes a checkpoint if anything changed; none: never by itself.
    pub checkpoint: Option<Duration>,
    /// Whether it is opened to be read alone.
    pub read_only: bool,
    /// Which snapshot is opened; none: the last checkpoint.
    pub snapshot: Option<String>,
    /// The file of the key with which it is encrypted; none: it is not.
    pub key_file: Option<PathBuf>,
    /// Settings that a heap has in common with that of `malloc`.
    config: Config,
}

impl DurableOptions {
    /// Reads a text of settings; an empty one gives the defaults, which are those of
    /// `DEEPHEAP_CONF` where it has them.
    ///
    /// # Errors
    /// `OpenError::Options` says which setting is wrong.
    pub fn parse(text: &str) -> Result<DurableOptions, OpenError> {
        let machine = Machine::read();
        let config = Config::from_environment()?;
        let mut options = DurableOptions {
            ram: Share::Percent(50),
            size: SIZE_DEFAULT,
            store_size: None,
            address: None,
            checkpoint: None,
            read_only: false,
            snapshot: None,
            key_file: None,
            config,
        };
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        for item in items {
            if item == "readonly" {
                options.read_only = true;
                continue;
            }
            let (key, value) = item.split_once(':').ok_or_else(|| {
                OpenError::Options(format!("{item}: write key:value, separated by commas"))
            })?;
            options.set(machine, key.trim(), value.trim())?;
        }
        if options.snapshot.is_some() && !options.read_only {
            return Err(OpenError::Options(
                "a snapshot can only be read: add readonly, or go back to it by `deepheap \
                 rollback`"
                    .into(),
            ));
        }
        Ok(options)
    }

    fn set(&mut self, machine: Machine, key: &str, value: &str) -> Result<(), OpenError> {
        let size = |most: u64, least: u64| {
            let given = crate::settings::config::parse_size(value)?;
            if (least..=most).contains(&given) {
                return Ok(given);
            }
            let (least, most) = (bytes(least), bytes(most));
            Err(OpenError::Options(format!("{key}: give from {least} to {most}")))
        };
        match key {
            "ram" => self.ram = Given { key: "ram", text: value, whole: None }.share()?,
            "size" => self.size = size(SIZE_MAX, SPAN as u64)?.next_multiple_of(SPAN as u64),
            "store_size" => self.store_size = Some(size(STORE_MAX_BYTES, STORE_MIN_BYTES)?),
            "address" => self.address = Some(address(value)?),
            "checkpoint" => self.checkpoint = Some(interval(value)?),
            "snapshot" => self.snapshot = Some(value.into()),
            "encrypt" => self.key_file = Some(value.into()),
            "segment" | "compress" | "page_buffer" => self.config.set(machine, key, value)?,
            _ => {
                return Err(OpenError::Options(format!(
                    "{key}: no such setting of a durable heap; there are ram, size, store_size, \
                     address, checkpoint, encrypt, segment, compress, page_buffer, readonly and \
                     snapshot"
                )));
            }
        }
        Ok(())
    }

    /// The settings of its runtime, which has so much RAM. Room is taken when memory is allocated:
    /// promised room has to be there for the process that opens the heap next.
    pub(crate) fn config(&self, ram: u64) -> Config {
        let mut config = Config { ram, overcommit: Overcommit::Strict, ..self.config.clone() };
        config.fit_segments();
        config
    }

    /// The most bytes that the log may take.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.store_size.unwrap_or(self.size).clamp(STORE_MIN_BYTES, STORE_MAX_BYTES)
    }

    /// Where a new heap is to live.
    pub(crate) fn base(&self) -> u64 {
        self.address.unwrap_or_else(|| {
            let random = RandomState::new().build_hasher().finish();
            PLACES_BASE + random % PLACES * PLACE_BYTES
        })
    }
}

impl From<ConfigError> for OpenError {
    fn from(error: ConfigError) -> Self {
        OpenError::Options(error.to_string())
    }
}

fn address(text: &str) -> Result<u64, OpenError> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match u64::from_str_radix(digits, 16) {
        Ok(address) if address > 0 && address.is_multiple_of(SPAN as u64) && address < 1 << 47 => {
            Ok(address)
        }
        _ => Err(OpenError::Options(format!(
            "address:{text}: give a multiple of 0x4000000 below 0x800000000000, such as \
             0x300000000000"
        ))),
    }
}

fn interval(text: &str) -> Result<Duration, OpenError> {
    let unit_at = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let unit_ms = match unit.trim() {
        "ms" => Some(1),
        "s" => Some(1000),
        "min" => Some(60_000),
        _ => None,
    };
    let milliseconds = digits.parse::<u64>().ok().zip(unit_ms);
    let milliseconds = milliseconds.and_then(|(number, unit_ms)| number.checked_mul(unit_ms));
    match milliseconds.map(Duration::from_millis) {
        Some(interval) if INTERVALS.contains(&interval) => Ok(interval),
        _ => Err(OpenError::Options(format!(
            "checkpoint:{text}: give from 10ms to 1440min, as 500ms, 10s or 5min"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_a_unit_and_bounds() {
        for (text, milliseconds) in [("500ms", 500), ("10s", 10_000), ("5 min", 300_000)] {
            let interval = interval(text).expect("an interval");
            assert_eq!(interval, Duration::from_millis(milliseconds));
        }
        for bad in
            ["", "10", "s", "9ms", "0s", "1441min", "1h", "-1s", "1.5s", "99999999999999999s"]
        {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
