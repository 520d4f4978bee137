//! AIO: the kernel's older way to have several reads and writes of a file under way.
//!
//! It is allowed where io_uring is not, as by the seccomp profiles of Docker and Podman. A request
//! of a file that is open with O_DIRECT is under way when `submit` returns; one that goes through
//! the page cache is over by then.
//!
//! A context is its address space's: before the kernel gives that up, and with it the mappings and
//! the files that they hold open, it waits for every request (`exit_aio`, before `exit_mmap`).
//!
//! Guarantees: the kernel's whole answers.
//! Never: allocates | changes errno.
//! Threads: one at a time for each context, also in a signal handler. A child of a fork has no use
//! for its parent's: the kernel answers EINVAL there.

use crate::errno::{Errno, Result};
use crate::raw_call::{raw_call, raw_call_again};
use std::os::fd::RawFd;

const OPCODE_READ: u16 = 0; // IOCB_CMD_PREAD
const OPCODE_WRITE: u16 = 1; // IOCB_CMD_PWRITE

/// A request: the kernel's `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

/// An answer: the kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Event {
    data: u64,
    control: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Control>() == 64 && size_of::<Event>() == 32);

/// What to do between a file and memory, and the number by which its answer is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub buffer: *mut u8,
    pub bytes: usize,
    pub offset: u64,
    pub is_write: bool,
    pub number: usize,
}

impl Control {
    pub(super) fn of(fd: RawFd, piece: Piece) -> Control {
        Control {
            data: piece.number as u64,
            opcode: if piece.is_write { OPCODE_WRITE } else { OPCODE_READ },
            fd: fd as u32,
            buffer: piece.buffer as u64,
            bytes: piece.bytes as u64,
            offset: piece.offset as i64,
            ..Control::default()
        }
    }
}

impl Event {
    /// The number of the request that is over.
    pub(super) fn number(&self) -> usize {
        self.data as usize
    }

    /// Bytes read or written, or a negative errno.
    pub(super) fn result(&self) -> i64 {
        self.result
    }
}

/// A context: what requests are submitted to, and answered by.
#[derive(Debug)]
pub(super) struct Context(usize);

impl Context {
    /// With room for so many requests. ENOSYS, EPERM: the kernel has no such calls, or a sandbox
    /// refuses them. EAGAIN: all processes together have as many as an administrator allows
    /// (fs.aio-max-nr).
    pub(super) fn new(requests: usize) -> Result<Context> {
        let mut context = 0usize;
        // SAFETY: the kernel writes a word.
        unsafe { raw_call!(SYS_io_setup, requests, &raw mut context) }?;
        Ok(Context(context))
    }

    /// Answers how many of the first are under way: at least one, or the error of the first one.
    ///
    /// # Safety
    /// Until their answers are taken the bytes of the requests are there, and are nobody else's to
    /// change, nor to read if the request is a read.
    pub(super) unsafe fn submit(&mut self, controls: &[*const Control]) -> Result<usize> {
        // SAFETY: the kernel reads so many controls, and keeps none; the bytes are the caller's
        // promise.
        unsafe { raw_call_again!(SYS_io_submit, self.0, controls.len(), controls.as_ptr()) }
    }

    /// Sleeps until at least `wanted` requests are over, at most as many as `events` has room for;
    /// answers how many are told.
    pub(super) fn wait(&mut self, wanted: usize, events: &mut [Event]) -> usize {
        let (room, none) = (events.len(), core::ptr::null::<libc::timespec>());
        let wanted = wanted.min(room);
        // SAFETY: room for so many events.
        let got = unsafe {
            raw_call_again!(SYS_io_getevents, self.0, wanted, room, events.as_mut_ptr(), none)
        };
        match got {
            Ok(got) => got.min(room),
            // Nobody knows when the bytes are free again.
            Err(errno) => gone(errno),
        }
    }

    /// In the child of a fork: its parent's is not there.
    pub(super) fn forget(self) {
        core::mem::forget(self);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: no memory arguments; nothing is under way.
        let _ = unsafe { raw_call!(SYS_io_destroy, self.0) };
    }
}

#[cold]
fn gone(errno: Errno) -> ! {
    crate::say!("fatal: requests cannot be waited for: ", errno);
    // SAFETY: no arguments.
    unsafe { libc::abort() }
}
