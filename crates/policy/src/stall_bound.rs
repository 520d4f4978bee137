//! Stall bound: the least RAM with which a program waits in faults no longer than its user allows.
//!
//! HybridSwap bounds the time that a program waits in faults (III.D) by moving what it wants to
//! faster tiers. Here the bound is turned round, as Meta's TMO does with PSI (Weiner et al., ASPLOS
//! 2022): as long as the program waits less, RAM is taken from it.
//!
//! The decision is a *part*: for each page that the program has touched, so much RAM. So the RAM
//! follows what the program touches and frees from one moment to the next, and only the part moves
//! by what was seen:
//!
//! | seen in a period | the part |
//! |---|---|
//! | no debt, and RAM that nothing needs | falls by it |
//! | no debt | falls by a small step |
//! | a small debt, or stalls below the bound | stays |
//! | a debt, stalls above the bound, and pages left | rises by more than came back |
//!
//! Stalls beyond the bound are a *debt*, which stalls below the bound pay. Without a debt pages are
//! taken, for some stalls are allowed: those that are wanted come back, and are not the next ones
//! to leave. So the bound holds for all run time, but for the last excess. A step takes no more
//! pages than would cost some times the bound if all of them were wanted at once. Steps grow while
//! those that left do not come back, and shrink with each rise. The aim is three quarters of the
//! bound.
//!
//! Pure: observations in, a decision out.

use core::time::Duration;

use crate::{PAGE, whole};

/// Run time after which what was seen is judged, unless it is far above the bound before.
const PERIOD: Duration = Duration::from_millis(100);
const PERIOD_NS: f64 = PERIOD.as_nanos() as f64;

/// It aims at this part of the bound, for the last excess is not made good.
const AIM: f64 = 0.75;
/// The part at first: with half of it in the page buffer, nothing that is touched has to leave.
const PART_FIRST: f64 = 2.25;
const PART_LEAST: f64 = 1.0 / 64.0;
const PART_MOST: f64 = 8.0;

/// A step takes this part of what is touched at most, ...
const STEP_PART: f64 = 16.0;
/// ... and no more than costs so many times the bound if all of it is wanted at once.
const STEP_TIMES: f64 = 4.0;
/// The cost of a fault until it is seen, in nanoseconds.
const FAULT_FIRST_NS: f64 = 50_000.0;
/// The cost of fewer faults says little: a single one may have lost its processor.
const FAULTS_LEAST: u64 = 16;
/// The part rises when the debt is more than the bound allows in so long.
const DEBT_BORNE: Duration = Duration::from_millis(500);
/// A rise gives so many pages for each that came back: more RAM than is wanted, but not all of it,
/// for what is touched seldom would come back, too; ...
const RISE_PER_FAULT: f64 = 2.0;
/// ... and at least this part of what is touched for each time that the stalls are the bound, up to
/// so many times.
const RISE_PART: f64 = 128.0;
const RISE_TIMES: f64 = 8.0;

/// A debt is forgotten beyond what a bound allows in so long, and so is a credit.
const DEBT: Duration = Duration::from_secs(300);
const CREDIT: Duration = Duration::from_secs(1);
/// Steps are larger and smaller by these powers of two. They double when pages have left of which
/// hardly one in so many came back, ...
const SPEED: core::ops::RangeInclusive<i32> = -6..=3;
const COLD_PART: u64 = 4;
/// ... and halve with each rise, down to this, and when as many pages came back as there are, and
/// nothing was found to be cold.
const SPEED_OF_RISES: i32 = -5;

/// Counts since the last observation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// Run time, in nanoseconds.
    pub run_ns: u64,
    /// Of that a thread waited in faults for want of RAM, in nanoseconds.
    pub stall_ns: u64,
    /// Faults on pages that had been evicted.
    pub faults: u64,
    /// Pages that left the page buffer, or RAM.
    pub left: u64,
    /// Pages that the program has touched and not given back. Of this moment.
    pub touched: u64,
    /// Pages of RAM without which nothing more would have to leave. Of this moment.
    pub idle: u64,
}

/// The decisions, and what they rest on.
#[derive(Clone, Debug)]
pub struct StallBound {
    /// The part of the run time that stalls are to be at most.
    bound: f64,
    part: f64,
    /// By how much the part falls with each nanosecond of run time.
    fall: f64,
    /// Stalls beyond the bound, in nanoseconds; a credit if negative.
    debt_ns: f64,
    fault_ns: f64,
    speed: i32,
    /// Faults since pages were found to be cold.
    probed: u64,
    /// Since the last judgement.
    seen: Observed,
}

impl StallBound {
    /// No more than `bound_ppm` millionths of the run time may be stalls.
    pub fn new(bound_ppm: u32) -> StallBound {
        StallBound {
            bound: AIM * f64::from(bound_ppm.max(1)) / 1e6,
            part: PART_FIRST,
            fall: 0.0,
            debt_ns: 0.0,
            fault_ns: FAULT_FIRST_NS,
            speed: 0,
            probed: 0,
            seen: Observed::default(),
        }
    }

    /// Bytes of RAM that pages get if so many are touched.
    pub fn bytes(&self, touched: u64) -> u64 {
        whole(self.part * touched as f64) * PAGE as u64
    }

    /// Takes into account what was observed, and decides.
    pub fn observe(&mut self, now: &Observed) {
        let run_ns = now.run_ns as f64;
        self.seen.run_ns += now.run_ns;
        self.seen.stall_ns += now.stall_ns;
        self.seen.faults += now.faults;
        self.seen.left += now.left;
        self.debt_ns = (self.debt_ns + now.stall_ns as f64 - self.bound * run_ns)
            .clamp(-self.allowed_ns(CREDIT), self.allowed_ns(DEBT));
        let is_alarming = self.debt_ns > self.allowed_ns(DEBT_BORNE);
        if (self.seen.run_ns as f64) < PERIOD_NS && !is_alarming {
            self.part -= self.fall * run_ns;
        } else {
            let seen = Observed { touched: now.touched, idle: now.idle, ..self.seen };
            self.judge(&seen);
            self.seen = Observed::default();
        }
        self.part = self.part.clamp(PART_LEAST, PART_MOST);
    }

    /// The stalls that the bound allows in so long, in nanoseconds.
    fn allowed_ns(&self, time: Duration) -> f64 {
        self.bound * time.as_nanos() as f64
    }

    /// Judges a period.
    fn judge(&mut self, seen: &Observed) {
        let touched = seen.touched.max(1) as f64;
        // By the bound: 1 is all that is allowed.
        let stalls = seen.stall_ns as f64 / (self.bound * (seen.run_ns as f64).max(1.0));
        if seen.faults >= FAULTS_LEAST {
            let fault_ns = seen.stall_ns as f64 / seen.faults as f64;
            self.fault_ns = (3.0 * self.fault_ns + fault_ns) / 4.0;
        }
        self.fall = 0.0;
        self.probed += seen.faults;
        if seen.left > COLD_PART * seen.faults {
            self.hasten(1);
        } else if self.probed > seen.touched {
            self.hasten(-1);
        }
        if self.debt_ns <= 0.0 {
            self.part -= seen.idle as f64 / touched;
            let affordable = STEP_TIMES * self.bound * PERIOD_NS / self.fault_ns;
            let step = (affordable * f64::from(self.speed).exp2()).min(touched / STEP_PART);
            self.fall = step / touched / PERIOD_NS;
        } else if stalls > 1.0 && self.debt_ns > self.allowed_ns(DEBT_BORNE) && seen.left > 0 {
            // If no page left, those that come back do so at their own pace, with more RAM or not.
            if self.speed > SPEED_OF_RISES {
                self.speed = self.speed.min(0) - 1;
            }
            let rise = touched / RISE_PART * stalls.min(RISE_TIMES);
            self.part += rise.max(RISE_PER_FAULT * seen.faults as f64) / touched;
        }
    }

    fn hasten(&mut self, by: i32) {
        self.speed = (self.speed + by).clamp(*SPEED.start(), *SPEED.end());
        self.probed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_NS: u64 = 20_000_000;
    const SECOND_NS: u64 = 1_000_000_000;
    const BOUND_PPM: u32 = 20_000;
    const FAULT_NS: u64 = 95_000;

    /// Pages that are touched alike, each so many times a second.
    #[derive(Clone, Copy)]
    struct Class {
        pages: f64,
        touches: f64,
        resident: f64,
    }

    /// A program in RAM that keeps what is touched most.
    struct Program {
        classes: Vec<Class>,
        bound: StallBound,
        run_ns: u64,
        stall_ns: u64,
    }

    impl Program {
        /// Of classes of so many pages, each touched so often.
        fn new(bound_ppm: u32, classes: &[(f64, f64)]) -> Program {
            let class = |&(pages, touches)| Class { pages, touches, resident: pages };
            let (classes, bound) =
                (classes.iter().map(class).collect(), StallBound::new(bound_ppm));
            Program { classes, bound, run_ns: 0, stall_ns: 0 }
        }

        fn touched(&self) -> f64 {
            self.classes.iter().map(|class| class.pages).sum()
        }

        fn resident(&self) -> f64 {
            self.classes.iter().map(|class| class.resident).sum()
        }

        /// The part that is in RAM.
        fn part(&self) -> f64 {
            self.resident() / self.touched()
        }

        /// The share of stalls in the time that the program runs now.
        fn run(&mut self, seconds: u64) -> f64 {
            let before = (self.run_ns, self.stall_ns);
            for _ in 0..seconds * SECOND_NS / TICK_NS {
                self.tick();
            }
            (self.stall_ns - before.1) as f64 / (self.run_ns - before.0) as f64
        }

        fn tick(&mut self) {
            let touched = self.touched();
            let room = self.bound.bytes(touched as u64) as f64 / PAGE as f64;
            let mut faults = 0.0;
            for class in &mut self.classes {
                let away = class.pages - class.resident;
                let wanted = away * (1.0 - (-class.touches * TICK_NS as f64 / 1e9).exp());
                let most = TICK_NS as f64 / FAULT_NS as f64 - faults;
                let wanted = wanted.min(most.max(0.0));
                class.resident += wanted;
                faults += wanted;
            }
            let mut excess = (self.resident() - room).max(0.0);
            let left = excess;
            self.classes.sort_by(|a, b| a.touches.total_cmp(&b.touches));
            for class in &mut self.classes {
                let leaves = class.resident.min(excess);
                class.resident -= leaves;
                excess -= leaves;
            }
            let stall_ns = ((faults * FAULT_NS as f64) as u64).min(TICK_NS);
            self.run_ns += TICK_NS;
            self.stall_ns += stall_ns;
            self.bound.observe(&Observed {
                run_ns: TICK_NS,
                stall_ns,
                faults: faults as u64,
                left: left.ceil() as u64,
                touched: touched as u64,
                idle: (room - self.resident()).max(0.0) as u64,
            });
        }
    }

    #[test]
    fn what_is_not_used_leaves_and_the_bound_holds() {
        for bound_ppm in [1_000, 10_000, BOUND_PPM, 100_000] {
            let mut program = Program::new(bound_ppm, &[(30_000.0, 0.0), (20_000.0, 50.0)]);
            let share = program.run(300);
            assert!(share < f64::from(bound_ppm) / 1e6, "{bound_ppm}: {share}");
            assert!(program.part() < 0.5, "{bound_ppm}: {}", program.part());
        }
    }

    #[test]
    fn what_is_all_in_use_stays_and_the_attempts_cost_no_more_than_the_bound() {
        let mut program = Program::new(BOUND_PPM, &[(50_000.0, 50.0)]);
        let share = program.run(60);
        assert!(share < 0.02, "{share}");
        assert!(program.part() > 0.9, "{}", program.part());
    }

    #[test]
    fn a_larger_bound_takes_less_ram_of_a_program_that_uses_some_pages_seldom() {
        let zipf: Vec<(f64, f64)> =
            (1..=50).map(|rank| (1000.0, 50.0 / f64::from(rank * rank * rank))).collect();
        let mut parts = [5_000, BOUND_PPM, 100_000].map(|bound_ppm| {
            let mut program = Program::new(bound_ppm, &zipf);
            let share = program.run(300);
            assert!(share < f64::from(bound_ppm) / 1e6, "{bound_ppm}: {share}");
            program.part()
        });
        assert!(parts.is_sorted_by(|a, b| a > b), "{parts:?}");
        parts.reverse();
        assert!(parts[0] < 0.5, "{parts:?}");
    }

    #[test]
    fn what_comes_into_use_again_comes_back_at_once_and_its_stalls_are_made_good() {
        let mut program = Program::new(BOUND_PPM, &[(10_000.0, 0.0), (10_000.0, 50.0)]);
        program.run(100);
        assert!(program.part() < 0.6, "{}", program.part());
        program.classes[0].touches = 50.0;
        let least_ns = 10_000 * FAULT_NS;
        program.run(least_ns.div_ceil(SECOND_NS) + 1);
        assert!(program.part() > 0.9, "{}", program.part());
        let after = program.run(200);
        assert!(after < 0.02, "{after}");
        let whole = program.stall_ns as f64 / program.run_ns as f64;
        assert!(whole < 0.02, "{whole}");
    }

    #[test]
    fn a_program_that_does_not_run_keeps_its_ram() {
        let mut bound = StallBound::new(BOUND_PPM);
        let at_first = bound.bytes(1000);
        for _ in 0..1000 {
            bound.observe(&Observed { touched: 1000, idle: 500, ..Observed::default() });
        }
        assert_eq!(bound.bytes(1000), at_first);
    }

    #[test]
    fn ram_follows_what_is_touched() {
        let bound = StallBound::new(BOUND_PPM);
        assert_eq!((bound.bytes(0), bound.bytes(1000)), (0, 2250 * PAGE as u64));
    }
}
