//! Balance: whether RAM is worth more in the page buffer or in the object cache.
//!
//! A page of the page buffer saves the fault that an object in the cache costs (SSDAlloc, section
//! 3.2, fixes its size at 25 MB instead); a byte of the cache saves a part of a read from the
//! device. Both savings are observed. An object that a slightly larger page buffer would have kept
//! comes back soon after it left; one that a larger cache would have kept is known to the ghost.
//!
//! A program that goes round in a set that is a third larger than the page buffer has no object
//! that comes back soon, and yet all of them would stay in a larger one. So what comes back is
//! counted by how much larger the page buffer would have to be, and the smallest growth that
//! clearly saves more per byte than the cache does is enough (the look-ahead of Qureshi and Patt,
//! MICRO 2006, weighs such growths for parts of a processor's cache).
//!
//! Pure: observations in, a decision out.

/// Observations since the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// Faults on cached objects, by the growth that would have saved them.
    pub returns: Returns,
    /// The cost of such a fault, nanoseconds.
    pub fault_ns: u64,
    /// Bytes of a margin of the page buffer, page tables included.
    pub margin_bytes: u64,
    /// Reads of objects that were among the last to leave the cache, `ghost_bytes` of them.
    pub ghost_reads: u64,
    /// The cost of a read, nanoseconds.
    pub read_ns: u64,
    /// Bytes of cache that would have saved them.
    pub ghost_bytes: u64,
}

/// Faults on cached objects: those that the page buffer would have kept if it were larger by
/// `GROWTHS[i]` margins, and not by fewer.
pub type Returns = [u64; GROWTHS.len()];

/// Growths of the page buffer that are weighed, in margins.
pub const GROWTHS: [u64; 4] = [1, 3, 7, 15];

/// Which growth would have kept an object that left so many whole margins ago.
pub fn growth(margins: u64) -> Option<usize> {
    GROWTHS.iter().position(|&most| margins <= most)
}

/// With fewer operations the cost stays what it was.
const OPERATIONS_LEAST: u64 = 16;

/// The moving average of an operation's cost, which was `before_ns`; since then so many took so
/// long, which counts a quarter.
pub fn smoothed_ns(before_ns: u64, operations: u64, ns: u64) -> u64 {
    if operations < OPERATIONS_LEAST {
        return before_ns;
    }
    (3 * before_ns + ns / operations) / 4
}

/// Where RAM should move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// From the object cache to the page buffer: growth by so many margins would pay.
    ToPageBuffer(usize),
    /// From the page buffer to the object cache.
    ToObjectCache,
    /// Neither is clearly better.
    Stay,
}

/// With fewer events, of both kinds together, nothing is decided.
pub const EVENTS_LEAST: u64 = 64;

/// One side must save so many eighths of what the other saves: moving the border has a cost, too.
const CLEARLY_EIGHTHS: u128 = 10;

/// How many events a decision rests on. Every program has objects that come back late, so many of
/// them are needed.
pub fn evidence(returns: &Returns, ghost_reads: u64) -> u64 {
    returns[0] + returns[1..].iter().sum::<u64>() / LATE_PART + ghost_reads
}

/// So many late returns count like one soon.
const LATE_PART: u64 = 4;

/// Which side saves more time per byte, if the page buffer has `part` of what the tables leave.
fn shift(observed: &Observed, part: usize) -> Shift {
    let Observed { returns, fault_ns, margin_bytes, ghost_reads, read_ns, ghost_bytes } = *observed;
    if evidence(&returns, ghost_reads) < EVENTS_LEAST {
        return Shift::Stay;
    }
    let saved = |events: u64, ns: u64| u128::from(events) * u128::from(ns);
    let object_cache = saved(ghost_reads, read_ns);
    let (mut kept, mut is_cache_better) = (0, true);
    for (margins, returned) in GROWTHS.into_iter().zip(returns) {
        kept += returned;
        let needed = part + part / MARGIN_PART * margins as usize;
        if margins > GROWTHS[0] && needed > PART_ALL {
            break;
        }
        // a / bytes against b / ghost, without division. On average, half of another margin had
        // left.
        let bytes = margin_bytes * (2 * margins + 1) / 2;
        let page_buffer = saved(kept, fault_ns) * u128::from(ghost_bytes.max(1));
        let object_cache = object_cache * u128::from(bytes.max(1));
        if page_buffer * 8 > object_cache * CLEARLY_EIGHTHS {
            return Shift::ToPageBuffer(margins as usize);
        }
        is_cache_better &= object_cache * 8 > page_buffer * CLEARLY_EIGHTHS;
    }
    if is_cache_better { Shift::ToObjectCache } else { Shift::Stay }
}

/// All that the tables leave, in the unit of the shares: 65536ths.
const PART_ALL: usize = 1 << 16;
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
/// It grows by less at a time, for each margin that it is to grow by: each page that it takes from
/// the cache may drive out several compressed ones, which then have to be read.
pub const GROWTH_PART: usize = 64;
/// Events between two decisions.
pub const EVENTS: u64 = 2048;
/// Departures are forgotten by this part at each decision.
const FORGOTTEN_PART: u64 = 16;
/// The margin that is watched: this part of the page buffer.
pub const MARGIN_PART: usize = 8;

/// Objects that left the cache for the store lately: `before` as they were, and the new ones.
pub fn departed(before: u64, departures: u64) -> u64 {
    before - before.div_ceil(FORGOTTEN_PART) + departures
}

/// The page buffer's next share, after one of `part`.
pub fn next_part(part: usize, observed: &Observed, departed: u64) -> usize {
    let step = |by: usize| (part / by).max(1);
    let feared = Observed { ghost_reads: observed.ghost_reads + departed, ..*observed };
    let may_grow = part < PART_SURE || matches!(shift(&feared, part), Shift::ToPageBuffer(_));
    let moved = match shift(observed, part) {
        Shift::ToPageBuffer(_) if !may_grow => part,
        Shift::ToPageBuffer(margins) => part + step(GROWTH_PART) * margins,
        Shift::ToObjectCache => part - step(STEP_PART),
        Shift::Stay => part,
    };
    moved.clamp(PART_LEAST, PART_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Observed = Observed {
        returns: [1500, 0, 0, 0],
        fault_ns: 4_000,
        margin_bytes: 4 << 20,
        ghost_reads: 1000,
        read_ns: 100_000,
        ghost_bytes: 100 << 20,
    };

    #[test]
    fn ram_goes_where_a_byte_saves_more_time() {
        let shift = |observed| shift(&observed, PART_FIRST);
        assert_eq!(shift(EVEN), Shift::Stay);
        let returns = |returns| shift(Observed { returns, ..EVEN });
        assert_eq!(returns([2000, 0, 0, 0]), Shift::ToPageBuffer(1));
        assert_eq!(returns([1000, 0, 0, 0]), Shift::ToObjectCache);
        assert_eq!(shift(Observed { ghost_reads: 1300, ..EVEN }), Shift::ToObjectCache);
        assert_eq!(shift(Observed { read_ns: 200_000, ..EVEN }), Shift::ToObjectCache);
    }

    #[test]
    fn what_only_a_much_larger_page_buffer_keeps_counts_if_there_can_be_one() {
        let returns = |returns| Observed { returns, ..EVEN };
        assert_eq!(shift(&returns([0, 0, 7000, 0]), PART_FIRST), Shift::Stay);
        assert_eq!(shift(&returns([0, 0, 20_000, 0]), PART_FIRST), Shift::ToPageBuffer(7));
        assert_eq!(shift(&returns([0, 0, 20_000, 0]), PART_SURE), Shift::ToObjectCache);
        assert_eq!(shift(&returns([0, 0, 0, 20_000]), PART_FIRST), Shift::ToObjectCache);
        assert_eq!(shift(&returns([0, 0, 0, 20_000]), PART_FIRST / 2), Shift::ToPageBuffer(15));
        for (margins, growth) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (15, 3)] {
            assert_eq!(super::growth(margins), Some(growth));
        }
        assert_eq!(super::growth(16), None);
    }

    #[test]
    fn a_cost_follows_what_is_measured_and_ignores_a_few_operations() {
        assert_eq!(smoothed_ns(10_000, 0, 0), 10_000);
        assert_eq!(smoothed_ns(10_000, 15, 15_000_000), 10_000);
        assert_eq!(smoothed_ns(20_000, 1000, 1000 * 100_000), 40_000);
        let settled = (0..40).fold(10_000, |ns, _| smoothed_ns(ns, 1000, 1000 * 100_000));
        assert!((99_000..=100_000).contains(&settled), "{settled}");
    }

    #[test]
    fn little_evidence_moves_nothing() {
        let little = Observed { returns: [60, 0, 0, 0], ghost_reads: 0, ..EVEN };
        assert_eq!(shift(&little, PART_FIRST), Shift::Stay);
        assert_eq!(shift(&Observed::default(), PART_FIRST), Shift::Stay);
    }
}
