//! Vectors: calls that move many bytes from or to an array of buffers, like `readv` and `writev`.
//!
//! Guarantees: as `transfer`. The array itself may lie in managed memory. `process_vm_readv` and
//! `process_vm_writev` find `PINNED_MAX` bytes of the local buffers resident, and may be short
//! beyond that. So it is with the remote buffers if the process is this one; pages of another
//! process that left RAM are not brought back.
//! Threads: any.

use core::ffi::{c_int, c_ulong};

use libc::{iovec, pid_t, ssize_t};

use crate::buffers::guarded::guard;
use crate::buffers::pins::{PINNED_MAX, Pins};
use crate::buffers::transfer::{Direction, EAGER, drive, is_answer};

/// The most buffers of one piece.
const PIECE_BUFFERS: usize = 16;
/// The most buffers of a vector, and their array.
const RANGES_MAX: usize = libc::UIO_MAXIOV as usize + 1;

/// The program's vector.
#[derive(Clone, Copy)]
pub struct Vector {
    first: *const iovec,
    count: usize,
}

impl Vector {
    /// Wraps the program's arguments; a vector that the kernel will refuse counts as empty.
    pub fn new(first: *const iovec, count: c_int) -> Vector {
        let is_one = !first.is_null() && (0..=libc::UIO_MAXIOV).contains(&count);
        Vector { first, count: if is_one { count as usize } else { 0 } }
    }

    /// One entry of the program's array.
    pub fn entry(&self, index: usize) -> iovec {
        debug_assert!(index < self.count);
        // SAFETY: the program passes `count` entries; this is its own memory, read in user mode.
        unsafe { *self.first.add(index) }
    }

    /// How many buffers.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the vector or a buffer of it is managed.
    pub fn is_managed(&self) -> bool {
        deepheap::internal::may_leave(self.first as usize)
            || (0..self.count)
                .any(|index| deepheap::internal::may_leave(self.entry(index).iov_base as usize))
    }

    /// Whether `drive` asks for all of it and a `Piece` may have less: then the call is made as the
    /// program wrote it. Streams get it if calls have little pinned.
    pub fn goes_whole(&self, done: usize, most: usize) -> bool {
        let (is_long, len) = (self.count > PIECE_BUFFERS, self.len());
        match most {
            usize::MAX => is_long || len > PINNED_MAX,
            _ => done == 0 && is_long && len <= most && deepheap::internal::are_few(len),
        }
    }

    /// The bytes of all buffers.
    pub fn len(&self) -> usize {
        (0..self.count).fold(0, |sum: usize, index| sum.saturating_add(self.entry(index).iov_len))
    }
}

/// A part of a vector, pinned: at most `PIECE_BUFFERS` buffers.
pub struct Piece {
    parts: [iovec; PIECE_BUFFERS],
    count: usize,
    bytes: usize,
    _pins: Pins,
}

impl Piece {
    /// The part that starts `done` bytes into the vector and has at most `most` bytes, fewer if
    /// calls have much pinned and `most` is a number.
    pub fn of(vector: Vector, done: usize, most: usize) -> Piece {
        let mut pins = Pins::new();
        let empty = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let mut parts = [empty; PIECE_BUFFERS];
        let (mut count, mut bytes, mut skip) = (0, 0, done);
        for index in 0..vector.count() {
            let entry = vector.entry(index);
            if skip >= entry.iov_len {
                skip -= entry.iov_len;
                continue;
            }
            let wanted = (entry.iov_len - skip).min(most.min(PINNED_MAX) - bytes);
            let start = entry.iov_base.wrapping_byte_add(skip);
            skip = 0;
            let len = if most == usize::MAX {
                pins.bytes(start.cast_const(), wanted);
                wanted
            } else {
                pins.some_bytes(start.cast_const(), wanted)
            };
            parts[count] = iovec { iov_base: start, iov_len: len };
            count += 1;
            bytes += len;
            let is_full = count == PIECE_BUFFERS || bytes == most.min(PINNED_MAX);
            if is_full || len < wanted {
                break;
            }
        }
        Piece { parts, count, bytes, _pins: pins }
    }

    /// The buffers of this part.
    pub fn parts(&self) -> (*const iovec, c_int) {
        (self.parts.as_ptr(), self.count as c_int)
    }

    /// The bytes of this part.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Pins of a whole vector, for a message that must go in one call.
pub struct Held {
    vector: Vector,
    /// A bit for the array and each buffer that is pinned.
    pinned: [u64; RANGES_MAX.div_ceil(64)],
    _early: Option<Piece>,
}

impl Held {
    /// Pins the vector and its buffers, `PINNED_MAX` bytes of them at most; before management
    /// begins, holds the first `EAGER` bytes.
    pub fn all(vector: Vector) -> Held {
        let mut pinned = [0; RANGES_MAX.div_ceil(64)];
        let counts = deepheap::internal::is_managing();
        if counts {
            for (index, (start, len)) in Held::ranges(vector).enumerate() {
                pinned[index / 64] |=
                    u64::from(deepheap::internal::pin(start, len)) << (index % 64);
            }
        }
        let early = (!counts).then(|| Piece::of(vector, 0, EAGER));
        Held { vector, pinned, _early: early }
    }

    fn ranges(vector: Vector) -> impl Iterator<Item = (usize, usize)> {
        let entries = (0..vector.count).map(move |index| {
            let entry = vector.entry(index);
            (entry.iov_base as usize, entry.iov_len)
        });
        let array = (vector.first as usize, vector.count * size_of::<iovec>());
        core::iter::once(array)
            .chain(entries)
            .filter(|(start, len)| *len > 0 && deepheap::internal::may_leave(*start))
            .scan(PINNED_MAX, |left, (start, len)| {
                let len = len.min(*left);
                *left -= len;
                (len > 0).then_some((start, len))
            })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (index, (start, len)) in Held::ranges(self.vector).enumerate() {
            if self.pinned[index / 64] >> (index % 64) & 1 != 0 {
                deepheap::internal::unpin(start, len);
            }
        }
    }
}

/// Makes `call(first, count, done)` so that all buffers are moved as far as the descriptor allows.
#[inline(always)]
pub fn transfer(
    descriptor: c_int,
    direction: Direction,
    first: *const iovec,
    count: c_int,
    call: impl Fn(*const iovec, c_int, usize) -> ssize_t,
) -> ssize_t {
    let vector = Vector::new(first, count);
    let mut done = 0;
    if !deepheap::internal::is_managing() {
        let _held = (direction != Direction::Write).then(|| Piece::of(vector, 0, EAGER));
        let moved = call(first, count, 0);
        if is_answer(moved) || moved as usize == vector.len() {
            return moved;
        }
        done = moved.max(0) as usize;
    }
    managed(descriptor, direction, vector, done, &|| call(first, count, 0), &call)
}

/// As `transfer`, once the heap is managed: `before` bytes were moved by then. `whole` makes the
/// call as the program wrote it.
#[inline(never)]
pub fn managed(
    descriptor: c_int,
    direction: Direction,
    vector: Vector,
    before: usize,
    whole: &dyn Fn() -> ssize_t,
    call: &dyn Fn(*const iovec, c_int, usize) -> ssize_t,
) -> ssize_t {
    if !vector.is_managed() {
        return if before > 0 { before as ssize_t } else { whole() };
    }
    drive(descriptor, direction, vector.len(), before, whole, &|done, most| {
        if vector.goes_whole(done, most) {
            let _held = Held::all(vector);
            return (vector.len(), whole());
        }
        let piece = Piece::of(vector, done, most);
        let (parts, parts_count) = piece.parts();
        (piece.bytes(), call(parts, parts_count, done))
    })
}

/// `process_vm_readv` or `process_vm_writev`, where `call` is libc's with the program's vectors.
pub fn between(
    process: pid_t,
    local: (*const iovec, c_ulong),
    remote: (*const iovec, c_ulong),
    call: impl Fn() -> ssize_t,
) -> ssize_t {
    let vector = |(first, count): (*const iovec, c_ulong)| {
        Vector::new(first, c_int::try_from(count).unwrap_or(0))
    };
    // SAFETY: no arguments.
    let is_own = unsafe { process == libc::getpid() || process == libc::gettid() };
    let _local = Held::all(vector(local));
    let _remote = is_own.then(|| Held::all(vector(remote)));
    guard(|pins| pins.array(remote.0, remote.1 as usize), call)
}
