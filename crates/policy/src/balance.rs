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
//! Where objects are smaller in the cache than in the page buffer, there may be a border with which
//! all of them are in RAM (`fitting_part`). Beyond it each page of the page buffer drives several
//! objects out of RAM, and to come back to it ends all reads. So beyond it all reads count, by the
//! bytes between the two. What they cost is remembered, and the page buffer grows beyond it again
//! only if it saves more than that. Until it was there, an object that it would drive out is taken
//! for one that is touched as often as the others in the cache.
//!
//! Pure: observations in, a decision out.

use crate::PAGE;

/// Observations since the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
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
    /// Bytes that would have saved them if they were the cache's instead of the page buffer's
    /// (`bytes_for`).
    pub ghost_bytes: u64,
    /// What tells how much fits.
    pub whole: Whole,
}

/// What is weighed where all objects may fit in RAM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whole {
    /// All faults on cached objects.
    pub faults: u64,
    /// All reads of objects that were wanted.
    pub reads: u64,
    /// Objects that left the cache for the store. From a cache that none leaves, none has to be
    /// read because it is small.
    pub departures: u64,
    /// Bytes of both sides together.
    pub all_bytes: u64,
    /// Bytes of cached objects.
    pub cached_bytes: u64,
    /// Of one of them, in the mean.
    pub mean_bytes: u64,
    /// The page buffer's largest share that leaves all objects in RAM, if that is known.
    pub fit: Option<usize>,
    /// How long all that took, in any unit that stays the same.
    pub elapsed: u64,
}

/// Faults on cached objects: those that the page buffer would have kept if it were larger by
/// `GROWTHS[i]` margins, and not by fewer.
pub type Returns = [u64; GROWTHS.len()];

/// Growths of the page buffer that are weighed, in margins.
pub const GROWTHS: [u32; 4] = [1, 3, 7, 15];

/// Which growth would have kept an object that left so many whole margins ago.
pub fn growth(margins: u64) -> Option<usize> {
    GROWTHS.iter().position(|&most| margins <= u64::from(most))
}

/// Bytes that the page buffer must give the cache to keep so many more objects in RAM, which have
/// `mean` bytes each there. Each page that it gives drives an object out of it, too, to the cache:
/// where objects are hardly smaller there, next to nothing is gained, and the page buffer saves
/// faults.
pub fn bytes_for(objects: usize, mean: usize) -> usize {
    let gained_by_page = PAGE.saturating_sub(mean).max(PAGE / GAIN_PART);
    objects * mean * PAGE / gained_by_page
}

/// An object is taken for smaller in the cache by so much of a page at least: the cache learns
/// from what comes back which objects are used, the page buffer does not.
const GAIN_PART: usize = 32;

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

/// One side must save so many times what the other saves: moving the border has a cost, too.
const CLEARLY: f64 = 1.25;

/// How many events a decision rests on. Every program has objects that come back late, so many of
/// them are needed.
pub fn evidence(returns: &Returns, ghost_reads: u64) -> u64 {
    returns[0] + returns[1..].iter().sum::<u64>() / LATE_PART + ghost_reads
}

/// So many late returns count like one soon.
const LATE_PART: u64 = 4;

/// Which side saves more time per byte, if the page buffer has `part` of what the tables leave and
/// a byte of the cache saves `cache` nanoseconds.
fn shift(observed: &Traffic, part: usize, cache: f64) -> Shift {
    let Traffic { returns, fault_ns, margin_bytes, ghost_reads, .. } = *observed;
    if evidence(&returns, ghost_reads) < EVENTS_LEAST {
        return Shift::Stay;
    }
    let (mut kept, mut is_cache_better) = (0, true);
    for (margins, returned) in GROWTHS.into_iter().zip(returns) {
        kept += returned;
        let needed = part + part / MARGIN_PART * margins as usize;
        if margins > GROWTHS[0] && needed > PART_ALL {
            break;
        }
        // On average, half of another margin had left.
        let bytes = margin_bytes * u64::from(2 * margins + 1) / 2;
        let page_buffer = saved_by_byte(kept, fault_ns, bytes);
        if page_buffer > cache * CLEARLY {
            return Shift::ToPageBuffer(margins as usize);
        }
        is_cache_better &= cache > page_buffer * CLEARLY;
    }
    if is_cache_better { Shift::ToObjectCache } else { Shift::Stay }
}

/// Nanoseconds that a byte saves, where so many bytes save so many events.
fn saved_by_byte(events: u64, ns: u64, bytes: u64) -> f64 {
    events as f64 * ns as f64 / bytes.max(1) as f64
}

/// All that the tables leave, in the unit of the shares: 65536ths.
pub const PART_ALL: usize = 1 << 16;
/// The page buffer's share of what the tables leave, in 65536ths: at first, at least and at most.
pub const PART_FIRST: usize = 1 << 15;
/// See `PART_FIRST`.
pub const PART_LEAST: usize = 1 << 8;
/// See `PART_FIRST`.
pub const PART_MOST: usize = 7 << 13;
/// Up to this share the page buffer grows by what is seen. From here on, where the cache is small,
/// each object that its growth drives out is also taken for a read to come: when the read is seen,
/// it is too late. Where a read is dear, so is each that left in the decisions before.
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

/// What it takes to make the page of a dense object, nanoseconds: measured, and nearly the same for
/// all pages.
const UNPRESS_NS: u64 = 4_000;

/// It goes on while it saves so much of the time that it takes.
const DENSE_GOES_ON: f64 = 0.7;

/// With fewer outcomes of dense objects nothing is decided about them.
pub const DENSE_OUTCOMES: u64 = 1024;

/// What making objects dense takes, and what a read would.
#[derive(Clone, Copy, Debug)]
pub struct DenseCosts {
    /// Bytes of objects before they became dense.
    pub bytes_before: u64,
    /// And of the same objects since.
    pub bytes: u64,
    /// Nanoseconds of CPU time to make one dense.
    pub press_ns: u64,
    /// Nanoseconds of a read of the store.
    pub read_ns: u64,
}

/// Whether it pays to make objects dense instead of letting them leave the cache: `back` of them
/// came back from there, and `left` have left it all the same.
///
/// Not each that came back saved a read. Of objects as large as before the cache would hold fewer,
/// in proportion to their bytes; those that it would hold would have come back, too.
///
/// Where it is done already (`is_done`) it may cost somewhat more than it saves: to end it, dense
/// objects leave.
pub fn dense_pays(is_done: bool, back: u64, left: u64, costs: &DenseCosts) -> bool {
    let &DenseCosts { bytes_before, bytes, press_ns, read_ns } = costs;
    let saved = bytes_before.saturating_sub(bytes) as f64 / bytes_before.max(1) as f64;
    let saved_ns = back as f64 * saved * read_ns as f64;
    let taken_ns = (back * UNPRESS_NS + (back + left) * press_ns) as f64;
    saved_ns > taken_ns * if is_done { DENSE_GOES_ON } else { 1.0 }
}

/// Objects that left the cache for the store lately: `before` as they were, and the new ones.
pub fn departed(before: u64, departures: u64) -> u64 {
    before - before.div_ceil(FORGOTTEN_PART) + departures
}

/// The part of RAM that stays free in the cache where all objects are to fit: it has several size
/// classes, and the page buffer stays below its limit.
const FREE_PART: usize = 32;
/// Objects must be smaller in the cache by so much of a page, or a border that moves makes no room.
const SMALLER_PART: usize = 8;
/// From so much of RAM on the objects in the cache tell how large the others would be there.
const TELLING_PART: usize = 16;
/// What was feared is forgotten by a part of so many at each decision.
const FEAR_LASTS: f64 = 64.0;
/// And where what is there is seen, by one of so many.
const FEAR_LASTS_BEYOND: f64 = 8.0;
/// A share that all objects fit with is followed down to this one before a read is seen, where each
/// page that the page buffer gives up keeps at least one more in RAM; elsewhere to `PART_FIRST`.
const PART_FOLLOWS: usize = PART_FIRST / 4;

/// The page buffer's largest share of `pages` that leaves all of the `touched` objects in RAM, if
/// those that it does not hold take as much in the cache as the `cached` ones do.
pub fn fitting_part(
    pages: usize,
    touched: usize,
    cached: usize,
    cached_bytes: usize,
) -> Option<usize> {
    let mean = mean_where_it_tells(pages, cached, cached_bytes)?;
    let smaller = smaller_by(mean)?;
    let rest = ((pages - pages / FREE_PART) * PAGE).checked_sub(touched.checked_mul(mean)?)?;
    let part = ((rest / smaller) << 16) / pages;
    (part >= PART_LEAST).then_some(part.min(PART_MOST))
}

/// The page buffer's least share of `pages`. Objects that hardly become smaller in the cache take
/// as much of RAM there, and cost a fault: the cache is for learning which of them are used.
pub fn least_part(pages: usize, cached: usize, cached_bytes: usize) -> usize {
    match mean_where_it_tells(pages, cached, cached_bytes) {
        Some(mean) if smaller_by(mean).is_none() => PART_SURE,
        _ => PART_LEAST,
    }
}

/// Bytes that an object takes in the cache, if enough are there to tell.
fn mean_where_it_tells(pages: usize, cached: usize, cached_bytes: usize) -> Option<usize> {
    (cached_bytes >= pages * PAGE / TELLING_PART).then(|| cached_bytes / cached.max(1))
}

/// Bytes by which an object of so many in the cache is smaller there, if that is worth anything.
fn smaller_by(mean: usize) -> Option<usize> {
    PAGE.checked_sub(mean).filter(|&bytes| bytes >= PAGE / SMALLER_PART)
}

/// Whether what is out of RAM clearly costs more than the page buffer saves, if all objects are
/// touched alike. Each page that the page buffer gives up costs a fault, and keeps
/// `PAGE / mean - 1` objects from being read. What the page buffer holds is touched more, so that
/// must save twice as much.
fn is_read_dear(observed: &Traffic) -> bool {
    let Traffic { fault_ns, read_ns, whole: Whole { mean_bytes, .. }, .. } = *observed;
    let saved = (PAGE as u64).saturating_sub(mean_bytes) * read_ns.saturating_sub(fault_ns);
    saved > 2 * mean_bytes * fault_ns
}

/// The border between page buffer and object cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Border {
    /// The page buffer's share, in 65536ths.
    pub part: usize,
    /// It does not follow what leaves all objects in RAM: it has grown beyond because that saved
    /// more, or what is out of RAM is not dear (`is_read_dear`).
    pub is_beyond: bool,
    /// Nanoseconds that a byte of the page buffer beyond that cost lately, by `elapsed`; none if it
    /// was never there.
    pub feared: Option<f64>,
}

impl Border {
    /// The first one.
    pub const FIRST: Border = Border { part: PART_FIRST, is_beyond: false, feared: None };

    /// The border before anything is observed: objects that need not leave RAM stay there. They
    /// have so many bytes in the cache, in the mean.
    pub fn following(self, fit: Option<usize>, mean_bytes: usize) -> Border {
        let follows = if mean_bytes <= PAGE / 2 { PART_FOLLOWS } else { PART_FIRST };
        let least = self.part.min(follows);
        match fit {
            Some(fit) if !self.is_beyond => Border { part: self.part.min(fit.max(least)), ..self },
            _ => self,
        }
    }

    /// The border with a least share of the page buffer.
    pub fn at_least(self, part: usize) -> Border {
        Border { part: self.part.max(part), ..self }
    }

    /// The next border. So many objects have left the cache lately.
    pub fn next(self, observed: &Traffic, departed: u64) -> Border {
        let Traffic { ghost_reads, read_ns, ghost_bytes, whole, .. } = *observed;
        let Whole { departures, elapsed, .. } = whole;
        let part = self.part;
        let step = |by: usize| (part / by).max(1);
        let ghost_reads = ghost_reads.min(departures);
        let of_reads = |reads: u64| saved_by_byte(reads, read_ns, ghost_bytes);
        let beyond = whole.fit.filter(|&fit| fit < part).map_or(0.0, |fit| {
            let bytes = (whole.all_bytes >> 16) * (part - fit).max(step(GROWTH_PART)) as u64;
            saved_by_byte(whole.reads.min(departures), read_ns, bytes)
        });
        let elapsed = elapsed.max(1) as f64;
        let as_others = || saved_by_byte(whole.faults, read_ns, whole.cached_bytes) / elapsed;
        let feared = self.feared.or_else(|| whole.fit.map(|_| as_others()));
        let is_there = whole.fit.is_some_and(|fit| fit < part);
        let lasts = if is_there { FEAR_LASTS_BEYOND } else { FEAR_LASTS };
        let feared = feared.map(|ns| (ns - ns / lasts).max(beyond / elapsed));
        let cache = of_reads(ghost_reads).max(beyond);
        let grows = |cache: f64| matches!(shift(observed, part, cache), Shift::ToPageBuffer(_));
        let is_dear = is_read_dear(observed);
        let to_come = if is_dear { departed } else { departures };
        let moved = match shift(observed, part, cache) {
            Shift::ToPageBuffer(_)
                if part >= PART_SURE && !grows(of_reads(ghost_reads + to_come)) =>
            {
                part
            }
            Shift::ToPageBuffer(margins) => {
                let grown = part + step(GROWTH_PART) * margins;
                let dares = || grows(cache.max(feared.unwrap_or(0.0) * elapsed));
                match whole.fit {
                    Some(fit) if grown > fit && !dares() => fit.max(part).min(grown),
                    // The first step beyond is a small one.
                    Some(fit) if part < fit => grown.min(fit + step(GROWTH_PART)),
                    _ => grown,
                }
            }
            Shift::ToObjectCache => {
                let shrunk = part - step(STEP_PART);
                // Not further than what ends the reads. Where all fits, what is still read left RAM
                // before.
                whole.fit.map_or(shrunk, |fit| shrunk.max(fit.min(part)))
            }
            Shift::Stay => part,
        };
        let part = moved.clamp(PART_LEAST, PART_MOST);
        let is_beyond = whole.fit.is_some_and(|fit| part > fit) || departed > 0 && !is_dear;
        Border { part, is_beyond, feared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Traffic = Traffic {
        returns: [1500, 0, 0, 0],
        fault_ns: 4_000,
        margin_bytes: 4 << 20,
        ghost_reads: 1000,
        read_ns: 100_000,
        ghost_bytes: 100 << 20,
        whole: WHOLE,
    };
    const WHOLE: Whole = Whole {
        faults: 3000,
        reads: 1000,
        departures: u64::MAX,
        all_bytes: 64 << 20,
        cached_bytes: 32 << 20,
        mean_bytes: 1024,
        fit: None,
        elapsed: 1_000_000_000,
    };

    fn shift(observed: &Traffic, part: usize) -> Shift {
        let Traffic { ghost_reads, read_ns, ghost_bytes, .. } = *observed;
        super::shift(observed, part, saved_by_byte(ghost_reads, read_ns, ghost_bytes))
    }

    #[test]
    fn ram_goes_where_a_byte_saves_more_time() {
        let shift = |observed: Traffic| shift(&observed, PART_FIRST);
        assert_eq!(shift(EVEN), Shift::Stay);
        let returns = |returns| shift(Traffic { returns, ..EVEN });
        assert_eq!(returns([2000, 0, 0, 0]), Shift::ToPageBuffer(1));
        assert_eq!(returns([1000, 0, 0, 0]), Shift::ToObjectCache);
        assert_eq!(shift(Traffic { ghost_reads: 1300, ..EVEN }), Shift::ToObjectCache);
        assert_eq!(shift(Traffic { read_ns: 200_000, ..EVEN }), Shift::ToObjectCache);
    }

    #[test]
    fn objects_that_are_hardly_smaller_in_the_cache_belong_in_the_page_buffer() {
        let returns = [100, 0, 0, 0];
        let with_mean = |mean| {
            let ghost_bytes = bytes_for(1000, mean) as u64;
            shift(&Traffic { returns, ghost_reads: 50, ghost_bytes, ..EVEN }, PART_FIRST)
        };
        assert_eq!(bytes_for(3, PAGE / 2), 3 * PAGE, "half a page gained for each that moves");
        assert_eq!(with_mean(PAGE / 4), Shift::ToObjectCache);
        assert_eq!(with_mean(PAGE), Shift::ToPageBuffer(1));
    }

    #[test]
    fn what_only_a_much_larger_page_buffer_keeps_counts_if_there_can_be_one() {
        let returns = |returns| Traffic { returns, ..EVEN };
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
    fn objects_become_dense_if_that_saves_reads_that_take_longer() {
        // Half as large, 12 us each, where a read takes 70.
        let costs = DenseCosts { bytes_before: 2, bytes: 1, press_ns: 12_000, read_ns: 70_000 };
        let pays = |back, left, costs: &DenseCosts| dense_pays(false, back, left, costs);
        assert!(pays(1000, 0, &costs));
        assert!(pays(400, 600, &costs) && !pays(350, 650, &costs));
        assert!(dense_pays(true, 350, 650, &costs) && !dense_pays(true, 150, 850, &costs));
        assert!(!pays(0, 1000, &DenseCosts { read_ns: 10_000_000, ..costs }), "a scan");
        assert!(!pays(1000, 0, &DenseCosts { read_ns: 30_000, ..costs }), "shared reads");
        assert!(!pays(1000, 0, &DenseCosts { press_ns: 32_000, ..costs }), "slow to press");
        let little = DenseCosts { bytes_before: 4, bytes: 3, ..costs };
        assert!(pays(1000, 0, &little) && !pays(850, 150, &little), "little smaller");
    }

    #[test]
    fn little_evidence_moves_nothing() {
        let little = Traffic { returns: [60, 0, 0, 0], ghost_reads: 0, ..EVEN };
        assert_eq!(shift(&little, PART_FIRST), Shift::Stay);
        assert_eq!(shift(&Traffic::default(), PART_FIRST), Shift::Stay);
    }

    const FIT: usize = PART_FIRST / 2;

    /// At `part` where `FIT` would leave all in RAM, with few reads, by what the ghost knows of.
    fn beside_fit(reads: u64) -> Traffic {
        let (ghost_reads, departures) = (reads, reads);
        let whole = Whole { fit: Some(FIT), reads, departures, ..WHOLE };
        Traffic { ghost_reads, whole, ..EVEN }
    }

    #[test]
    fn what_fits_is_what_the_page_buffer_leaves_to_the_cache_at_its_size_there() {
        // Of 1000 pages 31 stay free. The page buffer gets 292 and the others of 3000, at a quarter
        // of a page each, 677.
        assert_eq!(fitting_part(1000, 3000, 1000, 1000 * 1024), Some((292 << 16) / 1000));
        assert_eq!(fitting_part(1000, 969 * 4, 1000, 1000 * 1024), None, "not at all");
        assert_eq!(fitting_part(1000, 3000, 1000, 1000 * 3600), None, "hardly smaller");
        assert_eq!(fitting_part(1000, 3000, 100, 100 * 1024), None, "too few are known");
        assert_eq!(fitting_part(1000, 900, 400, 400 * 1024), Some(PART_MOST));
    }

    #[test]
    fn beyond_what_fits_few_reads_are_enough_to_come_back_and_no_further() {
        let part = FIT + FIT / 16;
        let at = Border { part, is_beyond: true, ..Border::FIRST };
        let without = at.next(
            &Traffic { whole: Whole { fit: None, ..beside_fit(200).whole }, ..beside_fit(200) },
            0,
        );
        assert!(without.part > part, "{without:?}");
        let back = at.next(&beside_fit(200), 0);
        assert_eq!((back.part, back.is_beyond), (FIT, false));
        // Where all fits, what is still read left RAM before.
        let there = Border { part: FIT - FIT / 16, ..Border::FIRST };
        assert_eq!(there.next(&beside_fit(2000), 0).part, there.part);
        let far = Border { part: 2 * FIT, ..at };
        let nearer = far.next(&beside_fit(2000), 0);
        assert_eq!((nearer.part, nearer.is_beyond), (2 * FIT - 2 * FIT / STEP_PART, true));
    }

    #[test]
    fn what_was_read_beyond_is_feared_for_a_while_and_not_if_more_is_to_be_gained() {
        let gains = |soon| Traffic { returns: [soon, 0, 0, 0], ..beside_fit(0) };
        let beyond = Border { part: FIT + FIT / 16, is_beyond: true, feared: Some(0.0) };
        let mut border = beyond.next(&beside_fit(200), 0);
        let mut decisions = 0;
        while border.part == FIT {
            border = border.next(&gains(1500), 0);
            decisions += 1;
            assert!(decisions < 1000, "it is never tried again");
        }
        assert!(border.is_beyond && decisions > 20, "{decisions}");
        let border = beyond.next(&beside_fit(200), 0);
        assert!(border.next(&gains(100_000), 0).part > FIT);
    }

    #[test]
    fn before_it_was_beyond_what_fits_objects_there_count_as_the_others() {
        let border = Border { part: FIT, ..Border::FIRST };
        let gains = |soon| Traffic {
            returns: [soon, 0, 0, 0],
            whole: Whole { faults: 20_000, ..beside_fit(0).whole },
            read_ns: 10_000,
            ..beside_fit(0)
        };
        assert_eq!(border.next(&gains(2000), 0).part, FIT);
        let grown = border.next(&gains(20_000), 0);
        assert_eq!((grown.part, grown.is_beyond), (FIT + FIT / GROWTH_PART, true));
    }

    #[test]
    fn once_objects_are_out_of_ram_it_follows_what_fits_only_where_reads_are_dear() {
        let at = Border { part: PART_MOST, ..Border::FIRST };
        let of = |mean_bytes, fault_ns, read_ns| {
            let whole = Whole { mean_bytes, departures: 100, ..WHOLE };
            at.next(&Traffic { returns: [5000, 0, 0, 0], fault_ns, read_ns, whole, ..EVEN }, 1000)
        };
        // Objects of Python, and lines that two threads sort.
        assert_eq!(of(1100, 9_000, 70_000).following(Some(FIT), 1100).part, FIT);
        assert_eq!(of(2120, 23_000, 50_000).following(Some(FIT), 2120).part, PART_MOST);
    }

    #[test]
    fn objects_that_do_not_compress_are_in_the_cache_on_probation_only() {
        assert_eq!(least_part(256, 17, 16 * PAGE), PART_SURE);
        assert_eq!(least_part(256, 32, 16 * PAGE), PART_LEAST);
        assert_eq!(least_part(256, 8, 8 * PAGE), PART_LEAST, "too few are known");
        assert_eq!(Border::FIRST.at_least(PART_SURE).part, PART_SURE);
        assert_eq!(Border::FIRST.at_least(PART_LEAST), Border::FIRST);
    }

    #[test]
    fn a_cache_that_no_object_leaves_is_large_enough() {
        let remains = Traffic { whole: Whole { departures: 0, ..WHOLE }, returns: [0; 4], ..EVEN };
        assert_eq!(Border::FIRST.next(&remains, 0).part, PART_FIRST);
        let leaves = Traffic { whole: WHOLE, ..remains };
        assert!(Border::FIRST.next(&leaves, 0).part < PART_FIRST);
    }

    #[test]
    fn before_anything_is_seen_the_border_follows_what_fits_a_part_of_the_way() {
        let first = |fit, mean_bytes| Border::FIRST.following(fit, mean_bytes);
        assert_eq!(first(None, 1000), Border::FIRST);
        assert_eq!(first(Some(FIT), 1000).part, FIT);
        assert_eq!(first(Some(PART_LEAST), 1000).part, PART_FOLLOWS);
        assert_eq!(first(Some(PART_MOST), 1000).part, PART_FIRST);
        assert_eq!(first(Some(FIT), PAGE / 2 + 1).part, PART_FIRST, "little is gained");
        let beyond = Border { is_beyond: true, ..Border::FIRST };
        assert_eq!(beyond.following(Some(FIT), 1000), beyond);
        let small = Border { part: PART_LEAST, ..Border::FIRST };
        assert_eq!(small.following(Some(FIT), 1000), small);
    }
}
