//! Watch: the processes that `top` and `serve` look at, again and again.
//!
//! Guarantees: a process that ended, or lets nobody look any more, is handed back once.
//! Never: slows a process down: it only reads statistics pages.
//! Threads: one at a time.

use std::time::{Duration, Instant};

use deepheap_tools::process::Process;
use deepheap_tools::process::list::ProcessList;

use crate::live::history::History;
use crate::refusal::Refusal;

/// Between two searches for new processes.
const SEARCH: Duration = Duration::from_secs(3);

/// A process, as it was seen so far.
pub struct SeenProcess {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its history.
    pub history: History,
}

/// Where the statistics of all of them are.
pub struct Watch {
    list: ProcessList,
    processes: Vec<Process>,
    searched: Instant,
    is_of_all: bool,
}

impl Watch {
    /// Of those that are added, and of all others that this user may look into if `is_of_all`.
    pub fn new(is_of_all: bool) -> Watch {
        Watch {
            list: ProcessList::default(),
            processes: Vec::new(),
            searched: Instant::now(),
            is_of_all,
        }
    }

    /// Adds a process.
    ///
    /// # Errors
    /// As `Process::page`.
    pub fn add(&mut self, pid: u32, seen: &mut Vec<SeenProcess>) -> Result<(), Refusal> {
        let process = Process::find(pid).map_err(Refusal::missing)?;
        let page = process.page().map_err(Refusal::missing)?;
        let history = History::new(&page, pid);
        seen.push(SeenProcess { pid, name: process.name.clone(), history });
        self.processes.push(process);
        Ok(())
    }

    /// Reads all of them anew, looks for new ones now and then, and hands back those that ended.
    /// The next look finds fresh gauges, and fresh maps of those of which they are wanted.
    pub fn look(
        &mut self,
        seen: &mut Vec<SeenProcess>,
        wants_map: impl Fn(u32) -> bool,
    ) -> Vec<SeenProcess> {
        let mut ended = Vec::new();
        self.processes.retain(|process| {
            let pid = process.pid();
            let Some(at) = seen.iter().position(|seen| seen.pid == pid) else {
                return false;
            };
            match process.page() {
                Ok(page) => {
                    seen[at].history.add(&page, pid);
                    process.ask(wants_map(pid));
                }
                Err(_) => ended.push(seen.remove(at)),
            }
            !ended.iter().any(|ended| ended.pid == pid)
        });
        if self.is_of_all && self.searched.elapsed() >= SEARCH {
            self.search(seen);
        }
        ended
    }

    /// Looks for new ones.
    pub fn search(&mut self, seen: &mut Vec<SeenProcess>) {
        self.searched = Instant::now();
        let known: Vec<u32> = self.processes.iter().map(Process::pid).collect();
        for (process, page) in self.list.find_new(&known) {
            let (pid, name) = (process.pid(), process.name.clone());
            seen.push(SeenProcess { pid, name, history: History::new(&page, pid) });
            self.processes.push(process);
        }
    }
}
