//! Stride: tells a walk in equal steps, down a column of a matrix say, by the faults of one thread.
//!
//! FlashVM (section 4.1.3) takes the offsets between a fault and the last two, and fetches two
//! pages more. Here a walk is known at its third equal offset, and asks for more pages the longer
//! it lasts. Steps of one or two pages are scans (`sequence`), larger ones than `STEP_MAX` would
//! take random faults for walks.
//!
//! A thread can be on some walks at once. A fault that continues none may begin one, in the place
//! of the walk that was used longest ago.
//!
//! Never: keeps anything between calls other than what the caller stores for the thread.

/// Walks of one thread that are known at a time.
const WALKS: usize = 4;
/// The steps that are looked for, in pages, in either direction.
const STEP_MIN: u32 = 3;
/// See `STEP_MIN`.
const STEP_MAX: u32 = 64;
/// Equal offsets after which a walk is known.
const KNOWN: u8 = 2;
/// Steps that a walk is ahead of the thread at most. Pages that were asked for and not used leave
/// the cache first: in a small one, of 6 MiB, with more it left before its use.
const AHEAD_MAX: u8 = 16;

/// A walk, or the last fault that may begin one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Walk {
    /// The page of its last fault.
    last: u32,
    /// Pages from one fault to the next; 0: none is known.
    step: i8,
    /// Equal offsets so far.
    offsets: u8,
    /// Steps beyond the last fault that were asked for.
    asked: u8,
    /// It was used at all.
    is_used: bool,
}

/// Pages that a walk asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    first: u32,
    step: i8,
    count: u8,
    /// The fault was on a page that was asked for before.
    pub was_asked: bool,
}

impl Ahead {
    /// The pages, the nearest first. They wrap around.
    pub fn pages(self) -> impl Iterator<Item = u32> {
        let at = move |index| self.first.wrapping_add_signed(i32::from(self.step) * index);
        (0..i32::from(self.count)).map(at)
    }
}

/// A thread's walks, the last used first. Zeros for a new thread.
#[derive(Clone, Debug, Default)]
pub struct Walks([Walk; WALKS]);

impl Walks {
    /// Notes a fault on `page`; answers what to ask for, if that is on a walk that is known.
    pub fn fault(&mut self, page: u32) -> Option<Ahead> {
        let walks = &mut self.0;
        let goes_on =
            |walk: &Walk| walk.step != 0 && page == walk.last.wrapping_add_signed(walk.step.into());
        let distance = |walk: &Walk| page.wrapping_sub(walk.last).min(walk.last.wrapping_sub(page));
        let begins = |walk: &Walk| {
            let steps = STEP_MIN..=STEP_MAX;
            walk.is_used && walk.offsets < KNOWN && steps.contains(&distance(walk))
        };
        let scans = |walk: &Walk| walk.is_used && distance(walk) < STEP_MIN;
        let on = walks.iter().position(goes_on);
        let at = on
            .or_else(|| walks.iter().position(scans))
            .or_else(|| walks.iter().position(begins))
            .unwrap_or(WALKS - 1);
        let before = walks[at];
        let mut walk = Walk { last: page, is_used: true, ..Walk::default() };
        if on.is_some() {
            walk.step = before.step;
            walk.offsets = before.offsets.saturating_add(1);
            walk.asked = before.asked.saturating_sub(1);
        } else if begins(&before) {
            // It is at most `STEP_MAX`, so the low byte is all of it.
            walk.step = page.wrapping_sub(before.last).to_le_bytes()[0].cast_signed();
            walk.offsets = 1;
        }
        let mut ahead = None;
        if walk.offsets >= KNOWN {
            let wanted = 1u8.checked_shl((walk.offsets - KNOWN + 1).into()).unwrap_or(AHEAD_MAX);
            let wanted = wanted.min(AHEAD_MAX);
            // Several at a time: each request wakes a worker.
            let is_time = walk.asked <= wanted / 2;
            let (first, count) = if is_time { (walk.asked, wanted - walk.asked) } else { (0, 0) };
            walk.asked += count;
            ahead = Some(Ahead {
                first: page.wrapping_add_signed(i32::from(walk.step) * (i32::from(first) + 1)),
                step: walk.step,
                count,
                was_asked: before.asked > 0,
            });
        }
        walks[..=at].rotate_right(1);
        walks[0] = walk;
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(walks: &mut Walks, page: u32) -> Vec<u32> {
        walks.fault(page).map_or(Vec::new(), |ahead| ahead.pages().collect())
    }

    #[test]
    fn a_walk_asks_for_its_next_pages_once_each() {
        for step in [3, 17, 64, -3, -64] {
            let mut walks = Walks::default();
            let page = |index: i32| 1_000_000u32.wrapping_add_signed(step * index);
            let mut expected = Vec::new();
            let mut all = Vec::new();
            for index in 0..200 {
                let ahead = walks.fault(page(index));
                assert_eq!(ahead.is_some(), index > 1, "step {step}, fault {index}");
                let pages: Vec<u32> = ahead.map_or(Vec::new(), |ahead| ahead.pages().collect());
                assert!(pages.len() <= AHEAD_MAX as usize);
                all.extend(pages);
            }
            expected.extend((3..3 + all.len() as i32).map(page));
            assert_eq!(all, expected, "step {step}");
            assert!(all.len() > 200, "{} pages asked for", all.len());
        }
    }

    #[test]
    fn random_faults_and_scans_ask_for_next_to_nothing() {
        let mut walks = Walks::default();
        let mut state = 1u64;
        let mut all = 0;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Even among few pages.
            all += asked(&mut walks, (state >> 40) as u32 % 16_384).len();
        }
        assert!(all < 200, "{all} pages asked for");
        let scan: usize = (0..1000).map(|page| asked(&mut walks, 1 << 20 | page).len()).sum();
        assert_eq!(scan, 0);
    }

    #[test]
    fn walks_that_take_turns_are_told_apart() {
        let mut walks = Walks::default();
        let mut all = [0; 3];
        for index in 0..50 {
            for (walk, count) in all.iter_mut().enumerate() {
                let page = ((walk as u32 + 1) << 20) + index * (5 + 7 * walk as u32);
                *count += asked(&mut walks, page).len();
            }
        }
        assert!(all.iter().all(|&count| count >= 48), "{all:?}");
    }

    #[test]
    fn the_pages_are_those_of_the_walk_at_the_ends_of_the_region_too() {
        let mut walks = Walks::default();
        for page in [9, 6, 3] {
            asked(&mut walks, page);
        }
        assert_eq!(walks.fault(0).map(|ahead| ahead.pages().next()), Some(Some(u32::MAX - 5)));
    }
}
