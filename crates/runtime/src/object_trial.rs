//! Object trial: what a few allocations of a site tell of its locality.
//!
//! A page pays where the neighbours of what is touched are touched as well before the page leaves
//! RAM, an object where they are not. Faults on a page cannot tell, since only the first touch is
//! one. So some *runs* of a site, as many of its consecutive allocations as would share a page, are
//! made objects on pages of their own: then each first touch is a fault. Those of a run that fault
//! within a *window*, the time that a page stays in RAM, are what one page would have served.
//!
//! Guarantees: bounded memory and bounded work a call. A run is of one thread, as the neighbours on
//! a page are. What it counts is of allocations that live: a place that was freed is watched no
//! more.
//! Never: allocates, locks, touches an allocation.
//! Threads: any; `touched` in the fault handler. Relaxed atomics: two that meet may lose a count.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use deepheap_heap::PAGE;

use crate::object_placement::places;

/// Members of a run at most.
pub(crate) const RUN_MAX: usize = 16;
/// Runs that are watched at a time.
const RUNS: usize = 1024;
/// Of these, those of one site.
const RUNS_OF_A_SITE: usize = 32;
/// Places for watched pages; a power of two, twice what the runs need.
const WATCHED: usize = 2 * RUNS * RUN_MAX;
/// Windows after which a run makes room for one of newer allocations.
const WINDOWS_OF_A_RUN: u32 = 8;
/// Attempts to change a word that others change.
const TRIES: usize = 4;
/// Of a run's members: no more will join.
const SEALED: u32 = 1 << 31;
/// Of a run's members and of a window: one bit each.
const MEMBERS: u32 = (1 << RUN_MAX) - 1;
/// Of a window: the fault that opened it read from the store.
const READ: u64 = 1 << RUN_MAX;
/// Of a window: the epoch stands above.
const EPOCH_SHIFT: u32 = RUN_MAX as u32 + 1;

const MEMBER_BITS: u32 = RUN_MAX.trailing_zeros();
const INDEX_BITS: u32 = RUNS.trailing_zeros();
const GENERATION_BITS: u32 = 14;
/// In a watched word the page is above all of them; its number has 35 bits.
const PAGE_SHIFT: u32 = MEMBER_BITS + INDEX_BITS + GENERATION_BITS;

/// A run, and which of those that had its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunId(u32);

impl RunId {
    fn new(index: usize, generation: u32) -> RunId {
        RunId((generation & ((1 << GENERATION_BITS) - 1)) << INDEX_BITS | index as u32)
    }

    fn index(self) -> usize {
        self.0 as usize & (RUNS - 1)
    }

    /// A word that is never 0.
    pub(crate) fn to_word(self) -> u32 {
        self.0 + 1
    }

    /// From the word; none for 0.
    pub(crate) fn from_word(word: u32) -> Option<RunId> {
        word.checked_sub(1).map(RunId)
    }
}

#[derive(Debug)]
struct Run {
    generation: AtomicU32,
    /// Those that live, and `SEALED`.
    members: AtomicU32,
    /// Allocations that joined.
    joined: AtomicU32,
    /// Windows that ended.
    windows: AtomicU32,
    /// Epoch of the window's first fault, `READ`, and the bits of the members that faulted; 0: none
    /// is open.
    window: AtomicU64,
}

/// The runs of all sites.
#[derive(Debug)]
pub(crate) struct Trials {
    /// Site of each run, plus 1; 0 while free.
    owners: [AtomicU32; RUNS],
    runs: [Run; RUNS],
    /// Page, generation and index of its run, and member; 0 while free.
    watched: [AtomicU64; WATCHED],
    /// Which run is looked at next for a window that is over.
    hand: AtomicU32,
    /// Whether there was ever a run.
    has_begun: AtomicU32,
}

/// A fault that brought a page back to the page buffer.
#[derive(Clone, Copy, Debug)]
pub struct Return {
    /// Of the page that was touched.
    pub address: usize,
    /// Whether it came from the store.
    pub is_read: bool,
    /// The epoch of the page buffer.
    pub epoch: u32,
    /// Epochs that make a window: what a page stays in RAM.
    pub window: u32,
}

impl Return {
    /// The word of a window that this fault opens, without a member.
    fn opening(&self) -> u64 {
        u64::from(self.epoch) << EPOCH_SHIFT | if self.is_read { READ } else { 0 }
    }

    /// Whether an open window is over by now.
    fn is_after(&self, open: u64) -> bool {
        self.epoch.wrapping_sub((open >> EPOCH_SHIFT) as u32) >= self.window
    }
}

/// A window that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub site: usize,
    /// Whether the fault that opened it read from the store.
    pub is_read: bool,
    /// Members beside the one that opened it.
    pub neighbours: u32,
    /// Of these, those that faulted before it ended.
    pub along: u32,
}

impl Trials {
    pub(crate) const fn new() -> Trials {
        Trials {
            owners: [const { AtomicU32::new(0) }; RUNS],
            runs: [const {
                Run {
                    generation: AtomicU32::new(0),
                    members: AtomicU32::new(0),
                    joined: AtomicU32::new(0),
                    windows: AtomicU32::new(0),
                    window: AtomicU64::new(0),
                }
            }; RUNS],
            watched: [const { AtomicU64::new(0) }; WATCHED],
            hand: AtomicU32::new(0),
            has_begun: AtomicU32::new(0),
        }
    }

    /// Whether a fault may be one of a run.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed) != 0
    }

    /// A new run of a site; none if it has its share, or all are taken.
    pub(crate) fn begin(&self, site: usize) -> Option<RunId> {
        let owner = site as u32 + 1;
        let (mut own, mut free) = (0, None);
        for (index, word) in self.owners.iter().enumerate() {
            match word.load(Ordering::Relaxed) {
                0 => free = free.or(Some(index)),
                found => own += usize::from(found == owner),
            }
        }
        let index = free.filter(|_| own < RUNS_OF_A_SITE)?;
        let word = &self.owners[index];
        word.compare_exchange(0, owner, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        let run = &self.runs[index];
        run.members.store(0, Ordering::Relaxed);
        run.joined.store(0, Ordering::Relaxed);
        run.windows.store(0, Ordering::Relaxed);
        run.window.store(0, Ordering::Relaxed);
        self.has_begun.store(1, Ordering::Relaxed);
        Some(RunId::new(index, run.generation.load(Ordering::Relaxed)))
    }

    /// Has an object join a run of `length`, by the one thread that fills it; answers whether the
    /// run is full. One that shares its page with what came before does not count.
    pub(crate) fn join(&self, id: RunId, address: usize, length: usize) -> bool {
        let run = &self.runs[id.index()];
        if !address.is_multiple_of(PAGE) || !self.is_current(id) {
            return false;
        }
        let member = run.joined.load(Ordering::Relaxed);
        if !self.watch(address, id, member) {
            return false;
        }
        run.members.fetch_or(1 << member, Ordering::Relaxed);
        run.joined.store(member + 1, Ordering::Relaxed);
        let is_full = member as usize + 1 >= length.min(RUN_MAX);
        if is_full {
            self.seal(id);
        }
        is_full
    }

    /// No more will join.
    pub(crate) fn seal(&self, id: RunId) {
        let run = &self.runs[id.index()];
        if self.is_current(id) && run.members.fetch_or(SEALED, Ordering::Relaxed) & MEMBERS == 0 {
            self.end(id);
        }
    }

    /// What lives at this address will not for long.
    #[inline]
    pub(crate) fn forget(&self, address: usize) {
        if address.is_multiple_of(PAGE) && self.has_begun() {
            self.forget_page(address);
        }
    }

    fn forget_page(&self, address: usize) {
        let Some((slot, word)) = self.find(address) else { return };
        let (id, member) = parts(word);
        if self.watched[slot]
            .compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        let gone = 1 << member;
        let left = self.runs[id.index()].members.fetch_and(!gone, Ordering::Relaxed) & !gone;
        if left == SEALED {
            self.end(id);
        }
    }

    /// Whether this page is watched: it is to come to the page buffer when it is touched only.
    #[inline]
    pub(crate) fn is_watched(&self, address: usize) -> bool {
        self.has_begun() && self.find(address).is_some()
    }

    /// Notes a fault that brought a page back to the page buffer; tells of windows that are over.
    pub(crate) fn touched(&self, fault: &Return, mut tell: impl FnMut(Window)) {
        let Some((_, word)) = self.find(fault.address) else { return };
        let (id, member) = parts(word);
        self.note(id, member, fault).into_iter().for_each(&mut tell);
        // The last window of a run would stay open until it is touched again.
        let index = self.hand.fetch_add(1, Ordering::Relaxed) as usize & (RUNS - 1);
        let run = &self.runs[index];
        let id = RunId::new(index, run.generation.load(Ordering::Relaxed));
        let open = run.window.load(Ordering::Relaxed);
        if open != 0 && fault.is_after(open) && change(&run.window, open, 0) {
            self.close(id, open).into_iter().for_each(tell);
        }
    }

    fn note(&self, id: RunId, member: u32, fault: &Return) -> Option<Window> {
        let word = &self.runs[id.index()].window;
        for _ in 0..TRIES {
            let open = word.load(Ordering::Relaxed);
            let ends = open != 0 && fault.is_after(open);
            let kept = if open == 0 || ends { fault.opening() } else { open };
            if change(word, open, kept | 1 << member) {
                return if ends { self.close(id, open) } else { None };
            }
        }
        None
    }

    /// What a window came to, which the caller has taken out.
    fn close(&self, id: RunId, open: u64) -> Option<Window> {
        let run = &self.runs[id.index()];
        let owner = self.owners[id.index()].load(Ordering::Relaxed) as usize;
        let touched = open as u32 & MEMBERS;
        let members = run.members.load(Ordering::Relaxed);
        let neighbours = (members & MEMBERS | touched).count_ones() - 1;
        let windows = run.windows.fetch_add(1, Ordering::Relaxed) + 1;
        if windows >= WINDOWS_OF_A_RUN && members & SEALED != 0 {
            self.end(id);
        }
        let site = owner.checked_sub(1)?;
        let (is_read, along) = (open & READ != 0, touched.count_ones() - 1);
        (neighbours > 0).then_some(Window { site, is_read, neighbours, along })
    }

    /// Makes the place free for another run; what is still watched of this one is so no more.
    fn end(&self, id: RunId) {
        let generation = &self.runs[id.index()].generation;
        let current = generation.load(Ordering::Relaxed);
        let next = current.wrapping_add(1);
        if RunId::new(id.index(), current) == id
            && generation
                .compare_exchange(current, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.owners[id.index()].store(0, Ordering::Release);
        }
    }

    fn is_current(&self, id: RunId) -> bool {
        RunId::new(id.index(), self.runs[id.index()].generation.load(Ordering::Relaxed)) == id
    }

    fn watch(&self, address: usize, id: RunId, member: u32) -> bool {
        let word = page_bits(address) | u64::from(id.0) << MEMBER_BITS | u64::from(member);
        places(address as u64, WATCHED).any(|place| {
            let slot = &self.watched[place];
            let found = slot.load(Ordering::Relaxed);
            (found == 0 || !self.is_current(parts(found).0)) && change(slot, found, word)
        })
    }

    fn find(&self, address: usize) -> Option<(usize, u64)> {
        let page = page_bits(address);
        places(address as u64, WATCHED).find_map(|place| {
            let word = self.watched[place].load(Ordering::Relaxed);
            let is_it = word >> PAGE_SHIFT == page >> PAGE_SHIFT;
            (is_it && self.is_current(parts(word).0)).then_some((place, word))
        })
    }
}

/// A page as it stands in a watched word.
fn page_bits(address: usize) -> u64 {
    ((address / PAGE) as u64) << PAGE_SHIFT
}

/// Run and member of a watched word.
fn parts(word: u64) -> (RunId, u32) {
    let run = (word >> MEMBER_BITS) as u32 & ((1 << (INDEX_BITS + GENERATION_BITS)) - 1);
    (RunId(run), word as u32 & (RUN_MAX as u32 - 1))
}

fn change(word: &AtomicU64, from: u64, to: u64) -> bool {
    word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u32 = 8;

    fn trials() -> Box<Trials> {
        Box::new(Trials::new())
    }

    fn page(n: usize) -> usize {
        0x2000_0000_0000 + n * PAGE
    }

    /// A run of `length` pages from `first` on.
    fn run(trials: &Trials, site: usize, first: usize, length: usize) -> RunId {
        let id = trials.begin(site).unwrap();
        for n in 0..length {
            assert_eq!(trials.join(id, page(first + n), length), n + 1 == length);
            assert!(trials.is_watched(page(first + n)));
        }
        assert!(!trials.is_watched(page(first + length)));
        id
    }

    fn touch(trials: &Trials, first: usize, epoch: u32) -> Vec<Window> {
        let mut ended = Vec::new();
        let fault = Return { address: page(first), is_read: true, epoch, window: WINDOW };
        trials.touched(&fault, |window| ended.push(window));
        ended
    }

    fn window(site: usize, neighbours: u32, along: u32) -> Window {
        Window { site, is_read: true, neighbours, along }
    }

    #[test]
    fn neighbours_of_one_window_are_counted_together() {
        let trials = trials();
        run(&trials, 3, 100, 16);
        assert!(touch(&trials, 100, 50).is_empty());
        assert!(touch(&trials, 101, 57).is_empty(), "within the window");
        assert!(touch(&trials, 101, 57).is_empty(), "the same again");
        let ended = touch(&trials, 109, 58);
        assert_eq!(ended, [window(3, 15, 1)]);
        let ended = touch(&trials, 115, 70);
        assert_eq!(ended, [window(3, 15, 0)]);
        assert!(touch(&trials, 99, 100).is_empty(), "not of the run");
        assert!(touch(&trials, 116, 100).is_empty(), "not of the run");
    }

    #[test]
    fn a_window_tells_whether_it_began_with_a_read() {
        let trials = trials();
        run(&trials, 0, 0, 4);
        let mut ended = Vec::new();
        for (epoch, is_read) in [(0, true), (1, false), (10, false), (11, true), (20, true)] {
            let fault = Return { address: page(1), is_read, epoch, window: WINDOW };
            trials.touched(&fault, |window| ended.push(window.is_read));
        }
        assert_eq!(ended, [true, false]);
    }

    #[test]
    fn windows_end_without_another_touch_of_their_run() {
        let trials = trials();
        for site in 0..10 {
            run(&trials, site, site * 16, 16);
        }
        run(&trials, 10, 10_000, 16);
        for site in 0..10 {
            touch(&trials, site * 16, 0);
        }
        let mut ended = Vec::new();
        (0..2 * RUNS).for_each(|_| ended.extend(touch(&trials, 10_000, 8)));
        let sites: Vec<_> = ended.iter().map(|window| window.site).collect();
        assert_eq!(sites, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_freed_is_watched_no_more() {
        let trials = trials();
        let first = run(&trials, 1, 0, 4);
        (1..4).for_each(|n| trials.forget(page(n)));
        assert!(touch(&trials, 0, 0).is_empty());
        assert!(touch(&trials, 1, 50).is_empty(), "whoever lives there now is another");
        assert!(touch(&trials, 0, 60).is_empty(), "alone it tells nothing");
        trials.forget(page(0));
        assert!(!trials.is_current(first), "an empty run ends");
        assert!((0..4).all(|n| !trials.is_watched(page(n))));
        assert_eq!(trials.owners[first.index()].load(Ordering::Relaxed), 0);
        let next = run(&trials, 2, 0, 4);
        assert_eq!(next.index(), first.index());
        (0..4).for_each(|n| assert!(touch(&trials, n, 100).is_empty()));
        let ended = touch(&trials, 0, 200);
        assert_eq!(ended, [window(2, 3, 3)]);
    }

    #[test]
    fn runs_are_bounded_and_make_room_for_newer_ones() {
        let trials = trials();
        for n in 0..RUNS_OF_A_SITE {
            run(&trials, 7, n * 4, 4);
        }
        assert!(trials.begin(7).is_none(), "a site has its share");
        assert!(trials.begin(8).is_some(), "another has its own");
        for now in 0..=WINDOWS_OF_A_RUN {
            touch(&trials, 0, now * 100);
        }
        assert!(trials.begin(7).is_some(), "the first one has told enough");
        let begun = (0..4 * RUNS).filter_map(|site| trials.begin(site)).count();
        assert_eq!(begun, RUNS - RUNS_OF_A_SITE - 1);
    }

    #[test]
    fn a_run_that_is_never_filled_ends_with_its_members() {
        let trials = trials();
        let id = trials.begin(0).unwrap();
        assert!(!trials.join(id, page(1), 16));
        assert!(!trials.join(id, page(1) + 64, 16), "it shares its page");
        assert_eq!(trials.runs[id.index()].joined.load(Ordering::Relaxed), 1);
        trials.forget(page(1));
        assert!(trials.is_current(id), "more may join");
        trials.seal(id);
        assert!(!trials.is_current(id));
        assert!(!trials.join(id, page(2), 16), "too late");
        assert_eq!(RunId::from_word(id.to_word()), Some(id));
        assert_eq!(RunId::from_word(0), None);
    }
}
