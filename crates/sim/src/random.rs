//! Random: a small generator of numbers that a seed determines (splitmix64), or a fuzzer's bytes.
//!
//! Guarantees: the same seed or bytes give the same numbers, everywhere and for ever.
//! Threads: one at a time.

use std::collections::VecDeque;

/// Numbers that a seed determines.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    /// What is taken before the seed's numbers.
    bytes: VecDeque<u8>,
}

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed, bytes: VecDeque::new() }
    }

    /// The numbers that these bytes are, each as few of them as its bound needs, so that a fuzzer
    /// that changes a byte changes a choice; then those of seed 0.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self { state: 0, bytes: bytes.iter().copied().collect() }
    }

    /// Whether there are bytes left.
    pub fn has_bytes(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        if self.has_bytes() { self.taken(8) } else { self.mixed() }
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if !self.has_bytes() {
            return self.mixed() % bound;
        }
        let bits = u64::BITS - (bound - 1).leading_zeros();
        self.taken(bits.div_ceil(8).max(1)) % bound
    }

    /// True once in `of` times, never if `of` is 0.
    pub fn once_in(&mut self, of: u64) -> bool {
        of != 0 && self.below(of) == 0
    }

    fn mixed(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// So many bytes as a number; those that are missing are 0.
    fn taken(&mut self, bytes: u32) -> u64 {
        let all = (0..bytes).map(|_| self.bytes.pop_front().unwrap_or(0));
        all.fold(0, |number, byte| number << 8 | u64::from(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_choices_and_numbers_of_a_seed_follow() {
        let mut random = Random::of_bytes(&[7, 1, 0, 9]);
        assert_eq!((random.below(256), random.below(300), random.below(8)), (7, 256, 1));
        assert!(!random.has_bytes());
        assert_eq!(random.number(), Random::new(0).number());
    }
}
