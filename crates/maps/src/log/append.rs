//! Append: records come into the frame that is being filled, frames into the file.
//!
//! The frame is in memory that all processes share: what is in it is in RAM, and survives its
//! process. It is written when it is full, or when a sync commits.
//!
//! Guarantees: frames are written one behind the other, each before the next is begun. A process
//! that dies at any point leaves a frame that the next one writes again, at the same place.
//! Never: allocates | overwrites a frame that recovery needs.
//! Threads: any, also in a signal handler, with all signals blocked.

use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use deepheap_store::device::{Read, Write};
use deepheap_store::format::map_log::{FRAME_BYTES, FrameNote, Record, record_bytes};
use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;

use crate::log::Log;
use crate::log::tables::{Logged, Tail};
use crate::moves::staging::SCRATCH_PAGES;
use crate::region::backing::ReadError;
use crate::tables::member::Held;

/// Pages that a record can lie on.
pub(crate) const RECORD_PAGES: usize = SCRATCH_PAGES;

/// The frame that is being filled, which this thread has alone.
pub(crate) struct Frame<'a> {
    log: Log<'a>,
    _held: Held<'a>,
}

impl<'a> Log<'a> {
    /// Takes the frame; waits for it.
    pub(crate) fn frame(&self) -> Frame<'a> {
        Frame { log: *self, _held: self.region.tables.hold(&self.words.frame_lock) }
    }

    /// Appends a record; answers its position. ENOSPC: the log is full.
    pub(crate) fn append(&self, page: u32, pieces: u16, bytes: &[u8]) -> Result<u64, Errno> {
        self.frame().append(page, pieces, bytes)
    }
}

impl Frame<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        let frame = self.log.region.tables.log_frame();
        // SAFETY: so many bytes of the tables, which the holder of the lock has alone.
        unsafe { core::slice::from_raw_parts_mut(frame, FRAME_BYTES) }
    }

    fn append(&mut self, page: u32, pieces: u16, bytes: &[u8]) -> Result<u64, Errno> {
        let length = record_bytes(pieces);
        if Tail::of(self.log.words).fill + length > FRAME_BYTES {
            self.seal(None)?;
        }
        let tail = Tail::of(self.log.words);
        let (key, position) = (self.log.key(), tail.end());
        let into = &mut self.bytes()[tail.fill..tail.fill + length];
        Record::write(into, key, position, (page, pieces), bytes);
        // Before this store the record is not there.
        Tail { fill: tail.fill + length, ..tail }.store(self.log.words);
        Ok(position)
    }

    /// Writes the frame, and begins the next one; answers where what it holds ends. ENOSPC: the log
    /// is full.
    pub(crate) fn seal(&mut self, commits: Option<Range<u32>>) -> Result<u64, Errno> {
        let (words, shape) = (self.log.words, *self.log.file.shape());
        let tail = Tail::of(words);
        if !shape.has_room(tail.position, words.start.load(Acquire)) {
            return Err(Errno::ENOSPC);
        }
        let acknowledged = words.acknowledged.load(Relaxed);
        let note = FrameNote { position: tail.position, bytes: tail.fill, commits, acknowledged };
        let key = self.log.key();
        let length = tail.fill.next_multiple_of(PAGE);
        let device = self.log.file.device();
        let frame = &mut self.bytes()[..length];
        frame[tail.fill..].fill(0);
        note.seal(key, frame);
        let mut writes = [Write::new(shape.place_of(tail.position), frame)];
        device.write(&mut writes);
        writes[0].result?;
        Tail::empty(shape.frame_after(tail.end())).store(words);
        Ok(tail.end())
    }

    pub(crate) fn tail(&self) -> Tail {
        Tail::of(self.log.words)
    }
}

impl Log<'_> {
    /// Puts a page's last record over the base's bytes of it. The caller owns its shard: then the
    /// record stays where it is.
    pub(crate) fn apply(
        &self,
        page: u32,
        logged: Logged,
        into: &mut [u8],
        scratch: &mut [u8],
    ) -> Result<(), ReadError> {
        // A page whose record is a part is in RAM.
        if !logged.is_whole {
            return Err(ReadError::Damaged);
        }
        let put = |bytes: &[u8], into: &mut [u8]| {
            let record = Record::read(self.key(), logged.position, bytes);
            let record = record.filter(|it| it.page == page && it.pieces == logged.pieces);
            record.map(|record| record.apply(into)).ok_or(ReadError::Damaged)
        };
        if logged.position >= Tail::of(self.words).position {
            let mut frame = self.frame();
            let tail = frame.tail();
            if logged.position >= tail.position {
                let at = (logged.position - tail.position) as usize;
                return put(frame.bytes().get(at..tail.fill).unwrap_or(&[]), into);
            }
        }
        let place = self.file.shape().place_of(logged.position);
        let at = place as usize % PAGE;
        let length = (at + record_bytes(logged.pieces)).next_multiple_of(PAGE);
        let mut once = || {
            let mut reads = [Read::new(place - at as u64, &mut scratch[..length])];
            self.file.device().read(&mut reads);
            reads[0].result.map_err(ReadError::Io)?;
            put(&scratch[at..length], into)
        };
        once().or_else(|_| once())
    }
}
