//! Histogram: how long operations took, log-linear, at a fixed relative error.
//!
//! Values are in whatever unit the caller counts (ticks of the time-stamp counter, nanoseconds); 64
//! buckets for each doubling give at most 1.6 % error. The maximum is exact.
//!
//! Guarantees: recording is a shift, an add and a compare; nothing is sampled or dropped.
//! Never: allocates after `default`, locks.
//! Threads: one for each thread, merged after the threads are done.

use deepheap_measure::buckets::{bucket_at_rank, bucket_end, bucket_of};

const SUB_BITS: u32 = 6;
const BUCKETS: usize = bucket_of(u64::MAX, SUB_BITS) + 1;

/// Counts by value.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts a value, `times` times.
    #[inline]
    pub fn record(&mut self, value: u64, times: u64) {
        self.counts[bucket_of(value, SUB_BITS)] += times;
        self.total += times;
        self.sum += u128::from(value) * u128::from(times);
        self.max = self.max.max(value);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// How many values were recorded.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The largest value, exact.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean, exact; 0 when empty.
    pub fn mean(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum as f64 / self.total as f64 }
    }

    /// The standard deviation, each value taken at the end of its bucket; 0 when empty.
    pub fn deviation(&self) -> f64 {
        let mean = self.mean();
        let square = |(index, &count): (usize, &u64)| {
            count as f64 * (bucket_end(index, SUB_BITS).min(self.max) as f64 - mean).powi(2)
        };
        let sum: f64 = self.counts.iter().enumerate().map(square).sum();
        if self.total == 0 { 0.0 } else { (sum / self.total as f64).sqrt() }
    }

    /// The smallest value that at least `share` (0..=1) of all values do not exceed, rounded up to
    /// its bucket's end; 0 when empty.
    pub fn percentile(&self, share: f64) -> u64 {
        let wanted = ((share * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        let at = bucket_at_rank(&self.counts, wanted.into());
        at.map_or(self.max, |bucket| bucket_end(bucket, SUB_BITS).min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn percentiles_are_those_of_the_sorted_values_within_the_error() {
        let mut random = Random::new(6, 0);
        let mut values: Vec<u64> =
            (0..50_000).map(|_| random.below(1 << 30) >> random.below(20)).collect();
        let mut parts = [Histogram::default(), Histogram::default()];
        for (i, &value) in values.iter().enumerate() {
            parts[i % 2].record(value, 1);
        }
        let [mut whole, second] = parts;
        whole.merge(&second);
        values.sort_unstable();
        assert_eq!(whole.total(), 50_000);
        assert_eq!(whole.max(), values[49_999]);
        for share in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let rank = ((share * 50_000.0_f64).ceil() as usize).clamp(1, 50_000);
            let (exact, got) = (values[rank - 1] as f64, whole.percentile(share) as f64);
            assert!(got >= exact && got <= exact * 1.016 + 1.0, "{share}: {exact} {got}");
        }
    }

    #[test]
    fn an_empty_histogram_answers_zero() {
        let empty = Histogram::default();
        assert_eq!((empty.percentile(0.99), empty.max(), empty.total()), (0, 0, 0));
        assert_eq!(empty.deviation(), 0.0);
    }

    #[test]
    fn the_deviation_is_that_of_the_values_within_the_error() {
        let mut histogram = Histogram::default();
        histogram.record(10_000, 3);
        histogram.record(30_000, 1);
        let exact = (3.0 * 5_000.0_f64.powi(2) + 15_000.0_f64.powi(2)).div_euclid(4.0).sqrt();
        assert!((histogram.deviation() / exact - 1.0).abs() < 0.05, "{}", histogram.deviation());
    }
}
