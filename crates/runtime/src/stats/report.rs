//! Statistics report: prints a snapshot for machines (JSON) and for people (the exit summary).
//!
//! Guarantees: the same numbers as the snapshot, names as in `Stats`; JSON is one line.
//! Never: reads live counters, writes anywhere. It does allocate: not for fault paths.
//! Threads: pure functions.

use core::fmt::Write;

use serde_json::{Value, json};

use crate::stats::Stats;
use crate::stats::table::TOLD;

/// The snapshot as one line of JSON. Sizes are bytes, times nanoseconds.
pub fn stats_json(stats: &Stats) -> String {
    let mut json = json!({
        "version": stats.version,
        "pid": stats.pid,
        "uptime_ns": stats.uptime_ns,
        "managing": stats.managing != 0,
    });
    for told in &TOLD {
        let value = told.ratio(stats).map_or_else(|| json!(told.number.of(stats)), Value::from);
        json[told.json.0][told.json.1] = value;
    }
    for (kind, latency) in stats.latencies() {
        json["faults"][kind.name()] = json!(latency);
    }
    json["faults"]["total"] = json!(stats.faults());
    json["evictions"]["total"] = json!(stats.evictions());
    json["compression"]["ratio"] = json!(stats.compression());
    json["log"]["write_amplification"] = json!(stats.write_amplification());
    json["memory"]["used_bytes"] = json!(stats.used_bytes());
    json["memory"]["saved"] = json!(stats.saved());
    json["tier"]["mix"] = json!(stats.tier_mix_ppm().map(|ppm| ppm as f64 / 1e6));
    json.to_string()
}

/// The summary at a program's exit, on stderr: some lines, each ended by a newline.
pub fn summary(s: &Stats) -> String {
    let mut text = format!(
        "deepheap: process {} ran {:.1} s with a RAM budget of {}\n",
        s.pid,
        s.uptime_ns as f64 / 1e9,
        bytes(s.budget_bytes),
    );
    let mut line = |about: &str, told: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "deepheap:   {about:<8}{told}");
    };
    let (allocated, pages) = (bytes(s.allocated_bytes), bytes(s.committed_bytes));
    let mapped = bytes(s.mapped_bytes);
    line(
        "heap",
        format!("{allocated} allocated in {pages} of pages, {mapped} mapped by the program"),
    );
    line("at most", peaks(s));
    let tables = s.object_table_bytes + s.heap_metadata_bytes + s.store_memory_bytes;
    line(
        "memory",
        format!(
            "{}: {} in RAM, {} compressed in RAM,",
            bytes(s.used_bytes()),
            bytes(s.page_buffer_bytes),
            bytes(s.cache_bytes),
        ),
    );
    let (page_tables, tables) = (bytes(s.page_table_bytes), bytes(tables + s.other_bytes));
    line("", format!("{page_tables} page tables, {tables} other tables"));
    let unmanaged = bytes(s.unmanaged_bytes);
    line("beside", format!("{unmanaged} of the program's memory are not managed"));
    if s.managing == 0 && s.faults() == 0 {
        line("faults", "none: the heap fitted the budget".to_owned());
        return text;
    }
    let (faults, ahead) = (count(s.faults()), count(s.prefetched));
    line("faults", format!("{faults}, and {ahead} pages fetched ahead"));
    if s.sequences_brought > 0 {
        let [brought, used, dropped] =
            [s.sequences_brought, s.sequences_used, s.sequences_dropped].map(count);
        let told =
            format!("{brought} because they had followed before: {used} used, {dropped} dropped");
        line("", told);
    }
    for (kind, latency) in s.latencies().into_iter().filter(|(_, latency)| latency.count > 0) {
        let (count, kind) = (count(latency.count), kind.word());
        let [p50, p99, max] = [latency.p50_ns, latency.p99_ns, latency.max_ns].map(duration);
        line("", format!("{count:>6} {kind:<10} p50 {p50:<8} p99 {p99:<8} max {max}"));
    }
    line(
        "evicted",
        format!(
            "{} pages: {} clean, {} dirty, {} zero, {} free",
            count(s.evictions()),
            count(s.evicted_clean),
            count(s.evicted_dirty),
            count(s.evicted_zero),
            count(s.evicted_free),
        ),
    );
    compression(s).into_iter().for_each(|told| line("lz4", told));
    dense(s).into_iter().for_each(|told| line("zstd", told));
    let (read, reads) = (bytes(s.device_read_bytes), count(s.device_reads));
    let (written, writes) = (bytes(s.device_write_bytes), count(s.device_writes));
    let ratio = s.write_amplification();
    let ratio = ratio.map_or(String::new(), |ratio| format!(", write amplification {ratio:.2}"));
    line(
        "device",
        format!("{read} read in {reads} requests, {written} written in {writes}{ratio}"),
    );
    device_troubles(s).for_each(|told| line("", told));
    line("store", store_use(s));
    given_back(s).into_iter().for_each(|told| line("", told));
    second_tier(s).into_iter().for_each(|told| line("tier", told));
    pool(s).into_iter().for_each(|told| line("pool", told));
    let bound = match s.stall_bound_ppm {
        0 => String::new(),
        bound => format!("; bound {}", share(bound)),
    };
    let waited = share(s.stall_share_ppm);
    line("waited", format!("for want of RAM: {waited} of the run time{bound}"));
    if s.stall_ns > 0 {
        let (stalled, evicted) = (duration(s.stall_ns), count(s.direct_reclaims));
        line(
            "",
            format!("for room: {stalled} in all threads; they made it themselves {evicted} times"),
        );
    }
    if s.stall_bound_ppm > 0 {
        line("saved", saved(s));
    }
    text
}

/// How it went, in one line without a newline: of a process that was started as `name`.
pub fn verdict(name: &str, s: &Stats) -> String {
    let peak = bytes(s.touched_peak_bytes);
    if s.managing == 0 && s.faults() == 0 {
        return format!("{name}: peak {peak}, all of it in RAM");
    }
    let (stored, better) = (bytes(s.stored_peak_bytes), better(s));
    let better = better.map_or(String::new(), |better| format!("; {better}"));
    format!("{name}: peak {peak}, {stored} on SSD, {}{better}", waited(s))
}

/// How long the program waited, of its run time.
fn waited(s: &Stats) -> String {
    format!("waited {} of {}", share(s.stall_share_ppm), duration(s.run_ns))
}

/// The part of its run time that a thread waited for want of RAM.
pub fn waited_share(s: &Stats) -> String {
    format!("{} now, {} in all", share(s.stall_share_now_ppm), share(s.stall_share_ppm))
}

/// What the program had at most.
pub fn peaks(s: &Stats) -> String {
    let [touched, stored] = [s.touched_peak_bytes, s.stored_peak_bytes].map(bytes);
    format!("{touched} touched by the program, {stored} on SSD")
}

/// What more RAM would bring, if that is known.
pub fn better(s: &Stats) -> Option<String> {
    (s.better_budget_bytes > 0).then(|| {
        format!("{} would make that {}", bytes(s.better_budget_bytes), share(s.better_share_ppm))
    })
}

/// How it went with several processes together. The share is of the run time of all of them.
pub fn verdict_of_all<'a>(all: impl Iterator<Item = &'a Stats> + Clone) -> String {
    let sum = |number: fn(&Stats) -> u64| all.clone().map(number).sum::<u64>();
    let stalls: f64 = all.clone().map(|s| s.stall_share_ppm as f64 * s.run_ns as f64).sum();
    let run_ns = sum(|s| s.run_ns);
    let stall_share_ppm = (stalls / run_ns.max(1) as f64) as u64;
    let whole = Stats { stall_share_ppm, run_ns, ..Stats::default() };
    format!(
        "{} processes: peaks of {} together, {} on SSD, {}",
        all.clone().count(),
        bytes(sum(|s| s.touched_peak_bytes)),
        bytes(sum(|s| s.stored_peak_bytes)),
        waited(&whole),
    )
}

/// The longest fault of the last minute, and what it waited for.
pub fn longest_wait(s: &Stats) -> String {
    let longest = s.longest_waits().into_iter().max_by_key(|(_, ns)| *ns);
    match longest.filter(|(_, ns)| *ns > 0) {
        Some((cause, ns)) => format!("longest of the last minute: {}, for {cause}", duration(ns)),
        None => "none of the last minute took a millisecond".to_owned(),
    }
}

/// The work of compression, if it was tried.
pub fn compression(s: &Stats) -> Option<String> {
    let tried = s.compressed + s.compress_given_up + s.decompressed > 0;
    tried.then(|| {
        let ratio = s.compression().map_or("-".to_owned(), |ratio| format!("{ratio:.1}x"));
        format!(
            "{} pages, {ratio} smaller; {} given up, {} undone, {} of CPU",
            count(s.compressed),
            count(s.compress_given_up),
            count(s.decompressed),
            duration(s.compress_ns),
        )
    })
}

/// The work of the second step of compression, if it was of use.
pub fn dense(s: &Stats) -> Option<String> {
    let told = |ratio| format!("{} of them once more, {ratio:.1}x smaller", count(s.dense));
    s.dense_compression().map(told)
}

/// The space that was free for a while and given back, or written again, if there was any.
pub fn given_back(s: &Stats) -> Option<String> {
    let was_idle = s.discards > 0 || s.not_discarded_bytes > 0;
    was_idle.then(|| {
        let (given, kept) = (bytes(s.discarded_bytes), bytes(s.not_discarded_bytes));
        let requests = count(s.discards);
        format!("idle space: {given} given back in {requests} requests, {kept} written again")
    })
}

/// The traffic of the second tier, if there is one.
pub fn second_tier(s: &Stats) -> Option<String> {
    s.tier_mix_ppm().map(|mix| {
        format!(
            "{} read, {} written ({} of all that was), {} of {} live",
            bytes(s.tier_read_bytes),
            bytes(s.tier_write_bytes),
            share(mix),
            bytes(s.tier_stored_bytes),
            bytes(s.tier_capacity_bytes),
        )
    })
}

/// The RAM of the pool and its free part, if there is one.
pub fn pool(s: &Stats) -> Option<String> {
    (s.pool_members > 0).then(|| {
        let (all, free) = (bytes(s.pool_bytes), bytes(s.pool_free_bytes));
        let (members, own) = (s.pool_members, bytes(s.budget_bytes));
        format!("{own} of {all} for this process, {free} free; {members} in the pool")
    })
}

/// The content of the store, and the space that it takes. Space is set aside before it is written
/// to.
fn store_use(s: &Stats) -> String {
    let (used, capacity) = (bytes(s.store_used_bytes), bytes(s.store_capacity_bytes));
    if s.device_write_bytes == 0 {
        return format!("never written to; {used} set aside of {capacity}");
    }
    let (live, collected) = (bytes(s.stored_bytes), count(s.segments_collected));
    format!("{live} live; {used} taken of {capacity}; {collected} segments collected")
}

/// The failures of reads and of writes, if there were any.
pub fn device_troubles(stats: &Stats) -> impl Iterator<Item = String> {
    let (reread, refused) = (stats.blocks_reread, stats.blocks_refused);
    let reads = (reread + refused > 0).then(|| {
        let (reread, refused) = (count(reread), count(refused));
        format!("{reread} blocks were right only when read again, {refused} could not be read")
    });
    let (retried, relocated) = (stats.writes_retried, stats.segments_relocated);
    let writes = (retried > 0).then(|| {
        let (retried, relocated) = (count(retried), count(relocated));
        format!("refused writes were made again {retried} times, {relocated} went elsewhere")
    });
    reads.into_iter().chain(writes)
}

/// The RAM that a bound on stalls has saved.
pub fn saved(s: &Stats) -> String {
    let (used, touched) = (bytes(s.used_mean_bytes), bytes(s.touched_mean_bytes));
    match s.saved() {
        None => "nothing is saved yet: the heap is small".to_owned(),
        Some(part) if part >= 0.0 => {
            format!("{:.0} % of RAM: {used} on average for {touched}", part * 100.0)
        }
        Some(_) => format!("no RAM: {used} on average for {touched}"),
    }
}

/// A part, in millionths, for people.
pub fn share(ppm: u64) -> String {
    let percent = ppm as f64 / 1e4;
    match percent {
        0.0 => "0 %".to_owned(),
        _ if percent < 0.095 => "less than 0.1 %".to_owned(),
        _ if percent < 9.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// A size for people: three digits and a unit of 1024s.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    scaled(bytes as f64, 1024.0, &UNITS)
}

/// A count for people: three digits and a unit of 1000s.
pub fn count(count: u64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    scaled(count as f64, 1000.0, &UNITS).replace(' ', "")
}

/// A duration for people.
pub fn duration(ns: u64) -> String {
    const UNITS: [&str; 4] = ["ns", "us", "ms", "s"];
    scaled(ns as f64, 1000.0, &UNITS)
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    // 999.5 would round to a fourth digit.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {}", units[unit])
}
