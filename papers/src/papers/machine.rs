//! Machine: where and when a run was measured, for the pages that show it.
//!
//! Guarantees: what cannot be found out is left out.
//! Never: names the host or its user.

use std::fs::read_to_string;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use deepheap_bench::gauges::BlockDevice;

/// What stands on a page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Machine {
    pub cpus: usize,
    pub processor: Option<String>,
    pub memory_bytes: Option<u64>,
    pub kernel: Option<String>,
    pub device: Option<String>,
    pub device_bytes: Option<u64>,
}

impl Machine {
    /// This one, with the device below a folder.
    pub fn here(dir: &Path) -> Self {
        let field = |path: &str, name: &str| {
            let text = read_to_string(path).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        let kib = field("/proc/meminfo", "MemTotal");
        let kib = kib.and_then(|text| text.strip_suffix(" kB")?.trim().parse::<u64>().ok());
        let kernel = read_to_string("/proc/sys/kernel/osrelease").ok();
        let device = BlockDevice::below(dir);
        Self {
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            processor: field("/proc/cpuinfo", "model name"),
            memory_bytes: kib.map(|kib| kib << 10),
            kernel: kernel.map(|text| text.trim().to_string()),
            device_bytes: device.as_ref().and_then(BlockDevice::bytes),
            device: device.map(|device| device.name().to_string()),
        }
    }

    /// Its processors and memory, in words.
    pub fn in_short(&self) -> String {
        let memory = self.memory_bytes.map(|bytes| format!(" and {} GiB", bytes.div_ceil(1 << 30)));
        let processor = self.processor.as_ref().map(|name| format!(" ({name})"));
        let (processor, memory) = (processor.unwrap_or_default(), memory.unwrap_or_default());
        format!("{} CPUs{processor}{memory}", self.cpus)
    }

    /// In words.
    pub fn sentence(&self) -> String {
        let gib = |bytes: u64| format!("{:.0} GiB", bytes as f64 / (1_u64 << 30) as f64);
        let mut parts = vec![format!("{} CPUs", self.cpus)];
        if let Some(processor) = &self.processor {
            parts[0] = format!("{} CPUs ({processor})", self.cpus);
        }
        parts.extend(self.memory_bytes.map(|bytes| format!("{} of RAM", gib(bytes))));
        parts.extend(self.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
        if let Some(device) = &self.device {
            let size =
                self.device_bytes.map_or_else(String::new, |bytes| format!(" of {}", gib(bytes)));
            parts.push(format!("block device {device}{size}"));
        }
        parts.join(", ")
    }
}

/// Today, in UTC: 2026-11-21.
pub fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date_of(since.as_secs() / 86_400)
}

/// The date so many days after 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms").
fn date_of(days: u64) -> String {
    let days = days + 719_468; // from 0000-03-01
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153; // March is 0
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, date) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (20_454, "2026-01-01"),
            (20_778, "2026-11-21"),
        ] {
            assert_eq!(date_of(days), date);
        }
    }

    #[test]
    fn this_machine_is_described() {
        let sentence = Machine::here(Path::new(".")).sentence();
        assert!(sentence.contains("CPUs") && sentence.contains("Linux"), "{sentence}");
    }
}
