//! Scratch: the folder of one program, with its input, and the command that runs it there.
//!
//! Guarantees: the folder is gone when the value is dropped.
//! Threads: one.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::programs::{AMOUNT, Content, Job, Program};
use crate::papers::launch::{Ended, Running};
use deepheap_bench::failure::Failure;
use deepheap_bench::ledger::Ledger;

const STEP_MAX: Duration = Duration::from_secs(300);
/// What decides how programs behave and is not to be inherited.
const CLEARED: [&str; 6] = [
    "DEEPHEAP_CONF",
    "DEEPHEAP_SHOW_STATS",
    "LD_PRELOAD",
    "PYTHONMALLOC",
    "NODE_OPTIONS",
    "JAVA_TOOL_OPTIONS",
];

/// A program, ready to run.
#[derive(Debug)]
pub struct Scratch<'p> {
    folder: PathBuf,
    program: &'p Program,
    amount: u64,
}

/// What to do about the first of a program's needs that is not there.
pub fn missing(program: &Program) -> Option<String> {
    let need = program.needs.iter().find(|need| find(need).is_none())?;
    Some(format!("no {need}; `make real-deps` installs {}", program.packages))
}

/// Where `make real-deps` installs modules of Python: beside the folder of this program.
fn modules() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().and_then(Path::parent).unwrap_or(Path::new(".")).join("real-python")
}

/// Where the first of some commands is, in PATH or where it says; or a module.
fn find(commands: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    commands.split('|').find_map(|command| {
        if let Some(module) = command.strip_prefix("python:") {
            return Some(modules().join(module)).filter(|path| path.exists());
        }
        if command.starts_with('/') {
            return Some(PathBuf::from(command)).filter(|path| path.exists());
        }
        std::env::split_paths(&path).map(|dir| dir.join(command)).find(|path| path.is_file())
    })
}

impl<'p> Scratch<'p> {
    /// Makes the folder and all that is in it.
    pub fn new(program: &'p Program, amount: u64) -> Result<Self, Failure> {
        let folder = std::env::temp_dir().join(Ledger::name(program.id));
        let new = Self { folder, program, amount };
        fs::create_dir_all(&new.folder)
            .map_err(|error| Failure::os(new.folder.display(), &error))?;
        if let Job::Batch(batch) = &program.job {
            for (name, content) in batch.files {
                new.write(name, *content)?;
            }
            for step in batch.steps {
                let mut command = Command::new(step[0]);
                command.args(&step[1..]).current_dir(&new.folder);
                Running::start(&mut command)?.wait(STEP_MAX).and_then(Ended::success)?;
            }
        }
        Ok(new)
    }

    fn write(&self, name: &str, content: Content) -> Result<(), Failure> {
        let path = self.folder.join(name);
        let failed = |error: std::io::Error| Failure::os(path.display(), &error);
        match content {
            Content::Text(text) => {
                fs::write(&path, text.replace(AMOUNT, &self.amount.to_string())).map_err(failed)
            }
            Content::Made(make) => {
                let mut file = BufWriter::new(File::create(&path).map_err(failed)?);
                make(self.amount, &mut file).and_then(|()| file.flush()).map_err(failed)
            }
        }
    }

    /// Its program.
    pub fn program(&self) -> &'p Program {
        self.program
    }

    /// How much work it gets.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// A file in its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The command, behind others that run it.
    pub fn command(&self, before: &[String]) -> Result<Command, Failure> {
        let need = self.program.needs[0];
        let found = find(need).ok_or_else(|| Failure::Failed(format!("{need}: not there")))?;
        let (program, arguments) = match &self.program.job {
            Job::Batch(batch) => (batch.made.map_or(found, PathBuf::from), batch.arguments),
            Job::Server { arguments, .. } => (found, *arguments),
        };
        let mut command = match before {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let amount = self.amount.to_string();
        command.args(arguments.iter().map(|argument| argument.replace(AMOUNT, &amount)));
        for name in CLEARED {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C").env("TMPDIR", &self.folder);
        command.env("PYTHONHASHSEED", "0").env("PYTHONPATH", modules());
        command.envs(self.program.environment.iter().copied());
        command.current_dir(&self.folder);
        Ok(command)
    }

    /// Reads the files, so that no memory cgroup pays for their page cache.
    pub fn warm(&self) {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        files.for_each(|file| read(&file.path()));
    }
}

/// Reads a file to its end, into the page cache. What cannot be read is no input.
pub fn read(path: &Path) {
    let mut buffer = vec![0; 1 << 20];
    if let Ok(mut file) = File::open(path) {
        while matches!(file.read(&mut buffer), Ok(1..)) {}
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("deepheap-bench: {}: {error}", self.folder.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_and_what_is_missing_is_named() {
        assert_eq!(find("/bin/sh"), Some("/bin/sh".into()));
        assert!(find("no-such-command|sh").is_some());
        assert_eq!(find("no-such-command|/nowhere/sh"), None);
        assert_eq!(find("python:no_such_module"), None);
    }
}
