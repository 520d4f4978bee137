//! The benchmark: one operation stream on deepheap, on Linux swap, on an mmapped file and on glibc,
//! with the same RAM and the same device; the hunt for lost writes; the torture of durable heaps.
//!
//! Guarantees: what a command makes on the machine (memory cgroups, swap files, mounts) is gone
//! when it ends; `ledger` takes back what a killed one left.
//! Never: linked into anything that is shipped. Two programs use it: `deepheap-bench`, and
//! `deepheap-papers`, which knows all commands of both, because a run starts its own program.

#![allow(missing_docs, reason = "two programs of ours use it, and nobody else")]

mod access;
pub mod backend;
mod calls;
pub mod cgroup;
mod durable;
pub mod failure;
pub mod gauges;
mod hunt;
mod index;
pub mod ledger;
pub mod lender;
mod malloc_load;
pub mod maps;
pub mod marked_page;
mod object;
pub mod output;
mod overheads;
pub mod raw_reads;
pub mod report;
pub mod signals;
pub mod sizes;
mod stream;
pub mod supervisor;
pub mod swap_file;
mod table;
mod threads;
mod torture;
pub mod undo;
mod worker;
pub mod workload;
pub mod zram;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("deepheap-bench measures Linux on x86_64 only, for now");

use clap::Subcommand;

use crate::durable::Durable;
use crate::durable::checkpoints::Checkpoints;
use crate::durable::opening::Opening;
use crate::durable::transactions::Transactions;
use crate::failure::Failure;
use crate::hunt::Hunt;
use crate::index::Index;
use crate::malloc_load::MallocLoad;
use crate::maps::Maps;
use crate::overheads::Overheads;
use crate::raw_reads::RawReads;
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

const THREADS_HELP: &str = "\
A touch reads two words of a random page and compares them; of a page that is written, a counter is
added to as well. Threads touch without a pause, every touch is timed, with what it waits for a
processor. At the end every word of every page is compared and the writes are counted.

The programs of deepheap and of its rival run side by side and take turns within each round, for
each number of threads. The numbers are medians of the rounds, the ratio is the median of theirs.

RAM is equal: --ram is deepheap's budget, with its tables, cache and page tables. For zram (lz4,
vm.page-cluster 0) it is the limit of the memory cgroup and the pool together: the limit is looked
for until both are within 1 % of --ram, by what mm_stat says after all pages were touched. In both
cases what the program itself takes without pages comes on top.

Needs root. Memory cgroups, zram device, swap file and vm.page-cluster are taken back at the end, on
errors and on SIGINT and SIGTERM; what a run killed by SIGKILL left is taken back by the next run or
by `deepheap-bench clean`.";

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

/// What the benchmark can do.
#[derive(Debug, Subcommand)]
pub enum Command {
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
    /// Times touches of many threads at once, beside swap on zram and a swap file; needs root
    #[command(after_help = THREADS_HELP)]
    Threads(Threads),
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
    /// A process that a run starts
    #[command(hide = true)]
    Worker,
    /// A process that `threads` starts
    #[command(hide = true)]
    ThreadsProgram,
    /// A process that `torture` starts and kills
    #[command(hide = true)]
    TortureActor(Actor),
}

impl Command {
    /// Does it.
    pub fn execute(self) -> Result<(), Failure> {
        match self {
            Command::Run(workload) => run(&workload),
            Command::Malloc(load) => malloc_load::main(&load),
            Command::Device(reads) => raw_reads::main(&reads),
            Command::Table(table) => table.main(Cases::Pages),
            Command::Objects(table) => table.main(Cases::Objects),
            Command::Overheads(overheads) => overheads.main(),
            Command::Threads(threads) => threads.main(),
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
            Command::ThreadsProgram => threads::program::main(),
            Command::TortureActor(actor) => actor.main(),
        }
    }
}

/// What a program of ours does with an outcome: it ends, and says why.
pub fn end(program: &str, outcome: Result<(), Failure>) {
    if let Err(failure) = outcome {
        eprintln!("{program}: {failure}");
        std::process::exit(failure.exit_status());
    }
}

fn run(workload: &Workload) -> Result<(), Failure> {
    signals::install();
    let report = supervisor::run(workload)?;
    output::json(&report)
}
