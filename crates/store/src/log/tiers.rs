//! Tiers: a slower, cheaper store behind a store (HybridSwap, section III).
//!
//! The second tier is a log of its own: with its own device, space, buffers and heads. Its blocks
//! are numbered after those of the first one, so that a number says in which of the two a block is.
//! All room is reserved in the first tier alone: an object that cannot go to the second one has its
//! place there, and a second tier that is full or fails costs no promise.
//!
//! Guarantees: a block is served by the tier that it was appended to.
//! Never: moves a block from tier to tier; the owner of an object does, by appending it again.
//! Threads: any.

use core::time::Duration;

use deepheap_sys::process::clock;

use crate::block::Block;
use crate::block::cipher::Key;
use crate::device::Device;
use crate::error::StoreError;
use crate::log::identity::Identity;
use crate::log::options::Options;
use crate::log::read::BlockRead;
use crate::log::store::Store;

impl Store {
    /// Puts a second tier behind the store.
    ///
    /// Errors: as `open`, for the second tier; `Options` if the first one has all block numbers.
    pub fn add_second_tier(
        &mut self,
        device: Box<dyn Device>,
        options: Options,
        key: Option<Key>,
    ) -> Result<(), StoreError> {
        // An object hashes to the same in both.
        let identity =
            Identity { secret: self.blocks.table.secret.clone(), key, ..Identity::random() };
        let second =
            Store::open_behind(Some(&self.blocks.geometry), (device.into(), 0), options, identity)?;
        self.second = Some(Box::new(second));
        Ok(())
    }

    /// The tier behind this one, if there is one.
    pub fn second_tier(&self) -> Option<&Store> {
        self.second.as_deref()
    }

    /// The second tier, if blocks can be appended there: a forked child has inherited all of it.
    pub fn second_tier_to_fill(&self) -> Option<&Store> {
        self.second_tier().filter(|second| second.blocks.devices.current() == 0)
    }

    /// Whether the block is in the second tier.
    pub fn is_in_second_tier(&self, block: Block) -> bool {
        self.second_with(block).is_some()
    }

    /// The second tier, if the block is there.
    pub(crate) fn second_with(&self, block: Block) -> Option<&Store> {
        self.second.as_deref().filter(|second| second.blocks.geometry.holds(block))
    }

    /// How long the reads of a second tier that were asked for together took of late, on average;
    /// none before the first.
    pub fn read_latency(&self) -> Option<Duration> {
        let ns = self.busy.read_ns.get();
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// For how long the device of a second tier has had something to write, or to read for the
    /// program.
    pub fn busy_ns(&self) -> u64 {
        self.busy.ns()
    }

    /// Reads the blocks of both tiers: first those that come soon.
    pub(crate) fn read_tiers(&self, second: &Store, requests: &mut [BlockRead<'_>]) {
        let is_slow = |request: &BlockRead<'_>| second.blocks.geometry.holds(request.block);
        let runs = |requests: &mut [BlockRead<'_>], wanted: bool, store: &Store| {
            for run in requests.chunk_by_mut(|one, next| is_slow(one) == is_slow(next)) {
                if is_slow(&run[0]) == wanted {
                    store.blocks.read(run);
                }
            }
        };
        runs(requests, false, self);
        if requests.iter().any(is_slow) {
            let begun_ns = clock::monotonic_ns();
            second.busy.during(|| runs(requests, true, second));
            second.busy.read_ns.note(clock::monotonic_ns() - begun_ns);
        }
    }
}
