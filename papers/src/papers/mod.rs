//! Papers: every experiment of SSDAlloc and SSDRAM that measures something, in one sitting, and
//! the pages and plots of docs/papers.
//!
//! ```text
//! experiments   what is measured, as data          settings   what all points share
//! point         one program under one contender    launch     programs of somebody else's
//! measure       how it is measured once         enclosure  its cgroup and swap file
//! runs          a JSON file for each point         numbers    what is in it
//! results       ratios and ranges                  figure     numbers as one reads them
//! plot, page    what a reader sees                 machine    where and when
//! ```
//!
//! Guarantees: the contenders of a case take turns within each round, so that a device that changes
//! from hour to hour changes for all; a point is on disk as soon as it is measured, and is not
//! measured again on this machine; a point that fails is told, on its page too, and the others go
//! on.
//! Never: puts a number on a page that is not in a run's file.
//! Threads: one, and those of `launch`.

mod enclosure;
mod experiments;
pub mod figure;
pub mod launch;
pub mod machine;
mod measure;
pub mod numbers;
mod page;
pub mod plot;
mod point;
mod results;
pub mod runs;
mod settings;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use deepheap_bench::failure::Failure;
use deepheap_bench::{output, signals, undo};
use experiments::{Case, Contender, Experiment, GOALS};
use machine::Machine;
use point::{Outcome, Point};
use results::Results;
use runs::{Record, Round, Runs};
use settings::Settings;

pub use settings::Papers;

const NEEDS_ROOT: &str = "needs root (a memory cgroup, for swap a swap file)";

/// How often swap is tried before it counts as failed.
const SWAP_TRIES: u32 = 3;

/// The points of a case, and how often they are measured.
struct Group {
    points: Vec<Point>,
    rounds: u32,
}

/// How a point went.
enum Tried {
    Known,
    Measured(String),
    Failed(String),
}

impl Papers {
    /// Measures what is missing, writes the pages, prints how good it is.
    pub fn main(&self) -> Result<(), Failure> {
        signals::install();
        let settings = self.settings()?;
        let all: Vec<&Experiment> = experiments::all().collect();
        let chosen: Vec<&Experiment> = all
            .iter()
            .copied()
            .filter(|e| self.only.is_empty() || self.only.iter().any(|o| e.id.starts_with(o)))
            .collect();
        if chosen.is_empty() {
            return Err(Failure::Refused("--only: no such experiment; --list shows them".into()));
        }
        let plan = plan(&chosen, &settings);
        if self.list {
            return list(&chosen, &plan, settings.quick);
        }
        let out = self.out();
        let runs = Runs::open(&out.join("runs.jsonl"))?;
        let results = Results::new(&runs, &settings);
        if !self.pages {
            let measured = self.measure(&plan, &settings, &runs);
            // What is there is shown, also after Ctrl-C.
            write_pages(&out, &results, &all)?;
            measured?;
        } else {
            write_pages(&out, &results, &all)?;
        }
        output::line(page::goals(&results))?;
        if !settings.root && page::without_root(&chosen, settings.quick) {
            output::line(format_args!("swap and mmap are left out: measuring them {NEEDS_ROOT}."))?;
        }
        Ok(())
    }

    fn measure(&self, plan: &[Group], settings: &Settings, runs: &Runs) -> Result<(), Failure> {
        let machine = Machine::here(&settings.dir);
        let total: u64 = plan.iter().map(|g| g.points.len() as u64 * u64::from(g.rounds)).sum();
        let bar = bar(total);
        let mut failed = Vec::new();
        for group in plan {
            for round in 0..group.rounds {
                for point in &group.points {
                    let id = point.id();
                    bar.set_message(id.clone());
                    let anew = self.again && round == 0;
                    match try_point(point, round, anew, settings, runs, &machine) {
                        Ok(Tried::Known) => bar.set_length(bar.length().unwrap_or(1) - 1),
                        Ok(Tried::Measured(what)) => {
                            tell(&bar, &format!("{id}: {what}"));
                            bar.inc(1);
                        }
                        Ok(Tried::Failed(why)) => {
                            tell(&bar, &format!("{id}: FAILED: {why}"));
                            failed.push(id);
                            bar.inc(1);
                        }
                        Err(failure) => {
                            bar.finish_and_clear();
                            return Err(failure);
                        }
                    }
                }
            }
        }
        bar.finish_and_clear();
        if !failed.is_empty() {
            eprintln!("deepheap-papers: {} points gave no number; the pages say why", failed.len());
        }
        Ok(())
    }
}

/// The points of the experiments, those of a case together, each in one group only. What a goal is
/// about is measured in all rounds, the rest once.
fn plan(chosen: &[&Experiment], settings: &Settings) -> Vec<Group> {
    let mut seen = BTreeSet::new();
    let mut groups = Vec::new();
    for case in chosen.iter().flat_map(|experiment| experiment.cases) {
        let runs = case.contenders(settings.quick);
        // The object variant comes first: it tells how much memory the others get.
        let points = Contender::ALL.into_iter().filter(|contender| runs.contains(contender));
        let points = points.map(|contender| Point::of(case, contender));
        let points: Vec<Point> = points.filter(|point| seen.insert(point.id())).collect();
        if !points.is_empty() {
            let rounds = if is_in_goals(case) { settings.rounds } else { 1 };
            groups.push(Group { points, rounds });
        }
    }
    groups
}

/// Whether a goal is about what the case measures.
fn is_in_goals(case: &Case) -> bool {
    let objects = |case| Point::of(case, Contender::Objects);
    GOALS.iter().any(|goal| objects(goal.case) == objects(case))
}

fn list(chosen: &[&Experiment], plan: &[Group], quick: bool) -> Result<(), Failure> {
    for experiment in chosen {
        let points: usize = experiment.cases.iter().map(|c| c.contenders(quick).len()).sum();
        let (id, title) = (experiment.id, experiment.title);
        output::line(format_args!("{id:20} {points:3} points  {title}"))?;
    }
    let points: usize = plan.iter().map(|group| group.points.len()).sum();
    output::line(format_args!("{points} points, those that experiments share once"))
}

/// Measures a point once, unless that is done; only a signal is an error.
fn try_point(
    point: &Point,
    round: u32,
    anew: bool,
    settings: &Settings,
    runs: &Runs,
    machine: &Machine,
) -> Result<Tried, Failure> {
    let (id, asked) = (point.id(), point.settings(settings));
    let known = runs.load(&id, &asked);
    // Pages show what others measured; whoever measures does so on their own machine.
    let elsewhere = known.rounds.iter().any(|round| round.machine != *machine);
    let mut record = if anew || elsewhere { Record::empty(&id, &asked) } else { known };
    if record.rounds.len() > round as usize {
        return Ok(Tried::Known);
    }
    // What the run before left to write back is not this one's to wait for.
    // SAFETY: sync has no preconditions.
    unsafe { libc::sync() };
    signals::interrupted()?;
    let started = Instant::now();
    let outcome = if point.contender.needs_root() && !settings.root {
        Err(Failure::Refused(NEEDS_ROOT.into()))
    } else {
        measure(point, settings, peak_of_objects(point, settings, runs))
    };
    let tried = match outcome {
        Ok(outcome) => {
            let number = |name: &str, unit| figure::or_dash(outcome.numbers.get(name), unit);
            let what = format!(
                "{}, mean {}, 99 % below {}, {} written a write, in {:.0} s",
                number("operations_per_second", "/s"),
                number("mean_us", "us"),
                number("p99_us", "us"),
                number("written_bytes_per_write", "B"),
                started.elapsed().as_secs_f64()
            );
            record.rounds.push(Round {
                date: machine::today(),
                command: command(),
                machine: machine.clone(),
                limit_bytes: outcome.limit_bytes,
                numbers: outcome.numbers,
                report: serde_json::Value::Null,
            });
            record.failed = None;
            Tried::Measured(what)
        }
        Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
        Err(failure) if elsewhere => {
            // What others measured is more than that it cannot be measured here.
            return Ok(Tried::Failed(failure.to_string()));
        }
        Err(failure) => {
            record.failed = Some(failure.to_string());
            Tried::Failed(failure.to_string())
        }
    };
    runs.save(&record)?;
    Ok(tried)
}

/// The kernel may kill a program that swaps in a small memory cgroup when its own reclaim falls
/// behind: that is told, here and on the page, and the point is tried again.
fn measure(point: &Point, settings: &Settings, peak: Option<u64>) -> Result<Outcome, Failure> {
    tried(point.contender, |killed| {
        point.measure(settings, peak).inspect_err(|failure| {
            if killed + 1 < SWAP_TRIES && is_out_of_memory(point.contender, failure) {
                eprintln!("deepheap-papers: {}: {failure}; once more", point.id());
            }
        })
    })
}

/// Tries until it succeeds or fails for another reason, three times at most; how often it was
/// killed before it succeeded is among its numbers. `measure` is told how often it was so far.
fn tried(
    contender: Contender,
    measure: impl Fn(u32) -> Result<Outcome, Failure>,
) -> Result<Outcome, Failure> {
    let mut killed = 0;
    loop {
        match measure(killed) {
            Err(failure) if killed + 1 < SWAP_TRIES && is_out_of_memory(contender, &failure) => {
                killed += 1;
            }
            Ok(mut outcome) => {
                if contender == Contender::Swap {
                    outcome.numbers.set("killed_before", f64::from(killed));
                }
                return Ok(outcome);
            }
            failed => return failed,
        }
    }
}

fn is_out_of_memory(contender: Contender, failure: &Failure) -> bool {
    let told = |why: &str| why.contains(enclosure::OUT_OF_MEMORY);
    contender == Contender::Swap && matches!(failure, Failure::Failed(why) if told(why))
}

/// The most memory that the object variant of the same point has used.
fn peak_of_objects(point: &Point, settings: &Settings, runs: &Runs) -> Option<u64> {
    let objects = Point { contender: Contender::Objects, ..point.clone() };
    let record = runs.load(&objects.id(), &objects.settings(settings));
    record.median("peak_bytes").map(|bytes| bytes as u64)
}

/// As it was called.
pub fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("deepheap-papers {}", arguments.join(" "))
}

/// A progress bar, hidden where standard error is no terminal.
pub fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} ({eta} left) {msg}");
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

/// Says a line above the bar, or on standard error.
pub fn tell(bar: &ProgressBar, line: &str) {
    if bar.is_hidden() { eprintln!("{line}") } else { bar.println(line) }
}

/// Pages and plots.
fn write_pages(out: &Path, results: &Results<'_>, all: &[&Experiment]) -> Result<(), Failure> {
    let write = |name: &str, text: &str| {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| Failure::os(path.display(), &error))
    };
    for experiment in all {
        let name = format!("{}.svg", experiment.id);
        match page::plot(results, experiment).map(|plot| plot.svg()).transpose()?.flatten() {
            Some(svg) => write(&name, &svg)?,
            None => undo::file(&out.join(&name)).map_err(|error| Failure::os(&name, &error))?,
        }
    }
    page::all(results, all).iter().try_for_each(|page| write(page.file, &page.text))
}

#[cfg(test)]
mod tests;
