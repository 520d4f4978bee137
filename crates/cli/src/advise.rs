//! Advise: RAM against slowdown, life of the device and money, for a traced program.
//!
//! Guarantees: what a trace cannot tell is told as such.
//! Never: changes the trace; slows the traced program down.
//! Threads: none but main.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use deepheap::simulation::{Outcome, Simulation};
use deepheap::trace_format::MAGIC;

use crate::advice_chart::AdviceChart;
use crate::arguments::Advise;
use crate::money::{Money, Prices, cheapest};
use crate::refusal::{EXIT_MISSING, Refusal, print_out};
use crate::simulate::{bytes, life, note_gaps, open, write_svg};

/// What is told in a sentence: at most so much slower.
const SLOWDOWNS: [(f64, &str); 3] = [(1.01, "1 %"), (1.05, "5 %"), (1.20, "20 %")];
/// Lines of the table, at most.
const LINES: usize = 9;
const DAYS_OF_YEAR: f64 = 365.25;

/// Says how much RAM a traced program needs, and what less of it would save and cost.
pub fn advise(arguments: &Advise) -> Result<(), Refusal> {
    let file = trace_of(&arguments.of)?;
    let (trace, simulation) = open(&file)?;
    let prices = Prices {
        ram_price: arguments.ram_price,
        drive_price: arguments.drive_price,
        drive_size: arguments.drive_size,
        drive_endurance: arguments.drive_endurance,
        years: arguments.years,
    };
    let curve = simulation.curve();
    let touched = simulation.whole_ram();
    let priced: Vec<(Outcome, Money)> =
        curve.iter().map(|outcome| (*outcome, prices.of(outcome, touched))).collect();
    let mut text = sentence(&simulation, &curve);
    note_gaps(&trace, &mut text);
    text.push('\n');
    table(&mut text, &priced, &prices);
    if let Some(file) = &arguments.svg {
        let name = arguments.of.file_name().map_or_else(String::new, |name| {
            let shown = name.to_string_lossy();
            format!("{shown}: ")
        });
        let enough = simulation.ram_for(&curve, SLOWDOWNS[1].0);
        let chart = AdviceChart { name, points: &priced, prices: &prices, enough };
        write_svg(file, chart.svg())?;
    }
    print_out(text.as_bytes())
}

fn sentence(simulation: &Simulation, curve: &[Outcome]) -> String {
    let needs = SLOWDOWNS.map(|(slowdown, words)| {
        format!("{} for {words}", bytes(simulation.ram_for(curve, slowdown)))
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
    text
}

/// Some points of the curve, its ends and the cheapest among them.
fn table(text: &mut String, priced: &[(Outcome, Money)], prices: &Prices) {
    let Some(cheapest) = cheapest(priced) else { return };
    let step = priced.len().div_ceil(LINES).max(1);
    let last = priced.len() - 1;
    let is_shown = |at: usize| at.is_multiple_of(step) || at == last || at == cheapest;
    *text += "       RAM      slower   written a day   device life          RAM $   drive $   \
              both $\n";
    for (at, (outcome, money)) in priced.iter().enumerate().filter(|(at, _)| is_shown(*at)) {
        let _ = writeln!(
            text,
            "{:>10} {:>9.1} % {:>15}   {:<15} {:>10.2} {:>9.2} {:>8.2}{}",
            bytes(outcome.ram),
            (outcome.slowdown - 1.0) * 100.0,
            bytes((outcome.written_a_year / DAYS_OF_YEAR) as u64),
            life(outcome.life_years(prices.endurance_bytes())),
            money.ram,
            money.drive,
            money.sum(),
            if at == cheapest { "  cheapest" } else { "" }
        );
    }
    let _ = writeln!(
        text,
        "Money is for {} years in which it runs all the time, with RAM at {} $ a GiB and a drive \
         of {} TB at {} $ that is rated for {} TB (--help).",
        prices.years,
        prices.ram_price,
        prices.drive_size,
        prices.drive_price,
        prices.drive_endurance
    );
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
