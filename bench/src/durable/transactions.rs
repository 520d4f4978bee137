//! Transactions: what TPC-B does, on records of 128 bytes, made durable one by one or by groups, on
//! a map with a log, a durable heap, the kernel's mapping, LMDB, redb and SQLite (FlashMap, figure
//! 11).
//!
//! A transaction changes the record of an account, of a teller and of a branch, each after it was
//! read and compared, and writes one of the history. There are 100,000 accounts to a branch, and
//! ten tellers.
//!
//! Guarantees: a wrong record ends it with status 1. What it makes is taken back.
//! Threads: one, beside those of the contenders themselves.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use deepheap_load::histogram::Histogram;
use deepheap_load::random::Random;
use serde::{Deserialize, Serialize};

use super::contender::{Contender, Kind, Shape};
use super::create::create;
use super::{is_record, record, run_alone};
use crate::failure::Failure;
use crate::sizes::parse_bytes;
use crate::{output, signals};

/// Bytes of a record.
const BYTES: usize = 128;
const ACCOUNTS_PER_BRANCH: u64 = 100_000;
const TELLERS_PER_BRANCH: u64 = 10;

/// Settings of the table.
#[derive(Args, Clone, Debug)]
pub struct Transactions {
    /// Bytes of all accounts together
    #[arg(long, value_parser = parse_bytes, default_value = "128M", value_name = "SIZE")]
    data: u64,
    /// RAM for the records
    #[arg(long, value_parser = parse_bytes, default_value = "32M", value_name = "SIZE")]
    ram: u64,
    /// Transactions of one commit, a row each
    #[arg(long, value_delimiter = ',', default_value = "1,100")]
    group: Vec<u64>,
    /// Seconds of each
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Folder for the files
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Measures one contender in this process and prints JSON
    #[arg(long, hide = true)]
    on: Option<Kind>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Measured {
    transactions_per_s: f64,
    commit_p50_ms: f64,
    commit_p99_ms: f64,
}

impl Transactions {
    /// Prints the table, or measures one contender.
    pub fn main(&self) -> Result<(), Failure> {
        if let Some(kind) = self.on {
            return output::json(&self.measure(kind).map_err(Failure::Failed)?);
        }
        signals::install();
        output::line(
            "| in a commit | contender | transactions/s | a commit, p50, ms | p99, ms |\n\
             |---|---|---|---|---|",
        )?;
        for &group in &self.group {
            for kind in
                [Kind::Map, Kind::Deepheap, Kind::Mmap, Kind::Lmdb, Kind::Redb, Kind::Sqlite]
            {
                let mut words = vec!["transactions".into(), "--group".into(), group.to_string()];
                words.extend(["--data".into(), self.data.to_string()]);
                words.extend(["--ram".into(), self.ram.to_string()]);
                words.extend(["--seconds".into(), self.seconds.to_string()]);
                let (measured, _): (Measured, _) = run_alone(kind, self.ram, &self.dir, &words)?;
                output::line(format_args!(
                    "| {group} | {} | {:.0} | {:.2} | {:.2} |",
                    kind.name(),
                    measured.transactions_per_s,
                    measured.commit_p50_ms,
                    measured.commit_p99_ms
                ))?;
            }
        }
        Ok(())
    }

    fn measure(&self, kind: Kind) -> Result<Measured, String> {
        let group = self.group.first().copied().unwrap_or(1).max(1);
        let accounts = (self.data / BYTES as u64).max(1);
        let branches = accounts.div_ceil(ACCOUNTS_PER_BRANCH);
        let tellers = branches * TELLERS_PER_BRANCH;
        let history = accounts / 4;
        let records = accounts + branches + tellers + history;
        let shape =
            Shape { folder: &self.dir, ram_bytes: self.ram, records, bytes: BYTES, settings: "" };
        let mut table = create(kind, &shape)?;
        let mut value = [0; BYTES];
        for key in 0..records {
            record(key, 0, &mut value);
            table.write(key, &value)?;
            if key.is_multiple_of(self.ram / BYTES as u64 / 16) {
                table.commit()?;
            }
        }
        table.finish()?;

        let mut random = Random::new(7, 0);
        let (begun, mut done, mut commits) = (Instant::now(), 0u64, Histogram::default());
        while begun.elapsed() < Duration::from_secs(self.seconds) {
            let first = Instant::now();
            for _ in 0..group {
                done += 1;
                let account = random.below(accounts);
                let teller = accounts + random.below(tellers);
                let branch = accounts + tellers + (teller - accounts) / TELLERS_PER_BRANCH;
                for key in [account, teller, branch] {
                    change(&mut *table, key, done, &mut value)?;
                }
                let entry = accounts + tellers + branches + done % history;
                record(entry, done, &mut value);
                table.write(entry, &value)?;
            }
            table.finish()?;
            commits.record(first.elapsed().as_nanos() as u64, 1);
        }
        Ok(Measured {
            transactions_per_s: done as f64 / begun.elapsed().as_secs_f64(),
            commit_p50_ms: commits.percentile(0.5) as f64 / 1e6,
            commit_p99_ms: commits.percentile(0.99) as f64 / 1e6,
        })
    }
}

/// Reads and compares a record, and writes its next version.
fn change(
    table: &mut dyn Contender,
    key: u64,
    version: u64,
    value: &mut [u8],
) -> Result<(), String> {
    let mut is_right = false;
    table.read(key, &mut |found| is_right = is_record(key, found))?;
    if !is_right {
        return Err(format!("record {key} is wrong"));
    }
    record(key, version, value);
    table.write(key, value)
}
