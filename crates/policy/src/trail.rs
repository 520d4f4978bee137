//! Trail: tells by the faults of one thread that it repeats a sequence that the history knows, and
//! which pages come next in it.
//!
//! A read of a page that the history knows may begin a trail, at the place after that page: only
//! reads can be saved, so a thread that finds its pages in the cache looks for none. Two more
//! faults on pages that come there make it known. Pages that are in the page buffer by now do not
//! fault, so a fault may fall up to `NEAR` pages further on. A known trail asks for the next 4
//! pages, and for twice as many each time that half of them were passed, up to 32. From then on it
//! is four such windows ahead: small ones, so that several fetchers read at once and nobody waits
//! for the last page of a large one. Where pages come from a slow second tier the windows are of
//! 63: an arm has to move to each. If half a window of pages was asked for in vain, the next is
//! half as large, or the trail ends.
//!
//! A thread is on one trail at a time, and one may be beginning: so a few faults beside the trail,
//! or a jump to another place of it, cost little.
//!
//! Never: keeps anything between calls other than what the caller stores for the thread.

use crate::Memory;
use crate::history::{History, Writer};

/// Pages that are asked for together at most, ...
const WINDOW: u8 = 32;
/// ... and where some of them are slow. Four times that fit a byte, one window a fetcher's call.
const WINDOW_MAX: u8 = 63;
/// Windows of that size that a trail is ahead of the thread at most.
const WINDOWS_AHEAD: usize = 4;

/// Faults after the first one that make a trail known.
const KNOWN: u8 = 2;
/// The most pages that a thread may pass without a fault, beyond those that were asked for.
const NEAR: usize = 16;
const WINDOW_MIN: u8 = 4;
/// Faults in a row beside a trail that end it: one that may begin, and one that is known.
const MISSED_YOUNG: u8 = 2;
const MISSED_KNOWN: u8 = 32;

/// Pages that are asked for ahead take at most this part of the cache: they must stay until they
/// are used.
const CACHE_PART: usize = 64;
/// The same where some of it is slow.
const CACHE_PART_SLOW: usize = 16;

/// How many pages may be asked for ahead at a time, by the pages that the cache holds.
pub fn most_ahead(cache: usize, is_slow: bool) -> usize {
    let (part, window) = if is_slow { (CACHE_PART_SLOW, WINDOW_MAX) } else { (CACHE_PART, WINDOW) };
    (cache / part).clamp(WINDOW_MIN.into(), WINDOWS_AHEAD * usize::from(window))
}

/// A sequence of the history, or the place where one may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Trail {
    /// The place of the history that comes next.
    at: u32,
    /// Pages from there on that were asked for.
    asked: u8,
    /// Pages to ask for together; 0: there is no trail.
    window: u8,
    /// Faults on it, up to `KNOWN`.
    matched: u8,
    /// Faults in a row that were not on it.
    missed: u8,
}

impl Trail {
    fn beginning(at: u32) -> Trail {
        Trail { at, window: WINDOW_MIN, ..Trail::default() }
    }

    /// Notes a fault beside it; more than `most` in a row end it.
    fn miss(&mut self, most: u8) {
        self.missed += 1;
        if self.window == 0 || self.missed > most {
            *self = Trail::default();
        }
    }

    /// Goes on to the place after `page`, if that is near; answers whether it was asked for.
    fn follow(&mut self, history: &History<impl Memory>, page: u32) -> Option<bool> {
        if self.window == 0 {
            return None;
        }
        let mut ahead = history.from(self.at).take(usize::from(self.asked) + NEAR);
        let (passed, after) = ahead
            .by_ref()
            .enumerate()
            .find_map(|(passed, (it, after))| (it == page).then_some((passed, after)))?;
        let was_asked = passed < usize::from(self.asked);
        self.at = after;
        self.asked = self.asked.saturating_sub(u8::try_from(passed + 1).unwrap_or(u8::MAX));
        self.missed = 0;
        Some(was_asked)
    }
}

/// Pages to bring, the nearest first.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    pages: [u32; WINDOW_MAX as usize],
    count: u8,
}

impl Ahead {
    /// The pages.
    pub fn pages(&self) -> &[u32] {
        &self.pages[..usize::from(self.count)]
    }
}

/// A thread's trails. Zeros for a new thread.
#[derive(Clone, Debug, Default)]
pub struct Trails {
    writer: Writer,
    trail: Trail,
    /// The one that may begin.
    young: Trail,
    /// The history that they are about: bits of its address.
    whose: u32,
    /// Pages that were brought and not used yet, as far as is known.
    unused: u16,
}

impl Trails {
    /// Notes a fault on `page`, whose object is cached or has to be read. If that is on a known
    /// trail, answers which pages to bring, with those that were asked for `most` in all.
    pub fn fault(
        &mut self,
        history: &History<impl Memory>,
        page: u32,
        is_cached: bool,
        most: usize,
    ) -> Option<Ahead> {
        // A thread may fault in the memory of several heaps.
        let whose = bits_of_address(history);
        if self.whose != whose {
            *self = Trails { whose, ..Trails::default() };
        }
        let is_on = self.follow(history, page, is_cached);
        history.record(&mut self.writer, page);
        if !is_on {
            return None;
        }
        let trail = &mut self.trail;
        let mut ahead = Ahead { pages: [0; WINDOW_MAX as usize], count: 0 };
        let asked = usize::from(trail.asked);
        let full = u8::try_from(most / WINDOWS_AHEAD).unwrap_or(u8::MAX);
        let full = full.clamp(WINDOW_MIN, WINDOW_MAX);
        let is_time = match trail.window < full {
            true => trail.asked <= trail.window / 2,
            false => asked + usize::from(full) <= most,
        };
        if is_time {
            // Pages that are still ahead may be used.
            let in_vain = self.unused.saturating_sub(trail.asked.into());
            self.unused -= in_vain;
            if in_vain > (trail.window / 2).into() {
                trail.window /= 2;
            } else if trail.asked > 0 {
                trail.window = (trail.window * 2).min(full);
            }
            let count = usize::from(trail.window).min(most.saturating_sub(asked));
            let next = history.from(trail.at).skip(asked).take(count);
            for (place, (page, _)) in ahead.pages.iter_mut().zip(next) {
                *place = page;
                ahead.count += 1;
            }
            trail.asked += ahead.count;
            if trail.window < WINDOW_MIN {
                *trail = Trail::default();
                ahead.count = 0;
            }
        }
        Some(ahead)
    }

    /// Notes that so many of the pages that `fault` has answered are being brought.
    pub fn bring(&mut self, count: usize) {
        self.unused = self.unused.saturating_add(u16::try_from(count).unwrap_or(u16::MAX));
    }

    /// Follows the trail; or another one, once that is known. Whether the fault is on it.
    fn follow(&mut self, history: &History<impl Memory>, page: u32, is_cached: bool) -> bool {
        let Trails { trail, young, .. } = self;
        if is_cached && [*trail, *young] == [Trail::default(); 2] {
            return false;
        }
        if let Some(was_asked) = trail.follow(history, page) {
            self.unused = self.unused.saturating_sub(was_asked.into());
            return true;
        }
        trail.miss(MISSED_KNOWN);
        if young.follow(history, page).is_some() {
            young.matched += 1;
        } else if !is_cached && let Some(at) = history.find(page) {
            *young = Trail::beginning(at);
        } else {
            young.miss(MISSED_YOUNG);
        }
        let is_known = young.matched >= KNOWN;
        if is_known {
            *trail = core::mem::take(young);
            self.unused = 0;
        }
        is_known
    }
}

/// Bits of a history's address, as they tell it from others.
#[expect(clippy::cast_possible_truncation, reason = "the low half")]
fn bits_of_address(history: &History<impl Memory>) -> u32 {
    (core::ptr::from_ref(history).addr() / align_of_val(history)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::lengths;
    use crate::zeros;
    use core::sync::atomic::AtomicU32;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const MOST: usize = WINDOWS_AHEAD * WINDOW as usize;
    const MOST_SLOW: usize = WINDOWS_AHEAD * WINDOW_MAX as usize;

    type Of = History<Box<[AtomicU32]>>;

    fn history_of(bytes: usize) -> Of {
        History::new(lengths(bytes).map(zeros))
    }

    fn history() -> Of {
        history_of(1 << 20)
    }

    /// So many different pages in no order.
    fn way(seed: u32, count: u32) -> Vec<u32> {
        // An odd multiplier loses nothing, so all of them differ.
        (0..count).map(|at| (seed << 20 | at).wrapping_mul(2_654_435_761) >> 2).collect()
    }

    /// A thread that faults on what was not brought, and on what was brought a little later; counts
    /// what was brought, and of that what was used.
    #[derive(Default)]
    struct Thread {
        trails: Trails,
        brought: HashSet<u32>,
        asked: usize,
        used: usize,
    }

    impl Thread {
        fn fault(&mut self, history: &Of, page: u32) -> Option<usize> {
            let is_cached = self.brought.remove(&page);
            self.used += usize::from(is_cached);
            let ahead = self.trails.fault(history, page, is_cached, MOST)?;
            let brought = ahead.pages().iter().filter(|page| self.brought.insert(**page)).count();
            self.trails.bring(brought);
            self.asked += brought;
            Some(ahead.pages().len())
        }

        fn go(&mut self, history: &Of, way: &[u32]) {
            way.iter().for_each(|&page| {
                self.fault(history, page);
            });
        }

        /// Pages asked for and used since the last time.
        fn counts(&mut self) -> (usize, usize) {
            self.brought.clear();
            (core::mem::take(&mut self.asked), core::mem::take(&mut self.used))
        }
    }

    #[test]
    fn the_second_time_nearly_all_pages_are_brought_before_they_are_used() {
        let (history, way, mut thread) = (history(), way(1, 20_000), Thread::default());
        thread.go(&history, &way);
        assert_eq!(thread.counts(), (0, 0), "the first time");
        for round in 1..4 {
            let asked: Vec<usize> =
                way.iter().filter_map(|&page| thread.fault(&history, page)).collect();
            let windows: Vec<usize> = asked.into_iter().filter(|&count| count > 0).collect();
            if round == 1 {
                assert_eq!(windows[..8], [4, 8, 16, 32, 32, 32, 32, 32]);
            }
            let (asked, used) = thread.counts();
            assert!(used > way.len() * 99 / 100, "{used} used");
            assert!(asked - used <= MOST, "{asked} asked for, {used} used");
        }
    }

    #[test]
    fn windows_are_larger_where_pages_are_slow() {
        let (history, way, mut trails) = (history(), way(1, 2000), Trails::default());
        let mut fault = |page: u32, is_cached| {
            let most = most_ahead(1 << 20, true);
            let ahead = trails.fault(&history, page, is_cached, most)?;
            Some(ahead.pages().len()).filter(|&count| count > 0)
        };
        assert_eq!(way.iter().filter_map(|&page| fault(page, false)).count(), 0);
        let windows: Vec<usize> = way.iter().filter_map(|&page| fault(page, true)).collect();
        assert_eq!(windows, [0; 0], "no read has begun a trail");
        let windows: Vec<usize> = way.iter().filter_map(|&page| fault(page, false)).collect();
        assert_eq!(windows[..8], [4, 8, 16, 32, 63, 63, 63, 63]);
    }

    #[test]
    fn a_way_whose_pages_are_cached_is_noted_and_not_looked_for() {
        let (history, way, mut thread) = (history(), way(1, 10_000), Thread::default());
        for _ in 0..2 {
            for &page in &way {
                assert!(thread.trails.fault(&history, page, true, MOST).is_none());
            }
        }
        thread.go(&history, &way);
        assert!(thread.used > way.len() * 99 / 100, "{} used", thread.used);
    }

    #[test]
    fn random_access_asks_for_nothing() {
        let (history, mut thread) = (history(), Thread::default());
        let mut state = 1u64;
        for _ in 0..400_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            thread.fault(&history, (state >> 40) as u32 % 30_000);
        }
        assert!(thread.asked < 200, "{} pages asked for", thread.asked);
    }

    #[test]
    fn a_changed_order_asks_for_little_and_is_found_again_the_next_time() {
        let (history, first, mut thread) = (history(), way(1, 10_000), Thread::default());
        thread.go(&history, &first);
        thread.go(&history, &first);
        thread.counts();
        let mut second = first.clone();
        second.sort_unstable_by_key(|page| page.wrapping_mul(0x9E37_79B1));
        thread.go(&history, &second);
        let (asked, used) = thread.counts();
        assert!(asked - used < 1000, "{asked} asked for, {used} used");
        thread.go(&history, &second);
        let (_, used) = thread.counts();
        assert!(used > 9800, "{used} used");
    }

    /// Pages in the page buffer do not fault.
    #[test]
    fn gaps_do_not_end_a_trail() {
        let (history, way, mut thread) = (history(), way(1, 20_000), Thread::default());
        thread.go(&history, &way);
        let faults: Vec<u32> = way.iter().copied().filter(|page| page % 3 == 0).collect();
        let resident: HashSet<u32> = way.iter().copied().filter(|page| page % 3 != 0).collect();
        for &page in &faults {
            let is_cached = thread.brought.remove(&page);
            thread.used += usize::from(is_cached);
            let ahead = thread.trails.fault(&history, page, is_cached, MOST);
            let Some(ahead) = ahead else { continue };
            let wanted = ahead.pages().iter().filter(|page| !resident.contains(page));
            let brought = wanted.filter(|page| thread.brought.insert(**page)).count();
            thread.trails.bring(brought);
        }
        assert!(thread.used > faults.len() * 95 / 100, "{} of {}", thread.used, faults.len());
    }

    /// A window whose pages are mostly not used makes the next one smaller.
    #[test]
    fn a_trail_of_which_little_is_used_asks_for_less() {
        let (history, way, mut thread) = (history(), way(1, 60_000), Thread::default());
        thread.go(&history, &way);
        let (mut asked, mut faults) = (0, 0);
        // Every eighth page: the others are brought in vain.
        for &page in way.iter().step_by(8) {
            faults += 1;
            if let Some(ahead) = thread.trails.fault(&history, page, false, MOST) {
                thread.trails.bring(ahead.pages().len());
                asked += ahead.pages().len();
            }
        }
        assert!(asked < 2 * faults, "{asked} asked for at {faults} faults");
    }

    #[test]
    fn other_faults_between_those_of_a_trail_do_not_end_it() {
        let (history, way, mut thread) = (history(), way(1, 10_000), Thread::default());
        let mut state = 1u64;
        for _ in 0..2 {
            thread.counts();
            for &page in &way {
                thread.fault(&history, page);
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if state >> 62 == 0 {
                    thread.fault(&history, 1 << 29 | (state >> 40) as u32);
                }
            }
        }
        assert!(thread.used > 9500, "{} used", thread.used);
    }

    #[test]
    fn threads_follow_their_own_ways() {
        let history = history_of(4 << 20);
        let ways: Vec<Vec<u32>> = (1..5).map(|seed| way(seed, 10_000)).collect();
        let mut threads: Vec<Thread> = ways.iter().map(|_| Thread::default()).collect();
        for _ in 0..2 {
            for thread in &mut threads {
                thread.counts();
            }
            for step in 0..ways[0].len() {
                for (thread, way) in threads.iter_mut().zip(&ways) {
                    thread.fault(&history, way[step]);
                }
            }
        }
        for thread in &threads {
            assert!(thread.used > 9800, "{} used", thread.used);
        }
        // Another thread repeats the sequence of one: it is as known to it.
        let mut other = Thread::default();
        other.go(&history, &ways[2]);
        assert!(other.used > 9800, "{} used", other.used);
    }

    #[test]
    fn what_is_longer_than_the_ring_is_not_found() {
        let (history, way, mut thread) = (history(), way(1, 300_000), Thread::default());
        thread.go(&history, &way);
        thread.go(&history, &way);
        assert!(thread.asked < 1000, "{} asked for", thread.asked);
    }

    #[test]
    fn what_is_kept_of_another_history_is_not_used() {
        let (one, other, mut thread) = (history(), history(), Thread::default());
        let way = way(1, 1000);
        thread.go(&one, &way);
        thread.go(&one, &way[..500]);
        thread.counts();
        thread.go(&other, &way);
        assert_eq!(thread.counts(), (0, 0));
    }

    proptest! {
        /// Whatever faults come: no more is asked for than may be.
        #[test]
        fn what_is_asked_for_is_bounded(
            pages in prop::collection::vec(0u32..300, 1..4000),
            most in 0usize..MOST_SLOW,
        ) {
            let history = history_of(2000);
            let mut trails = Trails::default();
            for page in pages {
                if let Some(ahead) = trails.fault(&history, page, false, most) {
                    prop_assert!(ahead.pages().len() <= most);
                    prop_assert!(ahead.pages().iter().all(|&page| page < 300));
                    trails.bring(ahead.pages().len());
                }
                let trail = trails.trail;
                prop_assert!(usize::from(trail.asked) <= MOST_SLOW, "{:?}", trail);
                prop_assert!(trail.window <= WINDOW_MAX);
            }
        }
    }
}
