//! Varied: programs at a part of their peak as they are, and with other settings (`--conf`): a
//! policy switched off, or a second tier behind the store.
//!
//! Guarantees: all of them take turns, with the same budget; answers are compared with those of the
//! program alone.
//! Threads: one, and those of a trial.

use super::contender::Contender;
use super::programs::Program;
use super::settings::{self, Real, Settings};
use super::trial::{self, Terms, Trial};
use super::{alone, each, no_wrong_values, percent, same_answer, warmed};
use crate::papers::command;
use crate::papers::figure;
use crate::papers::machine::{Machine, today};
use crate::papers::numbers::median;
use deepheap_bench::failure::Failure;
use deepheap_bench::output;

/// What a program came to with a setting: medians of the rounds.
struct Row {
    seconds: f64,
    /// By the store's device.
    read: f64,
    written: f64,
    on_tier: f64,
    waited: f64,
}

/// Measures, and prints a table.
pub fn measure(
    asked: &Real,
    chosen: &[&'static Program],
    settings: &Settings,
) -> Result<(), Failure> {
    let part = asked.sizes[0];
    output::line(format_args!(
        "`{}`, {}, {}; RAM is {part} of the peak alone\n\n\
         | program | settings | time | longer | read | written | fewer | tier written | waited |\n\
         |---|---|---|---|---|---|---|---|---|",
        command(),
        today(),
        Machine::here(&settings.dir).in_short()
    ))?;
    let mut all: Vec<Vec<(f64, Option<f64>)>> = vec![Vec::new(); asked.conf.len()];
    let measured = each(chosen, |program| {
        let (plain, varied) = rows(asked, program, settings)?;
        print(program.id, "", &plain, None)?;
        for ((words, row), all) in asked.conf.iter().zip(&varied).zip(&mut all) {
            let longer = row.seconds / plain.seconds - 1.0;
            let fewer = (plain.written > 0.0).then(|| 1.0 - row.written / plain.written);
            all.push((longer, fewer));
            print(program.id, words, row, Some((longer, fewer)))?;
        }
        Ok(())
    });
    if let Err(interrupted @ Failure::Interrupted(_)) = measured {
        return Err(interrupted);
    }
    output::line("")?;
    for (words, all) in asked.conf.iter().zip(all) {
        let count = all.len();
        if count == 0 {
            continue;
        }
        let (longer, fewer): (Vec<f64>, Vec<Option<f64>>) = all.into_iter().unzip();
        let fewer = fewer.into_iter().flatten().collect();
        let [longer, fewer] = [longer, fewer].map(|all| percent(median(all).unwrap_or(0.0)));
        output::line(format_args!(
            "`{words}`, median of {count}: {fewer} fewer bytes, {longer} longer"
        ))?;
    }
    measured
}

/// As it is, and with each of the words.
fn rows(
    asked: &Real,
    program: &'static Program,
    settings: &Settings,
) -> Result<(Row, Vec<Row>), Failure> {
    let scratch = warmed(program, settings)?;
    let (alone, peak_bytes, seconds) = alone(&scratch, settings)?;
    let number = |trial: &Trial, name: &str| trial.numbers.get(name);
    let bytes = Some(asked.sizes[0].of(peak_bytes));
    let limit = settings::limit(seconds);
    let varied = asked.conf.iter().map(|words| settings.with(words));
    let variants: Vec<Settings> = std::iter::once(settings.clone()).chain(varied).collect();
    let mut known_bytes = None;
    let mut trials = vec![Vec::new(); variants.len()];
    for round in 0..asked.rounds as usize {
        // Each round begins with another one: what a trial has written late slows the next.
        for turn in 0..variants.len() {
            let at = (turn + round) % variants.len();
            let terms = Terms { bytes, peak_bytes, limit, known_bytes };
            let trial = trial::run(&scratch, Contender::Deepheap, &terms, &variants[at])?;
            no_wrong_values(&trial)?;
            same_answer(&alone, &trial)?;
            known_bytes = known_bytes.or(number(&trial, "budget_bytes").map(|bytes| bytes as u64));
            trials[at].push(trial);
        }
    }
    let row = |trials: Vec<Trial>| {
        let of = |name: &str| {
            let all = trials.iter().filter_map(|trial| number(trial, name));
            median(all.collect()).unwrap_or(0.0)
        };
        Row {
            seconds: of("seconds"),
            read: of("read_bytes"),
            written: of("written_bytes"),
            on_tier: of("tier_bytes"),
            waited: of("stall_share"),
        }
    };
    let mut rows = trials.into_iter().map(row);
    let plain = rows.next().expect("the first variant is as it is");
    Ok((plain, rows.collect()))
}

fn print(
    program: &str,
    words: &str,
    row: &Row,
    against: Option<(f64, Option<f64>)>,
) -> Result<(), Failure> {
    let bytes = |bytes| figure::shown(bytes, "B");
    let (words, longer, fewer) = match against {
        Some((longer, fewer)) => {
            (format!("`{words}`"), percent(longer), fewer.map_or_else(String::new, percent))
        }
        None => ("as it is".into(), String::new(), String::new()),
    };
    output::line(format_args!(
        "| {program} | {words} | {:.2} s | {longer} | {} | {} | {fewer} | {} | {} |",
        row.seconds,
        bytes(row.read),
        bytes(row.written),
        bytes(row.on_tier),
        percent(row.waited),
    ))
}
