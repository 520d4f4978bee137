//! Access: how a thread reaches the objects, by pointers, by calls, or by batches of calls.
//!
//! Guarantees: the same operations in the same order whichever way they are done; every word read
//! is verified; writes of different threads to one object all count.
//! Never: allocates after `new`.
//! Threads: each has its own `Access`.

use crate::calls::{Batches, Calls, Heap, Stripes, Trouble};
use crate::object::{Mismatch, Objects};
use crate::sizes::WORD_BYTES;
use crate::stream::{Operation, Stream};
use crate::workload::Workload;

enum How<'a> {
    Pointers,
    Whole { stripes: &'a Stripes, buffer: Vec<u64> },
    Calls(Calls<'a, Heap>),
    Batches(Batches<Heap>),
}

/// One thread's way to the objects.
pub struct Access<'a> {
    objects: &'a Objects,
    how: How<'a>,
    batch: u64,
    drawn: Vec<Operation>,
}

impl<'a> Access<'a> {
    /// The way the workload asks for.
    pub fn new(workload: &Workload, objects: &'a Objects, stripes: &'a Stripes) -> Self {
        let size = workload.object_bytes;
        let words = size.most_bytes() as usize / WORD_BYTES;
        let how = match workload.gather {
            Some(count) => {
                How::Batches(Batches::new(Heap, count as usize, size.least_bytes() as usize))
            }
            None if workload.calls => How::Calls(Calls::new(Heap, stripes, words, workload.whole)),
            None if workload.whole => How::Whole { stripes, buffer: vec![0; words] },
            None => How::Pointers,
        };
        let batch = u64::from(workload.gather.unwrap_or(1));
        Self { objects, how, batch, drawn: Vec::with_capacity(batch as usize) }
    }

    /// Takes the next operations from the stream, `most` at most; how many they are.
    #[inline]
    pub fn draw(&mut self, stream: &mut Stream, most: u64) -> u64 {
        self.drawn.clear();
        let count = self.batch.min(most);
        self.drawn.extend((0..count).map(|_| stream.next()));
        count
    }

    /// Does what was drawn; how many of them wrote.
    #[inline]
    pub fn perform(&mut self, stream: &mut Stream) -> Result<u64, Trouble> {
        let Self { objects, how, drawn, .. } = self;
        if let How::Batches(batches) = how {
            return batches.perform(objects, drawn);
        }
        let mut writes = 0;
        for operation in drawn.iter() {
            let wrote = match how {
                How::Whole { stripes, buffer } => whole(objects, *operation, stripes, buffer)?,
                How::Calls(calls) => calls.perform(objects, *operation)?,
                How::Pointers | How::Batches(_) => by_pointers(objects, *operation, stream)?,
            };
            writes += u64::from(wrote);
        }
        Ok(writes)
    }
}

/// Does one operation; true if it wrote.
#[inline]
fn by_pointers(
    objects: &Objects,
    operation: Operation,
    stream: &mut Stream,
) -> Result<bool, Mismatch> {
    match operation {
        Operation::Read { object, word } => objects.read(object, word).map(|()| false),
        Operation::Write { object } => objects.write(object).map(|()| true),
        Operation::Scan { object, write } => {
            objects.scan(object).and_then(|()| write_if(objects, object, write))
        }
        Operation::Follow { object, write } => objects.follow(object).and_then(|next| {
            stream.arrive(next);
            write_if(objects, object, write)
        }),
    }
}

#[inline]
fn write_if(objects: &Objects, object: u64, write: bool) -> Result<bool, Mismatch> {
    if write { objects.write(object).map(|()| true) } else { Ok(false) }
}

/// Copies an object out and verifies it, or puts its next version in; true if it wrote.
fn whole(
    objects: &Objects,
    operation: Operation,
    stripes: &Stripes,
    buffer: &mut [u64],
) -> Result<bool, Mismatch> {
    match operation {
        Operation::Write { object } => {
            let _turn = stripes.lock(object);
            let version = objects.version(object, objects.look(object))?;
            objects.compose(object, version + 1, buffer);
            objects.copy_in(object, buffer);
            Ok(true)
        }
        // `Workload::check` lets no other operation come here.
        Operation::Read { object, word } => {
            objects.copy_out(object, buffer);
            objects.check_copy(object, word, buffer).map(|()| false)
        }
        Operation::Scan { object, .. } | Operation::Follow { object, .. } => {
            objects.scan(object).map(|()| false)
        }
    }
}
