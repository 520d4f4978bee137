//! Bounded: programs with as much RAM as holds a bound on stalls (`--ram auto --stall`), held
//! against the same programs alone: what that saves and what it costs.
//!
//! Guarantees: alone and bounded take turns; both are in memory cgroups without a limit, whose use
//! is looked at again and again, so that RAM is what the kernel says; a wrong answer is a failure.
//! Threads: one, and those of a trial.

use std::time::Duration;

use super::programs::Program;
use super::settings::{Real, Settings};
use super::trial::{self, Trial};
use super::{each, no_wrong_values, percent, same_answer, warmed};
use crate::papers::command;
use crate::papers::figure;
use crate::papers::machine::{Machine, today};
use crate::papers::numbers::median;
use deepheap_bench::failure::Failure;
use deepheap_bench::output;

/// A run alone ends by then, and a bounded one.
const LIMIT: Duration = Duration::from_secs(600);

/// What a program came to: medians of the rounds.
struct Row {
    program: &'static Program,
    alone: Side,
    bounded: Side,
    /// The part of its run time that it waited in faults.
    waited: f64,
}

struct Side {
    seconds: f64,
    mean_bytes: f64,
}

impl Row {
    fn saved(&self) -> f64 {
        1.0 - self.bounded.mean_bytes / self.alone.mean_bytes
    }

    fn slower(&self) -> f64 {
        self.bounded.seconds / self.alone.seconds - 1.0
    }
}

/// Measures, and prints a table.
pub fn measure(
    asked: &Real,
    chosen: &[&'static Program],
    settings: &Settings,
    stall: &str,
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    output::line(format_args!(
        "`{}`, {}, {}\n\n\
         | program | alone | bounded | slower | RAM alone | bounded | saved | waited |\n\
         |---|---|---|---|---|---|---|---|",
        command(),
        today(),
        Machine::here(&settings.dir).in_short()
    ))?;
    let measured = each(chosen, |program| {
        let row = row(asked, program, settings, stall)?;
        print(&row)?;
        rows.push(row);
        Ok(())
    });
    if let Err(interrupted @ Failure::Interrupted(_)) = measured {
        return Err(interrupted);
    }
    let of = |number: fn(&Row) -> f64| median(rows.iter().map(number).collect()).unwrap_or(0.0);
    let (saved, slower) = (percent(of(Row::saved)), percent(of(Row::slower)));
    output::line(format_args!("\nMedian of {}: {saved} saved, {slower} slower", rows.len()))?;
    measured
}

fn row(
    asked: &Real,
    program: &'static Program,
    settings: &Settings,
    stall: &str,
) -> Result<Row, Failure> {
    let scratch = warmed(program, settings)?;
    let (mut alone, mut bounded) = (Vec::new(), Vec::new());
    for _ in 0..asked.rounds {
        for (stall, trials) in [(None, &mut alone), (Some(stall), &mut bounded)] {
            let trial = trial::unlimited(&scratch, stall, LIMIT, settings)?;
            no_wrong_values(&trial)?;
            trials.push(trial);
        }
        if let (Some(alone), Some(bounded)) = (alone.last(), bounded.last()) {
            same_answer(alone, bounded)?;
        }
    }
    let number = |trials: &[Trial], name: &str| {
        median(trials.iter().filter_map(|trial| trial.numbers.get(name)).collect()).unwrap_or(0.0)
    };
    let side = |trials: &[Trial]| Side {
        seconds: number(trials, "seconds"),
        mean_bytes: number(trials, "mean_bytes"),
    };
    let waited = number(&bounded, "stall_share");
    Ok(Row { program, alone: side(&alone), bounded: side(&bounded), waited })
}

fn print(row: &Row) -> Result<(), Failure> {
    let [alone, bounded] = [&row.alone, &row.bounded];
    output::line(format_args!(
        "| {} | {:.2} s | {:.2} s | {} | {} | {} | {} | {} |",
        row.program.id,
        alone.seconds,
        bounded.seconds,
        percent(row.slower()),
        figure::shown(alone.mean_bytes, "B"),
        figure::shown(bounded.mean_bytes, "B"),
        percent(row.saved()),
        percent(row.waited),
    ))
}
