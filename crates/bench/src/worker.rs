//! Worker: the measured process. Fill, warm up, measure, report.
//!
//! ```text
//! READY   threads exist, nothing but their stacks and histograms    [limit is set]
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

use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, Swapping};
use crate::failure::Failure;
use crate::gauges::{self, BlockDevice};
use crate::histogram::Histogram;
use crate::object::{Mismatch, Objects};
use crate::report::{Latency, Report, Rest, Transfer};
use crate::stream::{Operation, Stream, order};
use crate::workload::{Backend, Pattern, Workload};
use crate::{backend, backend::obtain};

const STACK_BYTES: usize = 256 << 10;
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
    fill_seconds: f64,
    before: Reading,
    after: Reading,
    rest: Option<Rest>,
}

/// The main thread's side of the phases after READY.
fn conduct(shared: &Shared, cgroup: Option<&Cgroup>) -> Result<Conducted, Failure> {
    let workload = shared.workload;
    let device = BlockDevice::below(&workload.dir);
    let (own_bytes, limit_bytes) = limit(workload, cgroup)?;

    let started = Instant::now();
    let objects = obtain(workload)?;
    fill(workload, &objects);
    let fill_seconds = started.elapsed().as_secs_f64();
    let _ = shared.objects.set(objects);
    shared.phase.wait(); // FILLED

    let started = Instant::now();
    while shared.warm.load(Ordering::Relaxed) < workload.threads {
        if started.elapsed() > WARM_UP_MAX {
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
    Ok(Conducted { own_bytes, limit_bytes, fill_seconds, before, after, rest })
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
fn fill(workload: &Workload, objects: &Objects) {
    let chase = (workload.pattern == Pattern::Chase).then(|| order(workload));
    for object in 0..objects.count() {
        objects.fill(object, chase.map(|order| order.next_on_cycle(object)));
    }
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
    let mut share = Share { ticks: Histogram::new(), warm_up_ops: 0, warm_up_writes: 0, writes: 0 };
    let part = |total: u64| {
        let (total, threads) = (u128::from(total), u128::from(workload.threads));
        let upto = |t: u32| (total * u128::from(t) / threads) as u64;
        upto(thread + 1) - upto(thread)
    };
    shared.phase.wait(); // READY
    shared.phase.wait(); // FILLED
    let Some(objects) = shared.objects.get() else { die("threads were released before the fill") };

    for _ in 0..part(workload.warm_up()) {
        if shared.stop_warm_up.load(Ordering::Relaxed) {
            break;
        }
        let operation = stream.next();
        share.warm_up_writes += u64::from(perform(objects, operation, &mut stream));
        share.warm_up_ops += 1;
    }
    shared.warm.fetch_add(1, Ordering::Relaxed);
    shared.phase.wait(); // WARM
    shared.phase.wait(); // GO
    let quota = workload.ops.map_or(u64::MAX, part);
    for _ in 0..quota {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let operation = stream.next();
        let start = start_tick();
        let wrote = perform(objects, operation, &mut stream);
        share.ticks.record(end_tick().saturating_sub(start));
        share.writes += u64::from(wrote);
    }
    shared.phase.wait(); // DONE
    share
}

/// Does one operation; true if it wrote.
#[inline]
fn perform(objects: &Objects, operation: Operation, stream: &mut Stream) -> bool {
    let outcome = match operation {
        Operation::Read { object, word } => objects.read(object, word).map(|()| false),
        Operation::Write { object } => objects.write(object).map(|()| true),
        Operation::Scan { object, write } => {
            objects.scan(object).and_then(|()| write_if(objects, object, write))
        }
        Operation::Follow { object, write } => objects.follow(object).and_then(|next| {
            stream.arrive(next);
            write_if(objects, object, write)
        }),
    };
    outcome.unwrap_or_else(|mismatch| die(&format!("WRONG DATA: {mismatch}")))
}

#[inline]
fn write_if(objects: &Objects, object: u64, write: bool) -> Result<bool, Mismatch> {
    if write { objects.write(object).map(|()| true) } else { Ok(false) }
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
    let Conducted { own_bytes, limit_bytes, fill_seconds, before, after, rest } = conducted;
    let workload = shared.workload;
    let page_table_bytes = gauges::status_bytes("VmPTE");
    let resident_peak_bytes = gauges::status_bytes("VmHWM");
    let memory_cgroup = cgroup.map(|cgroup| cgroup.usage(own_bytes, limit_bytes));
    let deepheap = backend::statistics(workload);

    let mut ticks = Histogram::new();
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
    let in_cgroup = memory_cgroup.as_ref().filter(|_| workload.on != Backend::Deepheap);
    Ok(Report {
        workload: workload.clone(),
        objects: workload.objects(),
        fill_seconds,
        warm_up_done_ops: sum(|share| share.warm_up_ops),
        measured_seconds: seconds,
        measured_ops,
        measured_writes,
        ops_per_second: measured_ops as f64 / seconds,
        latency_ns: Latency {
            mean: ticks.mean() * ns_per_tick,
            p50: ns(ticks.percentile(0.5)),
            p99: ns(ticks.percentile(0.99)),
            p99_9: ns(ticks.percentile(0.999)),
            max: ns(ticks.max()),
        },
        errors: 0,
        audited_writes,
        device: gauges::transferred(before.device, after.device),
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
        deepheap,
    })
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
