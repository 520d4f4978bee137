//! Table: all cases of one of the tables of docs/measured/benchmarks.md, run one after the other,
//! and its markdown.
//!
//! Guarantees: the contenders of a case take turns within each round (A B C A B C ...), so that a
//! device that changes from hour to hour changes for all; the numbers are medians over the rounds.
//! Never: stops for a contender that fails; its rows say so.
//! Threads: one.

mod case;
mod contender;
mod journal;
mod judged;
mod object_case;
mod program;
mod redis;

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::sizes::parse_bytes;
use crate::{output, signals, supervisor};
use case::Case;
use journal::Journal;

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cases {
    /// Programs that fit the RAM, and data in pages of 4 KiB.
    Pages,
    /// Data in objects.
    Objects,
}

/// What `deepheap-bench table` and `deepheap-bench objects` take.
#[derive(Clone, Debug, Args)]
pub struct Table {
    /// A smaller and shorter table, to see that everything works: 1 GiB, 64 MiB of RAM, one round
    #[arg(long)]
    quick: bool,
    /// Only cases whose name starts with this (may be repeated); --list shows the names
    #[arg(long, alias = "case", value_name = "CASE")]
    only: Vec<String>,
    /// Shows the names of the cases and ends
    #[arg(long)]
    list: bool,
    /// JSON lines of every run; runs that it has already, with the same settings, are not repeated
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where the store, the swap file and the mapped file lie
    #[arg(long, default_value = ".", value_name = "PATH")]
    dir: PathBuf,
    /// The `deepheap` command [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    deepheap: Option<PathBuf>,
    /// Seconds each run measures [default: 10, quick: 3]
    #[arg(long)]
    seconds: Option<f64>,
    /// Rounds, for the median [default: 3, quick: 1; Redis: 5, quick: 2]
    #[arg(long, alias = "runs", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Size of the data [default: 4G, quick: 1G]
    #[arg(long = "data", value_parser = parse_bytes, value_name = "SIZE")]
    data_bytes: Option<u64>,
    /// RAM for the data [default: 256M, quick: 64M]
    #[arg(long = "ram", value_parser = parse_bytes, value_name = "SIZE")]
    ram_bytes: Option<u64>,
}

/// The settings all cases share.
#[derive(Clone, Debug, PartialEq)]
struct Settings {
    data_bytes: u64,
    ram_bytes: u64,
    seconds: f64,
    rounds: Option<u32>,
    quick: bool,
    dir: PathBuf,
    deepheap: PathBuf,
}

impl Table {
    /// Runs the cases and prints the table.
    pub fn main(&self, which: Cases) -> Result<(), Failure> {
        signals::install();
        let settings = self.settings()?;
        let all = match which {
            Cases::Pages => case::all(&settings),
            Cases::Objects => object_case::all(&settings),
        };
        let cases: Vec<Case> = all
            .into_iter()
            .filter(|case| {
                self.only.is_empty() || self.only.iter().any(|o| case.name.starts_with(o))
            })
            .collect();
        if cases.is_empty() {
            return Err(Failure::Refused("--only: no such case; --list shows their names".into()));
        }
        if self.list {
            return cases.iter().try_for_each(|case| output::line(&case.name));
        }
        let mut journal = Journal::open(self.out.as_deref(), &settings)?;
        let mut rows = Vec::new();
        for case in &cases {
            let rounds = run_case(case, &settings, &mut journal)?;
            rows.extend(judged::judge(case, &rounds));
        }
        let pieces = match which {
            Cases::Pages => " in 4 KiB objects",
            Cases::Objects => object_case::PIECES,
        };
        output::line(judged::markdown(&settings, pieces, &rows))
    }

    fn settings(&self) -> Result<Settings, Failure> {
        let (data, ram, seconds) =
            if self.quick { (1 << 30, 64 << 20, 3.0) } else { (4 << 30, 256 << 20, 10.0) };
        let beside = || {
            let own = std::env::current_exe().map_err(|error| Failure::os("own path", &error))?;
            Ok(own.with_file_name("deepheap"))
        };
        Ok(Settings {
            data_bytes: self.data_bytes.unwrap_or(data),
            ram_bytes: self.ram_bytes.unwrap_or(ram),
            seconds: self.seconds.unwrap_or(seconds),
            rounds: self.rounds,
            quick: self.quick,
            dir: supervisor::folder(&self.dir)?,
            deepheap: self.deepheap.clone().map_or_else(beside, Ok)?,
        })
    }
}

/// The results of a case: for each contender, those of the rounds that succeeded.
type Rounds = Vec<(String, Vec<Value>)>;

fn run_case(case: &Case, settings: &Settings, journal: &mut Journal) -> Result<Rounds, Failure> {
    let mut results: Rounds =
        case.contenders.iter().map(|contender| (contender.name(), Vec::new())).collect();
    let names: Vec<String> = results.iter().map(|(name, _)| name.clone()).collect();
    for round in 0..case.rounds {
        // A round that was cut short is run again as a whole: its runs belong to one time.
        let known = journal.round(&case.name, round, &names);
        for (index, contender) in case.contenders.iter().enumerate() {
            let (name, values) = &mut results[index];
            if let Some(known) = &known {
                values.push(known[index].clone());
                continue;
            }
            eprint!("{} round {}/{} {name}: ", case.name, round + 1, case.rounds);
            // What the run before left to write back is not this one's to wait for.
            // SAFETY: sync has no preconditions.
            unsafe { libc::sync() };
            signals::interrupted()?;
            match contender.run(settings) {
                Ok(value) => {
                    eprintln!("{}", contender.summary(&value));
                    journal.write(&case.name, name, round, &value)?;
                    values.push(value);
                }
                Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
                Err(failure) => eprintln!("FAILED: {failure}"),
            }
        }
    }
    Ok(results)
}
