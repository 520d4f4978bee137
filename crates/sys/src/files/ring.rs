//! Ring: many reads or writes in flight at once, through io_uring, or through the kernel's AIO
//! where that is refused (containers, `kernel.io_uring_disabled`).
//!
//! Guarantees: a call returns only when no request of it is in flight, so buffers are borrowed no
//! longer than the call; every request has a result. A request that AIO does not take is made by
//! itself.
//! Never: allocates after `new` | polls a processor idle while it waits.
//! Threads: one at a time for each ring (`&mut`). A child of a fork makes its own.

use crate::errno::{Errno, Result, Saved};
use crate::files::aio::{Context, Control, Event, Piece};
use crate::files::own_descriptor;
use crate::raw_call::raw_call;
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

    /// The rest of the request: where it goes, how long it is, and its place in the file.
    fn rest(&self) -> (*mut u8, u32, u64) {
        let buf = self.buf.wrapping_add(self.done as usize);
        (buf, self.len - self.done, self.offset + u64::from(self.done))
    }

    /// The rest as io_uring wants it.
    fn entry(&self, fd: types::Fd) -> squeue::Entry {
        let (buf, left, offset) = self.rest();
        match self.is_write {
            true => opcode::Write::new(fd, buf, left).offset(offset).build(),
            false => opcode::Read::new(fd, buf, left).offset(offset).build(),
        }
    }

    /// The rest as AIO wants it.
    fn control(&self, fd: RawFd, number: usize) -> Control {
        let (buffer, left, offset) = self.rest();
        let is_write = self.is_write;
        Control::of(fd, Piece { buffer, bytes: left as usize, offset, is_write, number })
    }

    /// Does all of the rest now, by itself.
    fn do_alone(&mut self, fd: RawFd) {
        loop {
            let (buffer, left, offset) = self.rest();
            // SAFETY: the bytes are borrowed for 'a; if it is a write they are only read.
            let answer = unsafe {
                match self.is_write {
                    true => raw_call!(SYS_pwrite64, fd, buffer, left, offset),
                    false => raw_call!(SYS_pread64, fd, buffer, left, offset),
                }
            };
            if self.answer(answer.map_or_else(|errno| -errno.raw(), |bytes| bytes as i32)) {
                return;
            }
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

/// Answers that AIO tells at a time.
const ANSWERS: usize = 64;

/// What has the requests in flight.
#[expect(clippy::large_enum_variant, reason = "there are few rings, and most are the large one")]
enum Means {
    Uring(ManuallyDrop<IoUring>),
    Aio(Context),
}

/// See the file's header.
pub struct Ring {
    means: Means,
    entries: usize,
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ring").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Means::Uring(ring) = &mut self.means else { return };
        own_descriptor::mark(ring.as_raw_fd(), false);
        // As in `new`.
        let _off = cancellation::Off::begin();
        // SAFETY: here only, and nothing uses the ring afterwards.
        unsafe { ManuallyDrop::drop(ring) };
    }
}

impl Ring {
    /// A ring with room for `entries` requests in flight (a power of two up to 4096). Errors:
    /// ENOSYS, EPERM where neither io_uring nor AIO is allowed; EAGAIN where all processes together
    /// have as much AIO as they may (fs.aio-max-nr).
    pub fn new(entries: u32) -> Result<Self> {
        Self::by_uring(entries).or_else(|_| Self::by_aio(entries))
    }

    /// As `new`, through AIO.
    pub fn by_aio(entries: u32) -> Result<Self> {
        let (context, entries) = (Context::new(entries as usize)?, entries as usize);
        Ok(Ring { means: Means::Aio(context), entries })
    }

    fn by_uring(entries: u32) -> Result<Self> {
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
        Ok(Ring { means: Means::Uring(ManuallyDrop::new(ring)), entries })
    }

    /// True if it goes through io_uring.
    pub fn is_uring(&self) -> bool {
        matches!(self.means, Means::Uring(_))
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
            let act = |index: usize, result| act(number * entries + index, result);
            match &mut self.means {
                Means::Uring(ring) => run_by_uring(ring, fd, chunk, wait_for, act),
                Means::Aio(context) => run_by_aio(context, fd, chunk, wait_for, act),
            }
        }
    }
}

/// Does the requests of a chunk, which are no more than the ring has entries.
fn run_by_uring(
    ring: &mut IoUring,
    fd: RawFd,
    chunk: &mut [Request<'_>],
    wait_for: usize,
    mut act: impl FnMut(usize, i32),
) {
    for index in 0..chunk.len() {
        push(ring, fd, chunk, index);
        if (index + 1) % BEGIN_TOGETHER == 0 && index + 1 < chunk.len() {
            // If it is refused, `enter` submits them.
            let _ = ring.submit();
        }
    }
    let mut left = chunk.len();
    while left > 0 {
        enter(ring, left.min(wait_for));
        while let Some((index, answer)) = completion(ring) {
            // If the request is not finished, a part of it is left to do.
            if chunk[index].answer(answer) {
                left -= 1;
                act(index, chunk[index].result);
            } else {
                push(ring, fd, chunk, index);
            }
        }
    }
}

fn push(ring: &mut IoUring, fd: RawFd, chunk: &[Request<'_>], index: usize) {
    let entry = chunk[index].entry(types::Fd(fd)).user_data(index as u64);
    // SAFETY: the buffer is borrowed until `run` returns, and `run` returns when all are over.
    let pushed = unsafe { ring.submission().push(&entry) };
    // At most `entries` of a chunk are unfinished, so there is room.
    assert!(pushed.is_ok(), "more requests than entries");
}

fn completion(ring: &mut IoUring) -> Option<(usize, i32)> {
    let entry: cqueue::Entry = ring.completion().next()?;
    Some((entry.user_data() as usize, entry.result()))
}

/// Submits new requests and waits for at least one answer. Requests in flight borrow buffers, so it
/// cannot return on an error: errors are transient, or the ring is gone.
fn enter(ring: &IoUring, wanted: usize) {
    let Err(error) = ring.submit_and_wait(wanted) else { return };
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

/// Does the requests of a chunk.
fn run_by_aio(
    context: &mut Context,
    fd: RawFd,
    chunk: &mut [Request<'_>],
    wait_for: usize,
    mut act: impl FnMut(usize, i32),
) {
    // Requests that are neither over nor in flight: the first one.
    let mut next = 0;
    let mut in_flight = 0;
    while next < chunk.len() {
        let mut controls = [Control::default(); BEGIN_TOGETHER];
        let mut pointers = [core::ptr::null::<Control>(); BEGIN_TOGETHER];
        let count = (chunk.len() - next).min(BEGIN_TOGETHER);
        for (at, request) in chunk[next..next + count].iter().enumerate() {
            controls[at] = request.control(fd, next + at);
            pointers[at] = &raw const controls[at];
        }
        // SAFETY: the buffers are borrowed until `run` returns, and that is when all are over.
        match unsafe { context.submit(&pointers[..count]) } {
            Ok(taken) if taken > 0 => {
                next += taken;
                in_flight += taken;
            }
            // It takes no such request, or no more of them now. In itself it may well succeed, and
            // else the answer says why not.
            Ok(_) | Err(_) => {
                chunk[next].do_alone(fd);
                act(next, chunk[next].result);
                next += 1;
            }
        }
    }
    while in_flight > 0 {
        let mut events = [Event::default(); ANSWERS];
        let got = context.wait(in_flight.min(wait_for), &mut events);
        for event in &events[..got] {
            in_flight -= 1;
            let index = event.number();
            let request = &mut chunk[index];
            if !request.answer(event.result() as i32) {
                // A part is left: that is rare, and needs no company.
                request.do_alone(fd);
            }
            act(index, request.result);
        }
    }
}
