//! Cases: what the table compares, and how much each comparison has to reach.
//!
//! Guarantees: every line of issue 2's "How fast" is here, by name.

use super::Settings;
use super::contender::Contender;
use crate::sizes::ObjectSize;
use crate::workload::{Backend, Fill, Layout, Pattern, Workload};

/// Contenders that run in turns, and the rows that come of it.
pub struct Case {
    /// For --only and the journal.
    pub name: String,
    /// Who runs, in this order.
    pub contenders: Vec<Contender>,
    /// How often.
    pub rounds: u32,
    /// What is compared.
    pub rows: Vec<Row>,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// What the reader sees.
    pub title: String,
    /// Where the number is in a result, as a JSON pointer.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whom deepheap is compared with: the best contender whose name starts with one of these.
    pub against: &'static [&'static str],
    /// What it has to reach.
    pub target: Target,
}

/// What a row has to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// deepheap's number is at least this many times the best of the others.
    RatioAtLeast(f64),
    /// deepheap's number, where less is better, is at most this many times the best of the others.
    RatioAtMost(f64),
    /// deepheap's number is at most this.
    AtMost(f64),
    /// deepheap's number is at least this.
    AtLeast(f64),
    /// deepheap's number, nanoseconds, is less than the best of the others and this many
    /// microseconds.
    AddedUsBelow(f64),
    /// None; the ratio is told.
    Told,
}

const OPS: &str = "/ops_per_second";
const NOT_SLOWER: Target = Target::RatioAtLeast(0.97);
/// CPU of a program at rest that rounds to 0 %.
const NO_CPU_PERCENT: f64 = 0.1;
/// Seconds of rest.
const IDLE_SECONDS: f64 = 5.0;

/// All cases.
pub fn all(settings: &Settings) -> Vec<Case> {
    let mut cases = vec![malloc(settings, 1), malloc(settings, 4)];
    cases.extend([redis(settings, 1), redis(settings, 16)]);
    cases.extend([
        uniform(settings, 8, 0, 1.25, 1.1),
        uniform(settings, 32, 0, 1.5, 1.15),
        uniform(settings, 8, 50, 1.6, 1.25),
        uniform(settings, 32, 50, 2.0, 1.4),
        zipf(settings),
        sequential(settings),
        scans(settings),
        idle(settings),
        cgroup(settings),
    ]);
    cases
}

pub(super) fn case(
    settings: &Settings,
    name: String,
    contenders: Vec<Contender>,
    rows: Vec<Row>,
) -> Case {
    let rounds = settings.rounds.unwrap_or(if settings.quick { 1 } else { 3 });
    Case { name, contenders, rounds, rows }
}

pub(super) fn row(title: String, against: &'static [&'static str], target: Target) -> Row {
    Row { title, metric: OPS, unit: "op/s", against, target }
}

pub(super) fn workload(settings: &Settings, on: Backend) -> Workload {
    Workload {
        on,
        data_bytes: settings.data_bytes,
        object_bytes: ObjectSize::Fixed(4096),
        ram_bytes: settings.ram_bytes,
        threads: 8,
        ops: None,
        seconds: Some(settings.seconds),
        warm_up_ops: None,
        write_percent: 0,
        zero_percent: 0,
        pattern: Pattern::Uniform,
        hot_objects: 1,
        seed: 1,
        layout: Layout::Array,
        fill: Fill::Pointers,
        whole: false,
        calls: false,
        gather: None,
        conf: String::new(),
        page_cluster: 0,
        dir: settings.dir.clone(),
        cgroup: false,
        audit: false,
        idle: None,
    }
}

/// deepheap, swap and mmap on the same workload.
pub(super) fn memories(settings: &Settings, change: impl Fn(&mut Workload)) -> Vec<Contender> {
    let one = |on| {
        let mut workload = workload(settings, on);
        change(&mut workload);
        Contender::Memory(Box::new(workload))
    };
    [Backend::Deepheap, Backend::Swap, Backend::Mmap].map(one).into()
}

fn malloc(settings: &Settings, threads: u32) -> Case {
    let contenders = [false, true].map(|managed| Contender::Malloc { threads, managed }).into();
    let title =
        format!("fits the budget: malloc-heavy program, {threads} thread(s), against glibc");
    let rows = vec![row(title, &["glibc"], NOT_SLOWER)];
    case(settings, format!("malloc-{threads}"), contenders, rows)
}

fn redis(settings: &Settings, pipeline: u32) -> Case {
    let contenders = [false, true].map(|managed| Contender::Redis { pipeline, managed }).into();
    let line = |command: &str, metric| Row {
        title: format!(
            "fits the budget: redis-benchmark {command}, pipeline {pipeline}, against glibc"
        ),
        metric,
        unit: "op/s",
        against: &["glibc"],
        target: NOT_SLOWER,
    };
    let rows = vec![line("SET", "/set_per_second"), line("GET", "/get_per_second")];
    let rounds = settings.rounds.unwrap_or(if settings.quick { 2 } else { 5 });
    Case { name: format!("redis-p{pipeline}"), contenders, rounds, rows }
}

fn uniform(settings: &Settings, threads: u32, write: u32, swap: f64, mmap: f64) -> Case {
    let contenders = memories(settings, |workload| {
        workload.threads = threads;
        workload.write_percent = write;
    });
    let what = if write == 0 { "read".to_string() } else { format!("{write} % writes") };
    let name = format!("uniform-{}-{threads}", if write == 0 { "read" } else { "write" });
    let title = |peer: &str| format!("uniform, {what}, {threads} threads, against {peer}");
    let mut rows = vec![
        row(title("swap"), &["swap"], Target::RatioAtLeast(swap)),
        row(title("mmap"), &["mmap"], Target::RatioAtLeast(mmap)),
    ];
    if threads == 8 && write == 50 {
        rows.push(Row {
            title: "p99 of an access, uniform, 50 % writes, 8 threads, against the better".into(),
            metric: "/latency_ns/p99",
            unit: "ns",
            against: &["swap", "mmap"],
            target: Target::RatioAtMost(1.0),
        });
    }
    case(settings, name, contenders, rows)
}

fn zipf(settings: &Settings) -> Case {
    let contenders = memories(settings, |workload| {
        workload.pattern = Pattern::Zipf(0.99);
        workload.write_percent = 50;
    });
    let title = "zipf 0.99, 50 % writes, 8 threads, against the better of the two".into();
    let rows = vec![row(title, &["swap", "mmap"], Target::RatioAtLeast(1.1))];
    case(settings, "zipf-write-8".into(), contenders, rows)
}

fn sequential(settings: &Settings) -> Case {
    let title = "sequential scan, 1 thread, against swap with its best page-cluster".into();
    let rows = vec![row(title, &["swap"], Target::RatioAtLeast(1.5))];
    let contenders = in_order(settings, Pattern::Sequential, 0, &[]);
    case(settings, "sequential-1".into(), contenders, rows)
}

/// What a program does that computes an array from others.
fn scans(settings: &Settings) -> Case {
    let title = |other| format!("3 scans that take turns, 50 % writes, 1 thread, against {other}");
    let rows = vec![
        row(title("swap with its best page-cluster"), &["swap"], Target::Told),
        row(title("mmap"), &["mmap"], Target::Told),
    ];
    let contenders = in_order(settings, Pattern::Scans(3), 50, &[Backend::Mmap]);
    case(settings, "scans-write-1".into(), contenders, rows)
}

/// deepheap, swap with several page-clusters, and further ones.
fn in_order(
    settings: &Settings,
    pattern: Pattern,
    write_percent: u32,
    further: &[Backend],
) -> Vec<Contender> {
    let one = |on, page_cluster| {
        let mut workload = workload(settings, on);
        workload.pattern = pattern;
        workload.write_percent = write_percent;
        workload.threads = 1;
        workload.page_cluster = page_cluster;
        Contender::Memory(Box::new(workload))
    };
    let mut contenders = vec![one(Backend::Deepheap, 0)];
    contenders.extend([0, 3, 5].map(|cluster| one(Backend::Swap, cluster)));
    contenders.extend(further.iter().map(|&on| one(on, 0)));
    contenders
}

fn idle(settings: &Settings) -> Case {
    let mut workload = workload(settings, Backend::Deepheap);
    workload.data_bytes = settings.data_bytes / 4;
    workload.write_percent = 50;
    workload.seconds = None;
    workload.idle = Some(IDLE_SECONDS);
    let rows = vec![Row {
        title: format!("idle program with managed data, CPU over {IDLE_SECONDS} s"),
        metric: "/rest/cpu_percent",
        unit: "%",
        against: &[],
        target: Target::AtMost(NO_CPU_PERCENT),
    }];
    case(settings, "idle".into(), vec![Contender::Memory(Box::new(workload))], rows)
}

fn cgroup(settings: &Settings) -> Case {
    let mut workload = workload(settings, Backend::Deepheap);
    workload.write_percent = 50;
    workload.cgroup = true;
    workload.audit = true;
    let rows = vec![Row {
        title: "memory cgroup at budget + own + 5 %, swap off, 50 % writes: times killed".into(),
        metric: "/memory_cgroup/oom_kills",
        unit: "kills",
        against: &[],
        target: Target::AtMost(0.0),
    }];
    case(settings, "cgroup".into(), vec![Contender::Memory(Box::new(workload))], rows)
}
