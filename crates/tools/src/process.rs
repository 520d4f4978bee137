//! Process: finds the statistics page of a running process, and copies it.
//!
//! Guarantees: the page is the process's own, not one inherited from its parent; what is missing
//! (process, deepheap, permission, version) is told apart.
//! Never: maps foreign memory or stops the process.
//! Threads: one at a time.

pub mod list;

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use deepheap::internal::stats_page::{Request, STATS_PAGE_NAME, StatsPage};

/// A process, by its id and, against reuse of ids, the time it started.
pub struct Process {
    pid: u32,
    started: String,
    /// Where its statistics were the last time, among its open files.
    link: RefCell<Option<PathBuf>>,
    /// Its name, for people.
    pub name: String,
}

impl Process {
    /// Looks whether it is there.
    ///
    /// # Errors
    /// In words: it is not.
    pub fn find(pid: u32) -> Result<Process, String> {
        let gone = || format!("there is no process {pid}: see ps or pgrep for its id");
        let started = started(pid).ok_or_else(gone)?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).map_err(|_| gone())?;
        let link = RefCell::new(None);
        Ok(Process { pid, started, link, name: name.trim_end().to_owned() })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        started(self.pid).is_some_and(|started| started == self.started)
    }

    /// When it started, as the kernel counts.
    pub fn started(&self) -> &str {
        &self.started
    }

    /// A copy of its statistics, if it has any and they may be read through its open files.
    pub fn page_if_any(&self) -> Option<Box<StatsPage>> {
        self.page_by_descriptor().ok().flatten()
    }

    /// Asks it to bring its gauges up to date, and if wanted to draw a map of its heap: a page of a
    /// moment later has them. Nothing happens if its open files may not be written to.
    pub fn ask(&self, for_map: bool) {
        let link = self.link.borrow();
        let Some(link) = link.as_deref() else { return };
        if let Ok(file) = File::options().read(true).write(true).open(link) {
            // It may have closed it, or have ended: then the next look tells.
            let what = if for_map { Request::Map } else { Request::Gauges };
            let _ = StatsPage::ask(&file, what);
        }
    }

    /// Asks it for more than to tell something: a budget, which its gauges tell when it has taken
    /// it over, or to be profiled. `page` comes before.
    ///
    /// # Errors
    /// In words: why it cannot be told.
    pub fn wish(&self, what: Request) -> Result<(), String> {
        let (pid, name) = (self.pid, &self.name);
        let link = self.link.borrow();
        let link = link.as_deref().ok_or_else(|| {
            format!(
                "process {pid} ({name}) has closed the file of its statistics, through which it \
                 would be told: nothing changes"
            )
        })?;
        let opened = File::options().read(true).write(true).open(link);
        opened.and_then(|file| StatsPage::ask(&file, what)).map_err(|error| {
            format!("process {pid} ({name}) cannot be told ({error}): run this as its user")
        })
    }

    /// A copy of its statistics as of now.
    ///
    /// # Errors
    /// In words: why there is none, and what to do.
    pub fn page(&self) -> Result<Box<StatsPage>, String> {
        let (pid, name) = (self.pid, &self.name);
        let found = self.page_by_descriptor().and_then(|found| match found {
            Some(page) => Ok(Some(page)),
            None => self.page_by_address(),
        });
        Err(match found {
            Ok(Some(page)) => return Ok(page),
            Ok(None) => self.without_deepheap(),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => format!(
                "you may not look into process {pid} ({name}): run this as its user, or with sudo"
            ),
            Err(error) if error.kind() == ErrorKind::InvalidData => format!(
                "process {pid} ({name}) runs under another version of deepheap ({error}): use the \
                 deepheap command that started it"
            ),
            Err(_) if !self.is_running() => format!("process {pid} ({name}) has ended"),
            Err(error) => format!(
                "the statistics of process {pid} ({name}) cannot be read ({error}): try again"
            ),
        })
    }

    /// Through the links of its open files.
    fn page_by_descriptor(&self) -> std::io::Result<Option<Box<StatsPage>>> {
        if let Some(link) = self.link.borrow().as_deref()
            && let Ok(Some(page)) = self.page_behind(link)
        {
            return Ok(Some(page));
        }
        for entry in fs::read_dir(format!("/proc/{}/fd", self.pid))? {
            let link = entry?.path();
            if let Some(page) = self.page_behind(&link)? {
                self.link.replace(Some(link));
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    /// The page, if an open file is that of this process.
    fn page_behind(&self, link: &Path) -> std::io::Result<Option<Box<StatsPage>>> {
        // A descriptor may be closed meanwhile.
        let Ok(target) = fs::read_link(link) else { return Ok(None) };
        if !is_stats_page(&target.to_string_lossy()) {
            return Ok(None);
        }
        self.own_page(&File::open(link)?, 0)
    }

    /// Through its memory, for programs that close every descriptor. Needs the right to trace it.
    fn page_by_address(&self) -> std::io::Result<Option<Box<StatsPage>>> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid))?;
        for line in maps.lines() {
            let Some((start, _)) = line.split_once('-') else { continue };
            let Some(name) = line.find('/') else { continue };
            let Ok(start) = u64::from_str_radix(start, 16) else { continue };
            if !is_stats_page(&line[name..]) {
                continue;
            }
            let memory = File::open(format!("/proc/{}/mem", self.pid))?;
            if let Some(page) = self.own_page(&memory, start)? {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    /// The page there, if it is that of this process and finished.
    fn own_page(&self, file: &File, offset: u64) -> std::io::Result<Option<Box<StatsPage>>> {
        match StatsPage::read_copy(file, offset) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            page => Ok(Some(page?).filter(|page| self.owns(page))),
        }
    }

    /// A page names the id that its process has in its own pid namespace, the innermost.
    fn owns(&self, page: &StatsPage) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        match ids.and_then(|ids| ids.split_whitespace().last()) {
            Some(id) => id.parse() == Ok(page.pid()),
            None => page.pid() == self.pid,
        }
    }

    fn without_deepheap(&self) -> String {
        let (pid, name) = (self.pid, &self.name);
        let children: Vec<String> = descendants(pid)
            .into_iter()
            .filter_map(|child| Process::find(child).ok())
            .filter(|child| matches!(child.page_by_descriptor(), Ok(Some(_))))
            .map(|child| format!("{} ({})", child.pid, child.name))
            .collect();
        if children.is_empty() {
            format!(
                "process {pid} ({name}) does not run under deepheap: start it with 'deepheap run'"
            )
        } else {
            let are = if children.len() == 1 { "a child of it does" } else { "children of it do" };
            let list = children.join(", ");
            format!("process {pid} ({name}) does not run under deepheap, but {are}: {list}")
        }
    }
}

fn is_stats_page(link: &str) -> bool {
    let name = STATS_PAGE_NAME.to_str().unwrap_or_default();
    link.strip_prefix("/memfd:").is_some_and(|rest| rest.starts_with(name))
}

/// The fields of /proc/PID/stat from the third on, the state. The name before may hold blanks and
/// brackets.
pub(crate) fn fields_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ").map(|(_, fields)| fields.to_owned())
}

/// Field 22 of /proc/PID/stat. A zombie has ended.
fn started(pid: u32) -> Option<String> {
    let fields = fields_of(pid)?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18).map(str::to_owned) }
}

/// Children, their children and so on.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for file in tasks.map(|task| task.path().join("children")) {
            let children = fs::read_to_string(file).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
    }
    found.split_off(1)
}
