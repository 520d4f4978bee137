//! Trail run: pages of a trail that go to a slow second tier together, in the order of the history,
//! because the program went from one to the next again (HybridSwap, III.B and III.C).
//!
//! Never: decides how many of them stay on the SSD; `tier` does.

use crate::Memory;
use crate::history::History;

/// Places of the history that are looked at: four times as many as pages go together. Some of the
/// pages in these places have left already, and some stay.
pub const PLACES_MAX: usize = 1024;

/// Where a page of a trail is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where<T> {
    /// In RAM, and it may go.
    MayGo(T),
    /// It has gone to the second tier.
    SecondTier,
    /// It has gone to the SSD.
    Ssd,
    /// It stays where it is.
    Stays,
}

/// A part of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrailRun {
    /// Pages that may go.
    pub pages: usize,
    /// Those before them are in the second tier.
    pub goes_on: bool,
    /// The place after the last of them.
    pub end: u32,
}

impl TrailRun {
    /// Lists the pages that may go of the sequence that leads to a place and goes on from there, in
    /// its order. The list ends at a page that has gone to the second tier before: pages that go
    /// one by one between such pages would lie apart from them.
    pub fn gather<T>(
        history: &History<impl Memory>,
        place: u32,
        list: &mut [T],
        mut where_is: impl FnMut(u32) -> Where<T>,
    ) -> TrailRun {
        let mut run = TrailRun { pages: 0, goes_on: false, end: place };
        for (page, after) in history.from(history.before(place)).take(PLACES_MAX) {
            match (where_is(page), list.get_mut(run.pages)) {
                (Where::MayGo(it), Some(entry)) => {
                    *entry = it;
                    run.pages += 1;
                }
                (Where::SecondTier, _) if run.pages == 0 => run.goes_on = true,
                (Where::Ssd, _) if run.pages == 0 => run.goes_on = false,
                (Where::SecondTier, _) | (_, None) => break,
                _ => {}
            }
            run.end = after;
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Writer, lengths};
    use crate::tier::{RUN_LEAST, Seen};
    use crate::trail::Trails;
    use crate::zeros;
    use core::sync::atomic::AtomicU32;
    use std::collections::{HashMap, VecDeque};

    const MOST: usize = 128;
    const SEEN: Seen = Seen { disk_ns: 8_000_000, page_ns: 200_000 };

    type Of = History<Box<[AtomicU32]>>;

    fn history() -> Of {
        History::new(lengths(1 << 20).map(zeros))
    }

    #[test]
    fn a_run_is_listed_in_its_order_as_long_as_there_is_room() {
        let history = history();
        let mut writer = Writer::default();
        let way = (0..300).map(|at| (at * 7919 + 13) % 5000).collect::<Vec<u32>>();
        way.iter().for_each(|&page| history.record(&mut writer, page));
        let (at, place) = way
            .iter()
            .enumerate()
            .skip(100)
            .find_map(|(at, &page)| Some((at, history.find(page)?)))
            .expect("one in four is found");
        // Those before it have left, each third one stays.
        let index = |page| way.iter().position(|&it| it == page).expect("a page of the way");
        let where_is = |page| match index(page) {
            index if index < at => Where::SecondTier,
            index if index % 3 == 0 => Where::Stays,
            _ => Where::MayGo(page),
        };
        let mut list = [0; 64];
        let found = TrailRun::gather(&history, place, &mut list, where_is);
        assert!(found.pages == 64 && found.goes_on, "{found:?}");
        let left = way[at..].iter().filter(|&&page| index(page) % 3 != 0);
        assert!(list.iter().eq(left.clone().take(64)));
        let ends = TrailRun::gather(&history, place, &mut list, |page| match index(page) {
            index if index > at + 20 => Where::SecondTier,
            _ => where_is(page),
        });
        assert!((10..20).contains(&ends.pages), "{ends:?}");
        let none = TrailRun::gather(&history, place, &mut list, |_| Where::<u32>::Stays);
        assert_eq!((none.pages, none.goes_on), (0, false));
    }

    /// Where a page is.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum At {
        Ram { came_on_trail: bool },
        Brought,
        Ssd,
        Slow(usize),
    }

    /// A program whose pages leave RAM in the order in which they came there.
    struct Program {
        history: Of,
        trails: Trails,
        at: HashMap<u32, At>,
        ram: VecDeque<u32>,
        room: usize,
        /// Pages written: to the SSD, and to the second tier in its order.
        ssd: usize,
        slow: Vec<u32>,
        /// Reads of the second tier that were waited for.
        waited: usize,
    }

    impl Program {
        fn new(pages: impl Iterator<Item = u32>, room: usize) -> Program {
            let at = pages.map(|page| (page, At::Ssd)).collect();
            let (ram, slow) = (VecDeque::new(), Vec::new());
            let trails = Trails::default();
            Program { history: history(), trails, at, ram, room, ssd: 0, slow, waited: 0 }
        }

        fn touch(&mut self, page: u32) {
            let was = self.at[&page];
            if was == (At::Ram { came_on_trail: true }) || was == (At::Ram { came_on_trail: false })
            {
                return;
            }
            let is_brought = was == At::Brought;
            self.waited += usize::from(matches!(was, At::Slow(_)));
            let ahead = self.trails.fault(&self.history, page, is_brought, MOST);
            let ahead = ahead.map_or(vec![], |ahead| ahead.pages().to_vec());
            let is_away = |at| matches!(at, At::Ssd | At::Slow(_));
            let wanted: Vec<u32> =
                ahead.into_iter().filter(|it| *it != page && is_away(self.at[it])).collect();
            self.trails.bring(wanted.len());
            for ahead in wanted {
                self.at.insert(ahead, At::Brought);
            }
            self.at.insert(page, At::Ram { came_on_trail: is_brought });
            self.ram.push_back(page);
            while self.ram.len() > self.room {
                self.leave();
            }
        }

        /// As `choose_trail_run` of the pager.
        fn leave(&mut self) {
            let leaving: Vec<u32> = self.ram.drain(..128).collect();
            let here = At::Ram { came_on_trail: true };
            let found = |page: &u32| (self.at[page] == here).then(|| self.history.find(*page))?;
            if let Some(place) = leaving.iter().filter_map(found).min() {
                let mut list = [0; 256];
                let run = TrailRun::gather(&self.history, place, &mut list, |page| {
                    match self.at[&page] {
                        at if at == here => Where::MayGo(page),
                        At::Slow(_) => Where::SecondTier,
                        At::Ssd => Where::Ssd,
                        _ => Where::Stays,
                    }
                });
                for page in &list[SEEN.on_ssd(run.pages, run.goes_on, u64::MAX)..run.pages] {
                    self.at.insert(*page, At::Slow(self.slow.len()));
                    self.slow.push(*page);
                }
            }
            let (at, ram) = (&mut self.at, &mut self.ram);
            ram.retain(|page| !matches!(at[page], At::Slow(_)));
            for page in leaving {
                if !matches!(at[&page], At::Slow(_)) {
                    at.insert(page, At::Ssd);
                    self.ssd += 1;
                }
            }
        }
    }

    fn order(seed: u64, pages: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..pages).collect();
        let key = |page: &u32| (u64::from(*page) + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) << 9;
        order.sort_unstable_by_key(key);
        order
    }

    #[test]
    fn a_walk_again_and_again_in_the_same_order_goes_to_the_tier_in_that_order() {
        let walk = order(1, 20_000);
        let mut program = Program::new(walk.iter().copied(), 8000);
        for _ in 0..3 {
            walk.iter().for_each(|&page| program.touch(page));
        }
        (program.ssd, program.waited) = (0, 0);
        program.slow.clear();
        walk.iter().for_each(|&page| program.touch(page));
        let (ssd, slow) = (program.ssd, program.slow.len());
        assert!(slow > 9 * walk.len() / 10, "{slow} to the second tier, {ssd} to the SSD");
        assert!(program.waited < 20, "{} were waited for", program.waited);
        let mut place = vec![0; walk.len()];
        walk.iter().enumerate().for_each(|(at, &page)| place[page as usize] = at);
        let next = |pair: &&[u32]| {
            let [one, next] = [pair[0], pair[1]].map(|page| place[page as usize]);
            next == (one + 1) % walk.len()
        };
        let in_order = program.slow.windows(2).filter(next).count();
        assert!(in_order > slow * 95 / 100, "{in_order} of {slow} in order");
    }

    #[test]
    fn random_access_sends_nothing() {
        let mut program = Program::new(0..20_000, 8000);
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            program.touch((state >> 40) as u32 % 20_000);
        }
        assert!(program.slow.len() < RUN_LEAST * 10, "{} sent", program.slow.len());
    }
}
