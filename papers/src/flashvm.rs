//! FlashVM: the paging policies of the FlashVM paper, and HybridSwap's sequences, each switched off
//! once, beside swap.
//!
//! Guarantees: the contenders of a case take turns within each round; a number is the median of the
//! rounds, and a contender that fails says so in its row.
//! Never: writes anything of the page but what stands between its two marks.
//! Threads: one.

use std::path::PathBuf;

use clap::{Args, Parser};

use crate::papers::machine::Machine;
use deepheap_bench::failure::Failure;
use deepheap_bench::report::Report;
use deepheap_bench::workload::Workload;
use deepheap_bench::{marked_page, output, signals, supervisor};

const BEGIN: &str = "<!-- measured: begin; written by `deepheap-papers flashvm` -->";

/// What `deepheap-papers flashvm` takes.
#[derive(Clone, Debug, Args)]
pub struct FlashVm {
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
    /// Size of the data; RAM is half of it
    #[arg(long = "data", default_value = "512M", value_name = "SIZE")]
    data: String,
    /// RAM for the data
    #[arg(long = "ram", default_value = "256M", value_name = "SIZE")]
    ram: String,
    /// Where the store and the swap file lie
    #[arg(long, default_value = ".", value_name = "PATH")]
    dir: PathBuf,
    /// Writes what was measured into this page, too
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// What gives the memory: its name, and the options of `deepheap-bench run` for it.
type Contender = (&'static str, &'static str);

/// A case: its name, the options that say what is done, and who does it.
struct Case {
    name: &'static str,
    options: &'static str,
    contenders: &'static [Contender],
}

const DEEPHEAP: Contender = ("deepheap", "--on deepheap");
const SWAP: [Contender; 2] = [("swap, page-cluster 0", "--on swap --page-cluster 0"), SWAP_AHEAD];
const SWAP_AHEAD: Contender = ("swap, page-cluster 3", "--on swap --page-cluster 3");
const WITHOUT_STRIDES: Contender = ("deepheap, strides:no", "--on deepheap --conf strides:no");
const PLAIN: &[Contender] = &[DEEPHEAP, SWAP[0], SWAP[1]];
const STRIDES: &[Contender] = &[DEEPHEAP, WITHOUT_STRIDES, SWAP[0], SWAP[1]];
const WITHOUT_SEQUENCES: Contender =
    ("deepheap, sequences:no", "--on deepheap --conf sequences:no");
const SEQUENCES: &[Contender] = &[DEEPHEAP, WITHOUT_SEQUENCES, SWAP[0], SWAP[1]];
const SEGMENTS: &[Contender] = &[
    ("deepheap, segment:128K", "--on deepheap --conf segment:128K"),
    ("deepheap, segment:512K", "--on deepheap --conf segment:512K"),
    ("deepheap, segment:2M", "--on deepheap --conf segment:2M"),
    ("deepheap, segment:8M", "--on deepheap --conf segment:8M"),
];

const CASES: &[Case] = &[
    Case {
        name: "sequential-read",
        options: "--threads 1 --pattern sequential",
        contenders: PLAIN,
    },
    Case {
        name: "sequential-write",
        options: "--threads 1 --pattern sequential --write 100",
        contenders: PLAIN,
    },
    Case { name: "stride-3", options: "--threads 1 --pattern stride:3", contenders: STRIDES },
    Case { name: "stride-16", options: "--threads 1 --pattern stride:16", contenders: STRIDES },
    Case { name: "stride-64", options: "--threads 1 --pattern stride:64", contenders: STRIDES },
    Case { name: "random-read", options: "--threads 1 --pattern uniform", contenders: STRIDES },
    Case {
        name: "half-writes",
        options: "--threads 8 --pattern uniform --write 50",
        contenders: PLAIN,
    },
    Case {
        name: "segments",
        options: "--threads 1 --pattern sequential --write 100",
        contenders: SEGMENTS,
    },
    // A list of objects of a page in no order, walked again and again.
    Case { name: "sequences-list", options: "--threads 1 --pattern chase", contenders: SEQUENCES },
    Case {
        name: "sequences-list-written",
        options: "--threads 1 --pattern chase --write 100",
        contenders: SEQUENCES,
    },
    // Nothing comes again: what the search for it costs.
    Case {
        name: "sequences-uniform",
        options: "--threads 1 --pattern uniform",
        contenders: SEQUENCES,
    },
    Case {
        name: "sequences-zipf",
        options: "--threads 1 --pattern zipf:0.99",
        contenders: SEQUENCES,
    },
];

/// The options of `deepheap-bench run`, as they are read there.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    workload: Workload,
}

/// What the rounds of a contender told.
struct Row {
    case: &'static str,
    contender: &'static str,
    reports: Vec<Report>,
}

impl FlashVm {
    /// Runs the cases and prints the table.
    pub fn main(&self) -> Result<(), Failure> {
        signals::install();
        let is_chosen = |case: &&Case| {
            self.only.is_empty() || self.only.iter().any(|only| case.name.starts_with(only))
        };
        let cases: Vec<&Case> = CASES.iter().filter(is_chosen).collect();
        if cases.is_empty() {
            return Err(Failure::Refused("--only: no such case; --list shows their names".into()));
        }
        if self.list {
            return cases.iter().try_for_each(|case| output::line(case.name));
        }
        let mut rows = Vec::new();
        for case in cases {
            rows.extend(self.run(case)?);
        }
        let table = self.table(&rows);
        if let Some(page) = &self.page {
            marked_page::put(page, BEGIN, &table, "docs/papers/flashvm.md")?;
        }
        output::line(table)
    }

    fn run(&self, case: &Case) -> Result<Vec<Row>, Failure> {
        let mut rows: Vec<Row> = case
            .contenders
            .iter()
            .map(|(contender, _)| Row { case: case.name, contender, reports: Vec::new() })
            .collect();
        for round in 1..=self.rounds {
            for (row, (_, options)) in rows.iter_mut().zip(case.contenders) {
                eprint!("{} {} {round}/{}: ", case.name, row.contender, self.rounds);
                // What the run before left to write back is not this one's to wait for.
                // SAFETY: sync has no preconditions.
                unsafe { libc::sync() };
                signals::interrupted()?;
                match supervisor::run(&self.workload(case.options, options)?) {
                    Ok(report) => {
                        eprintln!("{:.1} k/s", report.ops_per_second / 1e3);
                        row.reports.push(report);
                    }
                    Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
                    Err(failure) => eprintln!("FAILED: {failure}"),
                }
            }
        }
        Ok(rows)
    }

    fn workload(&self, case: &str, contender: &str) -> Result<Workload, Failure> {
        let terms = format!("--data {} --ram {} --seconds {}", self.data, self.ram, self.seconds);
        let words = [case, contender, &terms].map(str::split_whitespace).into_iter().flatten();
        let words: Vec<&str> = ["run"].into_iter().chain(words).collect();
        let line = Line::try_parse_from(words);
        let line = line.map_err(|error| Failure::Refused(error.to_string()))?;
        Ok(Workload { dir: supervisor::folder(&self.dir)?, ..line.workload })
    }

    fn table(&self, rows: &[Row]) -> String {
        let machine = Machine::here(&self.dir).sentence();
        let mut text = format!(
            "Measured with\n`deepheap-papers flashvm --data {} --ram {} --rounds {} --seconds {}`\n\
             on {machine}; medians.\n\n\
             | case | contender | operations | : the best swap | p99 | read | written |\n\
             |---|---|---|---|---|---|---|\n",
            self.data, self.ram, self.rounds, self.seconds
        );
        for row in rows {
            let Row { case, contender, reports } = row;
            let Some(speed) = median(reports, |report| report.ops_per_second) else {
                text += &format!("| {case} | {contender} | failed | | | | |\n");
                continue;
            };
            let swaps = rows.iter().filter(|it| it.case == *case && it.contender.contains("swap"));
            let swap = swaps.filter_map(|it| median(&it.reports, |report| report.ops_per_second));
            let beside = match swap.reduce(f64::max) {
                Some(swap) if !contender.contains("swap") => format!("{:.2}x", speed / swap),
                _ => String::new(),
            };
            let p99 = median(reports, |report| report.latency_ns.p99 as f64).unwrap_or(0.0);
            let rate = |of: fn(&deepheap_bench::report::Transfer) -> u64| {
                let of = |report: &Report| {
                    let device = report.device.as_ref();
                    device.map_or(0.0, |device| of(device) as f64) / report.measured_seconds
                };
                median(reports, of).unwrap_or(0.0) / 1e6
            };
            text += &format!(
                "| {case} | {contender} | {:.1} k/s | {beside} | {:.0} us | {:.0} MB/s | \
                 {:.0} MB/s |\n",
                speed / 1e3,
                p99 / 1e3,
                rate(|device| device.read_bytes),
                rate(|device| device.written_bytes),
            );
        }
        text
    }
}

fn median(reports: &[Report], of: impl Fn(&Report) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = reports.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepheap_bench::marked_page::END;

    #[test]
    fn all_cases_can_be_run_and_the_page_keeps_what_is_around_the_table() {
        let terms = Line::parse_from(["x", "--on", "swap"]).workload;
        for case in CASES {
            for (_, options) in case.contenders {
                let words = [case.options, options].map(str::split_whitespace);
                let words = ["x"].into_iter().chain(words.into_iter().flatten());
                let workload = Line::parse_from(words).workload;
                assert!(workload.check().is_ok(), "{}", case.name);
                assert_eq!(workload.seed, terms.seed);
            }
        }
        let page = format!("one\n{BEGIN}\nold\n{END}\ntwo\n");
        let new = marked_page::between(&page, BEGIN, "| new |\n").expect("marks");
        assert_eq!(new, format!("one\n{BEGIN}\n| new |\n{END}\ntwo\n"));
        assert_eq!(marked_page::between("no marks", BEGIN, ""), None);
    }
}
