//! Calls: reads and writes of a schedule's threads that go past the page table, as `dh_read` and
//! `dh_write` do.
//!
//! Threads: those that touch things.

use std::sync::atomic::Ordering;

use deepheap_policy::sequence::Sequences;

use super::World;
use crate::{Direct, Moves, Operation, Piece};

impl World {
    /// Reads or raises a thread's number in a thing by a call.
    pub(super) fn call(
        &self,
        sequences: &mut Sequences,
        operation: Operation,
        thread: usize,
        number: usize,
    ) {
        self.calling[thread].store(number + 1, Ordering::Relaxed);
        self.call_directly(sequences, operation, thread, number);
        self.calling[thread].store(0, Ordering::Relaxed);
    }

    fn call_directly(
        &self,
        sequences: &mut Sequences,
        operation: Operation,
        thread: usize,
        number: usize,
    ) {
        let thing = &self.things[number];
        let expected = &thing.numbers[thread];
        let piece = Piece { address: thing.address + 8 * thread, length: 8 };
        let mut found = expected.load(Ordering::Relaxed) + 1;
        let word = (&raw mut found).cast::<u8>();
        // SAFETY: a word to read into, or to write from.
        let direct = unsafe {
            match operation {
                Operation::Read => self.pager.read_directly(piece, word),
                _ => self.pager.write_directly(piece, word),
            }
        };
        match (direct, operation) {
            (Direct::Done, Operation::Read) => {
                assert_eq!(found, expected.load(Ordering::Relaxed), "{number}");
            }
            (Direct::Done, _) => drop(expected.fetch_add(1, Ordering::Relaxed)),
            (Direct::Mapped, _) => self.count(sequences, thread, number),
            (Direct::Refused, _) => self.call_by_access(operation, thread, number),
        }
    }

    pub(super) fn call_by_access(&self, operation: Operation, thread: usize, number: usize) {
        let thing = &self.things[number];
        let expected = &thing.numbers[thread];
        let buffer = self.pager.access_buffer();
        let word = buffer.bytes(0).cast::<u64>();
        if operation == Operation::Write {
            let next = expected.fetch_add(1, Ordering::Relaxed) + 1;
            // SAFETY: the buffer has a page for the piece.
            unsafe { word.write(next) };
        }
        let piece = Piece { address: thing.address + 8 * thread, length: 8 };
        let mut moves = Moves::default();
        self.pager.access(operation, &[piece], &buffer, &mut moves).expect("an access");
        if operation == Operation::Read {
            // SAFETY: as above.
            assert_eq!(unsafe { word.read() }, expected.load(Ordering::Relaxed), "{number}");
        }
    }
}
