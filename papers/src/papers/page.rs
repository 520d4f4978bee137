//! Page: the papers' experiments beside ours, in markdown.
//!
//! Guarantees: a number on a page is a run's, or the paper's and cited, or a setting; what failed
//! or was not measured says so.
//! Never: measures; reads a run with other settings.

use core::fmt::Write;
use std::collections::BTreeSet;

use super::experiments::{Case, Contender, Drawn, Experiment, GOALS, Goal, Paper, Program, Reach};
use super::figure::{self, or_dash};
use super::plot::Plot;
use super::results::Results;
use super::runs::Record;

/// A file of the pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// Its name.
    pub file: &'static str,
    /// Its content.
    pub text: String,
}

const WRITTEN_BY: &str =
    "<!-- Written by `deepheap-papers papers`: edit papers/src/papers, not this. -->\n";

const SSDALLOC: &str = "# SSDAlloc, measured again

This page repeats the measurements of A. Badam and V. S. Pai, \"SSDAlloc: Hybrid SSD/RAM Memory \
Management Made Easy\" (NSDI 2011), with deepheap on a machine of today. The paper calls objects \
OPP and memory pages MP; numbers in brackets are its sections.
";
const SSDRAM: &str = "# SSDRAM, measured again

This page repeats the measurements of L. Wang, Q. Wang, L. Chen and X. Hao, \"Fine-Grained Data \
Management for DRAM/SSD Hybrid Main Memory Architecture\" (IEICE Transactions 2016), with deepheap \
on a machine of today. Numbers in brackets are the paper's sections.
";
const GOALS_INTRO: &str = "# The papers, measured again

Every table and figure of [SSDAlloc](ssdalloc.md) and [SSDRAM](ssdram.md) that measures something, \
against Linux swap and an mmapped file on the same device with as much RAM. The points \
are in `runs.jsonl`, with the date and the command of each of their rounds: not all are of one \
sitting, nor of the last change. `make bench-papers` measures what was not measured on the \
machine it runs on, `BENCH_OPTIONS=--again` all of it, in about two hours; stopped, it goes \
on where it was. `BENCH_OPTIONS=--quick` takes less than 15 minutes and writes `target/papers`.
";
const CONTENDERS: &str = "\
**objects**: deepheap moves objects (`dh_oalloc`). **micro-pages**: the same with objects of up to \
512 bytes in lanes (`micro_pages:on`). **calls**: objects by `dh_read` and \
`dh_write`, many at a time by `dh_gather` and `dh_scatter` (embeddings) or asked for by \
`dh_prefetch` (Bloom filter), instead of one pointer after the other. **pages**: deepheap moves \
pages (`dh_malloc`). **swap**: `malloc` in a memory cgroup, with a swap file. **mmap**: a mapped \
file in a memory cgroup. **memory** is the most that was used in RAM: by the whole process, page \
tables and, of a mapped file, page cache with it. deepheap has the RAM as its budget, with \
objects and with pages; what a program has besides its data, an index for example, comes on top. \
In the cgroup of an application, swap and mmap have as much as the whole process of the object \
variant was seen to use; the array of `deepheap-bench run` has the RAM and what its process used \
before. Swap and mmap read nothing ahead (`vm.page-cluster` 0, `MADV_RANDOM`), but for quick \
sort, which goes through its data: there swap does (3); a mapped file that is read ahead in so \
little memory takes ten times as long. In the applications, objects that divide a page never lie \
on two. Where the kernel would have killed an application for memory although there is swap, it \
is told how often, and the application is helped out with a little memory for a moment; where it \
was killed, it was run again.
";

const SHORT: &str = "These are not, and why. Where nearly every operation waits for the device, \
objects gain as many of its reads of 4 KiB as they spare: those of objects that come to be used \
again while the RAM, less the tables, still holds them. A device that reads 4 KiB as fast as 512 \
bytes gives no more for smaller reads. Each row tells the ratio that reads alone would give, \
if only they took time, for all contenders alike. It is no bound, since writes wait for the \
device, too, and where less was reached, faults, evictions and the program itself take time \
on all the processors there are.

";

/// The three pages.
pub fn all(results: &Results<'_>, experiments: &[&Experiment]) -> Vec<Page> {
    let page = |file, paper, intro: &str| {
        let mut text = format!("{WRITTEN_BY}\n{intro}\n");
        let on_page: Vec<&Experiment> =
            experiments.iter().copied().filter(|e| e.paper == paper).collect();
        let measured = measured(results, &on_page);
        let _ = writeln!(text, "{measured}\n{CONTENDERS}\n{}", wear());
        if paper == Paper::Goals {
            text.push_str("\n## How good\n\n");
            text.push_str(&goals(results));
        }
        for experiment in on_page {
            text.push_str(&section(results, experiment));
        }
        Page { file, text: wrapped(&text) }
    };
    vec![
        page("README.md", Paper::Goals, GOALS_INTRO),
        page("ssdalloc.md", Paper::Ssdalloc, SSDALLOC),
        page("ssdram.md", Paper::Ssdram, SSDRAM),
    ]
}

/// Machine, date and command of the records of a page.
fn measured(results: &Results<'_>, experiments: &[&Experiment]) -> String {
    let mut stamps = BTreeSet::new();
    for experiment in experiments {
        for case in results.cases(experiment) {
            for &contender in case.contenders(results.settings().quick) {
                for round in results.record(case, contender).rounds {
                    stamps.insert((round.date, round.command, round.machine.sentence()));
                }
            }
        }
    }
    let (Some(first), Some(last)) = (stamps.first(), stamps.last()) else {
        return "Nothing has been measured yet.\n".into();
    };
    let dates =
        if first.0 == last.0 { last.0.clone() } else { format!("{} to {}", first.0, last.0) };
    let commands: BTreeSet<String> =
        stamps.iter().map(|(_, command, _)| format!("`{command}`")).collect();
    let commands = commands.into_iter().collect::<Vec<_>>().join(", ");
    let machines: BTreeSet<&str> = stamps.iter().map(|(_, _, machine)| machine.as_str()).collect();
    let machines = machines.into_iter().collect::<Vec<_>>().join("; and on ");
    format!("Measured {dates} with {commands} on {machines}: {}.\n", results.settings().sentence())
}

fn wear() -> String {
    format!(
        "Bytes written are those that the block device counted while measuring. How long a drive \
         lasts is what one of 1 TB that is rated for {} written would take at the measured rate, \
         day and night.\n",
        figure::endurance()
    )
}

/// A plot for an experiment; none if nothing is known or nothing is to be drawn.
pub fn plot(results: &Results<'_>, experiment: &Experiment) -> Option<Plot> {
    let cases = results.cases(experiment);
    if experiment.drawn == Drawn::No || (experiment.drawn == Drawn::Lines && cases.len() < 2) {
        return None;
    }
    let records = |who| cases.iter().map(move |case| results.record(case, who));
    let name = experiment.metric.name;
    let all = results.contenders(experiment);
    let drawn = all.into_iter().filter(|&who| records(who).any(|r| r.median(name).is_some()));
    let drawn: Vec<Contender> = drawn.collect();
    let better = if experiment.metric.more_is_better { "more" } else { "less" };
    let numbers = |&who| (who, records(who).map(|record| record.median(name)).collect());
    let spreads = |&who| records(who).map(|record| record.spread(name)).collect();
    let rounds = drawn.iter().flat_map(|&who| records(who)).flat_map(|record| record.rounds);
    let machines: BTreeSet<String> = rounds.map(|round| round.machine.in_short()).collect();
    let machines = machines.into_iter().collect::<Vec<_>>().join(" or ");
    (!drawn.is_empty()).then(|| Plot {
        title: format!("{} ({better} is better)", experiment.metric.title),
        unit: experiment.metric.unit,
        axis: experiment.axis,
        labels: cases.iter().map(|case| case.label).collect(),
        series: drawn.iter().map(numbers).collect(),
        spreads: drawn.iter().map(spreads).collect(),
        terms: format!("{} on a machine with {machines}", results.settings().amounts()),
        drawn: experiment.drawn,
    })
}

fn section(results: &Results<'_>, experiment: &Experiment) -> String {
    let mut text = format!("\n## {}\n\n", experiment.title);
    if !experiment.claim.is_empty() {
        let _ = writeln!(text, "*The paper:* {}\n", experiment.claim);
    }
    let _ = writeln!(text, "*Here:* {}\n", experiment.here);
    let cases = results.cases(experiment);
    let left_out = experiment.cases.len() - cases.len();
    if left_out > 0 {
        let labels = experiment.cases.iter().filter(|c| !cases.iter().any(|d| d.label == c.label));
        let labels: Vec<&str> = labels.map(|case| case.label).collect();
        let _ = writeln!(text, "Left out by `--quick`: {}.\n", labels.join(", "));
    }
    if plot(results, experiment).is_some() {
        let _ = writeln!(text, "![{}]({}.svg)\n", experiment.title, experiment.id);
    }
    text.push_str(&claims(results, experiment));
    text.push_str(&points(results, experiment, &cases));
    if !experiment.today.is_empty() {
        let _ = writeln!(text, "*Today:* {}", filled_in(results, experiment));
    }
    text
}

/// The paper's numbers beside ours.
fn claims(results: &Results<'_>, experiment: &Experiment) -> String {
    if experiment.claims.is_empty() {
        return String::new();
    }
    let mut text = "| | | the paper | here | here : paper |\n|---|---|---|---|---|\n".to_string();
    for claim in experiment.claims {
        let unit = claim.metric.unit;
        let ours = results.ours(experiment, claim);
        let here = ours.map(|ours| figure::range(ours, |v| figure::compared(v, claim.form, unit)));
        let ratio = ours.map(|(least, most)| (least / claim.paper.0, most / claim.paper.1));
        let ratio = ratio.filter(|ratio| ratio.0 > 0.0 && ratio.1 > 0.0);
        let ratio = ratio.map(|(a, b)| (f64::min(a, b), f64::max(a, b)));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            claim.what,
            claim.at.join(", "),
            claim.stated,
            here.unwrap_or_else(|| figure::UNKNOWN.into()),
            ratio.map_or_else(|| figure::UNKNOWN.into(), |r| figure::range(r, figure::times)),
        );
    }
    text.push('\n');
    text
}

/// Every point.
fn points(results: &Results<'_>, experiment: &Experiment, cases: &[&Case]) -> String {
    let has_wear = |case: &&Case| !matches!(case.program, Program::Device | Program::Overheads);
    let extra = !["operations_per_second", "mean_us", "p99_us", "written_bytes_per_write"]
        .contains(&experiment.metric.name);
    let mut text = String::new();
    for case in cases {
        for &contender in case.contenders(results.settings().quick) {
            let record = results.record(case, contender);
            let _ = write!(text, "| {} | {} | ", case.label, contender.name());
            let number = |name: &str, unit: &str| or_dash(record.median(name), unit);
            if record.rounds.is_empty() {
                let _ =
                    writeln!(text, "{} | | |{} | | | | |", why(&record), " |".repeat(extra.into()));
                continue;
            }
            let more = match extra {
                true => {
                    let metric = experiment.metric;
                    format!("{} | ", number(metric.name, metric.unit))
                }
                false => String::new(),
            };
            let mut note = String::new();
            if let Some(times) = record.median("spared").filter(|&times| times > 0.0) {
                let _ = write!(note, " (was out of memory {times:.0} times)");
            }
            let killed =
                record.rounds.iter().filter_map(|round| round.numbers.get("killed_before"));
            let killed: f64 = killed.sum();
            if killed > 0.0 {
                let _ = write!(note, " (was killed for memory {killed:.0} times before)");
            }
            if record.failed.is_some() {
                note.push_str(" (a later try failed)");
            }
            let _ = writeln!(
                text,
                "{}{note} | {} | {} | {more}{} | {} | {} | {} | {} |",
                number("operations_per_second", "/s"),
                number("mean_us", "us"),
                number("p99_us", "us"),
                number("written_bytes_per_write", "B"),
                number("written_bytes", "B"),
                or_dash(record.median("written_bytes_per_second").map(|b| b / 1e6), "MB/s"),
                figure::years(record.median("life_years")),
                number("peak_bytes", "B"),
            );
        }
    }
    if !cases.iter().any(has_wear) {
        let failed = text.lines().filter(|line| line.contains("failed:"));
        return failed.map(|line| format!("{}\n\n", line.trim_matches(['|', ' ']))).collect();
    }
    let extra = if extra { format!("{} | ", experiment.metric.title) } else { String::new() };
    let bars = "---|".repeat(10 + usize::from(!extra.is_empty()));
    format!(
        "| | | operations | mean | 99 % below | {extra}written a write | written | a second | \
         drive lasts | memory |\n|{bars}\n{text}\n"
    )
}

fn why(record: &Record) -> String {
    match &record.failed {
        Some(why) => format!("failed: {}", why.replace('|', "\\|").replace('\n', " ")),
        None => "not measured".into(),
    }
}

/// `today` with what was reached.
fn filled_in(results: &Results<'_>, experiment: &Experiment) -> String {
    let mut text = experiment.today.to_string();
    for (index, claim) in experiment.claims.iter().enumerate() {
        let place = format!("{{{index}}}");
        if text.contains(&place) {
            let unit = claim.metric.unit.replace("us", "").replace("/s", "");
            let ours = results.ours(experiment, claim);
            let ours = ours.map(|ours| figure::range(ours, |v| figure::shown(v, &unit)));
            text = text.replace(&place, &ours.unwrap_or_else(|| "an unknown number of".into()));
        }
    }
    text
}

/// The table "How good", and what misses.
pub fn goals(results: &Results<'_>) -> String {
    let mut text = "| | | to reach | reached | |\n|---|---|---|---|---|\n".to_string();
    let mut missed = Vec::new();
    for goal in GOALS {
        let judged = results.judge(goal);
        let outcome = match (judged.reached, judged.passed) {
            (None, _) => "**no number**",
            (Some(_), true) => "pass",
            (Some(_), false) => "**short**",
        };
        let reached = judged.reached.map(|reached| show(goal, reached));
        let reached = reached.unwrap_or_else(|| figure::UNKNOWN.into());
        let _ = writeln!(
            text,
            "| {} | {} | {} | {reached} | {outcome} |",
            goal.case.label,
            goal.what,
            to_reach(goal)
        );
        if !judged.passed {
            let why = shortfall(results, goal);
            missed.push(format!("{}, {}: {reached}.{why}", goal.case.label, goal.what));
        }
    }
    let (all, short) = (GOALS.len(), missed.len());
    let _ = writeln!(text, "\n{} of {all} are reached.", all - short);
    if short > 0 {
        text.push_str(SHORT);
        missed.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
    }
    text
}

/// Why a goal was missed, as far as the runs tell, and what is known of it beside that.
fn shortfall(results: &Results<'_>, goal: &Goal) -> String {
    let known = if goal.short.is_empty() { String::new() } else { format!(" {}", goal.short) };
    let Some((mine, best, theirs)) = results.reads(goal) else { return known };
    let plain = |reads| figure::shown(reads, "");
    let could = if mine > 0.0 { figure::times(theirs / mine) } else { figure::UNKNOWN.into() };
    format!(
        " Reads an operation: {}, with {} {}; reads alone would give {could}.{known}",
        plain(mine),
        best.name(),
        plain(theirs)
    )
}

fn show(goal: &Goal, value: f64) -> String {
    if goal.against.is_empty() {
        figure::shown(value, goal.metric.unit)
    } else {
        figure::times(value)
    }
}

fn to_reach(goal: &Goal) -> String {
    match goal.reach {
        Reach::AtLeast(least) => format!("≥ {}", show(goal, least)),
        Reach::AtMost(most) => format!("≤ {}", show(goal, most)),
        Reach::Below(limit) => format!("< {}", show(goal, limit)),
    }
}

/// Breaks lines of prose at 100 columns, and leaves one empty line of many; tables and links stay
/// as they are.
fn wrapped(text: &str) -> String {
    const COLUMNS: usize = 100;
    let mut out = String::new();
    for line in text.trim_end().lines() {
        if line.is_empty() && out.ends_with("\n\n") {
            continue;
        }
        if line.starts_with(['|', '!', '<', '#']) || line.chars().count() <= COLUMNS {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut column = 0;
        for word in line.split(' ') {
            let length = word.chars().count();
            if column > 0 && column + 1 + length > COLUMNS {
                out.push('\n');
                out.push_str(indent);
                column = indent.len();
            } else if column > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += length;
        }
        out.push('\n');
    }
    out
}

/// Who needs root and was left out for want of it.
pub fn without_root(experiments: &[&Experiment], quick: bool) -> bool {
    let cases = experiments.iter().flat_map(|experiment| experiment.cases);
    cases
        .flat_map(|case| case.contenders(quick))
        .any(|contender: &Contender| contender.needs_root())
}
