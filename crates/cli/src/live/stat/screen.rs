//! Screen of `stat`: one compact picture of a process, 80 columns wide.
//!
//! Guarantees: the same layout with and without rates, so that a redrawn screen does not jump.
//! Never: prints; it returns text.
//! Threads: pure functions.

use core::fmt::{Result, Write};

use deepheap::internal::stats_report::{
    better, bytes, compression, count, dense, device_troubles, duration, given_back, longest_wait,
    peaks, pool, saved, share, waited_share,
};
use deepheap::stats::{FaultKind, Latency, Stats};

use deepheap_tools::sample::{Rates, Sample};

/// Columns of the bars.
const BAR_WIDTH: usize = 40;

/// The picture. With an earlier sample, latencies are of the time since.
pub fn screen(
    name: &str,
    pid: u32,
    sample: &Sample,
    earlier: Option<&Sample>,
    has_colour: bool,
) -> String {
    let mut text = String::with_capacity(2048);
    let rates = Rates { now: &sample.stats, earlier: earlier.map(|sample| &sample.stats) };
    // Writing to a String cannot fail.
    let _ = head(&mut text, name, pid, &sample.stats, has_colour)
        .and_then(|()| memory(&mut text, &sample.stats, has_colour))
        .and_then(|()| faults(&mut text, sample, earlier, &rates, has_colour))
        .and_then(|()| traffic(&mut text, &rates))
        .and_then(|()| writeln!(text, "words   'deepheap stat --help' explains them"));
    text
}

fn head(out: &mut String, name: &str, pid: u32, s: &Stats, has_colour: bool) -> Result {
    let state = if s.managing != 0 {
        "heap is managed: cold memory may move"
    } else {
        "heap is in RAM: nothing is managed yet"
    };
    let (bold, plain) = if has_colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    writeln!(out, "{bold}{name} ({pid}){plain}  up {}  {state}\n", uptime(s.uptime_ns))
}

fn memory(out: &mut String, s: &Stats, has_colour: bool) -> Result {
    let (used, budget) = (s.used_bytes(), s.budget_bytes);
    let bar = |part, whole| bar(part, whole, has_colour);
    writeln!(out, "memory  {}  {} of {}", bar(used, budget), bytes(used), bytes(budget))?;
    if s.stall_bound_ppm > 0 {
        let (saved, most) = (saved(s), bytes(s.budget_most_bytes));
        writeln!(out, "        {saved}; at most {most} may be used")?;
    }
    if let Some(pool) = pool(s) {
        writeln!(out, "pool    {pool}")?;
    }
    let kinds = [
        ("in RAM", s.page_buffer_bytes),
        ("compressed", s.cache_bytes),
        ("page tables", s.page_table_bytes),
        ("tables", s.object_table_bytes + s.heap_metadata_bytes),
        ("store buffers", s.store_memory_bytes),
        ("other", s.other_bytes),
    ];
    for row in kinds.chunks(3) {
        let cells = row.iter().map(|(kind, size)| format!("{kind:>13} {:<9}", bytes(*size)));
        writeln!(out, "        {}", cells.collect::<Vec<_>>().join(" ").trim_end())?;
    }
    let (stored, capacity) = (s.store_used_bytes, s.store_capacity_bytes);
    writeln!(out, "store   {}  {} of {}", bar(stored, capacity), bytes(stored), bytes(capacity))?;
    if let Some(given_back) = given_back(s) {
        writeln!(out, "        {given_back}")?;
    }
    if s.tier_capacity_bytes > 0 {
        let (live, capacity) = (s.tier_stored_bytes, s.tier_capacity_bytes);
        writeln!(out, "tier    {}  {} of {}", bar(live, capacity), bytes(live), bytes(capacity))?;
    }
    let [allocated, pages, stored] =
        [s.allocated_bytes, s.committed_bytes, s.stored_bytes].map(bytes);
    writeln!(out, "heap    {allocated} allocated, {pages} of pages, {stored} of them on SSD")?;
    writeln!(out, "        at most {}", peaks(s))?;
    let (mapped, beside) = (bytes(s.mapped_bytes), bytes(s.unmanaged_bytes));
    let note = if s.unmanaged_bytes > budget { ": more than the budget" } else { "" };
    writeln!(out, "        {mapped} mapped by the program; {beside} not managed{note}\n")
}

fn faults(
    out: &mut String,
    sample: &Sample,
    earlier: Option<&Sample>,
    rates: &Rates<'_>,
    has_colour: bool,
) -> Result {
    let (dim, plain) = if has_colour { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
    writeln!(
        out,
        "{dim}faults        total      rate       p50       p90       p99     p99.9       \
         max{plain}"
    )?;
    for kind in FaultKind::ALL {
        let all = &sample.latencies[kind as usize];
        let shown = match earlier {
            Some(earlier) => Latency::of(&all.since(&earlier.latencies[kind as usize])),
            None => Latency::of(all),
        };
        let rate = rates.counts(|s| s.latencies()[kind as usize].1.count);
        write!(out, "{:<10} {:>8} {rate:>9}", kind.word(), count(all.count()))?;
        for ns in [shown.p50_ns, shown.p90_ns, shown.p99_ns, shown.p999_ns, shown.max_ns] {
            let text = if shown.count == 0 { "-".to_owned() } else { duration(ns) };
            write!(out, " {text:>9}")?;
        }
        writeln!(out)?;
    }
    let rate = rates.counts(|s| s.prefetched);
    let mut line = format!("prefetch   {:>8} {rate:>9}", count(sample.stats.prefetched));
    if sample.stats.sequences_brought > 0 {
        let [brought, used] =
            [sample.stats.sequences_brought, sample.stats.sequences_used].map(count);
        line += &format!("  {brought} of them in sequences, {used} used");
    }
    writeln!(out, "{}\n", line.trim_end())
}

fn traffic(out: &mut String, rates: &Rates<'_>) -> Result {
    let s = rates.now;
    writeln!(
        out,
        "evicted {} pages{}: {} clean, {} dirty, {} zero, {} free",
        count(s.evictions()),
        rates.in_brackets(Stats::evictions, count),
        count(s.evicted_clean),
        count(s.evicted_dirty),
        count(s.evicted_zero),
        count(s.evicted_free)
    )?;
    if let Some(compression) = compression(s) {
        writeln!(out, "lz4     {compression}")?;
    }
    if let Some(dense) = dense(s) {
        writeln!(out, "zstd    {dense}")?;
    }
    let [dropped, written, kept] =
        [s.cache_reclaimed_clean, s.cache_reclaimed_dirty, s.cache_second_chances].map(count);
    let cache =
        format!("dropped {dropped} clean, wrote {written} dirty, kept {kept} touched again");
    writeln!(out, "cache   {cache}")?;
    let moved = |of: fn(&Stats) -> u64| bytes(of(s)) + &rates.in_brackets(of, bytes);
    let (read, written) = (moved(|s| s.device_read_bytes), moved(|s| s.device_write_bytes));
    writeln!(out, "device  read {read}, wrote {written}")?;
    if let Some(mix) = s.tier_mix_ppm() {
        let (read, written) = (moved(|s| s.tier_read_bytes), moved(|s| s.tier_write_bytes));
        writeln!(out, "tier    read {read}, wrote {written}")?;
        let (mix, late) = (share(mix), rates.tier_mix_ppm().map(share));
        let late = late.map_or(String::new(), |late| format!("; {late} now"));
        writeln!(out, "mix     {mix} of what was written went to the second tier{late}")?;
    }
    for trouble in device_troubles(s) {
        writeln!(out, "        {trouble}")?;
    }
    let ratio = s.write_amplification();
    let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    let [emptied, moved] = [s.segments_collected, s.blocks_appended_survivor].map(count);
    let log = format!("write amplification {ratio}, {emptied} segments collected");
    writeln!(out, "log     {log}, {moved} blocks moved")?;
    writeln!(out, "waited  for want of RAM, of the run time: {}", waited_share(s))?;
    if let Some(better) = better(s) {
        writeln!(out, "        {better}")?;
    }
    if s.stall_bound_ppm > 0 {
        let is_above = s.tier_capacity_bytes > 0 && s.stall_share_now_ppm > s.stall_bound_ppm;
        let note = if is_above { ": less goes to the second tier" } else { "" };
        writeln!(out, "        the bound is {}{note}", share(s.stall_bound_ppm))?;
    }
    let (time, made) = (duration(s.stall_ns), count(s.direct_reclaims));
    writeln!(out, "        for room: {time} in all threads; they made it themselves {made} times")?;
    writeln!(out, "        {}", longest_wait(s))?;
    let [again, pins] = [s.efault_retries, s.pins].map(count);
    writeln!(out, "calls   {again} made again after EFAULT, {pins} pins of their memory")
}

fn bar(part: u64, whole: u64, has_colour: bool) -> String {
    let share = if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) };
    let full = (share * BAR_WIDTH as f64).round() as usize;
    if has_colour {
        let colour = if share > 0.95 { "33" } else { "32" };
        let (full, rest) = ("█".repeat(full), "░".repeat(BAR_WIDTH - full));
        format!("\x1b[{colour}m{full}\x1b[2m{rest}\x1b[0m")
    } else {
        format!("[{}{}]", "#".repeat(full), ".".repeat(BAR_WIDTH - full))
    }
}

/// How long a process has run, for people.
pub fn uptime(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m {:02}s", seconds % 60),
        _ => format!("{hours}h {minutes:02}m"),
    }
}
