//! Undo: how each kind of thing that a run makes on the machine is taken back.
//!
//! Guarantees: undoing what does not exist is no error.
//! Never: decides what to undo; that is in the ledger.
//! Threads: the supervising thread only.

use std::ffi::CString;
use std::fs;
use std::io::{ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The setting for how many pages swap reads at a time.
pub const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";

/// Removes a cgroup; what still runs inside was started by us and is ended.
pub fn cgroup(folder: &Path) -> Result<()> {
    end_all(folder);
    absent_is_fine(fs::remove_dir(folder))
}

/// Ends what runs in a cgroup of ours.
pub fn end_all(folder: &Path) {
    let inside = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in inside.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|&pid| pid > 1) {
        // SAFETY: kill has no memory preconditions; whoever is in this cgroup is ours.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// Switches a swap file off and removes it.
pub fn swap_file(path: &Path) -> Result<()> {
    swap_off(path)?;
    file(path)
}

/// Switches swap on a zram device of ours off and removes the device.
pub fn zram(number: u32) -> Result<()> {
    if !Path::new(&format!("/sys/block/zram{number}")).exists() {
        return Ok(());
    }
    swap_off(Path::new(&format!("/dev/zram{number}")))?;
    fs::write("/sys/class/zram-control/hot_remove", number.to_string())
}

fn swap_off(path: &Path) -> Result<()> {
    let name = c_path(path)?;
    // SAFETY: a terminated path.
    if unsafe { libc::swapoff(name.as_ptr()) } != 0 {
        let error = std::io::Error::last_os_error();
        // EINVAL: not a swap area in use; ENOENT: no such file.
        if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) {
            return Err(error);
        }
    }
    Ok(())
}

/// Unmounts what is on a folder of ours, and removes the folder.
pub fn mount(folder: &Path) -> Result<()> {
    unmount(folder)?;
    absent_is_fine(fs::remove_dir(folder))
}

/// Unmounts what is on a folder of ours; the loop device ends with it.
pub fn unmount(folder: &Path) -> Result<()> {
    let name = c_path(folder)?;
    // SAFETY: a terminated path.
    if unsafe { libc::umount2(name.as_ptr(), libc::UMOUNT_NOFOLLOW) } != 0 {
        let error = std::io::Error::last_os_error();
        // EINVAL: nothing is mounted there; ENOENT: no such folder.
        if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) {
            return Err(error);
        }
    }
    Ok(())
}

/// Removes a folder of ours with all that is in it.
pub fn folder(path: &Path) -> Result<()> {
    absent_is_fine(fs::remove_dir_all(path))
}

/// Removes a file.
pub fn file(path: &Path) -> Result<()> {
    absent_is_fine(fs::remove_file(path))
}

/// Sets how many pages (2^value) swap reads at a time.
pub fn set_page_cluster(value: u32) -> Result<()> {
    fs::write(PAGE_CLUSTER, value.to_string())
}

/// A path as the kernel takes it.
pub fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn absent_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
