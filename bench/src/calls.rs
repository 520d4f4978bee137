//! Calls: the operations of a run by deepheap's calls that need no page fault.
//!
//! ```text
//! calls     read: dh_read of the whole object
//!           write: dh_read of the header, dh_write of the header (--whole: of the whole object),
//!           under the lock of the object's stripe
//! batches   reads: one dh_gather of the objects
//!           writes: one dh_gather and one dh_scatter of the headers; an object that is written
//!           twice in a batch counts twice
//! ```
//!
//! Guarantees: as for pointers, every word that was asked for is verified.
//! Never: allocates after `new`.
//! Threads: each has its own calls; `Stripes` are shared.

use core::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use deepheap::objects::{self, ObjectError};

use crate::object::{Mismatch, Objects};
use crate::sizes::WORD_BYTES;
use crate::stream::Operation;

/// Locks for writes, each for many objects.
const STRIPES: usize = 4096;
/// Objects that the fill scatters at a time.
const FILL_BATCH: u64 = 256;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// An object does not hold what was written to it.
    Wrong(Mismatch),
    /// A call was refused: its name, the object, the reason.
    Refused(&'static str, u64, ObjectError),
    /// A call stopped short: its name, the object it stopped at.
    Partial(&'static str, u64),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(mismatch) => write!(f, "WRONG DATA: {mismatch}"),
            Self::Refused(call, object, why) => {
                write!(f, "{call} of object {object} failed: {why:?}")
            }
            Self::Partial(call, object) => write!(f, "{call} stopped at object {object}"),
        }
    }
}

impl From<Mismatch> for Trouble {
    fn from(mismatch: Mismatch) -> Self {
        Self::Wrong(mismatch)
    }
}

/// Locks by object, for writes that are a read and a write.
#[derive(Debug)]
pub struct Stripes(Box<[Mutex<()>]>);

impl Stripes {
    /// All open.
    pub fn new() -> Self {
        Self((0..STRIPES).map(|_| Mutex::new(())).collect())
    }

    /// The lock of an object.
    pub fn lock(&self, object: u64) -> MutexGuard<'_, ()> {
        self.0[object as usize % STRIPES].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls; a door so that tests can stand behind it.
pub trait Door {
    /// As `deepheap::objects::read`.
    ///
    /// # Safety
    /// `object` is live; `buffer` has room for `length` bytes.
    unsafe fn read(
        &self,
        object: *const u8,
        buffer: *mut u8,
        length: usize,
    ) -> Result<(), ObjectError>;

    /// As `deepheap::objects::write`.
    ///
    /// # Safety
    /// `object` is live; `buffer` holds `length` bytes.
    unsafe fn write(
        &self,
        object: *mut u8,
        buffer: *const u8,
        length: usize,
    ) -> Result<(), ObjectError>;

    /// As `deepheap::objects::gather` from offset 0.
    ///
    /// # Safety
    /// The objects are live; `buffer` has room for `length` bytes of each.
    unsafe fn gather(
        &self,
        objects: &[*mut u8],
        length: usize,
        buffer: *mut u8,
    ) -> Result<usize, ObjectError>;

    /// As `deepheap::objects::scatter` from offset 0.
    ///
    /// # Safety
    /// The objects are live; `buffer` holds `length` bytes for each.
    unsafe fn scatter(
        &self,
        objects: &[*mut u8],
        length: usize,
        buffer: *const u8,
    ) -> Result<usize, ObjectError>;
}

/// deepheap's own calls.
#[derive(Clone, Copy, Debug)]
pub struct Heap;

impl Door for Heap {
    unsafe fn read(
        &self,
        object: *const u8,
        buffer: *mut u8,
        length: usize,
    ) -> Result<(), ObjectError> {
        // SAFETY: as the caller promises.
        unsafe { objects::read(object, 0, buffer, length) }
    }

    unsafe fn write(
        &self,
        object: *mut u8,
        buffer: *const u8,
        length: usize,
    ) -> Result<(), ObjectError> {
        // SAFETY: as the caller promises.
        unsafe { objects::write(object, 0, buffer, length) }
    }

    unsafe fn gather(
        &self,
        objects: &[*mut u8],
        length: usize,
        buffer: *mut u8,
    ) -> Result<usize, ObjectError> {
        // SAFETY: as the caller promises.
        unsafe { objects::gather(objects.as_ptr().cast(), objects.len(), 0, length, buffer) }
    }

    unsafe fn scatter(
        &self,
        objects: &[*mut u8],
        length: usize,
        buffer: *const u8,
    ) -> Result<usize, ObjectError> {
        // SAFETY: as the caller promises.
        unsafe { objects::scatter(objects.as_ptr(), objects.len(), 0, length, buffer) }
    }
}

/// One operation, one or two calls.
pub struct Calls<'a, D> {
    door: D,
    stripes: &'a Stripes,
    buffer: Vec<u64>,
    whole: bool,
}

impl<'a, D: Door> Calls<'a, D> {
    /// For objects of `words` words at most.
    pub fn new(door: D, stripes: &'a Stripes, words: usize, whole: bool) -> Self {
        Self { door, stripes, buffer: vec![0; words], whole }
    }

    /// Does one operation; true if it wrote.
    pub fn perform(&mut self, objects: &Objects, operation: Operation) -> Result<bool, Trouble> {
        match operation {
            Operation::Read { object, word } => {
                self.read(objects, object, objects.bytes(object))?;
                objects.check_copy(object, word, &self.buffer)?;
                Ok(false)
            }
            // `Workload::check` lets no scan and no chase come here.
            Operation::Write { object }
            | Operation::Scan { object, .. }
            | Operation::Follow { object, .. } => {
                let _turn = self.stripes.lock(object);
                self.read(objects, object, WORD_BYTES)?;
                let version = objects.version(object, self.buffer[0])? + 1;
                let length = if self.whole {
                    objects.compose(object, version, &mut self.buffer);
                    objects.bytes(object)
                } else {
                    self.buffer[0] = objects.header_of(object, version);
                    WORD_BYTES
                };
                let bytes = self.buffer.as_ptr().cast();
                // SAFETY: the object lives as long as the run, and `length` is at most its size,
                // which is at most that of the buffer.
                unsafe { self.door.write(objects.pointer(object), bytes, length) }
                    .map_err(|why| Trouble::Refused("dh_write", object, why))?;
                Ok(true)
            }
        }
    }

    fn read(&mut self, objects: &Objects, object: u64, length: usize) -> Result<(), Trouble> {
        let buffer = self.buffer.as_mut_ptr().cast();
        // SAFETY: the object lives as long as the run, and `length` is at most its size, which is
        // at most that of the buffer.
        unsafe { self.door.read(objects.pointer(object), buffer, length) }
            .map_err(|why| Trouble::Refused("dh_read", object, why))
    }
}

/// Many operations, three calls.
pub struct Batches<D> {
    door: D,
    /// Bytes of each object that are gathered: the size of the smallest.
    length: usize,
    reads: Vec<(u64, u64)>,
    /// Each object once, and how often it is written.
    writes: Vec<(u64, u64)>,
    pointers: Vec<*mut u8>,
    buffer: Vec<u64>,
}

impl<D: Door> Batches<D> {
    /// Batches of `count` operations at most, on objects of `length` bytes at least.
    pub fn new(door: D, count: usize, length: usize) -> Self {
        Self {
            door,
            length,
            reads: Vec::with_capacity(count),
            writes: Vec::with_capacity(count),
            pointers: Vec::with_capacity(count),
            buffer: vec![0; count * length / WORD_BYTES],
        }
    }

    /// Does all operations; how many of them wrote.
    pub fn perform(&mut self, objects: &Objects, operations: &[Operation]) -> Result<u64, Trouble> {
        self.sort_out(operations);
        self.read(objects)?;
        self.write(objects)
    }

    fn sort_out(&mut self, operations: &[Operation]) {
        self.reads.clear();
        self.writes.clear();
        for operation in operations {
            match *operation {
                Operation::Read { object, word } => self.reads.push((object, word)),
                // `Workload::check` lets no scan and no chase come here.
                Operation::Write { object }
                | Operation::Scan { object, .. }
                | Operation::Follow { object, .. } => self.writes.push((object, 1)),
            }
        }
        self.writes.sort_unstable();
        self.writes.dedup_by(|next, first| {
            let same = next.0 == first.0;
            first.1 += u64::from(same);
            same
        });
    }

    fn read(&mut self, objects: &Objects) -> Result<(), Trouble> {
        if self.reads.is_empty() {
            return Ok(());
        }
        let words = self.length / WORD_BYTES;
        self.pointers.clear();
        self.pointers.extend(self.reads.iter().map(|&(object, _)| objects.pointer(object)));
        let buffer = self.buffer.as_mut_ptr().cast();
        // SAFETY: the objects live as long as the run and have `length` bytes at least; the buffer
        // has room for as many as a batch has operations.
        let done = unsafe { self.door.gather(&self.pointers, self.length, buffer) };
        all("dh_gather", done, self.reads.len(), |at| self.reads[at].0)?;
        for (&(object, word), copy) in self.reads.iter().zip(self.buffer.chunks(words)) {
            // The word may lie beyond what is gathered of each: then one that does not.
            objects.check_copy(object, 1 + (word - 1) % (words as u64 - 1), copy)?;
        }
        Ok(())
    }

    fn write(&mut self, objects: &Objects) -> Result<u64, Trouble> {
        if self.writes.is_empty() {
            return Ok(0);
        }
        self.pointers.clear();
        self.pointers.extend(self.writes.iter().map(|&(object, _)| objects.pointer(object)));
        let count = self.writes.len();
        let headers = self.buffer.as_mut_ptr();
        // SAFETY: as in `read`; a header is one word, and the smallest object has two.
        let done = unsafe { self.door.gather(&self.pointers, WORD_BYTES, headers.cast()) };
        all("dh_gather", done, count, |at| self.writes[at].0)?;
        let mut written = 0;
        for (&(object, times), header) in self.writes.iter().zip(&mut self.buffer) {
            let version = objects.version(object, *header)? + times;
            *header = objects.header_of(object, version);
            written += times;
        }
        let headers = self.buffer.as_ptr();
        // SAFETY: as above; nobody else writes these objects (`Workload::check`).
        let done = unsafe { self.door.scatter(&self.pointers, WORD_BYTES, headers.cast()) };
        all("dh_scatter", done, count, |at| self.writes[at].0)?;
        Ok(written)
    }
}

/// An error unless the call did all of the `count` objects; `name` gives the index of one.
fn all(
    call: &'static str,
    done: Result<usize, ObjectError>,
    count: usize,
    name: impl Fn(usize) -> u64,
) -> Result<(), Trouble> {
    match done {
        Ok(done) if done == count => Ok(()),
        // A call that did some of them tells the reason only when it is made again from there.
        Ok(done) => Err(Trouble::Partial(call, name(done))),
        Err(why) => Err(Trouble::Refused(call, name(0), why)),
    }
}

/// Writes all objects, which have one size, in order, many with each call.
pub fn scatter_all<D: Door>(door: &D, objects: &Objects) -> Result<(), Trouble> {
    let words = objects.words(0) as usize;
    let mut buffer = vec![0; words * FILL_BATCH as usize];
    let mut pointers = Vec::with_capacity(FILL_BATCH as usize);
    for first in (0..objects.count()).step_by(FILL_BATCH as usize) {
        let batch = first..objects.count().min(first + FILL_BATCH);
        pointers.clear();
        pointers.extend(batch.clone().map(|object| objects.pointer(object)));
        for (object, words) in batch.clone().zip(buffer.chunks_mut(words)) {
            objects.compose(object, 0, words);
        }
        // SAFETY: the objects live as long as the run, all have this length, and the buffer holds
        // it for each of them.
        let done = unsafe { door.scatter(&pointers, words * WORD_BYTES, buffer.as_ptr().cast()) };
        all("dh_scatter", done, pointers.len(), |at| first + at as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Placement;
    use crate::sizes::ObjectSize;

    /// Calls on plain memory.
    struct Plain;

    impl Door for Plain {
        unsafe fn read(&self, from: *const u8, to: *mut u8, n: usize) -> Result<(), ObjectError> {
            // SAFETY: as the caller promises.
            unsafe { from.copy_to(to, n) };
            Ok(())
        }

        unsafe fn write(&self, to: *mut u8, from: *const u8, n: usize) -> Result<(), ObjectError> {
            // SAFETY: as the caller promises.
            unsafe { from.copy_to(to, n) };
            Ok(())
        }

        unsafe fn gather(
            &self,
            objects: &[*mut u8],
            length: usize,
            buffer: *mut u8,
        ) -> Result<usize, ObjectError> {
            for (at, object) in objects.iter().enumerate() {
                // SAFETY: as the caller promises.
                unsafe { object.copy_to(buffer.add(at * length), length) };
            }
            Ok(objects.len())
        }

        unsafe fn scatter(
            &self,
            objects: &[*mut u8],
            length: usize,
            buffer: *const u8,
        ) -> Result<usize, ObjectError> {
            for (at, object) in objects.iter().enumerate() {
                // SAFETY: as the caller promises.
                unsafe { object.copy_from(buffer.add(at * length), length) };
            }
            Ok(objects.len())
        }
    }

    /// Runs `check` on 600 objects of `size` in plain memory, not filled.
    fn with_objects(size: &str, check: impl FnOnce(&Objects)) {
        let size: ObjectSize = size.parse().unwrap_or(ObjectSize::Fixed(16));
        let (sizes, count) = (size.sizes(1), 600);
        let places: Vec<u64> = sizes.places(count).collect();
        let mut memory = vec![0_u64; places[count as usize] as usize / WORD_BYTES];
        let base: *mut u8 = memory.as_mut_ptr().cast();
        let each = places[..count as usize].iter().map(|&p| base.wrapping_add(p as usize));
        // SAFETY: the memory outlives the objects and is used through them only.
        check(&unsafe { Objects::new(Placement::Each(each.collect()), sizes, count) });
    }

    fn fill(objects: &Objects) {
        (0..objects.count()).for_each(|object| objects.fill(object, None));
    }

    #[test]
    fn single_calls_read_and_count_writes() {
        for whole in [false, true] {
            with_objects("16-256", |objects| {
                fill(objects);
                let stripes = Stripes::new();
                let mut calls = Calls::new(Plain, &stripes, 32, whole);
                for object in 0..objects.count() {
                    let word = objects.words(object) - 1;
                    let read = Operation::Read { object, word };
                    assert_eq!(calls.perform(objects, read), Ok(false));
                    assert_eq!(calls.perform(objects, Operation::Write { object }), Ok(true));
                    assert_eq!(calls.perform(objects, Operation::Write { object }), Ok(true));
                    assert_eq!(calls.perform(objects, read), Ok(false));
                    assert_eq!(objects.audit(object), Ok(2));
                }
            });
        }
    }

    #[test]
    fn batches_read_all_and_count_objects_that_come_twice() {
        with_objects("24-256", |objects| {
            fill(objects);
            let mut batches = Batches::new(Plain, 64, 24);
            let read = |object| Operation::Read { object, word: objects.words(object) - 1 };
            let write = |object| Operation::Write { object };
            let batch = [read(7), write(9), read(7), write(3), write(9), write(9), read(599)];
            assert_eq!(batches.perform(objects, &batch), Ok(4));
            assert_eq!(objects.audit(9), Ok(3));
            assert_eq!(objects.audit(3), Ok(1));
            assert_eq!(objects.audit(7), Ok(0));
            assert_eq!(batches.perform(objects, &[read(1)]), Ok(0));
        });
    }

    #[test]
    fn a_batch_finds_wrong_data() {
        with_objects("128", |objects| {
            fill(objects);
            // SAFETY: inside the memory of the test.
            unsafe { objects.pointer(5).add(8).write(0xFF) };
            let mut batches = Batches::new(Plain, 64, 128);
            let batch = [4, 5].map(|object| Operation::Read { object, word: 1 });
            assert!(matches!(batches.perform(objects, &batch), Err(Trouble::Wrong(_))));
        });
    }

    #[test]
    fn a_scattered_fill_is_the_fill() {
        with_objects("128", |objects| {
            assert_eq!(scatter_all(&Plain, objects), Ok(()));
            assert!((0..objects.count()).all(|object| objects.audit(object) == Ok(0)));
        });
    }
}
