//! Parent: stays behind while the program runs, and tells how it went when it has ended, as time(1)
//! does. Only for a run that is to be told of: any other becomes the program.
//!
//! The program and its children hand over the files of their statistics pages. A page is shared
//! memory, so its counters are there however its process ended: by exit, by a signal, or by a
//! system call that libc knows nothing of.
//!
//! Guarantees: exit status and signal are the program's, and so are the signals that are sent here.
//! A terminal sends its own to both. A program whose parent is killed is killed, too. What the
//! program has closed is not kept open here, stderr apart.
//! Never: waits for the program's children.
//! Threads: none but main.

use core::mem::{size_of, zeroed};
use core::ptr::null_mut;
use std::fs::File;
use std::io::{Error, Read, Write, stderr};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::process::exit;

use deepheap::Config;
use deepheap::internal::append_json;
use deepheap::internal::descriptor_mail::{Letter, LetterBox};
use deepheap::internal::stats_page::StatsPage;
use deepheap::internal::stats_report::{verdict, verdict_of_all};
use deepheap::{Stats, summary};

use crate::refusal::{Refusal, warn};

/// Processes that have a line of their own, beside the first one. Of more, the largest have.
const LINES_MAX: usize = 20;

/// Where the program finds its parent.
pub struct Waiting {
    letter_box: LetterBox,
    /// The name for `PARENT_VARIABLE`.
    pub name: String,
}

/// A process that may still run.
struct Seen {
    pid: u32,
    /// Readable when it has ended.
    end: OwnedFd,
    page: File,
}

/// A process that has ended.
struct Ended {
    is_first: bool,
    name: String,
    stats: Stats,
}

/// The end of the program.
enum End {
    Status(u8),
    Signal(i32),
}

impl Waiting {
    /// Opens a letter box that nobody can guess.
    pub fn open(random: &str) -> Result<Waiting, Refusal> {
        let name = format!("deepheap-run-{}-{random}", std::process::id());
        let letter_box = LetterBox::open(&name).map_err(|errno| {
            Refusal::new(format!(
                "nobody could tell how the program went ({errno}): leave out --show-stats and \
                 --stats"
            ))
        })?;
        Ok(Waiting { letter_box, name })
    }

    /// Has a child become the program, waits for its end, and tells how it went, and then what
    /// `tells` tells. Returns if there is no child, or with the exit status of the program.
    pub fn run(
        self,
        config: &Config,
        becomes: impl FnOnce() -> Refusal,
        tells: impl FnOnce(),
    ) -> Refusal {
        let found = Signals::hold();
        let parent = std::process::id();
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            -1 => Refusal::new(format!("no process for the program: {}", Error::last_os_error())),
            0 => {
                // It ends with its parent, even if that is gone by now.
                // SAFETY: no memory arguments.
                let is_orphan = unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::getppid() as u32 != parent
                };
                if is_orphan {
                    exit(1);
                }
                found.restore();
                let refusal = becomes();
                refusal.print();
                exit(refusal.status.into())
            }
            child => self.tell(config, child, tells),
        }
    }

    fn tell(self, config: &Config, child: libc::pid_t, tells: impl FnOnce()) -> Refusal {
        leave_all_but(self.letter_box.as_raw_fd());
        let mut watch = Watch { child, seen: Vec::new(), ended: Vec::new() };
        let end = match watch.wait(&self.letter_box) {
            Ok(end) => end,
            Err(error) => return Refusal::new(format!("cannot wait for the program: {error}")),
        };
        watch.finish(&self.letter_box);
        if let Some(path) = &config.stats_file
            && let Err(told) = append_json(path, watch.ended.iter().map(|it| &it.stats))
        {
            warn(&told);
        }
        if config.show_stats {
            // Nothing can be done if stderr is closed.
            let _ = stderr().write_all(text(&mut watch.ended).as_bytes());
        }
        tells();
        match end {
            End::Status(status) => Refusal::with_status(status, ""),
            End::Signal(signal) => end_by(signal),
        }
    }
}

/// The processes of a run.
struct Watch {
    child: libc::pid_t,
    seen: Vec<Seen>,
    ended: Vec<Ended>,
}

impl Watch {
    /// Waits until the program has ended.
    fn wait(&mut self, letter_box: &LetterBox) -> Result<End, Error> {
        let mut signals = Signals::descriptor()?;
        loop {
            let ends = self.seen.iter().map(|seen| seen.end.as_raw_fd());
            let files = [signals.as_raw_fd(), letter_box.as_raw_fd()].into_iter().chain(ends);
            let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut files: Vec<libc::pollfd> = files.map(wanted).collect();
            // SAFETY: the list has so many entries.
            unsafe { libc::poll(files.as_mut_ptr(), files.len() as libc::nfds_t, -1) };
            self.receive(letter_box);
            self.look_for_ends();
            if files[0].revents != 0
                && let Some(end) = self.on_signal(&mut signals)?
            {
                return Ok(end);
            }
        }
    }

    /// Takes in what came.
    fn receive(&mut self, letter_box: &LetterBox) {
        // SAFETY: no memory arguments.
        let own_user = unsafe { libc::geteuid() };
        while let Some(letter) = letter_box.take() {
            if letter.uid == own_user {
                self.note(letter);
            }
        }
    }

    fn note(&mut self, letter: Letter) {
        let pid = letter.pid;
        // SAFETY: the letter's file is ours.
        let page = unsafe { File::from_raw_fd(letter.file.into_raw_fd()) };
        let id = |file: &File| file.metadata().map(|it| (it.dev(), it.ino())).ok();
        let is_known = |seen: &Seen| id(&seen.page) == id(&page);
        if self.seen.iter().any(is_known) {
            return;
        }
        // A process that executes another program has a page for each of them.
        let was = self.seen.iter().position(|seen| seen.pid == pid);
        if let Some(was) = was.map(|was| self.seen.swap_remove(was)) {
            let is_first = self.is_first(was.pid);
            self.ended.extend(ended(&was.page, is_first).filter(|it| it.stats.managing != 0));
        }
        match process_file(pid) {
            Some(end) => self.seen.push(Seen { pid, end, page }),
            None => self.ended.extend(ended(&page, self.is_first(pid))),
        }
    }

    fn is_first(&self, pid: u32) -> bool {
        i64::from(self.child) == i64::from(pid)
    }

    /// Reads the pages of processes that have ended; the kernel has their memory back then.
    fn look_for_ends(&mut self) {
        let child = self.child as u32;
        for seen in self.seen.extract_if(.., |seen| seen.pid != child && has_ended(&seen.end)) {
            self.ended.extend(ended(&seen.page, false));
        }
    }

    /// The program has ended: reads the pages of all that have. A process that goes on
    /// tells of itself at its end.
    fn finish(&mut self, letter_box: &LetterBox) {
        self.receive(letter_box);
        self.look_for_ends();
        let first = self.seen.iter().position(|seen| self.is_first(seen.pid));
        if let Some(first) = first {
            let page = self.seen.swap_remove(first).page;
            self.ended.extend(ended(&page, true));
        }
    }

    /// Reads a signal. Answers the program's end, if it is that.
    fn on_signal(&mut self, signals: &mut File) -> Result<Option<End>, Error> {
        let mut bytes = [0; size_of::<libc::signalfd_siginfo>()];
        signals.read_exact(&mut bytes)?;
        // SAFETY: any bytes are such a struct, and there are as many.
        let info = unsafe { bytes.as_ptr().cast::<libc::signalfd_siginfo>().read_unaligned() };
        let signal = info.ssi_signo as i32;
        if signal == libc::SIGCHLD {
            return Ok(self.children_changed());
        }
        // Those of the terminal, and what the program sends to its group, it has by itself.
        if info.ssi_code <= 0 && !self.is_first(info.ssi_pid) {
            // SAFETY: no memory arguments; the child is not waited for yet, so its number is its.
            unsafe { libc::kill(self.child, signal) };
        }
        Ok(None)
    }

    /// Children have ended, or were stopped; as process 1, those of others, too.
    fn children_changed(&self) -> Option<End> {
        loop {
            let mut status = 0;
            // SAFETY: room for a status.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED) };
            if pid <= 0 {
                return None;
            }
            if pid != self.child {
                continue;
            }
            if libc::WIFEXITED(status) {
                return Some(End::Status(libc::WEXITSTATUS(status) as u8));
            }
            if libc::WIFSIGNALED(status) {
                return Some(End::Signal(libc::WTERMSIG(status)));
            }
            // The shell that waits for us is to see it. What continues us continues the program, or
            // comes as a signal that is passed on.
            // SAFETY: no memory arguments.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }
}

/// What a page says of its process.
fn ended(page: &File, is_first: bool) -> Option<Ended> {
    let page = StatsPage::read_copy(page, 0).ok()?;
    Some(Ended { is_first, name: page.name(), stats: page.snapshot() })
}

/// A descriptor that tells the end of a process; none if it has ended.
fn process_file(pid: u32) -> Option<OwnedFd> {
    // SAFETY: no memory arguments; the new descriptor is nobody's but ours.
    unsafe {
        let number = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        (number >= 0).then(|| OwnedFd::from_raw_fd(number as RawFd))
    }
}

fn has_ended(end: &OwnedFd) -> bool {
    let mut file = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: a list of one.
    unsafe { libc::poll(&mut file, 1, 0) > 0 }
}

/// What goes to stderr: of the first process everything, of the others how it went.
fn text(ended: &mut [Ended]) -> String {
    // The first process, then the largest.
    ended.sort_by_key(|it| (!it.is_first, core::cmp::Reverse(it.stats.touched_peak_bytes)));
    let first = ended.iter().filter(|it| it.is_first);
    let mut text: String = first.map(|first| summary(&first.stats)).collect();
    let mut line = |line: String| text += &format!("deepheap: {line}\n");
    let own_lines = LINES_MAX + ended.iter().filter(|it| it.is_first).count();
    ended.iter().take(own_lines).for_each(|it| line(verdict(&it.name, &it.stats)));
    let others = ended.len().saturating_sub(own_lines);
    if others > 0 {
        line(format!("and {others} smaller ones"));
    }
    if ended.len() > 1 {
        line(verdict_of_all(ended.iter().map(|it| &it.stats)));
    }
    text
}

/// Closes what the program may want to see closed, and leaves its folder.
fn leave_all_but(kept: RawFd) {
    // SAFETY: strings that end with NUL; main, the only thread, uses none of the descriptors that
    // are closed.
    unsafe {
        libc::chdir(c"/".as_ptr());
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        libc::dup2(nothing, libc::STDIN_FILENO);
        libc::dup2(nothing, libc::STDOUT_FILENO);
        libc::syscall(libc::SYS_close_range, libc::STDERR_FILENO + 1, kept - 1, 0);
        libc::syscall(libc::SYS_close_range, kept + 1, u32::MAX, 0);
    }
}

/// Ends this process as the program was ended, without a core of its own.
fn end_by(signal: i32) -> ! {
    // SAFETY: standard dispositions, a mask of one signal, and a limit.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        let mut mask: libc::sigset_t = zeroed();
        libc::sigaddset(&mut mask, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &mask, null_mut());
        libc::raise(signal);
    }
    exit(128 + signal)
}

/// Signals as they were found.
struct Signals {
    mask: libc::sigset_t,
    child_ended: libc::sigaction,
}

impl Signals {
    /// Blocks all, so that they can be read, and has ended children stay until they are waited for.
    fn hold() -> Signals {
        // SAFETY: zeros are valid for all three; sets a mask and a standard disposition.
        unsafe {
            let (mut all, mut mask): (libc::sigset_t, libc::sigset_t) = (zeroed(), zeroed());
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &all, &mut mask);
            let mut child_ended: libc::sigaction = zeroed();
            let mut usual: libc::sigaction = zeroed();
            usual.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGCHLD, &usual, &mut child_ended);
            Signals { mask, child_ended }
        }
    }

    /// Puts back what was found.
    fn restore(&self) {
        // SAFETY: what was read by `hold`.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &self.child_ended, null_mut());
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, null_mut());
        }
    }

    /// A file from which the blocked ones are read.
    fn descriptor() -> Result<File, Error> {
        // SAFETY: a full mask; the new descriptor is nobody's but ours.
        unsafe {
            let mut all: libc::sigset_t = zeroed();
            libc::sigfillset(&mut all);
            match libc::signalfd(-1, &all, libc::SFD_CLOEXEC) {
                -1 => Err(Error::last_os_error()),
                number => Ok(File::from_raw_fd(number)),
            }
        }
    }
}
