//! Page: the tables and the plot of docs/measured/real-programs.md, between its markers.
//!
//! Guarantees: what stands outside of the markers stays as it is; a number in the table is a run's.
//! Never: measures.

use core::fmt::Write;
use std::collections::BTreeSet;
use std::path::Path;

use super::behind;
use super::chart::{Chart, Row};
use super::contender::Part;
use super::measured::{Line, Measured};
use super::scratch;
use super::standing::{Speed, Standing};
use crate::papers::figure;
use crate::papers::numbers::median;
use crate::papers::runs::Record;
use deepheap_bench::failure::Failure;
use deepheap_bench::marked_page::{END, between};

/// The page's file, and the plot's.
pub const FILES: [&str; 2] = ["real-programs.md", "real-programs.svg"];
const BEGIN: &str = "<!-- measured: begin; written by `deepheap-papers real` -->";

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

/// Tables, summaries and plot, of programs of both sizes.
pub fn text(large: &[Measured], small: &[Measured]) -> Result<(String, Option<String>), Failure> {
    let mut text = measured(records(large).chain(records(small)));
    let plot = chart(large).svg()?;
    if plot.is_some() {
        let _ = writeln!(text, "\n![Speed relative to swap]({})", FILES[1]);
    }
    for (title, all) in [("About 1 GiB", large), ("About 100 MiB", small)] {
        if all.iter().any(|one| !one.alone.rounds.is_empty()) {
            let _ = write!(text, "\n## {title}\n\n{}\n{}", summary(all), table(all));
            text.push_str(&behind::text(all));
            text.push_str(&absent(all));
        }
    }
    Ok((text, plot))
}

/// Which programs have no row, and why.
fn absent(all: &[Measured]) -> String {
    let absent: Vec<String> = all
        .iter()
        .filter(|one| one.alone.rounds.is_empty())
        .map(|one| match (&one.alone.failed, scratch::missing(one.program)) {
            (Some(why), _) => format!("{} (failed: {why})", one.program.id),
            (_, Some(_)) => format!("{} (not installed: {})", one.program.id, one.program.packages),
            _ => one.program.id.into(),
        })
        .collect();
    match absent.as_slice() {
        [] => String::new(),
        absent => format!("\nNot measured: {}.\n", absent.join(", ")),
    }
}

fn records(all: &[Measured]) -> impl Iterator<Item = &Record> {
    all.iter().flat_map(|one| {
        let limited = one.limited.iter().flat_map(|(_, records)| records);
        core::iter::once(&one.alone).chain(limited)
    })
}

/// When, where, by which command.
fn measured<'m>(records: impl Iterator<Item = &'m Record>) -> String {
    let records: Vec<&Record> = records.collect();
    let rounds = || records.iter().flat_map(|record| &record.rounds);
    let dates: BTreeSet<&str> = rounds().map(|round| round.date.as_str()).collect();
    let commands: BTreeSet<String> =
        rounds().map(|round| format!("`{}`", without_choice(&round.command))).collect();
    let machines: BTreeSet<String> = rounds().map(|round| round.machine.sentence()).collect();
    let (Some(first), Some(last)) = (dates.first(), dates.last()) else {
        return "Nothing has been measured yet.\n".into();
    };
    let dates = if first == last { (*last).to_string() } else { format!("{first} to {last}") };
    let most = records.iter().map(|record| record.rounds.len()).max().unwrap_or(0);
    let rounds = if most == 1 { "one round".into() } else { format!("medians of {most} rounds") };
    format!(
        "Measured {dates}\nwith {}\non {}; {rounds}.\n",
        commands.into_iter().collect::<Vec<_>>().join(", "),
        machines.into_iter().collect::<Vec<_>>().join("; and on ")
    )
}

/// A command without what only says which rows were measured, and where files lie: a page that was
/// measured program by program has one line of commands, not dozens.
fn without_choice(command: &str) -> String {
    const WITH_VALUE: [&str; 7] =
        ["--programs", "--sizes", "--contenders", "--runs", "--out", "--dir", "--deepheap"];
    let mut words = command.split(' ');
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if WITH_VALUE.contains(&word) {
            words.next();
        } else if word != "--again" {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// What the rows come to, for each size.
pub fn summary(all: &[Measured]) -> String {
    let mut text = String::from(
        "| memory | times slower than alone: geometric mean | median | slowest \
         | deepheap : swap, geometric mean | faster than swap | slower | zram : swap |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let mut parts: Vec<Part> = Vec::new();
    for (part, _) in all.iter().flat_map(|one| &one.limited) {
        if !parts.contains(part) {
            parts.push(*part);
        }
    }
    for part in parts {
        let lines: Vec<Line<'_>> =
            all.iter().flat_map(Measured::lines).filter(|line| line.part == part).collect();
        let ours = || lines.iter().map(Line::beside_swap);
        let zram = lines.iter().filter_map(|line| line.speeds().1.exactly());
        let at_least = |speed| matches!(speed, Speed::Exactly(x) | Speed::MoreThan(x) if x > 1.0);
        let at_most = |speed| matches!(speed, Speed::Exactly(x) | Speed::LessThan(x) if x < 1.0);
        let _ = writeln!(
            text,
            "| {part} | {} | {} | {} | {} | {} |",
            times_slower(&lines),
            mean(ours().filter_map(Speed::exactly)),
            ours().filter(|&speed| at_least(speed)).count(),
            ours().filter(|&speed| at_most(speed)).count(),
            mean(zram)
        );
    }
    text.push_str(
        "\nA run that was ended because it took too long counts as if it had ended then in the \
         times slower than alone, and not at all in the means beside swap.\n",
    );
    text
}

/// How many times slower than alone: the geometric mean, the median and the slowest.
fn times_slower(lines: &[Line<'_>]) -> String {
    let mut rows: Vec<(f64, Speed, &str)> = lines
        .iter()
        .filter_map(|line| Some((line.slower().bound()?, line.slower(), line.program.id)))
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some((_, slowest, program)) = rows.last() else {
        return [figure::UNKNOWN; 3].join(" | ");
    };
    let all: Vec<f64> = rows.iter().map(|row| row.0).collect();
    let slowest = format!("{} ({program})", slowest.shown());
    let median = median(all.clone()).map_or_else(String::new, |times| format!("{times:.2}x"));
    [mean(all.into_iter()), median, slowest].join(" | ")
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
        "| program | memory | alone | deepheap | times slower | swap, page-cluster 0 | 3 | zram \
         | deepheap : swap |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    for one in all {
        let peak = one.peak_bytes().map_or_else(|| figure::UNKNOWN.into(), mib);
        for (index, line) in one.lines().iter().enumerate() {
            let (name, alone) = match index {
                0 => (format!("{} ({peak})", one.program.id), line.alone.shown()),
                _ => (String::new(), String::new()),
            };
            let [near, ahead] = line.swaps.map(Standing::shown);
            let _ = writeln!(
                text,
                "| {name} | {}: {} | {alone} | {}{} | {} | {near} | {ahead} | {} | {} |",
                line.part,
                mib(line.limit_bytes),
                line.deepheap().shown(),
                line.ours.map_or_else(String::new, note),
                line.slower().shown(),
                line.zram.shown(),
                line.beside_swap().shown(),
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

    #[test]
    fn commands_that_differ_only_in_the_rows_they_measure_are_one() {
        let one = "deepheap-papers real --rounds 1 --programs lua --sizes 2/3 --again";
        let other = "deepheap-papers real --rounds 1 --programs tcl --dir /mnt --contenders zram";
        assert_eq!(without_choice(one), "deepheap-papers real --rounds 1");
        assert_eq!(without_choice(other), without_choice(one));
        let small = "deepheap-papers real --small --rounds 1";
        assert_eq!(without_choice(small), small);
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
            alone: Record::example(&json!({ "seconds": 1.5, "peak_bytes": 209_715_200.0 })),
            limited: vec![
                (Part::USUAL[1], faster.iter().map(Record::example).collect()),
                (Part::USUAL[2], limited.iter().map(Record::example).collect()),
            ],
        }
    }

    #[test]
    fn a_table_tells_times_bounds_and_what_is_not_managed() {
        let (text, plot) = text(&[example()], &[]).unwrap();
        let name = programs::ALL[0].id;
        for line in [
            &format!(
                "| {name} (200 MiB) | 1/2: 100 MiB | 1.50 s | 4 s | 2.67x | 6 s | > 40 s | - \
                 | 1.50x |"
            ),
            "|  | 1/4: 50 MiB |  | killed (100 MiB unmanaged) | - | 9 s | 6 s | does not fit | - |",
            &format!("| 1/2 | 2.67x of 1 | 2.67x | 2.67x ({name}) | 1.50x of 1 | 1 | 0 | - |"),
            "| 1/4 | - | - | - | - | 0 | 0 | - |",
            "## About 1 GiB",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("100 MiB\n"), "nothing small was measured: {text}");
        assert!(plot.is_some());
        let nothing = Measured { alone: Record::empty("x", &json!(null)), ..example() };
        let text = super::text(&[example(), nothing], &[]).unwrap().0;
        assert!(text.contains("Not measured: "), "{text}");
    }

    #[test]
    fn a_bound_counts_in_how_many_times_slower() {
        let with = |seconds: f64, ours| Measured {
            alone: Record::example(&json!({ "seconds": seconds, "peak_bytes": 1e8 })),
            limited: vec![(Part::USUAL[0], vec![Record::example(&ours)])],
            ..example()
        };
        let late = with(2.0, json!({ "late": 40.0 }));
        let all = [with(1.0, json!({ "seconds": 5.0 })), late, with(1.0, json!({ "killed": 1 }))];
        let name = programs::ALL[0].id;
        let row = format!("| 2/3 | 10.00x of 2 | 12.50x | > 20.0x ({name}) | - | 0 | 0 | - |");
        assert!(summary(&all).contains(&row), "{}", summary(&all));
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
