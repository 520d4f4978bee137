//! Permutation: a random bijection over `0..count` in constant memory, forwards and backwards.
//!
//! A Feistel network over the next even number of bits, walked until it lands inside `0..count`.
//! It scatters zipf ranks over the objects (no two ranks share an object, as a hash would do), and
//! it orders the pointer chase: object `forward(r)` points to object `forward(r + 1)`, which is one
//! cycle through all objects for any bijection.
//!
//! Guarantees: `backward(forward(x)) == x` for every x below count.
//! Never: allocates. Threads: immutable after construction.

use crate::random::mix;

const ROUNDS: usize = 4;

/// One bijection, chosen by count and seed.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// A bijection over `0..count`, `count` >= 1.
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Self {
            count,
            half_bits: bits.div_ceil(2).max(1),
            keys: core::array::from_fn(|round| mix(seed ^ mix(round as u64 + 0x7065_726D))),
        }
    }

    /// Where `position` goes.
    #[inline]
    pub fn forward(&self, position: u64) -> u64 {
        let mut x = position;
        loop {
            x = self.keys.iter().fold(x, |x, key| self.round(x, *key));
            if x < self.count {
                return x;
            }
        }
    }

    /// The number that goes to `place`.
    #[inline]
    pub fn backward(&self, place: u64) -> u64 {
        let mut x = place;
        loop {
            x = self.keys.iter().rev().fold(x, |x, key| self.unround(x, *key));
            if x < self.count {
                return x;
            }
        }
    }

    /// The successor of `object` on the one cycle through all objects.
    #[inline]
    pub fn next_on_cycle(&self, object: u64) -> u64 {
        let rank = self.backward(object) + 1;
        self.forward(if rank == self.count { 0 } else { rank })
    }

    fn mask(&self) -> u64 {
        (1 << self.half_bits) - 1
    }

    fn round(&self, x: u64, key: u64) -> u64 {
        let (left, right) = (x >> self.half_bits, x & self.mask());
        (right << self.half_bits) | (left ^ (mix(right ^ key) & self.mask()))
    }

    fn unround(&self, x: u64, key: u64) -> u64 {
        let (left, right) = (x >> self.half_bits, x & self.mask());
        ((right ^ (mix(left ^ key) & self.mask())) << self.half_bits) | left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_is_a_bijection_and_backward_undoes_it() {
        for count in [1, 2, 3, 5, 64, 1000, 4096, 65_537] {
            let permutation = Permutation::new(count, 3);
            let mut seen = vec![false; count as usize];
            for x in 0..count {
                let y = permutation.forward(x);
                assert!(!core::mem::replace(&mut seen[y as usize], true), "count {count}");
                assert_eq!(permutation.backward(y), x);
            }
        }
    }

    #[test]
    fn the_chase_is_one_cycle_through_all_objects() {
        for count in [1, 2, 7, 1000, 100_003] {
            for seed in [1, 2] {
                let permutation = Permutation::new(count, seed);
                let mut seen = vec![false; count as usize];
                let mut at = 0;
                for _ in 0..count {
                    assert!(!core::mem::replace(&mut seen[at as usize], true));
                    at = permutation.next_on_cycle(at);
                }
                assert_eq!(at, 0, "count {count} seed {seed}");
            }
        }
    }

    #[test]
    fn neighbours_are_scattered() {
        let permutation = Permutation::new(1_000_000, 9);
        let near = (0..10_000)
            .filter(|&x| permutation.forward(x).abs_diff(permutation.forward(x + 1)) < 16);
        assert!(near.count() < 20);
    }
}
