//! Simulation: how a traced program would have done with another RAM budget or other policies.
//!
//! The touches of a trace are played to the pager's own policies (`replay`). Touches of pages in
//! the page buffer are not in the trace. So a simulation with less RAM than
//! the trace was taken with knows too little, and says so.
//!
//! Guarantees: the same trace and terms give the same numbers.
//! Never: touches the heap of this process: it is for commands.
//! Threads: plain functions.

mod reader;
mod replay;

use std::cell::OnceCell;

use deepheap_pager::overhead_of_managing;
use deepheap_pager::trace::format::{Trace, UNIT_NS};
pub use deepheap_policy::budget_split::Share as PageBufferShare;
use deepheap_sys::PAGE;

use crate::drive::life_years;
pub use crate::simulation::reader::{Costs, Seen};
use crate::simulation::reader::{Reader, Step};
use crate::simulation::replay::Replay;
pub use crate::simulation::replay::{Counts, Terms};

/// A curve replays about so many objects for each of its sizes, if there are more.
const SAMPLE_OBJECTS: usize = 1 << 14;
/// Sizes of a curve.
const CURVE_POINTS: usize = 24;
/// Pages that are chosen together for a sample: neighbours are used alike.
const SAMPLE_GROUP_BITS: u32 = 3;
/// How much of the cache holds objects, in 256ths: if it was never full, and the bounds.
const FILLED_USUAL: u32 = 230;
const FILLED: (u32, u32) = (64, 256);
const FILLED_STEP: u32 = 4;
/// With fewer reads nothing is said about that.
const READS_LEAST: u64 = 256;
/// The page buffer's share, where the trace does not tell it.
const PART_USUAL: usize = 1 << 15;

/// A trace, ready to be played.
pub struct Simulation {
    /// What the program met itself.
    pub seen: Seen,
    /// The RAM that it had, bytes.
    pub traced_ram: u64,
    /// How long it ran, nanoseconds.
    pub ran_ns: u64,
    /// The cost of its faults.
    pub costs: Costs,
    steps: Vec<Step>,
    /// Pages that the program has touched.
    pages: usize,
    /// What tables and buffers took of its RAM, bytes.
    overhead: u64,
    /// How much of the cache holds objects, in 256ths: with so much the trace is played as it was.
    filled: u32,
    /// The page buffer's share, in 65536ths: on average over the time of the trace.
    part: usize,
    /// The cost of the faults when the trace is played with its own RAM, weighed as `weigh` does.
    played_ns: OnceCell<f64>,
}

/// The outcome of a simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// The RAM budget, bytes.
    pub ram: u64,
    /// The counts.
    pub counts: Counts,
    /// Time that the program needs for each second that it would need with enough RAM.
    pub slowdown: f64,
    /// Bytes that it writes in a second.
    pub written_a_second: f64,
}

impl Outcome {
    /// How long a drive lasts if it runs all the time.
    pub fn life_years(&self) -> Option<f64> {
        life_years(self.written_a_second)
    }
}

impl Simulation {
    /// Of a trace.
    pub fn new(trace: &Trace) -> Simulation {
        let reader = Reader::of(trace);
        let (traced_ram, beyond) = (trace.header.ram, reader.limits.bytes());
        let mut simulation = Simulation {
            seen: reader.seen,
            traced_ram,
            ran_ns: trace.header.ran_before_ns + reader.clock.end * UNIT_NS,
            pages: reader.pages(),
            overhead: if beyond == 0 { traced_ram / 16 } else { traced_ram.saturating_sub(beyond) },
            filled: FILLED_USUAL,
            part: reader.limits.part().unwrap_or(PART_USUAL),
            costs: reader.clock.costs(),
            steps: reader.steps,
            played_ns: OnceCell::new(),
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
            match self.traced_counts().reads() > self.seen.reads {
                true => least = self.filled,
                false => most = self.filled,
            }
        }
    }

    /// Of how many objects a curve replays one.
    pub fn sampled(&self) -> u32 {
        (self.pages / SAMPLE_OBJECTS).max(1) as u32
    }

    /// RAM with which all pages that it touched are in the page buffer, bytes.
    pub fn whole_ram(&self) -> u64 {
        let whole = (self.pages * PAGE) as u64;
        whole + self.overhead_with(whole)
    }

    /// Terms for a RAM budget of so many bytes, with the trace's border between page buffer and
    /// cache.
    pub fn terms(&self, ram: u64) -> Terms {
        let pages = ram.saturating_sub(self.overhead_with(ram)) / PAGE as u64;
        // Room that no page needs would only make the tables of the replay larger.
        let pages = pages.min(self.pages as u64);
        let costs_ns = (self.costs.cached_ns, self.costs.stored_ns);
        let share = Some(PageBufferShare::Part(self.part));
        Terms { costs_ns, share, filled: self.filled, ..Terms::new(pages as usize) }
    }

    fn all_resident(&self, sampled: u32) -> Counts {
        let (touches, sampled) = (self.seen.touches, u64::from(sampled));
        Counts { touches: touches / sampled, resident: touches / sampled, ..Counts::default() }
    }

    /// The bytes that tables and buffers take of another budget: they were seen in that of the
    /// trace.
    fn overhead_with(&self, ram: u64) -> u64 {
        let [then, now] =
            [self.traced_ram, ram].map(|ram| overhead_of_managing(ram as usize) as u64);
        (self.overhead + now).saturating_sub(then)
    }

    /// Plays all of the trace. With RAM for all of its pages the program would not be managed.
    pub fn play(&self, ram: u64, terms: Terms) -> Outcome {
        self.outcome(ram, self.counts(ram, terms), 1, self.played_ns())
    }

    fn played_ns(&self) -> f64 {
        *self.played_ns.get_or_init(|| self.weigh(&self.traced_counts()))
    }

    /// As the trace was taken.
    fn traced_counts(&self) -> Counts {
        self.counts(self.traced_ram, self.terms(self.traced_ram))
    }

    fn counts(&self, ram: u64, terms: Terms) -> Counts {
        if ram >= self.whole_ram() {
            return self.all_resident(1);
        }
        let mut replay = Replay::new(terms);
        self.steps.iter().for_each(|step| step.play(&mut replay));
        replay.counts()
    }

    /// The miss ratios of `CURVE_POINTS` sizes of RAM from that of the trace to all that the
    /// program touched, in one pass over the trace: of its pages only some are played, chosen by
    /// their numbers, to pagers that are smaller in the same measure (SHARDS, FAST 2015; miniature
    /// simulations, ATC 2017). `change` is made to the terms of each.
    pub fn curve(&self, change: impl Fn(Terms) -> Terms) -> Vec<Outcome> {
        let sampled = self.sampled();
        let (least, most) = (self.traced_ram, self.whole_ram().max(self.traced_ram));
        let last = CURVE_POINTS as u64 - 1;
        let at = |point: usize| least + (most - least) * point as u64 / last;
        let replay = |point| {
            let mut terms = Terms { sampled, ..change(self.terms(at(point))) };
            if sampled > 1 {
                // A sample has holes, at which what is read ahead would end.
                terms = Terms { scans: false, strides: false, sequences: false, ..terms };
            }
            (at(point), Replay::new(terms))
        };
        let mut replays: Vec<(u64, Replay)> = (0..CURVE_POINTS).map(replay).collect();
        let is_played = |step: &&Step| match step {
            Step::Early(touch) | Step::Touch(touch) => is_sampled(touch.page, sampled),
            Step::Passed(_) | Step::Empty(_) => true,
        };
        for step in self.steps.iter().filter(is_played) {
            replays.iter_mut().for_each(|(_, replay)| step.play(replay));
        }
        let played_ns = match sampled {
            1 => self.played_ns(),
            _ => replays.first().map_or(0.0, |(_, least)| self.weigh(&least.counts())),
        };
        let told = |(ram, replay): &(u64, Replay)| {
            let counts = match *ram >= most {
                true => self.all_resident(sampled),
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

    /// The cost of faults, in nanoseconds of one thread.
    fn weigh(&self, counts: &Counts) -> f64 {
        let Costs { cached_ns, stored_ns, .. } = self.costs;
        (counts.cached_faults * cached_ns + counts.missed_faults * stored_ns) as f64
    }

    /// The outcome of these counts, if those of the trace's own RAM weigh `played_ns`: these stand
    /// for the time that the traced program was seen to lose.
    fn outcome(&self, ram: u64, counts: Counts, sampled: u32, played_ns: f64) -> Outcome {
        let whole = f64::from(sampled);
        let part = match played_ns > 0.0 {
            true => self.weigh(&counts) / played_ns,
            false => f64::from(u8::from(ram <= self.traced_ram)),
        };
        let lost_ns = self.costs.lost_ns as f64;
        let busy_ns = (self.ran_ns as f64 - lost_ns).max(self.ran_ns as f64 / 100.0);
        let slowdown = 1.0 + lost_ns * part / busy_ns;
        let seconds = busy_ns * slowdown / 1e9;
        let written = counts.written_bytes as f64 * whole;
        Outcome { ram, counts, slowdown, written_a_second: written / seconds }
    }
}

/// Whether a page is one of a sample of one in so many.
fn is_sampled(page: u32, sampled: u32) -> bool {
    let mut mixed = u64::from(page >> SAMPLE_GROUP_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 32;
    mixed = mixed.wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 32) % u64::from(sampled) == 0
}

#[cfg(test)]
mod tests;
