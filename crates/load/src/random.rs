//! Random: the generator and the mixing function behind every operation stream.
//!
//! Guarantees: the same seed gives the same numbers on every machine and in every backend.
//! Never: allocates, does I/O, asks the system for entropy.
//! Threads: every thread owns its own `Random`; `mix` is a pure function.

/// The finaliser of splitmix64: a bijection over 64 bits that scatters neighbouring inputs.
#[inline]
pub fn mix(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The next of splitmix64's numbers (Steele, Lea and Flood, OOPSLA 2014): its state is one word.
#[inline]
pub fn split_next(state: &mut u64) -> u64 {
    let number = mix(*state);
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    number
}

/// A number in `0..bound` (`bound` > 0) of 64 random bits, off uniform by at most `bound / 2^64`.
#[inline]
pub fn below(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// A number in `[0, 1)` of 64 random bits, of which 53 count.
#[inline]
pub fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// xoshiro256++ (Blackman and Vigna, 2019), seeded through splitmix64.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// A generator of its own for one thread of one run.
    pub fn new(seed: u64, thread: u64) -> Self {
        let origin = mix(seed) ^ mix(thread.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0x5851);
        let state = core::array::from_fn(|i| mix(origin.wrapping_add(i as u64)));
        Self { state }
    }

    /// 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "an iterator would need an end")]
    #[inline]
    pub fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// See [`below`].
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        below(self.next(), bound)
    }

    /// True in `percent` of 100 draws.
    #[inline]
    pub fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_numbers_and_threads_differ() {
        let draw = |seed, thread| {
            let mut random = Random::new(seed, thread);
            (0..32).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
    }

    #[test]
    fn below_is_uniform() {
        let mut random = Random::new(7, 0);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|&c| (9_500..10_500).contains(&c)), "{counts:?}");
    }
}
