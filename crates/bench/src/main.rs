//! deepheap-bench: one operation stream on deepheap, on Linux swap, on an mmapped file and on
//! glibc, with the same RAM and the same device.
//!
//! `run` prints one JSON line for one backend, `malloc` loads the malloc of the process, `device`
//! reads the bare device, `table` and `objects` run all cases and print the tables of
//! docs/benchmarks.md, `overheads` times the single steps of a fault, `threads` the faults of many
//! threads at once, `index` has more objects than RAM has room for their table, `maps` touches
//! files that are mapped, `papers` repeats the experiments of two papers, `flashvm` the policies of
//! a third, `flashmap` has what maps are for after a fourth, `hybridswap` a disk behind the SSD,
//! `real` runs programs that users know, `hunt` looks for lost writes, `torture` kills durable
//! heaps, `durable` compares them with LMDB and redb, `checkpoints` measures what theirs cost,
//! `opening` how long they take to open, `transactions` commits of several stores, `clean` removes
//! what killed runs left.

mod access;
mod backend;
mod calls;
mod cgroup;
mod durable;
mod failure;
mod flashmap;
mod flashvm;
mod gauges;
mod hunt;
mod hybridswap;
mod index;
mod ledger;
mod lender;
mod malloc_load;
mod maps;
mod marked_page;
mod object;
mod output;
mod overheads;
mod papers;
mod raw_reads;
mod real;
mod report;
mod signals;
mod sizes;
mod stream;
mod supervisor;
mod swap_file;
mod table;
mod threads;
mod torture;
mod undo;
mod worker;
mod workload;
mod zram;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("deepheap-bench measures Linux on x86_64 only, for now");

use clap::{Parser, Subcommand};

use crate::durable::Durable;
use crate::durable::checkpoints::Checkpoints;
use crate::durable::opening::Opening;
use crate::durable::transactions::Transactions;
use crate::failure::Failure;
use crate::flashmap::FlashMap;
use crate::flashvm::FlashVm;
use crate::hunt::Hunt;
use crate::hybridswap::HybridSwap;
use crate::index::Index;
use crate::malloc_load::MallocLoad;
use crate::maps::Maps;
use crate::overheads::Overheads;
use crate::papers::Papers;
use crate::raw_reads::RawReads;
use crate::real::Real;
use crate::table::{Cases, Table};
use crate::threads::Threads;
use crate::torture::Torture;
use crate::torture::actor::Actor;
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

const REAL_HELP: &str = "\
Each program works on data that a seed gives, alone first: that tells its peak of memory, as its
memory cgroup sees it, and its output. Then it gets 2/3, 1/2 and 1/4 of that peak, the whole process
with all that is not deepheap's to move: on deepheap (whose budget is what that leaves), on a swap
file (with vm.page-cluster 0 and 3), and on swap in compressed RAM (zram, lz4; what its pool takes
is taken from the limit). Redis and memcached are loaded from outside of their memory cgroup.

Every output is compared with that of the program alone; a wrong one ends the sitting with status 1.
A run that takes twenty times as long as alone, and 40 s at least, is ended and told as such; it is
not made again in later rounds.

Every run is written to RUNS as soon as it is measured, and a sitting that was cut short goes on
where it was. --contenders deepheap --again measures only deepheap anew, after a change of it.
Programs that are not installed are left out, with a line that names the package: `make real-deps`
installs them all.

Needs root for all but --quick. All that it makes is taken back at the end, on errors and on SIGINT
and SIGTERM; what a run killed by SIGKILL left is taken back by the next run or by
`deepheap-bench clean`, but for the folder of a program's data in TMPDIR.";

const TORTURE_HELP: &str = "\
Each round starts a process that opens a durable heap, changes it in four threads, and makes
checkpoints in every way there is. It is killed (SIGKILL) at a random moment, or the file system
that the heap lies on is shut down without a flush of its journal. Then another process opens the
heap and holds every byte against a model: nothing that a checkpoint had made durable may be
missing, and what is there must be of one instant. Options of the heap are drawn anew each time.

File systems other than `here` are made in files in DIR and mounted by loop devices, which needs
root and mkfs of that kind; what is missing is told and left out. All of it is taken back at the
end, on errors and on SIGINT and SIGTERM; what a run killed by SIGKILL left is taken back by the
next run or by `deepheap-bench clean`.";

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
    /// Runs every case of the table of pages and prints it in markdown
    Table(Table),
    /// Runs every case of the table of objects and prints it in markdown
    Objects(Table),
    /// Times what a fault on an object is made of, beside the numbers of the SSDAlloc paper
    Overheads(Overheads),
    /// Times faults of many threads at once, on cached and on stored pages
    Threads(Threads),
    /// Repeats the experiments of the SSDAlloc and SSDRAM papers and writes docs/papers
    #[command(after_help = PAPERS_HELP)]
    Papers(Papers),
    /// Measures paging policies one by one beside swap: scans, strides, random access, writes
    Flashvm(FlashVm),
    /// Measures maps beside the kernel's mapping: reads, writes, rows, scans, commits; needs root
    Flashmap(FlashMap),
    /// Measures programs with a disk behind the SSD, and its bound on stalls, and writes a page
    Hybridswap(HybridSwap),
    /// Measures real programs alone, on deepheap, on swap and on zram, and writes a page
    #[command(after_help = REAL_HELP)]
    Real(Real),
    /// Reads and writes pages of a mapped file larger than RAM and prints JSON lines
    Maps(Maps),
    /// Fills a heap of very many small objects and prints a JSON line; opens a durable one again
    Index(Index),
    /// Hunts for lost writes on deepheap: increments under eviction, then exact sums
    Hunt(Hunt),
    /// Compares a durable heap with LMDB and redb: reads and updates of records; needs root
    Durable(Durable),
    /// Measures what checkpoints of a durable heap cost, and opening it after SIGKILL; prints JSON
    Checkpoints(Checkpoints),
    /// Measures how long a large durable heap takes to open; prints JSON; needs root
    Opening(Opening),
    /// Compares maps and durable heaps with LMDB, redb and SQLite: transactions; needs root
    Transactions(Transactions),
    /// Kills processes with durable heaps, cuts their power, and verifies every byte each time
    #[command(after_help = TORTURE_HELP)]
    Torture(Torture),
    /// Removes what killed runs left: swap files, memory cgroups, vm.page-cluster
    Clean,
    #[command(hide = true)]
    Worker,
    #[command(hide = true)]
    HybridswapLoad(hybridswap::Load),
    #[command(hide = true)]
    TortureActor(Actor),
}

fn main() {
    let outcome = match Cli::parse().command {
        Command::Run(workload) => run(&workload),
        Command::Malloc(load) => malloc_load::main(&load),
        Command::Device(reads) => raw_reads::main(&reads),
        Command::Table(table) => table.main(Cases::Pages),
        Command::Objects(table) => table.main(Cases::Objects),
        Command::Overheads(overheads) => overheads.main(),
        Command::Threads(threads) => threads.main(),
        Command::Papers(papers) => papers.main(),
        Command::Flashvm(policies) => policies.main(),
        Command::Flashmap(maps) => maps.main(),
        Command::Hybridswap(tiers) => tiers.main(),
        Command::Real(real) => real.main(),
        Command::Maps(maps) => maps::main(&maps),
        Command::Index(index) => index.main(),
        Command::Hunt(hunt) => hunt.main(),
        Command::Clean => {
            ledger::clean();
            Ok(())
        }
        Command::Durable(durable) => durable.main(),
        Command::Checkpoints(checkpoints) => checkpoints.main(),
        Command::Opening(opening) => opening.main(),
        Command::Transactions(transactions) => transactions.main(),
        Command::Torture(torture) => torture.main(),
        Command::Worker => worker::main(),
        Command::HybridswapLoad(load) => load.main(),
        Command::TortureActor(actor) => actor.main(),
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
