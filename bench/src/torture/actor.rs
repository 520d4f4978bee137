//! Actor: the process of a torture that has the heap open: it performs the model's operations and
//! makes checkpoints until it is killed, or it checks what a killed one has left.
//!
//! It prints a line for each checkpoint: `made NUMBER DONE...`, the operations of each lane that
//! were done before the checkpoint was asked for.
//!
//! Guarantees: exit status 0 of a check only if every byte is right; 2 if the heap cannot be
//! opened.
//! Threads: one a lane, and one for the checkpoints.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use deepheap::{DurableHeap, DurableOptions};
use deepheap_load::random::Random;

use super::model::{self, LANES, Progress};
use crate::backend::deepheap as backend;
use crate::failure::Failure;
use crate::output;

/// RAM budget of the process; the heap gets a part of it.
const RAM_BYTES: u64 = 80 << 20;

/// What the process is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Act {
    Perform,
    Check,
}

/// Settings of an actor.
#[derive(Args, Debug)]
pub struct Actor {
    #[arg(value_enum)]
    act: Act,
    /// File of the heap.
    #[arg(long)]
    file: PathBuf,
    /// Options of the heap.
    #[arg(long)]
    options: String,
    /// Folder of the store of `malloc`'s heap.
    #[arg(long)]
    store: PathBuf,
    /// Seed of the model.
    #[arg(long)]
    seed: u64,
    /// Number of the last checkpoint that was told.
    #[arg(long, default_value_t = 0)]
    number: u64,
    /// What was told to be durable, for each lane.
    #[arg(long, value_delimiter = ',')]
    told: Vec<u64>,
}

impl Actor {
    /// Performs, for ever, or checks.
    pub fn main(&self) -> Result<(), Failure> {
        backend::start(RAM_BYTES, &self.store, "")?;
        let options = DurableOptions::parse(&self.options);
        let heap = options.and_then(|options| DurableHeap::open(&self.file, &options));
        let failed = |why: &dyn core::fmt::Display| {
            Failure::Failed(format!("{}: {why}", self.file.display()))
        };
        let heap = heap.map_err(|error| {
            Failure::Refused(format!("{} cannot be opened: {error}", self.file.display()))
        })?;
        match self.act {
            Act::Perform => perform(&heap, self.seed).map_err(|why| failed(&why)),
            Act::Check => self.check(&heap).map_err(|why| failed(&why)),
        }
    }

    fn check(&self, heap: &DurableHeap) -> Result<(), String> {
        let number = heap.newest_checkpoint().map_err(|error| error.to_string())?.number;
        if number < self.number {
            return Err(format!("checkpoint {} was made, {number} is there", self.number));
        }
        let told: [u64; LANES] = self.told.clone().try_into().unwrap_or_default();
        let done = model::check(heap, self.seed, &told)?;
        output::line(format_args!("checkpoint {number}: {done} operations are right"))
            .map_err(|failure| failure.to_string())
    }
}

/// Ends only by a failure.
fn perform(heap: &DurableHeap, seed: u64) -> Result<(), String> {
    let progress = Progress::of(heap)?;
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || {
                if let Err(why) = model::perform(heap, seed, lane) {
                    give_up(&why);
                }
            });
        }
        let mut random = Random::new(seed ^ u64::from(std::process::id()), 99);
        loop {
            let told = progress.done();
            let made = match random.below(4) {
                0 => heap.checkpoint(),
                1 => heap.checkpoint_async().wait(),
                2 => {
                    let [first, second] = [(); 2].map(|()| heap.checkpoint_async());
                    second.wait().and_then(|_| first.wait())
                }
                _ => {
                    std::thread::sleep(std::time::Duration::from_millis(random.below(30)));
                    continue;
                }
            };
            let made = made.unwrap_or_else(|error| give_up(&error.to_string()));
            let told: Vec<String> = told.iter().map(u64::to_string).collect();
            let line = format!("made {} {}", made.number, told.join(" "));
            output::line(line).unwrap_or_else(|failure| give_up(&failure.to_string()));
        }
    })
}

/// Ends the process, whatever its other threads do.
fn give_up(why: &str) -> ! {
    eprintln!("deepheap-bench: {why}");
    std::process::exit(1)
}

/// The command line of an actor.
pub fn arguments(act: Act, file: &Path, options: &str, store: &Path, seed: u64) -> Vec<String> {
    let act = if act == Act::Perform { "perform" } else { "check" };
    let text = |path: &Path| path.display().to_string();
    let pairs = [
        ("--file", text(file)),
        ("--options", options.into()),
        ("--store", text(store)),
        ("--seed", seed.to_string()),
    ];
    let pairs = pairs.into_iter().flat_map(|(key, value)| [key.to_owned(), value]);
    ["torture-actor".to_owned(), act.to_owned()].into_iter().chain(pairs).collect()
}
