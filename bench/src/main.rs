//! deepheap-bench: one operation stream on deepheap, on Linux swap, on an mmapped file and on
//! glibc, with the same RAM and the same device. See the library of this package.

use clap::Parser;

/// One operation stream on deepheap, swap, mmap and glibc: same RAM, same device.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: deepheap_bench::Command,
}

fn main() {
    deepheap_bench::end("deepheap-bench", Cli::parse().command.execute());
}
