//! Worker: the measured process. Fill, warm up, measure, report.
//!
//! ```text
//! READY   threads exist, nothing but their stacks, histograms and the table of pointers to the
//!         objects, if the workload needs one                        [limit is set]
//! FILLED  one thread has written every object in order              [fill]
//! WARM    warm-up operations done, gauges read                      [warm_up]
//! GO      threads measure                                           [measure]
//! DONE    gauges read again, report on standard output
//! ```
//!
//! Guarantees: the fill, the warm-up and the measured phase run under the same limit; every
//! operation is timed; a wrong check value ends the process with status 1 and no report.
//! Never: has more than its own few MiB when the limit is set.
//! Threads: the main one and `threads` that operate; a barrier between the phases.

use core::arch::x86_64::{__rdtscp, _rdtsc};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::io::Write;
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use deepheap_load::histogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::backend::{self, Index};
use crate::calls::{self, Stripes};
use crate::cgroup::{Cgroup, Swapping};
use crate::failure::Failure;
use crate::gauges::{self, BlockDevice};
use crate::object::Objects;
use crate::report::{Latency, NotObjects, Report, Rest, Transfer};
use crate::stream::{Stream, order};
use crate::workload::{Backend, Fill, Pattern, Workload};

const STACK_BYTES: usize = 256 << 10;
/// Of a warm-up whose operations nobody asked for.
const WARM_UP_MAX: Duration = Duration::from_secs(20);
const DEFAULT_SECONDS: f64 = 10.0;
const SETTLE: Duration = Duration::from_secs(1);

/// What the supervisor hands to the worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// What to run.
    pub workload: Workload,
    /// Where to run.
    pub cgroup: Option<Cgroup>,
}

/// What the threads share.
struct Shared<'a> {
    workload: &'a Workload,
    objects: OnceLock<Objects>,
    stripes: Stripes,
    phase: Barrier,
    warm: AtomicU32,
    stop_warm_up: AtomicBool,
    stop: AtomicBool,
}

/// What one thread did.
struct Share {
    ticks: Histogram,
    warm_up_ops: u64,
    warm_up_writes: u64,
    writes: u64,
}

/// The gauges before or after the measured phase.
struct Reading {
    at: Instant,
    ticks: u64,
    device: Option<Transfer>,
    process_io: Option<Transfer>,
    cpu_us: u64,
    machine_cpu_us: Option<u64>,
}

impl Reading {
    fn take(device: Option<&BlockDevice>) -> Self {
        Self {
            at: Instant::now(),
            ticks: start_tick(),
            device: device.and_then(BlockDevice::read),
            process_io: gauges::process_io(),
            cpu_us: gauges::process_cpu_us(),
            machine_cpu_us: gauges::machine_cpu_us(),
        }
    }
}

/// Runs the order on standard input and prints the report on standard output.
pub fn main() -> Result<(), Failure> {
    let order: Order = serde_json::from_reader(std::io::stdin().lock()).map_err(|error| {
        Failure::Refused(format!("worker: no order on standard input: {error}"))
    })?;
    if let Some(cgroup) = &order.cgroup {
        cgroup.join()?;
    }
    let report = run(&order.workload, order.cgroup.as_ref())?;
    let line = serde_json::to_string(&report)
        .map_err(|error| Failure::Failed(format!("report: {error}")))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| Failure::os("standard output", &error))
}

fn run(workload: &Workload, cgroup: Option<&Cgroup>) -> Result<Report, Failure> {
    let shared = Shared {
        workload,
        objects: OnceLock::new(),
        stripes: Stripes::new(),
        phase: Barrier::new(workload.threads as usize + 1),
        warm: AtomicU32::new(0),
        stop_warm_up: AtomicBool::new(false),
        stop: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..workload.threads {
            let shared = &shared;
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            let spawned = builder.spawn_scoped(scope, move || operate(shared, thread));
            // The threads so far wait at a barrier that will never open: end the process.
            threads.push(spawned.unwrap_or_else(|error| die(&format!("thread {thread}: {error}"))));
        }
        shared.phase.wait();
        let conducted = conduct(&shared, cgroup).unwrap_or_else(|failure| quit(&failure));
        let mut shares = Vec::new();
        for thread in threads {
            shares.push(thread.join().unwrap_or_else(|_| die("a thread of the worker died")));
        }
        finish(&shared, cgroup, conducted, &shares)
    })
}

/// Ends the process: the other threads are waiting for a phase that will not come.
fn quit(failure: &Failure) -> ! {
    eprintln!("deepheap-bench: {failure}");
    std::process::exit(failure.exit_status());
}

fn die(why: &str) -> ! {
    quit(&Failure::Failed(why.into()))
}

/// What the main thread saw.
struct Conducted {
    own_bytes: u64,
    limit_bytes: u64,
    own_resident_bytes: u64,
    index_bytes: u64,
    allocate_seconds: f64,
    fill_seconds: f64,
    before: Reading,
    after: Reading,
    rest: Option<Rest>,
}

/// The main thread's side of the phases after READY.
fn conduct(shared: &Shared, cgroup: Option<&Cgroup>) -> Result<Conducted, Failure> {
    let workload = shared.workload;
    let device = BlockDevice::below(&workload.dir);
    let own_resident_bytes = gauges::status_bytes("VmRSS").unwrap_or(0);
    let index = Index::new(workload)?;
    let index_bytes = index.bytes();
    let (own_bytes, limit_bytes) = limit(workload, cgroup)?;

    let started = Instant::now();
    let objects = backend::obtain(workload, index)?;
    let allocate_seconds = started.elapsed().as_secs_f64();
    fill(workload, &objects)?;
    let fill_seconds = started.elapsed().as_secs_f64();
    let _ = shared.objects.set(objects);
    shared.phase.wait(); // FILLED

    let started = Instant::now();
    while shared.warm.load(Ordering::Relaxed) < workload.threads {
        if workload.warm_up_ops.is_none() && started.elapsed() > WARM_UP_MAX {
            shared.stop_warm_up.store(true, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    shared.phase.wait(); // WARM
    let rest = workload.idle.map(|seconds| {
        shared.stop.store(true, Ordering::Relaxed);
        rest(seconds)
    });
    let before = Reading::take(device.as_ref());
    shared.phase.wait(); // GO
    if workload.ops.is_none() && workload.idle.is_none() {
        std::thread::sleep(Duration::from_secs_f64(workload.seconds.unwrap_or(DEFAULT_SECONDS)));
        shared.stop.store(true, Ordering::Relaxed);
    }
    shared.phase.wait(); // DONE
    let after = Reading::take(device.as_ref());
    Ok(Conducted {
        own_bytes,
        limit_bytes,
        own_resident_bytes,
        index_bytes,
        allocate_seconds,
        fill_seconds,
        before,
        after,
        rest,
    })
}

/// Limits the cgroup to the RAM of the workload and what this process uses already.
fn limit(workload: &Workload, cgroup: Option<&Cgroup>) -> Result<(u64, u64), Failure> {
    let Some(cgroup) = cgroup else { return Ok((0, 0)) };
    let own = cgroup.usage_bytes()?;
    let (bytes, swapping) = match workload.on {
        Backend::Deepheap => ((workload.ram_bytes + own) / 100 * 105, Swapping::Off),
        _ => (workload.ram_bytes + own, Swapping::Eager),
    };
    cgroup.limit(bytes, swapping)?;
    Ok((own, bytes))
}

/// Writes every object, in order.
fn fill(workload: &Workload, objects: &Objects) -> Result<(), Failure> {
    if workload.fill == Fill::Scatter {
        return calls::scatter_all(&calls::Heap, objects)
            .map_err(|trouble| Failure::Failed(trouble.to_string()));
    }
    let chase = (workload.pattern == Pattern::Chase).then(|| order(workload));
    for object in 0..objects.count() {
        objects.fill(object, chase.map(|order| order.next_on_cycle(object)));
    }
    Ok(())
}

/// CPU time of the whole process over `seconds` in which no thread has anything to do.
fn rest(seconds: f64) -> Rest {
    std::thread::sleep(SETTLE);
    let (started, before) = (Instant::now(), gauges::process_cpu_us());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let cpu_us = gauges::process_cpu_us() - before;
    let seconds = started.elapsed().as_secs_f64();
    Rest { seconds, cpu_us, cpu_percent: cpu_us as f64 / seconds / 10_000.0 }
}

/// The body of an operating thread.
fn operate(shared: &Shared, thread: u32) -> Share {
    let workload = shared.workload;
    let mut stream = Stream::new(workload, thread);
    let mut share =
        Share { ticks: Histogram::default(), warm_up_ops: 0, warm_up_writes: 0, writes: 0 };
    let part = |total: u64| {
        let (total, threads) = (u128::from(total), u128::from(workload.threads));
        let upto = |t: u32| (total * u128::from(t) / threads) as u64;
        upto(thread + 1) - upto(thread)
    };
    shared.phase.wait(); // READY
    shared.phase.wait(); // FILLED
    let Some(objects) = shared.objects.get() else { die("threads were released before the fill") };

    let mut access = Access::new(workload, objects, &shared.stripes);
    let mut left = part(workload.warm_up());
    while left > 0 && !shared.stop_warm_up.load(Ordering::Relaxed) {
        let drawn = access.draw(&mut stream, left);
        share.warm_up_writes += perform(&mut access, &mut stream);
        share.warm_up_ops += drawn;
        left -= drawn;
    }
    shared.warm.fetch_add(1, Ordering::Relaxed);
    shared.phase.wait(); // WARM
    shared.phase.wait(); // GO
    let mut left = workload.ops.map_or(u64::MAX, part);
    while left > 0 && !shared.stop.load(Ordering::Relaxed) {
        let drawn = access.draw(&mut stream, left);
        let start = start_tick();
        let wrote = perform(&mut access, &mut stream);
        // Each operation of a batch takes as long as the batch.
        share.ticks.record(end_tick().saturating_sub(start), drawn);
        share.writes += wrote;
        left -= drawn;
    }
    shared.phase.wait(); // DONE
    share
}

/// Does what was drawn; how many of it wrote.
#[inline]
fn perform(access: &mut Access<'_>, stream: &mut Stream) -> u64 {
    access.perform(stream).unwrap_or_else(|trouble| die(&trouble.to_string()))
}

/// The time-stamp counter, before what is timed.
#[inline]
fn start_tick() -> u64 {
    // SAFETY: every x86_64 processor has it.
    unsafe { _rdtsc() }
}

/// The time-stamp counter, after everything before it is done.
#[inline]
fn end_tick() -> u64 {
    let mut processor = 0;
    // SAFETY: a valid place for the processor number.
    unsafe { __rdtscp(&raw mut processor) }
}

/// Reads the peaks, audits, and puts the report together.
fn finish(
    shared: &Shared,
    cgroup: Option<&Cgroup>,
    conducted: Conducted,
    shares: &[Share],
) -> Result<Report, Failure> {
    let Conducted { own_bytes, limit_bytes, fill_seconds, allocate_seconds, .. } = conducted;
    let not_objects = not_objects(shared.workload, &conducted);
    let Conducted { index_bytes, before, after, rest, .. } = conducted;
    let workload = shared.workload;
    let page_table_bytes = gauges::status_bytes("VmPTE");
    let resident_peak_bytes = gauges::status_bytes("VmHWM");
    let memory_cgroup = cgroup.map(|cgroup| cgroup.usage(own_bytes, limit_bytes));
    let deepheap = backend::statistics(workload);

    let mut ticks = Histogram::default();
    shares.iter().for_each(|share| ticks.merge(&share.ticks));
    let sum = |of: fn(&Share) -> u64| shares.iter().map(of).sum::<u64>();
    let measured_writes = sum(|share| share.writes);
    let audited_writes = match workload.audit {
        true => Some(audit(shared, measured_writes + sum(|share| share.warm_up_writes))?),
        false => None,
    };

    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let ns_per_tick = seconds * 1e9 / after.ticks.saturating_sub(before.ticks).max(1) as f64;
    let ns = |ticks: u64| (ticks as f64 * ns_per_tick).round() as u64;
    let measured_ops = ticks.total();
    let per_op = |us: u64| if measured_ops == 0 { 0.0 } else { us as f64 / measured_ops as f64 };
    let machine_us = before.machine_cpu_us.zip(after.machine_cpu_us);
    let device = gauges::transferred(before.device, after.device);
    let in_cgroup = memory_cgroup.as_ref().filter(|_| workload.on != Backend::Deepheap);
    Ok(Report {
        workload: workload.clone(),
        objects: workload.objects(),
        index_bytes,
        allocate_seconds,
        fill_seconds,
        filled_objects_per_second: workload.objects() as f64 / (fill_seconds - allocate_seconds),
        warm_up_done_ops: sum(|share| share.warm_up_ops),
        measured_seconds: seconds,
        measured_ops,
        measured_writes,
        ops_per_second: measured_ops as f64 / seconds,
        latency_ns: Latency {
            mean: ticks.mean() * ns_per_tick,
            deviation: ticks.deviation() * ns_per_tick,
            p50: ns(ticks.percentile(0.5)),
            p99: ns(ticks.percentile(0.99)),
            p99_9: ns(ticks.percentile(0.999)),
            max: ns(ticks.max()),
        },
        errors: 0,
        audited_writes,
        device_written_bytes_per_write: device
            .as_ref()
            .filter(|_| measured_writes > 0)
            .map(|device| device.written_bytes as f64 / measured_writes as f64),
        device_life_years: device
            .as_ref()
            .and_then(|device| gauges::life_years(device.written_bytes as f64 / seconds)),
        device,
        process_io: gauges::transferred(before.process_io, after.process_io),
        peak_memory_bytes: match in_cgroup {
            Some(usage) => usage.peak_bytes,
            None => resident_peak_bytes.zip(page_table_bytes).map(|(hwm, pte)| hwm + pte),
        },
        page_table_bytes,
        resident_peak_bytes,
        memory_cgroup,
        cpu_us_per_op: per_op(after.cpu_us.saturating_sub(before.cpu_us)),
        machine_cpu_us_per_op: machine_us
            .map(|(before, after)| per_op(after.saturating_sub(before))),
        rest,
        not_objects,
        deepheap,
    })
}

/// What deepheap has in RAM besides page buffer and cache, by its own account and from outside.
fn not_objects(workload: &Workload, conducted: &Conducted) -> Option<NotObjects> {
    let statistics = backend::statistics(workload)?;
    let part = |name: &str| statistics["memory"][name].as_u64();
    let tables = ["object_table_bytes", "heap_metadata_bytes", "store_memory_bytes", "other_bytes"];
    let page_tables = gauges::status_bytes("VmPTE")?;
    let counted_bytes = page_tables + tables.into_iter().map(part).sum::<Option<u64>>()?;
    let objects = part("page_buffer_bytes")? + part("cache_bytes")?;
    let ours = conducted.own_resident_bytes + conducted.index_bytes;
    let resident = gauges::status_bytes("VmRSS")?;
    let measured_bytes = (resident + page_tables).saturating_sub(ours + objects);
    let percent_of_data =
        100.0 * counted_bytes.max(measured_bytes) as f64 / workload.data_bytes as f64;
    Some(NotObjects { counted_bytes, measured_bytes, percent_of_data })
}

/// Reads all objects; the versions must add up to the writes done.
fn audit(shared: &Shared, writes_done: u64) -> Result<u64, Failure> {
    let Some(objects) = shared.objects.get() else { return Ok(0) };
    let mut found = 0;
    for object in 0..objects.count() {
        found += objects
            .audit(object)
            .map_err(|mismatch| Failure::Failed(format!("WRONG DATA in the audit: {mismatch}")))?;
    }
    if found != writes_done {
        return Err(Failure::Failed(format!(
            "LOST WRITES: {writes_done} were done, the objects hold {found}"
        )));
    }
    Ok(found)
}
