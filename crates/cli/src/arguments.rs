//! Arguments: what can be written behind `deepheap`, with the words of the help and man pages.
//!
//! Guarantees: what clap accepts is only well-formed; whether it is possible is checked later.
//! Never: reads the environment or the machine.
//! Threads: none but main.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

/// A heap deeper than your RAM: runs unmodified programs with more memory than the machine has.
#[derive(Parser)]
#[command(name = "deepheap", version, arg_required_else_help = true)]
#[command(subcommand_help_heading = "Commands", disable_help_subcommand = true)]
#[command(after_help = "Try it:  deepheap run --ram 256M redis-server\n\
                        Check:   deepheap doctor")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Run a program whose heap may be larger than RAM
    Run(Run),
    /// Check whether this machine has what deepheap needs, and how to fix it
    Doctor(Doctor),
    /// Show the live counters of a process that runs under deepheap
    Stat(Stat),
    /// Print a completion script for a shell
    #[command(after_help = "Example:  deepheap completions bash > \
                            ~/.local/share/bash-completion/completions/deepheap")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder; it must exist
        folder: PathBuf,
    },
}

const RUN_NOTES: &str = "\
Sizes are bytes, or 64K, 256M, 1.5G, 2T (of 1024), or a percentage: --ram of the machine or of its
memory cgroup, --store-size of what is free there, --page-buffer of the budget.

The program takes over this process, so its exit status and signals are its own. The settings of
an existing DEEPHEAP_CONF hold where no option is given, and an existing LD_PRELOAD is kept.

Exit status: 2 if deepheap refuses (it says why, the program was not started), 126 if the program
cannot be executed, 127 if it is not found, else the program's.

Examples:
  deepheap run redis-server --port 7777
  deepheap run --ram 2G --store /mnt/nvme --show-stats -- python3 train.py
  deepheap run --ram 4G --objects auto --show-stats -- ./graph_index edges.txt
  deepheap run --ram 25% --store /dev/nvme1n1 --no-children ./simulate";

/// `deepheap run`.
#[derive(Args)]
#[command(override_usage = "deepheap run [OPTIONS] [--] PROGRAM [ARGUMENTS]...")]
#[command(after_help = RUN_NOTES)]
pub struct Run {
    /// RAM budget: the ceiling on everything deepheap uses [default: 50%]
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<String>,
    /// Folder on an SSD, file or device for what does not fit [default: $TMPDIR or .]
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// How much of the store may be used, as a size or a percentage of what is free [default: 90%]
    #[arg(long, value_name = "SIZE")]
    pub store_size: Option<String>,
    /// Place allocations of MIN-MAX bytes as objects, or `auto`: by their locality [default: none]
    #[arg(long, value_name = "MIN-MAX|auto")]
    pub objects: Option<String>,
    /// How much of the budget is mapped at a time, as a size or a percentage [default: by itself]
    #[arg(long, value_name = "SIZE")]
    pub page_buffer: Option<String>,
    /// At exit, add a line of JSON statistics to this file
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// At exit, print a summary to stderr
    #[arg(long)]
    pub show_stats: bool,
    /// Leave child processes alone (else each has a heap and a budget of its own)
    #[arg(long)]
    pub no_children: bool,
    /// Overwrite a device or file that holds something
    #[arg(long)]
    pub force: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// `deepheap doctor`.
#[derive(Args)]
#[command(after_help = "Exit status: 0 if deepheap can run here, 1 if something must be fixed.")]
pub struct Doctor {
    /// The store to examine [default: as for run]
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
}

const STAT_NOTES: &str = "\
Times are latencies of faults as the program saw them. 'zero' faults touched a page for the first
time, 'cached' ones found it in DRAM, 'stored' ones read it from the store, 'waited' ones came
while another thread was already fetching it.

Exit status: 0, or 1 if there is no such process or it has no deepheap.";

/// `deepheap stat`.
#[derive(Args)]
#[command(after_help = STAT_NOTES)]
pub struct Stat {
    /// The process
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,
    /// Print a line of JSON instead
    #[arg(long)]
    pub json: bool,
    /// Show it again every so many seconds, with rates, until the process ends [default: 1]
    // With `=`, so that `--watch PID` is not taken for an interval.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1", value_parser = seconds)]
    pub watch: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds from 0.1 to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(words: &[&str]) -> Option<(u32, Option<f64>)> {
        let words = ["deepheap", "stat"].iter().chain(words);
        match Arguments::try_parse_from(words).ok()?.command {
            Command::Stat(stat) => Some((stat.pid, stat.watch)),
            _ => None,
        }
    }

    #[test]
    fn watch_takes_its_seconds_with_an_equals_sign_and_leaves_the_process_alone() {
        assert_eq!(watched(&["4711"]), Some((4711, None)));
        assert_eq!(watched(&["--watch", "4711"]), Some((4711, Some(1.0))));
        assert_eq!(watched(&["4711", "--watch"]), Some((4711, Some(1.0))));
        assert_eq!(watched(&["--watch=0.5", "4711"]), Some((4711, Some(0.5))));
        assert_eq!(watched(&["4711", "--watch=2", "--json"]), Some((4711, Some(2.0))));
        assert_eq!(watched(&["--watch=0.01", "4711"]), None);
    }
}
