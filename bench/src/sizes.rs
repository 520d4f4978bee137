//! Sizes: how large each object of a run is, and where it lies when all lie side by side.
//!
//! Guarantees: the size of an object depends on the seed and its index only, so that all backends
//! and all runs agree; sizes are multiples of 8.
//! Never: allocates. Threads: immutable after construction.

use core::fmt;
use core::str::FromStr;

use deepheap_load::random::mix;
use serde::{Deserialize, Serialize};

/// Bytes in a word, the unit of every access.
pub const WORD_BYTES: usize = 8;
/// The smallest object: a header and one word.
pub const MIN_OBJECT_BYTES: usize = 16;
/// Objects of random sizes are aligned to this when they lie side by side.
const DENSE_ALIGN: u64 = 16;

/// Bytes of a size as deepheap's settings take it; nothing that is measured has a size of 0.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    match deepheap::internal::parse_size(text) {
        Ok(0) => Err(format!("'{text}' is nothing")),
        Ok(bytes) => Ok(bytes),
        Err(why) => Err(why.to_string()),
    }
}

/// What `--object-size` takes: one size, or the least and the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ObjectSize {
    /// Every object has this many bytes.
    Fixed(u64),
    /// Each object has a random size, all multiples of 8 from the least to the most equally likely.
    Between {
        /// The smallest.
        least_bytes: u64,
        /// The largest.
        most_bytes: u64,
    },
}

impl ObjectSize {
    /// The smallest object.
    pub fn least_bytes(self) -> u64 {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::Between { least_bytes, .. } => least_bytes,
        }
    }

    /// The largest object.
    pub fn most_bytes(self) -> u64 {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::Between { most_bytes, .. } => most_bytes,
        }
    }

    /// The size of an object on average.
    pub fn mean_bytes(self) -> u64 {
        (self.least_bytes() + self.most_bytes()) / 2
    }

    /// Whether all objects have the same size.
    pub fn is_fixed(self) -> bool {
        matches!(self, Self::Fixed(_))
    }

    /// The sizes of the objects of a run with this seed.
    pub fn sizes(self, seed: u64) -> Sizes {
        let word = WORD_BYTES as u64;
        let steps = (self.most_bytes() - self.least_bytes()) / word + 1;
        Sizes { least_bytes: self.least_bytes(), steps, key: mix(seed ^ 0x7369_7A65) }
    }
}

impl FromStr for ObjectSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('-') {
            None => Ok(Self::Fixed(parse_bytes(text)?)),
            Some((least, most)) => {
                let (least_bytes, most_bytes) = (parse_bytes(least)?, parse_bytes(most)?);
                if least_bytes > most_bytes {
                    return Err(format!("'{text}': the least is more than the most"));
                }
                Ok(Self::Between { least_bytes, most_bytes })
            }
        }
    }
}

impl fmt::Display for ObjectSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(f, "{bytes}"),
            Self::Between { least_bytes, most_bytes } => write!(f, "{least_bytes}-{most_bytes}"),
        }
    }
}

/// The size of every object of a run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    least_bytes: u64,
    steps: u64,
    key: u64,
}

impl Sizes {
    /// Bytes of an object.
    #[inline]
    pub fn of(&self, object: u64) -> u64 {
        if self.steps == 1 {
            return self.least_bytes;
        }
        let step = (u128::from(mix(object ^ self.key)) * u128::from(self.steps)) >> 64;
        self.least_bytes + step as u64 * WORD_BYTES as u64
    }

    /// The places of the first `count` objects when they lie side by side: as they are if all have
    /// one size, else aligned to 16 bytes. The last item is the size of the whole.
    pub fn places(self, count: u64) -> impl Iterator<Item = u64> {
        let step = move |object| match self.steps {
            1 => self.least_bytes,
            _ => self.of(object).next_multiple_of(DENSE_ALIGN),
        };
        let mut next = 0;
        (0..=count).map(move |object| {
            let place = next;
            if object < count {
                next += step(object);
            }
            place
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_size_and_ranges_are_understood_or_refused() {
        assert_eq!("4K".parse(), Ok(ObjectSize::Fixed(4096)));
        assert_eq!(parse_bytes("1.5G"), Ok(3 << 29));
        let range = ObjectSize::Between { least_bytes: 128, most_bytes: 2048 };
        assert_eq!("128-2K".parse(), Ok(range));
        assert_eq!(range.to_string().parse(), Ok(range));
        for wrong in ["", "-", "128-", "-128", "2048-128", "1-2-3", "0", "4X", "NaN"] {
            assert!(wrong.parse::<ObjectSize>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_go_through_json() {
        for size in ["512", "128-2048"] {
            let size: ObjectSize = size.parse().unwrap_or(ObjectSize::Fixed(0));
            let text = serde_json::to_string(&size).unwrap_or_default();
            assert_eq!(serde_json::from_str::<ObjectSize>(&text).ok(), Some(size), "{text}");
        }
    }

    #[test]
    fn random_sizes_are_uniform_and_those_of_the_seed() {
        let range = ObjectSize::Between { least_bytes: 128, most_bytes: 2048 };
        let (sizes, again, other) = (range.sizes(1), range.sizes(1), range.sizes(2));
        let drawn: Vec<u64> = (0..100_000).map(|object| sizes.of(object)).collect();
        assert!(drawn.iter().all(|&size| (128..=2048).contains(&size) && size % 8 == 0));
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&128), Some(&2048)));
        let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
        assert!((mean - range.mean_bytes() as f64).abs() < 10.0, "{mean}");
        assert!((0..1000).all(|object| sizes.of(object) == again.of(object)));
        assert!((0..1000).any(|object| sizes.of(object) != other.of(object)));
    }

    #[test]
    fn places_are_dense_aligned_and_do_not_overlap() {
        let fixed: Vec<u64> = ObjectSize::Fixed(24).sizes(1).places(3).collect();
        assert_eq!(fixed, [0, 24, 48, 72]);
        let sizes = ObjectSize::Between { least_bytes: 16, most_bytes: 64 }.sizes(3);
        let places: Vec<u64> = sizes.places(1000).collect();
        for (object, pair) in places.windows(2).enumerate() {
            let gap = pair[1] - pair[0] - sizes.of(object as u64);
            assert!(pair[0] % 16 == 0 && gap < 16, "object {object}: {pair:?}");
        }
    }
}
