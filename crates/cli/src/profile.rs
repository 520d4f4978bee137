//! Profile command: where a program waits for memory, and what allocated memory that is cold, as a
//! summary, and as files for other tools.
//!
//! Guarantees: the program's exit status is this command's; the file in shared memory is gone at
//! the end, and what it held is given back even while processes have it mapped.
//! Never: waits for a process that does not answer for longer than `PATIENCE`.
//! Threads: none but main.

mod flame;
mod modules;
mod stacks;
mod summary;
mod write;

use core::mem::zeroed;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Error, Write, stderr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use deepheap::internal::profile::{self, Recorded, WITH_ALLOCATIONS};
use deepheap::internal::stats_page::Request;
use deepheap_tools::process::Process;

use crate::arguments::Profile;
use crate::launch::run::{self, Profiled, check_output_file};
use crate::profile::stacks::Stacks;
use crate::random::random_text;
use crate::refusal::{Refusal, print_out};

/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(50);
/// How long a process may take to join.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it is looked at if nothing is said.
const SECONDS: f64 = 10.0;

/// Runs a program, or looks at a process, and tells where it waited.
pub fn profile(arguments: &Profile) -> Result<(), Refusal> {
    let check = |file: &PathBuf| check_output_file(file, "the profile", "-o");
    let all = |files: Vec<PathBuf>| files.iter().map(check).collect::<Result<Vec<_>, _>>();
    let beside = || arguments.output.iter().map(|file| write::beside(file)).collect();
    let outputs = Outputs {
        faults: all(arguments.output.clone())?,
        allocations: arguments.allocations.then(|| all(beside())).transpose()?,
    };
    let number = || u64::from_str_radix(&random_text()?[..16], 16).map_err(Refusal::of);
    if let Some(pid) = process_id(&arguments.program) {
        if !arguments.settings.0.is_empty() {
            return Err(Refusal::new(format!(
                "process {pid} runs already: give no options of run, or a program to start"
            )));
        }
        if arguments.allocations {
            return Err(Refusal::new(format!(
                "process {pid} runs already: --allocations is for a program to start"
            )));
        }
        let seconds = Duration::from_secs_f64(arguments.seconds.unwrap_or(SECONDS));
        return of_process(
            &Process::find(pid).map_err(Refusal::missing)?,
            number()?,
            seconds,
            &outputs,
        );
    }
    if arguments.seconds.is_some() {
        return Err(Refusal::new("--seconds is for a process that runs: leave it out"));
    }
    let shared = Shared::make(number()?, Path::new("/"), None)?;
    let with = if arguments.allocations { WITH_ALLOCATIONS } else { "" };
    let number = OsString::from(format!("{:016x}{with}", shared.number));
    // The file is its own: if the program was killed, this process ends within `start`.
    let tells = Box::new(move || tell_program(&shared, &outputs));
    Err(run::start(&arguments.settings, &arguments.program, Some(Profiled { number, tells })))
}

/// A number alone is a process; a program of such a name has a path.
fn process_id(program: &[OsString]) -> Option<u32> {
    let [only] = program else { return None };
    only.to_str()?.parse().ok().filter(|pid| *pid > 0)
}

/// The program has ended.
fn tell_program(shared: &Shared, outputs: &Outputs) {
    let told = shared.finish(|pid| pid).and_then(|recorded| {
        let (text, failures) = told(&recorded, outputs);
        // Nothing can be done if stderr is closed.
        let _ = stderr().write_all(text.as_bytes());
        failures
    });
    if let Err(refusal) = told {
        refusal.print();
    }
}

fn of_process(
    process: &Process,
    number: u64,
    lasting: Duration,
    outputs: &Outputs,
) -> Result<(), Refusal> {
    let (name, pid) = (&process.name, process.pid());
    let page = process.page().map_err(Refusal::missing)?;
    if page.snapshot().managing == 0 {
        return Err(Refusal::missing(format!(
            "{name} ({pid}) has stayed within its RAM, so there are no faults: give it less with \
             `deepheap set`, or start it with less --ram"
        )));
    }
    let owner = fs::metadata(format!("/proc/{pid}"))
        .map_err(|error| Refusal::missing(error.to_string()))?;
    let root = format!("/proc/{pid}/root");
    let shared = Shared::make(number, Path::new(&root), Some((owner.uid(), owner.gid())))?;
    process.wish(Request::Profile(number)).map_err(Refusal::missing)?;
    let begun = Instant::now();
    while shared.joined() == 0 {
        if begun.elapsed() >= PATIENCE || !process.is_running() {
            let seconds = PATIENCE.as_secs();
            return Err(Refusal::missing(format!(
                "{name} ({pid}) has not answered in {seconds} s: if it is stopped, continue it"
            )));
        }
        sleep(LOOK);
    }
    wait(process, lasting);
    let inside = u64::from(page.pid());
    let outside = |number: u64| match number {
        _ if inside == u64::from(pid) => number,
        number if number == inside => pid.into(),
        _ => 0, // a child of it, whose number is not known
    };
    let (text, failures) = told(&shared.finish(outside)?, outputs);
    print_out(text)?;
    failures
}

/// Until the time is over, the process has ended, or somebody interrupts.
fn wait(process: &Process, lasting: Duration) {
    // SAFETY: an empty set is made before it is used; a null for what is not wanted.
    let set = unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, core::ptr::null_mut());
        set
    };
    let end = Instant::now() + lasting;
    while Instant::now() < end && process.is_running() {
        let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        // SAFETY: a set and a time.
        if unsafe { libc::sigtimedwait(&set, core::ptr::null_mut(), &pause) } > 0 {
            return;
        }
    }
}

/// Files to write.
struct Outputs {
    faults: Vec<PathBuf>,
    /// As many, if allocations are told of.
    allocations: Option<Vec<PathBuf>>,
}

/// The summary, with a line for each file that is written.
fn told(recorded: &Recorded, outputs: &Outputs) -> (String, Result<(), Refusal>) {
    let [waited, allocated] = &Stacks::of(recorded);
    let mut text = summary::text(waited);
    if outputs.allocations.is_some() {
        text = text + "\n" + &summary::allocated(allocated);
    }
    let mut failures = Ok(());
    let of_faults = outputs.faults.iter().map(|path| (waited, path));
    let of_allocations = outputs.allocations.iter().flatten().map(|path| (allocated, path));
    for (stacks, path) in of_faults.chain(of_allocations) {
        let shown = path.display();
        match fs::write(path, write::content(stacks, path)) {
            Ok(()) => text += &format!("deepheap: {} is in {shown}\n", write::what(path)),
            Err(error) => {
                let told = format!("cannot write '{shown}': {error}: give -o another file");
                failures = Err(Refusal::missing(told));
            }
        }
    }
    (text, failures)
}

/// The file in shared memory.
struct Shared {
    number: u64,
    path: PathBuf,
}

impl Shared {
    /// Makes it below the root folder that its processes have, for the user that they have.
    fn make(number: u64, root: &Path, owner: Option<(u32, u32)>) -> Result<Shared, Refusal> {
        let inside = profile::path_of(number);
        let path = root.join(inside.strip_prefix("/").unwrap_or(&inside));
        let mut options = File::options();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let made = options.open(&path).and_then(|file| {
            let shared = Shared { number, path: path.clone() };
            if let Some((uid, gid)) = owner {
                fchown(&file, Some(uid), Some(gid))?;
            }
            profile::make(&file).map(|()| shared)
        });
        made.map_err(|error| {
            let shown = path.display();
            Refusal::missing(format!("cannot make '{shown}': {error}: make room in /dev/shm"))
        })
    }

    fn open(&self) -> Result<File, Error> {
        File::options().read(true).write(true).open(&self.path)
    }

    fn joined(&self) -> u64 {
        self.open().and_then(|file| profile::joined(&file)).unwrap_or(0)
    }

    /// Ends it, and takes out what is in it, with the modules that processes have by now. A process
    /// in a container has another number outside.
    fn finish(&self, outside: impl Fn(u64) -> u64) -> Result<Recorded, Refusal> {
        let read = || {
            let file = self.open()?;
            profile::end(&file)?;
            let recorded = profile::read(&file)?;
            // Processes may have it mapped for long: its memory goes back now.
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let (at, length) = profile::ALL_SLOTS;
            // SAFETY: no memory arguments. The content stays if that fails: no harm is done.
            unsafe { libc::fallocate(file.as_raw_fd(), mode, at, length) };
            Ok(recorded)
        };
        let read: Result<Recorded, Error> = read();
        let mut recorded =
            read.map_err(|error| Refusal::missing(format!("the profile cannot be read: {error}")))?;
        let mut processes = BTreeSet::new();
        for (head, _) in recorded.samples.iter_mut().chain(&mut recorded.allocations) {
            head.pid = outside(head.pid);
            processes.insert((head.pid, head.image));
        }
        for (pid, image) in processes {
            // Of a process that goes on.
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            recorded.modules.push((image, maps));
        }
        Ok(recorded)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // It may be gone with a container.
        let _ = fs::remove_file(&self.path);
    }
}
