//! Page: the table and the plot of docs/measured/real-programs.md, between its markers.
//!
//! Guarantees: what stands outside of the markers stays as it is; a number in the table is a run's.
//! Never: measures.

use core::fmt::Write;
use std::collections::BTreeSet;
use std::path::Path;

use super::chart::{Chart, Row};
use super::contender::{Contender, Part};
use super::programs::Program;
use super::scratch;
use super::standing::{Speed, Standing};
use crate::papers::figure;
use crate::papers::runs::Record;
use deepheap_bench::failure::Failure;
use deepheap_bench::marked_page::{END, between};

/// The page's file, and the plot's.
pub const FILES: [&str; 2] = ["real-programs.md", "real-programs.svg"];
const BEGIN: &str = "<!-- measured: begin; written by `deepheap-papers real` -->";

/// What is known of one program.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Which.
    pub program: &'static Program,
    /// Alone.
    pub alone: Record,
    /// For each size, and each of `Contender::LIMITED`.
    pub limited: Vec<(Part, Vec<Record>)>,
}

/// A program with less than its peak.
struct Line {
    part: Part,
    limit_bytes: u64,
    deepheap: (Standing, String),
    swap: (Standing, &'static str),
    zram: Standing,
}

impl Line {
    fn speeds(&self) -> (Speed, Speed) {
        (Speed::of(self.deepheap.0, self.swap.0), Speed::of(self.zram, self.swap.0))
    }
}

impl Measured {
    /// Its peak alone: that of the first round, of which all sizes are parts.
    pub fn peak_bytes(&self) -> Option<u64> {
        Some(self.alone.rounds.first()?.numbers.get("peak_bytes")? as u64)
    }

    fn lines(&self) -> Vec<Line> {
        let Some(peak) = self.peak_bytes() else { return Vec::new() };
        let line = |(part, records): &(Part, Vec<Record>)| {
            let of = |who: Contender| {
                let at = Contender::LIMITED.into_iter().position(|it| it == who);
                at.and_then(|at| records.get(at))
            };
            let standing = |who| of(who).map_or(Standing::Unknown, Standing::of);
            let near = standing(Contender::Swap { page_cluster: 0 });
            let ahead = standing(Contender::Swap { page_cluster: 3 });
            let swap = near.better(ahead);
            let cluster = if swap == near { "0" } else { "3" };
            let ours = of(Contender::Deepheap);
            Line {
                part: *part,
                limit_bytes: part.of(peak),
                deepheap: (standing(Contender::Deepheap), ours.map_or_else(String::new, note)),
                swap: (swap, cluster),
                zram: standing(Contender::Zram),
            }
        };
        self.limited.iter().map(line).collect()
    }
}

/// What stands beside deepheap's time: why it gave none, and what it did not manage.
fn note(record: &Record) -> String {
    let mib = |name| record.median(name).map(|bytes| bytes / f64::from(1 << 20));
    let mut notes = Vec::new();
    if let Some(why) = &record.failed {
        notes.push(why.replace('|', "\\|").replace('\n', " "));
    }
    if let Some(unmanaged) = mib("unmanaged_bytes").filter(|&mib| mib >= 1.0) {
        notes.push(format!("{unmanaged:.0} MiB unmanaged"));
    } else if let (Some(_), Some(outside)) = (record.median("killed"), mib("outside_bytes")) {
        notes.push(format!("{outside:.0} MiB outside of the budget"));
    }
    if record.rounds.is_empty() || notes.is_empty() {
        return notes.concat();
    }
    format!(" ({})", notes.join(", "))
}

/// Table, summary and plot.
pub fn text(all: &[Measured]) -> Result<(String, Option<String>), Failure> {
    let mut text = measured(all);
    let plot = chart(all).svg()?;
    if all.iter().any(|one| !one.alone.rounds.is_empty()) {
        text.push('\n');
        if plot.is_some() {
            let _ = writeln!(text, "![Speed relative to swap]({})\n", FILES[1]);
        }
        text.push_str(&summary(all));
        text.push_str(&table(all));
    }
    let absent: Vec<String> = all
        .iter()
        .filter(|one| one.alone.rounds.is_empty())
        .map(|one| match (&one.alone.failed, scratch::missing(one.program)) {
            (Some(why), _) => format!("{} (failed: {why})", one.program.id),
            (_, Some(_)) => format!("{} (not installed: {})", one.program.id, one.program.packages),
            _ => one.program.id.into(),
        })
        .collect();
    if !absent.is_empty() {
        let _ = writeln!(text, "\nNot measured: {}.", absent.join(", "));
    }
    Ok((text, plot))
}

fn records(all: &[Measured]) -> impl Iterator<Item = &Record> {
    all.iter().flat_map(|one| {
        let limited = one.limited.iter().flat_map(|(_, records)| records);
        core::iter::once(&one.alone).chain(limited)
    })
}

/// When, where, by which command.
fn measured(all: &[Measured]) -> String {
    let rounds = || records(all).flat_map(|record| &record.rounds);
    let dates: BTreeSet<&str> = rounds().map(|round| round.date.as_str()).collect();
    let commands: BTreeSet<String> = rounds().map(|round| format!("`{}`", round.command)).collect();
    let machines: BTreeSet<String> = rounds().map(|round| round.machine.sentence()).collect();
    let (Some(first), Some(last)) = (dates.first(), dates.last()) else {
        return "Nothing has been measured yet.\n".into();
    };
    let dates = if first == last { (*last).to_string() } else { format!("{first} to {last}") };
    let most = records(all).map(|record| record.rounds.len()).max().unwrap_or(0);
    let rounds = if most == 1 { "one round".into() } else { format!("medians of {most} rounds") };
    format!(
        "Measured {dates}\nwith {}\non {}; {rounds}.\n",
        commands.into_iter().collect::<Vec<_>>().join(", "),
        machines.into_iter().collect::<Vec<_>>().join("; and on ")
    )
}

fn summary(all: &[Measured]) -> String {
    let mut text = String::from(
        "| memory | programs | deepheap : swap, geometric mean | faster than swap | slower \
         | zram : swap |\n|---|---|---|---|---|---|\n",
    );
    let mut parts: Vec<Part> = Vec::new();
    for (part, _) in all.iter().flat_map(|one| &one.limited) {
        if !parts.contains(part) {
            parts.push(*part);
        }
    }
    for part in parts {
        let lines = all.iter().flat_map(Measured::lines).filter(|line| line.part == part);
        let speeds: Vec<(Speed, Speed)> = lines.map(|line| line.speeds()).collect();
        let ours = || speeds.iter().map(|(ours, _)| *ours);
        let zram = speeds.iter().filter_map(|(_, zram)| zram.exactly());
        let at_least = |speed| matches!(speed, Speed::Exactly(x) | Speed::MoreThan(x) if x > 1.0);
        let at_most = |speed| matches!(speed, Speed::Exactly(x) | Speed::LessThan(x) if x < 1.0);
        let _ = writeln!(
            text,
            "| {part} | {} | {} | {} | {} | {} |",
            ours().filter(|&speed| speed != Speed::Unknown).count(),
            mean(ours().filter_map(Speed::exactly)),
            ours().filter(|&speed| at_least(speed)).count(),
            ours().filter(|&speed| at_most(speed)).count(),
            mean(zram)
        );
    }
    text.push_str("\nThe means are over those of which both ended in time.\n\n");
    text
}

/// The geometric mean, and of how many.
fn mean(values: impl Iterator<Item = f64>) -> String {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    if logs.is_empty() {
        return figure::UNKNOWN.into();
    }
    let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    format!("{mean:.2}x of {}", logs.len())
}

fn table(all: &[Measured]) -> String {
    let mut text = String::from(
        "| program | memory | alone | deepheap | swap (page-cluster) | zram | deepheap : swap | \
         zram : swap |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    for one in all {
        let peak = one.peak_bytes().map_or_else(|| figure::UNKNOWN.into(), mib);
        for (index, line) in one.lines().iter().enumerate() {
            let (name, alone) = match index {
                0 => (format!("{} ({peak})", one.program.id), Standing::of(&one.alone).shown()),
                _ => (String::new(), String::new()),
            };
            let (ours, zram) = line.speeds();
            let (standing, note) = &line.deepheap;
            let cluster = match line.swap.0 {
                Standing::Took(_) => format!(" ({})", line.swap.1),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "| {name} | {}: {} | {alone} | {}{note} | {}{cluster} | {} | {} | {} |",
                line.part,
                mib(line.limit_bytes),
                standing.shown(),
                line.swap.0.shown(),
                line.zram.shown(),
                ours.shown(),
                zram.shown()
            );
        }
    }
    text
}

fn chart(all: &[Measured]) -> Chart {
    let shown: Vec<&Measured> = all.iter().filter(|one| one.peak_bytes().is_some()).collect();
    let sizes = shown.first().map_or_else(Vec::new, |one| {
        one.limited.iter().map(|(part, _)| part.to_string()).collect()
    });
    let rows = shown.iter().map(|one| Row {
        name: one.program.id.into(),
        speeds: one.lines().iter().map(Line::speeds).collect(),
    });
    let machines = records(all).flat_map(|record| &record.rounds);
    let machines: BTreeSet<String> = machines.map(|round| round.machine.in_short()).collect();
    let terms = machines.into_iter().collect::<Vec<_>>().join(" or ");
    Chart { sizes, rows: rows.collect(), terms }
}

/// Puts a text between the markers of a page; a page that is not there yet is one of only these.
pub fn put(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::os(path.display(), &error);
    let page = match std::fs::read_to_string(path) {
        Ok(page) => page,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("{BEGIN}\n{END}\n"),
        Err(error) => return Err(failed(error)),
    };
    let new = between(&page, BEGIN, text).ok_or_else(|| {
        Failure::Failed(format!("{}: has no lines `{BEGIN}` and `{END}`", path.display()))
    })?;
    std::fs::write(path, new).map_err(failed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::programs;
    use super::*;
    use crate::papers::runs::Round;

    fn record(numbers: &serde_json::Value) -> Record {
        let round: Round = serde_json::from_value(json!({
            "date": "2026-11-23", "command": "deepheap-papers real", "machine": { "cpus": 2 },
            "limit_bytes": null, "numbers": numbers, "report": null }))
        .unwrap();
        Record { rounds: vec![round], ..Record::empty("x", &serde_json::Value::Null) }
    }

    fn example() -> Measured {
        let limited = [
            json!({ "killed": 1.0, "unmanaged_bytes": 104_857_600.0 }),
            json!({ "seconds": 9.0 }),
            json!({ "seconds": 6.0 }),
            json!({ "unfit": 1.0 }),
        ];
        let faster = [json!({ "seconds": 4.0 }), json!({ "seconds": 6.0 }), json!({ "late": 40 })];
        Measured {
            program: &programs::ALL[0],
            alone: record(&json!({ "seconds": 1.5, "peak_bytes": 209_715_200.0 })),
            limited: vec![
                (Part::USUAL[1], faster.iter().map(record).collect()),
                (Part::USUAL[2], limited.iter().map(record).collect()),
            ],
        }
    }

    #[test]
    fn a_table_tells_times_bounds_and_what_is_not_managed() {
        let (text, plot) = text(&[example()]).unwrap();
        let name = programs::ALL[0].id;
        for line in [
            &format!(
                "| {name} (200 MiB) | 1/2: 100 MiB | 1.50 s | 4 s | 6 s (0) | - | 1.50x | - |"
            ),
            "|  | 1/4: 50 MiB |  | killed (100 MiB unmanaged) | 6 s (3) | does not fit | - | - |",
            "| 1/2 | 1 | 1.50x of 1 | 1 | 0 | - |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(plot.is_some());
        let nothing = Measured { alone: Record::empty("x", &json!(null)), ..example() };
        assert!(super::text(&[nothing]).unwrap().0.contains("Not measured: "));
    }

    #[test]
    fn what_stands_outside_of_the_markers_stays() {
        let page = format!("# A\n{BEGIN}\nold\n{END}\n\n## B\n");
        assert_eq!(
            between(&page, BEGIN, "new\n"),
            Some(format!("# A\n{BEGIN}\nnew\n{END}\n\n## B\n"))
        );
        assert_eq!(between("# A\n", BEGIN, "new"), None);
    }
}
