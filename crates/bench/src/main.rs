//! deepheap-bench: one operation stream on deepheap, on Linux swap, on an mmapped file and on
//! glibc, with the same RAM and the same device.
//!
//! `run` prints one JSON line for one backend, `malloc` loads the malloc of the process, `device`
//! reads the bare device, `table` and `objects` run all cases and print the tables of the README,
//! `overheads` times the single steps of a fault, `papers` repeats the experiments of two papers,
//! `hunt` looks for lost writes, `clean` removes what killed runs left.

mod access;
mod backend;
mod calls;
mod cgroup;
mod failure;
mod gauges;
mod histogram;
mod hunt;
mod ledger;
mod malloc_load;
mod object;
mod output;
mod overheads;
mod papers;
mod permutation;
mod random;
mod raw_reads;
mod report;
mod signals;
mod sizes;
mod stream;
mod supervisor;
mod swap_file;
mod table;
mod worker;
mod workload;
mod zipf;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("deepheap-bench measures Linux on x86_64 only, for now");

use clap::{Parser, Subcommand};

use crate::failure::Failure;
use crate::hunt::Hunt;
use crate::malloc_load::MallocLoad;
use crate::overheads::Overheads;
use crate::papers::Papers;
use crate::raw_reads::RawReads;
use crate::table::{Cases, Table};
use crate::workload::Workload;

const RUN_HELP: &str = "\
What an operation is (the same on every backend):
  read        reads the object's 8-byte header and one more word at a random place in the object
  write       adds 1 to the version in the header, atomically, so that concurrent writes all count
  sequential  each thread scans its contiguous share: the first word of every cache line of an
              object is one operation; with --write, the version is incremented too
  scans       each thread goes through that many parts of its share in turns, an object of one,
              then one of the next, every other part backwards; the rest as with sequential
  chase       reads from the object which object is next, on one cycle through all objects that
              starts elsewhere for each thread; with --write, the version is incremented too
With --whole a read copies the object out, a write puts all of it in; --calls and --gather do reads
and writes by deepheap's calls. Every word read is compared with the value it must have; a wrong one
ends the run with status 1.

How objects are allocated: swap and mmap have them side by side, as any program would; where they
have random sizes, or are allocated one by one, a table of pointers finds them. It is made and, in a
memory cgroup, locked before the limit is set, so that it costs no contender RAM.

Phases, all under the same limit of RAM: the fill (one thread writes all objects in order), the
warm-up (operations of the same streams that are not counted), the measured phase. Every operation
of the measured phase is timed by the time-stamp counter. Device bytes, CPU time and latency are of
the measured phase, peaks of memory are of all phases.

CPU: cpu_us_per_op is the time of the worker process. Reclaim at the limit of a memory cgroup runs
in the thread that faults, so swap's and mmap's is in it; kswapd, writeback and other kernel threads
are not. machine_cpu_us_per_op is the busy time of the whole machine, theirs and everybody's.

Needs root: swap and mmap (they make a memory cgroup; swap makes a swap file in --dir, switches it
on, and sets vm.page-cluster), and --cgroup. All of it is taken back at the end, on errors and on
SIGINT and SIGTERM; what a run killed by SIGKILL left is taken back by the next run or by
`deepheap-bench clean`.";

const PAPERS_HELP: &str = "\
The programs are the applications of examples/papers (`make apps` builds them), memcached, and
`deepheap-bench run`, `overheads` and `device`. Each is measured with objects and with pages of
deepheap, on swap and on an mmapped file: the same data, the same RAM, the same device. `make
bench-papers` builds all and calls this.

Every point is written to OUT/runs/NAME.json as soon as it is measured. A sitting that was cut short
goes on where it was, and one with other settings measures anew; --again measures all again. The
pages README.md, ssdalloc.md and ssdram.md and their plots are written from these files, whatever
--only chose; what failed or is missing says so there.

Needs root for swap and mmap (memory cgroups and a swap file in --dir); without root these points
are left out. All of it is taken back at the end, on errors and on SIGINT and SIGTERM; what a run
killed by SIGKILL left is taken back by the next run or by `deepheap-bench clean`.";

/// One operation stream on deepheap, swap, mmap and glibc: same RAM, same device.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one workload on one backend and prints one JSON line
    #[command(after_help = RUN_HELP)]
    Run(Box<Workload>),
    /// Loads the malloc of this process with data that fits the RAM and prints one JSON line
    Malloc(MallocLoad),
    /// Reads the bare device at random, many reads in flight, and prints one JSON line
    Device(RawReads),
    /// Runs every case of the README's table and prints it in markdown
    Table(Table),
    /// Runs every case of the README's table of objects and prints it in markdown
    Objects(Table),
    /// Times what a fault on an object is made of, beside the numbers of the SSDAlloc paper
    Overheads(Overheads),
    /// Repeats the experiments of the SSDAlloc and SSDRAM papers and writes docs/papers
    #[command(after_help = PAPERS_HELP)]
    Papers(Papers),
    /// Hunts for lost writes on deepheap: increments under eviction, then exact sums
    Hunt(Hunt),
    /// Removes what killed runs left: swap files, memory cgroups, vm.page-cluster
    Clean,
    #[command(hide = true)]
    Worker,
}

fn main() {
    let outcome = match Cli::parse().command {
        Command::Run(workload) => run(&workload),
        Command::Malloc(load) => malloc_load::main(&load),
        Command::Device(reads) => raw_reads::main(&reads),
        Command::Table(table) => table.main(Cases::Pages),
        Command::Objects(table) => table.main(Cases::Objects),
        Command::Overheads(overheads) => overheads.main(),
        Command::Papers(papers) => papers.main(),
        Command::Hunt(hunt) => hunt.main(),
        Command::Clean => {
            ledger::clean();
            Ok(())
        }
        Command::Worker => worker::main(),
    };
    if let Err(failure) = outcome {
        eprintln!("deepheap-bench: {failure}");
        std::process::exit(failure.exit_status());
    }
}

fn run(workload: &Workload) -> Result<(), Failure> {
    signals::install();
    let report = supervisor::run(workload)?;
    output::json(&report)
}
