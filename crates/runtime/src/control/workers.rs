//! Workers: the threads of a managing heap. All of them sleep when there is nothing to do.
//!
//! | thread | loop |
//! |---|---|
//! | evictor | pages out of the page buffer before faults wait; unused staging and stacks, too |
//! | | the least RAM that holds a bound on stalls, if there is one (`least_ram`) |
//! | | its share of a pool's RAM, if it is in one (`pool_share`) |
//! | | the budget that another process wishes (`ceiling`) |
//! | | what nobody needs goes back when a fault finds no room in the store (`relief`) |
//! | helpers | the same pages: up to half as many as processors, started when they are needed |
//! | writer | sealed segments to the device |
//! | fetchers | the next pages of a scan, and objects that the program asked for |
//! | committer | checkpoints of a durable heap that are asked for, or due (`durable/worker`) |
//! | viewer | gauges and a map of the heap, when another process asks (`viewer`) |
//! | collector | half-dead segments into free ones; dead children's pins; discard |
//! | another writer and collector | the same for a second tier |
//! | tracer | what the rings of a traced process hold to its file (`trace_recorder`) |
//!
//! Guarantees: zero CPU at rest, but for a look a second under a bound on stalls, ten in a pool. A
//! worker that fails says why, once, and goes on trying at leisure.
//! Never: touches managed memory.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use deepheap_pager::{Moves, Pager};
use deepheap_store::{Store, StoreError};
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::process::clock;
use deepheap_sys::say;
use deepheap_sys::threads::{thread, tls};

use crate::control::ceiling;
use crate::control::least_ram::LeastRam;
use crate::control::pool_share::PoolShare;
use crate::control::thrashing::Watch;
use crate::control::tier_bound::TierBound;
use crate::control::viewer::viewer;
use crate::memory::{release, relief};
use crate::number;
use crate::process::children::forget_dead_children;
use crate::runtime::{Inside, Runtime};
use crate::stats::observe::{count_moves, publish_gauges};

/// How long a worker waits after a failure before it tries again.
const LEISURE: Duration = Duration::from_millis(100);
/// How long the evictor waits at first when nothing can be evicted (everything is pinned, or a
/// forked child withholds the store); twice as long each time, up to `LEISURE`.
const SHORT: Duration = Duration::from_millis(1);

/// The loop of a worker.
pub(crate) type Loop = fn(&'static Runtime, &'static Pager);

/// The work of a worker.
struct Job {
    runtime: &'static Runtime,
    run: Loop,
}

static WRITE_FAILURE_SAID: AtomicBool = AtomicBool::new(false);
static RECOVERY_SAID: AtomicBool = AtomicBool::new(false);
static OVERRUN_SAID: AtomicBool = AtomicBool::new(false);
static LACK_SAID: AtomicBool = AtomicBool::new(false);

/// Batches of eviction after which the shares of the budget are looked at again.
const BATCHES_BETWEEN: u32 = 16;

/// Buffers and stacks that were not used for so long are given back. So much is between two tries
/// to start workers that there was no room for.
const IDLE: Duration = Duration::from_secs(1);

/// Batches that the evictor of a child evicts before it starts the other workers.
const BATCHES_ALONE: u32 = 4;

/// Starts the workers of a heap that is managed from now on. The pager is published before.
pub(crate) fn start(runtime: &'static Runtime) {
    say_anew();
    if let Some(pager) = runtime.pager() {
        pager.workers.begin_without();
        start_others(runtime, pager);
        if pager.store().second_tier_to_fill().is_some() {
            spawn(runtime, c"deepheap-write2", tier_writer);
            spawn(runtime, c"deepheap-gc2", tier_collector);
        }
        if pager.trace().is_on() {
            spawn(runtime, c"deepheap-trace", |runtime, pager| runtime.process.trace.record(pager));
        }
    }
    spawn(runtime, c"deepheap-evict", evictor);
}

/// In a forked child, where those of the parent do not exist: starts the evictor. Most children do
/// little before they end or execute a program, so it starts the others when it has work. Where
/// there is no room even for it, or for them, threads do their work themselves (the pager's
/// `stand_in`).
pub(crate) fn start_in_child(runtime: &'static Runtime) {
    say_anew();
    runtime.threads.begin_anew();
    spawn(runtime, c"deepheap-evict", evictor);
}

fn say_anew() {
    for flag in [&WRITE_FAILURE_SAID, &RECOVERY_SAID, &LACK_SAID] {
        flag.store(false, Ordering::Relaxed);
    }
}

/// The workers beside the evictor, in the order in which they are needed.
fn others(runtime: &Runtime, pager: &Pager) -> impl Iterator<Item = (&'static CStr, Loop)> {
    // Of a heap that is only read nothing is written, and nothing is collected.
    let writes = !runtime.is_read_only();
    // The page is that of the process.
    let has_page = runtime.durable.is_none();
    let some = [
        (writes, c"deepheap-gc", collector as Loop),
        (writes, c"deepheap-write", writer),
        (has_page, c"deepheap-view", viewer),
    ];
    let (_, fetchers) = pager.worker_counts();
    let fetchers = (0..fetchers).map(|_| (c"deepheap-fetch", fetcher as Loop));
    let some = some.into_iter().filter(|(is_wanted, ..)| *is_wanted);
    some.map(|(_, name, run)| (name, run)).chain(fetchers)
}

/// Starts one more evictor, if there may be more and none is about to come. One that the system has
/// no room for is tried again at leisure, and nobody is told: the others do its work.
fn start_helper(runtime: &'static Runtime, pager: &'static Pager) {
    let threads = &runtime.threads;
    let (evictors, _) = pager.worker_counts();
    let are_all = || threads.helpers.load(Ordering::Acquire) + 1 >= evictors;
    if are_all() || threads.helper_comes.swap(true, Ordering::AcqRel) {
        return;
    }
    // From here to the end of `helper_comes` no other thread starts one. It may be the last one
    // that has come since we looked.
    if are_all() {
        threads.helper_comes.store(false, Ordering::Release);
        return;
    }
    let refused_ns = threads.helper_refused_ns.load(Ordering::Relaxed);
    let now_ns = clock::monotonic_ns();
    let is_time = refused_ns == 0 || now_ns - refused_ns >= IDLE.as_nanos() as u64;
    if !is_time || try_spawn(runtime, c"deepheap-evict", helper).is_err() {
        if is_time {
            threads.helper_refused_ns.store(now_ns, Ordering::Relaxed);
        }
        threads.helper_comes.store(false, Ordering::Release);
    }
}

/// Starts those of the others that do not run yet; false if there is no room for one.
fn start_others(runtime: &'static Runtime, pager: &'static Pager) -> bool {
    let started = &runtime.threads.others_started;
    let waiting = others(runtime, pager).skip(started.load(Ordering::Relaxed));
    waiting.fold(true, |goes_on, (name, run)| {
        let has_started = goes_on && spawn(runtime, name, run);
        started.fetch_add(usize::from(has_started), Ordering::Relaxed);
        has_started
    })
}

/// Starts one more; the pager is published. False if there is no room for one more thread.
pub(crate) fn spawn(runtime: &'static Runtime, name: &CStr, run: Loop) -> bool {
    let Err(errno) = try_spawn(runtime, name, run) else { return true };
    let is_durable = runtime.durable.is_some();
    if is_durable || !LACK_SAID.swap(true, Ordering::Relaxed) {
        say!(
            "a worker thread cannot be started: ",
            errno,
            if is_durable { "" } else { "; other threads do its work" },
            "; raise the limit on processes (ulimit -u, pids cgroup)"
        );
    }
    if is_durable {
        std::process::abort();
    }
    false
}

fn try_spawn(runtime: &'static Runtime, name: &CStr, run: Loop) -> Result<(), Errno> {
    let job = Box::into_raw(Box::new(Job { runtime, run }));
    // A worker that starts another one still counts itself: a close that waits for all sees both.
    runtime.threads.running.fetch_add(1, Ordering::SeqCst);
    match thread::spawn(name, begin, job.expose_provenance()) {
        // The process's own workers run to its end, and are not waited for.
        Ok(thread) if runtime.durable.is_some() => runtime.threads.to_join.lock().push(thread),
        Ok(_) => {}
        Err(errno) => {
            runtime.threads.running.fetch_sub(1, Ordering::SeqCst);
            // SAFETY: made above, and no thread has it.
            drop(unsafe { Box::from_raw(job) });
            return Err(errno);
        }
    }
    Ok(())
}

fn begin(argument: usize) {
    // SAFETY: `spawn` leaked it for this thread alone.
    let job = unsafe { Box::from_raw(core::ptr::with_exposed_provenance_mut::<Job>(argument)) };
    let Job { runtime, run } = *job;
    {
        let _inside = Inside::enter();
        if let Some(pager) = runtime.pager() {
            run(runtime, pager);
        }
    }
    // The last touch of the runtime: `close` may drop it from here on.
    runtime.threads.running.fetch_sub(1, Ordering::SeqCst);
}

fn evictor(runtime: &'static Runtime, pager: &'static Pager) {
    pager.workers.note_evictor();
    let mut said = false;
    let mut company = Company::default();
    let mut trimmed_ns = clock::monotonic_ns();
    let mut watch = Watch::default();
    let mut bounds = Bounds::of(runtime, pager);
    while !pager.workers.have_ended() {
        // Once there is nothing to give back there is no limit: at rest nobody runs.
        let trim = pager.is_touched().then_some(IDLE);
        pager.wait_for_eviction(bounds.pause().into_iter().chain(trim).min());
        pager.take_over_spans();
        relief::serve(runtime, pager);
        let mut moves = Moves::default();
        let mut pause = SHORT;
        let nap = |pause: &mut Duration| {
            thread::sleep(*pause);
            *pause = (2 * *pause).min(LEISURE);
        };
        let mut batches = 0;
        bounds.hold(runtime, pager);
        let mut border_moves = pager.rebalance();
        if !border_moves {
            say_overrun(pager);
        }
        if bounds.pause().is_some() || ceiling::wished(runtime).is_some() {
            pager.trim_cache(&mut moves);
        }
        while pager.trim_table(&mut moves) && !pager.workers.have_ended() {
            pager.rebalance();
        }
        while pager.must_evict() && !pager.workers.have_ended() {
            relief::serve(runtime, pager);
            batches += 1;
            if company.is_there(runtime, pager) && pager.ask_for_help(batches > 1) {
                start_helper(runtime, pager);
            }
            let is_time = batches % BATCHES_BETWEEN == 0;
            if is_time {
                count_moves(runtime.stats, 0, &core::mem::take(&mut moves));
                watch.watch(runtime, pager);
                bounds.hold(runtime, pager);
            }
            if is_time || border_moves {
                border_moves = pager.rebalance();
            }
            let before = moves.evicted();
            // Asked before: a child that ends meanwhile gives back the space we do not find.
            let withheld = pager.store().is_pinned();
            match pager.evict(0, &mut moves) {
                Ok(_) if moves.evicted() > before => pause = SHORT,
                // Helpers were faster. If it slept longer each time nobody would look after them.
                Ok(_) if !pager.must_evict() => {}
                Ok(_) => nap(&mut pause),
                Err(StoreError::Full) if withheld => {
                    forget_dead_children(runtime, pager);
                    nap(&mut pause);
                }
                Err(error) => {
                    say_write_failure(pager);
                    if !said {
                        said = true;
                        say!("cannot make room in RAM: ", &*error.to_string());
                    }
                    thread::sleep(LEISURE);
                }
            }
        }
        count_moves(runtime.stats, 0, &moves);
        watch.watch(runtime, pager);
        let now_ns = clock::monotonic_ns();
        if now_ns - trimmed_ns >= IDLE.as_nanos() as u64 {
            trimmed_ns = now_ns;
            pager.trim();
        }
        pager.rebalance();
        publish_gauges(runtime);
    }
}

/// What holds the RAM of the process, and its second tier, below what the settings allow.
struct Bounds {
    least: Option<LeastRam>,
    pool: Option<PoolShare>,
    tier: Option<TierBound>,
}

impl Bounds {
    fn of(runtime: &Runtime, pager: &Pager) -> Bounds {
        let least = LeastRam::of(runtime);
        Bounds { least, pool: PoolShare::join(runtime, pager), tier: TierBound::of(runtime) }
    }

    /// How long to wait for the next look; none if there is no bound on RAM.
    fn pause(&self) -> Option<Duration> {
        let looks =
            [self.least.as_ref().map(LeastRam::pause), self.pool.as_ref().map(PoolShare::pause)];
        looks.into_iter().flatten().min()
    }

    /// Looks, and sets what may be used. `rebalance` comes next.
    fn hold(&mut self, runtime: &Runtime, pager: &Pager) {
        if let Some(least) = &mut self.least {
            least.hold(runtime, pager);
        }
        if let Some(pool) = &mut self.pool {
            pool.hold(runtime, pager);
        }
        ceiling::hold(runtime, pager);
        if let Some(tier) = &mut self.tier {
            tier.hold(runtime, pager);
        }
    }
}

/// Whether the evictor has the other workers beside it.
#[derive(Default)]
struct Company {
    batches_alone: u32,
    has_come: bool,
    tried_ns: u64,
}

impl Company {
    /// Before a batch: starts them if this is more than a little work. Whether all of them run.
    fn is_there(&mut self, runtime: &'static Runtime, pager: &'static Pager) -> bool {
        self.batches_alone = self.batches_alone.saturating_add(1);
        if self.has_come || self.batches_alone <= BATCHES_ALONE {
            return self.has_come;
        }
        let now_ns = clock::monotonic_ns();
        if self.tried_ns == 0 || now_ns - self.tried_ns >= IDLE.as_nanos() as u64 {
            self.tried_ns = now_ns;
            self.has_come = start_others(runtime, pager);
            runtime.process.parent.introduce(runtime.stats);
        }
        self.has_come
    }
}

fn helper(runtime: &'static Runtime, pager: &'static Pager) {
    let evictor = 1 + runtime.threads.helpers.fetch_add(1, Ordering::Release);
    runtime.threads.helper_comes.store(false, Ordering::Release);
    while !pager.workers.have_ended() {
        pager.help(evictor, |moves, starts_one| {
            count_moves(runtime.stats, tls::lane(), moves);
            if starts_one {
                start_helper(runtime, pager);
            }
        });
    }
}

fn writer(runtime: &'static Runtime, pager: &'static Pager) {
    while !pager.workers.have_ended() {
        pager.store().write_sealed(true);
        say_write_failure(pager);
        say_recovery(pager);
        publish_gauges(runtime);
    }
}

fn collector(runtime: &'static Runtime, pager: &'static Pager) {
    pager.workers.note_collector();
    let segment = pager.store().segment_bytes();
    let Ok(mut buffer) = PinnedArray::<u8>::new(segment) else {
        say!("no memory for the collector's buffer");
        std::process::abort();
    };
    let mut said = false;
    let failed = |error: StoreError| {
        if !said {
            said = true;
            say!("a segment cannot be collected: ", &*error.to_string());
        }
    };
    collect_in(pager.store(), runtime, pager, &mut buffer, release::return_space, failed);
}

fn tier_writer(_: &'static Runtime, pager: &'static Pager) {
    let Some(second) = pager.store().second_tier() else { return };
    let mut was_said = false;
    while !pager.workers.have_ended() {
        second.write_sealed(true);
        if let (Some(StoreError::Io(errno)), false) = (second.failure(), was_said) {
            was_said = true;
            say!(
                "a write to the second tier failed; what it held stays in RAM and is tried again, \
                 and what comes now goes to the store: ",
                errno
            );
        }
    }
}

fn tier_collector(runtime: &'static Runtime, pager: &'static Pager) {
    let Some(second) = pager.store().second_tier() else { return };
    let Ok(mut buffer) = PinnedArray::<u8>::new(second.segment_bytes()) else {
        say!("no memory to collect the second tier with: it will not take much");
        return;
    };
    // What it does not take, the store does.
    collect_in(second, runtime, pager, &mut buffer, release::return_space_of_tier, |_| {});
}

/// Collects in a store, of which `return_space` gives back what has been free for a while.
fn collect_in(
    store: &'static Store,
    runtime: &'static Runtime,
    pager: &'static Pager,
    buffer: &mut PinnedArray<u8>,
    return_space: fn(&Runtime, &Pager),
    mut failed: impl FnMut(StoreError),
) {
    let mut fruitless = SHORT;
    while !pager.workers.have_ended() {
        let limit = || runtime.has_space_to_return().then_some(LEISURE);
        if !store.wait_for_work(limit) {
            return_space(runtime, pager);
            continue;
        }
        forget_dead_children(runtime, pager);
        match pager.collect(store, buffer) {
            Ok(true) => {
                fruitless = SHORT;
                publish_gauges(runtime);
            }
            Ok(false) => {
                // Nothing worth collecting now, or all that is dead is pinned for a child.
                thread::sleep(fruitless);
                fruitless = (fruitless * 2).min(LEISURE);
            }
            Err(error) => {
                failed(error);
                thread::sleep(LEISURE);
            }
        }
    }
}

fn fetcher(runtime: &'static Runtime, pager: &'static Pager) {
    while !pager.workers.have_ended() {
        let mut moves = Moves::default();
        let pages = pager.serve_prefetch(&mut moves);
        count_moves(runtime.stats, 0, &moves);
        runtime.stats.add(0, number!(prefetched), pages.into());
    }
}

/// Says once that the device of the store refused a write, and why: the first thread that finds out
/// does, before it says what follows from that. Safe in a signal handler.
pub(crate) fn say_write_failure(pager: &Pager) {
    let Some(StoreError::Io(errno)) = pager.store().failure() else { return };
    if !WRITE_FAILURE_SAID.swap(true, Ordering::Relaxed) {
        say!(
            "a write to the store failed; what it held stays in RAM and is tried again: ",
            errno,
            if errno == Errno::EFBIG { "; raise `ulimit -f`" } else { "" }
        );
    }
}

/// Says once that more has to stay in RAM than the budget has room for. To be asked when the border
/// has given the page buffer all that it can.
fn say_overrun(pager: &Pager) {
    if pager.is_overrun() && !OVERRUN_SAID.swap(true, Ordering::Relaxed) {
        say!(
            "the RAM budget is overrun by memory that has to stay in RAM: buffers of calls that \
             wait, stacks that the program gave to threads, what it has pinned, locked or \
             protected; give more --ram (said once)"
        );
    }
}

/// Says once that what was refused is written now.
fn say_recovery(pager: &Pager) {
    let was_said = WRITE_FAILURE_SAID.load(Ordering::Relaxed);
    if was_said && !RECOVERY_SAID.load(Ordering::Relaxed) && !pager.store().has_failed_writes() {
        RECOVERY_SAID.store(true, Ordering::Relaxed);
        say!("the store has taken what it had refused");
    }
}
