//! Numbers: what a run measured, by one set of names whatever program measured it.
//!
//! ```text
//! operations_per_second  mean_us deviation_us p50_us p99_us  operations writes seconds
//! read_bytes written_bytes (of the block device, while measuring)  peak_bytes  changed_lines
//! written_bytes_per_write written_bytes_per_operation written_bytes_per_second life_years
//! reads_per_operation (of 4 KiB)
//! ```
//!
//! The last two lines are computed from the others. Whatever else a program reports has its own
//! name.
//!
//! Guarantees: what was not measured is absent, never zero.
//! Never: does I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use deepheap_bench::gauges;

/// What all contenders read at least: a page, or a block.
const READ_BYTES: f64 = 4096.0;

/// Names and values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Numbers(BTreeMap<String, f64>);

impl Numbers {
    /// Of the JSON line of an application.
    pub fn of_application(report: &Value) -> Self {
        let mut numbers = Self::of_anything(report);
        for (from, to) in [("p50_ns", "p50_us"), ("p99_ns", "p99_us"), ("p999_ns", "p999_us")] {
            numbers.rename(from, to, 1e-3);
        }
        // An application whose operations are not timed one by one says zero.
        numbers.0.retain(|name, value| !name.starts_with('p') || *value > 0.0);
        numbers.rename("device_read_bytes", "read_bytes", 1.0);
        numbers.rename("device_written_bytes", "written_bytes", 1.0);
        let time = |numbers: &Self| {
            let (threads, seconds) = (numbers.get("threads")?, numbers.get("seconds")?);
            Some(threads * seconds * 1e6 / numbers.get("operations").filter(|&n| n > 0.0)?)
        };
        // Each thread does one operation after the other and nothing else.
        if let Some(mean) = time(&numbers) {
            numbers.set("mean_us", mean);
        }
        numbers
    }

    /// Of the report of `deepheap-bench run` or `device`.
    pub fn of_memory(report: &Value) -> Self {
        let names = [
            ("operations_per_second", "/ops_per_second", 1.0),
            ("mean_us", "/latency_ns/mean", 1e-3),
            ("deviation_us", "/latency_ns/deviation", 1e-3),
            ("p50_us", "/latency_ns/p50", 1e-3),
            ("p99_us", "/latency_ns/p99", 1e-3),
            ("operations", "/measured_ops", 1.0),
            ("writes", "/measured_writes", 1.0),
            ("seconds", "/measured_seconds", 1.0),
            ("read_bytes", "/device/read_bytes", 1.0),
            ("written_bytes", "/device/written_bytes", 1.0),
            ("peak_bytes", "/peak_memory_bytes", 1.0),
        ];
        let found = names.into_iter().filter_map(|(name, at, scale)| {
            Some((name.to_string(), report.pointer(at)?.as_f64()? * scale))
        });
        Self(found.collect())
    }

    /// The numbers of any flat report, under their own names.
    pub fn of_anything(report: &Value) -> Self {
        let fields = report.as_object().into_iter().flatten();
        Self(fields.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect())
    }

    /// Adds a number, or replaces it.
    pub fn set(&mut self, name: &str, value: f64) {
        self.0.insert(name.into(), value);
    }

    /// A number by its name, those that are computed too.
    pub fn get(&self, name: &str) -> Option<f64> {
        let ratio = |a: &str, b: &str| {
            let under = self.get(b).filter(|&under| under > 0.0)?;
            Some(self.get(a)? / under)
        };
        match name {
            "written_bytes_per_write" => ratio("written_bytes", "writes"),
            "written_bytes_per_operation" => ratio("written_bytes", "operations"),
            "written_bytes_per_second" => ratio("written_bytes", "seconds"),
            "reads_per_operation" => Some(ratio("read_bytes", "operations")? / READ_BYTES),
            "life_years" => gauges::life_years(self.get("written_bytes_per_second")?),
            _ => self.0.get(name).copied(),
        }
    }

    fn rename(&mut self, from: &str, to: &str, scale: f64) {
        if let Some(value) = self.0.remove(from) {
            self.set(to, value * scale);
        }
    }
}

/// The middle one; of an even number the mean of the middle two.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let (low, high) = (values.get(n.saturating_sub(1) / 2)?, values.get(n / 2)?);
    Some((low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_application_gives_the_same_names_as_the_worker() {
        let application = json!({ "application": "x", "threads": 8, "seconds": 2.0,
            "operations": 16_000, "operations_per_second": 8000.0, "writes": 8000,
            "p50_ns": 500_000, "p99_ns": 2_000_000, "device_read_bytes": 1,
            "device_written_bytes": 4_096_000, "useful_entries_in_ram": 7 });
        let worker = json!({ "ops_per_second": 8000.0, "measured_ops": 16_000,
            "measured_writes": 8000, "measured_seconds": 2.0,
            "latency_ns": { "mean": 1e6, "p50": 500_000, "p99": 2_000_000 },
            "device": { "read_bytes": 1, "written_bytes": 4_096_000 } });
        let (a, b) = (Numbers::of_application(&application), Numbers::of_memory(&worker));
        for name in ["operations_per_second", "mean_us", "p50_us", "p99_us", "writes", "seconds"] {
            assert!(a.get(name).is_some() && a.get(name) == b.get(name), "{name}: {a:?} {b:?}");
        }
        assert_eq!(a.get("useful_entries_in_ram"), Some(7.0));
        assert_eq!(a.get("written_bytes_per_write"), Some(512.0));
        assert_eq!(a.get("written_bytes_per_operation"), Some(256.0));
        let years = b.get("life_years").unwrap();
        assert!((years - 600e12 / 2_048_000.0 / 31_557_600.0).abs() < 1e-9, "{years}");
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let numbers = Numbers::of_application(&json!({ "operations": 0, "writes": 0 }));
        for name in ["mean_us", "written_bytes_per_write", "life_years", "nonsense"] {
            assert_eq!(numbers.get(name), None, "{name}");
        }
        assert_eq!(median(vec![]), None);
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![1.0, 2.0])), (Some(2.0), Some(1.5)));
    }
}
