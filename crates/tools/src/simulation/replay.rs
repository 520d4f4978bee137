//! Replay: the pager's decisions on a sequence of touches, in a pager that moves only numbers.
//!
//! A page buffer with its two lists, a cache of so many bytes, a ghost, and a store without limit.
//! All decisions are those of the policies that the pager asks: replacement, ghost, sequences,
//! strides, trails in the history, and the border between page buffer and cache.
//!
//! Guarantees: the same touches give the same counts.
//! Never: does I/O, knows the time.

use core::sync::atomic::AtomicU32;
use std::collections::{HashMap, VecDeque};

use deepheap_policy::balance::{self, Border, EVENTS, MARGIN_PART, Returns, Traffic, Whole};
use deepheap_policy::budget_split::{self, Share, Split};
use deepheap_policy::ghost::{self, Ghost};
use deepheap_policy::history::{self, History};
use deepheap_policy::replacement::{
    AtHead, Queue, Rank, SMALL_PART, asks_ghost, at_head, enters, ghost_length, next_above, rank,
    to_evict, touched,
};
use deepheap_policy::sequence::{Direction, Sequences};
use deepheap_policy::{PAGE, trail};

/// Threads whose scans are told apart.
pub(super) const LANES: usize = 16;

/// How an object leaves the page buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaves {
    /// It is as it came.
    Clean,
    /// It was changed.
    Dirty,
    /// Nothing of it is kept.
    Empty,
}

/// The program touches an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Touch {
    /// Which: they are numbered from 0 on.
    pub object: u32,
    /// Its page.
    pub page: u32,
    /// Bytes of it in the cache.
    pub bytes: u16,
    /// How it leaves.
    pub leaves: Leaves,
    /// It holds nothing before.
    pub is_new: bool,
    /// It came with another page of a scan, in whose fault it is.
    pub is_led: bool,
    /// Which thread.
    pub lane: u8,
}

/// How large the sides are, and what is switched on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Terms {
    /// Pages of page buffer and cache together.
    pub pages: usize,
    /// How much of the cache holds objects, in 256ths: the rest is lost in its slabs.
    pub filled: u32,
    /// The page buffer's share; `None`: it is found by what the sides would save.
    pub share: Option<Share>,
    /// Whether scans bring the pages after the one that is missing.
    pub scans: bool,
    /// Whether walks in equal steps bring their next pages.
    pub strides: bool,
    /// Whether faults bring the pages that followed before.
    pub sequences: bool,
    /// Nanoseconds that a fault on a cached object costs, and a read.
    pub costs_ns: (u64, u64),
    /// Of all objects only one in so many is replayed: sizes stand for so many times as much.
    pub sampled: u32,
}

impl Terms {
    /// The usual ones.
    pub fn new(pages: usize) -> Terms {
        Terms {
            pages,
            filled: 256,
            share: None,
            scans: true,
            strides: true,
            sequences: true,
            costs_ns: (8_000, 60_000),
            sampled: 1,
        }
    }
}

/// What was counted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Touches.
    pub touches: u64,
    /// Of pages that were in the page buffer.
    pub resident: u64,
    /// Of objects in the cache.
    pub cached: u64,
    /// Of objects that held nothing.
    pub new: u64,
    /// Of objects that had to be read.
    pub missed: u64,
    /// Of those in the cache, the ones that took a fault of their own.
    pub cached_faults: u64,
    /// Of those that had to be read, likewise.
    pub missed_faults: u64,
    /// Objects that were read with another one, before they were touched.
    pub ahead: u64,
    /// Objects that were written, and their bytes.
    pub written: u64,
    /// See `written`.
    pub written_bytes: u64,
    /// Objects that left the cache for the copy that the store has.
    pub dropped: u64,
}

impl Counts {
    /// Objects that were read.
    pub fn reads(&self) -> u64 {
        self.missed + self.ahead
    }

    /// Reads of the store for each touch.
    pub fn miss_ratio(&self) -> f64 {
        self.reads() as f64 / self.touches.max(1) as f64
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Nowhere,
    Away,
    PageBuffer(Rank),
    Cached(Queue),
}

impl Place {
    /// Which of `Places::fifos` lists what is there.
    fn fifo(self) -> Option<usize> {
        match self {
            Place::Nowhere | Place::Away => None,
            Place::PageBuffer(Rank::Probation) => Some(0),
            Place::PageBuffer(Rank::Protected) => Some(1),
            Place::Cached(Queue::Small) => Some(2),
            Place::Cached(Queue::Main) => Some(3),
        }
    }
}

#[derive(Clone, Copy)]
struct Object {
    place: Place,
    reuse: u8,
    bytes: u16,
    leaves: Leaves,
    is_changed: bool,
    /// Grows with every move: an older entry of a queue is stale.
    moves: u32,
    /// Pages that had left the page buffer when this one did.
    left_at: u64,
    /// It is in the cache because it followed before.
    is_on_trail: bool,
}

const NOWHERE: Object = Object {
    place: Place::Nowhere,
    reuse: 0,
    bytes: PAGE as u16,
    leaves: Leaves::Clean,
    is_changed: false,
    moves: 0,
    left_at: 0,
    is_on_trail: false,
};

/// A queue of objects. Entries that are not current any more are skipped.
#[derive(Default)]
struct Fifo {
    entries: VecDeque<(u32, u32)>,
    length: u32,
}

/// Where all objects are.
#[derive(Default)]
struct Places {
    objects: Vec<Object>,
    /// The lists of the page buffer and the queues of the cache (`Place::fifo`).
    fifos: [Fifo; 4],
    cached_bytes: u64,
    /// Pages that have left the page buffer since the beginning.
    left: u64,
    /// Objects that are somewhere.
    held: u32,
}

impl Places {
    fn of(&mut self, object: u32) -> &mut Object {
        &mut self.objects[object as usize]
    }

    /// How many pages are on probation, and protected.
    fn resident(&self) -> [u32; 2] {
        [self.fifos[0].length, self.fifos[1].length]
    }

    /// How many objects are in the small queue, and the main one.
    fn cached(&self) -> [u32; 2] {
        [self.fifos[2].length, self.fifos[3].length]
    }

    fn put(&mut self, object: u32, place: Place) {
        let found = self.of(object);
        let old = core::mem::replace(&mut found.place, place);
        found.moves += 1;
        let (moves, bytes) = (found.moves, u64::from(found.bytes));
        self.held += u32::from(old == Place::Nowhere);
        self.held -= u32::from(place == Place::Nowhere);
        if matches!(old, Place::Cached(_)) {
            self.cached_bytes -= bytes;
        }
        if matches!(place, Place::Cached(_)) {
            self.cached_bytes += bytes;
        }
        if let Some(fifo) = old.fifo() {
            self.fifos[fifo].length -= 1;
        }
        if let Some(fifo) = place.fifo() {
            self.fifos[fifo].length += 1;
            self.fifos[fifo].entries.push_back((object, moves));
        }
    }

    /// The object at the head of a queue; none if the queue is empty.
    fn head(&mut self, place: Place) -> Option<u32> {
        loop {
            let (object, moves) = self.fifos[place.fifo()?].entries.pop_front()?;
            if self.of(object).moves == moves {
                return Some(object);
            }
        }
    }
}

/// How much each side may hold.
struct Limits {
    /// Of all pages, before the cache lends anything.
    split: Split,
    /// The page buffer's for the sampled pages, with what it is lent.
    page_buffer: u32,
    /// The cache's, in bytes of the sampled pages.
    cache: u64,
    /// The small queue's, in 256ths of the cache.
    small_part: u32,
}

impl Limits {
    fn new(terms: &Terms, part: usize) -> Limits {
        let share = terms.share.unwrap_or(Share::Part(part));
        let split = budget_split::split(terms.pages * PAGE, 0, share, 0);
        let filled = split.object_cache * PAGE / 256 * terms.filled as usize;
        let cache = (filled / terms.sampled as usize) as u64;
        Limits { split, page_buffer: 0, cache, small_part: SMALL_PART }
    }

    /// Gives the page buffer what the cache does not fill, unless its share is fixed.
    fn lend(&mut self, terms: &Terms, cached_bytes: u64) {
        let sampled = terms.sampled as usize;
        let cached = cached_bytes as usize * sampled * 256;
        let split = match terms.share {
            Some(Share::Bytes(_)) => self.split,
            _ => self.split.lend(cached / (terms.filled as usize).max(1) / PAGE),
        };
        self.page_buffer = (split.page_buffer / sampled).max(1) as u32;
    }
}

/// The counts that move the border, since it moved.
#[derive(Default)]
struct Seen {
    returns: Returns,
    ghost_reads: u64,
    reads: u64,
    departures: u64,
    /// The touches before, and the cached ones among them.
    begun: (u64, u64),
}

/// A touch of a page stands for so many nanoseconds of run time.
const TOUCH_NS: u64 = 1_000;
/// What fits is asked for once in so many touches.
const TOUCHES_PER_LOOK: u64 = 256;

/// By what pages are brought before they are touched.
struct Ahead {
    sequences: [Sequences; LANES],
    history: History<Box<[AtomicU32]>>,
    /// Objects by page, if any are brought.
    by_page: HashMap<u32, u32>,
}

/// The pager.
pub(super) struct Replay {
    terms: Terms,
    places: Places,
    limits: Limits,
    ghost: Ghost<Box<[AtomicU32]>>,
    border: Border,
    departed: u64,
    seen: Seen,
    ahead: Ahead,
    counts: Counts,
}

fn zeros(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

impl Replay {
    /// Nothing is anywhere.
    pub(super) fn new(terms: Terms) -> Replay {
        let remembered = ghost_length(terms.pages / terms.sampled as usize);
        // Compressed objects are several to a page.
        let ghost = Ghost::new(zeros(ghost::length(4 * remembered)));
        ghost.grow(remembered);
        let bytes = if terms.sequences { history::bytes(terms.pages * PAGE) } else { 0 };
        let ahead = Ahead {
            sequences: Default::default(),
            history: History::new(history::lengths(bytes).map(zeros)),
            by_page: HashMap::new(),
        };
        let mut limits = Limits::new(&terms, Border::FIRST.part);
        limits.lend(&terms, 0);
        let (places, counts) = (Places::default(), Counts::default());
        let (border, departed, seen) = (Border::FIRST, 0, Seen::default());
        Replay { terms, places, limits, ghost, border, departed, seen, ahead, counts }
    }

    /// What was counted.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// The object holds nothing any more.
    pub(super) fn empty(&mut self, object: u32) {
        let Some(found) = self.places.objects.get_mut(object as usize) else { return };
        match found.place {
            Place::PageBuffer(_) => found.leaves = Leaves::Empty,
            Place::Cached(_) | Place::Away => self.places.put(object, Place::Nowhere),
            Place::Nowhere => {}
        }
    }

    /// The program touches an object.
    pub(super) fn touch(&mut self, touch: &Touch) {
        let (object, page, lane) = (touch.object, touch.page, usize::from(touch.lane) % LANES);
        let known = self.places.objects.len().max(object as usize + 1);
        self.places.objects.resize(known, NOWHERE);
        self.counts.touches += 1;
        if touch.is_new && !matches!(self.places.of(object).place, Place::PageBuffer(_)) {
            self.places.put(object, Place::Nowhere);
            self.places.of(object).is_changed = true;
        }
        match self.places.of(object).place {
            Place::PageBuffer(_) => self.counts.resident += 1,
            Place::Cached(_) => {
                self.counts.cached += 1;
                self.counts.cached_faults += u64::from(!touch.is_led);
                self.come_back(object);
                if self.terms.scans {
                    let (window, direction) = self.ahead.sequences[lane].of(page).window(page);
                    if window == 1 {
                        self.bring_next(lane, page, true);
                    }
                    let passed = self.bring_cached_after(page, window, direction);
                    self.ahead.sequences[lane].pass(page, passed);
                }
            }
            Place::Away => {
                self.counts.missed += 1;
                self.counts.missed_faults += u64::from(!touch.is_led);
                self.read(object);
                if self.terms.scans {
                    let sequence = self.ahead.sequences[lane].of(page);
                    let (window, direction) = sequence.window(page);
                    if window == 1 {
                        self.bring_next(lane, page, false);
                    }
                    self.bring_stored_after(page, window, direction);
                    self.ahead.sequences[lane].note(page, sequence.advance(page, window));
                }
            }
            Place::Nowhere => {
                self.counts.new += 1;
                if self.terms.scans || self.terms.strides || self.terms.sequences {
                    self.ahead.by_page.insert(page, object);
                }
                self.places.of(object).reuse = 0;
                self.places.put(object, Place::PageBuffer(Rank::Probation));
            }
        }
        let found = self.places.of(object);
        (found.leaves, found.bytes) = (touch.leaves, touch.bytes);
        found.is_changed |= touch.leaves == Leaves::Dirty;
        self.make_room();
        self.move_border();
    }

    /// Brings the next pages of a trail into the cache, if the fault is on one; or of a walk.
    fn bring_next(&mut self, lane: usize, page: u32, is_cached: bool) {
        if self.terms.sequences {
            let most = trail::most_ahead(self.limits.cache as usize / PAGE, false);
            let Ahead { sequences, history, .. } = &mut self.ahead;
            if let Some(ahead) = sequences[lane].trails.fault(history, page, is_cached, most) {
                let brought = ahead.pages().iter().filter(|&&next| self.bring(next, true)).count();
                self.ahead.sequences[lane].trails.bring(brought);
                return;
            }
        }
        if self.terms.strides
            && let Some(ahead) = self.ahead.sequences[lane].walks.fault(page)
        {
            for next in ahead.pages() {
                self.bring(next, false);
            }
        }
    }

    /// The object of a page and where it is, if it was touched before.
    fn on_page(&self, page: u32) -> Option<(u32, Place)> {
        let object = *self.ahead.by_page.get(&page)?;
        Some((object, self.places.objects[object as usize].place))
    }

    /// Brings the object of a page into the cache, if it is stored.
    fn bring(&mut self, page: u32, is_on_trail: bool) -> bool {
        let Some((object, Place::Away)) = self.on_page(page) else { return false };
        self.counts.ahead += 1;
        self.ask_ghost(object);
        self.places.of(object).is_on_trail = is_on_trail;
        self.places.put(object, Place::Cached(Queue::Small));
        self.make_room();
        true
    }

    /// Brings the stored objects among the `window` pages from `page` on, without the first.
    fn bring_stored_after(&mut self, page: u32, window: u32, direction: Direction) {
        for further in 1..window {
            if let Some((object, Place::Away)) = self.on_page(direction.after(page, further)) {
                self.counts.ahead += 1;
                self.read(object);
                self.make_room();
            }
        }
    }

    /// Brings the cached objects, until one would have to be read; returns how many pages it
    /// passed, the first one included.
    fn bring_cached_after(&mut self, page: u32, window: u32, direction: Direction) -> u32 {
        for further in 1..window {
            match self.on_page(direction.after(page, further)) {
                Some((_, Place::Away)) => return further,
                Some((object, Place::Cached(_))) => {
                    self.come_back(object);
                    self.make_room();
                }
                _ => {}
            }
        }
        window
    }

    fn come_back(&mut self, object: u32) {
        let found = self.places.of(object);
        // Its first touch stands for a read: it is no reuse.
        if core::mem::take(&mut found.is_on_trail) {
            return self.places.put(object, Place::PageBuffer(Rank::Probation));
        }
        found.reuse = touched(found.reuse);
        let (reuse, left_at) = (found.reuse, found.left_at);
        let (since, limit) = (self.places.left - left_at, u64::from(self.limits.page_buffer));
        let margin = limit / MARGIN_PART as u64;
        // On average, half of a margin had left when it did.
        if let Some(growth) = balance::growth((since + margin / 2) / margin.max(1)) {
            self.seen.returns[growth] += 1;
        }
        self.places.put(object, Place::PageBuffer(rank(reuse, since < limit)));
    }

    /// Counts a read that a larger cache would have saved, if the ghost knows of one.
    fn ask_ghost(&mut self, object: u32) {
        self.seen.ghost_reads += u64::from(self.ghost.left_recently(object));
    }

    fn read(&mut self, object: u32) {
        self.ask_ghost(object);
        self.seen.reads += 1;
        self.places.of(object).reuse = 0;
        self.places.put(object, Place::PageBuffer(Rank::Probation));
    }

    /// Evicts and reclaims until both sides are within their limits.
    fn make_room(&mut self) {
        self.limits.lend(&self.terms, self.places.cached_bytes);
        while self.places.resident().iter().sum::<u32>() > self.limits.page_buffer
            && self.evict_one()
        {
            self.limits.lend(&self.terms, self.places.cached_bytes);
        }
        while self.places.cached_bytes > self.limits.cache && self.reclaim_one() {}
    }

    /// Takes out the oldest page of the list that the policy names.
    fn evict_one(&mut self) -> bool {
        let sampled = self.terms.sampled as usize;
        let [probation, protected] = self.places.resident().map(|pages| pages as usize * sampled);
        let from = match to_evict(1, probation, protected) {
            (0, _) => Rank::Protected,
            _ => Rank::Probation,
        };
        let Some(object) = self.places.head(Place::PageBuffer(from)) else { return false };
        self.places.left += 1;
        let left_at = self.places.left;
        let found = self.places.of(object);
        found.left_at = left_at;
        let to = match (found.leaves, found.reuse) {
            (Leaves::Empty, _) => Place::Nowhere,
            (_, reuse) => {
                let left = if asks_ghost(reuse) { self.ghost.take(object) } else { None };
                Place::Cached(enters(reuse, left))
            }
        };
        self.places.put(object, to);
        true
    }

    fn reclaim_one(&mut self) -> bool {
        let [small, main] = self.places.cached();
        let queue = next_above(self.limits.small_part, small, main);
        let Some(object) = self.places.head(Place::Cached(queue)) else { return false };
        let found = self.places.of(object);
        let to = match at_head(queue, found.reuse) {
            AtHead::Leaves { remembered } => {
                self.seen.departures += 1;
                if core::mem::take(&mut found.is_changed) {
                    self.counts.written += 1;
                    self.counts.written_bytes += u64::from(found.bytes);
                } else {
                    self.counts.dropped += 1;
                }
                found.is_on_trail = false;
                if remembered {
                    self.ghost.insert(object, queue);
                }
                Place::Away
            }
            AtHead::Goes(queue, reuse) => {
                found.reuse = reuse;
                Place::Cached(queue)
            }
        };
        self.places.put(object, to);
        true
    }

    /// Moves the border once enough was seen, as the balancer does.
    fn move_border(&mut self) {
        if self.terms.share.is_some() {
            return;
        }
        let touches = self.counts.touches;
        let events = balance::evidence(&self.seen.returns, self.seen.ghost_reads);
        let is_due = events * u64::from(self.terms.sampled) >= EVENTS;
        if !is_due && !touches.is_multiple_of(TOUCHES_PER_LOOK) {
            return;
        }
        let touched = self.places.held as usize * self.terms.sampled as usize;
        let (cached, cached_bytes) = self.cached_of_all();
        let fit = balance::fitting_part(self.terms.pages, touched, cached, cached_bytes);
        let before = self.border;
        self.border = before.following(fit, cached_bytes / cached.max(1));
        if is_due {
            let Seen { returns, ghost_reads, reads, departures, begun } =
                core::mem::take(&mut self.seen);
            self.seen.begun = (touches, self.counts.cached);
            let cached = u64::from(self.places.cached().iter().sum::<u32>()).max(1);
            let mean = self.places.cached_bytes / cached;
            let (fault_ns, read_ns) = self.terms.costs_ns;
            let sampled = u64::from(self.terms.sampled);
            let observed = Traffic {
                returns,
                fault_ns,
                margin_bytes: (self.limits.page_buffer as usize * PAGE / MARGIN_PART) as u64,
                ghost_reads,
                read_ns,
                ghost_bytes: balance::bytes_for(self.ghost.recent(), mean as usize) as u64,
                whole: Whole {
                    faults: self.counts.cached - begun.1,
                    reads,
                    departures,
                    all_bytes: (self.terms.pages * PAGE) as u64 / sampled,
                    cached_bytes: self.places.cached_bytes,
                    mean_bytes: mean,
                    fit,
                    elapsed: (touches - begun.0) * TOUCH_NS,
                },
            };
            self.departed = balance::departed(self.departed, departures);
            self.border = self.border.next(&observed, self.departed);
            self.ghost.grow(ghost_length(cached as usize));
        }
        let least = balance::least_part(self.terms.pages, cached, cached_bytes);
        self.border = self.border.at_least(least);
        if self.border.part != before.part {
            self.limits = Limits::new(&self.terms, self.border.part);
        }
        self.limits.lend(&self.terms, self.places.cached_bytes);
    }

    /// Cached objects, of all and not of the sample only, and bytes that they take.
    fn cached_of_all(&self) -> (usize, usize) {
        let sampled = self.terms.sampled as usize;
        let filled = (self.terms.filled as usize).max(1);
        let cached = self.places.cached().iter().sum::<u32>() as usize * sampled;
        (cached, self.places.cached_bytes as usize * sampled / filled * 256)
    }
}

#[cfg(test)]
mod tests;
