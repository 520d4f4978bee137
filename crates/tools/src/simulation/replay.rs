//! Replay: the pager's decisions on a sequence of touches, in a pager that moves only numbers.
//!
//! A page buffer with its two lists, a cache of so many bytes, a ghost, and a store without limit.
//! What is decided, the policies decide that the pager asks: replacement, ghost, sequences,
//! strides, trails in the history, and the border between page buffer and cache.
//!
//! Guarantees: the same touches give the same counts.
//! Never: does I/O, knows the time.

use std::collections::{HashMap, VecDeque};

use crate::balance::{self, EVENTS, MARGIN_PART, Observed, PART_FIRST, Returns};
use crate::budget_split::{self, Share, Split};
use crate::ghost::{self, Ghost};
use crate::history::{self, History};
use crate::replacement::{
    AtHead, Queue, Rank, SMALL_PART, asks_ghost, at_head, enters, ghost_length, next_above, rank,
    to_evict, touched,
};
use crate::sequence::{Direction, Sequences};
use crate::{Memory, PAGE, trail};

/// Threads whose scans are told apart.
pub const LANES: usize = 16;

/// What becomes of an object when its page leaves the page buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// It is as it came.
    Clean,
    /// It was changed.
    Dirty,
    /// Nothing of it is kept.
    Empty,
}

/// The program touches an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Which: they are numbered from 0 on.
    pub object: u32,
    /// Its page.
    pub page: u32,
    /// Bytes of it in the cache.
    pub bytes: u16,
    /// What becomes of it afterwards.
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
    /// Of pages that were within reach.
    pub in_reach: u64,
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
    /// Reads of objects that a larger cache would have had.
    pub ghost_reads: u64,
    /// Pages that left the page buffer.
    pub left: u64,
    /// Objects that were written, and their bytes.
    pub written: u64,
    /// See `written`.
    pub written_bytes: u64,
    /// Objects that left the cache for the copy that the store has.
    pub dropped: u64,
}

impl Counts {
    /// Reads of the store for each touch.
    pub fn miss_ratio(&self) -> f64 {
        (self.missed + self.ahead) as f64 / self.touches.max(1) as f64
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
    /// Which of `Replay::fifos` lists what is there.
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
    page: u32,
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
    page: 0,
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

/// What the border is moved by.
#[derive(Default)]
struct Border {
    part: usize,
    returns: Returns,
    ghost_reads: u64,
    departures: u64,
    departed: u64,
}

/// The pager.
pub struct Replay<M> {
    terms: Terms,
    ghost: Ghost<M>,
    objects: Vec<Object>,
    /// The lists of the page buffer and the queues of the cache (`Place::fifo`).
    fifos: [Fifo; 4],
    /// The small queue, in 256ths of the cache.
    small_part: u32,
    /// The limits of page buffer and cache, for all pages, before the cache lends anything.
    split: Split,
    /// The page buffer's for the sampled pages, with what it is lent.
    page_buffer_max: u32,
    /// The cache's, in bytes of the sampled pages.
    cache_max: u64,
    cached_bytes: u64,
    counts: Counts,
    /// Pages that have left the page buffer since the beginning.
    left_ever: u64,
    border: Border,
    sequences: [Sequences; LANES],
    history: History<M>,
    /// Objects by page, if scans bring them.
    by_page: HashMap<u32, u32>,
}

impl<M: Memory> Replay<M> {
    /// Nothing is anywhere. `zeros` makes memory of so many numbers.
    pub fn new<E>(terms: Terms, zeros: impl Fn(usize) -> Result<M, E>) -> Result<Replay<M>, E> {
        let [ring, index, written] = history::lengths(history::bytes(terms.pages * PAGE));
        let sampled = terms.sampled.max(1) as usize;
        let remembered = ghost_length(terms.pages / sampled);
        let mut replay = Replay {
            terms: Terms { sampled: sampled as u32, ..terms },
            // Compressed objects are several to a page.
            ghost: Ghost::new(zeros(ghost::length(4 * remembered))?),
            objects: Vec::new(),
            fifos: Default::default(),
            small_part: SMALL_PART,
            split: Split { page_buffer: 0, object_cache: 0 },
            page_buffer_max: 0,
            cache_max: 0,
            cached_bytes: 0,
            counts: Counts::default(),
            left_ever: 0,
            border: Border { part: PART_FIRST, ..Border::default() },
            sequences: Default::default(),
            history: History::new([zeros(ring)?, zeros(index)?, zeros(written)?]),
            by_page: HashMap::new(),
        };
        replay.ghost.grow(remembered);
        replay.set_border();
        Ok(replay)
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn set_border(&mut self) {
        let share = self.terms.share.unwrap_or(Share::Part(self.border.part));
        self.split = budget_split::split(self.terms.pages * PAGE, 0, share, 0);
        let filled = self.split.object_cache * PAGE / 256 * self.terms.filled as usize;
        self.cache_max = (filled / self.terms.sampled as usize) as u64;
        self.lend();
    }

    /// Gives the page buffer what the cache does not fill, unless its share is fixed.
    fn lend(&mut self) {
        let sampled = self.terms.sampled as usize;
        let cached = self.cached_bytes as usize * sampled * 256;
        let split = match self.terms.share {
            Some(Share::Bytes(_)) => self.split,
            _ => self.split.lend(cached / (self.terms.filled as usize).max(1) / PAGE),
        };
        self.page_buffer_max = (split.page_buffer / sampled).max(1) as u32;
    }

    /// The object holds nothing any more.
    pub fn empty(&mut self, object: u32) {
        let Some(found) = self.objects.get_mut(object as usize) else { return };
        match found.place {
            Place::PageBuffer(_) => found.leaves = Leaves::Empty,
            Place::Cached(_) | Place::Away => self.put(object, Place::Nowhere),
            Place::Nowhere => {}
        }
    }

    /// The program touches an object.
    pub fn touch(&mut self, touch: &Touch) {
        let at = touch.object as usize;
        if at >= self.objects.len() {
            self.objects.resize(at + 1, NOWHERE);
        }
        if self.brings_ahead() && self.objects[at].page != touch.page {
            self.by_page.insert(touch.page, touch.object);
        }
        self.objects[at].page = touch.page;
        self.counts.touches += 1;
        if touch.is_new && !matches!(self.objects[at].place, Place::PageBuffer(_)) {
            self.put(touch.object, Place::Nowhere);
            self.objects[at].is_changed = true;
        }
        let (lane, page) = (usize::from(touch.lane) % LANES, touch.page);
        match self.objects[at].place {
            Place::PageBuffer(_) => self.counts.in_reach += 1,
            Place::Cached(_) => {
                self.counts.cached += 1;
                self.counts.cached_faults += u64::from(!touch.is_led);
                self.come_back(touch.object);
                if self.terms.scans {
                    let (window, direction) = self.sequences[lane].of(page).window(page);
                    if window == 1 {
                        self.bring_next(lane, page, true);
                    }
                    let passed = self.bring_cached_after(page, window, direction);
                    self.sequences[lane].pass(page, passed);
                }
            }
            Place::Away => {
                self.counts.missed += 1;
                self.counts.missed_faults += u64::from(!touch.is_led);
                self.read(touch.object);
                if self.terms.scans {
                    let sequence = self.sequences[lane].of(page);
                    let (window, direction) = sequence.window(page);
                    if window == 1 {
                        self.bring_next(lane, page, false);
                    }
                    self.bring_stored_after(page, window, direction);
                    self.sequences[lane].note(page, sequence.advance(page, window));
                }
            }
            Place::Nowhere => {
                self.counts.new += 1;
                self.objects[at].reuse = 0;
                self.put(touch.object, Place::PageBuffer(Rank::Probation));
            }
        }
        let object = &mut self.objects[at];
        object.leaves = touch.leaves;
        object.bytes = touch.bytes;
        object.is_changed |= touch.leaves == Leaves::Dirty;
        self.make_room();
        self.move_border();
    }

    fn brings_ahead(&self) -> bool {
        self.terms.scans || self.terms.strides || self.terms.sequences
    }

    /// Brings the next pages of a trail into the cache, if the fault is on one; or of a walk.
    fn bring_next(&mut self, lane: usize, page: u32, is_cached: bool) {
        if self.terms.sequences {
            let most = trail::most_ahead(self.cache_max as usize / PAGE, false);
            let trails = &mut self.sequences[lane].trails;
            if let Some(ahead) = trails.fault(&self.history, page, is_cached, most) {
                let brought = ahead.pages().iter().filter(|&&next| self.bring(next, true)).count();
                self.sequences[lane].trails.bring(brought);
                return;
            }
        }
        if self.terms.strides
            && let Some(ahead) = self.sequences[lane].walks.fault(page)
        {
            for next in ahead.pages() {
                self.bring(next, false);
            }
        }
    }

    /// Brings the object of a page into the cache, if it is stored.
    fn bring(&mut self, page: u32, is_on_trail: bool) -> bool {
        let object = self.by_page.get(&page).copied();
        let stored = object.filter(|&it| self.objects[it as usize].place == Place::Away);
        let Some(object) = stored else { return false };
        self.counts.ahead += 1;
        self.ask_ghost(object);
        self.objects[object as usize].is_on_trail = is_on_trail;
        self.put(object, Place::Cached(Queue::Small));
        self.make_room();
        true
    }

    /// Brings the stored objects among the `window` pages from `page` on, without the first.
    fn bring_stored_after(&mut self, page: u32, window: u32, direction: Direction) {
        for further in 1..window {
            let next = self.by_page.get(&direction.after(page, further)).copied();
            if let Some(object) = next
                && self.objects[object as usize].place == Place::Away
            {
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
            let next = self.by_page.get(&direction.after(page, further)).copied();
            let Some(object) = next else { continue };
            match self.objects[object as usize].place {
                Place::Away => return further,
                Place::Cached(_) => {
                    self.come_back(object);
                    self.make_room();
                }
                Place::PageBuffer(_) | Place::Nowhere => {}
            }
        }
        window
    }

    fn come_back(&mut self, object: u32) {
        // Its first touch stands for a read: it is no reuse.
        if core::mem::take(&mut self.objects[object as usize].is_on_trail) {
            return self.put(object, Place::PageBuffer(Rank::Probation));
        }
        let since = self.left_ever - self.objects[object as usize].left_at;
        let margin = u64::from(self.page_buffer_max) / MARGIN_PART as u64;
        // On average, half of a margin had left when it did.
        if let Some(growth) = balance::growth((since + margin / 2) / margin.max(1)) {
            self.border.returns[growth] += 1;
        }
        let soon = since < u64::from(self.page_buffer_max);
        let found = &mut self.objects[object as usize];
        found.reuse = touched(found.reuse);
        let to = rank(found.reuse, soon);
        self.put(object, Place::PageBuffer(to));
    }

    /// Counts a read that a larger cache would have saved, if the ghost knows of one.
    fn ask_ghost(&mut self, object: u32) {
        let known = self.ghost.left_recently(object);
        self.counts.ghost_reads += u64::from(known);
        self.border.ghost_reads += u64::from(known);
    }

    fn read(&mut self, object: u32) {
        self.ask_ghost(object);
        self.objects[object as usize].reuse = 0;
        self.put(object, Place::PageBuffer(Rank::Probation));
    }

    /// How many pages are on probation, and protected.
    fn reach(&self) -> [u32; 2] {
        [self.fifos[0].length, self.fifos[1].length]
    }

    /// How many objects are in the small queue, and the main one.
    fn cached(&self) -> [u32; 2] {
        [self.fifos[2].length, self.fifos[3].length]
    }

    fn put(&mut self, object: u32, place: Place) {
        let found = &mut self.objects[object as usize];
        let old = core::mem::replace(&mut found.place, place);
        found.moves += 1;
        let (moves, bytes) = (found.moves, u64::from(found.bytes));
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
            if self.objects[object as usize].moves == moves {
                return Some(object);
            }
        }
    }

    /// Evicts and reclaims until both sides are within their limits.
    fn make_room(&mut self) {
        self.lend();
        while self.reach().iter().sum::<u32>() > self.page_buffer_max && self.evict_one() {
            self.lend();
        }
        while self.cached_bytes > self.cache_max && self.reclaim_one() {}
    }

    /// Takes out the oldest page of the list that the policy names.
    fn evict_one(&mut self) -> bool {
        let [probation, protected] =
            self.reach().map(|pages| pages as usize * self.terms.sampled as usize);
        let from = match to_evict(1, probation, protected) {
            (0, _) => Rank::Protected,
            _ => Rank::Probation,
        };
        let Some(object) = self.head(Place::PageBuffer(from)) else { return false };
        self.leave_page_buffer(object);
        true
    }

    fn leave_page_buffer(&mut self, object: u32) {
        self.counts.left += 1;
        self.left_ever += 1;
        let found = &mut self.objects[object as usize];
        found.left_at = self.left_ever;
        let reuse = found.reuse;
        if found.leaves == Leaves::Empty {
            self.put(object, Place::Nowhere);
            return;
        }
        let left = if asks_ghost(reuse) { self.ghost.take(object) } else { None };
        self.put(object, Place::Cached(enters(reuse, left)));
    }

    fn reclaim_one(&mut self) -> bool {
        let [small, main] = self.cached();
        let queue = next_above(self.small_part, small, main);
        let Some(object) = self.head(Place::Cached(queue)) else { return false };
        let found = &mut self.objects[object as usize];
        match at_head(queue, found.reuse) {
            AtHead::Leaves { remembered } => {
                self.border.departures += 1;
                if core::mem::take(&mut found.is_changed) {
                    self.counts.written += 1;
                    self.counts.written_bytes += u64::from(found.bytes);
                } else {
                    self.counts.dropped += 1;
                }
                if remembered {
                    self.ghost.insert(object, queue);
                }
                found.is_on_trail = false;
                self.put(object, Place::Away);
            }
            AtHead::Goes(queue, reuse) => {
                found.reuse = reuse;
                self.put(object, Place::Cached(queue));
            }
        }
        true
    }

    /// Moves the border once enough was seen, as the balancer does.
    fn move_border(&mut self) {
        let Border { part, returns, ghost_reads, departures, departed } = self.border;
        let events = balance::evidence(&returns, ghost_reads);
        if self.terms.share.is_some() || events * u64::from(self.terms.sampled) < EVENTS {
            return;
        }
        let cached = u64::from(self.cached().iter().sum::<u32>()).max(1);
        let (fault_ns, read_ns) = self.terms.costs_ns;
        let observed = Observed {
            returns,
            fault_ns,
            margin_bytes: (self.page_buffer_max as usize * PAGE / MARGIN_PART) as u64,
            ghost_reads,
            read_ns,
            ghost_bytes: self.ghost.recent() as u64 * (self.cached_bytes / cached),
        };
        let departed = balance::departed(departed, departures);
        let part = balance::next_part(part, &observed, departed);
        self.border = Border { part, departed, ..Border::default() };
        self.ghost.grow(ghost_length(cached as usize));
        self.set_border();
    }
}

#[cfg(test)]
mod tests;
