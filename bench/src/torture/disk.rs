//! Disk: a file system of our own in a file, mounted by a loop device, whose power can be cut.
//!
//! Cut: the file system stops in this instant (`FS_IOC_SHUTDOWN` without a flush of its journal).
//! What it had not written is lost, as after a power failure. Mounting it again replays its
//! journal.
//!
//! It is mounted in a mount namespace of the torture's own. Otherwise a namespace that another
//! program makes, a container's, gets a copy of the mount. As long as it has the copy, the kernel
//! keeps the file system that was cut, and mounting the image again brings that one back.
//!
//! Guarantees: image and mount are in the ledger before they exist.
//! Never: mounts or unmounts anything else.
//! Threads: the supervising thread only.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::ledger::{Entry, Ledger};
use crate::undo;

/// `_IOR('X', 125, __u32)`: of ext4, xfs and f2fs.
const FS_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587D;
/// Neither data nor journal are flushed.
static NO_LOG_FLUSH: u32 = 2;

/// A mounted file system.
#[derive(Debug)]
pub struct Disk {
    kind: String,
    image: PathBuf,
    folder: PathBuf,
}

/// Whether this machine can make a file system of that kind, and why not.
pub fn can_make(kind: &str) -> Result<(), String> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err("needs root".into());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err("there are no loop devices".into());
    }
    let program = format!("mkfs.{kind}");
    match Command::new(&program).arg("-V").output() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{program} is not installed")),
    }
}

/// Gives this process, and those that it starts, a mount namespace of their own. Refused if the
/// kernel does not let it.
pub fn own_mounts() -> Result<(), String> {
    let none = core::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: terminated strings; no other thread of this process reads its mounts.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(c"none".as_ptr(), c"/".as_ptr(), none, private, none.cast()) == 0
    };
    match done {
        true => Ok(()),
        false => Err(format!("a mount namespace: {}", std::io::Error::last_os_error())),
    }
}

impl Disk {
    /// Makes a file system of so many bytes in a file in `folder`, and mounts it.
    pub fn create(
        ledger: &mut Ledger,
        folder: &Path,
        kind: &str,
        bytes: u64,
    ) -> Result<Disk, Failure> {
        let folder =
            folder.canonicalize().map_err(|error| Failure::os(folder.display(), &error))?;
        let image = folder.join(Ledger::name(&format!("{kind}.image")));
        let mounted = folder.join(Ledger::name(&format!("{kind}.mount")));
        ledger.note(Entry::File(image.clone()))?;
        ledger.note(Entry::Mount(mounted.clone()))?;
        let failed = |error: std::io::Error| Failure::os(image.display(), &error);
        let file = File::create_new(&image).map_err(failed)?;
        file.set_len(bytes).map_err(failed)?;
        fs::create_dir(&mounted).map_err(|error| Failure::os(mounted.display(), &error))?;
        let quiet = if kind == "ext4" { ["-q", "-F"] } else { ["-q", "-f"] };
        run(Command::new(format!("mkfs.{kind}")).args(quiet).arg(&image))?;
        let disk = Disk { kind: kind.into(), image, folder: mounted };
        disk.mount()?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn mount(&self) -> Result<(), Failure> {
        let mut command = Command::new("mount");
        command.args(["-t", &self.kind, "-o", "loop"]);
        run(command.arg(&self.image).arg(&self.folder))
    }

    /// Cuts its power. Whoever uses it gets errors from now on.
    pub fn cut_power(&self) -> Result<(), Failure> {
        let root = File::open(&self.folder);
        let root = root.map_err(|error| Failure::os(self.folder.display(), &error))?;
        // SAFETY: an open descriptor, and a number that outlives the call.
        let done =
            unsafe { libc::ioctl(root.as_raw_fd(), FS_IOC_SHUTDOWN, &raw const NO_LOG_FLUSH) };
        if done != 0 {
            return Err(Failure::last_os(format!("shutdown of {}", self.folder.display())));
        }
        Ok(())
    }

    /// Mounts it again, when nobody uses it any more.
    pub fn restart(&self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::os(self.folder.display(), &error);
        let mut undone = undo::unmount(&self.folder);
        for _ in 0..100 {
            if undone.is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            undone = undo::unmount(&self.folder);
        }
        undone.map_err(failed)?;
        self.mount()
    }
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| Failure::os(&program, &error))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Failure::Failed(format!("{program}: {}: {}", output.status, said.trim())))
        }
    }
}
