//! Report: what one run measured; printed as one JSON line.
//!
//! Guarantees: names carry their unit; what could not be measured is null, never a made-up zero.

use serde::{Deserialize, Serialize};

use crate::workload::Workload;

/// Latency of operations in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub mean: f64,
    pub deviation: f64,
    pub p50: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub max: u64,
}

/// Bytes that crossed the block device, or that the kernel booked to the process, while measuring.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Transfer {
    /// The device's name, or "process" for /proc/self/io.
    pub of: String,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// The memory cgroup of the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CgroupUse {
    /// 1 or 2.
    pub version: u32,
    /// What the worker used before it had any data.
    pub own_bytes: u64,
    /// The limit: --ram + own, for deepheap 5 % more.
    pub limit_bytes: u64,
    /// Highest use, page tables and other kernel memory included.
    pub peak_bytes: Option<u64>,
    /// Highest use of kernel memory alone (version 1).
    pub kernel_peak_bytes: Option<u64>,
    /// Processes killed for memory.
    pub oom_kills: u64,
}

/// CPU time of a process at rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Rest {
    pub seconds: f64,
    pub cpu_us: u64,
    pub cpu_percent: f64,
}

/// What deepheap needs besides the objects: tables, slots, page tables, lists, buffers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NotObjects {
    /// VmPTE and what deepheap's statistics list besides page buffer and cache.
    pub counted_bytes: u64,
    /// From outside: VmRSS and VmPTE, less what the worker itself uses, page buffer and cache.
    pub measured_bytes: u64,
    /// The larger of the two, as a share of the data.
    pub percent_of_data: f64,
}

/// The whole result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What was asked.
    #[serde(flatten)]
    pub workload: Workload,
    /// Objects in the data set.
    pub objects: u64,
    /// The table of pointers to the objects, on top of --ram on every backend.
    pub index_bytes: u64,
    /// Seconds until all objects were allocated.
    pub allocate_seconds: f64,
    /// Seconds of allocation and fill.
    pub fill_seconds: f64,
    /// Objects a second of the fill alone, without the allocation.
    pub filled_objects_per_second: f64,
    /// Operations of the warm-up that really ran.
    pub warm_up_done_ops: u64,
    /// Seconds of the measured phase.
    pub measured_seconds: f64,
    /// Operations measured.
    pub measured_ops: u64,
    /// Of these, operations that wrote.
    pub measured_writes: u64,
    /// Operations a second.
    pub ops_per_second: f64,
    /// Latency of an operation, nanoseconds.
    pub latency_ns: Latency,
    /// Wrong check values; a run with any ends with status 1 and has no report, so this is 0.
    pub errors: u64,
    /// Writes found by the audit in all objects together, equal to those done.
    pub audited_writes: Option<u64>,
    /// The device under --dir.
    pub device: Option<Transfer>,
    /// Device bytes written while measuring for each operation that wrote; null without any.
    pub device_written_bytes_per_write: Option<f64>,
    /// Years until a drive of 1 TB for consumers is worn out at this rate of writing.
    pub device_life_years: Option<f64>,
    /// /proc/self/io: swap and read-ahead by the kernel may be booked elsewhere.
    pub process_io: Option<Transfer>,
    /// Highest memory, page tables and index included: of the cgroup for swap and mmap, else VmHWM
    /// + VmPTE.
    pub peak_memory_bytes: Option<u64>,
    /// VmPTE at the end.
    pub page_table_bytes: Option<u64>,
    /// VmHWM at the end.
    pub resident_peak_bytes: Option<u64>,
    /// The memory cgroup, where there is one.
    pub memory_cgroup: Option<CgroupUse>,
    /// User and system time of the process for each operation, microseconds. Kernel threads
    /// (kswapd, kworkers, io_uring workers of others) are not in it.
    pub cpu_us_per_op: f64,
    /// Busy time of the whole machine for each operation, microseconds: everything else too.
    pub machine_cpu_us_per_op: Option<f64>,
    /// CPU time at rest, for --idle.
    pub rest: Option<Rest>,
    /// For deepheap: the memory that holds no objects.
    pub not_objects: Option<NotObjects>,
    /// deepheap's own statistics at the end.
    pub deepheap: Option<serde_json::Value>,
}
