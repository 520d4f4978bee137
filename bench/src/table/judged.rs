//! Judged: rows of the table, with medians, ratios, pass or short, and the markdown of the table.
//!
//! Guarantees: a row whose runs failed says so and is not passed.

use core::fmt::Write;

use serde_json::Value;

use super::case::{Case, Row, Target};
use super::contender::EXPLICIT_CALLS;
use super::{Rounds, Settings};

/// A judged row.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    title: String,
    target: String,
    reached: String,
    deepheap: String,
    others: String,
    outcome: &'static str,
}

/// The rows of a case with their numbers.
pub fn judge(case: &Case, rounds: &Rounds) -> Vec<Judged> {
    case.rows.iter().map(|row| judge_row(row, case.rounds as usize, rounds)).collect()
}

fn judge_row(row: &Row, wanted: usize, rounds: &Rounds) -> Judged {
    let of = |name: &str, values: &[Value]| {
        let numbers = values.iter().filter_map(|value| value.pointer(row.metric)?.as_f64());
        Samples::new(name, numbers.collect(), values.len() == wanted)
    };
    let all: Vec<Samples> = rounds.iter().map(|(name, values)| of(name, values)).collect();
    let named = |name| all.iter().find(|samples| samples.name == name);
    // Where deepheap runs by pointers, its calls are one of the others.
    let ours = named("deepheap").or_else(|| named(EXPLICIT_CALLS));
    let is_peer = |samples: &&Samples| row.against.iter().any(|a| samples.name.starts_with(a));
    let peers: Vec<&Samples> = all.iter().filter(is_peer).collect();
    let less_is_better = matches!(row.target, Target::RatioAtMost(_) | Target::AddedUsBelow(_));
    let best = peers
        .iter()
        .filter_map(|peer| peer.median())
        .reduce(|a, b| if less_is_better { a.min(b) } else { a.max(b) });
    let mine = ours.and_then(Samples::median);
    let complete = ours.is_some_and(|samples| samples.complete) && peers.iter().all(|p| p.complete);
    let pair = mine.zip(best);
    let ratio = pair.map(|(mine, best)| mine / best);
    let added_us = pair.map(|(mine, best)| (mine - best) / 1e3);
    let times = |ratio: Option<f64>| ratio.map(show_ratio);
    let (target, reached, passed) = match row.target {
        Target::RatioAtLeast(x) => {
            (format!("≥ {x}x"), times(ratio), ratio.is_some_and(|ratio| ratio >= x))
        }
        Target::RatioAtMost(x) => {
            (format!("≤ {}", show_ratio(x)), times(ratio), ratio.is_some_and(|ratio| ratio <= x))
        }
        Target::AtMost(x) => (format!("≤ {x} {}", row.unit), None, mine.is_some_and(|v| v <= x)),
        Target::AtLeast(x) => {
            (format!("≥ {} {}", short(x), row.unit), None, mine.is_some_and(|v| v >= x))
        }
        Target::AddedUsBelow(x) => (
            format!("< {x} us added"),
            added_us.map(|us| format!("{us:+.2} us")),
            added_us.is_some_and(|us| us < x),
        ),
        Target::Told => ("-".into(), times(ratio), true),
    };
    Judged {
        title: row.title.clone(),
        target,
        reached: reached.unwrap_or_else(|| "-".into()),
        deepheap: ours.map_or_else(|| "-".into(), |samples| samples.show(row.unit)),
        others: peers
            .iter()
            .map(|peer| format!("{} {}", peer.name, peer.show(row.unit)))
            .collect::<Vec<_>>()
            .join("; "),
        outcome: match (complete, passed) {
            (false, _) => "**failed**",
            (true, true) if row.target == Target::Told => "",
            (true, true) => "pass",
            (true, false) => "**short**",
        },
    }
}

/// The numbers of one contender.
struct Samples {
    name: String,
    sorted: Vec<f64>,
    complete: bool,
}

impl Samples {
    fn new(name: &str, mut numbers: Vec<f64>, complete: bool) -> Self {
        numbers.sort_by(f64::total_cmp);
        Self { name: name.into(), sorted: numbers, complete }
    }

    fn median(&self) -> Option<f64> {
        let n = self.sorted.len();
        let (low, high) = (self.sorted.get(n.saturating_sub(1) / 2)?, self.sorted.get(n / 2)?);
        Some((low + high) / 2.0)
    }

    fn show(&self, unit: &str) -> String {
        let Some(median) = self.median() else { return "no number".into() };
        let (low, high) = (self.sorted[0], self.sorted[self.sorted.len() - 1]);
        let (unit, scale) = if unit == "ns" { ("us", 1e-3) } else { (unit, 1.0) };
        let short = |value: f64| short(value * scale);
        if low == high {
            return format!("{} {unit}", short(median));
        }
        format!("{} {unit} ({}..{})", short(median), short(low), short(high))
    }
}

/// `2.50x`, or `1/20.0` where it is far below one.
fn show_ratio(ratio: f64) -> String {
    if ratio > 0.0 && ratio < 0.5 {
        format!("1/{:.1}", 1.0 / ratio)
    } else {
        format!("{ratio:.2}x")
    }
}

/// Three digits and a unit of thousands.
fn short(value: f64) -> String {
    let (scaled, suffix) = match value {
        v if v >= 1e6 => (v / 1e6, " M"),
        v if v >= 1e3 => (v / 1e3, " k"),
        v => (v, ""),
    };
    let digits = if scaled >= 100.0 || scaled == scaled.trunc() { 0 } else { 2 };
    format!("{scaled:.digits$}{suffix}")
}

/// The table; `pieces` says what the data is made of.
pub fn markdown(settings: &Settings, pieces: &str, rows: &[Judged]) -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut text = format!(
        "{} CPUs, Linux {}, {:.1} GiB{pieces}, {} MiB of RAM, {} s a run; medians \
         (lowest..highest)\n\n",
        std::thread::available_parallelism().map_or(0, usize::from),
        machine.trim(),
        settings.data_bytes as f64 / (1_u64 << 30) as f64,
        settings.ram_bytes >> 20,
        settings.seconds
    );
    text.push_str(
        "| case | target | reached | deepheap | the others | |\n|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let Judged { title, target, reached, deepheap, others, outcome } = row;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {title} | {target} | {reached} | {deepheap} | {others} | {outcome} |"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn results(name: &str, values: &[f64]) -> (String, Vec<Value>) {
        (name.into(), values.iter().map(|v| json!({ "x": v })).collect())
    }

    fn row(against: &'static [&'static str], target: Target) -> Row {
        Row { title: "t".into(), metric: "/x", unit: "op/s", against, target }
    }

    #[test]
    fn medians_are_compared_with_the_best_peer() {
        let rounds = vec![
            results("deepheap", &[9.0, 30.0, 20.0]),
            results("swap", &[10.0, 10.0, 99.0]),
            results("mmap", &[16.0, 1.0, 99.0]),
        ];
        let both = &["swap", "mmap"];
        let judged = judge_row(&row(both, Target::RatioAtLeast(1.25)), 3, &rounds);
        assert_eq!((judged.reached.as_str(), judged.outcome), ("1.25x", "pass"));
        let judged = judge_row(&row(both, Target::RatioAtMost(1.0)), 3, &rounds);
        assert_eq!((judged.reached.as_str(), judged.outcome), ("2.00x", "**short**"));
    }

    #[test]
    fn small_ratios_differences_and_floors_are_judged() {
        let rounds = vec![results("deepheap", &[150.0]), results("swap", &[4500.0])];
        let judged = judge_row(&row(&["swap"], Target::RatioAtMost(0.05)), 1, &rounds);
        assert_eq!((judged.target.as_str(), judged.reached.as_str()), ("≤ 1/20.0", "1/30.0"));
        assert_eq!(judged.outcome, "pass");
        let judged = judge_row(&row(&[], Target::AtLeast(3e6)), 1, &rounds);
        assert_eq!((judged.target.as_str(), judged.outcome), ("≥ 3 M op/s", "**short**"));
        let rounds = vec![results("deepheap", &[63_500.0]), results("calls", &[60_000.0])];
        let judged = judge_row(&row(&["calls"], Target::AddedUsBelow(10.0)), 1, &rounds);
        assert_eq!((judged.reached.as_str(), judged.outcome), ("+3.50 us", "pass"));
        let judged = judge_row(&row(&["calls"], Target::AddedUsBelow(3.0)), 1, &rounds);
        assert_eq!(judged.outcome, "**short**");
        let judged = judge_row(&row(&["calls"], Target::Told), 1, &rounds);
        assert_eq!((judged.reached.as_str(), judged.outcome), ("1.06x", ""));
    }

    #[test]
    fn deepheap_by_calls_is_judged_where_it_runs_only_by_calls() {
        let rounds = vec![results(EXPLICIT_CALLS, &[60.0]), results("swap", &[1.0])];
        let judged = judge_row(&row(&["swap"], Target::RatioAtLeast(50.0)), 1, &rounds);
        assert_eq!((judged.reached.as_str(), judged.outcome), ("60.00x", "pass"));
    }

    #[test]
    fn a_missing_run_is_a_failed_row() {
        let rounds = vec![results("deepheap", &[9.0]), results("swap", &[1.0, 1.0])];
        let judged = judge_row(&row(&["swap"], Target::RatioAtLeast(1.0)), 2, &rounds);
        assert_eq!(judged.outcome, "**failed**");
    }
}
