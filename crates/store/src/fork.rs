//! Fork: what parent and child of a fork need, so that neither loses or misreads a block.
//!
//! Parent, before: `seal_and_drain` (so that the child inherits little unwritten), `freeze`,
//! `fork`, drop the `Frozen`; then `pin_all`, and `unpin` when the child has gone or execs.
//! `pin_all` must come before any block is retired after the fork: call it before `fork` as well.
//! Child: drop the `Frozen`, then `become_child`.
//!
//! The child reads the segments it inherits from the inherited device, and writes new ones to
//! its own; block numbers mean the same in both. What was in memory at the fork is in the
//! memory of both, and each writes it to its own device.
//!
//! Guarantees: while a pin lasts, no segment filled before it is refilled; the child never writes
//! to an inherited device.
//! Never: allocates.
//! Threads: `freeze` takes fresh head, survivor head, space, buffers, in this order; the caller
//! has no `Writer`. In the child, `become_child` runs before any other thread is started.

use deepheap_sys::aligned_buffer::Closed;
use deepheap_sys::atomic::Ordering;
use deepheap_sys::lock::Guard;

use crate::block::Segment;
use crate::device::Device;
use crate::error::StoreError;
use crate::log::{Head, HeadState, Writer};
use crate::segment::State;
use crate::space::Space;
use crate::store::{BUFFERS_MAX, GENERATIONS_MAX, Store};

/// Forked children that can have segments pinned at the same time.
pub const PINS_MAX: usize = 1024;

/// The pins that are held: for each the last filling that it covers.
pub(crate) struct Pins {
    covered: Box<[u64]>,
    newest: u64,
}

/// Marks a free slot; a pin covers at least this many fillings, and one more for the marking.
const FREE: u64 = 0;

impl Pins {
    pub(crate) fn new() -> Self {
        Self { covered: vec![FREE; PINS_MAX].into_boxed_slice(), newest: 0 }
    }

    /// Covers the fillings up to `sequence`; none if there are too many pins.
    pub(crate) fn add(&mut self, sequence: u64) -> Option<u32> {
        let slot = self.covered.iter().position(|&covered| covered == FREE)?;
        self.covered[slot] = sequence + 1;
        self.newest = self.newest.max(sequence);
        Some(slot as u32)
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.covered[slot as usize] = FREE;
        self.newest = self.covered.iter().fold(1, |max, &covered| max.max(covered)) - 1;
    }

    /// No pin is left.
    pub(crate) fn clear(&mut self) {
        self.covered.fill(FREE);
        self.newest = 0;
    }

    /// Whether anyone holds a pin.
    pub(crate) fn any(&self) -> bool {
        self.covered.iter().any(|&covered| covered != FREE)
    }

    /// The last filling that any pin covers; 0 if none does.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }
}

/// Segments filled before `pin_all` are not reused while it is held. Give it to `unpin`.
#[must_use]
#[derive(Debug)]
pub struct PinToken {
    slot: u32,
    generation: u8,
}

/// All locks and buffers of the store, held by the forking thread; drop it in both processes.
pub struct Frozen<'a> {
    // Dropped in this order: the reverse of that in which they were taken.
    _buffers: [Option<Closed<'a>>; BUFFERS_MAX],
    _space: Guard<'a, Space>,
    _survivor: Guard<'a, HeadState>,
    _fresh: Guard<'a, HeadState>,
}

impl Store {
    /// Seals the open segments, and returns when all sealed ones are written, or have failed.
    pub fn seal_and_drain(&self) {
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
        let _fresh = self.heads[Head::Fresh as usize].lock();
        let _survivor = self.heads[Head::Survivor as usize].lock();
        let _space = self.space.lock();
        let _buffers = core::array::from_fn(|at| {
            self.buffers.get(at).map(|buffer| {
                loop {
                    // A reader copies a block, a writer thread waits for the device: both leave
                    // without needing a lock that we have.
                    match buffer.close() {
                        Some(closed) => break closed,
                        None => self.nap(),
                    }
                }
            })
        });
        Frozen { _buffers, _space, _survivor, _fresh }
    }

    /// Withholds the segments filled so far from reuse.
    ///
    /// Errors: `TooManyForks` beyond `PINS_MAX` pins.
    pub fn pin_all(&self) -> Result<PinToken, StoreError> {
        let slot = self.space.lock().pin().ok_or(StoreError::TooManyForks)?;
        Ok(PinToken { slot, generation: self.generation() as u8 })
    }

    /// Whether segments are kept for others, so that waiting may bring space that collection
    /// cannot.
    pub fn is_pinned(&self) -> bool {
        self.space.lock().pins.any()
    }

    /// What only this pin withheld can be reused. A token inherited over a fork means nothing in
    /// the child, and is ignored there.
    pub fn unpin(&self, token: PinToken) {
        if token.generation as usize != self.generation() {
            return;
        }
        self.space.lock().unpin(&self.segments, token.slot);
        self.progress.notify();
        self.work.notify();
    }

    /// In a forked child: inherited segments stay readable on the inherited device; everything
    /// new goes to `own`, the same size as the inherited one. Space on `own` is assured only as
    /// it is used, not for all that is reserved.
    ///
    /// Errors: `TooManyForks` after `GENERATIONS_MAX` forks from child to child; `Options` if
    /// `own` is too small.
    pub fn become_child(&self, own: Box<dyn Device>) -> Result<(), StoreError> {
        let generation = self.generation() + 1;
        if own.len() < self.geometry.segments as u64 * self.geometry.segment_bytes() as u64 {
            return Err(StoreError::Options("the child's device is smaller than its parent's"));
        }
        if generation >= GENERATIONS_MAX || self.devices[generation].set(own).is_err() {
            return Err(StoreError::TooManyForks);
        }
        for inherited in self.devices[..generation].iter().filter_map(|device| device.get()) {
            inherited.after_fork();
        }
        let mut space = self.space.lock();
        space.become_child(&self.segments, generation as u8);
        self.set_generation(generation);
        self.forget_threads();
        self.counters.become_child();
        // Buffers in use are those of segments that are not on a device.
        space.free_buffers = [self.all_buffers(Head::Fresh), self.all_buffers(Head::Survivor)];
        for segment in (0..space.frontier()).map(Segment) {
            match (self.segments.state(segment), self.segments.home(segment)) {
                (State::Open | State::Sealed, Some(buffer)) => {
                    space.free_buffers[self.head_of(buffer) as usize] &= !(1 << buffer);
                }
                (State::Failed, Some(buffer)) => {
                    space.free_buffers[self.head_of(buffer) as usize] &= !(1 << buffer);
                    self.mark_buffer(buffer, true);
                    self.lose_if_dead(&mut space, segment);
                }
                (_, home) => {
                    debug_assert!(home.is_none(), "only unwritten segments are in buffers");
                }
            }
        }
        Ok(())
    }

    /// In a forked child: nobody waits, nobody stops.
    fn forget_threads(&self) {
        for event in [&self.progress, &self.sealed, &self.work] {
            event.forget_waiters();
        }
        self.stopping.store(false, Ordering::Release);
        for failed in &self.failed_buffers {
            failed.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_pin_covers_until_it_is_removed() {
        let mut pins = Pins::new();
        assert_eq!(pins.newest(), 0);
        let zero = pins.add(0).expect("room");
        assert_eq!(pins.newest(), 0, "nothing was filled yet");
        let (old, new) = (pins.add(5).expect("room"), pins.add(9).expect("room"));
        assert_eq!(pins.newest(), 9);
        pins.remove(new);
        assert_eq!(pins.newest(), 5);
        pins.remove(zero);
        pins.remove(old);
        assert_eq!(pins.newest(), 0);
    }

    #[test]
    fn pins_are_bounded() {
        let mut pins = Pins::new();
        for _ in 0..PINS_MAX {
            assert!(pins.add(1).is_some());
        }
        assert_eq!(pins.add(1), None);
        pins.clear();
        assert!(pins.add(1).is_some());
    }
}
