//! Swap file: made, switched on, switched off and removed by one run; and vm.page-cluster with it.
//!
//! Guarantees: in the ledger before it exists; preferred over any other swap of the machine; one
//! swap run at a time on a machine (a lock in /run), because vm.page-cluster is one for all.
//! Never: touches another swap area.
//! Threads: the supervising thread only.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::failure::Failure;
use crate::ledger::{self, Entry, Ledger};
use crate::undo::{PAGE_CLUSTER, c_path, set_page_cluster};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
const TURN: &str = "/run/deepheap-bench.swap.lock";
/// `SWAP_FLAG_PREFER` with the highest priority.
const PREFERRED: i32 = 0x8000 | 0x7FFF;

/// The swap file of a run; the ledger takes it back.
#[derive(Debug)]
pub struct SwapFile {
    _turn: File,
}

/// Bytes of swap for `data_bytes`. More than twice the data: when more than half of all swap is in
/// use, the kernel gives up a page's slot as soon as the page is read in and has to write it again
/// at its next eviction although it did not change (`vm_swap_full`). No peer should be measured so.
pub fn size_for(data_bytes: u64) -> u64 {
    (2 * data_bytes + data_bytes / 8 + (128 << 20)).next_multiple_of(PAGE)
}

impl SwapFile {
    /// Makes a swap file in `dir`, switches it on and sets vm.page-cluster.
    pub fn create(
        ledger: &mut Ledger,
        dir: &Path,
        data_bytes: u64,
        page_cluster: u32,
    ) -> Result<Self, Failure> {
        let turn = wait_for_turn()?;
        // Whoever had the turn before may have been killed: its vm.page-cluster is not the old one.
        ledger::clean();
        let dir = dir.canonicalize().map_err(|error| Failure::os(dir.display(), &error))?;
        let path = dir.join(Ledger::name("swap"));
        let bytes = size_for(data_bytes);
        let failed = |error: std::io::Error| Failure::os(path.display(), &error);
        ledger.note(Entry::SwapFile(path.clone()))?;
        let mut file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        // SAFETY: an open descriptor; plain numbers.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) } != 0 {
            return Err(Failure::last_os(format!("{}: no {bytes} bytes of disk", path.display())));
        }
        file.write_all(&header(bytes / PAGE)).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        if !swap_on(&path)? {
            return Err(Failure::last_os(format!(
                "swapon {}: the file system may not support swap files; try another --dir",
                path.display()
            )));
        }
        cluster_pages(ledger, page_cluster)?;
        Ok(Self { _turn: turn })
    }
}

/// Switches a swap area on, preferred over all others; false if the kernel refuses.
pub fn swap_on(path: &Path) -> Result<bool, Failure> {
    let name = c_path(path).map_err(|error| Failure::os(path.display(), &error))?;
    // SAFETY: a terminated path.
    Ok(unsafe { libc::swapon(name.as_ptr(), PREFERRED) } == 0)
}

/// Sets vm.page-cluster until the ledger is undone.
pub fn cluster_pages(ledger: &mut Ledger, page_cluster: u32) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::os(PAGE_CLUSTER, &error);
    let old = fs::read_to_string(PAGE_CLUSTER).map_err(failed)?;
    if let Ok(old) = old.trim().parse::<u32>() {
        ledger.note(Entry::PageCluster(old))?;
    }
    set_page_cluster(page_cluster).map_err(failed)
}

/// The first page of a swap area of version 1 (`mkswap`): the word at 1024 is the version, then the
/// last page and the number of bad pages; the signature ends the page.
pub fn header(pages: u64) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    page[1024..1028].copy_from_slice(&1_u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&((pages - 1) as u32).to_le_bytes());
    page[4086..4096].copy_from_slice(b"SWAPSPACE2");
    page
}

/// Waits until no other run swaps on this machine; the turn ends when the file is closed.
pub fn wait_for_turn() -> Result<File, Failure> {
    let options =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(TURN);
    let file = options.map_err(|error| Failure::os(TURN, &error))?;
    let lock = |flags| {
        // SAFETY: an open descriptor.
        unsafe { libc::flock(file.as_raw_fd(), flags) == 0 }
    };
    if !lock(libc::LOCK_EX | libc::LOCK_NB) {
        eprintln!("deepheap-bench: waiting for another swap run to finish");
        if !lock(libc::LOCK_EX) {
            return Err(Failure::last_os(TURN));
        }
    }
    Ok(file)
}
