//! List: which processes run under deepheap, looked for again and again at little cost.
//!
//! A process costs two links a look; its open files are gone through only if it is new, runs
//! another program than before, or was not gone through for `PATIENCE`.
//!
//! Guarantees: a process is found within a look, or within `PATIENCE` if it began to run under
//! deepheap without becoming another program.
//! Never: tells of processes that this user may not look into.
//! Threads: one at a time.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use deepheap::internal::stats_page::StatsPage;

use crate::process::Process;

/// How long it is believed that a process has no deepheap.
const PATIENCE: Duration = Duration::from_secs(20);

/// The facts about a process that has none.
struct Stranger {
    started: String,
    program: Option<PathBuf>,
    looked: Instant,
}

/// The processes of this machine that run under deepheap.
#[derive(Default)]
pub struct ProcessList {
    strangers: HashMap<u32, Stranger>,
}

impl ProcessList {
    /// Those that are not in `known`.
    pub fn find_new(&mut self, known: &[u32]) -> Vec<(Process, Box<StatsPage>)> {
        let now = Instant::now();
        let mut found = Vec::new();
        let mut strangers = HashMap::new();
        for pid in all_processes().filter(|pid| !known.contains(pid)) {
            let Ok(process) = Process::find(pid) else { continue };
            let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
            if let Some(stranger) = self.strangers.remove(&pid)
                && stranger.started == process.started()
                && stranger.program == program
                && now - stranger.looked < PATIENCE
            {
                strangers.insert(pid, stranger);
                continue;
            }
            match process.page_if_any() {
                Some(page) => found.push((process, page)),
                None => {
                    let started = process.started().to_owned();
                    strangers.insert(pid, Stranger { started, program, looked: now });
                }
            }
        }
        self.strangers = strangers;
        found
    }
}

/// The ids of all processes.
fn all_processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
