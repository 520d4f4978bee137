//! Reader: makes the touches of a trace, and what its faults cost.
//!
//! Guarantees: the same trace gives the same steps.
//! Threads: plain functions.

use core::ops::Range;
use std::collections::HashMap;

use deepheap_pager::trace::format::{Happened, LANES, Record, Trace, UNIT_NS};
use deepheap_sys::PAGE;

use crate::simulation::replay::{Leaves, Replay, Terms, Touch};

/// What a fault costs outside of its handler, the signal and its return: the shortest time from the
/// end of a fault to the next of the same thread, of one in so many; between bounds.
const SOONEST: usize = 100;
const OUTSIDE_NS: (u64, u64) = (1_500, 6_000);
const OUTSIDE_USUAL_NS: u64 = 3_500;
/// The program is slower by so much after a fault, which has used its caches (decision 21).
const COLD_NS: u64 = 1_000;
/// And what it costs to evict the page that it brings.
const EVICTION_NS: u64 = 1_500;
/// Below so many faults the usual costs are assumed.
const FAULTS_LEAST: usize = 16;
/// A scan that goes on does so at most so many pages beyond the window before.
const SKIPPED_MAX: u32 = 8;

/// A step of a trace that a replay needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Of a page that was there when the trace began, to which it tells that it left.
    Early(Touch),
    Touch(Touch),
    /// As `Touch`, of a page that came with another one, unless the program came to it later on.
    Passed(Touch),
    Empty(u32),
}

impl Step {
    /// Plays it, unless it is of a page that nobody came to.
    pub(super) fn play(&self, replay: &mut Replay) {
        match self {
            Step::Early(touch) | Step::Touch(touch) => replay.touch(touch),
            Step::Passed(_) => {}
            Step::Empty(object) => replay.empty(*object),
        }
    }

    fn touch(&mut self) -> Option<&mut Touch> {
        match self {
            Step::Early(touch) | Step::Touch(touch) | Step::Passed(touch) => Some(touch),
            Step::Empty(_) => None,
        }
    }
}

/// The counts of the traced program itself.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Touches: faults, and pages that a scan passed.
    pub touches: u64,
    /// Objects that were read.
    pub reads: u64,
    /// Bytes that left RAM for new blocks.
    pub written_bytes: u64,
}

/// The cost of faults, nanoseconds, by the trace: the median, for those that wait for room in RAM
/// or for a processor say nothing of the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// One that finds its object cached.
    pub cached_ns: u64,
    /// One that reads.
    pub stored_ns: u64,
    /// All of the trace, in the lane that lost most.
    pub lost_ns: u64,
}

/// The state of a page while a trace is read.
#[derive(Clone, Copy)]
struct Page {
    object: u32,
    /// Its last touch, among the steps.
    last: usize,
    /// It has not left the page buffer since.
    is_in: bool,
    /// It has left RAM since.
    is_away: bool,
    bytes: u16,
}

/// How a page came to the page buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Before the trace began.
    Early,
    /// By its own fault.
    Faulted,
    /// With another one that was new, too.
    Led,
    /// In the window of a scan; whether the program used it is not known yet.
    Passed,
}

/// The faults of a lane's threads.
#[derive(Clone, Copy, Default)]
struct Lane {
    faults: u64,
    /// How long they were in the handlers.
    in_faults_ns: u64,
    /// When the last one ended, in units.
    ended: Option<u64>,
    /// When the last page was compressed, if nothing else happened since.
    pressed: Option<u64>,
}

/// How long things took, in units of the trace.
#[derive(Default)]
pub(super) struct Clock {
    /// When the last thing ended.
    pub end: u64,
    lanes: [Lane; LANES],
    /// From the end of a fault to the next of its lane.
    pauses: Vec<u32>,
    /// From a page that was compressed to the next of its lane.
    pressing: Vec<u32>,
    /// Faults on cached objects, and those that read.
    took: [Vec<u32>; 2],
}

impl Clock {
    fn note(&mut self, lane: u8, record: &Record) {
        let ended = record.at + u64::from(record.took);
        self.end = self.end.max(ended);
        let since = |at: Option<u64>| u32::try_from(record.at.checked_sub(at?)?).ok();
        let lane = &mut self.lanes[usize::from(lane)];
        let before = lane.pressed.take();
        if record.happened == Happened::Pressed {
            self.pressing.extend(since(before));
            lane.pressed = Some(record.at);
        }
        if record.happened.is_fault() {
            lane.faults += 1;
            lane.in_faults_ns += u64::from(record.took) * UNIT_NS;
            self.pauses.extend(since(lane.ended.replace(ended)));
        }
        match record.happened {
            Happened::Cached => self.took[0].push(record.took),
            Happened::Stored => self.took[1].push(record.took),
            _ => {}
        }
    }

    /// What faults cost, by all that was noted.
    pub(super) fn costs(self) -> Costs {
        let Clock { lanes, pauses, pressing, took: [cached, stored], .. } = self;
        // A thread that touches memory that is away at once is in the next fault no sooner.
        let soonest = pauses.len() / SOONEST;
        let (least, most) = OUTSIDE_NS;
        let outside_ns =
            nth(pauses, soonest).map_or(OUTSIDE_USUAL_NS, |ns| ns.clamp(least, most)) + COLD_NS;
        // A page is compressed after it has left, as a rule.
        let around_ns = outside_ns + EVICTION_NS + median(pressing).unwrap_or(0);
        let usual = Terms::new(0).costs_ns;
        let lost_ns = lanes.iter().map(|lane| lane.in_faults_ns + lane.faults * outside_ns);
        Costs {
            cached_ns: median(cached).unwrap_or(usual.0) + around_ns,
            stored_ns: median(stored).unwrap_or(usual.1) + around_ns,
            lost_ns: lost_ns.max().unwrap_or(0),
        }
    }
}

fn median(took: Vec<u32>) -> Option<u64> {
    let middle = took.len() / 2;
    nth(took, middle)
}

/// The time of that rank, in nanoseconds; none if there are few.
fn nth(mut took: Vec<u32>, rank: usize) -> Option<u64> {
    let is_enough = took.len() >= FAULTS_LEAST;
    is_enough.then(|| u64::from(*took.select_nth_unstable(rank).1) * UNIT_NS)
}

/// The limits of page buffer and cache, in pages, and the page buffer's share.
#[derive(Default)]
pub(super) struct Limits {
    page_buffer: u64,
    cache: u64,
    /// Since when they are what they are.
    since: u64,
    /// How long they were known, and the page buffer's share in that time, in 65536ths.
    known: u64,
    shares: u64,
}

impl Limits {
    /// They were what they are until now.
    fn end(&mut self, at: u64) {
        if let Some(share) = (self.page_buffer << 16).checked_div(self.page_buffer + self.cache) {
            let time = at.saturating_sub(self.since);
            self.known += time;
            self.shares += time.saturating_mul(share);
        }
        self.since = at;
    }

    /// The bytes of both.
    pub(super) fn bytes(&self) -> u64 {
        (self.page_buffer + self.cache) * PAGE as u64
    }

    /// The page buffer's share on average, in 65536ths, if it is known.
    pub(super) fn part(&self) -> Option<usize> {
        self.shares.checked_div(self.known).map(|part| part as usize)
    }
}

/// What a trace tells.
#[derive(Default)]
pub(super) struct Reader {
    /// In the order in which they happened.
    pub steps: Vec<Step>,
    /// What the program met.
    pub seen: Seen,
    /// How long that took.
    pub clock: Clock,
    /// The sides of its RAM.
    pub limits: Limits,
    pages: HashMap<u32, Page>,
    /// Pages at which scans are expected next, with the steps that they passed.
    expected: HashMap<u32, Range<usize>>,
}

impl Reader {
    /// Reads all of a trace.
    pub(super) fn of(trace: &Trace) -> Reader {
        let mut reader = Reader::default();
        for traced in &trace.records {
            reader.clock.note(traced.lane, &traced.record);
            reader.read(traced.lane, &traced.record);
        }
        // Pages that were there come first, in the order in which they left.
        reader.steps.sort_by_key(|step| !matches!(step, Step::Early(_)));
        reader
    }

    /// How many pages the program has touched.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    fn read(&mut self, lane: u8, record: &Record) {
        let page = record.page;
        match record.happened {
            Happened::Zero => {
                for further in 0..record.amount.max(1) {
                    let how = if further > 0 { How::Led } else { How::Faulted };
                    self.touch(page.wrapping_add(further as u32), lane, true, how);
                }
            }
            Happened::Cached | Happened::Stored => {
                self.come_to(page);
                self.touch(page, lane, false, How::Faulted);
                self.pass(lane, record);
            }
            Happened::Ahead => {
                self.touch(page, lane, false, How::Passed);
                self.pass(lane, record);
            }
            Happened::Clean => self.left(page, Leaves::Clean, record.amount),
            Happened::Dirty => self.left(page, Leaves::Dirty, record.amount),
            Happened::Empty => {
                self.left(page, Leaves::Empty, 0);
                if let Some(known) = self.pages.get(&page) {
                    self.steps.push(Step::Empty(known.object));
                }
            }
            Happened::Pressed => self.takes(page, record.amount.unsigned_abs()),
            Happened::Written => {
                self.seen.written_bytes += u64::from(record.amount.unsigned_abs());
                self.is_away(page);
            }
            Happened::Dropped => self.is_away(page),
            Happened::PageBuffer => {
                self.limits.end(record.at);
                self.limits.page_buffer = page.into();
            }
            Happened::Cache => self.limits.cache = page.into(),
            Happened::End => self.limits.end(record.at),
        }
    }

    /// The pages of a scan's window beyond its first one, which was touched just now.
    fn pass(&mut self, lane: u8, record: &Record) {
        let after = |count: u16| match record.amount > 0 {
            true => record.page.wrapping_add(count.into()),
            false => record.page.wrapping_sub(count.into()),
        };
        let begin = self.steps.len();
        let passed = record.amount.unsigned_abs();
        for further in 1..passed {
            // Pages that hold nothing are passed, too.
            if self.pages.contains_key(&after(further)) {
                self.touch(after(further), lane, false, How::Passed);
            }
        }
        // The first page of a window that a worker reads is its mark.
        let is_ahead = record.happened == Happened::Ahead;
        let expected = if is_ahead { record.page } else { after(passed) };
        let begin = begin - usize::from(is_ahead);
        if self.steps.len() > begin {
            self.expected.insert(expected, begin..self.steps.len());
        }
    }

    /// The program has come to a page: if it was expected at the end of a scan's window, it has
    /// used the pages of the window.
    fn come_to(&mut self, page: u32) {
        for skipped in 0..=SKIPPED_MAX {
            for expected in [page.wrapping_sub(skipped), page.wrapping_add(skipped)] {
                let Some(passed) = self.expected.remove(&expected) else { continue };
                for step in &mut self.steps[passed] {
                    if let Step::Passed(touch) = *step {
                        self.seen.touches += 1;
                        *step = Step::Touch(touch);
                    }
                }
            }
        }
    }

    fn touch(&mut self, page: u32, lane: u8, is_new: bool, how: How) {
        let object = self.pages.len() as u32;
        let known = self.pages.entry(page).or_insert(Page {
            object,
            last: 0,
            is_in: true,
            is_away: false,
            bytes: PAGE as u16,
        });
        self.seen.touches += u64::from(how != How::Passed);
        self.seen.reads += u64::from(known.is_away && !is_new);
        (known.is_away, known.is_in) = (false, true);
        known.last = self.steps.len();
        let touch = Touch {
            object: known.object,
            page,
            bytes: known.bytes,
            // Unless it is seen to leave: then what is new was written to.
            leaves: if is_new { Leaves::Dirty } else { Leaves::Clean },
            is_new: is_new || known.object == object,
            is_led: matches!(how, How::Led | How::Passed),
            lane,
        };
        self.steps.push(match how {
            How::Early => Step::Early(touch),
            How::Faulted | How::Led => Step::Touch(touch),
            How::Passed => Step::Passed(touch),
        });
    }

    /// The page has left the page buffer: now it is known what its last touch did.
    fn left(&mut self, page: u32, leaves: Leaves, bytes: i16) {
        if !self.pages.contains_key(&page) && leaves != Leaves::Empty {
            self.touch(page, 0, true, How::Early);
            self.takes(page, bytes.unsigned_abs());
        }
        let Some(known) = self.pages.get_mut(&page) else { return };
        known.is_away = false;
        if core::mem::take(&mut known.is_in)
            && let Some(touch) = self.steps.get_mut(known.last).and_then(Step::touch)
        {
            touch.leaves = leaves;
        }
    }

    /// The page, which has left the page buffer, takes so many bytes in the cache.
    fn takes(&mut self, page: u32, bytes: u16) {
        let Some(known) = self.pages.get_mut(&page) else { return };
        known.bytes = bytes;
        if let Some(touch) = self.steps.get_mut(known.last).and_then(Step::touch) {
            touch.bytes = bytes;
        }
    }

    fn is_away(&mut self, page: u32) {
        if let Some(known) = self.pages.get_mut(&page) {
            known.is_away = true;
        }
    }
}
