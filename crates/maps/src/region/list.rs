//! List: the maps that processes of this user have, for programs that look from outside.
//!
//! Never: changes anything.
//! Threads: any.

use core::sync::atomic::Ordering::Relaxed;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;
use deepheap_sys::threads::rendezvous::Rendezvous;

use crate::region::folder;
use crate::region::join::tables_of;

/// A process that has a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Whether it has mapped the file to write.
    pub is_writer: bool,
}

/// A map as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The path under which it was mapped first, or its end.
    pub path: PathBuf,
    /// The processes that have it.
    pub processes: Vec<Process>,
    /// Bytes of the file, of the budget, and of pages in RAM.
    pub file_bytes: u64,
    /// See above.
    pub budget_bytes: u64,
    /// See above.
    pub resident_bytes: u64,
    /// Faults of all processes.
    pub faults: u64,
    /// Pages written to the file.
    pub pages_written: u64,
}

/// Every map that a living process of this user has.
pub fn list() -> Result<Vec<Listed>, Errno> {
    Ok(folder::names()?.iter().filter_map(|name| listed(name)).collect())
}

/// None: nobody has it, or another version of deepheap made it.
fn listed(name: &str) -> Option<Listed> {
    let rendezvous = Rendezvous::existing(name).ok()?;
    let control = tables_of(&rendezvous).ok()???;
    let header = control.header();
    let living = control.living(&rendezvous).map(|participant| Process {
        pid: participant.pid.load(Relaxed),
        is_writer: participant.is_writer.load(Relaxed) != 0,
    });
    let processes: Vec<Process> = living.collect();
    (!processes.is_empty()).then(|| Listed {
        path: PathBuf::from(OsString::from_vec(control.path())),
        processes,
        file_bytes: header.file_bytes.load(Relaxed),
        budget_bytes: header.budget_bytes.load(Relaxed),
        resident_bytes: header.resident.load(Relaxed) * PAGE as u64,
        faults: header.counts.faults.load(Relaxed),
        pages_written: header.counts.pages_written.load(Relaxed),
    })
}
