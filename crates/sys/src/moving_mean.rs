//! Moving mean: what something took of late, on average.
//!
//! Never: allocates, blocks, does I/O.
//! Threads: any. An estimate: of two values that are noted at once one may be lost.

use crate::threads::atomic::{AtomicU64, Ordering};

/// A new value counts with this part.
const PART: u64 = 8;

/// The mean; 0 before the first value.
#[derive(Default)]
pub struct MovingMean(AtomicU64);

impl MovingMean {
    /// Before the first value.
    pub const fn new() -> MovingMean {
        MovingMean(AtomicU64::new(0))
    }

    /// Takes a value into account.
    pub fn note(&self, value: u64) {
        let mean = self.get();
        let next = if mean == 0 { value } else { mean - mean / PART + value / PART };
        self.0.store(next.max(1), Ordering::Relaxed);
    }

    /// The mean; 0 before the first value, and 1 at least after it.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_begins_with_the_first_value_and_follows_the_others() {
        let mean = MovingMean::new();
        assert_eq!(mean.get(), 0);
        mean.note(0);
        assert_eq!(mean.get(), 1, "there was one");
        let mean = MovingMean::new();
        mean.note(800);
        assert_eq!(mean.get(), 800);
        mean.note(1600);
        assert_eq!(mean.get(), 900);
        (0..100).for_each(|_| mean.note(80));
        assert!((80..90).contains(&mean.get()), "{}", mean.get());
    }
}
