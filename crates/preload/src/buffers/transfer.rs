//! Transfer: calls that move many bytes, like `read`, `write`, `send` and `recv`.
//!
//! Guarantees:
//! - The call moves what the kernel would have moved with every page resident. If it stopped at an
//!   evicted page it goes on, for files, block and character devices and blocking streams. Any
//!   other short count is the answer.
//! - Where the kernel drops a message that it cannot copy out (datagrams, eventfd, signalfd,
//!   inotify) nothing is lost.
//! - Up to `PINNED_MAX` bytes to a file are written by one call; to a stream, too, while calls
//!   have little pinned.
//! - Buffers larger than the budget work: `PINNED_MAX` bytes are pinned at a time. Calls that may
//!   wait on streams have a quarter of the page buffer pinned together, and `PINNED_LEAST` each:
//!   they go on in smaller pieces.
//! - Under O_DIRECT every buffer is pinned before the device sees it.
//! - A call that is under way when management begins goes on from where it was stopped. Of a
//!   message that it receives then the first `EAGER` bytes are safe.
//!
//! Never: waits for input with more than `EAGER` bytes pinned, except for a datagram, or with
//! MSG_WAITALL (`PINNED_MAX`).
//! Threads: any.
//!
//! Two differences from the kernel: a signal whose handler restarts calls may come between two
//! pieces of one blocking call; and a blocking write to a stream that was short as management
//! began goes on, since it cannot tell why it was short.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

use deepheap::internal::Hold;
use libc::{socklen_t, ssize_t};

use crate::buffers::pins::{PINNED_LEAST, PINNED_MAX, Pins};
use crate::real::real;
use crate::seam;

/// The most bytes that are pinned for a read that may wait, and held for one that begins before
/// management does.
pub const EAGER: usize = 64 * 1024;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the descriptor into memory; a short count is an answer.
    Read,
    /// From the descriptor into memory, and the program asked for all of it (MSG_WAITALL).
    ReadAll,
    /// As `Read`, and the bytes stay there (MSG_PEEK): a second call would read them again.
    Peek,
    /// From memory to the descriptor.
    Write,
}

/// The treatment of a transfer that stops in the middle, by descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// A file or block device: a short count means the end.
    File,
    /// The same, opened with O_DIRECT: the device writes to physical pages.
    DirectFile,
    /// A pipe or stream socket.
    Stream,
    /// A character device.
    Character,
    /// One message a call; lost if it cannot be copied.
    Message,
}

/// Kernel file systems where a short read does not mean the end of the file.
const SYNTHETIC: [i64; 7] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x0063_6770,
    0x6367_7270_u32 as i64,
    0x7363_6673,
];

impl Nature {
    /// Asks the kernel; changes errno.
    fn of(descriptor: c_int) -> Nature {
        let Some(status) = status_of(descriptor) else { return Nature::Message };
        match status.st_mode & libc::S_IFMT {
            libc::S_IFREG if is_synthetic(descriptor) => Nature::Stream,
            libc::S_IFREG | libc::S_IFBLK if is_direct(descriptor) => Nature::DirectFile,
            libc::S_IFREG | libc::S_IFBLK => Nature::File,
            libc::S_IFIFO => Nature::Stream,
            libc::S_IFSOCK if is_stream(descriptor) => Nature::Stream,
            libc::S_IFCHR => Nature::Character,
            _ => Nature::Message,
        }
    }
}

/// The status of a descriptor, from the kernel.
pub fn status_of(descriptor: c_int) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    let fstat = real!(fstat: fn(c_int, *mut libc::stat) -> c_int);
    // SAFETY: `status` has room for the answer; zeroed is a valid value of it.
    unsafe { (fstat(descriptor, status.as_mut_ptr()) == 0).then(|| status.assume_init()) }
}

fn is_synthetic(descriptor: c_int) -> bool {
    let mut status = MaybeUninit::<libc::statfs>::zeroed();
    let fstatfs = real!(fstatfs: fn(c_int, *mut libc::statfs) -> c_int);
    // SAFETY: `status` has room for the answer; zeroed is a valid value of it.
    unsafe {
        fstatfs(descriptor, status.as_mut_ptr()) == 0
            && SYNTHETIC.contains(&status.assume_init().f_type)
    }
}

fn is_stream(descriptor: c_int) -> bool {
    let mut kind: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    let getsockopt = real!(getsockopt: fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int
    );
    let place = (&raw mut kind).cast();
    // SAFETY: `kind` and `len` are places for the answer.
    let asked = unsafe { getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_TYPE, place, &mut len) };
    asked == 0 && kind == libc::SOCK_STREAM
}

fn flags(descriptor: c_int) -> c_int {
    let fcntl = real!(fcntl: fn(c_int, c_int, usize) -> c_int);
    // SAFETY: F_GETFL takes no argument.
    unsafe { fcntl(descriptor, libc::F_GETFL, 0) }
}

fn waits(descriptor: c_int) -> bool {
    flags(descriptor) & libc::O_NONBLOCK == 0
}

fn is_direct(descriptor: c_int) -> bool {
    let flags = flags(descriptor);
    flags != -1 && flags & libc::O_DIRECT != 0
}

/// One transfer over a managed buffer or vector of `len` bytes. The program's own call has moved
/// `done` bytes if management began while it ran, else none.
///
/// `whole` makes the call as the program wrote it. `piece(done, most)` pins up to `most` bytes from
/// offset `done` on, fewer if calls have much pinned, makes the call on them, and returns how many
/// it asked for and what the call answered. `usize::MAX` asks for everything in one call, with
/// `PINNED_MAX` bytes pinned.
pub fn drive(
    descriptor: c_int,
    direction: Direction,
    len: usize,
    mut done: usize,
    whole: &dyn Fn() -> ssize_t,
    piece: &dyn Fn(usize, usize) -> (usize, ssize_t),
) -> ssize_t {
    let is_new = done == 0;
    // A small transfer is pinned at once, without asking what the descriptor is.
    if is_new && (len <= PINNED_LEAST || direction == Direction::Peek) {
        return piece(0, usize::MAX).1;
    }
    let nature = seam::keep_errno(|| Nature::of(descriptor));
    let one_answer = nature == Nature::Stream && direction == Direction::Read;
    if is_new {
        let is_one_call = match nature {
            Nature::Message => true,
            Nature::File => direction == Direction::Write && len <= PINNED_MAX,
            Nature::Stream | Nature::DirectFile | Nature::Character => false,
        };
        if is_one_call {
            return piece(0, usize::MAX).1;
        }
        if nature == Nature::File || one_answer {
            let moved = whole();
            let is_fault = moved < 0 && seam::errno() == libc::EFAULT;
            if (moved < 0 && !is_fault) || (moved >= 0 && one_answer) {
                return moved;
            }
            if is_fault {
                deepheap::internal::count_efault_retry();
            }
            done = moved.max(0) as usize;
        }
    } else if !goes_on(descriptor, nature, direction) {
        return done as ssize_t;
    }
    let most = if one_answer { EAGER } else { PINNED_MAX };
    while done < len {
        let (asked, moved) = piece(done, most);
        if moved < 0 {
            return if done > 0 { done as ssize_t } else { moved };
        }
        done += moved as usize;
        if (moved as usize) < asked || one_answer || asked == 0 {
            break;
        }
    }
    done as ssize_t
}

/// Whether a transfer that stopped short as management began would have moved more.
fn goes_on(descriptor: c_int, nature: Nature, direction: Direction) -> bool {
    match nature {
        Nature::Message => false,
        Nature::File | Nature::DirectFile => direction != Direction::Peek,
        Nature::Stream | Nature::Character => {
            matches!(direction, Direction::Write | Direction::ReadAll) && waits(descriptor)
        }
    }
}

/// Whether the program gets this answer of a call that was made while everything was plain. It does
/// not if management has begun meanwhile and may have stopped the call.
#[inline(always)]
pub fn is_answer(moved: ssize_t) -> bool {
    !deepheap::internal::is_managing() || moved == 0 || (moved < 0 && seam::errno() != libc::EFAULT)
}

/// Makes `call(done, len)` so that the whole buffer is moved as far as the descriptor allows.
#[inline(always)]
pub fn transfer(
    descriptor: c_int,
    direction: Direction,
    buffer: *const c_void,
    len: usize,
    call: impl Fn(usize, usize) -> ssize_t,
) -> ssize_t {
    if !deepheap::internal::may_leave(buffer as usize) {
        return call(0, len);
    }
    let mut done = 0;
    if !deepheap::internal::is_managing() {
        let _held =
            (direction != Direction::Write).then(|| Hold::on(buffer as usize, len.min(EAGER)));
        let moved = call(0, len);
        if is_answer(moved) || moved as usize == len {
            return moved;
        }
        done = moved.max(0) as usize;
    }
    managed(descriptor, direction, buffer as usize, len, done, &call)
}

#[inline(never)]
fn managed(
    descriptor: c_int,
    direction: Direction,
    start: usize,
    len: usize,
    before: usize,
    call: &dyn Fn(usize, usize) -> ssize_t,
) -> ssize_t {
    drive(descriptor, direction, len, before, &|| call(0, len), &|done, most| {
        let mut pins = Pins::new();
        let at = (start + done) as *const u8;
        let asked = match most {
            usize::MAX => {
                pins.bytes(at, len);
                len
            }
            _ => pins.some_bytes(at, (len - done).min(most)),
        };
        (asked, call(done, asked))
    })
}

/// The direction that the flags of a receiving call ask for.
pub fn receiving(flags: c_int) -> Direction {
    if flags & libc::MSG_PEEK != 0 {
        Direction::Peek
    } else if flags & libc::MSG_WAITALL != 0 {
        Direction::ReadAll
    } else {
        Direction::Read
    }
}
