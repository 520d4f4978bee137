//! Histogram: how long faults took, in log-linear buckets of nanoseconds.
//!
//! Eight buckets a power of two, so a percentile read from it is at most 12.5 % above the truth.
//!
//! Guarantees: recording is three relaxed atomic operations at most, wait-free.
//! Never: allocates, blocks, locks. Never loses a count; a snapshot taken meanwhile may miss the
//! newest ones.
//! Threads: any thread records into its shard; any thread or process (a mapped copy) takes
//! snapshots.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use deepheap_measure::buckets::{bucket_at_rank, bucket_end, bucket_of};

/// Buckets a power of two, as a power of two.
const SUB_BITS: u32 = 3;
/// Longest latency told apart: 2^40 ns, 18 minutes. Longer ones count as this long.
const LONGEST_NS: u64 = (1 << 40) - 1;
/// Number of buckets of a histogram.
pub(crate) const BUCKETS: usize = bucket(LONGEST_NS) + 1;

/// The bucket of a latency.
const fn bucket(ns: u64) -> usize {
    bucket_of(if ns > LONGEST_NS { LONGEST_NS } else { ns }, SUB_BITS)
}

/// The longest latency that falls into a bucket.
const fn bucket_end_ns(bucket: usize) -> u64 {
    bucket_end(bucket, SUB_BITS)
}

/// A histogram that threads record into; all zero bytes is an empty one.
#[repr(C)]
pub(crate) struct AtomicHistogram {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl AtomicHistogram {
    /// Counts one event that took `ns` nanoseconds.
    #[inline]
    pub(crate) fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Relaxed);
        self.total_ns.fetch_add(ns, Relaxed);
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.fetch_max(ns, Relaxed);
        }
    }

    /// Adds what was recorded so far to `into`.
    pub(crate) fn add_to(&self, into: &mut Histogram) {
        for (sum, count) in into.buckets.iter_mut().zip(&self.buckets) {
            *sum = sum.saturating_add(count.load(Relaxed));
        }
        into.total_ns = into.total_ns.saturating_add(self.total_ns.load(Relaxed));
        into.max_ns = into.max_ns.max(self.max_ns.load(Relaxed));
    }
}

/// A snapshot of recorded latencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    total_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; BUCKETS], total_ns: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// Number of events.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Nanoseconds of all events together.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// The longest event, exact; 0 without events.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The latency that `per_mille` thousandths of the events did not exceed (rounded up to the
    /// end of its bucket, never above the longest event); 0 without events.
    pub fn percentile_ns(&self, per_mille: u64) -> u64 {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        let rank = (u128::from(count) * u128::from(per_mille)).div_ceil(1000).max(1);
        match bucket_at_rank(&self.buckets, rank) {
            Some(bucket) if bucket + 1 < BUCKETS => bucket_end_ns(bucket).min(self.max_ns),
            _ => self.max_ns,
        }
    }

    /// Events that are known to have taken at most so many nanoseconds; all that did, where a
    /// bucket ends there: one below each power of two.
    pub fn count_up_to(&self, ns: u64) -> u64 {
        let whole = self.buckets.iter().enumerate().take(BUCKETS - 1);
        whole.take_while(|(bucket, _)| bucket_end_ns(*bucket) <= ns).map(|(_, count)| count).sum()
    }

    /// The records after `earlier`, an older snapshot of the same histogram. The longest
    /// event of the interval is known only to its bucket.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut interval = Histogram {
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
            ..Histogram::default()
        };
        for (bucket, events) in interval.buckets.iter_mut().enumerate() {
            *events = self.buckets[bucket].saturating_sub(earlier.buckets[bucket]);
            if *events > 0 {
                interval.max_ns = bucket_end_ns(bucket).min(self.max_ns);
            }
        }
        interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram_of(latencies: &[u64]) -> Histogram {
        let atomic = AtomicHistogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        };
        latencies.iter().for_each(|ns| atomic.record(*ns));
        let mut histogram = Histogram::default();
        atomic.add_to(&mut histogram);
        histogram
    }

    #[test]
    fn counts_up_to_a_power_of_two_are_exact() {
        let histogram = histogram_of(&[0, 7, 1023, 1024, 1_000_000, u64::MAX]);
        for (ns, events) in [(0, 1), (1023, 3), (2047, 4), ((1 << 20) - 1, 5), (u64::MAX, 5)] {
            assert_eq!(histogram.count_up_to(ns), events, "{ns}");
        }
    }

    #[test]
    fn buckets_are_contiguous_and_in_order() {
        let mut start = 0;
        for index in 0..BUCKETS {
            let end = bucket_end_ns(index);
            assert_eq!(bucket(start), index, "start of bucket {index}");
            assert_eq!(bucket(end), index, "end of bucket {index}");
            start = end + 1;
        }
        assert_eq!(start, LONGEST_NS + 1);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_bucket_is_an_eighth_of_its_power_of_two() {
        for ns in [8u64, 100, 4096, 1_000_000, 123_456_789_012] {
            let end = bucket_end_ns(bucket(ns));
            assert!(end >= ns && end - ns < ns.div_ceil(8), "{ns} ends at {end}");
        }
    }

    #[test]
    fn percentiles_bound_the_truth_from_above_by_an_eighth() {
        let mut seed = 7u64;
        let mut latencies: Vec<u64> = (0..10_000)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 33) % 5_000_000
            })
            .collect();
        let histogram = histogram_of(&latencies);
        latencies.sort_unstable();
        for per_mille in [1usize, 100, 500, 900, 990, 999, 1000] {
            let truth = latencies[(latencies.len() * per_mille).div_ceil(1000) - 1];
            let told = histogram.percentile_ns(per_mille as u64);
            assert!(told >= truth && told <= truth + truth / 8 + 1, "p{per_mille} {truth} {told}");
        }
        assert_eq!(histogram.percentile_ns(1000), latencies[9_999]);
        assert_eq!(histogram.max_ns(), latencies[9_999]);
        assert_eq!(histogram.count(), 10_000);
        assert_eq!(histogram.total_ns(), latencies.iter().sum::<u64>());
    }

    #[test]
    fn empty_and_single_and_huge() {
        assert_eq!(histogram_of(&[]).percentile_ns(990), 0);
        assert_eq!(histogram_of(&[1234]).percentile_ns(500), 1234);
        assert_eq!(histogram_of(&[u64::MAX]).percentile_ns(500), u64::MAX);
    }

    #[test]
    fn an_interval_holds_only_what_came_after() {
        let earlier = histogram_of(&[10, 20, 1_000_000]);
        let later = histogram_of(&[10, 20, 1_000_000, 3000, 3001]);
        let interval = later.since(&earlier);
        assert_eq!(interval.count(), 2);
        assert_eq!(interval.total_ns(), 6001);
        assert!(interval.percentile_ns(990) >= 3001 && interval.max_ns() < 3400);
    }
}
