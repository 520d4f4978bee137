//! Arguments: what can be written behind `deepheap`, with the words of the help and man pages.
//!
//! Guarantees: what clap accepts is only well-formed; whether it is possible is checked later.
//! Never: reads the environment or the machine.
//! Threads: none but main.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use deepheap::internal::config::{KEYS, Key};

/// A heap deeper than your RAM: runs unmodified programs with more memory than the machine has.
#[derive(Parser)]
#[command(name = "deepheap", version, arg_required_else_help = true)]
#[command(subcommand_help_heading = "Commands")]
#[command(after_help = "Examples:\n  deepheap run --ram 256M redis-server\n  deepheap doctor")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Run a program whose heap may be larger than RAM
    Run(Box<Run>),
    /// Check whether this machine has what deepheap needs, and how to fix it
    Doctor(Doctor),
    /// Show the live counters of a process that runs under deepheap, or list all of them
    Stat(Stat),
    /// Change the RAM budget of a process that runs under deepheap
    Set(Set),
    /// Show all processes that run under deepheap, live
    Top(Top),
    /// Show one process or all of them as a local web page, with metrics for OpenMetrics
    Serve(Serve),
    /// Show where a program waits for memory: the functions whose accesses fault, by time waited
    Profile(Box<Profile>),
    /// Play a trace with other RAM or policies: misses, bytes written, time, life of the device
    Simulate(Simulate),
    /// Say how much RAM a traced program needs: slowdown and life of the device by RAM
    Advise(Advise),
    /// Show which files are mapped by dh_map, and by which processes of this user
    Maps,
    /// Show what is in the file of a durable heap, or of a map with a log
    Inspect(OfFile),
    /// Verify the file of a durable heap, every table and every block that holds something; or the
    /// log of a map
    Fsck(Fsck),
    /// Make a durable heap what it was in a snapshot; what was changed since is lost
    Rollback(OfSnapshot),
    /// Remove a snapshot of a durable heap
    RmSnapshot(OfSnapshot),
    /// Make the file of a durable heap smaller: what lives moves together, the rest goes back
    Compact(OfFile),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  folder=~/.local/share/bash-completion/completions\n  \
                            deepheap completions bash > $folder/deepheap")]
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

/// `deepheap inspect` and `compact`, and what other commands about files take.
#[derive(Args)]
pub struct OfFile {
    /// The file; only inspect and fsck go on while a process has it open to change it
    #[arg(value_parser = any_path())]
    pub file: PathBuf,
    /// The file of its key, if it is encrypted
    #[arg(long, value_name = "FILE", value_parser = any_path())]
    pub key: Option<PathBuf>,
}

const FSCK_STATUS: &str = "\
Exit status: 0 if nothing is damaged, or with --repair nothing any more; 1 if something is \
damaged, or was lost; 2 if there is no heap, or somebody uses it.";

/// `deepheap fsck`.
#[derive(Args)]
#[command(after_help = FSCK_STATUS)]
pub struct Fsck {
    /// The file and its key
    #[command(flatten)]
    pub of: OfFile,
    /// Make damaged tables anew from what is left, or go back to the checkpoint before; no process
    /// may have the file open to change it
    #[arg(long)]
    pub repair: bool,
}

/// `deepheap rollback` and `deepheap rm-snapshot`.
#[derive(Args)]
pub struct OfSnapshot {
    /// The file and its key
    #[command(flatten)]
    pub of: OfFile,
    /// The snapshot; `deepheap inspect` lists them
    pub name: String,
}

const RUN_NOTES: &str = "\
Sizes are bytes, or 64K, 256M, 1.5G, 2T (of 1024), or a percentage: --ram of the machine or of \
its memory cgroup, --store-size of what is free there, --page-buffer of the budget.

The program takes over this process, so its exit status and signals are its own. With \
--show-stats or --stats it is a child of this process, which passes on signals and exit status, \
and tells how it went however it ends: what it had touched at most, how much of that was on SSD, \
for what part of its run time it waited for want of RAM, and with how much RAM it would have \
waited less. The settings of an existing DEEPHEAP_CONF hold where no option is given, and an \
existing LD_PRELOAD is kept.

Exit status: 2 if deepheap refuses (it says why, the program was not started), 126 if the program \
cannot be executed, 127 if it is not found, else the program's.

Examples:
  deepheap run redis-server --port 7777
  deepheap run --ram 2G --store /mnt/nvme --show-stats python3 train.py
  deepheap run --ram auto --stall 1% --show-stats ./service
  deepheap run --ram 8G --pool night ./batch
  deepheap run --ram 4G --objects 100-1500 --show-stats ./packet_cache
  deepheap run --ram 25% --store /dev/nvme1n1 --no-children ./simulate";

/// `deepheap run`.
#[derive(Args)]
#[command(override_usage = "deepheap run [OPTIONS] [--] PROGRAM [ARGUMENTS]...")]
#[command(after_help = RUN_NOTES)]
pub struct Run {
    /// What is given of the settings
    #[command(flatten)]
    pub settings: Settings,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Settings: those of `config::KEYS` that have an option.
pub struct Settings(pub Vec<(&'static Key, OsString)>);

impl Args for Settings {
    fn augment_args(command: clap::Command) -> clap::Command {
        KEYS.iter().filter(|key| key.has_option).fold(command, |command, key| {
            let option: &'static str = key.option().leak();
            let arg = Arg::new(key.name).long(option.trim_start_matches('-'));
            if key.is_flag() {
                return command.arg(arg.help(key.what).action(ArgAction::SetTrue));
            }
            let help = format!("{} [default: {}]", key.what, key.without);
            let arg = arg.help(help).value_name(key.value).value_parser(OsStringValueParser::new());
            // A value may begin with a hyphen, so that `-1` is told to be negative, not to be an
            // option.
            let is_path = key.value.starts_with("PATH") || key.value == "FILE";
            command.arg(arg.allow_hyphen_values(!is_path))
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Settings::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
        let value = |key: &Key| match key.is_flag() {
            true => matches.get_flag(key.name).then(|| key.value.into()),
            false => matches.get_one(key.name).cloned(),
        };
        let keys = KEYS.iter().filter(|key| key.has_option);
        Ok(Settings(keys.filter_map(|key| Some((key, value(key)?))).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Settings::from_arg_matches(matches)?;
        Ok(())
    }
}

const SIMULATE_NOTES: &str = "\
The trace is what `deepheap run --trace FILE` wrote. Each line tells for a RAM budget: reads of \
the SSD for 100 touches; touches of what was in RAM, of what was compressed in RAM, and of what \
had to be read; what was written; how much slower the program is than with enough RAM; and how \
long an SSD rated for 600 TB of writes lasts if the program runs all the time.

A trace does not have the touches of pages in RAM, so less RAM than it was taken with cannot be \
simulated well: take the trace with little RAM.

Policies, as in DEEPHEAP_CONF:
  page_buffer:25%   how much is mapped at a time, or a size [default: as in the trace]
  page_buffer:moves it is found while the program runs, as without a trace
  scans:off         a scan does not bring the pages after the one that is touched
  strides:off       a walk in equal steps does not bring its next pages
  sequences:off     a page does not bring those that followed it before

Examples:
  deepheap run --ram 64M --trace /tmp/t ./program
  deepheap simulate /tmp/t --ram 96M --ram 128M
  deepheap simulate /tmp/t --ram 128M --policy page_buffer:25%,scans:off
  deepheap simulate /tmp/t --svg curve.svg";

/// `deepheap simulate`.
#[derive(Args)]
#[command(after_help = SIMULATE_NOTES)]
pub struct Simulate {
    /// The trace
    #[arg(value_parser = any_path())]
    pub file: PathBuf,
    /// The RAM budget; may be given more than once [default: that of the trace]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub ram: Vec<String>,
    /// Other policies than the usual ones, as KEY:VALUE,KEY:VALUE
    #[arg(long, value_name = "POLICIES", allow_hyphen_values = true)]
    pub policy: Vec<String>,
    /// Show the miss ratio for RAM from that of the trace to all that the program touched
    #[arg(long)]
    pub curve: bool,
    /// Draw that into a file
    #[arg(long, value_name = "FILE", value_parser = any_path())]
    pub svg: Option<PathBuf>,
}

const ADVISE_NOTES: &str = "\
It says with how much RAM the program would be 1 %, 5 % and 20 % slower than with all that it \
touches. Each line of the table tells for a RAM budget: how much slower the program is than with \
enough RAM; what it writes to the SSD in a day; and how long an SSD rated for 600 TB of writes \
lasts, if the program runs all the time.

Examples:
  deepheap advise /tmp/t
  deepheap advise /tmp/t --svg advice.svg
  deepheap advise $(pgrep redis)";

/// `deepheap advise`.
#[derive(Args)]
#[command(after_help = ADVISE_NOTES)]
pub struct Advise {
    /// A trace, or a process that runs with --trace
    #[arg(value_name = "PID|FILE", value_parser = any_path())]
    pub of: PathBuf,
    /// Draw slowdown and life of the device by RAM into a file
    #[arg(long, value_name = "FILE", value_parser = any_path())]
    pub svg: Option<PathBuf>,
}

/// `deepheap doctor`.
#[derive(Args)]
#[command(after_help = "Exit status: 0 if deepheap can run here, 1 if something must be fixed.")]
pub struct Doctor {
    /// The store to examine [default: as for run]
    #[arg(long, value_name = "PATH", value_parser = any_path())]
    pub store: Option<PathBuf>,
    /// Print a line of JSON instead
    #[arg(long)]
    pub json: bool,
}

const STAT_STATUS: &str = "Exit status: 0, or 1 if there is no such process or it has no deepheap.";

const STAT_LEGEND: &str = "\
The words on the screen:

  heap is in RAM   all of it is ordinary memory, none is on SSD
  heap is managed  it has outgrown its RAM: a part may be compressed
                   in RAM, or on SSD

  pool             what --pool shares: what this process may use of it
                   now, and what no process has
  in RAM           pages that the program touches without a fault;
                   while nothing is managed, all that the heap gave out
  compressed       in the cache, compressed in RAM, or plain where that
                   does not pay: a touch takes a fault, which reads
                   nothing; with the room that is kept for the next ones
  page tables      the kernel's, for the addresses of the heap
  tables           where each object is, and what is allocated
  store buffers    segments on their way to the device, and the tables
                   of the store
  other            what is known of each object in RAM, and the like
  store            space that is taken there, of what may be; some is
                   set aside before anything is written
  heap             what the program has allocated and not freed, the
                   pages for it, and what has a copy on SSD
  mapped           what it got by mmap, a part of that
  not managed      what it has in RAM outside of deepheap, files apart

  faults           accesses that had to wait, and how long they took
                   as the program saw it:
    zero           the page was touched for the first time
    compressed     the page was compressed in RAM
    stored         the page was on SSD
    waited         another thread was already fetching it
  prefetch         pages that were read before the program asked

  evicted          pages that need a fault to be touched again; clean:
                   unchanged since they came; dirty: changed; zero: all
                   zeros; free: no allocation uses them
  lz4              of them, pages that were compressed in RAM; given up:
                   they would not have become smaller; undone: touched
                   again
  zstd             of these, pages that would have left RAM, and were
                   compressed once more
  cache            what left it: dropped, for the store has it, or
                   written; kept: touched again, so it stays longer
  device           bytes read and written
  tier             the second tier: what is live there, of what may be,
                   and bytes read and written
  mix              the part of all bytes written, to both, that went
                   to the second tier; now: in the last interval
  log              write amplification: bytes written for each byte
                   that left RAM; collected: segments made free by
                   moving the blocks that were still needed
  waited           the part of its run time that a thread waited in
                   faults which more RAM would have spared it; of the
                   thread that waited most; now: in the last seconds;
                   the bound is that of --stall
  for room         time that threads waited for room in RAM or on the
                   store; times that they made it themselves
  longest          the longest wait of the last minute, and for what:
                   room, memory that came under management (take-over),
                   another thread that was moving the page, a fork, a
                   checkpoint, the device, the log, the object table;
                   else a processor was lacking, or the kernel slow
  calls            system calls on memory that was compressed or on
                   SSD: made again (EFAULT), and with their memory
                   pinned

Exit status: 0, or 1 if there is no such process or it has no deepheap.";

/// `deepheap stat`.
#[derive(Args)]
#[command(after_help = STAT_STATUS, after_long_help = STAT_LEGEND)]
pub struct Stat {
    /// The process, by its id or its name [default: lists all that this user may look into]
    #[arg(value_name = "PID|NAME")]
    pub process: Option<String>,
    /// Print a line of JSON instead
    #[arg(long)]
    pub json: bool,
    /// Show it again every so many seconds, with rates, until the process ends [default: 1]
    // With `=`, so that `--watch PID` is not taken for an interval.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1", value_parser = seconds, requires = "process")]
    pub watch: Option<f64>,
}

const SET_NOTES: &str = "\
The budget may become less than the process began with, and that again, but no more: its tables \
are laid out for it. The command waits until the process has given back what is too much, which \
takes as long as it takes to write that to the SSD, for ten seconds at most. Memory that has not \
outgrown its RAM is not managed yet: then the new budget holds from when the heap next grows.

Children that the process forks from then on have the same budget; programs that it executes have \
the one of `deepheap run`. A process with a bound on stalls (--ram auto) or in a pool cannot be \
set.

Exit status: 0, 1 if there is no such process, it has no deepheap, or it does not answer, 2 if it \
cannot have that budget.

Examples:
  deepheap set $(pgrep redis) --ram 2G
  deepheap set redis-server --ram 512M";

/// `deepheap set`.
#[derive(Args)]
#[command(after_help = SET_NOTES)]
pub struct Set {
    /// The process, by its id or its name
    #[arg(value_name = "PID|NAME")]
    pub process: String,
    /// The RAM that it may use from now on, as for run
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub ram: String,
}

const TOP_NOTES: &str = "\
Keys: up and down choose a process, enter looks into it, s sorts, / filters by name, ? explains \
the rest, q quits. NO_COLOR is heeded; without UTF-8 in the locale the pictures are ASCII.

The hottest code is the code that faults most. The process notes one fault in 16 in its \
statistics; the functions are named by the symbols of the files that are mapped.

Life is how long an SSD lasts that is rated for 600 TB of writes, as common ones of 1 TB are, if \
it is written on at the rate of the last minutes; with a second tier also how long it would last \
if it had to take what goes there.

Processes of other users are seen by root only.";

/// `deepheap top`.
#[derive(Args)]
#[command(after_help = TOP_NOTES)]
pub struct Top {
    /// A process to look into at once
    #[arg(value_parser = process_id)]
    pub pid: Option<u32>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub every: f64,
}

const SERVE_NOTES: &str = "\
It prints the address of the page, with a token without which nothing is told. The page shows \
where the pages of the heap are, how RAM is used, faults, the device, and the code that faults \
most. When a process ends, its last picture stays.

  /?token=T         the page; &pid=N chooses a process
  /data?token=T     what it shows, as JSON
  /metrics          all counters as OpenMetrics text; the token as
                    'Authorization: Bearer T', or in the query

Only this machine is listened to unless --listen says otherwise. There is no encryption: from \
other machines come by 'ssh -L 7070:127.0.0.1:7070'.";

/// `deepheap serve`.
#[derive(Args)]
#[command(after_help = SERVE_NOTES)]
pub struct Serve {
    /// The process
    #[arg(value_parser = process_id)]
    pub pid: Option<u32>,
    /// All processes that this user may look into
    #[arg(long, conflicts_with = "pid")]
    pub all: bool,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070")]
    #[arg(value_parser = socket_address)]
    pub listen: SocketAddr,
    /// A file with the token, for clients that know it [default: a new one each time]
    #[arg(long, value_name = "FILE", value_parser = any_path())]
    pub token_file: Option<PathBuf>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub every: f64,
}

const PROFILE_NOTES: &str = "\
It runs the program as `deepheap run` does, and its children, with the same options, and tells on \
stderr where they waited in faults: for which part of that time in a function itself (own), and \
in it and what it calls (total). Of a process that runs under deepheap already it tells on \
stdout.

One fault in some is noted with its stack: the one with which a thread has waited for 0.25 ms \
since the last, and less often from time to time. The stack is read by the tables for exceptions \
(DWARF) that compilers write, or by frame pointers. It ends where it is deeper than 16 KiB. \
Functions have names as far as a file has symbols; of others it says where they begin. Files of \
other functions: /tmp/perf-PID.map, as `python3 -X perf` (from 3.12 on), Java and Node write it.

With --allocations it also tells which calls allocated the memory that was cold when most of it \
was. One allocation in some is noted with its stack, of small ones one in each 512 KiB. -o \
FLAME.svg then writes FLAME.allocations.svg, too. It is for a program to start.

Not in it are waits in system calls on memory that is not in RAM, and those for maps.

Examples:
  deepheap profile --ram 256M -o flame.svg -- python3 -X perf train.py
  deepheap profile -o stacks.folded -o stacks.json --ram 1G ./program
  deepheap profile --allocations --ram 256M ./program
  deepheap profile --seconds 30 -o flame.svg $(pgrep redis)";

/// `deepheap profile`.
#[derive(Args)]
#[command(override_usage = "deepheap profile [OPTIONS] [--] PROGRAM [ARGUMENTS]...\n       \
                            deepheap profile [OPTIONS] PID")]
#[command(after_help = PROFILE_NOTES)]
pub struct Profile {
    /// Write the stacks, too: NAME.svg as a flame graph, NAME.json for speedscope.app, others as
    /// folded stacks; may be given more than once
    #[arg(short, long, value_name = "FILE", value_parser = any_path())]
    pub output: Vec<PathBuf>,
    /// Tell, too, what allocated the memory that was cold: not touched for a while, and so
    /// compressed in RAM or on SSD
    #[arg(long)]
    pub allocations: bool,
    /// Look at a process for so long, if it and nobody ends it before [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// What is given of the settings
    #[command(flatten)]
    pub settings: Settings,
    /// A process, by its id, or the program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an address and a port, as 127.0.0.1:7070".to_owned())
}

/// A path as it is given, an empty one too: what is wrong with that is told by the settings.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn process_id(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(pid @ 1..) => Ok(pid),
        _ => Err("give the number of a process, as ps and pgrep tell it".to_owned()),
    }
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

    fn watched(words: &[&str]) -> Option<(String, Option<f64>)> {
        let words = ["deepheap", "stat"].iter().chain(words);
        match Arguments::try_parse_from(words).ok()?.command {
            Command::Stat(stat) => Some((stat.process?, stat.watch)),
            _ => None,
        }
    }

    fn of_process(watch: Option<f64>) -> Option<(String, Option<f64>)> {
        Some(("4711".to_owned(), watch))
    }

    #[test]
    fn watch_takes_its_seconds_with_an_equals_sign_and_leaves_the_process_alone() {
        assert_eq!(watched(&["4711"]), of_process(None));
        assert_eq!(watched(&["--watch", "4711"]), of_process(Some(1.0)));
        assert_eq!(watched(&["4711", "--watch"]), of_process(Some(1.0)));
        assert_eq!(watched(&["--watch=0.5", "4711"]), of_process(Some(0.5)));
        assert_eq!(watched(&["4711", "--watch=2", "--json"]), of_process(Some(2.0)));
        assert_eq!(watched(&["--watch=0.01", "4711"]), None);
    }
}
