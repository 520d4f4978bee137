//! Launch: a program of somebody else's, started, watched, given a limit of time, and heard.
//!
//! Guarantees: when a call returns or a server is dropped, the program and what it started in its
//! process group are gone; a failure says what the program said last.
//! Never: waits for longer than the limit.
//! Threads: the calling one; one for each stream that is read, until the program ends.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use deepheap_bench::failure::Failure;
use deepheap_bench::signals::{self, Watched};

const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How much of what a program said is told in a failure, in characters.
const SAID_MAX: usize = 300;
/// A server has to listen by then.
const START_MAX: Duration = Duration::from_secs(30);

/// A program that runs; dropping it ends it.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    watched: Watched,
    output: Option<JoinHandle<Vec<u8>>>,
    errors: Option<JoinHandle<Vec<u8>>>,
}

/// How a program ended, and what it said.
#[derive(Debug)]
pub struct Ended {
    /// Its standard output.
    pub output: Vec<u8>,
    /// It was ended because its time was over.
    pub is_late: bool,
    errors: String,
    status: ExitStatus,
    name: String,
}

impl Running {
    /// Starts a program as the leader of a process group of its own.
    pub fn start(command: &mut Command) -> Result<Self, Failure> {
        let path = PathBuf::from(command.get_program());
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        signals::die_with_parent(command);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::Failed(format!("{}: not there; build it: make apps", path.display()))
            }
            _ => Failure::os(path.display(), &error),
        })?;
        let watched = Watched::group(child.id())?;
        let output = child.stdout.take().map(listen);
        let errors = child.stderr.take().map(listen);
        Ok(Self { name, child, watched, output, errors })
    }

    /// Waits for its end, or ends it when its time is over.
    pub fn wait(self, limit: Duration) -> Result<Ended, Failure> {
        self.wait_and(limit, || ())
    }

    /// The same, and calls `look` again and again until then.
    pub fn wait_and(self, limit: Duration, look: impl FnMut()) -> Result<Ended, Failure> {
        let ended = self.end_within(limit, look)?;
        if ended.is_late {
            let seconds = limit.as_secs();
            return Err(Failure::Failed(format!(
                "{}: did not end within {seconds} s{}",
                ended.name,
                ended.said()
            )));
        }
        Ok(ended)
    }

    /// The same, but being late is no failure.
    pub fn end_within(mut self, limit: Duration, mut look: impl FnMut()) -> Result<Ended, Failure> {
        let end = Instant::now() + limit;
        let mut is_late = false;
        let status = loop {
            let ended = self.child.try_wait().map_err(|error| Failure::os(&self.name, &error))?;
            if let Some(status) = ended {
                break status;
            }
            if Instant::now() > end && !is_late {
                is_late = true;
                self.kill();
            }
            look();
            // A signal to us has killed it already; its status comes soon.
            std::thread::sleep(LOOK_EVERY);
        };
        let ended = Ended { is_late, ..self.heard(status) };
        signals::interrupted()?;
        Ok(ended)
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it to end.
    pub fn terminate(&mut self) {
        if !self.has_ended() {
            // SAFETY: kill has no memory preconditions; the child was not waited for yet.
            unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        }
    }

    /// Ends it and what it started.
    pub fn kill(&self) {
        self.watched.kill();
    }

    /// Waits until somebody listens on the socket.
    pub fn listens_on(&mut self, socket: &Path) -> Result<(), Failure> {
        let end = Instant::now() + START_MAX;
        while Instant::now() < end {
            signals::sleep(LOOK_EVERY)?;
            if UnixStream::connect(socket).is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return self.heard(status).success().and(Err(Failure::Failed(format!(
                    "{}: ended instead of listening",
                    self.name
                ))));
            }
        }
        Err(Failure::Failed(format!("{}: does not listen on {}", self.name, socket.display())))
    }

    fn heard(&mut self, status: ExitStatus) -> Ended {
        // What it started and left behind would hold its streams open.
        self.watched.kill();
        let hear = |thread: Option<JoinHandle<Vec<u8>>>| {
            thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
        };
        let (output, errors) = (hear(self.output.take()), hear(self.errors.take()));
        let errors = String::from_utf8_lossy(&errors).into_owned();
        Ended { output, errors, status, name: self.name.clone(), is_late: false }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.watched.kill();
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// Its output, if it succeeded.
    pub fn success(self) -> Result<String, Failure> {
        self.bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The same as it came.
    pub fn bytes(self) -> Result<Vec<u8>, Failure> {
        if self.status.success() {
            return Ok(self.output);
        }
        let said = String::from_utf8_lossy(&self.output);
        let how = match (self.status.code(), self.status.signal()) {
            (Some(1), _) if said.contains("\"wrong\":") => "WRONG ANSWERS".to_string(),
            (Some(code), _) => format!("status {code}"),
            (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
        };
        Err(Failure::Failed(format!("{}: {how}{}", self.name, self.said())))
    }

    /// Its last words, after a colon.
    fn said(&self) -> String {
        let last = self.errors.lines().rev().map(str::trim).find(|line| !line.is_empty());
        last.map_or_else(String::new, |line| {
            format!(": {}", line.chars().take(SAID_MAX).collect::<String>())
        })
    }
}

fn listen(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let ended = Running::start(&mut command).and_then(|running| running.wait(limit));
        ended.and_then(Ended::success).map_err(|failure| failure.to_string())
    }

    #[test]
    fn output_reasons_and_limits_of_time_are_told() {
        let minute = Duration::from_secs(60);
        assert_eq!(shell("echo yes", minute), Ok("yes\n".into()));
        assert_eq!(shell("echo no >&2; exit 3", minute), Err("sh: status 3: no".into()));
        // A child that it leaves behind holds nothing up.
        assert_eq!(shell("sleep 1000 & echo yes", minute), Ok("yes\n".into()));
        let late = shell("echo slow >&2; sleep 1000", Duration::from_secs(2));
        assert_eq!(late, Err("sh: did not end within 2 s: slow".into()));
        let absent = Running::start(&mut Command::new("/nowhere/random_access"));
        let told = absent.map(|_| ()).map_err(|failure| failure.to_string());
        assert!(told.is_err_and(|why| why.contains("make apps")));
    }
}
