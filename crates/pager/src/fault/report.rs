//! Fault report: what a fault did, or why the access must stop.

use deepheap_residency::promises::NoPromise;
use deepheap_store::StoreError;
use deepheap_sys::errno::Errno;

use crate::moves::Moves;

/// How a fault was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum FaultKind {
    /// The page was all zero: nothing to fetch.
    Zero,
    /// The page was in the cache, compressed in RAM.
    Cached,
    /// The page was read from the store.
    Stored,
    /// Another thread was already moving the page; this one waited for it.
    Waited,
}

impl FaultKind {
    /// Every kind, in the order in which the statistics page has them.
    pub const ALL: [FaultKind; 4] =
        [FaultKind::Zero, FaultKind::Cached, FaultKind::Stored, FaultKind::Waited];

    /// Its name in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Zero => "zero",
            FaultKind::Cached => "cached",
            FaultKind::Stored => "stored",
            FaultKind::Waited => "waited",
        }
    }

    /// The word for it on screens.
    pub fn word(self) -> &'static str {
        match self {
            FaultKind::Cached => "compressed",
            kind => kind.name(),
        }
    }
}

/// The outcome of a fault.
#[derive(Clone, Copy, Debug)]
pub struct FaultReport {
    /// The kind.
    pub kind: FaultKind,
    /// How many further objects were read from the store with it.
    pub ahead: u32,
    /// How many pages from it on were looked at, in a scan downwards as a negative number.
    pub passed: i16,
    /// The thread's own evictions, to make room.
    pub moves: Moves,
    /// The page was found present, although the thread has faulted on it twice in a row.
    pub is_present: bool,
    /// How much more RAM would have spared it, in steps (`policy/more_ram`); none if that is not
    /// known.
    pub spared_by: Option<u8>,
}

impl FaultReport {
    /// A fault that was served so, for which no room had to be made.
    pub(crate) fn of(kind: FaultKind, ahead: u32, passed: i16) -> FaultReport {
        FaultReport {
            kind,
            ahead,
            passed,
            moves: Moves::default(),
            is_present: false,
            spared_by: None,
        }
    }
}

/// Why an access must stop.
#[derive(Clone, Copy, Debug)]
pub enum FaultError {
    /// Not an address of a managed span.
    NotManaged,
    /// The object could not be read: device error, or bytes that fail their checksum.
    Unreadable(StoreError),
    /// Nothing can be evicted any more, because the store takes no more writes.
    NoRoom(StoreError),
    /// As `NoRoom`, but forked children withhold space that comes back when they end.
    Withheld,
    /// The page is touched for the first time, and there is no room in the store for it.
    NoPromise(NoPromise),
    /// Where the object is stored is not known any more: a page of the object table cannot be read.
    Lost,
    /// The file that the page comes from cannot be read.
    File(Errno),
    /// The kernel refused to install the page.
    Install(Errno),
}
