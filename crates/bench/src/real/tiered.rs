//! Tiered: programs at a part of their peak with the store alone, and with a second tier behind it
//! (`--tier`): what the store's device is written less, and what that costs.
//!
//! Guarantees: both take turns, with the same budget; answers are compared with those of the
//! program alone.
//! Threads: one, and those of a trial.

use super::contender::Contender;
use super::programs::Program;
use super::settings::{self, Real, Settings};
use super::trial::{self, Terms, Trial};
use super::{ALONE_LIMIT, each, no_wrong_values, percent, warmed};
use crate::failure::Failure;
use crate::output;
use crate::papers::command;
use crate::papers::figure;
use crate::papers::machine::{Machine, today};
use crate::papers::numbers::median;

/// What a program came to: medians of the rounds.
struct Row {
    seconds: [f64; 2],
    /// What the store's device was written.
    written: [f64; 2],
    on_tier: f64,
    stood: [f64; 2],
}

/// Measures, and prints a table.
pub fn measure(
    asked: &Real,
    chosen: &[&'static Program],
    settings: &Settings,
    tier: &str,
) -> Result<(), Failure> {
    let part = asked.sizes[0];
    output::line(format_args!(
        "`{}`, {}, {}; RAM is {part} of the peak alone\n\n\
         | program | store alone | with the tier | slower | store written | with the tier | fewer \
         | tier written | stood | with the tier |\n\
         |---|---|---|---|---|---|---|---|---|---|",
        command(),
        today(),
        Machine::here(&settings.dir).in_short()
    ))?;
    let (mut slower, mut fewer) = (Vec::new(), Vec::new());
    let measured = each(chosen, |program| {
        let row = row(asked, program, settings, tier)?;
        slower.push(row.seconds[1] / row.seconds[0] - 1.0);
        fewer.push(1.0 - row.written[1] / row.written[0].max(1.0));
        print(program, &row, slower[slower.len() - 1], fewer[fewer.len() - 1])
    });
    if let Err(interrupted @ Failure::Interrupted(_)) = measured {
        return Err(interrupted);
    }
    let count = slower.len();
    let [slower, fewer] = [slower, fewer].map(|all| percent(median(all).unwrap_or(0.0)));
    output::line(format_args!("\nMedian of {count}: {fewer} fewer bytes, {slower} slower"))?;
    measured
}

fn row(
    asked: &Real,
    program: &'static Program,
    settings: &Settings,
    tier: &str,
) -> Result<Row, Failure> {
    let scratch = warmed(program, settings)?;
    let free = Terms { bytes: None, peak_bytes: 0, limit: ALONE_LIMIT, known_bytes: None };
    let alone = trial::run(&scratch, Contender::Alone, &free, settings)?;
    let number = |trial: &Trial, name: &str| trial.numbers.get(name);
    let (Some(peak), Some(seconds)) = (number(&alone, "peak_bytes"), number(&alone, "seconds"))
    else {
        return Err(Failure::Failed("alone it does not end in time".into()));
    };
    let bytes = Some(asked.sizes[0].of(peak as u64));
    let limit = settings::limit(seconds);
    let tiered = Settings { tier: Some(tier.to_owned()), ..settings.clone() };
    let mut known_bytes = None;
    let mut trials = [Vec::new(), Vec::new()];
    for _ in 0..asked.rounds {
        for (with, trials) in [settings, &tiered].into_iter().zip(&mut trials) {
            let terms = Terms { bytes, peak_bytes: peak as u64, limit, known_bytes };
            let trial = trial::run(&scratch, Contender::Deepheap, &terms, with)?;
            no_wrong_values(&trial)?;
            if trial.digest != alone.digest {
                let digests = [&alone.digest, &trial.digest];
                return Err(Failure::Failed(format!("WRONG OUTPUT, or late: {digests:?}")));
            }
            known_bytes = known_bytes.or(number(&trial, "budget_bytes").map(|bytes| bytes as u64));
            trials.push(trial);
        }
    }
    let of = |which: usize, name: &str| {
        let all = trials[which].iter().filter_map(|trial| number(trial, name));
        median(all.collect()).unwrap_or(0.0)
    };
    let both = |name: &str| [of(0, name), of(1, name)];
    Ok(Row {
        seconds: both("seconds"),
        written: both("written_bytes"),
        on_tier: of(1, "tier_bytes"),
        stood: both("stall_share"),
    })
}

fn print(program: &Program, row: &Row, slower: f64, fewer: f64) -> Result<(), Failure> {
    let bytes = |bytes| figure::shown(bytes, "B");
    output::line(format_args!(
        "| {} | {:.2} s | {:.2} s | {} | {} | {} | {} | {} | {} | {} |",
        program.id,
        row.seconds[0],
        row.seconds[1],
        percent(slower),
        bytes(row.written[0]),
        bytes(row.written[1]),
        percent(fewer),
        bytes(row.on_tier),
        percent(row.stood[0]),
        percent(row.stood[1]),
    ))
}
