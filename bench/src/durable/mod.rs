//! Durable: point reads and updates of records in a durable heap, in LMDB and in redb: the same
//! data, the same RAM, a commit every 100 ms.
//!
//! Each contender runs in a process and a memory cgroup of its own, on files of its own: filled,
//! then read, then updated at random keys, by one thread. Every record that is read is verified.
//!
//! Guarantees: a wrong record ends it with status 1. What it makes is taken back.
//! Threads: one, beside those of the contenders themselves.

pub mod checkpoints;
mod contender;
mod create;
mod flat;
pub mod opening;
mod sqlite;
pub mod transactions;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use deepheap_load::random::{Random, mix};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::contender::{Contender, Kind, Shape};
use crate::cgroup::{Cgroup, Swapping};
use crate::failure::Failure;
use crate::ledger::{Entry, Ledger};
use crate::signals::{self, Watched};
use crate::sizes::parse_bytes;
use crate::{output, supervisor};

/// Between two commits.
const INTERVAL: Duration = Duration::from_millis(100);
/// Operations between two looks at the clock.
const LOOK_EVERY: u64 = 16;
/// RAM of a process beside what it has for the records: program, stacks, libraries, page tables.
const PROGRAM_BYTES: u64 = 4 << 20;
const MIB: f64 = (1 << 20) as f64;
/// Records that are asked for together in the reads by batches.
const BATCH: u64 = 16;

/// Settings of the table.
#[derive(Args, Clone, Debug)]
pub struct Durable {
    /// Bytes of all records together
    #[arg(long, value_parser = parse_bytes, default_value = "256M", value_name = "SIZE")]
    data: u64,
    /// Bytes of a record, one row each
    #[arg(long, value_delimiter = ',', default_value = "128,1024")]
    bytes: Vec<usize>,
    /// RAM for the records
    #[arg(long, value_parser = parse_bytes, default_value = "64M", value_name = "SIZE")]
    ram: u64,
    /// Seconds of reads, and of updates
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Runs of each; the one in the middle counts
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// More settings of the durable heap
    #[arg(long, default_value = "", value_name = "SETTINGS")]
    settings: String,
    /// Folder for the files
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Measures one contender in this process and prints JSON
    #[arg(long, hide = true)]
    on: Option<Kind>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Measured {
    fill_s: f64,
    reads_per_s: f64,
    batched_per_s: f64,
    updates_per_s: f64,
    commits: u64,
    longest_commit_ms: f64,
    /// The most RAM that its cgroup had; known from outside.
    peak_mib: Option<f64>,
}

impl Durable {
    /// Prints the table, or measures one contender.
    pub fn main(&self) -> Result<(), Failure> {
        if let Some(kind) = self.on {
            let measured = measure(kind, self).map_err(Failure::Failed)?;
            return output::json(&measured);
        }
        signals::install();
        output::line(
            "| bytes | contender | reads/s | reads by 16/s | updates/s | commits \
             | longest commit, ms | fill, s | RAM, MiB |\n\
             |---|---|---|---|---|---|---|---|---|",
        )?;
        for &bytes in &self.bytes {
            for kind in Kind::TABLES {
                let mut runs = Vec::new();
                for _ in 0..self.runs.max(1) {
                    runs.push(self.in_process(kind, bytes)?);
                }
                runs.sort_by(|one, other| one.updates_per_s.total_cmp(&other.updates_per_s));
                let middle = runs[runs.len() / 2];
                runs.sort_by(|one, other| one.reads_per_s.total_cmp(&other.reads_per_s));
                output::line(format_args!(
                    "| {bytes} | {} | {:.0} | {:.0} | {:.0} | {} | {:.1} | {:.1} | {:.1} |",
                    kind.name(),
                    runs[runs.len() / 2].reads_per_s,
                    runs[runs.len() / 2].batched_per_s,
                    middle.updates_per_s,
                    middle.commits,
                    middle.longest_commit_ms,
                    middle.fill_s,
                    middle.peak_mib.unwrap_or(f64::NAN)
                ))?;
            }
        }
        Ok(())
    }

    fn in_process(&self, kind: Kind, bytes: usize) -> Result<Measured, Failure> {
        let mut words = vec!["durable".into(), "--bytes".into(), bytes.to_string()];
        words.extend([
            "--data".into(),
            self.data.to_string(),
            "--ram".into(),
            self.ram.to_string(),
        ]);
        words.extend(["--seconds".into(), self.seconds.to_string()]);
        words.extend(["--settings".into(), self.settings.clone()]);
        let (measured, peak_bytes): (Measured, _) = run_alone(kind, self.ram, &self.dir, &words)?;
        Ok(Measured { peak_mib: peak_bytes.map(|bytes| bytes as f64 / MIB), ..measured })
    }
}

/// Runs this program with these words, and `--on` the contender, `--dir` a folder of its own, in a
/// process and a memory cgroup of its own; answers what it measured, and the most RAM that it had.
fn run_alone<T: DeserializeOwned>(
    kind: Kind,
    ram: u64,
    dir: &Path,
    words: &[String],
) -> Result<(T, Option<u64>), Failure> {
    let mut ledger = Ledger::open()?;
    let folder = new_folder(&mut ledger, dir, kind.name())?;
    let cgroup = Cgroup::create(&mut ledger)?;
    // Budgets of deepheap may not add up to more than the limit; what it uses is told.
    let unused = if kind == Kind::Deepheap { contender::PLAIN_BYTES } else { 0 };
    let limit = ram + PROGRAM_BYTES + unused;
    cgroup.limit(limit, Swapping::Off)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(words).args(["--on", kind.name()]).arg("--dir").arg(&folder);
    command.env_remove("DEEPHEAP_CONF").env_remove("DEEPHEAP_SHOW_STATS");
    cgroup.enclose(&mut command)?;
    signals::die_with_parent(&mut command);
    let failed = |error: std::io::Error| Failure::os(kind.name(), &error);
    let child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let watched = Watched::new(child.id())?;
    let output = child.wait_with_output().map_err(failed)?;
    drop(watched);
    signals::interrupted()?;
    if !output.status.success() {
        return Err(Failure::Failed(format!("{}: {}", kind.name(), output.status)));
    }
    let measured = serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::Failed(format!("{}: no report: {error}", kind.name())))?;
    Ok((measured, cgroup.usage(0, limit).peak_bytes))
}

/// A new folder in `dir`, which is removed with the ledger.
fn new_folder(ledger: &mut Ledger, dir: &Path, name: &str) -> Result<PathBuf, Failure> {
    let folder = supervisor::folder(dir)?.join(Ledger::name(name));
    ledger.note(Entry::Folder(folder.clone()))?;
    std::fs::create_dir(&folder).map_err(|error| Failure::os(folder.display(), &error))?;
    Ok(folder)
}

/// Fills `value` with the record of a key, in this version.
fn record(key: u64, version: u64, value: &mut [u8]) {
    for (at, word) in value.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let content = match at {
            0 => key,
            1 => version,
            at => mix(key ^ version << 40).wrapping_add(at as u64),
        };
        *word = content.to_le_bytes();
    }
}

/// Whether these are the bytes of a record of the key.
fn is_record(key: u64, value: &[u8]) -> bool {
    let word = |at: usize| value.as_chunks::<8>().0.get(at).map(|word| u64::from_le_bytes(*word));
    let Some(version) = word(1) else { return false };
    let last = value.len() / 8 - 1;
    word(0) == Some(key) && word(last) == Some(mix(key ^ version << 40).wrapping_add(last as u64))
}

fn measure(kind: Kind, settings: &Durable) -> Result<Measured, String> {
    let bytes = settings.bytes.first().copied().unwrap_or(128);
    if bytes < 24 || !bytes.is_multiple_of(8) {
        return Err("--bytes: give a multiple of 8 from 24 on".into());
    }
    let folder: &Path = &settings.dir;
    let records = settings.data / bytes as u64;
    let more = &settings.settings;
    let shape = Shape { folder, ram_bytes: settings.ram, records, bytes, settings: more };
    let mut table = create::create(kind, &shape)?;
    let limit = Duration::from_secs(settings.seconds);
    let mut value = vec![0; bytes];

    let begun = Instant::now();
    let mut commits = Commits::begin();
    for key in 0..records {
        record(key, 0, &mut value);
        table.write(key, &value)?;
        // LMDB keeps what is not committed in RAM.
        let is_much = key.is_multiple_of(settings.ram / bytes as u64 / 16);
        if is_much { table.commit()? } else { commits.look(key, &mut *table)? }
    }
    table.finish()?;
    let fill_s = begun.elapsed().as_secs_f64();

    let mut random = Random::new(7, 0);
    let (begun, mut reads) = (Instant::now(), 0u64);
    while !reads.is_multiple_of(LOOK_EVERY) || begun.elapsed() < limit {
        let key = random.below(records);
        let mut is_right = false;
        table.read(key, &mut |value| is_right = is_record(key, value))?;
        if !is_right {
            return Err(format!("record {key} is wrong"));
        }
        reads += 1;
    }
    let reads_per_s = reads as f64 / begun.elapsed().as_secs_f64();

    let (begun, mut reads) = (Instant::now(), 0u64);
    while begun.elapsed() < limit {
        let keys = core::array::from_fn::<u64, { BATCH as usize }, _>(|_| random.below(records));
        let mut right = 0;
        table.read_batch(&keys, &mut |key, value| right += u64::from(is_record(key, value)))?;
        if right != BATCH {
            return Err(format!("one of the records {keys:?} is wrong"));
        }
        reads += BATCH;
    }
    let batched_per_s = reads as f64 / begun.elapsed().as_secs_f64();

    let (begun, mut updates) = (Instant::now(), 0u64);
    let mut commits = Commits::begin();
    while !updates.is_multiple_of(LOOK_EVERY) || begun.elapsed() < limit {
        let key = random.below(records);
        updates += 1;
        record(key, updates, &mut value);
        table.write(key, &value)?;
        commits.look(updates, &mut *table)?;
    }
    table.finish()?;
    let updates_per_s = updates as f64 / begun.elapsed().as_secs_f64();
    Ok(Measured {
        fill_s,
        reads_per_s,
        batched_per_s,
        updates_per_s,
        commits: commits.count,
        longest_commit_ms: commits.longest.as_secs_f64() * 1e3,
        peak_mib: None,
    })
}

/// Commits after each interval.
struct Commits {
    last: Instant,
    count: u64,
    longest: Duration,
}

impl Commits {
    fn begin() -> Commits {
        Commits { last: Instant::now(), count: 0, longest: Duration::ZERO }
    }

    fn look(&mut self, operation: u64, table: &mut dyn Contender) -> Result<(), String> {
        if !operation.is_multiple_of(LOOK_EVERY) || self.last.elapsed() < INTERVAL {
            return Ok(());
        }
        let begun = Instant::now();
        table.commit()?;
        self.last = Instant::now();
        self.longest = self.longest.max(begun.elapsed());
        self.count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_known_by_their_key_and_version() {
        let mut value = [0; 128];
        record(5, 9, &mut value);
        assert!(is_record(5, &value) && !is_record(6, &value));
        value[127] ^= 1;
        assert!(!is_record(5, &value));
    }
}
