//! Whole: objects that calls read and write as wholes, and nobody in another way.
//!
//! All words of an object are the same number, which grows with each write. A torn object has two;
//! a lost write, or an old object, an earlier one.
//!
//! A scan of other threads can bring an object into the page buffer. There a call copies as memcpy
//! does, and who reads meanwhile finds words of before and of after: no others, and only there.
//!
//! Guarantees: a number that is read is not below what its writer had noted before.
//! Threads: each object has one writer; all read all.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use deepheap::objects;
use deepheap_load::random::Random;

use super::{WORDS, write_when_there_is_room};

/// Threads that read and write.
pub const THREADS: usize = 3;

/// As many for each of them; half of all accesses go to a few.
const OWN: usize = 700;
const FEW: u64 = 20;
const PAGE: usize = 4096;

/// The objects.
pub struct Whole {
    objects: Vec<(usize, usize)>,
    /// What each holds at least: noted after it was written.
    noted: Vec<AtomicU64>,
}

impl Whole {
    /// Objects of random sizes, all zeros.
    ///
    /// # Errors
    /// That there is no memory for them.
    pub fn new(seed: u64) -> Result<Whole, String> {
        let mut random = Random::new(seed, 3);
        let mut objects = Vec::new();
        for _ in 0..THREADS * OWN {
            let words = 1 + random.below(WORDS as u64) as usize;
            let object = objects::allocate(1, 8 * words);
            if object.is_null() {
                return Err("no memory for whole objects: raise --store-size".into());
            }
            objects.push((object as usize, words));
        }
        let noted = objects.iter().map(|_| AtomicU64::new(0)).collect();
        Ok(Whole { objects, noted })
    }

    /// All writes that have returned.
    pub fn total(&self) -> u64 {
        self.noted.iter().map(|noted| noted.load(Ordering::Relaxed)).sum()
    }

    /// Reads any, and writes this thread's, until told to stop.
    ///
    /// # Errors
    /// What was wrong.
    pub fn read_and_write(
        &self,
        thread: usize,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        let mut random = Random::new(seed, thread as u64);
        let mut words = [0u64; WORDS];
        while !stop.load(Ordering::Relaxed) {
            let among = if random.below(2) == 0 { FEW } else { OWN as u64 };
            let own = random.below(among) as usize * THREADS + thread;
            let other =
                random.below(among) as usize * THREADS + random.below(THREADS as u64) as usize;
            self.read(other, &mut words)?;
            let (object, length) = self.objects[own];
            let next = self.noted[own].load(Ordering::Relaxed) + 1;
            words[..length].fill(next);
            write_when_there_is_room(object as *mut u8, 0, &words[..length])?;
            self.noted[own].store(next, Ordering::Release);
        }
        Ok(())
    }

    fn read(&self, at: usize, words: &mut [u64; WORDS]) -> Result<(), String> {
        let noted = self.noted[at].load(Ordering::Acquire);
        let (object, length) = self.objects[at];
        // SAFETY: a live object of that many words; room for them.
        unsafe { objects::read(object as *const u8, 0, words.as_mut_ptr().cast(), 8 * length) }
            .map_err(|error| format!("read: {error:?}"))?;
        let words = &words[..length];
        is_whole(at, words, noted).or_else(|torn| {
            // Its writer may be at one write more than it has noted by now.
            let newest = self.noted[at].load(Ordering::Acquire) + 1;
            may_be_mixed(is_mapped(object), words, noted..=newest).then_some(()).ok_or(torn)
        })
    }

    /// As `check_at_the_end`, as the child of a fork finds them: a write may be under way.
    ///
    /// # Errors
    /// Which one is not whole.
    pub fn check_in_child(&self) -> Result<(), String> {
        self.check(|mapped, words, noted| may_be_mixed(mapped, words, noted..=noted + 1))
    }

    /// Every object, by its pointer, is whole.
    ///
    /// # Errors
    /// Which one is not.
    pub fn check_at_the_end(&self) -> Result<(), String> {
        self.check(|_, _, _| false)
    }

    fn check(&self, may_be_torn: impl Fn(bool, &[u64], u64) -> bool) -> Result<(), String> {
        for (at, &(object, length)) in self.objects.iter().enumerate() {
            let was_mapped = is_mapped(object);
            let word = |index: usize| {
                // SAFETY: a live object of that many words; nobody writes it now.
                unsafe { (object as *const u64).add(index).read_volatile() }
            };
            let words: Vec<u64> = (0..length).map(word).collect();
            let noted = self.noted[at].load(Ordering::Acquire);
            is_whole(at, &words, noted)
                .or_else(|torn| may_be_torn(was_mapped, &words, noted).then_some(()).ok_or(torn))?;
        }
        Ok(())
    }
}

/// Whether an object that is torn may be: it is in the page buffer, and all words are of writes
/// that were made meanwhile, or of the one before.
fn may_be_mixed(is_mapped: bool, words: &[u64], written: RangeInclusive<u64>) -> bool {
    is_mapped && words.iter().all(|word| written.contains(word))
}

/// Whether the page of an address is in the page buffer.
fn is_mapped(address: usize) -> bool {
    let (page, mut is_present) = (address & !(PAGE - 1), 0u8);
    // SAFETY: a page of the heap, which is mapped memory, and a byte for the answer.
    let asked = unsafe { libc::mincore(page as *mut libc::c_void, PAGE, &raw mut is_present) };
    asked == 0 && is_present & 1 == 1
}

/// All words are the same number, and not less than what was noted.
fn is_whole(at: usize, words: &[u64], noted: u64) -> Result<(), String> {
    match words.iter().position(|&word| word != words[0]) {
        Some(torn) => Err(format!(
            "object {at} of {} words is torn: {} at 0, {} at {torn}",
            words.len(),
            words[0],
            words[torn]
        )),
        None if words[0] < noted => {
            Err(format!("object {at} reads {} and should be {noted}", words[0]))
        }
        None => Ok(()),
    }
}
