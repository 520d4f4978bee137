//! Torture: durable heaps whose process is killed, and whose file system loses its power, at random
//! moments; each time the heap is opened again and every byte held against a model.
//!
//! `actor` is the process that is killed, `model` what the heap must hold, `disk` the file systems.
//!
//! Guarantees: prints its seed and counts; the first heap that is not right ends it with status 1,
//! and its file stays, with its path told. All else that it makes is taken back.
//! Threads: the supervising thread, and one that listens to the actor.

pub mod actor;
mod disk;
mod model;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use deepheap_load::random::Random;

use self::actor::Act;
use self::disk::Disk;
use self::model::LANES;
use crate::failure::Failure;
use crate::ledger::{Entry, Ledger};
use crate::output;
use crate::signals::{self, Watched};

/// After so many rounds a new heap begins: a checker performs all operations anew.
const ROUNDS_PER_HEAP: u64 = 25;
/// Bytes of a file system in a file.
const DISK_BYTES: u64 = 3 << 30;
/// The longest that an actor lives after its first checkpoint; one of `AT_ONCE` lives no longer
/// from its start on, so that opening is cut off as well.
const LIFE_MS: u64 = 1000;
const AT_ONCE: u64 = 4;
/// The longest that a first checkpoint is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Settings of a torture.
#[derive(Args, Debug)]
pub struct Torture {
    /// How often a process is killed, on each file system
    #[arg(long, default_value_t = 20)]
    kills: u64,
    /// How often power is cut, on each file system that can be shut down; needs root
    #[arg(long, default_value_t = 5)]
    power_cuts: u64,
    /// File systems that are made for it in files; `here` is that of DIR
    #[arg(long, value_delimiter = ',', default_value = "here,ext4,xfs,btrfs")]
    on: Vec<String>,
    /// Folder for heaps and file systems
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed; 0: from the clock
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// How a round ends the actor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Kill,
    PowerCut,
}

/// What the actor said last.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    number: u64,
    done: [u64; LANES],
}

/// What a torture has done.
#[derive(Default)]
struct Counts {
    rounds: u64,
    checkpoints: u64,
    verified: u64,
}

impl Torture {
    /// Tortures; an error if anything was lost.
    pub fn main(&self) -> Result<(), Failure> {
        signals::install();
        let own_mounts = disk::own_mounts();
        let seed = if self.seed != 0 { self.seed } else { clock_seed() };
        output::line(format_args!("torture: seed {seed}"))?;
        let mut random = Random::new(seed, 0);
        let mut ledger = Ledger::open()?;
        let store = self.dir.canonicalize();
        let store = store.map_err(|error| Failure::os(self.dir.display(), &error))?;
        for kind in &self.on {
            let disk = match kind.as_str() {
                "here" => None,
                kind => match disk::can_make(kind).and(own_mounts.clone()) {
                    Ok(()) => Some(Disk::create(&mut ledger, &store, kind, DISK_BYTES)?),
                    Err(why) => {
                        output::line(format_args!("torture: {kind}: left out: {why}"))?;
                        continue;
                    }
                },
            };
            let folder = disk.as_ref().map_or(store.as_path(), Disk::folder);
            let mut file_system = FileSystem { kind, folder, store: &store, disk: disk.as_ref() };
            for (end, wanted) in [(End::Kill, self.kills), (End::PowerCut, self.power_cuts)] {
                file_system.campaign(&mut ledger, &mut random, end, wanted)?;
            }
        }
        Ok(())
    }
}

/// Where heaps lie.
struct FileSystem<'a> {
    kind: &'a str,
    folder: &'a Path,
    /// Of the heap of `malloc`, which loses nothing when the power of the other is cut.
    store: &'a Path,
    disk: Option<&'a Disk>,
}

impl FileSystem<'_> {
    fn campaign(
        &mut self,
        ledger: &mut Ledger,
        random: &mut Random,
        end: End,
        wanted: u64,
    ) -> Result<(), Failure> {
        let what = if end == End::Kill { "kills" } else { "power cuts" };
        if wanted == 0 || end == End::PowerCut && self.disk.is_none() {
            return Ok(());
        }
        if end == End::PowerCut && self.kind == "btrfs" {
            return output::line("torture: btrfs: power cuts are left out: it cannot be shut down");
        }
        let begun = Instant::now();
        let mut counts = Counts::default();
        while counts.rounds < wanted {
            let seed = random.next();
            // A name of its own: a power cut may bring back a heap before it, which was removed.
            let file = self.folder.join(Ledger::name(&format!("{seed:016x}.dh")));
            if self.disk.is_none() {
                ledger.note(Entry::File(file.clone()))?;
            }
            let rounds = ROUNDS_PER_HEAP.min(wanted - counts.rounds);
            let done = self.rounds(random, end, rounds, seed, &file, &mut counts);
            if let Err(Failure::Failed(why) | Failure::Refused(why)) = &done {
                let kept = self.store.join(format!("torture-failed-{seed}.dh"));
                let copied = std::fs::copy(&file, &kept);
                return Err(Failure::Failed(format!(
                    "{}, round {} of {what}: {why}; the heap (seed {seed}) is {}",
                    self.kind,
                    counts.rounds,
                    copied.map_or("lost".into(), |_| kept.display().to_string()),
                )));
            }
            done?;
            crate::undo::file(&file).map_err(|error| Failure::os(file.display(), &error))?;
        }
        output::line(format_args!(
            "torture: {}: {} {what}, {} checkpoints, {} operations verified, nothing lost, in {} s",
            self.kind,
            counts.rounds,
            counts.checkpoints,
            counts.verified,
            begun.elapsed().as_secs()
        ))
    }

    /// Rounds on one heap.
    fn rounds(
        &self,
        random: &mut Random,
        end: End,
        rounds: u64,
        seed: u64,
        file: &Path,
        counts: &mut Counts,
    ) -> Result<(), Failure> {
        let mut last = Told::default();
        for _ in 0..rounds {
            let options = options(random);
            let life = Duration::from_millis(random.below(LIFE_MS));
            let first = u64::from(random.below(AT_ONCE) != 0);
            let (told, checkpoints) = self.perform(end, (first, life), seed, file, &options)?;
            counts.checkpoints += checkpoints;
            last = told.unwrap_or(last);
            counts.rounds += 1;
            if last.number == 0 && !file.exists() {
                continue;
            }
            match self.check(seed, file, &options, last) {
                Ok(operations) => counts.verified += operations,
                // Killed while it made the file: nothing was promised.
                Err(Failure::Refused(_)) if last.number == 0 => {
                    std::fs::remove_file(file)
                        .map_err(|error| Failure::os(file.display(), &error))?;
                    continue;
                }
                Err(failure) => return Err(failure),
            }
            if counts.rounds.is_multiple_of(4) {
                verify(file)?;
            }
        }
        Ok(())
    }

    /// Lets an actor live for so long after so many checkpoints. Answers what it told last, and how
    /// many there were.
    fn perform(
        &self,
        end: End,
        (first, life): (u64, Duration),
        seed: u64,
        file: &Path,
        options: &str,
    ) -> Result<(Option<Told>, u64), Failure> {
        let mut command = actor_command()?;
        command.args(actor::arguments(Act::Perform, file, options, self.store, seed));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |error: std::io::Error| Failure::os("the actor", &error);
        let mut child = command.spawn().map_err(failed)?;
        let watched = Watched::new(child.id())?;
        let (pipe, errors) = (child.stdout.take(), child.stderr.take());
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let listener = std::thread::spawn(move || {
            let mut last = None;
            for line in pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
                // A line that was cut off told nothing.
                if let Some(told) = line.ok().as_deref().and_then(parse) {
                    last = Some(told);
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
            last
        });
        let begun = Instant::now();
        let mut slept = Ok(());
        while slept.is_ok() && count.load(Ordering::SeqCst) < first && begun.elapsed() < PATIENCE {
            slept = signals::sleep(Duration::from_millis(5));
            if child.try_wait().map_err(failed)?.is_some() {
                break;
            }
        }
        let slept = slept.and_then(|()| signals::sleep(life));
        let early = child.try_wait().map_err(failed)?;
        if let (End::PowerCut, Some(disk), Ok(())) = (end, self.disk, &slept) {
            disk.cut_power()?;
        }
        watched.kill();
        child.wait().map_err(failed)?;
        drop(watched);
        let told = listener.join().map_err(|_| Failure::Failed("the listener failed".into()))?;
        slept?;
        if let Some(status) = early {
            let mut said = String::new();
            if let Some(mut errors) = errors {
                // What it said is for the reader; that it ended is the failure.
                let _ = errors.read_to_string(&mut said);
            }
            return Err(Failure::Failed(format!("it ended by itself: {status}: {}", said.trim())));
        }
        if let (End::PowerCut, Some(disk)) = (end, self.disk) {
            disk.restart()?;
        }
        Ok((told, count.load(Ordering::SeqCst)))
    }

    /// Holds the heap against the model, in a process of its own. Answers the operations.
    fn check(&self, seed: u64, file: &Path, options: &str, told: Told) -> Result<u64, Failure> {
        let mut command = actor_command()?;
        command.args(actor::arguments(Act::Check, file, options, self.store, seed));
        let done = told.done.map(|done| done.to_string()).join(",");
        command.args(["--number", &told.number.to_string(), "--told", &done]);
        let output = command.output().map_err(|error| Failure::os("the actor", &error))?;
        signals::interrupted()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let operations = said.split(' ').nth(2).and_then(|number| number.parse().ok());
        match (output.status.success(), operations) {
            (true, Some(operations)) => Ok(operations),
            _ => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                let why = format!("{}: {}", output.status, why.trim());
                match output.status.code() {
                    Some(2) => Err(Failure::Refused(why)),
                    _ => Err(Failure::Failed(why)),
                }
            }
        }
    }
}

/// Reads all of the file, as `deepheap fsck` does.
fn verify(file: &Path) -> Result<(), Failure> {
    let found = deepheap::internal::inspect::fsck(file);
    let found = found.map_err(|error| Failure::Failed(format!("fsck: {error}")))?;
    // A superblock that was being written when the power was cut is no damage.
    let damage =
        found.report.findings.iter().find(|finding| !format!("{finding}").contains("superblock"));
    match (damage, found.contradiction) {
        (None, None) => Ok(()),
        (Some(finding), _) => Err(Failure::Failed(format!("fsck: {finding}"))),
        (None, Some(why)) => Err(Failure::Failed(format!("fsck: {why}"))),
    }
}

/// Options of an incarnation, others each time.
fn options(random: &mut Random) -> String {
    let mut text = format!("size:4G,store_size:1G,ram:{}M", 20 + random.below(28));
    let compress = ["auto", "off", "lz4"][random.below(3) as usize];
    text += &format!(",compress:{compress}");
    match random.below(3) {
        0 => text + ",checkpoint:10ms",
        1 => text + ",checkpoint:150ms",
        _ => text,
    }
}

fn actor_command() -> Result<Command, Failure> {
    let program = std::env::current_exe();
    let mut command = Command::new(program.map_err(|error| Failure::os("this program", &error))?);
    command.env_remove("DEEPHEAP_CONF").env_remove("DEEPHEAP_SHOW_STATS").stdin(Stdio::null());
    signals::die_with_parent(&mut command);
    Ok(command)
}

/// `made NUMBER DONE...`
fn parse(line: &str) -> Option<Told> {
    let mut numbers = line.strip_prefix("made ")?.split(' ').map(str::parse::<u64>);
    let number = numbers.next()?.ok()?;
    let done: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
    Some(Told { number, done: done.try_into().ok()? })
}

fn clock_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_nanos() as u64 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_off_tells_nothing() {
        let told = parse("made 12 1 2 3 4").expect("a line");
        assert_eq!((told.number, told.done), (12, [1, 2, 3, 4]));
        for bad in ["made 12 1 2 3", "made", "made 12 1 2 3 x", "12 1 2 3 4"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
