//! Observe: publishes the statistics of the runtime, live and at exit.
//!
//! Never: touches managed memory.
//! Threads: any, outside the fault path, but `count_moves`, which the fault handler calls too.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use deepheap_heap::PAGE;
use deepheap_pager::{Counted, Moves, Pager, spared_ns};
use deepheap_policy::more_ram::Waited;
use deepheap_store::Store;
use deepheap_sys::faults::handler_stack;
use deepheap_sys::memory::pinned_allocator::PinnedAllocator;
use deepheap_sys::process::{clock, environment, kept_stderr, process_status};
use deepheap_sys::say;
use deepheap_sys::threads::lock::Guard;
use deepheap_sys::threads::signals::Blocked;

use crate::control::stall_share::{Mark, StallShare, Times};
use crate::control::{budget, ceiling, pool};
use crate::number;
use crate::runtime::{Inside, Runtime, is_durable_open, running, try_hold_durable};
use crate::settings::config::Config;
use crate::stats::Stats;
use crate::stats::page::StatsPage;
use crate::stats::report::{bytes, stats_json, summary, verdict};
use crate::stats::{allocations, profile};

/// How much of the heap may come or go before it is shown, where no worker shows it.
const CHANGE_BYTES: u64 = 256 << 10;

/// Brings the gauges of the statistics page up to date.
pub(crate) fn publish_gauges(runtime: &Runtime) {
    if runtime.durable.is_some() {
        // The page is that of the process.
        return running().map_or((), publish_gauges);
    }
    // While a heap is being opened or closed the gauges stay as they are.
    let Some(mut all) = heaps_of_process(runtime) else { return };
    publish_stalls(runtime);
    // The handler stacks are the process's.
    let stacks = runtime.pager().map_or(0, |_| handler_stack::resident_bytes());
    all.other_bytes += stacks as u64;
    all.budget_bytes = present_ram(runtime) as u64;
    all.budget_most_bytes = runtime.config.ram;
    all.stall_bound_ppm = runtime.config.stall.map_or(0, |bound| bound.ppm().into());
    for gauge in [
        number!(budget_bytes),
        number!(budget_most_bytes),
        number!(stall_bound_ppm),
        number!(committed_bytes),
        number!(allocated_bytes),
        number!(page_buffer_bytes),
        number!(cache_bytes),
        number!(page_table_bytes),
        number!(object_table_bytes),
        number!(heap_metadata_bytes),
        number!(store_memory_bytes),
        number!(other_bytes),
        // Nothing after the last store was closed.
        number!(stored_bytes),
        number!(store_used_bytes),
        number!(store_capacity_bytes),
    ] {
        runtime.stats.set(gauge, gauge.of(&all));
    }
    for (peak, now) in [
        (number!(touched_peak_bytes), all.touched_peak_bytes),
        (number!(committed_peak_bytes), (runtime.heap.committed_pages() * PAGE) as u64),
        (number!(stored_peak_bytes), all.stored_bytes + all.tier_stored_bytes),
    ] {
        runtime.stats.raise(peak, now);
    }
    runtime.stats.set_managing(all.managing != 0);
    let Some(pager) = runtime.pager() else { return };
    let better = budget::better(runtime, &waited(runtime, pager));
    let store = pager.store().stats();
    let block = PAGE as u64;
    let put = |number, value| runtime.stats.set(number, value);
    put(number!(better_budget_bytes), better.map_or(0, |better| better.budget_bytes));
    put(number!(better_share_ppm), better.map_or(0, |better| better.share_ppm));
    put(number!(compressed), pager.counted(Counted::Compressed));
    put(number!(compressed_bytes), pager.counted(Counted::CompressedBytes));
    put(number!(compress_given_up), pager.counted(Counted::GivenUp));
    put(number!(dense), pager.counted(Counted::Dense));
    put(number!(dense_bytes), pager.counted(Counted::DenseBytes));
    put(number!(decompressed), pager.counted(Counted::Decompressed));
    put(number!(compress_ns), pager.counted(Counted::CompressNs));
    put(number!(strides_asked), pager.counted(Counted::WalkAsked));
    put(number!(strides_used), pager.counted(Counted::WalkUsed));
    put(number!(sequences_brought), pager.counted(Counted::TrailBrought));
    put(number!(sequences_used), pager.counted(Counted::TrailUsed));
    put(number!(sequences_dropped), pager.counted(Counted::TrailDropped));
    // Pages of the object table go to a device, too.
    let table = pager.table_traffic();
    put(number!(device_reads), store.device_reads + table.read);
    put(number!(device_read_bytes), store.bytes_read + table.read * block);
    put(number!(device_writes), store.device_writes + table.written);
    put(number!(device_write_bytes), store.bytes_written + table.written * block);
    put(number!(writes_retried), store.writes_retried);
    put(number!(segments_relocated), store.segments_relocated);
    put(number!(blocks_from_memory), store.blocks_read_from_memory);
    put(number!(blocks_reread), store.blocks_reread);
    put(number!(blocks_refused), store.blocks_corrupt + store.reads_failed);
    put(number!(blocks_appended_fresh), store.blocks_appended_fresh);
    put(number!(blocks_appended_survivor), store.blocks_appended_survivor);
    put(number!(segments_collected), store.segments_collected);
    let second = pager.store().second_tier();
    let tier = second.map(Store::stats).unwrap_or_default();
    put(number!(discards), store.discards + tier.discards);
    put(number!(discarded_bytes), store.bytes_discarded + tier.bytes_discarded);
    put(number!(not_discarded_bytes), store.bytes_not_discarded + tier.bytes_not_discarded);
    if let Some(second) = second {
        put(number!(tier_read_bytes), tier.bytes_read);
        put(number!(tier_write_bytes), tier.bytes_written);
        put(number!(tier_stored_bytes), tier.live_blocks * block);
        put(number!(tier_capacity_bytes), tier.segments * second.segment_bytes() as u64);
    }
}

/// The waits for want of RAM so far.
pub(crate) fn waited(runtime: &Runtime, pager: &Pager) -> Waited {
    Waited {
        share_ppm: runtime.stats.last_set(number!(stall_share_ppm)),
        stall_ns: runtime.stats.value(number!(fault_stall_ns)),
        spared_ns: spared_ns(pager),
    }
}

/// The part of the budget that may be used now: less than all under a bound on stalls, in a pool,
/// or once a wish for less has been taken over.
fn present_ram(runtime: &Runtime) -> usize {
    let may_differ = runtime.config.is_managed_early() || ceiling::wished(runtime).is_some();
    match runtime.pager().filter(|_| may_differ) {
        Some(pager) => pager.usage().budget + runtime.process.lent.load(Ordering::Relaxed),
        None => runtime.config.ram as usize,
    }
}

/// Run time and stalls until now; none while another thread brings them up to date.
pub(crate) fn stall_mark(runtime: &Runtime) -> Option<Mark> {
    Some(observe_stalls(runtime)?.mark())
}

/// Brings the shares of the run time that threads stand in faults up to date.
fn publish_stalls(runtime: &Runtime) {
    // The thread that has it publishes the same.
    let Some(stalls) = observe_stalls(runtime) else { return };
    runtime.stats.set(number!(run_ns), stalls.run_ns());
    runtime.stats.set(number!(stall_share_now_ppm), stalls.now_ppm());
    runtime.stats.set(number!(stall_share_ppm), stalls.whole_ppm());
}

fn observe_stalls(runtime: &Runtime) -> Option<Guard<'_, StallShare>> {
    let mut stalls = runtime.stalls.try_lock()?;
    stalls.observe(&times(runtime.stats));
    Some(stalls)
}

/// What the process has spent its time on so far.
fn times(stats: &StatsPage) -> Times {
    Times {
        clock_ns: clock::monotonic_ns(),
        cpu_ns: clock::process_cpu_ns(),
        stalls_ns: stats.by_shard(number!(fault_stall_ns)),
    }
}

/// All numbers of this moment, with what the program has in RAM outside of deepheap.
fn snapshot(runtime: &Runtime) -> Stats {
    let _inside = Inside::enter();
    publish_gauges(runtime);
    // At once: others publish, too, and a mix of two moments adds up to neither.
    let mut stats = runtime.stats.snapshot();
    stats.unmanaged_bytes = look_beside(gauged_bytes(runtime.stats));
    runtime.stats.set(number!(unmanaged_bytes), stats.unmanaged_bytes);
    stats
}

/// Bytes that count against the budget, as the gauges say. The kernel's page tables are not among
/// what it counts as the process's memory.
fn gauged_bytes(stats: &StatsPage) -> u64 {
    let gauges = [
        number!(page_buffer_bytes),
        number!(cache_bytes),
        number!(object_table_bytes),
        number!(heap_metadata_bytes),
        number!(store_memory_bytes),
        number!(other_bytes),
    ];
    gauges.into_iter().map(|gauge| stats.last_set(gauge)).sum()
}

/// Plain mode, where no worker does it: brings the gauges up to date if the heap has changed
/// much since.
pub(crate) fn publish_plain(runtime: &Runtime) {
    if runtime.pager().is_some() || !has_changed(runtime) {
        return;
    }
    // Under the growth lock plain mode lasts. A handler that forked meanwhile would want it.
    let _blocked = Blocked::all();
    if let Some(_growth) = runtime.growth.try_lock() {
        publish_gauges(runtime);
    }
}

/// Whether more or less of the heap is committed than the gauges say, by what is worth telling.
/// To bring them up to date takes longer than most calls that need it.
pub(crate) fn has_changed(runtime: &Runtime) -> bool {
    let committed = (runtime.heap.committed_pages() * PAGE) as u64;
    committed.abs_diff(runtime.stats.last_set(number!(committed_bytes))) >= CHANGE_BYTES
}

/// Counts what eviction did.
pub(crate) fn count_moves(stats: &StatsPage, shard: usize, moves: &Moves) {
    if moves.stall_ns > 0 {
        stats.add(shard, number!(stall_ns), moves.stall_ns);
    }
    for (counter, n) in [
        (number!(evicted_clean), moves.clean),
        (number!(evicted_dirty), moves.dirty),
        (number!(evicted_zero), moves.zero),
        (number!(evicted_free), moves.free),
        (number!(cache_reclaimed_clean), moves.reclaimed_clean),
        (number!(cache_reclaimed_dirty), moves.reclaimed_dirty),
        (number!(cache_second_chances), moves.second_chances),
        (number!(direct_reclaims), moves.direct),
    ] {
        if n > 0 {
            stats.add(shard, counter, n.into());
        }
    }
}

/// The gauges of the process's heap and its durable heaps together, without the handler
/// stacks; none while a durable heap is being opened or closed.
fn heaps_of_process(own: &Runtime) -> Option<Stats> {
    let mut all = Stats::default();
    if is_durable_open() {
        try_hold_durable()?.heaps().for_each(|runtime| add_heap(&mut all, runtime));
    }
    add_heap(&mut all, own);
    Some(all)
}

fn add_heap(all: &mut Stats, runtime: &Runtime) {
    let committed = (runtime.heap.committed_pages() * PAGE) as u64;
    all.committed_bytes += committed;
    all.allocated_bytes += runtime.heap.allocated_bytes() as u64;
    all.heap_metadata_bytes += runtime.heap.metadata_bytes() as u64;
    let Some(pager) = runtime.pager() else {
        // All of it is in RAM, if it was touched.
        all.page_buffer_bytes += committed;
        all.touched_peak_bytes += committed;
        return;
    };
    all.managing = 1;
    let touched = pager.touched_pages() * PAGE + runtime.heap.object_bytes();
    all.touched_peak_bytes += touched as u64;
    let tier = pager.store().second_tier().map(Store::stats).unwrap_or_default();
    all.tier_stored_bytes += tier.live_blocks * PAGE as u64;
    let usage = pager.usage();
    all.page_buffer_bytes += usage.page_buffer as u64;
    all.cache_bytes += usage.object_cache as u64;
    all.page_table_bytes += usage.page_tables as u64;
    all.object_table_bytes += usage.object_table as u64;
    all.store_memory_bytes += usage.store as u64;
    let other = usage.other + usage.descriptors;
    all.other_bytes += other.saturating_sub(handler_stack::resident_bytes()) as u64;
    let (store, segment) = (pager.store().stats(), pager.store().segment_bytes() as u64);
    all.stored_bytes += store.live_blocks * PAGE as u64;
    all.store_used_bytes += (store.segments - store.segments_bare) * segment;
    all.store_capacity_bytes += store.segments * segment;
}

/// The statistics of this process; None before the first allocation.
pub fn stats() -> Option<Stats> {
    let runtime = running()?;
    // A handler of the program that faults would find the store's lock held.
    let _blocked = Blocked::all();
    Some(snapshot(runtime))
}

/// The most that a look found outside of deepheap, in bytes.
static MOST_UNMANAGED: AtomicU64 = AtomicU64::new(0);

/// Bytes of RAM that this process has beside those, which are deepheap's. Notes the most.
fn look_beside(ours: u64) -> u64 {
    let Some([anonymous, shared]) = process_status::kilobytes(["RssAnon:", "RssShmem:"]) else {
        return 0;
    };
    let all = (anonymous.unwrap_or(0) + shared.unwrap_or(0)) * 1024;
    let beside = all.saturating_sub(ours);
    MOST_UNMANAGED.fetch_max(beside, Ordering::Relaxed);
    beside
}

/// Notes what the program has outside of deepheap now: it is about to give much of it back, and is
/// to be told at exit all the same that its budget did not bind. A handler of the program may call
/// it: nothing is allocated, and signals are blocked while a lock is held.
pub fn note_unmanaged() {
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    let ours = running().map_or(0, |runtime| {
        publish_gauges(runtime);
        gauged_bytes(runtime.stats)
    });
    look_beside(ours);
}

/// In the child of a fork: what its parent had is not its own.
pub(crate) fn forget_unmanaged() {
    MOST_UNMANAGED.store(0, Ordering::Relaxed);
}

/// Names the process that `deepheap run` was asked to run, for its children.
pub const FIRST_PROCESS_VARIABLE: &str = "DEEPHEAP_FIRST";

/// Writes the summary to stderr and the statistics file, as the settings ask. For the exit of the
/// process. Children of a program that stayed within RAM have nothing to tell and are silent.
pub fn exit_summary() {
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    let Some(runtime) = running() else {
        look_beside(0);
        if PinnedAllocator::has_room()
            && let Ok(config) = Config::from_environment()
        {
            tell_unmanaged(config.ram);
        }
        return;
    };
    if let Some(name) = &runtime.config.pool {
        pool::leave(name);
    }
    let has_to_tell = runtime.pager().is_some() || is_first_process(runtime);
    if let Some(pager) = runtime.pager() {
        runtime.process.trace.end(pager);
        profile::note_modules();
        allocations::look(pager);
    }
    allocations::end();
    let stats = snapshot(runtime);
    let traced = runtime.config.trace_file.as_ref().filter(|_| is_first_process(runtime));
    if let (Some(path), None) = (traced, runtime.pager()) {
        let (path, ram) = (path.display(), bytes(stats.budget_most_bytes));
        say!(&*format!(
            "{path} is not written: the program fitted its RAM budget of {ram}, so there was \
             nothing to trace; give less --ram"
        ));
    }
    tell_unmanaged(stats.budget_most_bytes);
    if !has_to_tell || runtime.process.parent.tells(runtime.stats) {
        return;
    }
    if runtime.config.show_stats {
        kept_stderr::write_all(summary(&stats).as_bytes());
        let verdict = format!("deepheap: {}\n", verdict(&runtime.stats.name(), &stats));
        kept_stderr::write_all(verdict.as_bytes());
    }
    if let Some(path) = &runtime.config.stats_file
        && let Err(told) = append_json(path, [&stats])
    {
        eprintln!("deepheap: {told}");
    }
}

/// Adds a line of JSON for each process to a file, which is made if need be. The error says which
/// file could not be written, and why.
pub fn append_json<'a>(
    path: &Path,
    all: impl IntoIterator<Item = &'a Stats>,
) -> Result<(), String> {
    let lines: String = all.into_iter().map(|stats| stats_json(stats) + "\n").collect();
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(lines.as_bytes()))
        .map_err(|error| format!("cannot write the statistics to {}: {error}", path.display()))
}

/// Says so if the budget did not bind what the program had.
fn tell_unmanaged(budget: u64) {
    // A program that links the library means only some of its memory to be managed.
    let is_all_meant = environment::variable(FIRST_PROCESS_VARIABLE).is_some();
    let most = MOST_UNMANAGED.load(Ordering::Relaxed);
    if is_all_meant && most > budget {
        let (beside, budget) = (bytes(most), bytes(budget));
        say!(&*format!(
            "{beside} of this program's memory were not managed, more than its RAM budget of \
             {budget}, which does not bind them: mappings that are small, shared or made without \
             libc, thread stacks, and what libc allocates for itself"
        ));
    }
}

pub(crate) fn is_first_process(runtime: &Runtime) -> bool {
    let first = match environment::variable(FIRST_PROCESS_VARIABLE) {
        Some(first) => first.to_str().and_then(|first| first.parse().ok()),
        None => Some(runtime.process.first), // started without `deepheap run`
    };
    first == Some(std::process::id())
}
