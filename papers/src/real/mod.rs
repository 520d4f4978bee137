//! Real: programs that users know, each with a small workload, alone and with less memory than they
//! take, on deepheap, on swap and on zram; and the table of docs/measured/real-programs.md.
//!
//! ```text
//! programs   what is measured, as data      inputs     the data they work on
//! contender  where memory comes from        load       clients of the servers
//! scratch    a program's folder             trial      one run
//! spent      what a run takes besides time  settings   what the command takes
//! standing   what the rounds come to        measured   a line for each part of the peak
//! page       tables and text                behind     what bounds slow rows
//! chart      the plot
//! bounded    RAM under a bound on stalls    varied     other settings, in turns
//! simulated  what a trace foretells
//! ```
//!
//! Guarantees: the contenders take turns within each round; a run is on disk as soon as it is
//! measured; every output is compared with that of the program alone, and a wrong one is told and
//! gives exit status 1; a program that is missing is told with its package.
//! Never: puts a number on the page that is not in a run's file.
//! Threads: one, and those of a trial.

mod behind;
mod bounded;
mod chart;
mod contender;
mod inputs;
mod load;
mod measured;
mod page;
mod programs;
mod scratch;
mod settings;
mod simulated;
mod spent;
mod standing;
mod trial;
mod varied;

use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::papers::machine::{self, Machine};
use crate::papers::runs::{Record, Round, Runs};
use crate::papers::{bar, command, figure, tell};
use contender::{Contender, Part};
use deepheap_bench::failure::Failure;
use deepheap_bench::{output, signals, zram};
use measured::Measured;
use programs::{Content, Job, Program};
use scratch::Scratch;
use settings::{Settings, Size};
use standing::Standing;
use trial::{Terms, Trial};

pub use settings::Real;

/// deepheap's budget in a quick sitting: less than each program takes.
const QUICK_BUDGET_BYTES: u64 = 24 << 20;
const QUICK_LIMIT: Duration = Duration::from_secs(120);
/// A program alone ends by then.
const ALONE_LIMIT: Duration = Duration::from_secs(300);

/// A sitting.
struct Sitting<'a> {
    asked: &'a Real,
    settings: Settings,
    runs: Runs,
    machine: Machine,
    bar: ProgressBar,
    /// What gave no number, and why.
    failed: Vec<String>,
}

impl Real {
    /// Measures what is missing and writes the page, or runs the quick form.
    pub fn main(&self) -> Result<(), Failure> {
        signals::install();
        let chosen = self.chosen()?;
        if self.list {
            return list(&chosen);
        }
        let settings = self.settings()?;
        if let Some(stall) = &self.stall {
            return bounded::measure(self, &chosen, &settings, stall);
        }
        if !self.conf.is_empty() {
            return varied::measure(self, &chosen, &settings);
        }
        if self.simulated {
            return simulated::measure(self, &chosen, &settings);
        }
        if self.quick {
            return answers(&chosen, &settings);
        }
        let runs = Runs::open(&self.runs_of(self.size()))?;
        if self.pages {
            return self.write_page();
        }
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Failure::Refused(
                "this needs root: it makes memory cgroups and swap; --quick does not".into(),
            ));
        }
        // Now, not when all is measured.
        std::fs::create_dir_all(&self.out)
            .map_err(|error| Failure::os(self.out.display(), &error))?;
        let machine = Machine::here(&settings.dir);
        let (asked, failed) = (self, Vec::new());
        let mut sitting = Sitting { asked, settings, runs, machine, bar: bar(0), failed };
        let measured = sitting.measure(&chosen);
        sitting.bar.finish_and_clear();
        // What is there is shown, also after Ctrl-C.
        self.write_page()?;
        measured?;
        match sitting.failed.as_slice() {
            [] => Ok(()),
            failed => Err(Failure::Failed(format!(
                "{} gave no number:\n  {}",
                failed.len(),
                failed.join("\n  ")
            ))),
        }
    }

    fn write_page(&self) -> Result<(), Failure> {
        let all = |size| {
            let runs = Runs::open(&self.runs_of(size))?;
            let all = self.all(size).into_iter();
            Ok::<Vec<Measured>, Failure>(
                all.map(|program| known(&runs, program, &self.sizes)).collect(),
            )
        };
        let (large, small) = (all(Size::Large)?, all(Size::Small)?);
        let (text, plot) = page::text(&large, &small)?;
        let [page, svg] = page::FILES.map(|name| self.out.join(name));
        page::put(&page, &text)?;
        let plot = plot.map_or(Ok(()), |plot| std::fs::write(&svg, plot));
        plot.map_err(|error| Failure::os(svg.display(), &error))?;
        output::line(text)?;
        // What all of it comes to, where it is seen at once.
        let asked = if self.size() == Size::Small { &small } else { &large };
        output::line(page::summary(asked))
    }
}

/// Measures each of the programs that are installed; what went wrong is told when all are through.
fn each(
    chosen: &[&'static Program],
    mut measure: impl FnMut(&'static Program) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut failed = Vec::new();
    for program in chosen {
        if let Some(why) = scratch::missing(program) {
            failed.push(format!("{}: {why}", program.id));
            continue;
        }
        match measure(program) {
            Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
            Err(failure) => failed.push(format!("{}: {failure}", program.id)),
            Ok(()) => {}
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::Failed(failed.join("\n"))) }
}

/// A program's folder, after a run by which the pages of program and libraries were read where no
/// memory cgroup pays for them.
fn warmed(program: &'static Program, settings: &Settings) -> Result<Scratch<'static>, Failure> {
    let scratch = Scratch::new(program, program.amount)?;
    trial::answer(&scratch, None, ALONE_LIMIT, settings)?;
    scratch::read(&settings.deepheap);
    scratch::read(&settings.deepheap.with_file_name("libdeepheap_preload.so"));
    Ok(scratch)
}

/// A run of a program alone, and how much RAM and how many seconds it took.
fn alone(scratch: &Scratch<'_>, settings: &Settings) -> Result<(Trial, u64, f64), Failure> {
    let free = Terms { bytes: None, peak_bytes: 0, limit: ALONE_LIMIT, known_bytes: None };
    let alone = trial::run(scratch, Contender::Alone, &free, settings)?;
    let [peak, seconds] = ["peak_bytes", "seconds"].map(|name| alone.numbers.get(name));
    match (peak, seconds) {
        (Some(peak), Some(seconds)) => Ok((alone, peak as u64, seconds)),
        _ => Err(Failure::Failed("alone it does not end in time".into())),
    }
}

/// Whether a run printed what the program printed alone.
fn same_answer(alone: &Trial, trial: &Trial) -> Result<(), Failure> {
    if trial.digest == alone.digest {
        return Ok(());
    }
    let digests = [&alone.digest, &trial.digest];
    Err(Failure::Failed(format!("WRONG OUTPUT, or late: {digests:?}")))
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn list(chosen: &[&Program]) -> Result<(), Failure> {
    for program in chosen {
        let missing = scratch::missing(program).unwrap_or_default();
        output::line(format!("{:18} {missing}", program.id).trim_end())?;
    }
    Ok(())
}

/// Everything that another number could come of, but the machine.
fn asked(program: &Program, contender: Contender, part: Option<(Part, u64)>) -> Value {
    let (files, arguments) = match &program.job {
        Job::Batch(batch) => {
            let text = |(name, content): &(&str, Content)| match content {
                Content::Text(text) => json!([name, text]),
                Content::Made(_) => json!([name]),
            };
            (batch.files.iter().map(text).collect::<Vec<_>>(), batch.arguments)
        }
        Job::Server { arguments, .. } => (Vec::new(), *arguments),
    };
    json!({
        "program": program.id,
        "contender": contender.name(),
        "amount": program.amount,
        "files": files,
        "arguments": arguments,
        "environment": program.environment,
        "part": part.map(|(part, _)| part.to_string()),
        "peak_bytes": part.map(|(_, peak)| peak),
    })
}

fn id(program: &Program, contender: Contender, part: Option<Part>) -> String {
    let part = part.map(|part| format!("{}.", part.id())).unwrap_or_default();
    format!("{}.{part}{}", program.id, contender.name())
}

/// What is on disk.
fn known(runs: &Runs, program: &'static Program, parts: &[Part]) -> Measured {
    let alone =
        runs.load(&id(program, Contender::Alone, None), &asked(program, Contender::Alone, None));
    let mut measured = Measured { program, alone, limited: Vec::new() };
    let peak = measured.peak_bytes().unwrap_or(0);
    let load = |part, who| {
        runs.load(&id(program, who, Some(part)), &asked(program, who, Some((part, peak))))
    };
    let of = |&part: &Part| (part, Contender::LIMITED.map(|who| load(part, who)).to_vec());
    measured.limited = parts.iter().map(of).collect();
    measured
}

impl Sitting<'_> {
    fn measure(&mut self, chosen: &[&'static Program]) -> Result<(), Failure> {
        let points = 1 + self.asked.sizes.len() * self.asked.contenders.len();
        self.bar.set_length(chosen.len() as u64 * points as u64 * u64::from(self.asked.rounds));
        if self.asked.contenders.contains(&Contender::Zram) && !zram::is_there() {
            tell(&self.bar, "zram: this kernel has none (CONFIG_ZRAM); left out");
        }
        for program in chosen {
            if let Some(why) = scratch::missing(program) {
                tell(&self.bar, &format!("{}: skipped, {why}", program.id));
                continue;
            }
            match self.program(program) {
                Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
                Err(failure) => self.failed.push(format!("{}: {failure}", program.id)),
                Ok(()) => (),
            }
        }
        Ok(())
    }

    fn program(&mut self, program: &'static Program) -> Result<(), Failure> {
        let scratch = Scratch::new(program, program.amount)?;
        let mut is_warm = false;
        for round in 0..self.asked.rounds {
            let alone = Terms { bytes: None, peak_bytes: 0, limit: ALONE_LIMIT, known_bytes: None };
            self.point(&scratch, Contender::Alone, None, round, alone, &mut is_warm)?;
            let measured = known(&self.runs, program, &self.asked.sizes);
            let Some(peak) = measured.peak_bytes() else {
                let why = measured.alone.failed.unwrap_or_else(|| "no peak".into());
                return Err(Failure::Failed(format!("alone: {why}")));
            };
            let seconds = measured.alone.median("seconds").unwrap_or(0.0);
            for &part in &self.asked.sizes {
                for &contender in &self.asked.contenders {
                    if contender == Contender::Zram && !zram::is_there() {
                        self.bar.inc(1);
                        continue;
                    }
                    let terms = Terms {
                        bytes: Some(part.of(peak)),
                        peak_bytes: peak,
                        limit: settings::limit(seconds),
                        known_bytes: None,
                    };
                    let part = Some((part, peak));
                    self.point(&scratch, contender, part, round, terms, &mut is_warm)?;
                }
            }
        }
        Ok(())
    }

    /// Measures once, unless that is done.
    fn point(
        &mut self,
        scratch: &Scratch<'_>,
        contender: Contender,
        part: Option<(Part, u64)>,
        round: u32,
        mut terms: Terms,
        is_warm: &mut bool,
    ) -> Result<(), Failure> {
        let program = scratch.program();
        let id = id(program, contender, part.map(|(part, _)| part));
        let asked = asked(program, contender, part);
        self.bar.set_message(id.clone());
        let anew = self.asked.again && round == 0 && contender != Contender::Alone;
        let known = self.runs.load(&id, &asked);
        let mut record = if anew { Record::empty(&id, &asked) } else { known };
        let is_over = round > 0 && Standing::of(&record).is_final();
        if record.rounds.len() > round as usize || is_over {
            self.bar.inc(1);
            return Ok(());
        }
        signals::interrupted()?;
        if !*is_warm {
            // The pages of program and libraries are read where no memory cgroup pays for them.
            trial::answer(scratch, None, ALONE_LIMIT, &self.settings)?;
            scratch::read(&self.settings.deepheap);
            scratch::read(&self.settings.deepheap.with_file_name("libdeepheap_preload.so"));
            *is_warm = true;
        }
        // What the run before left to write back is not this one's to wait for.
        // SAFETY: sync has no preconditions.
        unsafe { libc::sync() };
        let name = if contender == Contender::Zram { "cgroup_bytes" } else { "budget_bytes" };
        let first = record.rounds.first().and_then(|first| first.numbers.get(name));
        terms.known_bytes = first.map(|bytes| bytes as u64);
        let tried = trial::run(scratch, contender, &terms, &self.settings);
        let tried = tried.and_then(|trial| self.compare(program, contender, trial));
        match tried {
            Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
            Err(failure) => {
                tell(&self.bar, &format!("{id}: FAILED: {failure}"));
                self.failed.push(format!("{id}: {failure}"));
                record.failed = Some(failure.to_string());
            }
            Ok(trial) => {
                let round = self.round(&trial, &terms);
                record.rounds.push(round);
                record.failed = None;
                tell(&self.bar, &format!("{id}: {}", said(&trial, &record)));
            }
        }
        self.bar.inc(1);
        self.runs.save(&record)
    }

    /// Refuses an output that is not that of the program alone.
    fn compare(
        &self,
        program: &Program,
        contender: Contender,
        trial: Trial,
    ) -> Result<Trial, Failure> {
        let alone = Contender::Alone;
        let record = self.runs.load(&id(program, alone, None), &asked(program, alone, None));
        let right = record.rounds.first().and_then(|first| first.report["digest"].as_str());
        if let (Some(right), Some(digest)) = (right, &trial.digest)
            && right != digest
        {
            return Err(Failure::Failed(format!("WRONG OUTPUT: {digest}, alone {right}")));
        }
        if contender == alone && trial.digest.is_none() {
            return Err(Failure::Failed("it did not end in time alone".into()));
        }
        no_wrong_values(&trial)?;
        Ok(trial)
    }

    fn round(&self, trial: &Trial, terms: &Terms) -> Round {
        Round {
            date: machine::today(),
            command: command(),
            machine: self.machine.clone(),
            limit_bytes: terms.bytes,
            numbers: trial.numbers.clone(),
            report: trial::report(trial),
        }
    }
}

/// Servers count what they answered wrongly; alone, too, there may be nothing.
fn no_wrong_values(trial: &Trial) -> Result<(), Failure> {
    match &trial.digest {
        Some(digest) if digest.ends_with(" wrong") && !digest.ends_with(" 0 wrong") => {
            Err(Failure::Failed(format!("WRONG VALUES: {digest}")))
        }
        _ => Ok(()),
    }
}

/// A run in some words.
fn said(trial: &Trial, record: &Record) -> String {
    let standing = Standing::of(&Record {
        rounds: record.rounds.last().cloned().into_iter().collect(),
        ..record.clone()
    });
    let mib = |name: &str| figure::or_dash(trial.numbers.get(name), "B");
    let more = ["limit_bytes", "budget_bytes", "outside_bytes", "unmanaged_bytes", "pool_bytes"];
    let more: String = more
        .into_iter()
        .filter(|name| trial.numbers.get(name).is_some())
        .map(|name| format!(", {} {}", name.trim_end_matches("_bytes"), mib(name)))
        .collect();
    format!("{}, peak {}{more}", standing.shown(), mib("peak_bytes"))
}

/// The quick form: the answers of three programs, alone and on deepheap.
fn answers(chosen: &[&Program], settings: &Settings) -> Result<(), Failure> {
    let mut failed = Vec::new();
    for program in chosen {
        if let Some(why) = scratch::missing(program) {
            failed.push(format!("{}: {why}", program.id));
            continue;
        }
        match answer(program, settings) {
            Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
            Err(failure) => failed.push(format!("{}: {failure}", program.id)),
            Ok(said) => output::line(format_args!("{}: {said}", program.id))?,
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::Failed(failed.join("\n"))) }
}

fn answer(program: &Program, settings: &Settings) -> Result<String, Failure> {
    let scratch = Scratch::new(program, program.quick_amount.unwrap_or(program.amount))?;
    let run = |budget| trial::answer(&scratch, budget, QUICK_LIMIT, settings);
    let (alone, ours) = (run(None)?, run(Some(QUICK_BUDGET_BYTES))?);
    no_wrong_values(&alone)?;
    let (Some(right), Some(digest)) = (&alone.digest, &ours.digest) else {
        return Err(Failure::Failed("it did not end in time".into()));
    };
    if right != digest {
        return Err(Failure::Failed(format!("WRONG OUTPUT: {digest}, alone {right}")));
    }
    // A budget that does not bind would say nothing.
    let evictions = ours.numbers.get("evictions").filter(|&count| count > 0.0);
    let evictions = evictions.ok_or_else(|| Failure::Failed("nothing was evicted".to_string()))?;
    Ok(format!("right ({digest}), {evictions} pages evicted"))
}
