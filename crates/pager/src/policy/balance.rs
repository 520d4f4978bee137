//! Balance: whether RAM is worth more in the page buffer or in the object cache.
//!
//! A page of the page buffer saves the fault that an object in the cache costs (SSDAlloc, section
//! 3.2, fixes its size at 25 MB instead); a byte of the cache saves a part of a read from the
//! device. Both savings are observed at the margin. An object that a slightly larger page buffer
//! would have kept comes back soon after it left; one that a larger cache would have kept is known
//! to the ghost.
//!
//! Pure: observations in, a decision out.

/// What was observed since the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// Faults on cached objects that had left the page buffer among its last `margin_bytes`.
    pub young_faults: u64,
    /// What such a fault costs, nanoseconds.
    pub fault_ns: u64,
    /// Bytes of page buffer, page tables included, that would have saved them.
    pub margin_bytes: u64,
    /// Reads of objects that were among the last to leave the cache, `ghost_bytes` of them.
    pub ghost_reads: u64,
    /// What a read costs, nanoseconds.
    pub read_ns: u64,
    /// Bytes of cache that would have saved them.
    pub ghost_bytes: u64,
}

/// What some operations took together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// How many they were.
    pub operations: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Spent {
    /// Both together.
    pub fn and(self, other: Spent) -> Spent {
        Spent { operations: self.operations + other.operations, ns: self.ns + other.ns }
    }
}

/// With fewer operations the cost stays what it was.
const OPERATIONS_LEAST: u64 = 16;

/// The moving average of an operation's cost, which was `before_ns`: the new measurement counts a
/// quarter.
pub fn smoothed_ns(before_ns: u64, spent: Spent) -> u64 {
    if spent.operations < OPERATIONS_LEAST {
        return before_ns;
    }
    (3 * before_ns + spent.ns / spent.operations) / 4
}

/// Where RAM should move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// From the object cache to the page buffer.
    ToPageBuffer,
    /// From the page buffer to the object cache.
    ToObjectCache,
    /// Neither is clearly better.
    Stay,
}

/// With fewer events, of both kinds together, nothing is decided.
pub const EVENTS_LEAST: u64 = 64;

/// One side must save so many eighths of what the other saves: moving the border has a cost, too.
const CLEARLY_EIGHTHS: u128 = 10;

/// Which side saves more time per byte.
pub fn shift(observed: &Observed) -> Shift {
    if observed.young_faults + observed.ghost_reads < EVENTS_LEAST {
        return Shift::Stay;
    }
    let saved = |events: u64, ns: u64| u128::from(events) * u128::from(ns);
    // a / margin against b / ghost, without division.
    let page_buffer =
        saved(observed.young_faults, observed.fault_ns) * u128::from(observed.ghost_bytes.max(1));
    let object_cache =
        saved(observed.ghost_reads, observed.read_ns) * u128::from(observed.margin_bytes.max(1));
    if page_buffer * 8 > object_cache * CLEARLY_EIGHTHS {
        Shift::ToPageBuffer
    } else if object_cache * 8 > page_buffer * CLEARLY_EIGHTHS {
        Shift::ToObjectCache
    } else {
        Shift::Stay
    }
}

/// The page buffer's share of what the tables leave, in 65536ths: at first, at least and at most.
pub const PART_FIRST: usize = 1 << 15;
/// See `PART_FIRST`.
pub const PART_LEAST: usize = 1 << 8;
/// See `PART_FIRST`.
pub const PART_MOST: usize = 7 << 13;
/// Up to this share the page buffer grows by what is seen. From here on, where the cache is small,
/// each object that its growth drives out is also taken for a read to come: when the read is seen,
/// it is too late.
pub const PART_SURE: usize = 3 << 14;
/// The page buffer's share shrinks by this part of itself.
const STEP_PART: usize = 8;
/// It grows by less at a time: each page that it takes from the cache may drive out several
/// compressed ones, which then have to be read.
pub const GROWTH_PART: usize = 64;
/// Events between two decisions.
pub const EVENTS: u64 = 2048;
/// Departures are forgotten by this part at each decision.
const FORGOTTEN_PART: u64 = 16;
/// The margin that is watched: this part of the page buffer.
pub const MARGIN_PART: usize = 8;

/// Bytes of the margin of a page buffer of so many: one margin and, on average, half of the one
/// that has begun.
pub fn margin_bytes(page_buffer_bytes: usize) -> u64 {
    (page_buffer_bytes / MARGIN_PART * 3 / 2) as u64
}

/// Objects that left the cache for the store lately: `before` as they were, and the new ones.
pub fn departed(before: u64, departures: u64) -> u64 {
    before - before.div_ceil(FORGOTTEN_PART) + departures
}

/// The page buffer's next share, after one of `part`.
pub fn next_part(part: usize, observed: &Observed, departed: u64) -> usize {
    let step = |by: usize| (part / by).max(1);
    let feared = Observed { ghost_reads: observed.ghost_reads + departed, ..*observed };
    let may_grow = part < PART_SURE || shift(&feared) == Shift::ToPageBuffer;
    let moved = match shift(observed) {
        Shift::ToPageBuffer if !may_grow => part,
        Shift::ToPageBuffer => part + step(GROWTH_PART),
        Shift::ToObjectCache => part - step(STEP_PART),
        Shift::Stay => part,
    };
    moved.clamp(PART_LEAST, PART_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Observed = Observed {
        young_faults: 1000,
        fault_ns: 4_000,
        margin_bytes: 4 << 20,
        ghost_reads: 1000,
        read_ns: 100_000,
        ghost_bytes: 100 << 20,
    };

    #[test]
    fn ram_goes_where_a_byte_saves_more_time() {
        assert_eq!(shift(&EVEN), Shift::Stay);
        assert_eq!(shift(&Observed { young_faults: 1300, ..EVEN }), Shift::ToPageBuffer);
        assert_eq!(shift(&Observed { ghost_reads: 1300, ..EVEN }), Shift::ToObjectCache);
        assert_eq!(shift(&Observed { read_ns: 200_000, ..EVEN }), Shift::ToObjectCache);
    }

    #[test]
    fn a_cost_follows_what_is_measured_and_ignores_a_few_operations() {
        let spent = |operations, ns| Spent { operations, ns };
        assert_eq!(smoothed_ns(10_000, spent(0, 0)), 10_000);
        assert_eq!(smoothed_ns(10_000, spent(15, 15_000_000)), 10_000);
        let dearer = spent(500, 500 * 90_000).and(spent(500, 500 * 110_000));
        assert_eq!(smoothed_ns(20_000, dearer), 40_000);
        let settled = (0..40).fold(10_000, |ns, _| smoothed_ns(ns, dearer));
        assert!((99_000..=100_000).contains(&settled), "{settled}");
    }

    #[test]
    fn little_evidence_moves_nothing() {
        let little = Observed { young_faults: 60, ghost_reads: 0, ..EVEN };
        assert_eq!(shift(&little), Shift::Stay);
        assert_eq!(shift(&Observed::default()), Shift::Stay);
    }
}
