//! Pool share: gives a program the part of its pool's RAM that `policy/fair_share` decides.
//!
//! The evictor looks every `LOOK` while the program runs, and every `LOOK_AT_REST` while it does
//! not: it tells the other processes (`pool`) what it uses and wants, and lowers or raises what may
//! be used of the budget.
//!
//! Guarantees: a program that waits for RAM has an equal part of the pool, unless others are
//! stopped; what may be used is no less than tables, buffers and `LEAST_BYTES`. The use follows at
//! the pace of eviction, and until then no other process has the RAM.
//! Never: waits for another process, but when it joins.
//! Threads: the evictor's own.

use core::sync::atomic::Ordering;
use core::time::Duration;

use deepheap_heap::PAGE;
use deepheap_pager::Pager;
use deepheap_policy::fair_share::{self, Member, Want};
use deepheap_sys::process::clock;
use deepheap_sys::say;

use crate::control::pool::Pool;
use crate::number;
use crate::runtime::Runtime;
use crate::stats::FaultKind;
use crate::stats::page::StatsPage;
use crate::stats::report::bytes;

/// Time between two looks while the program runs, ...
const LOOK: Duration = Duration::from_millis(20);
/// ... and while it does not.
const LOOK_AT_REST: Duration = Duration::from_millis(100);
/// A program that computed for less than this part of the last while is at rest; ...
const REST_PART: u64 = 16;
/// ... or than this one if it gave RAM without a fault, for then the other workers compute.
const REST_PART_GIVING: u64 = 4;
const WHILE: Duration = Duration::from_millis(200);
/// It wants more RAM if from one look to the next it faulted so often, ...
const FAULTS_LEAST: u64 = 4;
/// ... and so many objects came from the store or left RAM for it, ...
const MOVED_LEAST: u64 = 16;
/// ... and so long after that.
const PATIENCE: Duration = Duration::from_millis(200);
/// Page buffer and cache have so much together in any case.
const LEAST_BYTES: usize = 8 << 20;
/// It uses all that it has if no more than one page of so many could be given.
const FULL_PART: usize = 64;

/// The knowledge of this process about its share.
pub(crate) struct PoolShare {
    /// None: it could not join, and has the least.
    pool: Option<Pool>,
    pause: Duration,
    looked_ns: u64,
    seen: Seen,
    wanted_ns: u64,
    began_ns: u64,
    /// What had happened until then, and the CPU time of the process without the evictor's.
    began: Seen,
    cpu_ns: u64,
    is_at_rest: bool,
    granted: usize,
}

/// What happened so far.
#[derive(Clone, Copy)]
struct Seen {
    faults: u64,
    /// Objects that came from the store, or left RAM for it.
    moved: u64,
}

impl PoolShare {
    /// Joins the pool; none if there is none. Durable heaps have RAM of their own.
    pub(crate) fn join(runtime: &Runtime, pager: &Pager) -> Option<PoolShare> {
        let (config, stats) = (&runtime.config, runtime.stats);
        let name = config.pool.as_ref().filter(|_| runtime.durable.is_none())?;
        let pool = Pool::join(name, config.ram).map_err(|errno| {
            say!(
                "the pool cannot be joined, so this process has next to no RAM: ",
                errno,
                "; /dev/shm must be writable, /dev/shm/deepheap-UID this user's alone, and a \
                 pool has 127 processes at most"
            );
        });
        let now_ns = clock::monotonic_ns();
        let mut share = PoolShare {
            pool: pool.ok(),
            pause: LOOK,
            looked_ns: 0,
            seen: Seen::by(stats),
            wanted_ns: now_ns,
            began_ns: now_ns,
            began: Seen::by(stats),
            cpu_ns: others_cpu_ns(),
            is_at_rest: false,
            granted: 0,
        };
        share.hold(runtime, pager);
        let total = stats.last_set(number!(pool_bytes));
        if total != 0 && total != config.ram {
            let (total, most) = (bytes(total), bytes(config.ram));
            let text = format!(
                "the pool '{name}' has {total}, as its first process said; of that this one may \
                 have {most}"
            );
            say!(&*text);
        }
        Some(share)
    }

    /// How long to wait for the next look.
    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }

    /// Sets what may be used of the budget. `rebalance` comes next.
    pub(crate) fn hold(&mut self, runtime: &Runtime, pager: &Pager) {
        let usage = pager.usage();
        let lent = runtime.process.lent.load(Ordering::Relaxed);
        let least = usage.overhead() + LEAST_BYTES + lent;
        let now_ns = clock::monotonic_ns();
        if now_ns - self.looked_ns >= LOOK.as_nanos() as u64 {
            self.looked_ns = now_ns;
            let want = self.want(Seen::by(runtime.stats), now_ns);
            self.pause = if want == Want::Nothing { LOOK_AT_REST } else { LOOK };
            let used = usage.page_buffer + usage.object_cache + usage.overhead() + lent;
            let me = Member { granted: 0, used: used as u64, least: least as u64, want };
            let is_full = pager.idle_pages() <= self.granted / PAGE / FULL_PART;
            let most = runtime.config.ram;
            let decided = self.pool.as_mut().and_then(|pool| {
                pool.look(now_ns, &me, |seen| {
                    fair_share::next(seen.total, &seen.members, seen.own, is_full).min(most)
                })
            });
            if let Some((granted, seen)) = decided {
                self.granted = granted as usize;
                runtime.stats.set(number!(pool_members), seen.members.len() as u64);
                runtime.stats.set(number!(pool_bytes), seen.total);
                let free = fair_share::free(seen.total, &seen.members);
                runtime.stats.set(number!(pool_free_bytes), free);
            }
        }
        pager.set_target(self.granted.max(least) - lent);
    }

    /// Its need, by the observations until now.
    fn want(&mut self, seen: Seen, now_ns: u64) -> Want {
        let since = |then: Seen| (seen.faults - then.faults, seen.moved - then.moved);
        let (faults, moved) = since(self.seen);
        // Objects that leave for other members leave without faults.
        if faults >= FAULTS_LEAST && moved >= MOVED_LEAST {
            self.wanted_ns = now_ns;
            self.is_at_rest = false;
        }
        self.seen = seen;
        let since_ns = now_ns - self.began_ns;
        if since_ns >= WHILE.as_nanos() as u64 {
            let cpu_ns = others_cpu_ns();
            let (faults, moved) = since(self.began);
            let gave = faults < FAULTS_LEAST && moved >= MOVED_LEAST;
            let part = if gave { REST_PART_GIVING } else { REST_PART };
            self.is_at_rest = cpu_ns.saturating_sub(self.cpu_ns) < since_ns / part;
            (self.began_ns, self.began, self.cpu_ns) = (now_ns, seen, cpu_ns);
        }
        if self.is_at_rest {
            Want::Nothing
        } else if now_ns - self.wanted_ns < PATIENCE.as_nanos() as u64 {
            Want::More
        } else {
            Want::Keep
        }
    }
}

impl Seen {
    fn by(stats: &StatsPage) -> Seen {
        let faults = FaultKind::ALL.map(|kind| stats.histogram(kind).count());
        let left = [number!(cache_reclaimed_clean), number!(cache_reclaimed_dirty)];
        let left = left.map(|counter| stats.value(counter));
        let moved = faults[FaultKind::Stored as usize] + left.iter().sum::<u64>();
        Seen { faults: faults.iter().sum(), moved }
    }
}

/// CPU time of all threads but this one, the evictor, which works while a program gives RAM.
fn others_cpu_ns() -> u64 {
    clock::process_cpu_ns().saturating_sub(clock::thread_cpu_ns())
}
