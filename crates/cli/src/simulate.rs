//! Simulate and advise: what a traced program would meet with another RAM budget, and how much RAM
//! it needs.
//!
//! Guarantees: what a trace cannot tell is told as such.
//! Never: changes the trace; slows the traced program down.
//! Threads: none but main.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use deepheap::parse_size;
use deepheap::simulation::{Outcome, PageBufferShare, Simulation, Terms};
use deepheap::trace_format::{MAGIC, Trace};

use crate::arguments::{Advise, Simulate};
use crate::curve::Curve;
use crate::refusal::{EXIT_MISSING, Refusal, print_out, warn};

const COLUMNS: &str = "       RAM   misses  in reach    cached      read   written      slower   \
                       device life\n";
const MIB: f64 = (1 << 20) as f64;
/// What `advise` tells: at most so much slower.
const SLOWDOWNS: [(f64, &str); 3] = [(1.01, "1 %"), (1.05, "5 %"), (1.20, "20 %")];
/// Years of life of a device that are not worth to be told exactly.
const LIFE_YEARS_MOST: f64 = 1000.0;

/// Plays a trace and tells what came of it.
pub fn simulate(arguments: &Simulate) -> Result<(), Refusal> {
    let (trace, simulation) = open(&arguments.file)?;
    let sizes = match arguments.ram.as_slice() {
        [] => vec![simulation.traced_ram()],
        sizes => sizes.iter().map(|size| ram(size)).collect::<Result<_, _>>()?,
    };
    let mut outcomes = Vec::new();
    for &ram in &sizes {
        let terms = with_policies(simulation.terms(ram), &arguments.policy)?;
        outcomes.push(simulation.play(ram, terms).ok_or_else(no_memory)?);
    }
    let mut text = head(&arguments.file, &trace, &simulation);
    text +=
        "\n       RAM   misses  in reach    cached      read   written      slower   device life\n";
    outcomes.iter().for_each(|outcome| row(&mut text, outcome, 1));
    if sizes.iter().any(|&ram| ram < simulation.traced_ram()) {
        warn(&format!(
            "what the program touched within reach is not in the trace: with less RAM than the {} \
             of the trace there are more misses than this says",
            bytes(simulation.traced_ram())
        ));
    }
    if arguments.curve || arguments.svg.is_some() {
        let curve = simulation.curve();
        text += "\nmiss ratio by RAM, sampled:\n";
        text += COLUMNS;
        let sampled = simulation.sampled();
        curve.iter().for_each(|outcome| row(&mut text, outcome, sampled));
        if let Some(file) = &arguments.svg {
            let drawn = Curve { points: &curve, traced_ram: simulation.traced_ram() };
            let svg = drawn.svg().map_err(|error| {
                Refusal::new(format!("the curve cannot be drawn: {error}: leave out --svg"))
            })?;
            fs::write(file, svg).map_err(|error| {
                let shown = file.display();
                Refusal::new(format!(
                    "cannot write '{shown}': {error}: give --svg a file in a folder that exists"
                ))
            })?;
        }
    }
    print_out(text.as_bytes())
}

/// Says in a sentence how much RAM a traced program needs.
pub fn advise(arguments: &Advise) -> Result<(), Refusal> {
    let file = trace_of(&arguments.of)?;
    let (trace, simulation) = open(&file)?;
    let curve = simulation.curve();
    let needs = SLOWDOWNS.map(|(slowdown, words)| {
        format!("{} for {words}", bytes(simulation.ram_for(&curve, slowdown)))
    });
    let last = curve.first().map_or(1.0, |least| least.slowdown);
    let mut text = format!(
        "To be at most so much slower than with {} this program needs of RAM: {}, on a device \
         where a read takes {:.0} us.\n",
        bytes(simulation.whole_ram()),
        needs.join(", "),
        simulation.costs().stored_ns as f64 / 1000.0
    );
    let _ = writeln!(
        text,
        "The trace is of {:.1} s with {}, where it was {:.0} % slower than it would be with all \
         of it.",
        simulation.ran_ns() as f64 / 1e9,
        bytes(simulation.traced_ram()),
        (last - 1.0) * 100.0
    );
    if last < SLOWDOWNS[0].0 {
        text += "Less may be enough: trace it with less RAM.\n";
    }
    note_gaps(&trace, &mut text);
    print_out(text.as_bytes())
}

fn open(file: &Path) -> Result<(Trace, Simulation), Refusal> {
    let shown = file.display();
    let bytes = fs::read(file).map_err(|error| {
        Refusal::with_status(EXIT_MISSING, format!("cannot read '{shown}': {error}: name a trace"))
    })?;
    let trace = Trace::read(&bytes)
        .map_err(|error| Refusal::with_status(EXIT_MISSING, format!("'{shown}': {error}")))?;
    let simulation = Simulation::new(&trace);
    Ok((trace, simulation))
}

/// The trace that a process writes, or the file of that name.
fn trace_of(of: &Path) -> Result<PathBuf, Refusal> {
    let pid = of.to_str().and_then(|text| text.parse::<u32>().ok());
    let Some(pid) = pid.filter(|_| !of.exists()) else { return Ok(of.to_owned()) };
    let missing = |text: String| Refusal::with_status(EXIT_MISSING, text);
    let links = fs::read_dir(format!("/proc/{pid}/fd")).map_err(|error| {
        missing(format!("process {pid} cannot be looked into: {error}: see ps for its id"))
    })?;
    let is_trace = |path: &PathBuf| {
        use std::io::Read;
        let mut first = [0; MAGIC.len()];
        // Devices and pipes might wait.
        fs::metadata(path).is_ok_and(|file| file.is_file())
            && fs::File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok()
            && first == MAGIC
    };
    links.filter_map(|entry| Some(entry.ok()?.path())).find(is_trace).ok_or_else(|| {
        missing(format!(
            "process {pid} writes no trace: start it with `deepheap run --trace FILE`, and with \
             less RAM than it needs"
        ))
    })
}

fn ram(size: &str) -> Result<u64, Refusal> {
    parse_size(size).map_err(|error| Refusal::new(format!("in --ram: {error}")))
}

fn with_policies(mut terms: Terms, policies: &[String]) -> Result<Terms, Refusal> {
    let refuse = |item: &str| {
        Refusal::new(format!(
            "in --policy: '{item}': use page_buffer:SIZE, PERCENT% or moves, scans:off, \
             strides:off or sequences:off"
        ))
    };
    for item in policies.iter().flat_map(|list| list.split(',')) {
        match item.split_once(':') {
            Some(("page_buffer", "moves")) => terms.share = None,
            Some(("page_buffer", value)) => {
                terms.share = Some(match value.strip_suffix('%') {
                    Some(percent) => match percent.parse::<usize>() {
                        Ok(percent @ 1..=99) => PageBufferShare::Part((percent << 16) / 100),
                        _ => return Err(refuse(item)),
                    },
                    None => {
                        let bytes = parse_size(value).map_err(|_| refuse(item))?;
                        PageBufferShare::Bytes(bytes as usize)
                    }
                });
            }
            Some(("scans", "off")) => terms.scans = false,
            Some(("scans", "on")) => terms.scans = true,
            Some(("strides", "off")) => terms.strides = false,
            Some(("strides", "on")) => terms.strides = true,
            Some(("sequences", "off")) => terms.sequences = false,
            Some(("sequences", "on")) => terms.sequences = true,
            _ => return Err(refuse(item)),
        }
    }
    Ok(terms)
}

fn no_memory() -> Refusal {
    Refusal::new("there is not enough memory for the simulation: simulate less --ram")
}

fn head(file: &Path, trace: &Trace, simulation: &Simulation) -> String {
    let seen = simulation.seen();
    let mut text = format!(
        "{}: {:.1} s with {} of RAM; {} touches seen, {} of them read ({:.1} %), {} written\n",
        file.display(),
        simulation.ran_ns() as f64 / 1e9,
        bytes(simulation.traced_ram()),
        seen.touches,
        seen.reads,
        100.0 * seen.reads as f64 / seen.touches.max(1) as f64,
        bytes(seen.written_bytes)
    );
    let costs = simulation.costs();
    let _ = writeln!(
        text,
        "a fault on a cached object took {:.1} us, a read {:.1} us",
        costs.cached_ns as f64 / 1000.0,
        costs.stored_ns as f64 / 1000.0
    );
    note_gaps(trace, &mut text);
    text
}

fn note_gaps(trace: &Trace, text: &mut String) {
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
    let life = match outcome.life_years {
        None => "nothing written".to_owned(),
        Some(years) if years > LIFE_YEARS_MOST => "> 1000 years".to_owned(),
        Some(years) => format!("{years:.1} years"),
    };
    let _ = writeln!(
        text,
        "{:>10} {:>6.2} % {:>9} {:>9} {:>9} {:>9} {:>9.1} %   {life}",
        bytes(outcome.ram),
        100.0 * counts.miss_ratio(),
        counts.in_reach * times,
        counts.cached * times,
        (counts.missed + counts.ahead) * times,
        bytes(counts.written_bytes * times),
        (outcome.slowdown - 1.0) * 100.0,
    );
}

fn bytes(bytes: u64) -> String {
    let mib = bytes as f64 / MIB;
    if mib < 10_000.0 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}
