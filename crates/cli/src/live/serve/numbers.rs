//! Numbers: those of the page that `serve` shows, as JSON.
//!
//! Guarantees: names of processes and functions are escaped; numbers only as many digits as are
//! looked at.
//! Never: reads a process, but for the names of its code.
//! Threads: pure functions.

use deepheap::internal::stats_page::HeapMapCopy;
use deepheap::internal::stats_report::{better, longest_wait, peaks, share, waited_share};
use deepheap::stats::FaultKind;
use deepheap::stats_json;
use serde_json::{Value, json};

use crate::live::history::{History, Moment};
use crate::live::watch::SeenProcess;

/// Sites that are shown.
const SITES: usize = 12;

/// The processes, and everything about the one with this id.
pub fn data(processes: &mut [SeenProcess], pid: Option<u32>) -> String {
    let list: Vec<Value> = processes.iter().map(line).collect();
    let inside = processes.iter_mut().find(|process| Some(process.pid) == pid);
    json!({ "processes": list, "process": inside.map(whole) }).to_string()
}

fn line(process: &SeenProcess) -> Value {
    let newest = process.history.newest();
    json!({
        "pid": process.pid,
        "name": process.name,
        "used_bytes": process.history.ram().used(),
        "budget_bytes": process.history.ram().budget,
        "heap_bytes": process.history.heap_bytes(),
        "faults": round(newest.all_faults()),
        "stored": round(newest.faults[FaultKind::Stored as usize]),
        "cpus": round(newest.cpus),
        "waited": share(process.history.stats().stall_share_now_ppm),
        "has_ended": process.ended.is_some(),
        "command": process.history.command,
    })
}

fn whole(process: &mut SeenProcess) -> Value {
    let sites = process.hottest(SITES).into_iter();
    let sites: Vec<Value> =
        sites.map(|(share, site)| json!([share, site.function, site.file])).collect();
    let history = &process.history;
    let stats: Value = serde_json::from_str(&stats_json(history.stats())).unwrap_or_default();
    json!({
        "pid": process.pid,
        "name": process.name,
        "command": history.command,
        "over_ns": process.over_ns(),
        "stats": stats,
        "peaks": peaks(history.stats()),
        "waited": waited_share(history.stats()),
        "better": better(history.stats()),
        "longest_wait": longest_wait(history.stats()),
        "hit_rate": history.newest().hit_rate(),
        "cpu_seconds": round(history.sample().cpu_ns as f64 / 1e9),
        "device_years": history.years_of_device(),
        "device_years_without_tier": history.years_without_tier(),
        "series": series(history),
        "sites": sites,
        "map": history.map.as_ref().map(map),
    })
}

/// For each number one list, oldest first.
fn series(history: &History) -> Value {
    let of = |number: &dyn Fn(&Moment) -> f64| -> Vec<f64> {
        history.moments().map(|moment| round(number(moment))).collect()
    };
    let faults = |kind: FaultKind| of(&|moment| moment.faults[kind as usize]);
    let p99_us = |kind: FaultKind| of(&|moment| moment.took[kind as usize].p99_ns as f64 / 1e3);
    json!({
        "seconds": of(&|moment| moment.uptime_ns as f64 / 1e9),
        "zero": faults(FaultKind::Zero),
        "cached": faults(FaultKind::Cached),
        "stored": faults(FaultKind::Stored),
        "waited": faults(FaultKind::Waited),
        "cached_p99_us": p99_us(FaultKind::Cached),
        "stored_p99_us": p99_us(FaultKind::Stored),
        "read_bytes": of(&|moment| moment.read_bytes),
        "written_bytes": of(&|moment| moment.written_bytes),
        "tier_written_bytes": of(&|moment| moment.tier_written_bytes),
        "page_buffer_bytes": of(&|moment| moment.ram.in_ram as f64),
        "cache_bytes": of(&|moment| moment.ram.compressed as f64),
        "table_bytes": of(&|moment| moment.ram.tables as f64),
        "cpus": of(&|moment| moment.cpus),
        "waited_share": of(&|moment| moment.waited),
    })
}

/// The cells are a text: four hexadecimal digits each, for resident, cached, stored and nowhere, in
/// fifteenths.
fn map(map: &HeapMapCopy) -> Value {
    let mut cells = String::with_capacity(4 * map.cells.len());
    for cell in &map.cells {
        let counts = [cell.resident, cell.cached, cell.stored, cell.nowhere];
        let all: u32 = counts.iter().sum();
        for count in counts {
            // Even the smallest count is seen.
            let part = (count * 15).div_ceil(all.max(1));
            cells.extend(char::from_digit(part, 16));
        }
    }
    json!({
        "address": format!("{:#x}", map.address),
        "cell_pages": map.cell_pages,
        "pages": map.pages,
        "cells": cells,
    })
}

/// Three digits behind the point.
fn round(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use deepheap::internal::Survey;

    use super::*;

    #[test]
    fn cells_are_four_digits_and_what_is_there_is_seen() {
        let cells = vec![
            Survey { resident: 64, ..Survey::default() },
            Survey { resident: 1, cached: 32, stored: 31, nowhere: 0 },
            Survey::default(),
        ];
        let copy = HeapMapCopy { edition: 2, address: 4096, cell_pages: 64, pages: 192, cells };
        let map = map(&copy);
        assert_eq!(map["cells"], "f000188000000".replace("88000000", "8800000"));
        assert_eq!((&map["address"], &map["pages"]), (&json!("0x1000"), &json!(192)));
    }
}
