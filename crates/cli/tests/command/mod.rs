//! The built command, with a library beside it that preloads and does nothing.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Any shared library does for what `run` is responsible for.
const HARMLESS_LIBRARY: &str = "/lib/x86_64-linux-gnu/libm.so.6";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A folder of a test, removed afterwards.
pub struct Folder(PathBuf);

impl Folder {
    /// In a place that is on a disk: beside the built command.
    pub fn new() -> Folder {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cli-test-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("test folder");
        Folder(path)
    }

    /// Its path.
    #[allow(dead_code)] // not every test file needs it
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it. Copied by another process: a descriptor open for writing here could be
    /// inherited by a child that another test starts, and executing the file would fail.
    #[allow(dead_code)] // not every test file needs it
    pub fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let (draft, path) = (self.0.join("draft"), self.0.join(name));
        fs::write(&draft, content).expect("write");
        let copied = Command::new("cp").args([&draft, &path]).status().expect("cp");
        assert!(copied.success());
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        path
    }

    /// The command, with a preload library beside it, in this folder.
    pub fn deepheap(&self) -> Command {
        let (command, library) = (self.0.join("deepheap"), self.0.join("libdeepheap_preload.so"));
        if !command.exists() {
            fs::hard_link(env!("CARGO_BIN_EXE_deepheap"), &command).expect("link the command");
            fs::copy(HARMLESS_LIBRARY, &library).expect("copy a library");
        }
        let mut command = Command::new(command);
        command.current_dir(&self.0);
        for name in ["DEEPHEAP_CONF", "DEEPHEAP_SHOW_STATS", "LD_PRELOAD", "TMPDIR"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the command.
    #[allow(dead_code)] // not every test file needs it
    pub fn output<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        self.deepheap().args(arguments).output().expect("start deepheap")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Exit status, standard output and standard error.
pub fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}
