//! Table homes: where pages of the object table lie that are not in RAM.
//!
//! | home | holds | written |
//! |---|---|---|
//! | the last checkpoint that the heap was opened at | what did not change since | never |
//! | a file without a name | what did | when a page is evicted |
//!
//! A fork freezes the file: parent and child both read it, and each writes to a file of its own
//! from then on. Pages that were evicted before stay readable for both, whichever lives longer.
//!
//! Guarantees: bytes that are not those that were evicted are never handed out.
//! Never: allocates outside of `add_file`; holds a buffer while it waits for anything but the
//! device.
//! Threads: any, also in a signal handler. Files are added while the gate is closed, or before
//! anyone else knows the table.

use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;
use std::sync::OnceLock;

use deepheap_store::{PageLack, SavedTable, TableFile};
use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::threads::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::directory::Home;
use crate::PAGE;
use crate::staging::{Staging, StagingBuffer};

/// Files at a time: one, and one for each fork before which some page of those that are still out
/// was written. Each takes two descriptors. With no room for one more, pages stay in RAM.
const FILES_MAX: usize = 62;
const NONE: usize = usize::MAX;
const FIRST_FILE: u8 = 2;

/// See the file's header.
pub(super) struct Homes {
    saved: OnceLock<SavedTable>,
    files: [AtomicPtr<TableFile>; FILES_MAX],
    /// Which file is written.
    current: AtomicUsize,
    /// Whether anything was written to it.
    is_written: AtomicBool,
    /// Each for a page.
    buffers: Staging,
}

impl Homes {
    /// The checkpoint that the heap was opened at.
    pub(super) const SAVED: Home = Home(1);

    pub(super) fn new() -> Result<Homes> {
        Ok(Homes {
            saved: OnceLock::new(),
            files: [const { AtomicPtr::new(null_mut()) }; FILES_MAX],
            current: AtomicUsize::new(NONE),
            is_written: AtomicBool::new(false),
            buffers: Staging::new(PAGE, 0)?,
        })
    }

    /// A buffer for a page.
    pub(super) fn buffer(&self) -> StagingBuffer<'_> {
        let buffer = self.buffers.take();
        buffer.note(PAGE);
        buffer
    }

    /// Bytes that the buffers take.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffers.noted_bytes()
    }

    /// What the heap was opened at.
    pub(super) fn set_saved(&self, saved: SavedTable) {
        let _ = self.saved.set(saved);
    }

    /// Pages go to this file from now on, if there is room for one more.
    pub(super) fn add_file(&self, file: TableFile) {
        let free = self.files.iter().position(|file| file.load(Ordering::Relaxed).is_null());
        if let Some(at) = free {
            self.files[at].store(Box::into_raw(Box::new(file)), Ordering::Release);
            self.is_written.store(false, Ordering::Relaxed);
            self.current.store(at, Ordering::Release);
        }
    }

    /// Nothing more is written to the file that was. `in_use` tells whether a page has this home;
    /// files that no page is in are closed. While no thread uses any.
    pub(super) fn freeze(&self, in_use: impl Fn(Home) -> bool) {
        self.current.store(NONE, Ordering::Relaxed);
        for (at, file) in self.files.iter().enumerate() {
            let home = Home(FIRST_FILE + at as u8);
            if !file.load(Ordering::Relaxed).is_null() && !in_use(home) {
                let file = file.swap(null_mut(), Ordering::Relaxed);
                // SAFETY: `add_file` made it of a box, and by our contract nobody uses it.
                drop(unsafe { Box::from_raw(file) });
            }
        }
    }

    /// Whether the file that is written has anything.
    pub(super) fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Relaxed)
    }

    /// Whether pages that have changed can be evicted.
    pub(super) fn has_file(&self) -> bool {
        self.current.load(Ordering::Relaxed) != NONE
    }

    /// The checksum of a page; none without a home.
    pub(super) fn checksum(&self, page: usize, bytes: &[u8]) -> Option<u64> {
        if let Some(saved) = self.saved.get() {
            return Some(saved.bytes_checksum(page as u32, bytes));
        }
        let file = self.file(self.current.load(Ordering::Relaxed))?;
        Some(file.checksum(page as u32, bytes))
    }

    /// Reads a page from its home.
    pub(super) fn read(
        &self,
        home: Home,
        page: usize,
        checksum: u64,
        bytes: &mut [u8],
    ) -> core::result::Result<(), PageLack> {
        match home {
            Self::SAVED => match self.saved.get() {
                Some(saved) => saved.read(page as u32, bytes),
                None => Err(PageLack::Damaged),
            },
            Home(home) => match self.file((home - FIRST_FILE) as usize) {
                Some(file) => file.read(page as u32, checksum, bytes),
                None => Err(PageLack::Damaged),
            },
        }
    }

    /// Writes pages; where they are then.
    pub(super) fn write(&self, pages: &[u32], bytes: &[u8]) -> Result<Home> {
        let current = self.current.load(Ordering::Relaxed);
        let file = self.file(current).ok_or(Errno::ENODEV)?;
        self.is_written.store(true, Ordering::Relaxed);
        file.write(pages, bytes)?;
        Ok(Home(FIRST_FILE + current as u8))
    }

    fn file(&self, at: usize) -> Option<&TableFile> {
        let file = self.files.get(at)?.load(Ordering::Acquire);
        // SAFETY: `add_file` made it of a box; `freeze` ends it while no thread uses it.
        unsafe { file.as_ref() }
    }
}

impl Drop for Homes {
    fn drop(&mut self) {
        self.freeze(|_| false);
    }
}
