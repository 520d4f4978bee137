//! Watch: the processes that `top` and `serve` look at, again and again.
//!
//! Guarantees: a process that ended, or lets nobody look any more, stays as it was seen last; of
//! these are kept the last `ENDED_MAX`.
//! Never: slows a process down: it only reads statistics pages.
//! Threads: one at a time.

use std::time::{Duration, Instant};

use deepheap_tools::process::Process;
use deepheap_tools::process::list::ProcessList;

use crate::live::history::History;
use crate::live::sites::Site;
use crate::refusal::Refusal;

/// Between two searches for new processes.
const SEARCH: Duration = Duration::from_secs(3);
/// Processes that have ended, and are kept.
const ENDED_MAX: usize = 16;

/// A process, as it was seen so far.
pub struct SeenProcess {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its history.
    pub history: History,
    /// When it was found to have ended.
    pub ended: Option<Instant>,
}

impl SeenProcess {
    /// A process that runs.
    pub fn new(pid: u32, name: &str, history: History) -> SeenProcess {
        SeenProcess { pid, name: name.to_owned(), history, ended: None }
    }

    /// For how long it has been over, if it has ended.
    pub fn over_ns(&self) -> Option<u64> {
        self.ended.map(|ended| ended.elapsed().as_nanos() as u64)
    }

    /// The functions with the largest parts of its faults, as `Sites::hottest`.
    pub fn hottest(&mut self, most: usize) -> Vec<(f64, Site)> {
        let pid = self.ended.is_none().then_some(self.pid);
        self.history.sites.hottest(pid, most)
    }
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
        seen.push(SeenProcess::new(pid, &process.name, History::new(&page, pid)));
        self.processes.push(process);
        Ok(())
    }

    /// Reads all of them anew, looks for new ones now and then, and returns which ended. The next
    /// look finds fresh gauges, and fresh maps of those of which they are wanted.
    pub fn look(
        &mut self,
        seen: &mut Vec<SeenProcess>,
        wants_map: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let mut ended = Vec::new();
        self.processes.retain(|process| {
            let pid = process.pid();
            let Some(seen) = seen.iter_mut().find(|seen| seen.pid == pid) else {
                return false;
            };
            match process.page() {
                Ok(page) => {
                    seen.history.add(&page, pid);
                    process.ask(wants_map(pid));
                }
                Err(_) => {
                    seen.ended = Some(Instant::now());
                    ended.push(pid);
                }
            }
            seen.ended.is_none()
        });
        forget_oldest(seen);
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
            let pid = process.pid();
            // One with the same id has ended.
            seen.retain(|seen| seen.pid != pid);
            seen.push(SeenProcess::new(pid, &process.name, History::new(&page, pid)));
            self.processes.push(process);
        }
    }
}

/// Of those that have ended, forgets the first ones if there are too many.
fn forget_oldest(seen: &mut Vec<SeenProcess>) {
    let mut ended: Vec<Instant> = seen.iter().filter_map(|seen| seen.ended).collect();
    ended.sort();
    if let Some(at) = ended.len().checked_sub(ENDED_MAX) {
        seen.retain(|seen| seen.ended.is_none_or(|over| over >= ended[at]));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use deepheap::internal::stats_page::StatsPage;
    use deepheap::number;

    use super::*;

    fn seen(pid: u32, name: &str) -> SeenProcess {
        let page = StatsPage::create().expect("page");
        page.set(number!(budget_bytes), 4096);
        SeenProcess::new(pid, name, History::new(page, pid))
    }

    #[test]
    fn a_process_that_has_ended_stays_as_it_was_seen_last_and_the_last_of_many_do() {
        let mut watch = Watch::new(false);
        let mut processes = vec![seen(std::process::id(), "runs")];
        let mut name = 0;
        while name < 2 * ENDED_MAX {
            let mut child = Command::new("sleep").arg("1000").spawn().expect("a child");
            watch.processes.push(Process::find(child.id()).expect("it runs"));
            child.kill().and_then(|()| child.wait()).expect("it ends");
            processes.push(seen(child.id(), &name.to_string()));
            name += 1;
            watch.look(&mut processes, |_| false);
        }
        let names: Vec<&str> = processes.iter().map(|process| &*process.name).collect();
        let last: Vec<String> = (ENDED_MAX..name).map(|name| name.to_string()).collect();
        assert_eq!(
            (names[0], &names[1..]),
            ("runs", &last.iter().map(|n| &**n).collect::<Vec<_>>()[..])
        );
        for process in &processes {
            assert_eq!(process.ended.is_some(), process.name != "runs");
            assert_eq!(process.history.stats().budget_bytes, 4096);
        }
    }
}
