//! Program: the file that `deepheap run` is about to execute, found and found fit.
//!
//! Guarantees: found as execvp(3) would; a program that would silently run without deepheap is
//! refused with the reason.
//! Never: executes anything.
//! Threads: none but main.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use deepheap::internal::store_location::is_accessible;

use crate::launch::elf::{self, Elf};
use crate::refusal::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Refusal};

/// The folders that execvp searches if there is no PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Scripts run by scripts run by ...: the kernel gives up after as many.
const SCRIPT_DEPTH_MAX: usize = 5;
/// The kernel looks no further for the interpreter of a script.
const SCRIPT_LINE_MAX: usize = 256;
/// The shell that runs a file for execvp that is neither ELF nor `#!`.
pub const SHELL: &str = "/bin/sh";

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// Finds a program as execvp(3) does.
pub fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    if name.is_empty() {
        return Err(not_found("the program's name is empty: give a program to run".to_owned()));
    }
    let shown = Path::new(name).display();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(not_executable(&path))
            }
            Err(error) => Err(not_found(format!("cannot find '{shown}': {}", reason(&error)))),
        };
    }
    let mut forbidden = None;
    let folders = env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    for folder in env::split_paths(&folders) {
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        let path = folder.join(name);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                forbidden.get_or_insert(path);
            }
            Err(_) => {}
        }
    }
    Err(match forbidden {
        Some(path) => not_executable(&path),
        None => not_found(format!(
            "cannot find '{shown}' in any folder of PATH: check the spelling, or give its path"
        )),
    })
}

/// Refuses a program into which nothing can be preloaded.
pub fn check(path: &Path) -> Result<(), Refusal> {
    let mut path = path.to_path_buf();
    let mut said = format!("'{}'", path.display());
    for _ in 0..SCRIPT_DEPTH_MAX {
        let Ok(file) = File::open(&path) else {
            // It may be executed but not read: only its mode can be checked.
            return check_privileges(&path, &said);
        };
        let interpreter = match elf::read(&file) {
            Some(elf) => {
                check_elf(&elf, &said)?;
                return check_privileges(&path, &said);
            }
            None => script_interpreter(&file).unwrap_or_else(|| PathBuf::from(SHELL)),
        };
        if let Err(error) = executable(&interpreter) {
            return Err(Refusal::with_status(
                EXIT_NOT_EXECUTABLE,
                format!(
                    "{said} is to be run by '{}', which cannot be executed: {}",
                    interpreter.display(),
                    reason(&error)
                ),
            ));
        }
        said = format!("'{}' (which runs {said})", interpreter.display());
        path = interpreter;
    }
    Err(Refusal::with_status(
        EXIT_NOT_EXECUTABLE,
        format!("{said} is a script run by a script, too many times over: name a program"),
    ))
}

fn check_elf(elf: &Elf, said: &str) -> Result<(), Refusal> {
    match elf {
        Elf::Foreign(machine) => Err(Refusal::new(format!(
            "{said} is built for {machine}, deepheap for x86_64: use an x86_64 build of it"
        ))),
        Elf::Static => Err(Refusal::new(format!(
            "{said} is statically linked, so its malloc cannot be replaced: use a dynamically \
             linked build of it"
        ))),
        Elf::Sanitized => Err(Refusal::new(format!(
            "{said} is built with AddressSanitizer, which has a malloc of its own: use a build \
             without -fsanitize=address"
        ))),
        Elf::Dynamic(linker) => {
            let name = Path::new(linker).file_name().unwrap_or_default().as_bytes();
            if name.starts_with(b"ld-linux-x86-64.so") {
                return Ok(());
            }
            let library = if name.starts_with(b"ld-musl") { "musl" } else { "another C library" };
            Err(Refusal::new(format!(
                "{said} is linked with {library} ({linker}), deepheap needs glibc: use a build of \
                 it for glibc"
            )))
        }
    }
}

fn check_privileges(path: &Path, said: &str) -> Result<(), Refusal> {
    let Ok(status) = fs::metadata(path) else { return Ok(()) };
    let kind = if status.mode() & SETUID != 0 {
        "setuid"
    } else if status.mode() & SETGID != 0 {
        "setgid"
    } else if has_capabilities(path) {
        "privileged by file capabilities"
    } else {
        return Ok(());
    };
    Err(Refusal::new(format!(
        "{said} is {kind}, and the system preloads nothing into such programs: run an \
         unprivileged copy of it, as the user it should run as"
    )))
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings end in a zero byte; with a size of 0 nothing is written.
    let len = unsafe {
        libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), core::ptr::null_mut(), 0)
    };
    len > 0
}

/// The interpreter of a `#!` line.
fn script_interpreter(file: &File) -> Option<PathBuf> {
    let mut start = vec![0; SCRIPT_LINE_MAX];
    let len = file.read_at(&mut start, 0).ok()?;
    start.truncate(len);
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let name = line.split(is_blank).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(name.to_vec())))
}

/// Whether execve would take the file, by its kind and mode.
fn executable(path: &Path) -> io::Result<()> {
    let is_dir = fs::metadata(path)?.is_dir();
    if is_dir || !is_accessible(path, libc::X_OK) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

fn not_found(text: String) -> Refusal {
    Refusal::with_status(EXIT_NOT_FOUND, text)
}

fn not_executable(path: &Path) -> Refusal {
    let shown = path.display();
    let text = if path.is_dir() {
        format!("'{shown}' is a folder: give a program in it")
    } else {
        format!("'{shown}' is not executable: chmod +x it, or run its interpreter")
    };
    Refusal::with_status(EXIT_NOT_EXECUTABLE, text)
}

/// The kernel's error, without Rust's "(os error N)".
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_lowercase(),
        None => text,
    }
}
