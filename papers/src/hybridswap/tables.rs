//! Tables: what `deepheap-papers hybridswap` writes into its page.
//!
//! Guarantees: what was not measured has no row.
//! Never: measures.

use super::load::{Done, Kind};
use super::{Behind, Run};
use crate::papers::figure;

pub const KINDS: [(Kind, &str); 4] = [
    (Kind::Image, "image"),
    (Kind::Mixed, "mixed"),
    (Kind::List, "list"),
    (Kind::Memcached, "memcached"),
];

/// The name of a program in cases and commands.
pub fn name_of(kind: Kind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("", |(_, name)| name)
}

/// Contenders, with the words that their cases have in their names.
pub const CONTENDERS: [(Behind, &str); 3] =
    [(Behind::Ssd, "ssd"), (Behind::Disk(Some(20)), "disk"), (Behind::Disk(None), "unbounded")];

/// Programs at once, with the names of their cases.
pub const SEVERAL: [(&str, &[Kind]); 2] =
    [("two", &[Kind::Image, Kind::Image]), ("three", &[Kind::Image, Kind::Mixed, Kind::Memcached])];

/// In percent.
pub const BOUNDS: [u32; 4] = [10, 20, 30, 50];
/// So far above its bound a share is too high.
const NEAR: f64 = 0.03;

/// All that is known.
pub fn all(runs: &[Run]) -> String {
    let tables = [programs(runs), several(runs), bounds(runs)];
    // Behind the two lines of its head a table has a row at least.
    tables.into_iter().filter(|table| table.lines().count() > 2).collect::<Vec<_>>().join("\n")
}

fn find<'a>(runs: &'a [Run], case: &str) -> Option<&'a [Done]> {
    runs.iter().rev().find(|run| run.case == case).map(|run| run.done.as_slice())
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

fn words(behind: Behind) -> &'static str {
    match behind {
        Behind::Ssd => "SSD",
        Behind::Disk(Some(_)) => "SSD and disk",
        Behind::Disk(None) => "the same, `stall:off`",
    }
}

fn programs(runs: &[Run]) -> String {
    let mut text = String::from(
        "| program | RAM | behind it | time | longer | SSD written | less | disk written | \
         waited |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for (_, kind) in KINDS {
        for quarters in 1..=4 {
            let alone = find(runs, &format!("{kind}-{quarters}-ssd")).map(|done| &done[0]);
            for (behind, word) in CONTENDERS {
                let Some(done) = find(runs, &format!("{kind}-{quarters}-{word}")) else { continue };
                let done = &done[0];
                let words = words(behind);
                let ram = if quarters == 4 { "all".to_owned() } else { format!("{quarters}/4") };
                let other = alone.filter(|_| behind != Behind::Ssd);
                let longer = other.map(|alone| percent(done.seconds / alone.seconds - 1.0));
                let less = other.map(|alone| {
                    percent(1.0 - done.store_written as f64 / alone.store_written.max(1) as f64)
                });
                text += &format!(
                    "| {kind} | {ram} | {words} | {:.1} s | {} | {} | {} | {} | {} |\n",
                    done.seconds,
                    longer.unwrap_or_default(),
                    figure::shown(done.store_written as f64, "B"),
                    less.unwrap_or_default(),
                    figure::shown(done.tier_written as f64, "B"),
                    percent(done.waited),
                );
            }
        }
    }
    text
}

/// Programs that work for the same time, so that how much they got done is what differs.
fn several(runs: &[Run]) -> String {
    let mut text = String::from(
        "| at once | behind them | program | rounds | fewer | SSD written a round | less | \
         disk written a round | waited |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for (name, kinds) in SEVERAL {
        let alone = find(runs, &format!("{name}-ssd"));
        for (behind, word) in CONTENDERS {
            let Some(all) = find(runs, &format!("{name}-{word}")) else { continue };
            for (at, (kind, done)) in kinds.iter().zip(all).enumerate() {
                let kind = name_of(*kind);
                let a_round = |bytes: u64, done: &Done| bytes as f64 / done.rounds.max(1e-3);
                let other = alone.filter(|_| behind != Behind::Ssd).map(|alone| &alone[at]);
                let fewer = other.map(|other| percent(1.0 - done.rounds / other.rounds));
                let written = a_round(done.store_written, done);
                let less =
                    other.map(|other| percent(1.0 - written / a_round(other.store_written, other)));
                let (first, words) = if at == 0 { (name, words(behind)) } else { ("", "") };
                text += &format!(
                    "| {first} | {words} | {kind} | {:.1} | {} | {} | {} | {} | {} |\n",
                    done.rounds,
                    fewer.unwrap_or_default(),
                    figure::shown(written, "B"),
                    less.unwrap_or_default(),
                    figure::shown(a_round(done.tier_written, done), "B"),
                    percent(done.waited),
                );
            }
        }
    }
    text
}

fn bounds(runs: &[Run]) -> String {
    let mut text = String::from(
        "| bound | waited, whole run | mean of now | time above the bound | by more than 3 \
         points | rounds | SSD written | disk written |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mut row = |name: String, bound: Option<u32>, done: &Done| {
        let above = |by: f64| {
            let limit = bound.map(|percent| f64::from(percent) / 100.0 + by);
            let part = |limit: f64| {
                let over = done.shares.iter().filter(|share| **share > limit).count();
                over as f64 / done.shares.len().max(1) as f64
            };
            limit.map(|limit| format!("{:.0} %", 100.0 * part(limit))).unwrap_or_default()
        };
        let mean = done.shares.iter().sum::<f64>() / done.shares.len().max(1) as f64;
        text += &format!(
            "| {name} | {} | {} | {} | {} | {:.1} | {} | {} |\n",
            percent(done.waited),
            percent(mean),
            above(0.0),
            above(NEAR),
            done.rounds,
            figure::shown(done.store_written as f64, "B"),
            figure::shown(done.tier_written as f64, "B"),
        );
    };
    if let Some(done) = find(runs, "bound-ssd") {
        row("SSD alone".into(), None, &done[0]);
    }
    for percent in BOUNDS {
        if let Some(done) = find(runs, &format!("bound-{percent}")) {
            row(format!("{percent} %"), Some(percent), &done[0]);
        }
    }
    if let Some([tight, wide]) = find(runs, "bound-two") {
        row("two at once: 10 %".into(), Some(10), tight);
        row("and 30 %".into(), Some(30), wide);
    }
    text
}
