//! Dense: a compressed page that would leave the cache is compressed once more, by zstd, and stays.
//!
//! So the cache has two parts: pages as LZ4 has made them, in the queues of the replacement policy,
//! and dense ones, first in, first out. Room for others comes from the head of a queue: its page
//! becomes dense if its slot becomes a quarter smaller at least, and else leaves for the log. Once
//! seven eighths of the objects are dense, the oldest of them leave, as they are, and come back so.
//! That takes some 10 us, and 4 us to make the page of it; a read of the device takes 60 us and
//! more. A clean page, which the device has, is no exception: it leaves without a write, but comes
//! back by a read. A page that LZ4 does not make smaller leaves as it is: zstd takes twice as long
//! for it and gains little.
//!
//! ```text
//!   page buffer ── LZ4 ──► queues ── zstd ──► dense ──► log
//!                             └── does not become smaller, or there is no slot ──► log
//! ```
//!
//! Slots that become free one by one, of one size, are of no use to pages of another. So with the
//! head of a queue the other objects of its slab become dense, and the slab is free. They entered
//! the cache at about the same time. The policy judges only the first.
//!
//! The page is not owned meanwhile. We copy its bytes out of the slot, look whether they were its
//! own (`is_current`), compress them, and take a smaller slot. Only then we claim the page, if
//! nothing has changed (`is_claimed`), and exchange the slots. So no thread waits for zstd, and
//! none waits for a slot while it owns. Hash and backing block stay: they are of the uncompressed
//! bytes.
//!
//! It is done while enough of the dense objects come back before they leave, and are so much
//! smaller that it saves reads (`dense_pays`); otherwise only with few of them, to see whether it
//! would. An eviction makes a few hundred objects dense at most (`DENSE_MAX`), since threads wait
//! for the pages that it takes out; if that is not enough, objects leave as they are.
//!
//! Each round makes an object dense, which happens to it once until it is in the page buffer again,
//! or moves one out. So a thread that reclaims until it finds a slot finds one.
//!
//! Never: allocates, does I/O, waits while it owns an object.
//! Threads: any that reclaims, with its packer, inside the mover's gate.

use deepheap_residency::Residency;
use deepheap_residency::codec::dense::DenseCompressor;
use deepheap_residency::counters::Counted;
use deepheap_residency::ownership::{DescriptorId, Flag, Glimpse};
use deepheap_sys::memory::byte_copy;
use deepheap_sys::process::clock;

use crate::PAGE;
use crate::evict::compression::Trials;
use crate::reclaim::compact::{compact, move_slot};
use crate::trace::Happened;

/// Empties the slab of an object that is to leave, by making the objects in it dense; returns how
/// many became so, 0 if this one did not. It tries `may_press` objects at most, and counts them
/// there.
pub(crate) fn make_dense(
    residency: &Residency,
    trials: &Trials,
    compressor: &mut DenseCompressor,
    id: DescriptorId,
    may_press: &mut u32,
) -> usize {
    let slot = residency.ownership.descriptor(id).slot();
    if !make_one_dense(residency, trials, compressor, id, slot, may_press) {
        return 0;
    }
    let mut count = 1;
    residency.cache.empty_slab_of(slot, |id, from| {
        let is_dense = make_one_dense(residency, trials, compressor, id, from, may_press);
        count += usize::from(is_dense);
        let mut relocate = |id, from, to| move_slot(residency, id, from, to);
        is_dense || residency.cache.relocate(id, from, &mut relocate)
    });
    count
}

/// Makes an object of the cache dense, if that pays and it is in this slot.
fn make_one_dense(
    residency: &Residency,
    trials: &Trials,
    compressor: &mut DenseCompressor,
    id: DescriptorId,
    slot: u32,
    may_press: &mut u32,
) -> bool {
    if *may_press == 0 {
        return false;
    }
    let (cache, ownership) = (&residency.cache, &residency.ownership);
    let descriptor = ownership.descriptor(id);
    let page = descriptor.page();
    let Glimpse::Cached(seen) = ownership.glimpse(page) else { return false };
    if (seen.id(), seen.slot()) != (id, slot)
        || !descriptor.has(Flag::Compressed)
        || residency.heap.page_is_free(page)
        || !trials.is_next(page)
    {
        return false;
    }
    // The slot may be another object's by now, of another size: then the page is not current.
    let most = cache.slot_bytes(slot) * 3 / 4;
    let Some((from, length)) = cache.glimpse_compressed(slot) else { return false };
    // SAFETY: `from` lies in a slab with so many bytes, at most a page. If another thread writes to
    // them the copy is thrown away.
    let is_copied = unsafe { byte_copy::copy(compressor.input().as_mut_ptr(), from, length) };
    if !is_copied || !ownership.is_current(seen) || compressor.is_dense() {
        return false;
    }
    *may_press -= 1;
    // Other threads may have the processor meanwhile.
    let start_ns = clock::thread_cpu_ns();
    let dense = compressor.compress(length, most);
    trials.note(page, dense.is_some());
    let took_ns = clock::thread_cpu_ns() - start_ns;
    residency.count(Counted::CompressNs, took_ns);
    residency.count(Counted::DenseNs, took_ns);
    let Some(dense) = dense else { return false };
    let take = || cache.take_dense(dense, most);
    let slot = take().or_else(|| compact(residency).then(take).flatten());
    let Some(slot) = slot else { return false };
    let Some(owned) = ownership.claim_cached(page, id) else { return false };
    // A page that was freed meanwhile may have another shape.
    let is_same = seen.is_claimed(descriptor) && residency.kept_bytes(page) == PAGE;
    if is_same {
        drop(residency.change_slot(&owned, slot));
        ownership.descriptors.enter_dense(id);
        residency.count(Counted::Dense, 1);
        residency.count(Counted::DenseBytes, dense.len() as u64);
        residency.count(Counted::DenseFrom, length as u64);
        residency.trace.note(Happened::Pressed, page, dense.len());
    }
    ownership.cached(owned);
    is_same
}
