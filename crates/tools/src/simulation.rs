//! Simulation: what a traced program would have met with another RAM budget or other policies.
//!
//! The touches of a trace are played to the pager's own policies (`policy/replay`). Touches that
//! the traced program made within reach are not in the trace. So a simulation with less RAM than
//! the trace was taken with knows too little, and says so.
//!
//! Guarantees: the same trace and terms give the same numbers.
//! Never: touches the heap of this process: it is for commands.
//! Threads: plain functions.

use core::ops::Range;
use core::sync::atomic::AtomicU32;
use std::collections::HashMap;
use std::sync::OnceLock;

use deepheap_pager::overhead_of_managing;
use deepheap_pager::trace_format::{Happened, LANES, Record, Trace, UNIT_NS};
pub use deepheap_policy::budget_split::Share as PageBufferShare;
pub use deepheap_policy::replay::{Counts, Terms};
use deepheap_policy::replay::{Leaves, Replay, Touch};
use deepheap_sys::PAGE;
use deepheap_sys::memory::pinned_array::PinnedArray;

use crate::drive::life_years;

/// A curve replays about so many objects for each of its sizes, if there are more.
const SAMPLE_OBJECTS: usize = 1 << 14;
/// Sizes of a curve.
const CURVE_POINTS: usize = 24;
/// Pages that are chosen together for a sample: neighbours are used alike.
const SAMPLE_GROUP_BITS: u32 = 3;
/// What a fault costs outside of its handler, the signal and its return: the shortest time from the
/// end of a fault to the next of the same thread, of one in so many; between bounds.
const SOONEST: usize = 100;
const OUTSIDE_NS: (u64, u64) = (1_500, 6_000);
const OUTSIDE_USUAL_NS: u64 = 3_500;
/// The program is slower by so much after a fault, which has used its caches (decision 21).
const COLD_NS: u64 = 1_000;
/// And what it costs to evict the page that it brings.
const EVICTION_NS: u64 = 1_500;
/// A scan that goes on does so at most so many pages beyond the window before.
const SKIPPED_MAX: u32 = 8;
/// Below so many faults the usual costs are assumed.
const FAULTS_LEAST: usize = 16;
/// How much of the cache holds objects, in 256ths: if it was never full, and the bounds.
const FILLED_USUAL: u32 = 230;
const FILLED: (u32, u32) = (64, 256);
const FILLED_STEP: u32 = 4;
/// With fewer reads nothing is said about that.
const READS_LEAST: u64 = 256;
/// The page buffer's share, where the trace does not tell it.
const PART_USUAL: usize = 1 << 15;

type Played = Replay<PinnedArray<AtomicU32>>;

/// What happens in a trace that a replay needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Of a page that was there when the trace began, to which it tells that it left.
    Early(Touch),
    Touch(Touch),
    /// As `Touch`, of a page that came with another one, unless the program came to it later on.
    Passed(Touch),
    Empty(u32),
}

impl Step {
    fn touch(&mut self) -> Option<&mut Touch> {
        match self {
            Step::Early(touch) | Step::Touch(touch) | Step::Passed(touch) => Some(touch),
            Step::Empty(_) => None,
        }
    }
}

/// A trace, ready to be played.
pub struct Simulation {
    steps: Vec<Step>,
    /// Pages that the program has touched.
    pages: usize,
    /// Objects and pages that the trace itself saw read.
    seen: Seen,
    ram: u64,
    overhead: u64,
    /// How much of the cache holds objects, in 256ths: with so much the trace is played as it was.
    filled: u32,
    /// The page buffer's share, in 65536ths: on average over the time of the trace.
    part: usize,
    /// How long the program ran.
    ran_ns: u64,
    costs: Costs,
    /// What the faults cost when the trace is played with its own RAM, weighed as `weigh` does.
    played_ns: OnceLock<f64>,
}

/// What the traced program itself met.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Touches: faults, and pages that a scan passed.
    pub touches: u64,
    /// Objects that were read.
    pub reads: u64,
    /// Bytes that left RAM for new blocks.
    pub written_bytes: u64,
}

/// What faults cost, nanoseconds, by the trace: the median, for those that wait for room in RAM or
/// for a processor say nothing of the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// One that finds its object cached.
    pub cached_ns: u64,
    /// One that reads.
    pub stored_ns: u64,
    /// All of the trace, in the lane that lost most.
    pub lost_ns: u64,
}

/// What a simulation says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// The RAM budget, bytes.
    pub ram: u64,
    /// What was counted.
    pub counts: Counts,
    /// Time that the program needs for each second that it would need with enough RAM.
    pub slowdown: f64,
    /// Bytes that it writes in a second.
    pub written_a_second: f64,
}

impl Outcome {
    /// Objects that were read.
    pub fn reads(&self) -> u64 {
        self.counts.missed + self.counts.ahead
    }

    /// How long a drive lasts if it runs all the time.
    pub fn life_years(&self) -> Option<f64> {
        life_years(self.written_a_second)
    }
}

impl Simulation {
    /// Of a trace.
    pub fn new(trace: &Trace) -> Simulation {
        let mut reader = Reader::default();
        for traced in &trace.records {
            reader.read(traced.lane, &traced.record);
        }
        let Reader {
            mut steps,
            pages,
            seen,
            lanes,
            limits,
            parts,
            end,
            took,
            pressing,
            pauses,
            ..
        } = reader;
        // What was there comes first, in the order in which it left.
        steps.sort_by_key(|step| !matches!(step, Step::Early(_)));
        let median = |mut took: Vec<u32>, usual| {
            if took.len() < FAULTS_LEAST {
                return usual;
            }
            let middle = took.len() / 2;
            u64::from(*took.select_nth_unstable(middle).1) * UNIT_NS
        };
        let [cached, stored] = took;
        let outside_ns = outside(pauses) + COLD_NS;
        // A page is compressed after it has left, as a rule.
        let eviction_ns = EVICTION_NS + median(pressing, 0);
        let usual = Terms::new(0).costs_ns;
        let beyond = limits.iter().sum::<u64>() * PAGE as u64;
        let ram = trace.header.ram;
        let overhead = if beyond == 0 { ram / 16 } else { ram.saturating_sub(beyond) };
        let mut simulation = Simulation {
            steps,
            pages: pages.len(),
            seen,
            ram,
            overhead,
            filled: FILLED_USUAL,
            part: parts.1.checked_div(parts.0).map_or(PART_USUAL, |part| part as usize),
            ran_ns: trace.header.ran_before_ns + end * UNIT_NS,
            costs: Costs {
                cached_ns: median(cached, usual.0) + outside_ns + eviction_ns,
                stored_ns: median(stored, usual.1) + outside_ns + eviction_ns,
                lost_ns: lanes
                    .iter()
                    .map(|lane| lane.in_faults_ns + lane.faults * outside_ns)
                    .max()
                    .unwrap_or(0),
            },
            played_ns: OnceLock::new(),
        };
        simulation.fit();
        simulation
    }

    /// Finds how much of the cache holds objects that are played. The rest is lost in its slabs, or
    /// holds neighbours that nobody touched. With the right amount, the trace's own RAM and border,
    /// as much is read as the program was seen to read.
    fn fit(&mut self) {
        if self.seen.reads < READS_LEAST {
            return;
        }
        let (mut least, mut most) = FILLED;
        while most - least > FILLED_STEP {
            self.filled = (least + most) / 2;
            let reads = self.play(self.ram, self.terms(self.ram)).map_or(0, |it| it.reads());
            if reads > self.seen.reads {
                least = self.filled;
            } else {
                most = self.filled;
            }
        }
    }

    /// What the traced program met.
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// The RAM that it had, bytes.
    pub fn traced_ram(&self) -> u64 {
        self.ram
    }

    /// How long it ran, nanoseconds.
    pub fn ran_ns(&self) -> u64 {
        self.ran_ns
    }

    /// What its faults cost.
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// Of how many objects a curve replays one.
    pub fn sampled(&self) -> u32 {
        (self.pages / SAMPLE_OBJECTS).max(1) as u32
    }

    /// RAM with which all that it touched is within reach, bytes.
    pub fn whole_ram(&self) -> u64 {
        let whole = (self.pages * PAGE) as u64;
        whole + self.overhead_with(whole)
    }

    /// Terms for a RAM budget of so many bytes, with the trace's border between page buffer and
    /// cache.
    pub fn terms(&self, ram: u64) -> Terms {
        let pages = ram.saturating_sub(self.overhead_with(ram)) / PAGE as u64;
        let costs_ns = (self.costs.cached_ns, self.costs.stored_ns);
        let share = Some(PageBufferShare::Part(self.part));
        Terms { costs_ns, share, filled: self.filled, ..Terms::new(pages as usize) }
    }

    fn all_in_reach(&self, sampled: u32) -> Counts {
        let (touches, sampled) = (self.seen.touches, u64::from(sampled));
        Counts { touches: touches / sampled, in_reach: touches / sampled, ..Counts::default() }
    }

    /// What tables and buffers take of another budget: they were seen in that of the trace.
    fn overhead_with(&self, ram: u64) -> u64 {
        let [then, now] = [self.ram, ram].map(|ram| overhead_of_managing(ram as usize) as u64);
        (self.overhead + now).saturating_sub(then)
    }

    /// Plays all of the trace; none if there is no memory. With RAM for all of its pages the
    /// program would not be managed.
    pub fn play(&self, ram: u64, terms: Terms) -> Option<Outcome> {
        let counts = self.counts(ram, terms)?;
        let played = || self.counts(self.ram, self.terms(self.ram));
        let played_ns =
            *self.played_ns.get_or_init(|| played().map_or(0.0, |counts| self.weigh(&counts)));
        Some(self.outcome(ram, counts, 1, played_ns))
    }

    fn counts(&self, ram: u64, terms: Terms) -> Option<Counts> {
        if ram >= self.whole_ram() {
            return Some(self.all_in_reach(1));
        }
        let mut replay = Replay::new(terms, PinnedArray::new).ok()?;
        for step in &self.steps {
            match step {
                Step::Early(touch) | Step::Touch(touch) => replay.touch(touch),
                Step::Passed(_) => {}
                Step::Empty(object) => replay.empty(*object),
            }
        }
        Some(replay.counts())
    }

    /// The miss ratios of `CURVE_POINTS` sizes of RAM from that of the trace to all that the
    /// program touched, in one pass over the trace: of its pages only some are played, chosen by
    /// their numbers, to pagers that are smaller in the same measure (SHARDS, FAST 2015; miniature
    /// simulations, ATC 2017).
    pub fn curve(&self) -> Vec<Outcome> {
        let sampled = self.sampled();
        let (least, most) = (self.ram, self.whole_ram().max(self.ram));
        let last = CURVE_POINTS as u64 - 1;
        let at = |point: usize| least + (most - least) * point as u64 / last;
        let mut replays: Vec<(u64, Played)> = (0..CURVE_POINTS)
            .filter_map(|point| {
                let terms = Terms {
                    sampled,
                    scans: false,
                    strides: false,
                    sequences: false,
                    ..self.terms(at(point))
                };
                Some((at(point), Replay::new(terms, PinnedArray::new).ok()?))
            })
            .collect();
        for step in &self.steps {
            match step {
                Step::Early(touch) | Step::Touch(touch) if is_sampled(touch.page, sampled) => {
                    replays.iter_mut().for_each(|(_, replay)| replay.touch(touch));
                }
                Step::Early(_) | Step::Touch(_) | Step::Passed(_) => {}
                Step::Empty(object) => {
                    replays.iter_mut().for_each(|(_, replay)| replay.empty(*object));
                }
            }
        }
        let played_ns = replays.first().map_or(0.0, |(_, least)| self.weigh(&least.counts()));
        let told = |(ram, replay): &(u64, Played)| {
            let counts = match *ram >= most {
                true => self.all_in_reach(sampled),
                false => replay.counts(),
            };
            self.outcome(*ram, counts, sampled, played_ns)
        };
        replays.iter().map(told).collect()
    }

    /// The least RAM with which the program takes at most `slowdown` times as long as with enough,
    /// by a curve.
    pub fn ram_for(&self, curve: &[Outcome], slowdown: f64) -> u64 {
        let mut enough = self.whole_ram();
        for pair in curve.windows(2).rev() {
            let [less, more] = pair else { break };
            if more.slowdown > slowdown {
                break;
            }
            enough = more.ram;
            if less.slowdown > slowdown {
                let part = (slowdown - more.slowdown) / (less.slowdown - more.slowdown);
                return more.ram - ((more.ram - less.ram) as f64 * part) as u64;
            }
            enough = enough.min(less.ram);
        }
        enough
    }

    /// What faults cost, in nanoseconds of one thread.
    fn weigh(&self, counts: &Counts) -> f64 {
        let Costs { cached_ns, stored_ns, .. } = self.costs;
        (counts.cached_faults * cached_ns + counts.missed_faults * stored_ns) as f64
    }

    /// What the counts mean, if those of the trace's own RAM weigh `played_ns`: these stand for the
    /// time that the traced program was seen to lose.
    fn outcome(&self, ram: u64, counts: Counts, sampled: u32, played_ns: f64) -> Outcome {
        let whole = f64::from(sampled);
        let part = if played_ns > 0.0 {
            self.weigh(&counts) / played_ns
        } else {
            f64::from(u8::from(ram <= self.ram))
        };
        let lost_ns = self.costs.lost_ns as f64;
        let busy_ns = (self.ran_ns as f64 - lost_ns).max(self.ran_ns as f64 / 100.0);
        let slowdown = 1.0 + lost_ns * part / busy_ns;
        let seconds = busy_ns * slowdown / 1e9;
        let written = counts.written_bytes as f64 * whole;
        Outcome { ram, counts, slowdown, written_a_second: written / seconds }
    }
}

/// What a fault costs outside of its handler, by the pauses from one to the next: a thread that
/// touches memory that is away at once is in the next one no sooner.
fn outside(mut pauses: Vec<u32>) -> u64 {
    if pauses.len() < FAULTS_LEAST {
        return OUTSIDE_USUAL_NS;
    }
    let at = pauses.len() / SOONEST;
    let soonest = u64::from(*pauses.select_nth_unstable(at).1) * UNIT_NS;
    soonest.clamp(OUTSIDE_NS.0, OUTSIDE_NS.1)
}

/// Whether a page is one of a sample of one in so many.
fn is_sampled(page: u32, sampled: u32) -> bool {
    let mut mixed = u64::from(page >> SAMPLE_GROUP_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 32;
    mixed = mixed.wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 32) % u64::from(sampled) == 0
}

/// What is known of a page while a trace is read.
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

/// How a page came within reach.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
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
}

/// Makes steps of records.
#[derive(Default)]
struct Reader {
    steps: Vec<Step>,
    pages: HashMap<u32, Page>,
    seen: Seen,
    lanes: [Lane; LANES],
    /// From the end of a fault to the next of its lane.
    pauses: Vec<u32>,
    /// Pages at which scans are expected next, with the steps that they passed.
    expected: HashMap<u32, Range<usize>>,
    /// When the last page was compressed in each lane, and how long after the one before.
    pressed: [Option<u64>; LANES],
    pressing: Vec<u32>,
    limits: [u64; 2],
    end: u64,
    /// How long faults on cached objects took, and those that read.
    took: [Vec<u32>; 2],
    /// Time that limits were known, and the page buffer's share in it, in 65536ths.
    parts: (u64, u64),
    /// Since when the limits are what they are.
    limited_at: u64,
}

impl Reader {
    fn read(&mut self, lane: u8, record: &Record) {
        if record.happened != Happened::Pressed {
            self.pressed[usize::from(lane)] = None;
        }
        self.end = self.end.max(record.at + u64::from(record.took));
        let page = record.page;
        if record.happened.is_fault() {
            let lane = &mut self.lanes[usize::from(lane)];
            lane.faults += 1;
            lane.in_faults_ns += u64::from(record.took) * UNIT_NS;
            let pause = lane.ended.and_then(|ended| record.at.checked_sub(ended));
            self.pauses.extend(pause.and_then(|pause| u32::try_from(pause).ok()));
            lane.ended = Some(record.at + u64::from(record.took));
            match record.happened {
                Happened::Cached => self.took[0].push(record.took),
                Happened::Stored => self.took[1].push(record.took),
                _ => {}
            }
        }
        match record.happened {
            Happened::Zero => {
                for further in 0..record.amount.max(1) {
                    let how = if further > 0 { How::Led } else { How::Faulted };
                    self.touch(page.wrapping_add(further as u32), lane, true, how);
                }
            }
            Happened::Cached | Happened::Stored | Happened::Ahead => {
                if record.happened == Happened::Ahead {
                    self.touch(page, lane, false, How::Passed);
                } else {
                    self.come_to(page);
                    self.touch(page, lane, false, How::Faulted);
                }
                let begin = self.steps.len();
                let after = |count: u16| match record.amount > 0 {
                    true => page.wrapping_add(count.into()),
                    false => page.wrapping_sub(count.into()),
                };
                let passed = record.amount.unsigned_abs();
                for further in 1..passed {
                    // Pages that hold nothing are passed, too.
                    if self.pages.contains_key(&after(further)) {
                        self.touch(after(further), lane, false, How::Passed);
                    }
                }
                // The first page of a stretch that a worker reads is its mark.
                let is_ahead = record.happened == Happened::Ahead;
                let expected = if is_ahead { page } else { after(passed) };
                let begin = begin - usize::from(is_ahead);
                if self.steps.len() > begin {
                    self.expected.insert(expected, begin..self.steps.len());
                }
            }
            Happened::Clean => self.left(page, Leaves::Clean, record.amount),
            Happened::Dirty => self.left(page, Leaves::Dirty, record.amount),
            Happened::Empty => {
                self.left(page, Leaves::Empty, 0);
                if let Some(known) = self.pages.get(&page) {
                    self.steps.push(Step::Empty(known.object));
                }
            }
            Happened::Pressed => {
                let before = self.pressed[usize::from(lane)].replace(record.at);
                self.pressing.extend(before.and_then(|at| u32::try_from(record.at - at).ok()));
                self.takes(page, record.amount.unsigned_abs());
            }
            Happened::Written => {
                self.seen.written_bytes += u64::from(record.amount.unsigned_abs());
                self.is_away(page);
            }
            Happened::Dropped => self.is_away(page),
            Happened::PageBuffer => {
                self.note_part(record.at);
                self.limits[0] = page.into();
            }
            Happened::Cache => self.limits[1] = page.into(),
            Happened::End => self.note_part(record.at),
        }
    }

    /// The limits were what they are until now.
    fn note_part(&mut self, at: u64) {
        let [page_buffer, cache] = self.limits;
        if let Some(part) = (page_buffer << 16).checked_div(page_buffer + cache) {
            let time = at.saturating_sub(self.limited_at);
            self.parts = (self.parts.0 + time, self.parts.1 + time.saturating_mul(part));
        }
        self.limited_at = at;
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
            is_led: how != How::Faulted,
            lane,
        };
        self.steps.push(if how == How::Passed { Step::Passed(touch) } else { Step::Touch(touch) });
    }

    /// The page has left the page buffer: now it is known what its last touch did.
    fn left(&mut self, page: u32, leaves: Leaves, bytes: i16) {
        let Some(known) = self.pages.get_mut(&page) else {
            // It was there before the trace.
            if leaves != Leaves::Empty {
                let object = self.pages.len() as u32;
                let bytes = bytes.unsigned_abs();
                let last = self.steps.len();
                let known = Page { object, last, is_in: false, is_away: false, bytes };
                self.pages.insert(page, known);
                self.seen.touches += 1;
                let (is_new, is_led, lane) = (true, false, 0);
                let touch = Touch { object, page, bytes, leaves, is_new, is_led, lane };
                self.steps.push(Step::Early(touch));
            }
            return;
        };
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

#[cfg(test)]
mod tests;
