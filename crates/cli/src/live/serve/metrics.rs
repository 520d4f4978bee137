//! Metrics: the statistics of all watched processes as OpenMetrics text.
//!
//! Guarantees: the text of OpenMetrics 1.0.0: each family once, with its type, its unit and its
//! help; counters end in `_total`; labels are escaped; `# EOF` ends it.
//! Never: reads a process.
//! Threads: pure functions.

use core::fmt::Write;

use deepheap::internal::stats_table::TOLD;
use deepheap::stats::FaultKind;

use crate::live::watch::SeenProcess;

/// The type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The bounds of fault latencies: one nanosecond below so many powers of two.
const BOUNDS: [u32; 12] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 34];

/// A family without `deepheap_`, the name of its label, and its help.
type Family = (&'static str, &'static str, &'static str);

const GAUGES: [Family; 15] = [
    ("ram_bytes", "kind", "RAM that counts against the budget."),
    ("ram_budget_bytes", "", "The RAM budget."),
    ("ram_mean_bytes", "kind", "Under a bound on stalls: mean of what was touched, and its RAM."),
    ("unmanaged_bytes", "", "RAM of the program outside of deepheap."),
    ("heap_bytes", "kind", "The heap of the program."),
    ("store_bytes", "kind", "The store."),
    ("tier_bytes", "kind", "The second tier of the store."),
    ("pool_members", "", "Processes of its pool."),
    ("pool_bytes", "kind", "What the processes of its pool may use, and what none of them has."),
    ("stall_share_ratio", "over", "Part of the run time that a thread waited for want of RAM."),
    ("longest_wait_seconds", "for", "The longest fault of the last minute that waited for that."),
    ("stall_bound_ratio", "", "The most that it may be."),
    ("peak_bytes", "kind", "The most that was touched, handed to the heap, and on the device."),
    (
        "better_budget_bytes",
        "",
        "A RAM budget with which it would wait clearly less; 0: not known.",
    ),
    ("better_share_ratio", "", "The part of the run time that a thread would wait with that."),
];

const COUNTERS: [Family; 23] = [
    ("pages_prefetched", "", "Pages that came before they were touched."),
    ("pages_in_sequences", "kind", "Pages read because they had followed before."),
    ("pages_evicted", "kind", "Pages that need a fault to be touched again."),
    ("pages_compressed", "", "Pages that were compressed."),
    ("compressed_bytes", "", "What they became."),
    ("pages_made_dense", "", "Compressed pages that were compressed once more."),
    ("dense_bytes", "", "What they became."),
    ("pages_decompressed", "", "Pages that were decompressed."),
    ("cache_reclaimed", "kind", "Objects that left the cache."),
    ("device_requests", "kind", "Requests to the device."),
    ("device_bytes", "kind", "Bytes read from and written to the device."),
    ("tier_device_bytes", "kind", "Bytes read from and written to the second tier."),
    ("discards", "", "Requests that told the store's device what is free."),
    ("idle_bytes", "kind", "Space that was free: given back, and written again without that."),
    ("blocks_appended", "kind", "Blocks appended to the log."),
    ("segments_collected", "", "Segments that collection emptied."),
    ("blocks_refused", "", "Blocks that could not be read."),
    ("writes_retried", "", "Writes that the device had refused."),
    ("direct_reclaims", "", "Times a thread that faulted had to evict."),
    ("fault_stall_seconds", "", "Time that threads waited in faults for want of RAM."),
    ("run_seconds", "", "Time that the program computed or waited in faults."),
    ("stall_seconds", "", "Time that threads waited for room."),
    ("compress_seconds", "", "CPU time of compression."),
];

/// The text, of those that run.
pub fn text(processes: &[SeenProcess]) -> String {
    let mut out = String::with_capacity(16 << 10);
    // Writing to a String cannot fail.
    let running = processes.iter().filter(|process| process.ended.is_none());
    let _ = write_all(&mut out, &running.collect::<Vec<_>>());
    out
}

fn write_all(out: &mut String, processes: &[&SeenProcess]) -> core::fmt::Result {
    let gauges = GAUGES.map(|family| (family, "gauge", ""));
    let counters = COUNTERS.map(|family| (family, "counter", "_total"));
    for ((family, label, help), kind, suffix) in gauges.into_iter().chain(counters) {
        head(out, family, kind, help)?;
        for process in processes {
            for told in TOLD.iter().filter(|told| told.metric.0 == family) {
                let labels = labels(process, label, told.metric.1);
                let stats = process.history.stats();
                let value = match (told.number.of(stats), told.ratio(stats)) {
                    // A process without a bound tells none.
                    (0, _) if family == "stall_bound_ratio" => continue,
                    (_, Some(ratio)) => ratio.to_string(),
                    (ns, None) if family.ends_with("_seconds") => (ns as f64 / 1e9).to_string(),
                    (value, None) => value.to_string(),
                };
                writeln!(out, "deepheap_{family}{suffix}{{{labels}}} {value}")?;
            }
        }
    }
    head(out, "managing", "gauge", "1 once the heap is managed, 0 before.")?;
    for process in processes {
        let (labels, stats) = (labels(process, "", ""), process.history.stats());
        writeln!(out, "deepheap_managing{{{labels}}} {}", stats.managing)?;
    }
    let help = "Part of all bytes written that went to the second tier.";
    head(out, "tier_mix_ratio", "gauge", help)?;
    for process in processes {
        if let Some(ppm) = process.history.stats().tier_mix_ppm() {
            let labels = labels(process, "", "");
            writeln!(out, "deepheap_tier_mix_ratio{{{labels}}} {}", ppm as f64 / 1e6)?;
        }
    }
    head(out, "fault_seconds", "histogram", "How long faults took.")?;
    let name = "deepheap_fault_seconds";
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

fn head(out: &mut String, family: &str, kind: &str, help: &str) -> core::fmt::Result {
    writeln!(out, "# TYPE deepheap_{family} {kind}")?;
    for unit in ["bytes", "seconds", "ratio"] {
        if family.ends_with(&format!("_{unit}")) {
            writeln!(out, "# UNIT deepheap_{family} {unit}")?;
        }
    }
    writeln!(out, "# HELP deepheap_{family} {help}")
}

/// `pid="7",name="redis"`, and one more unless it has no name.
fn labels(process: &SeenProcess, label: &str, value: &str) -> String {
    let name = process.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let more = if label.is_empty() { String::new() } else { format!(",{label}=\"{value}\"") };
    format!("pid=\"{}\",name=\"{name}\"{more}", process.pid)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use deepheap::internal::stats_page::StatsPage;
    use deepheap::number;

    use super::*;
    use crate::live::history::History;

    fn seen_process(pid: u32, name: &str) -> SeenProcess {
        let page = StatsPage::create().expect("page");
        page.set(number!(budget_bytes), 4096);
        page.set(number!(stall_share_now_ppm), 34_000);
        page.set(number!(wait_fork_ns), 21_000_000);
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
        SeenProcess::new(pid, name, history)
    }

    #[test]
    fn the_text_is_openmetrics() {
        let text = text(&[seen_process(7, "a \"b\" \\ c"), seen_process(8, "d")]);
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
            "deepheap_longest_wait_seconds{pid=\"8\",name=\"d\",for=\"fork\"} 0.021",
            "deepheap_tier_bytes{pid=\"8\",name=\"d\",kind=\"live\"} 5000",
            "deepheap_tier_device_bytes_total{pid=\"8\",name=\"d\",kind=\"write\"} 3000",
            "deepheap_tier_mix_ratio{pid=\"8\",name=\"d\"} 0.75",
            "deepheap_fault_seconds_bucket{pid=\"8\",name=\"d\",kind=\"stored\",le=\"4.095e-6\"} 1",
            "deepheap_fault_seconds_bucket{pid=\"8\",name=\"d\",kind=\"stored\",le=\"+Inf\"} 2",
            "deepheap_fault_seconds_sum{pid=\"8\",name=\"d\",kind=\"stored\"} 0.000073",
        ] {
            assert!(text.lines().any(|found| found == line), "'{line}' is not in:\n{text}");
        }
        for told in TOLD.iter().filter(|told| !told.metric.0.is_empty()) {
            let start = format!("deepheap_{}", told.metric.0);
            assert!(text.contains(&format!("# TYPE {start} ")), "{start} has no family");
        }
        for family in ["deepheap_stall_bound_ratio", "deepheap_tier_mix_ratio"] {
            assert!(!text.contains(&format!("{family}{{pid=\"7\"")), "who has none tells none");
        }
    }
}
