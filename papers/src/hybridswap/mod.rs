//! HybridSwap: programs with an SSD alone, and with a disk behind it, which is a model: the feature
//! `device-models` has it.
//!
//! Guarantees: each run is a process of its own; what was measured is kept in a file, and a sitting
//! that was cut short goes on where it was. Contenders of a case follow one another.
//! Never: writes anything of the page but what stands between its two marks.
//! Threads: one.

mod load;
mod tables;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

pub use self::load::Load;
use self::load::{Done, Kind};
use crate::papers::launch::Running;
use crate::papers::machine::{Machine, today};
use deepheap_bench::failure::Failure;
use deepheap_bench::sizes::parse_bytes;
use deepheap_bench::{marked_page, output, signals, supervisor};

const BEGIN: &str = "<!-- measured: begin; written by `deepheap-papers hybridswap` -->";
/// Seconds of a run under a bound, or of several programs.
const SECONDS: f64 = 60.0;
/// No run takes so long, but one that hangs.
const LIMIT: Duration = Duration::from_secs(1800);

/// What `deepheap-papers hybridswap` takes.
#[derive(Clone, Debug, Args)]
pub struct HybridSwap {
    /// Only cases whose name starts with this (may be repeated); --list shows the names
    #[arg(long, value_name = "CASE")]
    only: Vec<String>,
    /// Shows the names of the cases and ends
    #[arg(long)]
    list: bool,
    /// Size of the data
    #[arg(long = "data", value_parser = parse_bytes, default_value = "256M", value_name = "SIZE")]
    data_bytes: u64,
    /// So often as many pages are worked on as the data has
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Where store and second tier lie
    #[arg(long, default_value = ".", value_name = "PATH")]
    dir: PathBuf,
    /// What was measured, a JSON line for each run; what is there is not measured again
    #[arg(long, default_value = "target/hybridswap.jsonl", value_name = "FILE")]
    runs: PathBuf,
    /// Writes what was measured into this page, too
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// Where what leaves RAM goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Ssd,
    /// A disk by the model, under a bound in percent.
    Disk(Option<u32>),
}

impl Behind {
    fn conf(self, dir: &str) -> String {
        let tier = format!("tier:{dir}:1G");
        match self {
            Behind::Ssd => String::new(),
            Behind::Disk(None) => format!("{tier},stall:off"),
            Behind::Disk(Some(percent)) => format!("{tier},stall:{percent}%"),
        }
    }
}

/// One run: of a program, or of several at once.
#[derive(Clone, Debug, PartialEq)]
struct Case {
    name: String,
    /// With what is behind each, and how long it works on a page.
    programs: Vec<(Kind, Behind, u64)>,
    /// RAM in quarters of the data.
    quarters: u64,
    seconds: Option<f64>,
}

/// A line of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    case: String,
    settings: String,
    done: Vec<Done>,
}

/// How long programs work on a page.
const fn work_us(kind: Kind) -> u64 {
    match kind {
        Kind::Image | Kind::Mixed | Kind::List => 200,
        Kind::Memcached => 20,
    }
}

fn cases() -> Vec<Case> {
    use Behind::{Disk, Ssd};
    let mut cases = Vec::new();
    for (kind, name) in tables::KINDS {
        for quarters in [1, 2, 3, 4] {
            for (behind, word) in tables::CONTENDERS {
                // What is far slower is measured where it says most.
                if behind == Disk(None) && quarters > 2 {
                    continue;
                }
                let name = format!("{name}-{quarters}-{word}");
                let programs = vec![(kind, behind, work_us(kind))];
                cases.push(Case { name, programs, quarters, seconds: None });
            }
        }
    }
    for (name, kinds) in tables::SEVERAL {
        for (behind, word) in tables::CONTENDERS {
            let name = format!("{name}-{word}");
            let programs = kinds.iter().map(|&kind| (kind, behind, work_us(kind))).collect();
            let seconds = Some(SECONDS);
            cases.push(Case { name, programs, quarters: 2, seconds });
        }
    }
    let bounded = |name: &str, behind: Vec<Behind>| Case {
        name: name.to_owned(),
        programs: behind.into_iter().map(|behind| (Kind::Image, behind, 100)).collect(),
        quarters: 2,
        seconds: Some(SECONDS),
    };
    cases.push(bounded("bound-ssd", vec![Ssd]));
    for percent in tables::BOUNDS {
        cases.push(bounded(&format!("bound-{percent}"), vec![Disk(Some(percent))]));
    }
    cases.push(bounded("bound-two", vec![Disk(Some(10)), Disk(Some(30))]));
    cases
}

impl HybridSwap {
    /// Measures what is not measured yet, and prints the tables.
    pub fn main(&self) -> Result<(), Failure> {
        signals::install();
        let chosen = |case: &Case| {
            self.only.is_empty() || self.only.iter().any(|only| case.name.starts_with(only))
        };
        let cases = cases();
        if self.list {
            return cases.iter().try_for_each(|case| output::line(&case.name));
        }
        let mut runs = self.known();
        for case in cases.iter().filter(|case| chosen(case)) {
            if runs.iter().any(|run| run.case == case.name) {
                continue;
            }
            eprint!("{}: ", case.name);
            let done = self.run(case)?;
            for done in &done {
                eprint!("{:.1} s ", done.seconds);
            }
            eprintln!();
            let run = Run { case: case.name.clone(), settings: self.terms(), done };
            self.keep(&run)?;
            runs.push(run);
        }
        let machine = Machine::here(&self.dir).sentence();
        let text = format!(
            "Measured {} with\n`deepheap-papers hybridswap --data {} --rounds {}`\n\
             on {machine};\none run each.\n\n{}",
            today(),
            deepheap::internal::size::exact(self.data_bytes),
            self.rounds,
            tables::all(&runs),
        );
        if let Some(page) = &self.page {
            marked_page::put(page, BEGIN, &text, "docs/papers/hybridswap.md")?;
        }
        output::line(text)
    }

    fn terms(&self) -> String {
        format!("{} {}", self.data_bytes, self.rounds)
    }

    /// What was measured with the same settings.
    fn known(&self) -> Vec<Run> {
        let text = fs::read_to_string(&self.runs).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Run>(line).ok());
        lines.filter(|run| run.settings == self.terms()).collect()
    }

    fn keep(&self, run: &Run) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::os(self.runs.display(), &error);
        let line =
            serde_json::to_string(run).map_err(|error| Failure::Failed(error.to_string()))?;
        let mut file =
            OpenOptions::new().create(true).append(true).open(&self.runs).map_err(failed)?;
        writeln!(file, "{line}").map_err(failed)
    }

    /// Runs the programs of a case at once.
    fn run(&self, case: &Case) -> Result<Vec<Done>, Failure> {
        // What the run before left to write back is not this one's to wait for.
        // SAFETY: sync has no preconditions.
        unsafe { libc::sync() };
        let mut programs = Vec::new();
        for &(kind, behind, work_us) in &case.programs {
            programs.push(Running::start(&mut self.command(case, kind, behind, work_us)?)?);
        }
        let mut all = Vec::new();
        for program in programs {
            let line = program.wait(LIMIT)?.success()?;
            let done = serde_json::from_str(line.trim());
            all.push(done.map_err(|error| Failure::Failed(format!("{}: {error}", case.name)))?);
        }
        Ok(all)
    }

    fn command(
        &self,
        case: &Case,
        kind: Kind,
        behind: Behind,
        work_us: u64,
    ) -> Result<Command, Failure> {
        let dir = supervisor::folder(&self.dir)?;
        let dir_text = dir.display().to_string();
        // All of the data, and what deepheap needs besides, which is so much and a part of it.
        let data_bytes = self.data_bytes;
        let ram_bytes = match case.quarters {
            4 => data_bytes + data_bytes / 8 + (16 << 20),
            quarters => data_bytes * quarters / 4,
        };
        let mut command = Command::new("/proc/self/exe");
        command.arg("hybridswap-load").args(["--kind", tables::name_of(kind)]);
        command.arg("--dir").arg(&dir).args(["--conf", &behind.conf(&dir_text)]);
        command.args(["--data", &data_bytes.to_string(), "--ram", &ram_bytes.to_string()]);
        command.args(["--work-us", &work_us.to_string()]);
        match case.seconds {
            Some(seconds) => command.args(["--seconds", &seconds.to_string()]),
            None => command.args(["--rounds", &self.rounds.to_string()]),
        };
        command.env_remove("DEEPHEAP_CONF").env_remove("LD_PRELOAD");
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own_and_settings_that_deepheap_takes() {
        let cases = cases();
        for (at, case) in cases.iter().enumerate() {
            assert!(cases[..at].iter().all(|other| other.name != case.name), "{}", case.name);
            for (_, behind, _) in &case.programs {
                let conf = behind.conf("/var/tmp");
                assert!(deepheap::Config::parse(&conf).is_ok(), "{conf}");
            }
        }
    }
}
