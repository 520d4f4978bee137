//! Simulate: what a traced program would meet with another RAM budget.
//!
//! Guarantees: what a trace cannot tell is told as such.
//! Never: changes the trace; slows the traced program down.
//! Threads: none but main.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use deepheap::internal::parse_size;
use deepheap_tools::drive::in_words;
use deepheap_tools::simulation::{Outcome, PageBufferShare, Simulation, Terms};
use deepheap_tools::trace::format::Trace;

use crate::arguments::Simulate;
use crate::refusal::{Refusal, print_out, warn};
use crate::trace::chart::{self, Panel, bytes};

const COLUMNS: &str = "       RAM   misses    in RAM compressed      read   written     slower   \
                       device life\n";

/// Plays a trace and tells what came of it.
pub fn simulate(arguments: &Simulate) -> Result<(), Refusal> {
    let (trace, simulation) = open(&arguments.file)?;
    let sizes = match arguments.ram.as_slice() {
        [] => vec![simulation.traced_ram],
        sizes => sizes.iter().map(|size| ram(size)).collect::<Result<_, _>>()?,
    };
    let mut outcomes = Vec::new();
    for &ram in &sizes {
        let terms = with_policies(simulation.terms(ram), &arguments.policy)?;
        outcomes.push(simulation.play(ram, terms));
    }
    let mut text = head(&arguments.file, &trace, &simulation);
    text += "\nsimulated, all touches; misses: reads for 100 touches\n";
    text += COLUMNS;
    outcomes.iter().for_each(|outcome| row(&mut text, outcome, 1));
    if sizes.iter().any(|&ram| ram < simulation.traced_ram) {
        warn(&format!(
            "touches of pages in RAM are not in the trace: with less RAM than the {} of the \
             trace there are more misses than this says",
            bytes(simulation.traced_ram)
        ));
    }
    if arguments.curve || arguments.svg.is_some() {
        // What is no policy was refused above.
        let change = |terms| with_policies(terms, &arguments.policy).unwrap_or(terms);
        let curve = simulation.curve(change);
        let sampled = simulation.sampled();
        let how = match sampled {
            1 => "as above".to_owned(),
            _ => format!("a page of {sampled}, nothing read ahead: so other misses than above"),
        };
        let _ = writeln!(text, "\nsimulated by RAM, {how}");
        text += COLUMNS;
        // A sample has other misses; no size is told twice.
        let is_new = |outcome: &&Outcome| !sizes.contains(&outcome.ram);
        curve.iter().filter(is_new).for_each(|outcome| row(&mut text, outcome, sampled));
        if let Some(file) = &arguments.svg {
            let misses = |outcome: &Outcome| (outcome.ram, 100.0 * outcome.counts.miss_ratio());
            let line: Vec<(u64, f64)> = curve.iter().map(misses).collect();
            let most = line.iter().fold(0.1, |most, (_, misses)| misses.max(most));
            let title = format!("what RAM spares; traced with {}", bytes(simulation.traced_ram));
            let panel = Panel {
                name: "reads for 100 touches",
                line,
                range: 0.0..most * 1.08,
                is_logarithmic: false,
                mark: None,
            };
            write_svg(file, &title, &[panel])?;
        }
    }
    print_out(text)
}

/// Draws into a file.
pub fn write_svg(file: &Path, title: &str, panels: &[Panel]) -> Result<(), Refusal> {
    let svg = chart::svg(title, panels).map_err(|error| {
        Refusal::new(format!("the picture cannot be drawn: {error}: leave out --svg"))
    })?;
    fs::write(file, svg).map_err(|error| {
        let shown = file.display();
        Refusal::new(format!(
            "cannot write '{shown}': {error}: give --svg a file in a folder that exists"
        ))
    })
}

/// Reads a trace.
pub fn open(file: &Path) -> Result<(Trace, Simulation), Refusal> {
    let shown = file.display();
    let bytes = fs::read(file).map_err(|error| {
        Refusal::missing(format!("cannot read '{shown}': {error}: name a trace"))
    })?;
    let trace =
        Trace::read(&bytes).map_err(|error| Refusal::missing(format!("'{shown}': {error}")))?;
    let simulation = Simulation::new(&trace);
    Ok((trace, simulation))
}

pub(crate) fn ram(size: &str) -> Result<u64, Refusal> {
    parse_size(size).map_err(|error| Refusal::new(format!("in --ram: {error}")))
}

fn with_policies(mut terms: Terms, policies: &[String]) -> Result<Terms, Refusal> {
    for item in policies.iter().flat_map(|list| list.split(',')) {
        match item.split_once(':') {
            Some(("page_buffer", "moves")) => terms.share = None,
            Some(("page_buffer", value)) if let Some(share) = share(value) => {
                terms.share = Some(share);
            }
            Some(("scans", "off")) => terms.scans = false,
            Some(("strides", "off")) => terms.strides = false,
            Some(("sequences", "off")) => terms.sequences = false,
            _ => {
                return Err(Refusal::new(format!(
                    "in --policy: '{item}': use page_buffer:SIZE, PERCENT% or moves, scans:off, \
                     strides:off or sequences:off"
                )));
            }
        }
    }
    Ok(terms)
}

fn share(value: &str) -> Option<PageBufferShare> {
    let Some(percent) = value.strip_suffix('%') else {
        return Some(PageBufferShare::Bytes(parse_size(value).ok()? as usize));
    };
    let percent = percent.parse::<usize>().ok().filter(|percent| (1..=99).contains(percent))?;
    Some(PageBufferShare::Part((percent << 16) / 100))
}

fn head(file: &Path, trace: &Trace, simulation: &Simulation) -> String {
    let (seen, costs) = (simulation.seen, simulation.costs);
    let mut text = format!(
        "{}: {:.1} s with {} of RAM; it was seen to touch {} times, read {} objects, write {}\n",
        file.display(),
        simulation.ran_ns as f64 / 1e9,
        bytes(simulation.traced_ram),
        seen.touches,
        seen.reads,
        bytes(seen.written_bytes)
    );
    let _ = writeln!(
        text,
        "a fault on an object compressed in RAM took {:.1} us, a read {:.1} us",
        costs.cached_ns as f64 / 1000.0,
        costs.stored_ns as f64 / 1000.0
    );
    note_gaps(trace, &mut text);
    text
}

/// Says what is missing in a trace.
pub fn note_gaps(trace: &Trace, text: &mut String) {
    if trace.lost > 0 {
        let _ = writeln!(text, "{} records found no room and are missing", trace.lost);
    }
    if trace.is_cut {
        text.push_str("the trace ends early: the program was killed, or still runs\n");
    }
}

/// A line of numbers; those of a sample stand for `sampled` times as many.
fn row(text: &mut String, outcome: &Outcome, sampled: u32) {
    let (counts, times) = (outcome.counts, u64::from(sampled));
    let life = in_words(outcome.life_years());
    let _ = writeln!(
        text,
        "{:>10} {:>6.2} % {:>9} {:>10} {:>9} {:>9} {:>8.1} %   {life}",
        bytes(outcome.ram),
        100.0 * counts.miss_ratio(),
        counts.resident * times,
        counts.cached * times,
        counts.reads() * times,
        bytes(counts.written_bytes * times),
        (outcome.slowdown - 1.0) * 100.0,
    );
}
