//! Durable: heaps whose file outlives the process, each a runtime of its own beside that of
//! `malloc`.
//!
//! A durable heap is managed from birth, at the address that its file names. A *checkpoint* makes
//! what it holds at one instant durable; opening it again gives what the last checkpoint held.
//!
//! ```text
//!   open ──► tables of the last checkpoint are loaded ──► in use ──checkpoint──► in use ... close
//! ```
//!
//! Here is the handle: what names a heap, its roots, its memory, its end, and the request for a
//! checkpoint.
//!
//! Guarantees: a heap that was closed was saved whole; one that was abandoned is what its last
//! checkpoint holds. When `Ticket::wait` has answered a checkpoint, what the heap held at the
//! request is durable.
//! Never: in a forked child: the memory is not there.
//! Threads: any, outside the fault path. Lock order: the file, then the cache, then as in a fork:
//! growth, the heap, the gate.

pub(crate) mod allocate;
pub(crate) mod checkpoint;
pub(crate) mod compact;
pub(crate) mod error;
pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod snapshots;
pub(crate) mod state;
pub(crate) mod worker;

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::path::Path;

use deepheap_pager::Pager;
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::mapping;
use deepheap_sys::threads::thread;

use crate::control::ceiling::take_back;
use crate::durable::error::CheckpointError;
use crate::durable::state::Durable;
use crate::durable::worker::Checkpoint;
use crate::memory::ALIGN;
use crate::objects;
use crate::runtime::{Inside, Runtime, durable_at, hold_durable, is_open, running};

/// While a heap is being closed.
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

/// A durable heap that is open.
#[derive(Clone, Copy)]
pub struct DurableHeap {
    /// The runtime that serves it.
    pub(crate) runtime: &'static Runtime,
    /// The state of it alone.
    pub(crate) durable: &'static Durable,
}

impl DurableHeap {
    /// The handle of an open heap's runtime.
    pub(crate) fn of(runtime: &'static Runtime) -> Option<DurableHeap> {
        Some(DurableHeap { runtime, durable: runtime.durable.as_ref()? })
    }

    /// The heap that an address lies in.
    pub fn at(address: *const u8) -> Option<DurableHeap> {
        durable_at(address as usize).and_then(Self::of)
    }

    /// Whether it was opened for reading alone.
    pub fn is_read_only(&self) -> bool {
        self.durable.is_read_only
    }

    /// Gives a name to an address of the heap, for the next process; null takes the name away.
    ///
    /// # Errors
    /// EINVAL: no such name is possible, or the address is not of this heap; ENOSPC: there are too
    /// many names; EROFS: it was opened for reading alone.
    pub fn set_root(&self, name: &str, address: *const u8) -> Result<(), Errno> {
        if self.is_read_only() {
            return Err(Errno::EROFS);
        }
        let offset = match address as usize {
            0 => None,
            at if self.runtime.heap.contains(at) => Some((at - self.runtime.region_base) as u64),
            _ => return Err(Errno::EINVAL),
        };
        self.durable.roots_set.fetch_add(1, Ordering::Relaxed);
        self.durable.roots.set(name, offset)
    }

    /// The address that has this name; null if none has.
    pub fn root(&self, name: &str) -> *mut u8 {
        match self.durable.roots.get(name) {
            Some(offset) => (self.runtime.region_base + offset as usize) as *mut u8,
            None => core::ptr::null_mut(),
        }
    }

    /// Whether this process has the heap open. A forked child does not.
    pub(crate) fn is_open(&self) -> bool {
        is_open(self.runtime)
    }

    /// The pager of a heap that this process has open.
    pub(crate) fn pager(&self) -> Result<&'static Pager, CheckpointError> {
        // Of one that is not open nothing may be touched.
        let runtime = self.is_open().then_some(self.runtime);
        runtime.and_then(Runtime::pager).ok_or(CheckpointError::Closed)
    }

    /// Where its memory begins: the same in every process.
    pub fn base(&self) -> *mut u8 {
        self.runtime.region_base as *mut u8
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.durable.path
    }

    /// Allocates `size` bytes, byte-granular; null means ENOMEM.
    pub fn malloc(&self, size: usize) -> *mut u8 {
        allocate::allocate(self.runtime, size, ALIGN)
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two; null means ENOMEM.
    pub fn aligned_alloc(&self, align: usize, size: usize) -> *mut u8 {
        allocate::allocate(self.runtime, size, align.max(ALIGN))
    }

    /// Allocates `count` objects of `size` bytes, as [`crate::objects::allocate`] does; null means
    /// ENOMEM.
    pub fn allocate_objects(&self, count: usize, size: usize) -> *mut u8 {
        objects::allocate_in(self.runtime, count, size)
    }

    /// Makes what the heap holds now durable. Threads that write to it are held up for a moment
    /// (`pause`); all others go on.
    ///
    /// # Errors
    /// `CheckpointError`; the last checkpoint is what it was then.
    pub fn checkpoint(&self) -> Result<Checkpoint, CheckpointError> {
        checkpoint::make(*self, false)
    }

    /// Asks for a checkpoint of what the heap holds now, and does not wait for it. Requests that
    /// come before the worker's checkpoint has begun become one. `close` serves what was asked for.
    pub fn checkpoint_async(&self) -> Ticket {
        // A forked child is told when it waits.
        let number = if self.is_open() { self.durable.requests.ask() } else { 0 };
        Ticket { heap: *self, number }
    }

    /// The ticket of this number; none if none was handed out.
    pub fn ticket(&self, number: u64) -> Option<Ticket> {
        let is_one = !self.is_open() || (1..=self.durable.requests.asked()).contains(&number);
        is_one.then_some(Ticket { heap: *self, number })
    }

    /// The newest checkpoint, whichever thread made it.
    ///
    /// # Errors
    /// Why the worker failed to make one, if it has made none since.
    pub fn newest_checkpoint(&self) -> Result<Checkpoint, CheckpointError> {
        self.pager()?;
        self.durable.requests.newest()
    }

    /// Makes a checkpoint and closes the heap: its memory is not there any more. It holds what was
    /// asked for as well. If the checkpoint fails the heap stays open. None is made of a heap that
    /// was opened for reading alone.
    ///
    /// # Errors
    /// As `checkpoint`.
    ///
    /// # Safety
    /// No thread uses the heap, its memory or this handle any more.
    pub unsafe fn close(self) -> Result<Checkpoint, CheckpointError> {
        self.pager()?;
        self.durable.requests.pause();
        let made = match self.is_read_only() {
            true => Checkpoint::default(),
            false => checkpoint::make(self, true).inspect_err(|_| self.durable.requests.go_on())?,
        };
        // SAFETY: the caller's promise.
        unsafe { self.abandon() };
        Ok(made)
    }

    /// Closes the heap without a checkpoint: what was changed since the last one is lost, and what
    /// was asked for and not begun.
    ///
    /// # Safety
    /// As `close`.
    pub unsafe fn abandon(self) {
        let _inside = Inside::enter();
        self.durable.requests.pause();
        self.durable.requests.end();
        let changing = hold_durable();
        while self.runtime.threads.running.load(Ordering::SeqCst) > 0 {
            if let Some(pager) = self.runtime.pager() {
                pager.end_work();
            }
            thread::sleep(CLOSE_PAUSE);
        }
        // They have ended, or are about to: their stacks go back.
        for thread in self.runtime.threads.to_join.lock().drain(..) {
            let _ = thread.join();
        }
        changing.remove(self.runtime);
        if let Some(main) = running() {
            take_back(main, self.durable.borrowed);
        }
        let (base, length) = (self.runtime.region_base, self.runtime.heap.region_bytes());
        // SAFETY: by the caller's promise nobody uses it; the workers have ended.
        unsafe {
            discard(self.runtime);
            let _ = mapping::unmap(base as *mut u8, length);
        }
    }
}

/// The request for a checkpoint.
#[derive(Clone, Copy)]
#[must_use = "only who waits learns whether the checkpoint was made"]
pub struct Ticket {
    heap: DurableHeap,
    number: u64,
}

impl Ticket {
    /// Its number, from 1 on; they grow.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until a checkpoint holds what the heap held at the request. Answers the newest one.
    ///
    /// # Errors
    /// Why it could not be made; the last checkpoint is what it was. If a later one has been made
    /// by now there is no error: that one holds it, too.
    pub fn wait(&self) -> Result<Checkpoint, CheckpointError> {
        self.heap.pager()?;
        self.heap.durable.requests.wait(self.number)
    }
}

/// Drops a durable runtime.
///
/// # Safety
/// Nobody uses it any more, and it was made by `open`.
pub(crate) unsafe fn discard(runtime: &'static Runtime) {
    let boxed = core::ptr::from_ref(runtime).cast_mut();
    // SAFETY: both were boxed, and by the caller's promise nobody uses them. The pager refers to
    // the heap, so it goes first.
    unsafe {
        if let Some(pager) = runtime.pager() {
            drop(Box::from_raw(core::ptr::from_ref(pager).cast_mut()));
        }
        drop(Box::from_raw(boxed));
    }
}
