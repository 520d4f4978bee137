//! Settings: what `deepheap-papers real` takes.
//!
//! Never: changes the machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::contender::{Contender, Part};
use super::programs::{self, Program};
use deepheap_bench::failure::Failure;
use deepheap_bench::supervisor;

/// A run may take so many times as long as alone, ...
const LIMIT_TIMES: f64 = 20.0;
/// ... and at least this.
const LIMIT_LEAST: Duration = Duration::from_secs(40);

/// What `deepheap-papers real` takes.
#[derive(Clone, Debug, Args)]
pub struct Real {
    /// Only the answers: three programs with little work, alone and on deepheap; needs no root
    #[arg(long)]
    pub(super) quick: bool,
    /// Measures RAM and time of the programs alone and with `--ram auto` and this bound on stalls,
    /// as 2%, and prints a table; needs root
    #[arg(long, value_name = "PERCENT", conflicts_with = "quick")]
    pub(super) stall: Option<String>,
    /// Measures the programs at the first of --sizes with these settings, as tier:PATH or
    /// strides:no, and without, and prints a table; may be repeated; needs root
    #[arg(long, value_name = "SETTINGS", conflicts_with_all = ["quick", "stall"])]
    pub(super) conf: Vec<String>,
    /// Traces the programs at the first of --sizes, and prints how near a simulation comes to what
    /// they meet at the second; needs root
    #[arg(long, conflicts_with_all = ["quick", "stall", "conf"])]
    pub(super) simulated: bool,
    /// Only these programs; --list shows them
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    programs: Vec<String>,
    /// Programs of about 100 MiB, the second table of the page, instead of 1 GiB
    #[arg(long, conflicts_with = "quick")]
    small: bool,
    /// How much work the program gets, as many records or the like; its page is another then
    #[arg(long, value_name = "COUNT", requires_all = ["programs", "out", "runs"],
        conflicts_with = "small")]
    amount: Option<u64>,
    /// Parts of the peak alone
    #[arg(long, value_delimiter = ',', value_name = "PART", default_values_t = Part::USUAL)]
    pub(super) sizes: Vec<Part>,
    /// Only these of deepheap, swap-0, swap-3 and zram
    #[arg(long, value_delimiter = ',', value_name = "NAME",
        default_values_t = Contender::LIMITED)]
    pub(super) contenders: Vec<Contender>,
    /// Rounds, for the median
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(super) rounds: u32,
    /// Shows the programs, and what is missing, and ends
    #[arg(long)]
    pub(super) list: bool,
    /// Measures again what is there already, but not alone
    #[arg(long)]
    pub(super) again: bool,
    /// Measures nothing: writes the page from what is there
    #[arg(long, conflicts_with = "again")]
    pub(super) pages: bool,
    /// The folder of real-programs.md and its plot
    #[arg(long, default_value = "docs/measured", value_name = "PATH")]
    pub(super) out: PathBuf,
    /// The file of what was measured, a line for each program, part and contender; that of --small
    /// has this name and `.small`
    #[arg(long, default_value = "target/real-programs", value_name = "PATH")]
    runs: PathBuf,
    /// Where store and swap file lie
    #[arg(long, default_value = ".", value_name = "PATH")]
    dir: PathBuf,
    /// The `deepheap` command [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    deepheap: Option<PathBuf>,
}

/// How large the programs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// About 1 GiB.
    Large,
    /// About 100 MiB.
    Small,
}

/// What all trials share.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where store and swap file lie.
    pub dir: PathBuf,
    /// The command `deepheap`.
    pub deepheap: PathBuf,
    /// What `DEEPHEAP_CONF` says, if it is set.
    conf: Option<String>,
}

impl Settings {
    /// These, with such a `DEEPHEAP_CONF`.
    pub(super) fn with(&self, conf: &str) -> Settings {
        Settings { conf: Some(conf.to_owned()), ..self.clone() }
    }

    /// What comes before the `deepheap` command.
    pub(super) fn environment(&self) -> Vec<String> {
        let set = |conf| vec!["env".to_owned(), format!("DEEPHEAP_CONF={conf}")];
        self.conf.as_ref().map_or_else(Vec::new, set)
    }
}

impl Real {
    /// The size that is measured.
    pub(super) fn size(&self) -> Size {
        if self.small { Size::Small } else { Size::Large }
    }

    /// The file of what was measured of a size.
    pub(super) fn runs_of(&self, size: Size) -> PathBuf {
        match size {
            Size::Large => self.runs.clone(),
            Size::Small => self.runs.with_added_extension("small"),
        }
    }

    /// All programs, with the work that they get.
    pub(super) fn all(&self, size: Size) -> Vec<&'static Program> {
        let with = |program: &'static Program| {
            let amount = match size {
                Size::Large => self.amount.unwrap_or(program.amount),
                Size::Small => program.small_amount,
            };
            // They are as many as the table's, for each size, and live as long as the command.
            &*Box::leak(Box::new(Program { amount, ..*program }))
        };
        programs::ALL.iter().map(with).collect()
    }

    /// The programs that were chosen, in their order.
    pub(super) fn chosen(&self) -> Result<Vec<&'static Program>, Failure> {
        let is_known = |name: &&String| programs::ALL.iter().any(|program| program.id == **name);
        if let Some(unknown) = self.programs.iter().find(|name| !is_known(name)) {
            return Err(Failure::Refused(format!(
                "--programs: no program {unknown}; --list shows them"
            )));
        }
        let is_chosen = |program: &&Program| {
            let is_named = self.programs.iter().any(|name| name == program.id);
            (self.programs.is_empty() || is_named)
                && (!self.quick || program.quick_amount.is_some())
        };
        Ok(self.all(self.size()).into_iter().filter(is_chosen).collect())
    }

    /// With all defaults filled in.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let own = std::env::current_exe().map_err(|error| Failure::os("own path", &error))?;
        let beside = own.with_file_name("deepheap");
        let deepheap = self.deepheap.clone().unwrap_or(beside);
        let deepheap = std::path::absolute(&deepheap).unwrap_or(deepheap);
        if !deepheap.is_file() {
            return Err(Failure::Refused(format!(
                "{}: not there; build it (cargo build --release --workspace) or give --deepheap",
                deepheap.display()
            )));
        }
        Ok(Settings { dir: supervisor::folder(&self.dir)?, deepheap, conf: None })
    }
}

/// How long a run may take.
pub fn limit(seconds_alone: f64) -> Duration {
    LIMIT_LEAST.max(Duration::from_secs_f64(seconds_alone * LIMIT_TIMES))
}
