//! FlashMap: what maps are for, measured on them and on the kernel's mapping of the same file, with
//! the same RAM, beside what the device can do.
//!
//! Guarantees: the contenders of a case take turns within each round. A number is the median of the
//! rounds, and a ratio the median of the rounds' ratios. A contender that fails says so in its row.
//! Never: writes anything of the page but what stands between its two marks.
//! Threads: one; the loads run in processes of their own.

use std::path::PathBuf;

use clap::Args;

use crate::papers::machine::{Machine, today};
use deepheap_bench::failure::Failure;
use deepheap_bench::ledger::Ledger;
use deepheap_bench::maps::{Mapper, MapsReport, Scratch, make_file, run_on};
use deepheap_bench::sizes::parse_bytes;
use deepheap_bench::{marked_page, output, signals, supervisor};

const BEGIN: &str = "<!-- measured: begin; written by `deepheap-papers flashmap` -->";
const PAGE: f64 = 4096.0;

/// What `deepheap-papers flashmap` takes.
#[derive(Clone, Debug, Args)]
pub struct FlashMap {
    /// Only cases whose name starts with this (may be repeated); --list shows the names
    #[arg(long, value_name = "CASE")]
    only: Vec<String>,
    /// Shows the names of the cases and ends
    #[arg(long)]
    list: bool,
    /// Rounds, for the median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Seconds each run measures
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Size of the file
    #[arg(long, value_parser = parse_bytes, default_value = "4G", value_name = "SIZE")]
    data: u64,
    /// RAM of the map, and of the memory cgroup of the kernel's mapping
    #[arg(long, value_parser = parse_bytes, default_value = "256M", value_name = "SIZE")]
    ram: u64,
    /// Where the files lie
    #[arg(long, default_value = ".", value_name = "PATH")]
    dir: PathBuf,
    /// Writes what was measured into this page, too
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// What the contenders of a case are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Operations a second.
    Speed,
    /// The median time of an operation.
    Time,
}

/// A case: its name, the options of `deepheap-bench maps` that say what is done, and who does it.
struct Case {
    name: &'static str,
    options: &'static str,
    contenders: &'static [Mapper],
    by: By,
    /// The part of the RAM that the file is; otherwise it is as long as asked.
    part_of_ram: Option<u64>,
}

const READS: &[Mapper] = &[Mapper::Map, Mapper::Mmap, Mapper::Device];
const WRITES: &[Mapper] = &[Mapper::Map, Mapper::Mmap];
const RECORDS: &[Mapper] = &[Mapper::Log, Mapper::Map, Mapper::Mmap];

const fn case(name: &'static str, options: &'static str, contenders: &'static [Mapper]) -> Case {
    Case { name, options, contenders, by: By::Speed, part_of_ram: None }
}

const CASES: &[Case] = &[
    case("reads-1", "--threads 1", READS),
    case("reads-8", "--threads 8", READS),
    case("reads-32", "--threads 32", READS),
    case("reads-4x8", "--threads 8 --processes 4", WRITES),
    case("half-writes-1", "--threads 1 --write 50", WRITES),
    case("half-writes-8", "--threads 8 --write 50", WRITES),
    case("half-writes-32", "--threads 32 --write 50", WRITES),
    case("records-8", "--threads 8 --write 50 --record 128", RECORDS),
    case("gather", "--load gather", &[Mapper::Map, Mapper::Mmap, Mapper::MmapPlain]),
    case("scan", "--load scan", &[Mapper::Map, Mapper::Log, Mapper::MmapPlain, Mapper::Device]),
    Case { by: By::Time, ..case("commit", "--commit 1000 --record 128", RECORDS) },
    Case { by: By::Time, part_of_ram: Some(4), ..case("minor", "--load minor", WRITES) },
];

/// What the rounds of a contender told; none: that one failed.
struct Row {
    case: &'static Case,
    on: Mapper,
    rounds: Vec<Option<MapsReport>>,
}

/// The files that are mapped, made when they are needed first.
struct Files {
    plain: Scratch,
    log: Scratch,
    data: u64,
}

impl Files {
    fn of(&self, on: Mapper) -> Result<&PathBuf, Failure> {
        let path = if on == Mapper::Log { &self.log.0 } else { &self.plain.0 };
        if !path.exists() {
            make_file(path, on, self.data)?;
        }
        Ok(path)
    }
}

impl FlashMap {
    /// Runs the cases and prints the table.
    pub fn main(&self) -> Result<(), Failure> {
        signals::install();
        let is_chosen = |case: &&'static Case| {
            self.only.is_empty() || self.only.iter().any(|only| case.name.starts_with(only))
        };
        let cases: Vec<&Case> = CASES.iter().filter(is_chosen).collect();
        if cases.is_empty() {
            return Err(Failure::Refused("--only: no such case; --list shows their names".into()));
        }
        if self.list {
            return cases.iter().try_for_each(|case| output::line(case.name));
        }
        let folder = supervisor::folder(&self.dir)?;
        let files = Files {
            plain: Scratch(folder.join(Ledger::name("map"))),
            log: Scratch(folder.join(Ledger::name("maplog"))),
            data: self.data,
        };
        let mut rows = Vec::new();
        for case in cases {
            rows.extend(self.run(case, &files)?);
        }
        let table = self.table(&rows);
        if let Some(page) = &self.page {
            marked_page::put(page, BEGIN, &table, "docs/papers/flashmap.md")?;
        }
        output::line(table)
    }

    fn run(&self, case: &'static Case, files: &Files) -> Result<Vec<Row>, Failure> {
        let row = |&on: &Mapper| Row { case, on, rounds: Vec::new() };
        let mut rows: Vec<Row> = case.contenders.iter().map(row).collect();
        let data = case.part_of_ram.map_or(self.data, |part| self.ram / part);
        let terms = format!("{} --data {data} --seconds {}", case.options, self.seconds);
        let words: Vec<String> = terms.split_whitespace().map(str::to_owned).collect();
        for round in 1..=self.rounds {
            for row in &mut rows {
                eprint!("{} {} {round}/{}: ", case.name, name_of(row.on), self.rounds);
                let file = files.of(row.on)?;
                // What the run before left to write back is not this one's to wait for.
                // SAFETY: sync has no preconditions.
                unsafe { libc::sync() };
                signals::interrupted()?;
                let told = run_on(file, row.on, self.ram, &words);
                match &told {
                    Ok(report) => eprintln!("{}", rate_of(report.ops_per_second)),
                    Err(failure) => eprintln!("FAILED: {failure}"),
                }
                signals::interrupted()?;
                row.rounds.push(told.ok());
            }
        }
        Ok(rows)
    }

    fn table(&self, rows: &[Row]) -> String {
        let machine = Machine::here(&self.dir).sentence();
        let mut text = format!(
            "Measured {} with\n`deepheap-papers flashmap --data {} --ram {} --rounds {} --seconds \
             {}`\non {machine}; medians.\n\n\
             | case | on | operations | median | p99 | written for each | against mmap |\n\
             |---|---|---|---|---|---|---|\n",
            today(),
            self.data,
            self.ram,
            self.rounds,
            self.seconds
        );
        for row in rows {
            let name = row.case.name;
            let Some(speed) = row.median(|report| report.ops_per_second) else {
                text += &format!("| {name} | {} | failed | | | | |\n", name_of(row.on));
                continue;
            };
            let speed = match row.case.options.contains("scan") {
                true => format!("{:.0} MB/s", speed * PAGE / 1e6),
                false => rate_of(speed),
            };
            let time = |of: fn(&MapsReport) -> u64| {
                time_of(row.median(|report| of(report) as f64).unwrap_or(0.0))
            };
            let written = row.median(|report| {
                let bytes = report.device_bytes_written.unwrap_or(0) as f64;
                bytes / (report.ops_per_second * report.measured_seconds)
            });
            let has_written = row.case.options.contains("--write") || row.case.by == By::Time;
            let written = written.filter(|bytes| has_written && *bytes >= 1.0);
            text += &format!(
                "| {name} | {} | {speed} | {} | {} | {} | {} |\n",
                name_of(row.on),
                time(|report| report.p50_ns),
                time(|report| report.p99_ns),
                written.map_or(String::new(), |bytes| format!("{bytes:.0} B")),
                row.beside_mmap(rows),
            );
        }
        text
    }
}

impl Row {
    fn median(&self, of: impl Fn(&MapsReport) -> f64) -> Option<f64> {
        median(self.rounds.iter().flatten().map(of).collect())
    }

    /// How many times as good as the best kernel's mapping of the same round: the median, and the
    /// worst and best round.
    fn beside_mmap(&self, rows: &[Row]) -> String {
        if matches!(self.on, Mapper::Mmap | Mapper::MmapPlain) {
            return String::new();
        }
        let goodness = |report: &MapsReport| match self.case.by {
            By::Speed => report.ops_per_second,
            By::Time => 1.0 / (report.p50_ns as f64).max(1.0),
        };
        let is_rival = |row: &&Row| {
            row.case.name == self.case.name && matches!(row.on, Mapper::Mmap | Mapper::MmapPlain)
        };
        let ratio = |round: usize| {
            let rivals = rows.iter().filter(is_rival);
            let rivals = rivals.filter_map(|row| row.rounds.get(round)?.as_ref().map(goodness));
            Some(goodness(self.rounds[round].as_ref()?) / rivals.reduce(f64::max)?)
        };
        let mut ratios: Vec<f64> = (0..self.rounds.len()).filter_map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        match (median(ratios.clone()), &ratios[..]) {
            (Some(middle), [least, .., most]) => {
                format!("{middle:.2}x ({least:.2} to {most:.2})")
            }
            (Some(middle), _) => format!("{middle:.2}x"),
            (None, _) => String::new(),
        }
    }
}

fn name_of(on: Mapper) -> &'static str {
    match on {
        Mapper::Map => "map",
        Mapper::Log => "map with a log",
        Mapper::Mmap => "mmap, random",
        Mapper::MmapPlain => "mmap",
        Mapper::Device => "device",
    }
}

fn rate_of(per_second: f64) -> String {
    match per_second {
        large if large >= 1000.0 => format!("{:.1} k/s", large / 1e3),
        small => format!("{small:.1} /s"),
    }
}

fn time_of(ns: f64) -> String {
    match ns {
        large if large >= 1e6 => format!("{:.1} ms", large / 1e6),
        middle if middle >= 1e4 => format!("{:.0} us", middle / 1e3),
        small => format!("{:.2} us", small / 1e3),
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use deepheap_bench::marked_page::END;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        maps: deepheap_bench::maps::Maps,
    }

    fn told(ops_per_second: f64, p50_ns: u64) -> Option<MapsReport> {
        let mut report: MapsReport = serde_json::from_str(
            r#"{"on":"map","load":"touch","data_bytes":1,"ram_bytes":1,"processes":1,"threads":1,
                "write_percent":0,"seed":1,"ops_per_second":1.0,"p50_ns":1,"p99_ns":1,
                "record_bytes":8,"commit":null,"measured_seconds":1.0,
                "device_bytes_written":null}"#,
        )
        .expect("a report");
        (report.ops_per_second, report.p50_ns) = (ops_per_second, p50_ns);
        Some(report)
    }

    #[test]
    fn all_cases_can_be_run_and_the_page_keeps_what_is_around_the_table() {
        for case in CASES {
            let words = ["x"].into_iter().chain(case.options.split_whitespace());
            let maps = Line::parse_from(words).maps;
            assert!(
                maps.load == deepheap_bench::maps::Load::Touch || maps.processes == 1,
                "{}",
                case.name
            );
            assert!(
                case.contenders.iter().any(|on| matches!(on, Mapper::Mmap | Mapper::MmapPlain))
            );
        }
        let page = format!("one\n{BEGIN}\nold\n{END}\ntwo\n");
        let new = marked_page::between(&page, BEGIN, "| new |\n").expect("marks");
        assert_eq!(new, format!("one\n{BEGIN}\n| new |\n{END}\ntwo\n"));
        assert_eq!(marked_page::between("no marks", BEGIN, ""), None);
    }

    #[test]
    fn rounds_are_compared_with_the_best_mapping_of_the_same_round() {
        for (by, expected) in
            [(By::Speed, "2.00x (0.50 to 4.00)"), (By::Time, "2.00x (1.00 to 9.00)")]
        {
            let case: &Case = Box::leak(Box::new(Case { by, ..case("one", "", &[]) }));
            let row = |on, rounds: [Option<MapsReport>; 3]| Row { case, on, rounds: rounds.into() };
            let rows = [
                row(Mapper::Map, [told(4.0, 2), told(1.0, 1), told(8.0, 4)]),
                row(Mapper::Mmap, [told(1.0, 4), told(2.0, 9), told(2.0, 4)]),
                row(Mapper::MmapPlain, [told(2.0, 9), None, told(1.0, 8)]),
            ];
            assert_eq!(rows[0].beside_mmap(&rows), expected);
            assert_eq!(rows[1].beside_mmap(&rows), "");
        }
    }
}
