//! Program: one that a contender starts, as it is or under `deepheap run`.

use std::io::Read;
use std::process::{Command, Stdio};

use super::Settings;
use crate::failure::Failure;
use crate::signals::{self, Watched};

/// `program`, or `deepheap run -- program` with more RAM than it needs.
pub fn command(settings: &Settings, program: &str, managed: bool) -> Result<Command, Failure> {
    let mut command = if managed {
        if !settings.deepheap.is_file() {
            return Err(Failure::Failed(format!(
                "{}: not there; build it (cargo build --release --workspace) or give --deepheap",
                settings.deepheap.display()
            )));
        }
        let mut command = Command::new(&settings.deepheap);
        command.args(["run", "--ram", "1G", "--", program]);
        command
    } else {
        Command::new(program)
    };
    // The default store is a file without a name in the working folder.
    command.current_dir(&settings.dir).env("TMPDIR", &settings.dir);
    command.env_remove("DEEPHEAP_CONF").env_remove("LD_PRELOAD");
    signals::die_with_parent(&mut command);
    Ok(command)
}

/// The standard output of a command that succeeds.
pub fn output(command: &mut Command) -> Result<String, Failure> {
    let what = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| Failure::os(&what, &error);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let watched = Watched::new(child.id())?;
    let mut text = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut text).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    drop(watched);
    signals::interrupted()?;
    if status.success() { Ok(text) } else { Err(Failure::Failed(format!("{what}: {status}"))) }
}
