//! Zipf: ranks 1..=n where rank k is drawn in proportion to 1 / k^exponent, without a table.
//!
//! Rejection-inversion after Hoermann and Derflinger, "Rejection-inversion to generate variates
//! from monotone discrete distributions" (ACM TOMACS 6, 1996): exact for any n and any exponent
//! above 0, also near 1, and about 1.1 draws a rank.
//!
//! Guarantees: the distribution is exact up to the rounding of f64.
//! Never: allocates; its memory does not grow with n.
//! Threads: immutable after construction; the caller brings the generator.

use crate::random::fraction;

/// The sampler: three constants that depend on n and the exponent only.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    count: u64,
    exponent: f64,
    integral_at_first: f64,
    integral_at_last: f64,
    accept_within: f64,
}

impl Zipf {
    /// `count` >= 1 ranks, `exponent` > 0.
    pub fn new(count: u64, exponent: f64) -> Self {
        let mut zipf = Self {
            count,
            exponent,
            integral_at_first: 0.0,
            integral_at_last: 0.0,
            accept_within: 0.0,
        };
        zipf.integral_at_first = zipf.integral(1.5) - 1.0;
        zipf.integral_at_last = zipf.integral(count as f64 + 0.5);
        zipf.accept_within = 2.0 - zipf.integral_inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// A rank in `1..=count`; 1 is the most frequent. `draw` gives 64 random bits.
    #[inline]
    pub fn sample(&self, mut draw: impl FnMut() -> u64) -> u64 {
        loop {
            let u = self.integral_at_last
                + fraction(draw()) * (self.integral_at_first - self.integral_at_last);
            let x = self.integral_inverse(u);
            let rank = ((x + 0.5) as u64).clamp(1, self.count);
            let k = rank as f64;
            if k - x <= self.accept_within || u >= self.integral(k + 0.5) - self.density(k) {
                return rank;
            }
        }
    }

    /// x^-exponent.
    fn density(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The integral of the density from 1 to x: (x^(1-e) - 1) / (1-e), and ln x for e = 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        expm1_over((1.0 - self.exponent) * log) * log
    }

    fn integral_inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        (ln1p_over(t) * y).exp()
    }
}

/// ln(1+x)/x, continuous at 0.
fn ln1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x * (0.5 - x * (1.0 / 3.0 - 0.25 * x)) }
}

/// (e^x - 1)/x, continuous at 0.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        x.exp_m1() / x
    } else {
        1.0 + x * 0.5 * (1.0 + x * (1.0 / 3.0) * (1.0 + 0.25 * x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The sum of k^-s for k in from..=to.
    fn weight(from: u64, to: u64, s: f64) -> f64 {
        (from..=to).rev().map(|k| (k as f64).powf(-s)).sum()
    }

    /// Draws and compares with the exact probabilities by chi-squared over the given buckets.
    fn fits(count: u64, s: f64, bounds: &[u64], seed: u64) {
        let zipf = Zipf::new(count, s);
        let mut random = Random::new(seed, 0);
        let draws = 1_000_000;
        let mut seen = vec![0_u64; bounds.len()];
        for _ in 0..draws {
            let rank = zipf.sample(|| random.next());
            assert!((1..=count).contains(&rank));
            seen[bounds.partition_point(|&upper| upper < rank)] += 1;
        }
        let total = weight(1, count, s);
        let mut chi_squared = 0.0;
        let mut from = 1;
        for (&upper, &seen) in bounds.iter().zip(&seen) {
            let expected = draws as f64 * weight(from, upper, s) / total;
            chi_squared += (seen as f64 - expected).powi(2) / expected;
            from = upper + 1;
        }
        let freedom = (bounds.len() - 1) as f64;
        let limit = freedom + 5.0 * (2.0 * freedom).sqrt();
        assert!(
            chi_squared < limit,
            "n {count} s {s} seed {seed}: chi-squared {chi_squared} over {limit}"
        );
    }

    #[test]
    fn every_rank_of_a_small_n_has_its_exact_share() {
        let each: Vec<u64> = (1..=100).collect();
        for s in [0.5, 0.99, 1.0, 1.3] {
            fits(100, s, &each, 11);
        }
    }

    #[test]
    fn shares_are_exact_for_33_million_objects() {
        let n = 33_554_432;
        let octaves: Vec<u64> = (0..=25).map(|bit| 1 << bit).collect();
        assert_eq!(octaves.last(), Some(&n));
        fits(n, 0.99, &octaves, 12);
    }

    #[test]
    fn one_object_is_always_rank_one() {
        let zipf = Zipf::new(1, 0.99);
        let mut random = Random::new(1, 1);
        assert!((0..100).all(|_| zipf.sample(|| random.next()) == 1));
    }
}
