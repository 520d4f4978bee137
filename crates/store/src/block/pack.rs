//! Pack: which objects of a batch share which packed block.
//!
//! Best fit decreasing: the largest object first, each into the block that it leaves the least room
//! in. So large objects share blocks with small ones. Objects of one size keep their order:
//! neighbours of the batch become neighbours in the log.
//!
//! Guarantees: every object is in exactly one block, and fits; the time is linear in the batch.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values. A plan takes 12 KiB, and planning takes 6 KiB of stack: make one plan for
//! each thread that packs, and use it again.

use deepheap_sys::narrow::Narrow;

use crate::block::BLOCK_UNITS;
use crate::format::packed::{self, ALIGNMENT, CAPACITY, PACKED_MAX, WELL_FILLED};

/// Objects that one plan can assign.
pub const BATCH_MAX: usize = 1024;

/// Room of an empty block, in steps of the objects' alignment.
const STEPS: usize = CAPACITY / ALIGNMENT;

/// Blocks are kept by the room that is left in them: a list for each room.
const ROOMS: usize = STEPS + 1;

/// A block is well filled from here on, or from here.
const WELL_FILLED_STEPS: usize = WELL_FILLED / ALIGNMENT;
const WELL_FILLED_UNITS: u32 = BLOCK_UNITS * 7 / 8;

/// No object, no block: the end of a list.
const NONE: u16 = u16::MAX;

const _: () = assert!(BATCH_MAX < NONE as usize);

/// Where the objects of a batch go. Blocks are numbered from 0.
pub struct Plan {
    blocks: usize,
    /// The next object of the same block, in the order in which they were assigned.
    next_object: [u16; BATCH_MAX],
    first_object: [u16; BATCH_MAX],
    last_object: [u16; BATCH_MAX],
    /// Steps left in the block.
    room: [u16; BATCH_MAX],
    /// Units that the objects of the block cost.
    units: [u32; BATCH_MAX],
}

impl Default for Plan {
    fn default() -> Self {
        Self::new()
    }
}

impl Plan {
    /// A plan without objects.
    pub const fn new() -> Self {
        Self {
            blocks: 0,
            next_object: [NONE; BATCH_MAX],
            first_object: [NONE; BATCH_MAX],
            last_object: [NONE; BATCH_MAX],
            room: [0; BATCH_MAX],
            units: [0; BATCH_MAX],
        }
    }

    /// Plans for objects of these sizes, bytes, forgetting what was planned before. Returns how
    /// many blocks they take.
    ///
    /// # Panics
    /// If there are more than `BATCH_MAX`, or one is larger than `PACKED_MAX`.
    pub fn assign(&mut self, sizes: &[u16]) -> usize {
        assert!(sizes.len() <= BATCH_MAX, "more objects than a plan can assign");
        self.blocks = 0;
        let mut rooms = Rooms::new();
        let mut order = [0; BATCH_MAX];
        for &object in largest_first(sizes, &mut order) {
            let bytes = sizes[object as usize] as usize;
            let steps = packed::footprint(bytes) / ALIGNMENT;
            let block = rooms.take_tightest(steps).unwrap_or_else(|| self.open());
            self.put(object, block);
            self.units[block as usize] += packed::cost(bytes);
            self.room[block as usize] -= steps.to_u16();
            rooms.add(self.room[block as usize] as usize, block);
        }
        self.blocks
    }

    /// One more block.
    fn open(&mut self) -> u16 {
        let block = self.blocks;
        self.blocks += 1;
        self.first_object[block] = NONE;
        self.room[block] = STEPS.to_u16();
        self.units[block] = 0;
        block.to_u16()
    }

    fn put(&mut self, object: u16, block: u16) {
        let at = block as usize;
        self.next_object[object as usize] = NONE;
        if self.first_object[at] == NONE {
            self.first_object[at] = object;
        } else {
            self.next_object[self.last_object[at] as usize] = object;
        }
        self.last_object[at] = object;
    }

    /// The objects of the block, by their numbers in the batch.
    pub fn objects(&self, block: usize) -> impl Iterator<Item = usize> {
        let first = self.first_object[..self.blocks][block];
        let found = |object: u16| (object != NONE).then_some(object as usize);
        core::iter::successors(found(first), move |&object| found(self.next_object[object]))
    }

    /// The cost of the block's objects together: for `Writer::append_packed`.
    pub fn cost(&self, block: usize) -> u32 {
        self.units[..self.blocks][block]
    }

    /// Whether the block is worth writing now. The objects of others may wait for the next batch;
    /// a block is well filled also if it could not be fuller with objects of the same sizes.
    pub fn is_well_filled(&self, block: usize) -> bool {
        STEPS - self.room[..self.blocks][block] as usize >= WELL_FILLED_STEPS
            || self.units[block] >= WELL_FILLED_UNITS
    }
}

/// Numbers of the objects, the largest first, equal ones in their order.
fn largest_first<'a>(sizes: &[u16], order: &'a mut [u16; BATCH_MAX]) -> &'a [u16] {
    let class = |bytes: u16| {
        assert!(bytes as usize <= PACKED_MAX, "an object is too large to be packed");
        STEPS - packed::footprint(bytes as usize) / ALIGNMENT
    };
    let mut starts = [0u16; STEPS];
    for &bytes in sizes {
        starts[class(bytes)] += 1;
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += core::mem::replace(start, sum);
    }
    for (object, &bytes) in (0..).zip(sizes) {
        let start = &mut starts[class(bytes)];
        order[*start as usize] = object;
        *start += 1;
    }
    &order[..sizes.len()]
}

/// Blocks by the room that is left in them, steps.
struct Rooms {
    /// Bit `r % 64` of word `r / 64`: there is a block with room for `r` steps.
    some: [u64; ROOMS.div_ceil(64)],
    last: [u16; ROOMS],
    /// The block before this one on its list.
    before: [u16; BATCH_MAX],
}

impl Rooms {
    fn new() -> Self {
        Self { some: [0; _], last: [NONE; ROOMS], before: [NONE; BATCH_MAX] }
    }

    fn add(&mut self, room: usize, block: u16) {
        self.before[block as usize] = core::mem::replace(&mut self.last[room], block);
        self.some[room / 64] |= 1 << (room % 64);
    }

    /// Takes out a block with room for `steps`, of those the one with the least room.
    fn take_tightest(&mut self, steps: usize) -> Option<u16> {
        let mut word = steps / 64;
        let mut bits = self.some[word] & (u64::MAX << (steps % 64));
        while bits == 0 {
            word += 1;
            bits = *self.some.get(word)?;
        }
        let room = word * 64 + bits.trailing_zeros() as usize;
        let block = self.last[room];
        self.last[room] = self.before[block as usize];
        if self.last[room] == NONE {
            self.some[word] &= !(1 << (room % 64));
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use deepheap_sim::Random;

    use super::*;
    use crate::format::BLOCK_BYTES;
    use crate::format::packed::{Content, PackedBlock};

    /// Packs as planned; how many blocks, and the bytes used in them.
    fn pack(plan: &mut Plan, sizes: &[u16]) -> (usize, usize) {
        let blocks = plan.assign(sizes);
        let mut seen = vec![false; sizes.len()];
        let mut used_bytes = 0;
        for block in 0..blocks {
            let mut buf = [0; BLOCK_BYTES];
            let mut packed = PackedBlock::begin_with(&mut buf, Content::Objects);
            for object in plan.objects(block) {
                assert!(!core::mem::replace(&mut seen[object], true), "in two blocks");
                packed.push(object as u32, &vec![1; sizes[object] as usize]);
            }
            assert!(packed.count() > 0, "an empty block");
            let objects = || plan.objects(block).map(|object| sizes[object] as usize);
            assert_eq!(plan.cost(block), objects().map(packed::cost).sum::<u32>());
            used_bytes += objects().map(packed::footprint).sum::<usize>();
        }
        assert!(seen.into_iter().all(|seen| seen), "in no block");
        (blocks, used_bytes)
    }

    #[test]
    fn blocks_are_well_filled_at_every_mixture_of_sizes() {
        let mut random = Random::new(5);
        let mut plan = Plan::new();
        for (least, most) in [(8, 2000), (8, 4072), (100, 300), (1000, 2000), (8, 64)] {
            let (mut blocks, mut used) = (0, 0);
            for _ in 0..50 {
                let size = |_| (least + random.below(most - least + 1)) as u16;
                let sizes: Vec<u16> = (0..256).map(size).collect();
                let (more_blocks, more_used) = pack(&mut plan, &sizes);
                blocks += more_blocks;
                used += more_used;
            }
            let fill = used as f64 / (blocks * CAPACITY) as f64;
            println!("{least}..={most}: {:.1} %", fill * 100.0);
            assert!(fill >= 0.85, "{least}..={most}: {fill}");
        }
    }

    #[test]
    fn objects_of_one_size_are_packed_as_tightly_as_they_cost_and_in_order() {
        let mut plan = Plan::new();
        for size in 1..=PACKED_MAX as u16 {
            let count = packed::per_block(size as usize) * 2 + 1;
            assert_eq!(plan.assign(&vec![size; count]), 3);
            let planned = (0..3).flat_map(|block| plan.objects(block).map(move |it| (block, it)));
            assert!(planned.eq((0..count).map(|object| (object * 2 / (count - 1), object))));
            assert!(plan.is_well_filled(0) && plan.is_well_filled(1));
            assert_eq!(plan.is_well_filled(2), packed::cost(size as usize) >= WELL_FILLED_UNITS);
        }
    }

    #[test]
    fn blocks_are_never_more_than_the_costs_and_one_for_each_size() {
        let mut random = Random::new(6);
        let mut plan = Plan::new();
        for _ in 0..300 {
            let kinds: Vec<u16> =
                (0..1 + random.below(6)).map(|_| 1 + random.below(4072) as u16).collect();
            let sizes: Vec<u16> = (0..random.below(1025))
                .map(|_| kinds[random.below(kinds.len() as u64) as usize])
                .collect();
            let (blocks, _) = pack(&mut plan, &sizes);
            let units: u32 = sizes.iter().map(|&size| packed::cost(size as usize)).sum();
            assert!(blocks <= units.div_ceil(BLOCK_UNITS) as usize + kinds.len(), "{kinds:?}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None, ..Default::default()
        })]

        #[test]
        fn every_object_is_in_exactly_one_block_and_fits(
            sizes in proptest::collection::vec(0..=PACKED_MAX as u16, 0..=BATCH_MAX),
            before in proptest::collection::vec(0..=PACKED_MAX as u16, 0..50),
        ) {
            let mut plan = Plan::new();
            plan.assign(&before);
            pack(&mut plan, &sizes);
        }
    }
}
