//! Buckets: log-linear buckets of numbers, as many to a power of two as the caller likes.
//!
//! With 2^`sub_bits` of them a bucket's end is less than 2^-`sub_bits` above any of its values.
//!
//! Guarantees: buckets are contiguous and in order; every number has one.
//! Never: keeps counts; they are the caller's.
//! Threads: pure functions.

/// The bucket of a value, of 2^`sub_bits` buckets a power of two.
#[inline]
pub const fn bucket_of(value: u64, sub_bits: u32) -> usize {
    if value < 1 << sub_bits {
        return value as usize;
    }
    let shift = value.ilog2() - sub_bits;
    ((shift as usize) << sub_bits) + (value >> shift) as usize
}

/// The largest value of a bucket, of 2^`sub_bits` buckets a power of two.
pub const fn bucket_end(bucket: usize, sub_bits: u32) -> u64 {
    let sub_buckets = 1 << sub_bits;
    if bucket < sub_buckets {
        return bucket as u64;
    }
    let shift = bucket / sub_buckets - 1;
    let first = ((sub_buckets + bucket % sub_buckets) as u64) << shift;
    first + ((1 << shift) - 1)
}

/// The bucket in which the value of a rank lies, 1 for the smallest; none if there are fewer.
pub fn bucket_at_rank(counts: &[u64], rank: u128) -> Option<usize> {
    let mut seen = 0;
    counts.iter().position(|&count| {
        seen += u128::from(count);
        seen >= rank
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_any_fineness_hold_every_value() {
        for sub_bits in [0, 3, 6] {
            for value in (0..64).flat_map(|bit| [0, 1, 2].map(|n| (1u64 << bit) - 1 + n)) {
                let at = bucket_of(value, sub_bits);
                assert!(value <= bucket_end(at, sub_bits), "{value}");
                assert!(at == 0 || value > bucket_end(at - 1, sub_bits), "{value}");
            }
            assert_eq!(bucket_end(bucket_of(u64::MAX, sub_bits), sub_bits), u64::MAX);
        }
    }
}
