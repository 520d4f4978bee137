//! Settings: what `deepheap-papers papers` takes, and what all points share.
//!
//! Guarantees: two sittings with equal settings measure the same.
//! Never: changes the machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use deepheap_bench::failure::Failure;
use deepheap_bench::sizes::parse_bytes;
use deepheap_bench::supervisor;

/// Warm-up operations of a quick point.
const QUICK_WARM_UP: u64 = 15_000;
const QUICK_LIMIT: Duration = Duration::from_secs(180);
const FULL_LIMIT: Duration = Duration::from_secs(1800);

/// What `deepheap-papers papers` takes.
#[derive(Clone, Debug, Args)]
pub struct Papers {
    /// The same pages from fewer and shorter points, in under 15 minutes: 2 s, one round
    #[arg(long)]
    pub(super) quick: bool,
    /// Only experiments whose name starts with this (may be repeated); --list shows the names
    #[arg(long, value_name = "NAME")]
    pub(super) only: Vec<String>,
    /// Shows the names of the experiments, how many points each has, and ends
    #[arg(long)]
    pub(super) list: bool,
    /// Measures again what is there already
    #[arg(long)]
    pub(super) again: bool,
    /// Measures nothing: writes the pages from what is there with these settings
    #[arg(long, conflicts_with = "again")]
    pub(super) pages: bool,
    /// Where the pages, the plots and the runs go [default: docs/papers, quick: target/papers]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Where store, swap file and mapped file lie
    #[arg(long, default_value = ".", value_name = "PATH")]
    dir: PathBuf,
    /// The folder of the applications [default: ../apps, seen from this program's folder]
    #[arg(long, value_name = "PATH")]
    apps: Option<PathBuf>,
    /// What starts memcached: SCRIPT malloc|pages|objects OPTIONS
    #[arg(long, default_value = "examples/papers/memcached/run.sh", value_name = "SCRIPT")]
    memcached: PathBuf,
    /// The `deepheap` command [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    deepheap: Option<PathBuf>,
    /// Seconds each point measures [default: 3, quick: 2]
    #[arg(long)]
    seconds: Option<f64>,
    /// Rounds of what the goals are about, for the median; the rest is measured once
    /// [default: 3, quick: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Size of the data [default: 512M]
    #[arg(long = "data", value_parser = parse_bytes, value_name = "SIZE")]
    data_bytes: Option<u64>,
    /// RAM for the data [default: 32M]
    #[arg(long = "ram", value_parser = parse_bytes, value_name = "SIZE")]
    ram_bytes: Option<u64>,
}

/// What all points share.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Bytes of the objects.
    pub data_bytes: u64,
    /// RAM of a case of the usual part.
    pub ram_bytes: u64,
    /// Each point measures for so long.
    pub seconds: f64,
    /// Operations before that; the program's own if there is nothing.
    pub warm_up: Option<u64>,
    /// How often the points are measured that the goals are about.
    pub rounds: u32,
    /// Fewer points.
    pub quick: bool,
    /// Where store, swap file and mapped file lie.
    pub dir: PathBuf,
    /// target/apps.
    pub apps: PathBuf,
    /// The script that starts memcached.
    pub memcached: PathBuf,
    /// The command `deepheap`.
    pub deepheap: PathBuf,
    /// Whether we may make cgroups and swap files.
    pub root: bool,
}

impl Papers {
    /// Where the pages, the plots and the runs go: those of a quick sitting not over those that
    /// are kept.
    pub(super) fn out(&self) -> PathBuf {
        let usual = if self.quick { "target/papers" } else { "docs/papers" };
        self.out.clone().unwrap_or_else(|| usual.into())
    }

    /// With all defaults filled in.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let (seconds, rounds) = if self.quick { (2.0, 1) } else { (3.0, 3) };
        let own = std::env::current_exe().map_err(|error| Failure::os("own path", &error))?;
        let folder = own.parent().map(PathBuf::from).unwrap_or_default();
        let whole = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let seconds = self.seconds.unwrap_or(seconds);
        if !(0.1..=86_400.0).contains(&seconds) {
            return Err(Failure::Refused("--seconds: use 0.1 to 86400".into()));
        }
        Ok(Settings {
            data_bytes: self.data_bytes.unwrap_or(512 << 20),
            ram_bytes: self.ram_bytes.unwrap_or(32 << 20),
            seconds,
            warm_up: self.quick.then_some(QUICK_WARM_UP),
            rounds: self.rounds.unwrap_or(rounds),
            quick: self.quick,
            dir: supervisor::folder(&self.dir)?,
            apps: self.apps.clone().map_or_else(|| folder.with_file_name("apps"), whole),
            memcached: whole(self.memcached.clone()),
            deepheap: self.deepheap.clone().map_or_else(|| folder.join("deepheap"), whole),
            // SAFETY: geteuid has no preconditions.
            root: unsafe { libc::geteuid() } == 0,
        })
    }
}

impl Settings {
    /// A point that takes longer is given up.
    pub fn limit(&self) -> Duration {
        let limit = if self.quick { QUICK_LIMIT } else { FULL_LIMIT };
        limit + Duration::from_secs_f64(self.seconds)
    }

    /// Data and RAM, in words.
    pub fn amounts(&self) -> String {
        format!("{} MiB of data, {} MiB of RAM", self.data_bytes >> 20, self.ram_bytes >> 20)
    }

    /// One sentence for a page.
    pub fn sentence(&self) -> String {
        let rounds = match self.rounds {
            1 => "one run of each".to_string(),
            rounds => format!(
                "medians of {rounds} runs, in turns, of what the goals are about, one run of the \
                 rest"
            ),
        };
        format!(
            "{}, {} s a run; {rounds}{}",
            self.amounts(),
            self.seconds,
            if self.quick { " (`--quick`: fewer points, and less sure ones)" } else { "" }
        )
    }
}

#[cfg(test)]
impl Settings {
    /// For tests that measure nothing.
    pub fn example() -> Self {
        Self {
            data_bytes: 512 << 20,
            ram_bytes: 32 << 20,
            seconds: 3.0,
            warm_up: Some(QUICK_WARM_UP),
            rounds: 1,
            quick: true,
            dir: "/nowhere".into(),
            apps: "/nowhere/apps".into(),
            memcached: "/nowhere/run.sh".into(),
            deepheap: "/nowhere/deepheap".into(),
            root: true,
        }
    }
}
