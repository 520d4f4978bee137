//! Checkpoint: what a durable heap holds at one instant, made durable.
//!
//! Changed objects are written while the program goes on; the *cut* stops writers for a moment,
//! writes the rest, and hands out the tables.
//!
//! Guarantees: a segment that the last durable checkpoint names is not written again before the
//! next one is durable (a pin of the store). A program that is told that a checkpoint is made finds
//! it after a crash of the process or the machine. A checkpoint that fails leaves the one before.
//! Never: in a forked child: the memory is not there.
//! Threads: any, outside the fault path; one checkpoint of a heap at a time. Lock order: the file,
//! then the cache, then as in a fork: growth, the heap, the gate.

use core::sync::atomic::Ordering;
use core::time::Duration;

use deepheap_durable::load::OBJECT_TABLE;
use deepheap_durable::offline::stamp;
use deepheap_pager::{CheckpointBuffer, CutError, Pager};
use deepheap_store::{DurableError, DurableFile, Goal, PinToken, SavedUpTo, Saving, Store};
use deepheap_sys::process::clock;
use deepheap_sys::threads::signals::Blocked;
use deepheap_sys::threads::thread;

use crate::durable::DurableHeap;
use crate::durable::error::CheckpointError;
use crate::durable::worker::{Checkpoint, Marks, Why};
use crate::runtime::{Inside, Runtime};

/// Before the cut: passes over the objects that are in RAM. The second one finds what was changed
/// during the first, and is made if that took time: if it wrote more than so many objects.
const PASSES: usize = 2;
const FEW: u64 = 1024;
/// How often a cut is tried while the log or a system call is in the way, and the pause between.
const TRIES: u32 = 500;
const TRY_PAUSE: Duration = Duration::from_millis(2);
/// Between two looks at the collectors.
const COLLECT_PAUSE: Duration = Duration::from_millis(2);
/// How long they are waited for although nothing is won: the disk may be full.
const COLLECT_PATIENCE: Duration = Duration::from_secs(5);

/// Makes a checkpoint; the last one before the heap is closed.
pub(crate) fn make(heap: DurableHeap, is_last: bool) -> Result<Checkpoint, CheckpointError> {
    make_if(heap, is_last, None)?.ok_or(CheckpointError::Closed)
}

/// Makes one; none if the reason is none any more, once earlier ones were made.
fn make_if(
    heap: DurableHeap,
    is_last: bool,
    why: Option<Why>,
) -> Result<Option<Checkpoint>, CheckpointError> {
    let pager = heap.pager()?;
    let _inside = Inside::enter();
    let begun_ns = clock::monotonic_ns();
    if heap.is_read_only() {
        return Err(DurableError::ReadOnly.into());
    }
    let (durable, store) = (heap.durable, pager.store());
    let mut file = durable.file.lock();
    if why == Some(Why::Asked) && durable.requests.are_served() {
        return Ok(None);
    }
    store.make_checkpoint(true);
    let mut made = write(heap, pager, &mut file, is_last, why);
    if !matches!(made, Ok(None)) {
        // Pages of a checkpoint that is given up are handed in again by the next one.
        pager.end_saving(made.is_ok());
    }
    store.make_checkpoint(false);
    if let Ok(Some(made)) = &mut made {
        durable.pins.lock().let_go(store, &file.0, durable.descriptor);
        made.time = Duration::from_nanos(clock::monotonic_ns() - begun_ns);
        durable.full_wait.begin_anew();
        durable.requests.made(made);
    }
    made
}

/// Writes one to the file; none if nothing has changed.
fn write(
    heap: DurableHeap,
    pager: &'static Pager,
    (file, saved_up_to): &mut (DurableFile, SavedUpTo),
    is_last: bool,
    why: Option<Why>,
) -> Result<Option<Checkpoint>, CheckpointError> {
    let buffer = pager.checkpoint_buffer();
    let mut made = Checkpoint::default();
    for pass in 0..PASSES {
        let written = {
            // A handler of the program that faulted in between would wait for itself.
            let _blocked = Blocked::all();
            pager.write_changed(&buffer)?
        };
        made.objects += written;
        let is_first = pass == 0 && why == Some(Why::Interval);
        if is_first && marks(heap, pager) == heap.durable.requests.marks() {
            return Ok(None);
        }
        if written <= FEW {
            break;
        }
    }
    // What lives in segments of which much is dead moves together, in a full file. What of it is in
    // RAM is to be written.
    if collect_for(pager.store(), Goal::Room) > 0 {
        let _blocked = Blocked::all();
        made.objects += pager.write_changed(&buffer)?;
    }
    pager.store().seal_and_drain();
    let mut saving = file.begin()?;
    // So that the cut finds few.
    save_table(&mut saving, |page| pager.save_cold_table(page))?;
    let mut tries = 0;
    let (pin, up_to) = loop {
        match cut(heap, pager, &buffer, *saved_up_to, &mut saving, &mut made) {
            Err(CheckpointError::Cut(CutError::Busy | CutError::InUse)) if tries < TRIES => {
                tries += 1;
                thread::sleep(TRY_PAUSE);
            }
            cut => break cut?,
        }
    };
    made.table_bytes = saving.changed_bytes();
    // The checkpoint may become durable even if we are not told so: both stay.
    heap.durable.pins.lock().add(pin, saving.checkpoint());
    made.number = saving.commit(stamp(is_last))?;
    *saved_up_to = up_to;
    Ok(Some(made))
}

/// Waits for the collectors to reach the goal; how many segments were emptied: each that there is
/// once, at most.
pub(crate) fn collect_for(store: &Store, goal: Goal) -> u64 {
    let before = store.stats();
    let most = before.segments_on_device;
    let (mut won, mut won_at_ns) = (0, clock::monotonic_ns());
    store.collect_for(goal);
    while !store.has_reached_goal() && won <= most {
        thread::sleep(COLLECT_PAUSE);
        let (now_won, now_ns) =
            (store.stats().segments_collected - before.segments_collected, clock::monotonic_ns());
        if now_won > won {
            (won, won_at_ns) = (now_won, now_ns);
        } else if now_ns - won_at_ns > COLLECT_PATIENCE.as_nanos() as u64 {
            break;
        }
    }
    store.collect_for(Goal::Needed);
    store.stats().segments_collected - before.segments_collected
}

/// By what to see that nothing has changed since.
pub(crate) fn marks(of: DurableHeap, pager: &Pager) -> Marks {
    let (heap, store) = (&of.runtime.heap, pager.store().stats());
    Marks {
        allocated_bytes: heap.allocated_bytes(),
        objects: heap.objects_live(),
        roots_set: of.durable.roots_set.load(Ordering::Relaxed),
        blocks_appended: store.blocks_appended_fresh,
        live_bytes: store.live_bytes,
    }
}

/// The instant of a checkpoint. Answers the pin of what belongs to it.
fn cut(
    heap: DurableHeap,
    pager: &'static Pager,
    buffer: &CheckpointBuffer<'_>,
    since: SavedUpTo,
    saving: &mut Saving<'_>,
    made: &mut Checkpoint,
) -> Result<(PinToken, SavedUpTo), CheckpointError> {
    let DurableHeap { runtime, durable } = heap;
    let _blocked = Blocked::all();
    let mut cache = durable.cache.lock();
    if let Some(cache) = cache.as_mut() {
        runtime.heap.flush(cache);
    }
    runtime.end_parked_runs();
    let _growth = runtime.growth.lock();
    let roots = durable.roots.hold();
    // No handler of the program runs here: it gets all locks.
    runtime.heap.fork_prepare();
    let begun_ns = clock::monotonic_ns();
    let done = (|| {
        let cut = pager.begin_cut(buffer)?;
        made.served = durable.requests.asked();
        // Later writes are not of this checkpoint.
        cut.release_writers();
        let stopped_ns = clock::monotonic_ns() - begun_ns;
        made.objects += cut.write_changed()?;
        let store = pager.store();
        store.seal_and_drain();
        made.marks = marks(heap, pager);
        if store.has_failed_writes() {
            let why = store.failure().unwrap_or(deepheap_store::StoreError::Full);
            return Err(CheckpointError::Cut(CutError::Store(why)));
        }
        let pin = store.pin_all().map_err(CutError::Store)?;
        let saved = save_table(saving, |page| cut.save_table(page));
        let mut page = |table, page, bytes: &[u8]| saving.page(table, page, bytes);
        let saved = saved.and_then(|()| store.save(since, &mut page)).and_then(|up_to| {
            let mut failed = Ok(());
            let mut page = |table, number, bytes: &[u8]| {
                if failed.is_ok() {
                    failed = page(table, number, bytes);
                }
            };
            runtime.heap.save(&mut page);
            roots.save(&mut page);
            failed.map(|()| up_to)
        });
        made.pause = Duration::from_nanos(stopped_ns.max(cut.longest_wait_ns()));
        match saved {
            Ok(up_to) => Ok((pin, up_to)),
            Err(error) => {
                store.unpin(pin);
                Err(CheckpointError::from(error))
            }
        }
    })();
    runtime.heap.after_fork();
    made.cut = Duration::from_nanos(clock::monotonic_ns() - begun_ns);
    done
}

/// Hands pages of the object table in to a checkpoint.
fn save_table(
    saving: &mut Saving<'_>,
    save: impl FnOnce(&mut dyn FnMut(u32, &[u8]) -> bool) -> Result<(), u32>,
) -> Result<(), DurableError> {
    let mut failed = Ok(());
    let saved = save(&mut |page, bytes| {
        let before = saving.changed_bytes();
        if failed.is_ok() {
            failed = saving.page(OBJECT_TABLE, page, bytes);
        }
        saving.changed_bytes() > before
    });
    failed.and(saved.map_err(|page| DurableError::PageDamaged { table: OBJECT_TABLE, page }))
}

/// A worker's loop: makes the checkpoints that the program does not make itself.
pub(crate) fn make_checkpoints(runtime: &'static Runtime, _: &'static Pager) {
    let Some(heap) = DurableHeap::of(runtime) else { return };
    let name = heap.path().to_string_lossy();
    let make = |why| make_if(heap, false, Some(why));
    heap.durable.requests.serve(heap.durable.every, &name, &make);
}
