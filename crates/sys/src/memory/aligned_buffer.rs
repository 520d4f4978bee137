//! Aligned buffer: pinned, page-aligned bytes that one thread fills while others read what it
//! has already published.
//!
//! A buffer is a header of fixed length followed by a body. The body is appended to, piece by
//! piece; what has been appended is published at once and does not change until the buffer is
//! cleared. The header is written last, by [`Filler::finish`], which publishes the whole.
//!
//! ```text
//!            0          header         filled            len
//! filling    | hidden   | published    | hidden           |
//! finished   | published               | hidden           |
//! ```
//!
//! | right | how | excludes |
//! |---|---|---|
//! | [`Held`]: read what is published | `hold` | `Closed` |
//! | [`Filler`]: append, finish | `fill` | another `Filler`, `Closed` |
//! | [`Closed`]: clear | `close` | everything else |
//!
//! Guarantees: no published byte changes while a `Held` exists; every call is safe.
//! Never: allocates (after `new`), blocks.
//! Threads: any; every right is taken by one compare-exchange and may be refused.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::errno::Result;
use crate::memory::mapping;

/// Set while a `Closed` exists.
const CLOSED: u32 = 1 << 31;

/// Set while a `Filler` exists.
const FILLING: u32 = 1 << 30;

/// The number of `Held`s is in the bits below `FILLING`.
const HOLDERS: u32 = FILLING - 1;

/// Page-aligned bytes, in their own mapping. See the file's header.
pub struct AlignedBuffer {
    base: *mut u8,
    len: usize,
    header: usize,
    /// `CLOSED`, `FILLING` and the number of `Held`s.
    rights: AtomicU32,
    /// Start of what is published: `header`, or 0 once finished.
    start: AtomicUsize,
    /// End of what is published.
    filled: AtomicUsize,
}

// SAFETY: the mapping belongs to the buffer alone (`new`), and any thread may unmap it.
unsafe impl Send for AlignedBuffer {}

// SAFETY: `&AlignedBuffer` gives out bytes only through `Held` (published bytes, which nobody
// writes: `Filler` writes only outside of `start..filled`, `Closed` moves them only when
// `rights` showed that no `Held` and no `Filler` exists) and through the single `Filler`.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// A buffer of `len` bytes (rounded up to whole pages), the first `header` of which are the
    /// header; empty, its memory not populated yet.
    ///
    /// # Panics
    /// If the header is longer than the buffer.
    pub fn new(len: usize, header: usize) -> Result<Self> {
        assert!(header <= len, "the header must fit in the buffer");
        let len = len.next_multiple_of(4096).max(4096);
        let base = mapping::map_pinned(len)?;
        Ok(Self {
            base,
            len,
            header,
            rights: AtomicU32::new(0),
            start: AtomicUsize::new(header),
            filled: AtomicUsize::new(header),
        })
    }

    /// Bytes of the buffer.
    pub fn capacity(&self) -> usize {
        self.len
    }

    /// All bytes, for a buffer that nobody shares.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `base..base+len` is a live readable and writable mapping (`new`), initialised
        // (anonymous memory is zeroed), and `&mut self` excludes every `Held` and `Filler`.
        unsafe { core::slice::from_raw_parts_mut(self.base, self.len) }
    }

    /// The right to read what is published; refused while the buffer is closed.
    pub fn hold(&self) -> Option<Held<'_>> {
        let taken = self.rights.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |rights| {
            let room = rights & HOLDERS != HOLDERS;
            (rights & CLOSED == 0 && room).then(|| rights + 1)
        });
        taken.ok().map(|_| Held { buffer: self })
    }

    /// The right to append; refused while another has it or the buffer is closed.
    pub fn fill(&self) -> Option<Filler<'_>> {
        let taken = self.rights.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |rights| {
            (rights & (CLOSED | FILLING) == 0).then_some(rights | FILLING)
        });
        taken.ok().map(|_| Filler { buffer: self })
    }

    /// The right to clear; refused while anybody has any other right.
    pub fn close(&self) -> Option<Closed<'_>> {
        self.rights
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| Closed { buffer: self })
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping came from `map_pinned(self.len)` in `new`, is unmapped only here,
        // and `&mut self` shows that no right, and so no reference into it, exists.
        let _ = unsafe { mapping::unmap(self.base, self.len) };
    }
}

/// The right to read what a buffer has published.
pub struct Held<'a> {
    buffer: &'a AlignedBuffer,
}

impl Held<'_> {
    /// The bytes `from..to` of the buffer, if they are published.
    pub fn bytes(&self, from: usize, to: usize) -> Option<&[u8]> {
        // Acquire pairs with the releases in `Filler`: what they wrote is visible.
        let filled = self.buffer.filled.load(Ordering::Acquire);
        let start = self.buffer.start.load(Ordering::Acquire);
        if from > to || from < start || to > filled {
            return None;
        }
        // SAFETY: `start <= from <= to <= filled <= len` (checked above; `Filler::append` keeps
        // `filled <= len`), the range is published, and published bytes are written again only
        // after a `Closed` was given, which this `Held` excludes for the lifetime of the slice.
        Some(unsafe { core::slice::from_raw_parts(self.buffer.base.add(from), to - from) })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.buffer.rights.fetch_sub(1, Ordering::Release);
    }
}

/// The right to append to a buffer.
pub struct Filler<'a> {
    buffer: &'a AlignedBuffer,
}

impl Filler<'_> {
    /// Bytes that can still be appended; none once finished.
    pub fn room(&self) -> usize {
        if self.is_finished() {
            return 0;
        }
        self.buffer.len - self.buffer.filled.load(Ordering::Relaxed)
    }

    /// Where the next append will go.
    pub fn filled(&self) -> usize {
        self.buffer.filled.load(Ordering::Relaxed)
    }

    /// Whether the header has been written, after which nothing can be appended.
    pub fn is_finished(&self) -> bool {
        self.buffer.header > 0 && self.buffer.start.load(Ordering::Relaxed) == 0
    }

    /// Appends and publishes the bytes; returns where they begin.
    ///
    /// # Panics
    /// If there is not enough `room`.
    pub fn append(&mut self, data: &[u8]) -> usize {
        self.append_changed(data, |_| {})
    }

    /// As `append`; `change` changes the copy before it is published.
    ///
    /// # Panics
    /// If there is not enough `room`.
    pub fn append_changed(&mut self, data: &[u8], change: impl FnOnce(&mut [u8])) -> usize {
        assert!(data.len() <= self.room(), "the buffer has no room for the piece");
        let at = self.buffer.filled.load(Ordering::Relaxed);
        // SAFETY: `at + data.len() <= len` by the assertion, so the target is in the mapping;
        // it lies at or above `filled`, which no `Held` shows and only this one `Filler` writes;
        // `data` cannot overlap it, as no reference to unpublished bytes is ever given out.
        unsafe {
            let copy = self.buffer.base.add(at);
            core::ptr::copy_nonoverlapping(data.as_ptr(), copy, data.len());
            // The same bytes: `change` cannot keep the reference, and it ends here.
            change(core::slice::from_raw_parts_mut(copy, data.len()));
        }
        self.buffer.filled.store(at + data.len(), Ordering::Release);
        at
    }

    /// Writes the header and publishes the whole buffer, up to what was appended.
    ///
    /// # Panics
    /// If it was finished before, or the bytes are not exactly the header.
    pub fn finish(&mut self, header: &[u8]) {
        assert!(!self.is_finished(), "the buffer was finished before");
        assert_eq!(header.len(), self.buffer.header, "the header has a fixed length");
        // SAFETY: `header.len() <= len` (`new`); the target lies below `start`, which no `Held`
        // shows until the store below, and only this one `Filler` writes it.
        unsafe {
            core::ptr::copy_nonoverlapping(header.as_ptr(), self.buffer.base, header.len());
        }
        self.buffer.start.store(0, Ordering::Release);
    }
}

impl Drop for Filler<'_> {
    fn drop(&mut self) {
        self.buffer.rights.fetch_and(!FILLING, Ordering::Release);
    }
}

/// The right to clear a buffer; it opens again when this is dropped.
pub struct Closed<'a> {
    buffer: &'a AlignedBuffer,
}

impl Closed<'_> {
    /// Nothing is published any more.
    pub fn clear(&mut self) {
        self.buffer.start.store(self.buffer.header, Ordering::Relaxed);
        self.buffer.filled.store(self.buffer.header, Ordering::Relaxed);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // Release publishes what `clear` stored to the thread that takes the next right.
        self.buffer.rights.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer() -> AlignedBuffer {
        AlignedBuffer::new(4 * 4096, 4096).expect("memory")
    }

    #[test]
    fn what_is_appended_is_readable_at_once_and_the_header_when_finished() {
        let buffer = buffer();
        let mut filler = buffer.fill().expect("free");
        let at = filler.append(&[7; 4096]);
        let held = buffer.hold().expect("open");
        assert_eq!(held.bytes(at, at + 4096), Some(&[7; 4096][..]));
        assert_eq!(held.bytes(0, 4096), None, "the header is hidden");
        assert_eq!(held.bytes(at, at + 4097), None, "beyond what was appended");
        filler.finish(&[1; 4096]);
        assert_eq!(held.bytes(0, 4096), Some(&[1; 4096][..]));
        assert_eq!(filler.room(), 0);
        assert_eq!(held.bytes(0, 1).map(|byte| byte.as_ptr() as usize % 4096), Some(0));
    }

    #[test]
    fn the_rights_exclude_each_other() {
        let buffer = buffer();
        let filler = buffer.fill().expect("free");
        assert!(buffer.fill().is_none() && buffer.close().is_none());
        drop(filler);
        let held = (buffer.hold(), buffer.hold());
        assert!(buffer.close().is_none());
        drop(held);
        let closed = buffer.close().expect("nobody is there");
        assert!(buffer.hold().is_none() && buffer.fill().is_none() && buffer.close().is_none());
        drop(closed);
        assert!(buffer.hold().is_some());
    }

    #[test]
    fn a_cleared_buffer_publishes_nothing() {
        let buffer = buffer();
        let mut filler = buffer.fill().expect("free");
        filler.append(&[7; 4096]);
        filler.finish(&[1; 4096]);
        drop(filler);
        buffer.close().expect("nobody is there").clear();
        let held = buffer.hold().expect("open");
        assert_eq!(held.bytes(0, 1), None);
        assert_eq!(held.bytes(4096, 4097), None);
        assert_eq!(buffer.fill().expect("free").room(), 3 * 4096);
    }
}
