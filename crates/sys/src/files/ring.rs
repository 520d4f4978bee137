//! Ring: many reads or writes in flight at once, through io_uring.
//!
//! Guarantees: a call returns only when no request of it is in flight, so buffers are borrowed no
//! longer than the call; every request has a result.
//! Never: allocates after `new` | polls a processor idle while it waits.
//! Threads: one at a time for each ring (`&mut`). A child of a fork makes its own.

use crate::errno::{Errno, Result, Saved};
use crate::files::own_descriptor;
use crate::threads::cancellation;
use crate::threads::signals::NoFileSizeSignal;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::os::fd::{AsRawFd, RawFd};

/// One read or write, and its result.
#[derive(Debug)]
pub struct Request<'a> {
    offset: u64,
    /// Of a write, it is only read.
    buf: *mut u8,
    len: u32,
    done: u32,
    result: i32,
    is_write: bool,
    _borrows: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is a borrow of bytes, which may be sent.
unsafe impl Send for Request<'_> {}

impl<'a> Request<'a> {
    /// A request to fill `buf` from `offset`. At most 1 GiB.
    pub fn read(offset: u64, buf: &'a mut [u8]) -> Self {
        // SAFETY: a mutable borrow for 'a is as much as the contract asks.
        unsafe { Self::read_raw(offset, buf.as_mut_ptr(), buf.len()) }
    }

    /// A request to fill `len` bytes at `buf` from `offset`.
    ///
    /// # Safety
    /// The bytes are writable and used by nobody else during 'a.
    pub unsafe fn read_raw(offset: u64, buf: *mut u8, len: usize) -> Self {
        let (len, is_write) = (len.min(REQUEST_BYTES_MAX) as u32, false);
        Request { offset, buf, len, done: 0, result: 0, is_write, _borrows: PhantomData }
    }

    /// A request to write `buf` at `offset`. At most 1 GiB.
    pub fn write(offset: u64, buf: &'a [u8]) -> Self {
        // SAFETY: nothing is stored there, for it is a write.
        let read = unsafe { Self::read_raw(offset, buf.as_ptr().cast_mut(), buf.len()) };
        Request { is_write: true, ..read }
    }

    /// Merges another read into this one, if it begins where this one ends, in the file and in
    /// memory. Otherwise gives the buffer back.
    pub fn extend(
        &mut self,
        offset: u64,
        buf: &'a mut [u8],
    ) -> core::result::Result<(), &'a mut [u8]> {
        let follows = offset == self.offset + u64::from(self.len)
            && buf.as_mut_ptr() == self.buf.wrapping_add(self.len as usize)
            && self.len as usize + buf.len() <= REQUEST_BYTES_MAX;
        if !follows {
            return Err(buf);
        }
        // Two mutable borrows for 'a, side by side, are one of their sum.
        self.len += buf.len() as u32;
        Ok(())
    }

    /// Bytes read (less than asked only at the end of the file) or written (always all), or a
    /// negative errno.
    pub fn result(&self) -> i32 {
        self.result
    }

    /// The rest of the request as the kernel wants it.
    fn entry(&self, fd: types::Fd) -> squeue::Entry {
        let buf = self.buf.wrapping_add(self.done as usize);
        let (left, offset) = (self.len - self.done, self.offset + u64::from(self.done));
        match self.is_write {
            true => opcode::Write::new(fd, buf, left).offset(offset).build(),
            false => opcode::Read::new(fd, buf, left).offset(offset).build(),
        }
    }

    /// Takes an answer in. True: it is over.
    fn answer(&mut self, answer: i32) -> bool {
        match answer {
            _ if answer == -libc::EINTR || answer == -libc::EAGAIN => return false,
            // A device that takes nothing and gives no reason would be asked for ever.
            0 if self.done < self.len && self.is_write => self.result = -libc::EIO,
            // The file ends here.
            0 if self.done < self.len => self.result = self.done as i32,
            1.. => {
                self.done += (answer as u32).min(self.len - self.done);
                if self.done < self.len {
                    return false;
                }
                self.result = self.len as i32;
            }
            _ => self.result = answer,
        }
        true
    }
}

/// Bytes of the longest request.
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// So many requests are handed to the device together: it begins with them while the kernel still
/// makes the others of the call.
const BEGIN_TOGETHER: usize = 16;

/// An io_uring instance.
pub struct Ring {
    ring: ManuallyDrop<IoUring>,
    entries: usize,
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ring").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        own_descriptor::mark(self.ring.as_raw_fd(), false);
        // As in `new`.
        let _off = cancellation::Off::begin();
        // SAFETY: here only, and nothing uses the ring afterwards.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

impl Ring {
    /// A ring with room for `entries` requests in flight (a power of two up to 4096). Errors:
    /// ENOSYS, EPERM where io_uring is not allowed; ENOMEM under a small memlock limit of old
    /// kernels.
    pub fn new(entries: u32) -> Result<Self> {
        // The crate closes descriptors through `std`.
        let _off = cancellation::Off::begin();
        let builder = IoUring::builder();
        // Interrupt the waiting thread less (5.19); older kernels do without.
        let ring = builder
            .clone()
            .setup_coop_taskrun()
            .build(entries)
            .or_else(|_| builder.build(entries))?;
        let mut probe = io_uring::Probe::new();
        // Plain reads and writes exist since 5.6, and so does the probe.
        let known = ring.submitter().register_probe(&mut probe).is_ok()
            && probe.is_supported(opcode::Read::CODE)
            && probe.is_supported(opcode::Write::CODE);
        if !known {
            return Err(Errno::ENOSYS);
        }
        // Move the ring to a high descriptor, which the program does not close by accident.
        let parameters = ring.params().clone();
        let ring = match own_descriptor::high_duplicate(ring.as_raw_fd()) {
            // SAFETY: a descriptor of this very ring, nobody else's, with its own parameters. The
            // low one goes away with its mapping, in which nothing was ever submitted.
            Some(high) => unsafe { IoUring::from_fd(high.into_raw(), parameters) }?,
            None => ring,
        };
        let entries = ring.params().sq_entries() as usize;
        own_descriptor::mark(ring.as_raw_fd(), true);
        Ok(Ring { ring: ManuallyDrop::new(ring), entries })
    }

    /// True if this process may use io_uring.
    pub fn available() -> bool {
        Ring::new(2).is_ok()
    }

    /// Does all and waits for all. Each request's `result` tells how it ended.
    pub fn do_all(&mut self, fd: RawFd, requests: &mut [Request<'_>]) {
        self.run(fd, requests, usize::MAX, |_, _| {});
    }

    /// Does all, and calls `act` for each request, by its index, with its result as soon as it is
    /// over, while others are in flight.
    ///
    /// `act` must not unwind: the buffers of the others are being written.
    pub fn do_each(
        &mut self,
        fd: RawFd,
        requests: &mut [Request<'_>],
        act: impl FnMut(usize, i32),
    ) {
        self.run(fd, requests, 1, act);
    }

    /// Sleeps for at most `wait_for` of the requests at a time.
    fn run(
        &mut self,
        fd: RawFd,
        requests: &mut [Request<'_>],
        wait_for: usize,
        mut act: impl FnMut(usize, i32),
    ) {
        let _errno = Saved::new();
        let has_writes = requests.iter().any(|request| request.is_write);
        let _no_signal = has_writes.then(NoFileSizeSignal::new);
        let entries = self.entries;
        for (number, chunk) in requests.chunks_mut(entries).enumerate() {
            for index in 0..chunk.len() {
                self.push(fd, chunk, index);
                if (index + 1) % BEGIN_TOGETHER == 0 && index + 1 < chunk.len() {
                    // If it is refused, `enter` submits them.
                    let _ = self.ring.submit();
                }
            }
            let mut left = chunk.len();
            while left > 0 {
                self.enter(left.min(wait_for));
                while let Some((index, answer)) = self.completion() {
                    // If the request is not finished, a part of it is left to do.
                    if chunk[index].answer(answer) {
                        left -= 1;
                        act(number * entries + index, chunk[index].result);
                    } else {
                        self.push(fd, chunk, index);
                    }
                }
            }
        }
    }

    fn push(&mut self, fd: RawFd, chunk: &[Request<'_>], index: usize) {
        let entry = chunk[index].entry(types::Fd(fd)).user_data(index as u64);
        // SAFETY: the buffer is borrowed until `run` returns, and `run` returns when all are over.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // At most `entries` of a chunk are unfinished, so there is room.
        assert!(pushed.is_ok(), "more requests than entries");
    }

    fn completion(&mut self) -> Option<(usize, i32)> {
        let entry: cqueue::Entry = self.ring.completion().next()?;
        Some((entry.user_data() as usize, entry.result()))
    }

    /// Submits new requests and waits for at least one answer. Requests in flight borrow buffers,
    /// so it cannot return on an error: errors are transient, or the ring is gone.
    fn enter(&mut self, wanted: usize) {
        let Err(error) = self.ring.submit_and_wait(wanted) else { return };
        let errno = Errno::from(error);
        match errno.raw() {
            libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::ETIME => {
                // SAFETY: no arguments.
                unsafe { libc::sched_yield() };
            }
            _ => {
                crate::say!("fatal: io_uring is gone: ", errno);
                // SAFETY: no arguments.
                unsafe { libc::abort() }
            }
        }
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}
