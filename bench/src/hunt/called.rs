//! Called: objects that are counted in by `gather` and `scatter` alone, in batches.
//!
//! Guarantees: every number that is read is the one that was left there.
//! Threads: one counts; others look at the notes, the child of a fork at the objects.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use deepheap::objects::{self, ObjectError};
use deepheap_load::random::Random;

use super::{BATCH, Block, CHILD_ENDS, WORDS};

/// Objects whose first word counts the calls that named them.
pub struct Called {
    objects: Vec<usize>,
    /// What each must hold; raised after it was written.
    noted: Vec<AtomicU64>,
}

impl Called {
    /// So many objects of random sizes.
    ///
    /// # Errors
    /// That there is no memory for them.
    pub fn new(count: usize, seed: u64) -> Result<Called, String> {
        let mut random = Random::new(seed, 2);
        let mut objects = Vec::new();
        for _ in 0..count {
            let words = 1 + random.below(WORDS as u64) as usize;
            let block = Block::new(0, objects::allocate(1, 8 * words), words);
            objects.push(block.ok_or("no memory for objects: raise --store-size")?.address);
        }
        Ok(Called { objects, noted: (0..count).map(|_| AtomicU64::new(0)).collect() })
    }

    /// All calls that have returned.
    pub fn total(&self) -> u64 {
        self.noted.iter().map(|noted| noted.load(Ordering::Relaxed)).sum()
    }

    /// Raises batches of random ones by one, until told to stop.
    pub fn count(&self, seed: u64, stop: &AtomicBool, failures: &AtomicUsize) {
        let mut random = Random::new(seed, 0);
        while !stop.load(Ordering::Relaxed) {
            // From a random one on, with gaps: each once.
            let count = self.objects.len();
            let (first, gap) = (random.below(count as u64) as usize, count / BATCH);
            let batch = std::array::from_fn::<_, BATCH, _>(|at| (first + gap * at) % count);
            let written = self.read(&batch).and_then(|values| self.raise(&batch, &values));
            if let Err(why) = written {
                eprintln!("hunt: {why}");
                failures.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    fn read(&self, batch: &[usize; BATCH]) -> Result<[u64; BATCH], String> {
        let list = batch.map(|at| self.objects[at] as *const u8);
        let mut values = [0u64; BATCH];
        let buffer = values.as_mut_ptr().cast();
        // SAFETY: live objects of a word at least; room for one of each.
        let done = unsafe { objects::gather(list.as_ptr(), BATCH, 0, 8, buffer) };
        if done != Ok(BATCH) {
            return Err(format!("gather: {done:?}"));
        }
        let wrong =
            (0..BATCH).find(|&at| values[at] != self.noted[batch[at]].load(Ordering::SeqCst));
        match wrong {
            None => Ok(values),
            Some(at) => Err(format!(
                "object {} reads {} by gather and should be {:?}",
                batch[at], values[at], self.noted[batch[at]]
            )),
        }
    }

    /// Writes one more than `values` to the objects, and notes it.
    fn raise(&self, batch: &[usize; BATCH], values: &[u64; BATCH]) -> Result<(), String> {
        let list = batch.map(|at| self.objects[at] as *mut u8);
        let values = values.map(|value| value + 1);
        let (mut written, deadline) = (0, Instant::now() + CHILD_ENDS);
        while written < BATCH {
            let (rest, buffer) = (&list[written..], values[written..].as_ptr().cast());
            // SAFETY: live objects of a word at least, and a value for each.
            match unsafe { objects::scatter(rest.as_ptr(), rest.len(), 0, 8, buffer) } {
                Ok(some) => {
                    for &at in &batch[written..written + some] {
                        self.noted[at].fetch_add(1, Ordering::SeqCst);
                    }
                    written += some;
                }
                // A child keeps the space until it ends.
                Err(ObjectError::NoRoom) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(format!("scatter: {error:?}")),
            }
        }
        Ok(())
    }

    /// Every object, by its pointer, holds what is noted, or up to `more` above.
    ///
    /// # Errors
    /// Which one does not.
    pub fn check(&self, more: u64) -> Result<(), String> {
        for (at, &object) in self.objects.iter().enumerate() {
            // SAFETY: a live object of a word at least; whoever writes it has stopped, or is not
            // in this process.
            let found = unsafe { (object as *const u64).read_volatile() };
            let noted = self.noted[at].load(Ordering::SeqCst);
            if found < noted || found > noted + more {
                return Err(format!("object {at} reads {found} and should be {noted}"));
            }
        }
        Ok(())
    }
}
