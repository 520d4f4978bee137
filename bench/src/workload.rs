//! Workload: what one run does, from the command line to the worker process and into its JSON line.
//!
//! Guarantees: a workload that `check` accepts can be run; two equal workloads on two backends do
//! the same operations in the same order.
//! Never: touches the machine.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::sizes::{MIN_OBJECT_BYTES, ObjectSize, Sizes, WORD_BYTES, parse_bytes};

/// The most threads a run may have.
pub const MAX_THREADS: u32 = 128;
/// Object indexes are stored in 32 bits of a header's room; more objects are refused.
const MAX_OBJECTS: u64 = 1 << 32;
/// The most objects in one batch.
const MAX_BATCH: u32 = 4096;

/// Which memory the objects live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// deepheap's malloc with a budget of --ram
    Deepheap,
    /// Anonymous memory and a swap file of its own, in a memory cgroup of --ram (needs root)
    Swap,
    /// A file mapped MAP_SHARED, in a memory cgroup of --ram (needs root)
    Mmap,
    /// glibc's malloc with no limit
    Glibc,
}

impl Backend {
    /// The word on the command line and in the reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deepheap => "deepheap",
            Self::Swap => "swap",
            Self::Mmap => "mmap",
            Self::Glibc => "glibc",
        }
    }
}

/// How objects are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// One allocation of all objects side by side
    Array,
    /// One malloc for each object (deepheap and glibc); their pointers are 8 bytes each on top
    Each,
    /// deepheap: one dh_oalloc for each object; glibc: as each; swap and mmap: as array
    Objects,
    /// deepheap: one dh_oalloc of an array of all objects; the others: as array
    ObjectArray,
}

/// How the fill writes the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Fill {
    /// By plain pointers
    Pointers,
    /// deepheap: by dh_scatter, 256 objects at a time
    Scatter,
}

/// Which object comes next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// Every object equally likely.
    Uniform,
    /// Rank k in proportion to 1 / k^exponent, ranks scattered over the objects.
    Zipf(f64),
    /// Each thread scans its contiguous share, again and again.
    Sequential,
    /// Each thread is in so many scans of parts of its share, which take turns; every other one
    /// goes backwards.
    Scans(u32),
    /// Each thread goes through its share in steps of so many objects, from each place of the first
    /// step in turn, as down the columns of a matrix.
    Stride(u32),
    /// The object says which object is next, along one cycle through all objects.
    Chase,
    /// The objects of a hot set equally likely, which lie scattered over all of the data.
    Hot,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "uniform" => Ok(Self::Uniform),
            None if text == "sequential" => Ok(Self::Sequential),
            None if text == "chase" => Ok(Self::Chase),
            None if text == "hot" => Ok(Self::Hot),
            Some(("zipf", exponent)) => match exponent.parse::<f64>() {
                Ok(s) if s > 0.0 && s < 10.0 => Ok(Self::Zipf(s)),
                _ => Err(format!("zipf exponent '{exponent}' is not a number between 0 and 10")),
            },
            Some(("scans", count)) => match count.parse::<u32>() {
                Ok(count @ 1..=64) => Ok(Self::Scans(count)),
                _ => Err(format!("'{count}' scans: give a number from 1 to 64")),
            },
            Some(("stride", step)) => match step.parse::<u32>() {
                Ok(step @ 1..=4096) => Ok(Self::Stride(step)),
                _ => Err(format!("steps of '{step}': give a number from 1 to 4096")),
            },
            _ => Err(format!(
                "'{text}' is none of uniform, zipf:EXPONENT, hot, sequential, scans:COUNT, \
                 stride:STEP, chase"
            )),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        match pattern {
            Pattern::Uniform => "uniform".into(),
            Pattern::Zipf(exponent) => format!("zipf:{exponent}"),
            Pattern::Sequential => "sequential".into(),
            Pattern::Scans(count) => format!("scans:{count}"),
            Pattern::Stride(step) => format!("stride:{step}"),
            Pattern::Chase => "chase".into(),
            Pattern::Hot => "hot".into(),
        }
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err(format!("'{text}' is not a number of seconds between 0 and 86400")),
    }
}

/// Everything that defines a run.
#[derive(Clone, Debug, PartialEq, Args, Serialize, Deserialize)]
pub struct Workload {
    /// Which memory the objects live in
    #[arg(long, value_enum, value_name = "BACKEND")]
    pub on: Backend,
    /// Size of all objects together
    #[arg(long = "data", value_parser = parse_bytes, default_value = "4G", value_name = "SIZE")]
    pub data_bytes: u64,
    /// Size of one object, or LEAST-MOST for random sizes: multiples of 8, at least 16. Side by
    /// side, objects of random sizes are aligned to 16 bytes
    #[arg(long = "object-size", alias = "object", default_value = "4K", value_name = "SIZE")]
    pub object_bytes: ObjectSize,
    /// RAM for the data: deepheap's budget; the limit of the memory cgroup for swap and mmap, where
    /// what the worker itself uses is measured first and added
    #[arg(long = "ram", value_parser = parse_bytes, default_value = "256M", value_name = "SIZE")]
    pub ram_bytes: u64,
    /// Threads, 1 to 128
    #[arg(long, default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS as i64))]
    pub threads: u32,
    /// Operations to measure, all threads together
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: Option<u64>,
    /// Seconds to measure [default: 10]
    #[arg(long, value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// Operations that warm up before measuring, all threads together, however long they take
    /// [default: twice the pages (for --allocate objects: twice the objects) that fit --ram, at
    /// most twice the objects, or four times the hot ones, and at most 20 seconds of it]
    #[arg(long = "warm-up", value_name = "OPS")]
    pub warm_up_ops: Option<u64>,
    /// Share of operations that write, in percent
    #[arg(long = "write", default_value_t = 0, value_name = "PERCENT",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    pub write_percent: u32,
    /// Share of objects that are never written and stay zeros, in percent
    #[arg(long = "zeros", default_value_t = 0, value_name = "PERCENT",
          value_parser = clap::value_parser!(u32).range(0..=99))]
    #[serde(default)]
    pub zero_percent: u32,
    /// Which object comes next: uniform, zipf:EXPONENT, hot, sequential, scans:COUNT,
    /// stride:STEP or chase
    #[arg(long, default_value = "uniform")]
    pub pattern: Pattern,
    /// Objects in the hot set of --pattern hot
    #[arg(long, default_value_t = 200_000, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub hot_objects: u64,
    /// Same seed, same operations
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// One allocation for all objects, or one for each
    #[arg(
        long = "allocate",
        alias = "layout",
        value_enum,
        default_value = "array",
        value_name = "HOW"
    )]
    pub layout: Layout,
    /// How the fill writes the objects
    #[arg(long, value_enum, default_value = "pointers", value_name = "HOW")]
    pub fill: Fill,
    /// An operation reads or writes all of the object, as a cache of packets does
    #[arg(long)]
    pub whole: bool,
    /// deepheap: operations by dh_read and dh_write instead of pointers
    #[arg(long)]
    pub calls: bool,
    /// deepheap: operations in batches of N, their reads by one dh_gather, their writes by one
    /// dh_gather and one dh_scatter of the headers
    #[arg(long, value_name = "N", conflicts_with_all = ["calls", "whole"],
          value_parser = clap::value_parser!(u32).range(1..=MAX_BATCH as i64))]
    pub gather: Option<u32>,
    /// deepheap: more settings, as DEEPHEAP_CONF takes them (page_buffer:8M,store_size:8G)
    #[arg(long, value_name = "SETTINGS", default_value = "")]
    pub conf: String,
    /// vm.page-cluster during a swap run (restored afterwards): swap reads 2^K pages at a time
    #[arg(long, default_value_t = 0, value_name = "K",
          value_parser = clap::value_parser!(u32).range(0..=10))]
    pub page_cluster: u32,
    /// Where the store, swap file or mapped file lies; its device is the one that is counted
    #[arg(long, default_value = ".", value_name = "PATH")]
    pub dir: PathBuf,
    /// deepheap: also run in a memory cgroup of --ram + the worker's own + 5 %, without swap
    #[arg(long)]
    pub cgroup: bool,
    /// After measuring, read every object and compare the sum of all versions with the writes done
    #[arg(long)]
    pub audit: bool,
    /// Instead of operations: rest this many seconds after the warm-up and report the CPU time used
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds,
          conflicts_with_all = ["ops", "seconds"])]
    pub idle: Option<f64>,
}

impl Workload {
    /// Refuses what cannot be run.
    pub fn check(&self) -> Result<(), Failure> {
        let refuse = |why: String| Err(Failure::Refused(why));
        let sizes = [self.object_bytes.least_bytes(), self.object_bytes.most_bytes()];
        let possible =
            |size: u64| size >= MIN_OBJECT_BYTES as u64 && size.is_multiple_of(WORD_BYTES as u64);
        if !sizes.into_iter().all(possible) {
            return refuse(format!(
                "--object-size {}: use multiples of {WORD_BYTES} of at least {MIN_OBJECT_BYTES} \
                 bytes",
                self.object_bytes
            ));
        }
        let objects = self.objects();
        if objects < u64::from(self.threads) || objects > MAX_OBJECTS {
            return refuse(format!(
                "--data {} is {objects} objects of {} bytes: use {} (one for each thread) to \
                 {MAX_OBJECTS}",
                self.data_bytes, self.object_bytes, self.threads
            ));
        }
        if self.layout == Layout::Each && !self.has_malloc() {
            return refuse(
                "--allocate each: only deepheap and glibc allocate object by object".into(),
            );
        }
        if self.layout == Layout::ObjectArray && !self.object_bytes.is_fixed() {
            return refuse("--allocate object-array: is for objects of one size".into());
        }
        if self.pattern == Pattern::Hot && self.hot_objects > objects {
            return refuse(format!(
                "--hot-objects {}: there are only {objects} objects in --data",
                self.hot_objects
            ));
        }
        if self.zero_percent > 0 && (self.write_percent > 0 || self.pattern == Pattern::Chase) {
            return refuse("--zeros: is for reads, and not for chase".into());
        }
        if self.zero_percent > 0 && self.fill == Fill::Scatter {
            return refuse("--zeros: is for a fill by pointers".into());
        }
        if self.cgroup && self.on != Backend::Deepheap {
            return refuse(
                "--cgroup: is for deepheap; swap and mmap always run in one, glibc never".into(),
            );
        }
        self.check_calls()
    }

    /// Refuses what the calls of deepheap cannot do.
    fn check_calls(&self) -> Result<(), Failure> {
        let refuse = |why: String| Err(Failure::Refused(why));
        let uses_calls = self.calls || self.gather.is_some();
        if self.on != Backend::Deepheap {
            let asked = [
                ("--calls", self.calls),
                ("--gather", self.gather.is_some()),
                ("--fill scatter", self.fill == Fill::Scatter),
                ("--conf", !self.conf.is_empty()),
            ];
            if let Some((option, _)) = asked.iter().find(|(_, asked)| *asked) {
                return refuse(format!("{option}: is for deepheap"));
            }
        }
        if (uses_calls || self.whole)
            && matches!(
                self.pattern,
                Pattern::Sequential | Pattern::Scans(_) | Pattern::Stride(_) | Pattern::Chase
            )
        {
            return refuse(
                "--whole, --calls and --gather: are for the patterns uniform, zipf and hot".into(),
            );
        }
        if self.gather.is_some() && self.write_percent > 0 && self.threads > 1 {
            return refuse(
                "--gather with --write: use --threads 1; what a batch has read and not written \
                 back yet would be overwritten by another thread"
                    .into(),
            );
        }
        if self.fill == Fill::Scatter
            && (!self.object_bytes.is_fixed() || self.pattern == Pattern::Chase)
        {
            return refuse("--fill scatter: is for objects of one size, and not for chase".into());
        }
        Ok(())
    }

    /// Whether the backend allocates object by object.
    fn has_malloc(&self) -> bool {
        matches!(self.on, Backend::Deepheap | Backend::Glibc)
    }

    /// Whether each object is allocated by itself.
    pub fn allocates_each(&self) -> bool {
        self.has_malloc() && matches!(self.layout, Layout::Each | Layout::Objects)
    }

    /// Whether finding an object takes a table of pointers: it lies alone, or has a random size.
    pub fn needs_index(&self) -> bool {
        self.allocates_each() || !self.object_bytes.is_fixed()
    }

    /// How many objects there are.
    pub fn objects(&self) -> u64 {
        self.data_bytes / self.object_bytes.mean_bytes()
    }

    /// The size of each of them.
    pub fn sizes(&self) -> Sizes {
        self.object_bytes.sizes(self.seed)
    }

    /// Bytes of all objects side by side.
    pub fn dense_bytes(&self) -> u64 {
        match self.object_bytes {
            ObjectSize::Fixed(_) => self.data_bytes,
            ObjectSize::Between { .. } => {
                self.sizes().places(self.objects()).last().unwrap_or_default()
            }
        }
    }

    /// Warm-up operations of all threads.
    pub fn warm_up(&self) -> u64 {
        let object_bytes = match self.layout {
            // The RAM may hold as many objects as fit it at their true size.
            Layout::Objects | Layout::ObjectArray => self.object_bytes.mean_bytes(),
            Layout::Array | Layout::Each => self.object_bytes.mean_bytes().max(4096),
        };
        let fitting = 2 * self.ram_bytes / object_bytes;
        let usual = match self.pattern {
            Pattern::Hot => 4 * self.hot_objects,
            _ => fitting.min(2 * self.objects()),
        };
        self.warm_up_ops.unwrap_or(usual)
    }

    /// Whether the worker runs in a memory cgroup.
    pub fn needs_cgroup(&self) -> bool {
        matches!(self.on, Backend::Swap | Backend::Mmap) || self.cgroup
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_understood_or_refused() {
        for text in ["uniform", "zipf:0.99", "sequential", "scans:3", "stride:16", "chase", "hot"] {
            assert_eq!(text.parse::<Pattern>().map(String::from), Ok(text.to_string()));
        }
        for wrong in ["zipf", "zipf:", "zipf:-1", "zipf:NaN", "scans:0", "stride:0", "random"] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }
}
