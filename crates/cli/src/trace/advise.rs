//! Advise: slowdown and life of the device by RAM, for a traced program.
//!
//! Guarantees: what a trace cannot tell is told as such.
//! Never: changes the trace; slows the traced program down.
//! Threads: none but main.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use deepheap_tools::drive::{DAY_SECONDS, in_words};
use deepheap_tools::simulation::{Outcome, Simulation};
use deepheap_tools::trace::format::MAGIC;

use crate::arguments::Advise;
use crate::refusal::{Refusal, print_out};
use crate::trace::chart::{Panel, bytes};
use crate::trace::simulate::{note_gaps, open, write_svg};

/// Slowdowns for which the RAM is told.
const SLOWDOWNS: [(f64, &str); 3] = [(1.01, "1 %"), (1.05, "5 %"), (1.20, "20 %")];
/// Lines of the table, at most.
const LINES: usize = 9;
/// The logarithmic axes go at least so far.
const SLOWER_PERCENT: (f64, f64) = (0.1, 100.0);
const LIFE_YEARS: (f64, f64) = (0.1, 1000.0);

/// Says how much RAM a traced program needs, and what less of it would do.
pub fn advise(arguments: &Advise) -> Result<(), Refusal> {
    let file = trace_of(&arguments.of)?;
    let (trace, simulation) = open(&file)?;
    let curve = simulation.curve(|terms| terms);
    let mut text = sentences(&simulation, &curve);
    note_gaps(&trace, &mut text);
    text.push('\n');
    table(&mut text, &curve);
    if let Some(file) = &arguments.svg {
        let name = arguments.of.file_name().unwrap_or_default().to_string_lossy();
        let enough = simulation.ram_for(&curve, SLOWDOWNS[1].0);
        write_svg(file, &format!("{name}: what RAM buys"), &panels(&curve, enough))?;
    }
    print_out(text)
}

fn sentences(simulation: &Simulation, curve: &[Outcome]) -> String {
    let whole = simulation.whole_ram();
    let (all, spared) = (bytes(whole), |ram| bytes(whole.saturating_sub(ram)));
    let mut text = String::new();
    for (slowdown, words) in SLOWDOWNS {
        let ram = simulation.ram_for(curve, slowdown);
        let (shown, spared) = (bytes(ram), spared(ram));
        let _ = match shown == all || spared == bytes(0) {
            true => writeln!(text, "{all}: {words} slower or less needs all of it"),
            false => writeln!(
                text,
                "{shown}: {words} slower than with all {all}, and {spared} of RAM spared"
            ),
        };
    }
    let last = curve.first().map_or(1.0, |least| least.slowdown);
    let _ = writeln!(
        text,
        "Traced with {}: {} of RAM spared, and {:.1} s instead of {:.1} s, {:.0} % slower, on a \
         device where a read takes {:.0} us.",
        bytes(simulation.traced_ram),
        spared(simulation.traced_ram),
        simulation.ran_ns as f64 / 1e9,
        simulation.ran_ns as f64 / 1e9 / last,
        (last - 1.0) * 100.0,
        simulation.costs.stored_ns as f64 / 1000.0
    );
    if last < SLOWDOWNS[0].0 {
        text += "Less may be enough: trace it with less RAM.\n";
    }
    text
}

/// Some points of the curve, its ends among them.
fn table(text: &mut String, curve: &[Outcome]) {
    let step = curve.len().div_ceil(LINES).max(1);
    *text += "       RAM      slower   written a day   device life\n";
    for (at, outcome) in curve.iter().enumerate() {
        if at.is_multiple_of(step) || at + 1 == curve.len() {
            let _ = writeln!(
                text,
                "{:>10} {:>9.1} % {:>15}   {}",
                bytes(outcome.ram),
                (outcome.slowdown - 1.0) * 100.0,
                bytes((outcome.written_a_second * DAY_SECONDS) as u64),
                in_words(outcome.life_years()),
            );
        }
    }
}

fn panels(curve: &[Outcome], enough: u64) -> [Panel; 2] {
    let line = |of: &dyn Fn(&Outcome) -> f64| -> Vec<(u64, f64)> {
        curve.iter().map(|outcome| (outcome.ram, of(outcome))).collect()
    };
    let (least, most) = SLOWER_PERCENT;
    let slower = line(&|outcome| ((outcome.slowdown - 1.0) * 100.0).max(least));
    let most = slower.iter().fold(most, |most, (_, percent)| percent.max(most));
    let life = line(&|outcome| {
        outcome.life_years().unwrap_or(LIFE_YEARS.1).clamp(LIFE_YEARS.0, LIFE_YEARS.1)
    });
    [
        Panel {
            name: "slower, %",
            line: slower,
            range: least..10_f64.powf(most.log10().ceil()),
            is_logarithmic: true,
            mark: Some((enough, "5 % slower")),
        },
        Panel {
            name: "device life, years, up to 1000",
            line: life,
            range: LIFE_YEARS.0..LIFE_YEARS.1,
            is_logarithmic: true,
            mark: None,
        },
    ]
}

/// The trace that a process writes, or the file of that name.
fn trace_of(of: &Path) -> Result<PathBuf, Refusal> {
    let pid = of.to_str().and_then(|text| text.parse::<u32>().ok());
    let Some(pid) = pid.filter(|_| !of.exists()) else { return Ok(of.to_owned()) };
    let links = fs::read_dir(format!("/proc/{pid}/fd")).map_err(|error| {
        Refusal::missing(format!("process {pid} cannot be looked into: {error}: see ps for its id"))
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
        Refusal::missing(format!(
            "process {pid} writes no trace: start it with `deepheap run --trace FILE`, and with \
             less RAM than it needs"
        ))
    })
}
