//! Metrics: the statistics of all watched processes as OpenMetrics text.
//!
//! Guarantees: the text of OpenMetrics 1.0.0: each family once, with its type, its unit and its
//! help; counters end in `_total`; labels are escaped; `# EOF` ends it.
//! Never: reads a process.
//! Threads: pure functions.

use core::fmt::Write;

use deepheap::stats::{FaultKind, Stats};

use crate::watch::Watched;

/// What the text is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The bounds of fault latencies: one nanosecond below so many powers of two.
const BOUNDS: [u32; 12] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 34];

type Number = fn(&Stats) -> u64;
type Gauges = &'static [(&'static str, Number)];
type Ratios = &'static [(&'static str, fn(&Stats) -> Option<u64>)];

/// Families with a label of their own, its values, and what they count.
const GAUGES: &[(&str, &str, &str, &str, Gauges)] = &[
    (
        "deepheap_ram_bytes",
        "bytes",
        "RAM that counts against the budget.",
        "kind",
        &[
            ("in_reach", |s| s.page_buffer_bytes),
            ("cached", |s| s.cache_bytes),
            ("page_tables", |s| s.page_table_bytes),
            ("object_table", |s| s.object_table_bytes),
            ("heap_tables", |s| s.heap_metadata_bytes),
            ("store_buffers", |s| s.store_memory_bytes),
            ("other", |s| s.other_bytes),
        ],
    ),
    ("deepheap_ram_budget_bytes", "bytes", "The RAM budget.", "", &[("", |s| s.budget_bytes)]),
    (
        "deepheap_ram_mean_bytes",
        "bytes",
        "Under a bound on stalls: mean of what was touched, and of the RAM for it.",
        "kind",
        &[("touched", |s| s.touched_mean_bytes), ("used", |s| s.used_mean_bytes)],
    ),
    (
        "deepheap_unmanaged_bytes",
        "bytes",
        "RAM of the program outside of deepheap.",
        "",
        &[("", |s| s.unmanaged_bytes)],
    ),
    (
        "deepheap_heap_bytes",
        "bytes",
        "The heap of the program.",
        "kind",
        &[
            ("allocated", |s| s.allocated_bytes),
            ("pages", |s| s.committed_bytes),
            ("mapped", |s| s.mapped_bytes),
        ],
    ),
    (
        "deepheap_store_bytes",
        "bytes",
        "The store.",
        "kind",
        &[
            ("live", |s| s.stored_bytes),
            ("used", |s| s.store_used_bytes),
            ("capacity", |s| s.store_capacity_bytes),
        ],
    ),
    (
        "deepheap_tier_bytes",
        "bytes",
        "The second tier of the store.",
        "kind",
        &[("live", |s| s.tier_stored_bytes), ("capacity", |s| s.tier_capacity_bytes)],
    ),
    ("deepheap_pool_members", "", "Processes of its pool.", "", &[("", |s| s.pool_members)]),
    (
        "deepheap_pool_bytes",
        "bytes",
        "What the processes of its pool may use together, and what none of them has.",
        "kind",
        &[("all", |s| s.pool_bytes), ("free", |s| s.pool_free_bytes)],
    ),
    (
        "deepheap_managing",
        "",
        "1 once the heap is managed, 0 before.",
        "",
        &[("", |s| s.managing.into())],
    ),
];

/// As `GAUGES`, of numbers in millionths; none is not told.
const RATIOS: &[(&str, &str, &str, Ratios)] = &[
    (
        "deepheap_stall_share_ratio",
        "Part of the run time that a thread stood in faults for want of RAM.",
        "over",
        &[("now", |s| Some(s.stall_share_now_ppm)), ("all", |s| Some(s.stall_share_ppm))],
    ),
    (
        "deepheap_stall_bound_ratio",
        "The most that it may be.",
        "",
        &[("", |s| Some(s.stall_bound_ppm).filter(|&bound| bound > 0))],
    ),
    (
        "deepheap_tier_mix_ratio",
        "Part of all bytes written that went to the second tier.",
        "",
        &[("", Stats::tier_mix_ppm)],
    ),
];

const COUNTERS: &[(&str, &str, &str, &str, Gauges)] = &[
    (
        "deepheap_pages_prefetched",
        "",
        "Pages that came before they were touched.",
        "",
        &[("", |s| s.prefetched)],
    ),
    (
        "deepheap_pages_in_sequences",
        "",
        "Pages read because they had followed before: all, those the program came to, those that \
         left RAM before.",
        "kind",
        &[
            ("brought", |s| s.sequences_brought),
            ("used", |s| s.sequences_used),
            ("dropped", |s| s.sequences_dropped),
        ],
    ),
    (
        "deepheap_pages_evicted",
        "",
        "Pages that left reach.",
        "kind",
        &[
            ("clean", |s| s.evicted_clean),
            ("dirty", |s| s.evicted_dirty),
            ("zero", |s| s.evicted_zero),
            ("free", |s| s.evicted_free),
        ],
    ),
    ("deepheap_pages_compressed", "", "Pages that were compressed.", "", &[("", |s| s.compressed)]),
    (
        "deepheap_compressed_bytes",
        "bytes",
        "What they became.",
        "",
        &[("", |s| s.compressed_bytes)],
    ),
    (
        "deepheap_pages_decompressed",
        "",
        "Pages that were decompressed.",
        "",
        &[("", |s| s.decompressed)],
    ),
    (
        "deepheap_cache_reclaimed",
        "",
        "Objects that left the cache.",
        "kind",
        &[("clean", |s| s.cache_reclaimed_clean), ("dirty", |s| s.cache_reclaimed_dirty)],
    ),
    (
        "deepheap_device_requests",
        "",
        "Requests to the device.",
        "kind",
        &[("read", |s| s.device_reads), ("write", |s| s.device_writes)],
    ),
    (
        "deepheap_device_bytes",
        "bytes",
        "Bytes read from and written to the device.",
        "kind",
        &[("read", |s| s.device_read_bytes), ("write", |s| s.device_write_bytes)],
    ),
    (
        "deepheap_tier_device_bytes",
        "bytes",
        "Bytes read from and written to the second tier.",
        "kind",
        &[("read", |s| s.tier_read_bytes), ("write", |s| s.tier_write_bytes)],
    ),
    (
        "deepheap_discards",
        "",
        "Requests that told the store's device what is free.",
        "",
        &[("", |s| s.discards)],
    ),
    (
        "deepheap_idle_bytes",
        "bytes",
        "Space of the store that was free for a while: given back, and written again without that.",
        "kind",
        &[("discarded", |s| s.discarded_bytes), ("reused", |s| s.not_discarded_bytes)],
    ),
    (
        "deepheap_blocks_appended",
        "",
        "Blocks appended to the log.",
        "kind",
        &[("fresh", |s| s.blocks_appended_fresh), ("survivor", |s| s.blocks_appended_survivor)],
    ),
    (
        "deepheap_segments_collected",
        "",
        "Segments that collection emptied.",
        "",
        &[("", |s| s.segments_collected)],
    ),
    (
        "deepheap_blocks_refused",
        "",
        "Blocks that could not be read.",
        "",
        &[("", |s| s.blocks_refused)],
    ),
    (
        "deepheap_writes_retried",
        "",
        "Writes that the device had refused.",
        "",
        &[("", |s| s.writes_retried)],
    ),
    (
        "deepheap_direct_reclaims",
        "",
        "Times a thread that faulted had to evict.",
        "",
        &[("", |s| s.direct_reclaims)],
    ),
];

const SECONDS: &[(&str, &str, Number)] = &[
    ("deepheap_fault_stall_seconds", "Time that threads stood in faults for want of RAM.", |s| {
        s.fault_stall_ns
    }),
    ("deepheap_run_seconds", "Time that the program computed or stood in faults.", |s| s.run_ns),
    ("deepheap_stall_seconds", "Time that threads waited for room.", |s| s.stall_ns),
    ("deepheap_compress_seconds", "CPU time of compression.", |s| s.compress_ns),
];

/// The text.
pub fn text(processes: &[Watched]) -> String {
    let mut out = String::with_capacity(16 << 10);
    // Writing to a String cannot fail.
    let _ = write_all(&mut out, processes);
    out
}

fn write_all(out: &mut String, processes: &[Watched]) -> core::fmt::Result {
    for (families, kind, suffix) in [(GAUGES, "gauge", ""), (COUNTERS, "counter", "_total")] {
        for (name, unit, help, label, numbers) in families {
            head(out, name, kind, unit, help)?;
            for process in processes {
                for (value, number) in *numbers {
                    let labels = labels(process, label, value);
                    writeln!(
                        out,
                        "{name}{suffix}{{{labels}}} {}",
                        number(process.history.stats())
                    )?;
                }
            }
        }
    }
    for (name, help, label, ratios) in RATIOS {
        head(out, name, "gauge", "ratio", help)?;
        for process in processes {
            for (value, ppm) in *ratios {
                let Some(ppm) = ppm(process.history.stats()) else { continue };
                let labels = labels(process, label, value);
                writeln!(out, "{name}{{{labels}}} {}", ppm as f64 / 1e6)?;
            }
        }
    }
    for (name, help, number) in SECONDS {
        head(out, name, "counter", "seconds", help)?;
        for process in processes {
            let seconds = number(process.history.stats()) as f64 / 1e9;
            writeln!(out, "{name}_total{{{}}} {seconds}", labels(process, "", ""))?;
        }
    }
    let name = "deepheap_fault_seconds";
    head(out, name, "histogram", "seconds", "How long faults took.")?;
    for process in processes {
        for kind in FaultKind::ALL {
            let latencies = &process.history.sample().latencies[kind as usize];
            let labels = labels(process, "kind", kind.name());
            for power in BOUNDS {
                let bound_ns = (1 << power) - 1;
                let (bound, events) = (bound_ns as f64 / 1e9, latencies.count_up_to(bound_ns));
                writeln!(out, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {events}")?;
            }
            writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", latencies.count())?;
            writeln!(out, "{name}_count{{{labels}}} {}", latencies.count())?;
            writeln!(out, "{name}_sum{{{labels}}} {}", latencies.total_ns() as f64 / 1e9)?;
        }
    }
    out.write_str("# EOF\n")
}

fn head(out: &mut String, name: &str, kind: &str, unit: &str, help: &str) -> core::fmt::Result {
    writeln!(out, "# TYPE {name} {kind}")?;
    if !unit.is_empty() {
        writeln!(out, "# UNIT {name} {unit}")?;
    }
    writeln!(out, "# HELP {name} {help}")
}

/// `pid="7",name="redis"`, and one more unless it has no name.
fn labels(process: &Watched, label: &str, value: &str) -> String {
    let name = process.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let more = if label.is_empty() { String::new() } else { format!(",{label}=\"{value}\"") };
    format!("pid=\"{}\",name=\"{name}\"{more}", process.pid)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use deepheap::number;
    use deepheap::stats_page::StatsPage;

    use super::*;
    use crate::history::History;

    fn watched(pid: u32, name: &str) -> Watched {
        let page = StatsPage::create().expect("page");
        page.set(number!(budget_bytes), 4096);
        page.set(number!(stall_share_now_ppm), 34_000);
        if pid == 8 {
            page.set(number!(stall_bound_ppm), 100_000);
            page.set(number!(tier_capacity_bytes), 1 << 30);
            page.set(number!(tier_stored_bytes), 5000);
            page.set(number!(tier_write_bytes), 3000);
            page.set(number!(device_write_bytes), 1000);
        }
        page.record(0, FaultKind::Stored, 70_000);
        page.record(0, FaultKind::Stored, 3_000);
        let history = History::new(page, std::process::id());
        Watched { pid, name: name.to_owned(), history }
    }

    #[test]
    fn the_text_is_openmetrics() {
        let text = text(&[watched(7, "a \"b\" \\ c"), watched(8, "d")]);
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
        let mut types = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (what, family, rest) = (words.next(), words.next(), words.next());
                let (family, rest) = (family.expect("a family"), rest.expect("something of it"));
                match what {
                    Some("TYPE") => {
                        let earlier = types.insert(family.to_owned(), rest.to_owned());
                        assert!(earlier.is_none(), "{family} twice");
                    }
                    Some("UNIT") => assert!(family.ends_with(&format!("_{rest}")), "{line}"),
                    _ => assert_eq!(what, Some("HELP"), "{line}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(series.to_owned()), "{line} twice");
            let name = series.split('{').next().expect("a name");
            let family = types.keys().rev().find(|family| name.starts_with(family.as_str()));
            let family = family.expect("a family before its samples");
            let fits = match types[family].as_str() {
                "counter" => name.strip_prefix(family.as_str()) == Some("_total"),
                "gauge" => name == family,
                _ => ["_bucket", "_count", "_sum"].iter().any(|end| name.ends_with(end)),
            };
            assert!(fits, "{line}");
        }
        for line in [
            "deepheap_ram_budget_bytes{pid=\"8\",name=\"d\"} 4096",
            "deepheap_ram_budget_bytes{pid=\"7\",name=\"a \\\"b\\\" \\\\ c\"} 4096",
            "deepheap_stall_share_ratio{pid=\"8\",name=\"d\",over=\"now\"} 0.034",
            "deepheap_stall_bound_ratio{pid=\"8\",name=\"d\"} 0.1",
            "deepheap_tier_bytes{pid=\"8\",name=\"d\",kind=\"live\"} 5000",
            "deepheap_tier_device_bytes_total{pid=\"8\",name=\"d\",kind=\"write\"} 3000",
            "deepheap_tier_mix_ratio{pid=\"8\",name=\"d\"} 0.75",
            "deepheap_fault_seconds_bucket{pid=\"8\",name=\"d\",kind=\"stored\",le=\"4.095e-6\"} 1",
            "deepheap_fault_seconds_bucket{pid=\"8\",name=\"d\",kind=\"stored\",le=\"+Inf\"} 2",
            "deepheap_fault_seconds_sum{pid=\"8\",name=\"d\",kind=\"stored\"} 0.000073",
        ] {
            assert!(text.lines().any(|found| found == line), "'{line}' is not in:\n{text}");
        }
        for family in ["deepheap_stall_bound_ratio", "deepheap_tier_mix_ratio"] {
            assert!(!text.contains(&format!("{family}{{pid=\"7\"")), "who has none tells none");
        }
    }
}
