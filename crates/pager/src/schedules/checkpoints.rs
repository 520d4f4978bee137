//! Checkpoints: cuts among the threads of a schedule. At each of them the table that is handed out
//! leads to what every object holds.
//!
//! Threads: `make_checkpoints` is one of a schedule's.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use deepheap_policy::sequence::Sequences;
use deepheap_sim::Random;
use deepheap_store::{Block, StoreError};
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;

use super::{NUMBERS, PROTECTED_STEPS, TOUCHING, Thing, World, is_present};
use crate::PAGE;
use crate::checkpoint::{CheckpointBuffer, CutError};
use crate::fault::flight::Landed;
use crate::fault::flight::{block_read, object_in};

const CHECKPOINTS: usize = 4;
/// Entries in a page of the table, with the feature `schedules`.
const ENTRIES: u32 = 4;

/// The pages of the table that the last checkpoint has, by number.
pub(super) type Saved = BTreeMap<u32, Vec<u8>>;

/// The numbers of all things at one instant, and `World::calling`.
struct Instant {
    numbers: Vec<[u64; NUMBERS]>,
    calling: [usize; TOUCHING],
}

impl World {
    /// Makes some, and goes on where one is refused.
    pub(super) fn make_checkpoints(&self, seed: u64) {
        let mut random = Random::new(seed);
        for _ in 0..CHECKPOINTS {
            (0..random.below(PROTECTED_STEPS as u64))
                .for_each(|_| deepheap_sys::threads::thread::yield_now());
            let buffer = self.pager.checkpoint_buffer();
            let mut saved = self.saved.borrow().clone();
            let made = self.make_checkpoint(&buffer, &mut saved);
            self.pager.end_saving(made.is_ok());
            match made {
                Ok(()) => {
                    *self.saved.borrow_mut() = saved;
                    self.cuts.fetch_add(1, Ordering::Relaxed);
                }
                // The log is full of what lives, a call is under way, or a page is protected.
                Err(CutError::Store(StoreError::Full))
                | Err(CutError::Busy | CutError::InUse | CutError::Unreadable(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Writes to what is in the page buffer while cuts are under way.
    pub(super) fn write_in_cuts(&self) {
        let mut sequences = Sequences::default();
        while !self.is_done() {
            for number in 0..self.things.len() {
                let is_cutting = self.is_cutting.load(Ordering::Relaxed);
                if is_cutting && is_present(self.things[number].address) {
                    self.count(&mut sequences, TOUCHING, number);
                    deepheap_sys::threads::thread::yield_now();
                }
            }
            deepheap_sys::threads::thread::yield_now();
        }
    }

    fn make_checkpoint(
        &self,
        buffer: &CheckpointBuffer<'_>,
        saved: &mut Saved,
    ) -> Result<(), CutError> {
        self.pager.write_changed(buffer)?;
        self.pager.residency.store.seal_and_drain();
        let handed_out = RefCell::new(saved);
        let mut save = |page: u32, bytes: &[u8]| {
            handed_out.borrow_mut().insert(page, bytes.to_vec());
            true
        };
        self.pager.save_cold_table(&mut save).expect("no page is lost");
        let _growth = self.growth.lock();
        self.is_cutting.store(true, Ordering::Relaxed);
        let done = self.pager.begin_cut(buffer).and_then(|cut| {
            // No other thread runs until the writers are released.
            let instant = self.instant();
            cut.release_writers();
            cut.write_changed()?;
            self.pager.residency.store.seal_and_drain();
            cut.save_table(&mut save).expect("no page is lost");
            self.check_cut(&handed_out.borrow(), &instant);
            self.written_in_cuts.fetch_add(self.differences(&instant), Ordering::Relaxed);
            Ok(())
        });
        self.is_cutting.store(false, Ordering::Relaxed);
        done
    }

    /// The numbers now.
    fn instant(&self) -> Instant {
        let load = |thing: &Thing| thing.numbers.each_ref().map(|it| it.load(Ordering::Relaxed));
        let numbers = self.things.iter().map(load).collect();
        Instant { numbers, calling: self.calling.each_ref().map(|it| it.load(Ordering::Relaxed)) }
    }

    /// How many numbers have changed since.
    fn differences(&self, since: &Instant) -> usize {
        let now = self.instant();
        let pairs = now.numbers.iter().flatten().zip(since.numbers.iter().flatten());
        pairs.filter(|(now, then)| now != then).count()
    }

    /// Holds what the saved table leads to against the numbers at the instant of the cut. A thread
    /// that was in a call had changed its number and not the object, or the other way round.
    fn check_cut(&self, saved: &Saved, instant: &Instant) {
        let mut buffer = AlignedBuffer::new(PAGE, 0).expect("a buffer");
        for (number, thing) in self.things.iter().enumerate() {
            let page = self.pager.residency.frames.page_at(thing.address);
            let entry = saved.get(&(page.0 / ENTRIES)).map_or(0, |bytes| {
                let at = (page.0 % ENTRIES) as usize * 4;
                u32::from_le_bytes(bytes[at..at + 4].try_into().expect("an entry"))
            });
            let mut object = [0; PAGE];
            if let Some(block) = entry.checked_sub(1).map(Block) {
                let mut read =
                    [block_read(&self.pager.residency, page, block, buffer.as_mut_slice())];
                self.pager.residency.store.read(&mut read);
                read[0].result.unwrap_or_else(|error| panic!("{number}: {error:?}"));
                match object_in(&self.pager.residency, page, block, read[0].buf)
                    .expect("it is in its block")
                {
                    Landed::Plain(bytes) => object[..bytes.len()].copy_from_slice(bytes),
                    Landed::Compressed(bytes) => {
                        assert!(self.pager.residency.decompress(bytes, &mut object));
                    }
                }
            }
            for thread in 0..NUMBERS {
                let at = thing.address % PAGE + 8 * thread;
                let found = u64::from_le_bytes(object[at..at + 8].try_into().expect("a number"));
                let expected = instant.numbers[number][thread];
                let is_called = instant.calling.get(thread) == Some(&(number + 1));
                let is_right = match is_called {
                    true => found.abs_diff(expected) <= 1,
                    false => found == expected,
                };
                assert!(is_right, "{number} of {thread}: {found} at the cut, not {expected}");
            }
        }
    }
}
