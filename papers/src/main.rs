//! deepheap-papers: what five papers measured, measured again, and real programs beside swap.
//!
//! `papers` repeats the experiments of SSDAlloc and SSDRAM, `flashvm` the policies of FlashVM,
//! `flashmap` has what maps are for after FlashMap, `hybridswap` a disk behind the SSD, `real` runs
//! programs that users know. Each writes a page of this folder. The program knows the commands of
//! `deepheap-bench`, too, for it starts itself for each run.

mod flashmap;
mod flashvm;
mod hybridswap;
mod papers;
mod real;

use clap::{Parser, Subcommand};

use crate::flashmap::FlashMap;
use crate::flashvm::FlashVm;
use crate::hybridswap::HybridSwap;
use crate::papers::Papers;
use crate::real::Real;

const PAPERS_HELP: &str = "\
The programs are the applications of examples/papers (`make apps` builds them), memcached, and
`deepheap-bench run`, `overheads` and `device`. Each is measured with objects and with pages of
deepheap, on swap and on an mmapped file: the same data, the same RAM, the same device. `make
bench-papers` builds all and calls this.

Every point is written to OUT/runs.jsonl as soon as it is measured. A sitting that was cut short
goes on where it was, and one with other settings measures anew; --again measures all again. The
pages README.md, ssdalloc.md and ssdram.md and their plots are written from these files, whatever
--only chose; what failed or is missing says so there.

Needs root for swap and mmap (memory cgroups and a swap file in --dir); without root these points
are left out. All of it is taken back at the end, on errors and on SIGINT and SIGTERM; what a run
killed by SIGKILL left is taken back by the next run or by `deepheap-bench clean`.";

const REAL_HELP: &str = "\
Each program works on data that a seed gives, alone first: that tells its peak of memory, about 1
GiB (with --small about 100 MiB), and its output. The peak is what its memory cgroup holds less the
page cache of files, which the kernel takes back whenever it wants to. Then it gets 2/3, 1/2 and 1/4
of that peak, the whole process with all that is not deepheap's to move: on deepheap (whose budget
is what that leaves), on a swap file (with vm.page-cluster 0 and 3), and on swap in compressed RAM
(zram, lz4; what its pool takes is taken from the limit). Redis and memcached are loaded from
outside of their memory cgroup.

Every output is compared with that of the program alone; a wrong one ends the sitting with status 1.
A run that takes twenty times as long as alone, and 40 s at least, is ended and told as such; it is
not made again in later rounds.

Every run is written to RUNS as soon as it is measured, and a sitting that was cut short goes on
where it was. What all rows come to is printed last. --contenders deepheap --again measures only
deepheap anew, after a change of it. Programs that are not installed are left out, with a line that
names the package: `make real-deps` installs them all.

Needs root for all but --quick. All that it makes is taken back at the end, on errors and on SIGINT
and SIGTERM; what a run killed by SIGKILL left is taken back by the next run or by
`deepheap-bench clean`, but for the folder of a program's data in TMPDIR.";

/// The papers' experiments and real programs, on deepheap, swap and mmap: same RAM, same device.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
    #[command(hide = true)]
    HybridswapLoad(hybridswap::Load),
    #[command(flatten)]
    Bench(deepheap_bench::Command),
}

fn main() {
    let outcome = match Cli::parse().command {
        Command::Papers(papers) => papers.main(),
        Command::Flashvm(policies) => policies.main(),
        Command::Flashmap(maps) => maps.main(),
        Command::Hybridswap(tiers) => tiers.main(),
        Command::Real(real) => real.main(),
        Command::HybridswapLoad(load) => load.main(),
        Command::Bench(command) => command.execute(),
    };
    deepheap_bench::end("deepheap-papers", outcome);
}
