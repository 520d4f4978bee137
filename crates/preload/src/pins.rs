//! Pins: the managed buffers of one call, resident until the call is over.
//!
//! Guarantees: foreign addresses cost one compare; whatever was pinned is unpinned on drop. Made
//! before anything is under management it pins nothing, also not later.
//! Never: pins more than `WINDOW` bytes of one buffer.
//!
//! Threads: any; lives on one stack.

use core::ffi::{c_char, c_void};

/// The page size of the region.
pub const PAGE: usize = 4096;
/// The most bytes of one buffer that are pinned at a time.
pub const WINDOW: usize = 1 << 20;
/// The longest string that is pinned whole: what `execve` takes as one argument.
const TEXT_PAGES: usize = 32;
/// The most buffers of one call.
const RANGES: usize = 24;

/// The pinned ranges of one call.
pub struct Pins {
    ranges: [(usize, usize); RANGES],
    count: usize,
    /// The runtime counts pins only while it manages; what it did not count must not be unpinned.
    counts: bool,
}

impl Pins {
    /// No pins yet.
    pub fn new() -> Pins {
        Pins { ranges: [(0, 0); RANGES], count: 0, counts: deepheap::is_managing() }
    }

    /// Pins `len` bytes from `start` on, `WINDOW` of them at most.
    #[inline]
    pub fn bytes<T>(&mut self, start: *const T, len: usize) {
        if deepheap::owns(start as usize) {
            self.range(start as usize, len.min(WINDOW));
        }
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
        if deepheap::owns(string as usize) {
            self.string(string as usize);
        }
    }

    /// Page by page, since only the string itself says how long it is.
    fn string(&mut self, start: usize) {
        let mut at = start;
        for _ in 0..TEXT_PAGES {
            let len = PAGE - at % PAGE;
            if !self.range(at, len) {
                return;
            }
            // SAFETY: the program's own C string goes on at least to here.
            let end = unsafe { libc::memchr(at as *const c_void, 0, len) };
            if !end.is_null() {
                return;
            }
            at += len;
        }
    }

    fn range(&mut self, start: usize, len: usize) -> bool {
        let merges = self.count > 0 && {
            let (last, bytes) = self.ranges[self.count - 1];
            last + bytes == start && start.is_multiple_of(PAGE)
        };
        if len == 0 || !self.counts || (!merges && self.count == RANGES) {
            return false;
        }
        deepheap::pin(start, len);
        if merges {
            self.ranges[self.count - 1].1 += len;
        } else {
            self.ranges[self.count] = (start, len);
            self.count += 1;
        }
        true
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for (start, len) in &self.ranges[..self.count] {
            deepheap::unpin(*start, *len);
        }
    }
}
