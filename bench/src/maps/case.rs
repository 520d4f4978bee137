//! Case: what `deepheap-bench maps` is asked for, and what it reports.
//!
//! Threads: plain data.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::sizes::parse_bytes;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Who maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mapper {
    /// deepheap, in place
    Map,
    /// deepheap, with a log
    Log,
    /// The kernel, with MADV_RANDOM, in a memory cgroup; needs root
    Mmap,
    /// The kernel without that advice, in a memory cgroup; needs root
    MmapPlain,
    /// Nobody: the file is read by O_DIRECT, a page at a time, or for a scan MiB by MiB
    Device,
}

/// What is done with the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Random pages, one by one
    Touch,
    /// Rows of 512 bytes that a list names, 1024 at a time, by one thread
    Gather,
    /// All pages of a cold file in order, by one thread
    Scan,
    /// Pages that are in RAM and in no page table, by one thread; the data must fit the RAM
    Minor,
}

/// What `deepheap-bench maps` takes.
#[derive(Clone, Debug, Args)]
pub struct Maps {
    /// Who maps the file
    #[arg(long, value_enum, default_value = "map")]
    pub on: Mapper,
    /// What is done
    #[arg(long, value_enum, default_value = "touch")]
    pub load: Load,
    /// Bytes of the file
    #[arg(long, value_parser = parse_bytes, default_value = "4G", value_name = "SIZE")]
    pub data: u64,
    /// RAM
    #[arg(long, value_parser = parse_bytes, default_value = "256M", value_name = "SIZE")]
    pub ram: u64,
    /// Threads, one run for each number
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    pub threads: Vec<u64>,
    /// Processes that touch at the same time, each with so many threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub processes: u64,
    /// Percent of the touches that write
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub write: u32,
    /// Bytes that a touch that writes stores
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(8..=2048))]
    pub record: u32,
    /// Commits instead of touches: so many records are stored, then made durable
    #[arg(long, value_name = "RECORDS")]
    pub commit: Option<u64>,
    /// Seconds to measure
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Where the file lies
    #[arg(long, default_value = ".", value_name = "PATH")]
    pub dir: PathBuf,
    /// Same seed, same pages
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The file, written already, and this process is in its cgroup
    #[arg(long, hide = true)]
    pub inside: Option<PathBuf>,
    /// This process is one of several
    #[arg(long, hide = true)]
    pub alone: bool,
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MapsReport {
    pub on: Mapper,
    pub load: Load,
    pub data_bytes: u64,
    pub ram_bytes: u64,
    pub processes: u64,
    pub threads: u64,
    pub write_percent: u32,
    pub seed: u64,
    pub ops_per_second: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub record_bytes: u32,
    /// Records of a commit; then the operations and times are those of commits.
    pub commit: Option<u64>,
    pub measured_seconds: f64,
    /// What the file's device wrote meanwhile, whoever had asked for it.
    pub device_bytes_written: Option<u64>,
}

/// What a load told: how long each operation took, and of how many seconds.
pub type Measured = (deepheap_load::histogram::Histogram, f64);
