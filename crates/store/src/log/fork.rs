//! Fork: parent and child share the segments of before the fork; neither loses or misreads a block.
//!
//! The parent calls `seal_and_drain`, so that the child inherits little that is unwritten; then
//! `pin_all`, `freeze` and `fork`; then it drops the `Frozen`. It calls `unpin` when the child has
//! ended or called exec. A pin covers what was filled before it: nobody appends between `pin_all`
//! and `freeze`.
//!
//! The child drops the `Frozen` and calls `become_child`.
//!
//! The child reads inherited segments from the inherited device, and writes new ones to a device of
//! its own. Block numbers mean the same in both. Segments that were in memory at the fork are in
//! the memory of both; each process writes them to its own device.
//!
//! Guarantees: while a pin lasts, no segment filled before it is refilled; the child never writes
//! to an inherited device.
//! Never: allocates, but a handle of the child's own device.
//! Threads: `freeze` takes the locks of fresh head, survivor head and space, and then the buffers,
//! in this order; its caller has no `Writer`. In the child, `become_child` runs before any other
//! thread is started.

use deepheap_sys::memory::aligned_buffer::Closed;
use deepheap_sys::narrow::Narrow;
use deepheap_sys::threads::atomic::Ordering;
use deepheap_sys::threads::lock::Guard;

use crate::block::Segment;
use crate::device::{Device, NoDevice};
use crate::error::StoreError;
use crate::log::blocks::{head_of, nap};
use crate::log::head::{Head, HeadState};
use crate::log::options::BUFFERS_MAX;
use crate::log::store::Store;
use crate::log::writer::Writer;
use crate::space::Space;
use crate::space::segment::State;

/// Segments filled before `pin_all` are not reused while it is held. Give it to `unpin`.
#[must_use]
#[derive(Debug)]
pub struct PinToken {
    pub(crate) slot: u32,
    pub(crate) generation: u8,
    /// That of the second tier.
    pub(crate) second_slot: Option<u32>,
}

/// All locks and buffers of the store, held by the forking thread; drop it in both processes.
pub struct Frozen<'a> {
    // The second tier was frozen last.
    _second: Option<FrozenTier<'a>>,
    _first: FrozenTier<'a>,
}

/// Those of one tier.
struct FrozenTier<'a> {
    // Dropped in this order: the reverse of that in which they were taken.
    _buffers: [Option<Closed<'a>>; BUFFERS_MAX],
    _space: Guard<'a, Space>,
    _survivor: Guard<'a, HeadState>,
    _fresh: Guard<'a, HeadState>,
}

impl Store {
    /// Seals the open segments, and returns when all sealed ones are written, or have failed.
    pub fn seal_and_drain(&self) {
        if let Some(second) = self.second_tier() {
            second.seal_and_drain();
        }
        for head in [Head::Fresh, Head::Survivor] {
            if let Some(mut writer) = Writer::of_open_segment(self, head) {
                writer.seal();
            }
        }
        loop {
            let ticket = self.progress.ticket();
            if self.write_sealed(false) {
                continue;
            }
            if self.space.lock().count(State::Writing) == 0 {
                return;
            }
            self.progress.wait(ticket, None);
        }
    }

    /// Stops everything that changes the store until the result is dropped; readers of blocks in
    /// memory wait as well.
    pub fn freeze(&self) -> Frozen<'_> {
        let _first = self.freeze_tier();
        Frozen { _second: self.second_tier().map(Store::freeze_tier), _first }
    }

    fn freeze_tier(&self) -> FrozenTier<'_> {
        let _fresh = self.heads[Head::Fresh as usize].lock();
        let _survivor = self.heads[Head::Survivor as usize].lock();
        let _space = self.space.lock();
        let _buffers = core::array::from_fn(|at| {
            self.blocks.buffers.get(at).map(|buffer| {
                loop {
                    // A reader copies a block, a writer thread waits for the device: both leave
                    // without needing a lock that we have.
                    match buffer.close() {
                        Some(closed) => break closed,
                        None => nap(),
                    }
                }
            })
        });
        FrozenTier { _buffers, _space, _survivor, _fresh }
    }

    /// Withholds the segments filled so far from reuse.
    ///
    /// Errors: `TooManyForks` beyond `PINS_MAX` pins.
    pub fn pin_all(&self) -> Result<PinToken, StoreError> {
        let slot = self.pin_tier()?;
        let second_slot = self.second_tier().map(Store::pin_tier).transpose();
        let second_slot = second_slot.inspect_err(|_| self.unpin_tier(slot))?;
        Ok(PinToken { slot, generation: self.blocks.devices.current().to_u8(), second_slot })
    }

    fn pin_tier(&self) -> Result<u32, StoreError> {
        let live_units = self.blocks.counters.live_units();
        self.space.lock().pin(live_units).ok_or(StoreError::TooManyForks)
    }

    /// Whether segments are kept for others, so that waiting may bring space that collection
    /// cannot.
    pub fn is_pinned(&self) -> bool {
        self.space.lock().pins.any()
    }

    /// Space that only this pin withheld can be reused. A token inherited over a fork means nothing
    /// in the child, and is ignored there.
    pub fn unpin(&self, token: PinToken) {
        if token.generation as usize != self.blocks.devices.current() {
            return;
        }
        self.unpin_tier(token.slot);
        if let (Some(second), Some(slot)) = (self.second_tier(), token.second_slot) {
            second.unpin_tier(slot);
        }
    }

    fn unpin_tier(&self, slot: u32) {
        self.space.lock().unpin(&self.blocks.segments, slot);
        self.progress.notify();
        self.work.notify();
    }

    /// In a forked child: inherited segments stay readable on the inherited device; everything
    /// new goes to `own`, the same size as the inherited one. Space on `own` is assured only as
    /// it is used, not for all that is reserved. A child has no second tier of its own: it reads
    /// what it has inherited there.
    ///
    /// Errors: `TooManyForks` after `GENERATIONS_MAX` forks from child to child; `Options` if
    /// `own` is too small.
    pub fn become_child(&self, own: Box<dyn Device>) -> Result<(), StoreError> {
        let end = self.blocks.geometry.end_offset();
        if own.len() < end {
            return Err(StoreError::Options("the child's device is smaller than its parent's"));
        }
        let generation = self.blocks.devices.become_child(own.into())?;
        if let Some(second) = self.second_tier() {
            second.become_child(Box::new(NoDevice))?;
        }
        let mut space = self.space.lock();
        space.become_child(&self.blocks.segments, generation.to_u8());
        self.forget_threads();
        self.blocks.counters.become_child();
        // Buffers in use are those of segments that are not on a device.
        space.unwritten.free_buffers =
            [self.blocks.all_buffers(Head::Fresh), self.blocks.all_buffers(Head::Survivor)];
        let segments = (0..space.frontier).map(Segment);
        for buffer in segments.filter_map(|segment| self.blocks.segments.buffer(segment)) {
            space.unwritten.free_buffers[head_of(buffer) as usize] &= !(1 << buffer);
        }
        Ok(())
    }

    /// In a forked child: nobody waits, nobody stops.
    fn forget_threads(&self) {
        for event in [&self.progress, &self.sealed, &self.work] {
            event.forget_waiters();
        }
        self.stopping.store(false, Ordering::Release);
    }
}
