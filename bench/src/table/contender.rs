//! Contenders: one way to run a case, and the number it is known by while the table is made.

use serde_json::Value;

use super::program::{command, output};
use super::{Settings, redis};
use crate::failure::Failure;
use crate::raw_reads::{self, RawReads};
use crate::supervisor;
use crate::workload::{Backend, Pattern, Workload};

/// The name of deepheap where it is used by calls only.
pub const EXPLICIT_CALLS: &str = "explicit calls";

/// Who runs.
pub enum Contender {
    /// `deepheap-bench run`.
    Memory(Box<Workload>),
    /// `deepheap-bench malloc`, as it is or under `deepheap run`.
    Malloc {
        /// Threads.
        threads: u32,
        /// Under `deepheap run`.
        managed: bool,
    },
    /// redis-server, as it is or under `deepheap run`, and redis-benchmark.
    Redis {
        /// Requests a client sends at once.
        pipeline: u32,
        /// Under `deepheap run`.
        managed: bool,
    },
    /// `deepheap-bench device`.
    Device(Box<RawReads>),
}

impl Contender {
    /// Its name in the table.
    pub fn name(&self) -> String {
        match self {
            Self::Memory(workload) => match (workload.on, workload.pattern) {
                (Backend::Swap, Pattern::Sequential | Pattern::Scans(_)) => {
                    format!("swap, page-cluster {}", workload.page_cluster)
                }
                (Backend::Deepheap, _) if workload.calls => EXPLICIT_CALLS.into(),
                (on, _) => on.name().into(),
            },
            Self::Malloc { managed, .. } | Self::Redis { managed, .. } => {
                if *managed { "deepheap" } else { "glibc" }.into()
            }
            Self::Device(reads) => format!("device at depth {}", reads.depth),
        }
    }

    /// Runs it once.
    pub fn run(&self, settings: &Settings) -> Result<Value, Failure> {
        let unreadable = |error: serde_json::Error| Failure::Failed(error.to_string());
        match self {
            Self::Memory(workload) => {
                serde_json::to_value(supervisor::run(workload)?).map_err(unreadable)
            }
            Self::Device(reads) => {
                serde_json::to_value(raw_reads::measure(reads)?).map_err(unreadable)
            }
            Self::Malloc { threads, managed } => malloc(settings, *threads, *managed),
            Self::Redis { pipeline, managed } => redis::run(settings, *pipeline, *managed),
        }
    }

    /// One line about a result, for the impatient.
    pub fn summary(&self, result: &Value) -> String {
        let number = |at: &str| result.pointer(at).and_then(Value::as_f64);
        let pieces = [
            ("op/s", "/ops_per_second", 1.0),
            ("us p99", "/latency_ns/p99", 1e-3),
            ("us CPU/op", "/cpu_us_per_op", 1.0),
            ("MiB peak", "/peak_memory_bytes", 1.0 / 1_048_576.0),
            ("% CPU at rest", "/rest/cpu_percent", 1.0),
            ("SET/s", "/set_per_second", 1.0),
            ("GET/s", "/get_per_second", 1.0),
            ("objects/s filled", "/filled_objects_per_second", 1.0),
            ("bytes/write", "/device_written_bytes_per_write", 1.0),
            ("% not objects", "/not_objects/percent_of_data", 1.0),
        ];
        let shown = pieces.iter().filter_map(|(unit, at, factor)| {
            let value = number(at)? * factor;
            let digits = if value < 100.0 { 1 } else { 0 };
            Some(format!("{value:.digits$} {unit}"))
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

fn malloc(settings: &Settings, threads: u32, managed: bool) -> Result<Value, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::os("own path", &error))?;
    let mut command = command(settings, &own.to_string_lossy(), managed)?;
    let seconds = (settings.seconds / 2.0).to_string();
    command.args(["malloc", "--threads", &threads.to_string(), "--seconds", &seconds]);
    let text = output(&mut command)?;
    serde_json::from_str(&text).map_err(|error| Failure::Failed(format!("malloc report: {error}")))
}
