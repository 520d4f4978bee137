//! Trial: one program run once under one contender, with a limit of memory and of time.
//!
//! Guarantees: when it returns, whichever way, program, cgroup, swap and socket are gone; a program
//! that was too slow, was killed for memory, or cannot have so little of it is told as such, and is
//! no failure; what went wrong otherwise is.
//! Never: counts the time of a load or of reading an input into the page cache.
//! Threads: one, those of `launch` and of `load`.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::contender::Contender;
use super::load::Load;
use super::programs::{Batch, Job};
use super::scratch::Scratch;
use super::settings::Settings;
use super::spent::Spent;
use crate::papers::launch::{Ended, Running};
use crate::papers::numbers::Numbers;
use deepheap_bench::cgroup::{Cgroup, Swapping};
use deepheap_bench::failure::Failure;
use deepheap_bench::ledger::Ledger;
use deepheap_bench::lender::Lender;
use deepheap_bench::signals;
use deepheap_bench::swap_file::SwapFile;
use deepheap_bench::zram::Zram;

/// What deepheap needs besides its budget before it is known better.
const FIRST_OUTSIDE_BYTES: u64 = 8 << 20;
/// The smallest budget that is tried.
const BUDGET_LEAST_BYTES: u64 = 8 << 20;
/// How many budgets deepheap gets: a smaller one if it was killed for memory, a larger one if it
/// left more than a twentieth of what it may take.
const BUDGETS: u32 = 3;
/// The run that shows what lies outside of the budget takes this part of the time at most: twice
/// what the program alone takes.
const PROBE_PART: u32 = 10;
/// Zram's pool leaves a program at least this part of its memory.
const ZRAM_LEAST_PART: u64 = 8;
/// How far from what they may take program and pool may be, as a part; twice as far is unfit.
const ZRAM_OFF: f64 = 0.04;
/// How often their limit is looked for.
const ZRAM_TRIES: u32 = 3;
/// A server that was asked to end does so by then.
const END_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const STATS: &str = "stats.json";
/// Where in deepheap's statistics is what stayed unmanaged, if it says so.
const UNMANAGED: &str = "/memory/unmanaged_bytes";

/// What a trial may use.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Memory of the whole process; no limit if none.
    pub bytes: Option<u64>,
    /// Its peak alone, if that is known.
    pub peak_bytes: u64,
    /// Time.
    pub limit: Duration,
    /// deepheap's budget, or zram's limit of the cgroup, if it is known already.
    pub known_bytes: Option<u64>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// `seconds`, or one of `late` (the limit), `killed`, `unfit`; and what was used.
    pub numbers: Numbers,
    /// Of the output; none if it was cut short.
    pub digest: Option<String>,
    /// deepheap's own figures.
    pub stats: Value,
}

/// How a program ended.
enum End {
    Done { seconds: f64, digest: String },
    Late,
    Killed,
}

/// Runs a program once.
pub fn run(
    scratch: &Scratch<'_>,
    contender: Contender,
    terms: &Terms,
    settings: &Settings,
) -> Result<Trial, Failure> {
    match contender {
        Contender::Deepheap => on_deepheap(scratch, terms, settings),
        Contender::Zram => on_zram(scratch, terms, settings),
        _ => {
            let (mut ledger, time) = (Ledger::open()?, terms.limit);
            on_kernel(scratch, contender, terms, terms.bytes, time, settings, &mut ledger)
        }
    }
}

/// Runs it outside of any cgroup, with a fixed budget of deepheap or alone: for its answers.
pub fn answer(
    scratch: &Scratch<'_>,
    budget: Option<u64>,
    limit: Duration,
    settings: &Settings,
) -> Result<Trial, Failure> {
    let before =
        budget.map_or_else(Vec::new, |budget| launcher(scratch, &budget.to_string(), settings));
    let ran = execute(scratch, &before, None, limit, &mut || ())?;
    Ok(told(ran, limit, read_stats(scratch)))
}

/// Runs it in a cgroup without a limit, alone or with as much RAM as holds a bound on stalls.
pub fn unlimited(
    scratch: &Scratch<'_>,
    stall: Option<&str>,
    limit: Duration,
    settings: &Settings,
) -> Result<Trial, Failure> {
    let mut ledger = Ledger::open()?;
    let cgroup = Cgroup::create(&mut ledger)?;
    let before = stall.map_or_else(Vec::new, |stall| {
        let mut before = launcher(scratch, "auto", settings);
        let rest = before.pop();
        before.extend(["--stall".to_owned(), stall.to_owned()].into_iter().chain(rest));
        before
    });
    let (mut looks, mut sum) = (0u64, 0.0);
    let mut look = || {
        if let Ok(bytes) = cgroup.needed_bytes() {
            (looks, sum) = (looks + 1, sum + bytes as f64);
        }
    };
    let ran = execute(scratch, &before, Some(&cgroup), limit, &mut look)?;
    let stats = if stall.is_some() { read_stats(scratch) } else { Value::Null };
    let mut trial = told(ran, limit, stats);
    trial.numbers.set("mean_bytes", sum / looks.max(1) as f64);
    Ok(trial)
}

fn on_kernel(
    scratch: &Scratch<'_>,
    contender: Contender,
    terms: &Terms,
    limit_bytes: Option<u64>,
    time: Duration,
    settings: &Settings,
    ledger: &mut Ledger,
) -> Result<Trial, Failure> {
    let cgroup = Cgroup::create(ledger)?;
    let mut zram = None;
    let _swap = match contender {
        Contender::Swap { page_cluster } => {
            Some(SwapFile::create(ledger, &settings.dir, terms.peak_bytes, page_cluster)?)
        }
        Contender::Zram => {
            zram = Some(Zram::create(ledger, terms.peak_bytes)?);
            None
        }
        _ => None,
    };
    let mut lender = None;
    if let Some(bytes) = limit_bytes {
        let spares = cgroup.spare();
        cgroup.limit(bytes, Swapping::Eager)?;
        lender = spares.then(|| Lender::new(&cgroup, bytes));
    }
    let (mut pool_peak, mut peak) = (0, 0);
    let mut look = || {
        if let Some(zram) = &zram {
            let pool = zram.pool_bytes();
            pool_peak = pool_peak.max(pool);
            peak = peak.max(pool + cgroup.needed_bytes().unwrap_or(0));
        }
        lender.iter_mut().for_each(Lender::look);
    };
    let ran = execute(scratch, &[], Some(&cgroup), time, &mut look);
    let ran = match ran {
        Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
        Err(_) if lender.as_ref().is_some_and(Lender::has_ended) => {
            (End::Killed, Numbers::default())
        }
        ran => ran?,
    };
    let mut trial = told(ran, time, Value::Null);
    let spared = lender.map_or(0, |lender| lender.times());
    terms.bytes.into_iter().for_each(|bytes| trial.numbers.set("limit_bytes", bytes as f64));
    trial.numbers.set("spared", spared as f64);
    if zram.is_some() {
        trial.numbers.set("pool_bytes", pool_peak as f64);
        trial.numbers.set("peak_bytes", peak as f64);
        limit_bytes.into_iter().for_each(|bytes| trial.numbers.set("cgroup_bytes", bytes as f64));
    }
    Ok(trial)
}

/// Looks for the limit of the cgroup with which program and pool take what they may, then measures.
fn on_zram(scratch: &Scratch<'_>, terms: &Terms, settings: &Settings) -> Result<Trial, Failure> {
    let Some(bytes) = terms.bytes else {
        return Err(Failure::Refused("zram is measured with a limit".into()));
    };
    let once = |limit: u64, time: Duration| {
        let mut ledger = Ledger::open()?;
        on_kernel(scratch, Contender::Zram, terms, Some(limit), time, settings, &mut ledger)
    };
    let mut limit = match terms.known_bytes {
        Some(limit) => limit,
        None => {
            let first = bytes / 3 * 2;
            let probe = once(first, terms.limit / PROBE_PART)?;
            let pool = probe.numbers.get("pool_bytes").unwrap_or(0.0);
            match left_by_pool(bytes, terms.peak_bytes, first, pool) {
                Some(limit) => limit,
                None => return Ok(unfit(probe)),
            }
        }
    };
    let mut tries = 1;
    loop {
        let trial = once(limit, terms.limit)?;
        let taken = trial.numbers.get("peak_bytes").unwrap_or(0.0);
        let is_near = (taken / bytes as f64 - 1.0).abs() <= ZRAM_OFF;
        if is_near || tries == ZRAM_TRIES || terms.known_bytes.is_some() {
            return Ok(if taken > bytes as f64 * (1.0 + 2.0 * ZRAM_OFF) {
                unfit(trial)
            } else {
                trial
            });
        }
        let pool = trial.numbers.get("pool_bytes").unwrap_or(0.0);
        match left_by_pool(bytes, terms.peak_bytes, limit, pool) {
            Some(next) if next != limit => limit = next,
            Some(_) => return Ok(trial),
            None => return Ok(unfit(trial)),
        }
        tries += 1;
    }
}

/// The limit with which program and pool take `bytes`, when with `limit` the pool took `pool` for
/// what the program has beyond it; none if there is no such limit.
fn left_by_pool(bytes: u64, peak_bytes: u64, limit: u64, pool: f64) -> Option<u64> {
    let beyond = peak_bytes.saturating_sub(limit) as f64;
    let ratio = pool / beyond.max(1.0);
    let left = (bytes as f64 - ratio * peak_bytes as f64) / (1.0 - ratio);
    let is_possible = ratio < 1.0 && left >= (bytes / ZRAM_LEAST_PART) as f64;
    is_possible.then_some(left as u64)
}

fn unfit(trial: Trial) -> Trial {
    let mut numbers = Numbers::default();
    for name in ["pool_bytes", "peak_bytes", "limit_bytes", "cgroup_bytes"] {
        trial.numbers.get(name).into_iter().for_each(|value| numbers.set(name, value));
    }
    numbers.set("unfit", 1.0);
    Trial { numbers, digest: None, stats: Value::Null }
}

/// Looks for the budget with which the whole process takes what it may, then measures.
fn on_deepheap(
    scratch: &Scratch<'_>,
    terms: &Terms,
    settings: &Settings,
) -> Result<Trial, Failure> {
    let once = |budget: u64, limit: Option<u64>, time: Duration| {
        let mut ledger = Ledger::open()?;
        let cgroup = Cgroup::create(&mut ledger)?;
        limit.map_or(Ok(()), |limit| cgroup.limit(limit, Swapping::Off))?;
        let before = launcher(scratch, &budget.to_string(), settings);
        let ran = execute(scratch, &before, Some(&cgroup), time, &mut || ())?;
        let mut trial = told(ran, time, read_stats(scratch));
        limit.into_iter().for_each(|bytes| trial.numbers.set("limit_bytes", bytes as f64));
        trial.numbers.set("budget_bytes", budget as f64);
        Ok::<Trial, Failure>(trial)
    };
    let Some(bytes) = terms.bytes else {
        return Err(Failure::Refused("deepheap is measured with a limit".into()));
    };
    let (mut budget, mut outside) = (terms.known_bytes, None);
    if budget.is_none() {
        let first = bytes.saturating_sub(FIRST_OUTSIDE_BYTES).max(BUDGET_LEAST_BYTES);
        // What lies outside is there by the time that the program alone would need.
        let probe = once(first, None, terms.limit / PROBE_PART)?;
        let peak = probe.numbers.get("peak_bytes").unwrap_or(0.0) as u64;
        let beside = peak.saturating_sub(first);
        outside = Some(beside);
        // deepheap may use less than its budget.
        let unused = first.saturating_sub(peak).min(bytes / 16);
        budget = Some((bytes + unused).saturating_sub(beside + bytes / 100));
    }
    // deepheap refuses a budget beyond the limit of its cgroup.
    let mut budget = budget.unwrap_or(0).clamp(BUDGET_LEAST_BYTES, bytes.max(BUDGET_LEAST_BYTES));
    let mut tries = 1;
    loop {
        let mut trial = once(budget, Some(bytes), terms.limit)?;
        outside.into_iter().for_each(|outside| trial.numbers.set("outside_bytes", outside as f64));
        trial.numbers.set("budgets", f64::from(tries));
        let was_killed = trial.numbers.get("killed").is_some();
        let cannot_fit = outside.is_some_and(|outside| outside >= bytes);
        let peak = trial.numbers.get("peak_bytes").unwrap_or(0.0) as u64;
        let next = if was_killed {
            budget.saturating_sub(bytes / 40 + (1 << 20)).max(BUDGET_LEAST_BYTES)
        } else if trial.digest.is_some() && peak < bytes / 20 * 19 {
            // It had less than the others.
            (budget + bytes - peak - bytes / 100).min(bytes)
        } else {
            budget
        };
        let is_known = terms.known_bytes.is_some() && !was_killed;
        if tries == BUDGETS || cannot_fit || is_known || next == budget {
            return Ok(trial);
        }
        budget = next;
        tries += 1;
    }
}

/// `deepheap run` with a budget, and no statistics of runs before.
fn launcher(scratch: &Scratch<'_>, ram: &str, settings: &Settings) -> Vec<String> {
    let stats = scratch.file(STATS);
    let _ = fs::remove_file(&stats);
    let deepheap = settings.deepheap.display().to_string();
    let store = settings.dir.display().to_string();
    let stats = stats.display().to_string();
    let run = [&deepheap, "run", "--ram", ram, "--store", &store, "--stats", &stats, "--"];
    settings.environment().into_iter().chain(run.map(String::from)).collect()
}

/// The figures of the process that used most, of those that wrote some.
fn read_stats(scratch: &Scratch<'_>) -> Value {
    let text = fs::read_to_string(scratch.file(STATS)).unwrap_or_default();
    largest(&text)
}

fn largest(lines: &str) -> Value {
    let all = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let used = |stats: &Value| {
        let at = |pointer| stats.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        at("/memory/used_bytes") + at(UNMANAGED)
    };
    all.max_by_key(used).unwrap_or(Value::Null)
}

/// As numbers, besides those of what it spent.
fn told((end, mut numbers): (End, Numbers), limit: Duration, stats: Value) -> Trial {
    let mut digest = None;
    match end {
        End::Done { seconds, digest: found } => {
            numbers.set("seconds", seconds);
            digest = Some(found);
        }
        End::Late => numbers.set("late", limit.as_secs_f64()),
        End::Killed => numbers.set("killed", 1.0),
    }
    let of_deepheap = [
        ("unmanaged_bytes", UNMANAGED),
        ("used_bytes", "/memory/used_bytes"),
        ("cached_faults", "/faults/cached/count"),
        ("stored_faults", "/faults/stored/count"),
        ("evictions", "/evictions/total"),
        ("read_bytes", "/device/read_bytes"),
        ("written_bytes", "/device/write_bytes"),
        ("tier_bytes", "/tier/written_bytes"),
        ("stall_share", "/pressure/stall_share"),
    ];
    for (name, pointer) in of_deepheap {
        let found = stats.pointer(pointer).and_then(Value::as_f64);
        found.into_iter().for_each(|value| numbers.set(name, value));
    }
    Trial { numbers, digest, stats }
}

/// Runs the program, and tells what it spent; `look` is called again and again.
fn execute(
    scratch: &Scratch<'_>,
    before: &[String],
    cgroup: Option<&Cgroup>,
    limit: Duration,
    look: &mut dyn FnMut(),
) -> Result<(End, Numbers), Failure> {
    scratch.warm();
    let mut command = scratch.command(before)?;
    cgroup.map_or(Ok(()), |cgroup| cgroup.enclose(&mut command))?;
    let mut spent = Spent::new(cgroup);
    let look = &mut || {
        spent.look();
        look();
    };
    let end = match &scratch.program().job {
        Job::Batch(batch) => {
            let started = Instant::now();
            let running = Running::start(&mut command)?;
            finish(running, started, batch, limit, look)
        }
        Job::Server { load, .. } => {
            let socket = scratch.file("socket");
            let _ = fs::remove_file(&socket);
            let mut server = Running::start(&mut command)?;
            server.listens_on(&socket)?;
            serve(server, *load, scratch, limit, look)
        }
    };
    let end = match end {
        Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
        Err(_) if cgroup.is_some_and(|cgroup| cgroup.oom_kills() > 0) => End::Killed,
        end => end?,
    };
    Ok((end, spent.numbers()))
}

fn finish(
    running: Running,
    started: Instant,
    batch: &Batch,
    limit: Duration,
    look: &mut dyn FnMut(),
) -> Result<End, Failure> {
    let ended = running.end_within(limit, look)?;
    let seconds = started.elapsed().as_secs_f64();
    if ended.is_late {
        return Ok(End::Late);
    }
    let output = ended.bytes()?;
    Ok(End::Done { seconds, digest: digest(&output, batch.compared) })
}

fn serve(
    mut server: Running,
    load: Load,
    scratch: &Scratch<'_>,
    limit: Duration,
    look: &mut dyn FnMut(),
) -> Result<End, Failure> {
    let end = Instant::now() + limit;
    let going = load.start(&scratch.file("socket"), scratch.amount());
    let mut is_late = false;
    while !going.is_over() {
        look();
        if !is_late && Instant::now() > end {
            is_late = true;
            // The connections break, and the load is over.
            server.kill();
        }
        std::thread::sleep(LOOK_EVERY);
    }
    signals::interrupted()?;
    if is_late {
        return Ok(End::Late);
    }
    let served = going.end();
    let (served, time) = match served {
        Ok(served) => served,
        Err(error) => {
            server.kill();
            let why = server.wait(END_MAX).and_then(Ended::success).err();
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            return Err(Failure::Failed(format!("load: {error}{why}")));
        }
    };
    server.terminate();
    let ended = server.end_within(END_MAX, look)?;
    if ended.is_late {
        return Err(Failure::Failed("the server did not end when it was asked to".into()));
    }
    let digest = format!("{} right, {} wrong", served.right, served.wrong);
    Ok(End::Done { seconds: time.as_secs_f64(), digest })
}

/// Length and FNV-1a of an output, or of its lines with one of these words.
fn digest(output: &[u8], compared: &[&str]) -> String {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    let mut length = 0_u64;
    let mut add = |bytes: &[u8]| {
        length += bytes.len() as u64;
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    };
    if compared.is_empty() {
        add(output);
    } else {
        let text = String::from_utf8_lossy(output);
        let chosen = text.lines().filter(|line| compared.iter().any(|word| line.contains(word)));
        chosen.for_each(|line| add(line.as_bytes()));
    }
    format!("{length} bytes, {hash:016x}")
}

/// What a run's file keeps besides its numbers.
pub fn report(trial: &Trial) -> Value {
    json!({ "digest": trial.digest, "deepheap": trial.stats })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_outputs_apart_and_leaves_out_what_is_not_compared() {
        assert_eq!(digest(b"a\n", &[]), digest(b"a\n", &[]));
        assert_ne!(digest(b"a\xFF\n", &[]), digest(b"a\xFE\n", &[]));
        assert_ne!(digest(b"", &[]), digest(b"\0", &[]));
        let compared = |text: &str| digest(text.as_bytes(), &["states"]);
        assert_eq!(compared("5 states\n1 s\n"), compared("5 states\n2 s\n"));
        assert_ne!(compared("5 states\n"), compared("6 states\n"));
    }

    #[test]
    fn what_the_pool_takes_is_left_by_the_program() {
        let mib = |count: u64| count << 20;
        let left = |bytes, pool: u64| left_by_pool(mib(bytes), mib(100), mib(40), mib(pool) as f64);
        // A third of what leaves stays: 25 in the page buffer, 25 of the 75 that left.
        assert_eq!(left(50, 20).map(|bytes| bytes >> 10), Some(mib(25) >> 10));
        // Half, or all of it: too much.
        assert_eq!((left(50, 30), left(50, 60), left(50, 70)), (None, None, None));
        assert_eq!(left(50, 0), Some(mib(50)));
    }

    #[test]
    fn the_figures_of_the_largest_process_are_taken() {
        let line = |used: u64, managed: bool| {
            json!({ "managing": managed, "memory": { "used_bytes": used } }).to_string()
        };
        let stats = largest(&format!("{}\n{}\nno JSON", line(5, false), line(9, true)));
        assert_eq!(stats["managing"], true);
        let with = json!({ "memory": { "used_bytes": 1, "unmanaged_bytes": 100 } }).to_string();
        let late = (End::Late, Numbers::default());
        let trial = told(late, Duration::from_secs(3), largest(&with));
        assert_eq!(trial.numbers.get("unmanaged_bytes"), Some(100.0));
        assert_eq!(trial.numbers.get("late"), Some(3.0));
        assert_eq!(largest(""), Value::Null);
    }
}
