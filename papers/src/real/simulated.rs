//! Simulated: how near `deepheap simulate` comes. Programs are traced with one RAM budget; that
//! trace is played with another budget, and held against what they meet with it.
//!
//! Guarantees: the answers are compared with those of the program alone. Both ratios of a budget
//! are of the touches that the first trace saw: with more RAM fewer are seen, of the same accesses.
//! Threads: one, and those of a trial.

use std::fs;

use deepheap_tools::simulation::Simulation;
use deepheap_tools::trace::format::Trace;

use super::contender::Part;
use super::programs::Program;
use super::settings::{self, Real, Settings};
use super::trial;
use super::{alone, each, no_wrong_values, same_answer, warmed};
use crate::papers::command;
use crate::papers::figure;
use crate::papers::machine::{Machine, today};
use deepheap_bench::failure::Failure;
use deepheap_bench::output;

const TRACE: &str = "trace";
/// Within so many points a prediction is good.
const POINTS: f64 = 3.0;

/// A budget, and the reads of the device for 100 touches that were met and simulated with it.
struct Side {
    ram: u64,
    met: f64,
    simulated: f64,
}

/// Measures, and prints a table.
pub fn measure(
    asked: &Real,
    chosen: &[&'static Program],
    settings: &Settings,
) -> Result<(), Failure> {
    let [traced, other] = asked.sizes[..] else {
        return Err(Failure::Refused(
            "--simulated needs two --sizes: that of the trace, and that of the prediction".into(),
        ));
    };
    output::line(format_args!(
        "`{}`, {}, {}; RAM is {traced} and {other} of the peak alone\n\n\
         | program | traced with | met | simulated | with | met | simulated | off |\n\
         |---|---|---|---|---|---|---|---|",
        command(),
        today(),
        Machine::here(&settings.dir).in_short()
    ))?;
    let mut good = 0;
    let measured = each(chosen, |program| {
        let [then, now] = sides(program, settings, [traced, other])?;
        let off = (now.simulated - now.met).abs();
        good += usize::from(off <= POINTS);
        let bytes = |bytes: u64| figure::shown(bytes as f64, "B");
        output::line(format_args!(
            "| {} | {} | {:.1} | {:.1} | {} | {:.1} | {:.1} | {off:.1} |",
            program.id,
            bytes(then.ram),
            then.met,
            then.simulated,
            bytes(now.ram),
            now.met,
            now.simulated,
        ))
    });
    if let Err(interrupted @ Failure::Interrupted(_)) = measured {
        return Err(interrupted);
    }
    output::line(format_args!("\n{good} within {POINTS:.0} points"))?;
    measured
}

fn sides(
    program: &'static Program,
    settings: &Settings,
    parts: [Part; 2],
) -> Result<[Side; 2], Failure> {
    let scratch = warmed(program, settings)?;
    let (alone, peak_bytes, seconds) = alone(&scratch, settings)?;
    let file = scratch.file(TRACE);
    let conf = format!("trace:{}", file.display());
    let traces = parts.map(|part| {
        let _ = fs::remove_file(&file);
        let budget = Some(part.of(peak_bytes));
        let limit = settings::limit(seconds);
        let trial = trial::answer(&scratch, budget, limit, &settings.with(&conf))?;
        no_wrong_values(&trial)?;
        same_answer(&alone, &trial)?;
        let bytes = fs::read(&file).map_err(|error| Failure::os(file.display(), &error))?;
        let trace = Trace::read(&bytes)
            .map_err(|error| Failure::Failed(format!("{}: {error}", file.display())))?;
        Ok(Simulation::new(&trace))
    });
    let [then, now] = traces;
    let (then, now) = (then?, now?);
    let touches = then.seen.touches.max(1) as f64;
    let side = |traced: &Simulation| {
        let ram = traced.traced_ram;
        let played = then.play(ram, then.terms(ram)).counts;
        let of_touches = |reads: u64| 100.0 * reads as f64 / touches;
        let (met, simulated) = (of_touches(traced.seen.reads), of_touches(played.reads()));
        Side { ram, met, simulated }
    };
    Ok([side(&then), side(&now)])
}
