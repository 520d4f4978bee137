//! Threads: what touches of many threads at once cost, where nearly each is a fault or a call.
//!
//! A case is one or two programs that stay for all of it, and take turns within each round: for
//! each number of threads deepheap, then its rival. So their ratio is of one time and one machine.
//!
//! Guarantees: every page is checked when it is touched, and all of every page at the end; what was
//! made on the machine is gone at the end, also after SIGINT.
//! Threads: one here; those that are measured are in `program`.

mod contender;
mod pages;
pub mod program;
mod table;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::sizes::parse_bytes;
use crate::{output, signals, supervisor, zram};
use contender::Contender;
use pages::Kind;
use program::{Measured, On, Setup, Touches};
use table::Row;

/// Where a rival's reads of its device keep no fewer threads busy.
const DEVICE_THREADS: u32 = 16;
const MANY_PROCESSORS: usize = 8;
/// An eighth of it is still a budget for deepheap.
const LEAST_BYTES: u64 = 64 << 20;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Pages that fit the RAM when they are compressed (to a fifth): deepheap and swap on zram
    Compressed,
    /// Pages in deepheap's cache, as they are; its page buffer is small
    Cached,
    /// Pages that do not compress, 8 times the RAM, at least 16 threads: deepheap and a swap file
    Stored,
    /// Objects of 128 bytes in deepheap's cache, by dh_read
    Calls,
}

/// What `deepheap-bench threads` takes.
#[derive(Clone, Debug, Args)]
pub struct Threads {
    /// Only this case (may be repeated)
    #[arg(long = "case", value_enum, value_name = "CASE")]
    cases: Vec<Case>,
    /// How many threads touch at once, one measurement after the other
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_name = "COUNTS",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Vec<u32>,
    /// Pages of the cases compressed and stored [default: 2G, with less than 8 processors 512M]
    #[arg(long = "size", value_parser = parse_bytes, value_name = "SIZE")]
    size_bytes: Option<u64>,
    /// RAM of all cases but stored: of deepheap, its tables included, and of zram with its pool
    /// [default: 1130/2048 of --size]
    #[arg(long = "ram", value_parser = parse_bytes, value_name = "SIZE")]
    ram_bytes: Option<u64>,
    /// deepheap's other settings, as DEEPHEAP_CONF takes them
    #[arg(long, default_value = "", value_name = "SETTINGS")]
    conf: String,
    /// Where store and swap file lie
    #[arg(long, default_value = ".", value_name = "PATH")]
    dir: PathBuf,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds, for the median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Gets a JSON line for each measurement, behind what it has
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A JSON line.
#[derive(Serialize)]
struct Line {
    case: String,
    on: On,
    threads: u32,
    write_percent: u32,
    round: u32,
    #[serde(flatten)]
    measured: Measured,
}

impl Threads {
    /// Measures and prints.
    pub fn main(&self) -> Result<(), Failure> {
        signals::install();
        let mut out = match &self.out {
            None => None,
            Some(path) => {
                let opened = File::options().create(true).append(true).open(path);
                Some(opened.map_err(|error| Failure::os(path.display(), &error))?)
            }
        };
        let all = Case::value_variants();
        for &case in if self.cases.is_empty() { all } else { &self.cases } {
            let rows = self.rows(case);
            if case == Case::Compressed && !zram::is_there() {
                eprintln!("compressed: no zram here (`modprobe zram`); left out");
            } else if rows.is_empty() {
                eprintln!("{}: is for {DEVICE_THREADS} threads and more; left out", name(case));
            } else {
                self.measure(case, rows, &mut out)?;
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        case: Case,
        mut rows: Vec<Row>,
        out: &mut Option<File>,
    ) -> Result<(), Failure> {
        let setup = self.setup(case)?;
        // One ledger for all, dropped last: after the programs that use what is in it.
        let mut ledger = Ledger::open()?;
        let mut contenders = Vec::new();
        for &on in contenders_of(case) {
            contenders.push(Contender::start(on, &setup, &mut ledger)?);
        }
        let mut seed = 0;
        for round in 0..self.rounds {
            for row in &mut rows {
                let mut turn = Vec::new();
                seed += 1;
                let Row { threads, write_percent, .. } = *row;
                for contender in &mut contenders {
                    let touches = Touches { threads, write_percent, seconds: self.seconds, seed };
                    let measured = contender.touch(touches)?;
                    let line = Line {
                        case: name(case),
                        on: contender.on,
                        threads: row.threads,
                        write_percent: row.write_percent,
                        round,
                        measured,
                    };
                    write(&line, out)?;
                    turn.push(measured);
                }
                row.rounds.push(turn);
            }
        }
        contenders.iter_mut().try_for_each(Contender::audit)?;
        output::line(format!(
            "{}: {} MiB, {} MiB of RAM, {} round(s) of {} s.\n{}\n{}\n",
            name(case),
            setup.data_bytes >> 20,
            setup.ram_bytes >> 20,
            self.rounds,
            self.seconds,
            contenders.iter().filter_map(Contender::shares).collect::<String>(),
            table::markdown(contenders_of(case), &rows),
        ))
    }

    fn setup(&self, case: Case) -> Result<Setup, Failure> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let usual = if processors < MANY_PROCESSORS { 512 << 20 } else { 2 << 30 };
        let size = self.size_bytes.unwrap_or(usual);
        let ram = self.ram_bytes.unwrap_or(size / 2048 * 1130);
        if size.min(ram) < LEAST_BYTES {
            return Err(Failure::Refused("--size, --ram: use at least 64M for each".into()));
        }
        let (kind, data_bytes, ram_bytes) = match case {
            Case::Compressed => (Kind::CompressiblePages, size, ram),
            Case::Cached => (Kind::RandomPages, ram / 4, ram),
            Case::Stored => (Kind::RandomPages, size, size / 8),
            Case::Calls => (Kind::Objects, ram / 8, ram),
        };
        let is_cached = matches!(case, Case::Cached | Case::Calls);
        let buffer = if is_cached { "page_buffer:8M," } else { "" };
        Ok(Setup {
            kind,
            data_bytes,
            idle_bytes: if is_cached { ram_bytes } else { 0 },
            ram_bytes,
            dir: supervisor::folder(&self.dir)?,
            conf: format!("{buffer}{}", self.conf),
        })
    }

    fn rows(&self, case: Case) -> Vec<Row> {
        let writes: &[u32] = if case == Case::Compressed { &[0, 50] } else { &[0] };
        let least = if case == Case::Stored { DEVICE_THREADS } else { 1 };
        let of = |&write_percent: &u32| {
            let counts = self.threads.iter().filter(move |&&threads| threads >= least);
            counts.map(move |&threads| Row { threads, write_percent, rounds: Vec::new() })
        };
        writes.iter().flat_map(of).collect()
    }
}

fn contenders_of(case: Case) -> &'static [On] {
    match case {
        Case::Compressed => &[On::Run, On::Zram],
        Case::Stored => &[On::Run, On::Swap],
        Case::Cached => &[On::Run],
        Case::Calls => &[On::Deepheap],
    }
}

fn name(case: Case) -> String {
    case.to_possible_value().map_or(String::new(), |value| value.get_name().into())
}

/// Writes a line of what was measured, and tells the user at once.
fn write(line: &Line, out: &mut Option<File>) -> Result<(), Failure> {
    eprintln!(
        "{} round {} {} threads, {} % writes, {}: {:.0} touches/s, {:.2} us of CPU each",
        line.case,
        line.round + 1,
        line.threads,
        line.write_percent,
        line.on.name(),
        line.measured.touches_per_s,
        line.measured.cpu_us_per_touch,
    );
    let Some(file) = out else { return Ok(()) };
    let text = serde_json::to_string(line).map_err(|error| Failure::Failed(error.to_string()))?;
    writeln!(file, "{text}").map_err(|error| Failure::os("--out", &error))
}
