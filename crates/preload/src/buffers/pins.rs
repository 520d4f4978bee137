//! Pins: the managed buffers of one call, resident until the call is over.
//!
//! Guarantees: they stay resident also if management begins while the call runs. A foreign address
//! costs one compare. All pins end on drop.
//! Never: pins more than `PINNED_MAX` bytes of one buffer.
//! Threads: any; lives on one stack.

use core::ffi::{c_char, c_void};

use deepheap::internal::Hold;

/// The page size of the region.
pub const PAGE: usize = 4096;
/// The most bytes of one buffer that are pinned at a time.
pub const PINNED_MAX: usize = 1 << 20;
/// The bytes that `some_bytes` pins however much is pinned: more than the bytes of a write that a
/// pipe takes as a whole, and than what a terminal answers at a time.
pub const PINNED_LEAST: usize = 8192;
/// The longest string that is pinned whole: what `execve` takes as one argument.
const TEXT_PAGES: usize = 32;
/// The most buffers of one call.
const RANGES: usize = 24;

/// The pinned ranges of one call.
pub struct Pins {
    ranges: [Option<Hold>; RANGES],
    count: usize,
}

impl Pins {
    /// No pins yet.
    pub fn new() -> Pins {
        Pins { ranges: [const { None }; RANGES], count: 0 }
    }

    /// Pins `len` bytes from `start` on, `PINNED_MAX` of them at most.
    #[inline]
    pub fn bytes<T>(&mut self, start: *const T, len: usize) {
        if deepheap::internal::may_leave(start as usize) {
            self.range(start as usize, len.min(PINNED_MAX));
        }
    }

    /// Pins `len` bytes from `start` on, or fewer if calls have much pinned; answers how many.
    pub fn some_bytes<T>(&mut self, start: *const T, len: usize) -> usize {
        let mut len = len.min(PINNED_MAX);
        if !deepheap::internal::may_leave(start as usize) {
            return len;
        }
        while len > PINNED_LEAST {
            if let Some(hold) = Hold::if_few(start as usize, len) {
                self.add(hold);
                return len;
            }
            len = (len / 2).next_multiple_of(PAGE);
        }
        self.bytes(start, len);
        len
    }

    /// Pins the value behind the pointer.
    #[inline]
    pub fn value<T>(&mut self, pointer: *const T) {
        self.bytes(pointer, size_of::<T>());
    }

    /// Pins an array of `count` values.
    #[inline]
    pub fn array<T>(&mut self, pointer: *const T, count: usize) {
        self.bytes(pointer, count.saturating_mul(size_of::<T>()));
    }

    /// Pins a C string.
    #[inline]
    pub fn text(&mut self, string: *const c_char) {
        if deepheap::internal::may_leave(string as usize) {
            self.string(string as usize);
        }
    }

    fn string(&mut self, start: usize) {
        let mut at = start;
        // Page by page, since only the string itself says how long it is.
        for _ in 0..TEXT_PAGES {
            let len = PAGE - at % PAGE;
            // SAFETY: the program's own C string goes on at least to here.
            let end = unsafe { libc::memchr(at as *const c_void, 0, len) };
            at = if end.is_null() { at + len } else { end as usize + 1 };
            if !end.is_null() {
                break;
            }
        }
        self.range(start, at - start);
    }

    #[inline(never)]
    fn range(&mut self, start: usize, len: usize) {
        if len > 0 && self.count < RANGES {
            self.add(Hold::on(start, len));
        }
    }

    fn add(&mut self, hold: Hold) {
        self.ranges[self.count] = Some(hold);
        self.count += 1;
    }
}
