//! Tier: how much of a sequence goes to a slow second tier (HybridSwap, III.C and III.D).
//!
//! A sequence is a run of pages that came in order and leave together. Its head stays on the SSD,
//! as many pages as the program works through while the second tier finds the next ones; so a head
//! is not needed where the sequence goes on from pages that are in the second tier already. What is
//! shorter than its head stays on the SSD as a whole.
//!
//! A bound on stalls makes the *shift ratio*: the share of now by the bound. Above one, heads grow
//! by it, and only that part of the sequences goes to the second tier.

/// One, as a shift ratio.
pub const SHIFT_ONE: u64 = 1000;

/// Pages of a head before anything is measured.
const HEAD_UNKNOWN: u64 = 64;
/// Pages that go to the second tier together at least: 64 KiB, of which the way there is a small
/// part on a disk that writes a log.
pub const RUN_LEAST: usize = 16;

/// What is known when a sequence leaves.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// How long a read of the second tier takes; 0 if none was made.
    pub disk_ns: u64,
    /// How long the program works on a page of a sequence; 0 if that is not known.
    pub page_ns: u64,
    /// The shift ratio, `SHIFT_ONE` for one.
    pub shift: u64,
}

impl Seen {
    /// How many of the first of `pages` pages stay on the SSD: all of them if the rest would be
    /// too short. The sequence may go on from pages that are in the second tier already. `credit`
    /// is what sequences before left, to be kept for the next one.
    pub fn on_ssd(&self, pages: usize, goes_on: bool, credit: &mut u64) -> usize {
        let shift = self.shift.max(SHIFT_ONE);
        let head = match (goes_on, self.disk_ns, self.page_ns) {
            (true, _, _) => 0,
            (_, 0, _) | (_, _, 0) => HEAD_UNKNOWN,
            (_, disk_ns, page_ns) => disk_ns.div_ceil(page_ns),
        };
        let head = usize::try_from(head.saturating_mul(shift) / SHIFT_ONE).unwrap_or(usize::MAX);
        if pages < head.saturating_add(RUN_LEAST) {
            return pages;
        }
        // Of all pages that might go, one in `shift` does.
        *credit += (pages - head) as u64 * SHIFT_ONE * SHIFT_ONE / shift;
        let price = (pages - head) as u64 * SHIFT_ONE;
        if *credit < price {
            return pages;
        }
        *credit -= price;
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen = Seen { disk_ns: 8_000_000, page_ns: 100_000, shift: 0 };

    #[test]
    fn the_head_is_as_long_as_the_disk_takes() {
        assert_eq!(SEEN.on_ssd(256, false, &mut 0), 80);
        assert_eq!(SEEN.on_ssd(256, true, &mut 0), 0, "the second tier is at work already");
        assert_eq!(SEEN.on_ssd(80, false, &mut 0), 80);
        assert_eq!(SEEN.on_ssd(80 + RUN_LEAST - 1, false, &mut 0), 80 + RUN_LEAST - 1);
        assert_eq!(SEEN.on_ssd(80 + RUN_LEAST, false, &mut 0), 80);
        assert_eq!(SEEN.on_ssd(RUN_LEAST - 1, true, &mut 0), RUN_LEAST - 1, "too few");
        let fast = Seen { page_ns: 1, ..SEEN };
        assert_eq!(fast.on_ssd(256, false, &mut 0), 256, "the disk would be waited for");
        let unknown = Seen { disk_ns: 0, page_ns: 0, ..SEEN };
        assert_eq!(unknown.on_ssd(256, false, &mut 0), 64);
    }

    #[test]
    fn above_the_bound_heads_grow_and_fewer_sequences_go() {
        let shifted = Seen { shift: 2 * SHIFT_ONE, ..SEEN };
        let mut credit = 0;
        let went: Vec<usize> = (0..4).map(|_| shifted.on_ssd(256, false, &mut credit)).collect();
        assert_eq!(went, [256, 160, 256, 160]);
        let far = Seen { shift: 100 * SHIFT_ONE, ..SEEN };
        let mut credit = 0;
        let went = (0..1000).filter(|_| far.on_ssd(256, true, &mut credit) == 0).count();
        assert_eq!(went, 10);
    }
}
