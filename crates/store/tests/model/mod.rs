//! Model: a store beside the plain map that says what it must hold.
//!
//! Single-threaded: the model does the work of the writer and collector threads itself, when a
//! writer would otherwise have to wait.
#![allow(dead_code)] // each test file uses a part of it

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use deepheap_child as child;
use deepheap_sim::Random;
use deepheap_store::block::pack::BATCH_MAX;
use deepheap_store::{
    BLOCK_BYTES, Block, BlockRead, Content, Device, FileDevice, Head, Options, PACKED_MAX,
    PackedBlock, Plan, Store, StoreError, VictimObject, Writer, packed,
};
use deepheap_sys::files::direct_file::DirectFile;
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;

/// The smallest segments: the most of them on a small device.
pub const SEGMENT_BYTES: u64 = 256 << 10;

pub fn options(segments: u64) -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: segments * SEGMENT_BYTES,
        buffers: 4,
        reserve_segments: 2,
    }
}

/// Which sizes objects have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// A block each.
    Whole,
    /// A block each, or from 8 bytes to `PACKED_MAX`, together with others.
    Mixed,
    /// The same, and all of it encrypted.
    Encrypted,
}

impl Sizes {
    /// Bytes of the object `name`, always the same.
    pub fn of(self, name: u64) -> usize {
        let mut random = Random::new(name.wrapping_mul(77));
        match (self, random.below(6)) {
            (Self::Whole, _) | (_, 0) => BLOCK_BYTES,
            (_, 1..=3) => 8 * (1 + random.below(64)) as usize,
            (_, _) => 8 * (1 + random.below((PACKED_MAX / 8) as u64)) as usize,
        }
    }
}

/// The bytes of version `version` of the object `name`.
pub fn content(name: u64, version: u64, out: &mut [u8]) {
    let mut random = Random::new(name.wrapping_mul(0x1_0000_0001) ^ version << 40);
    for word in out.chunks_mut(8) {
        word.copy_from_slice(&random.number().to_le_bytes());
    }
}

/// One aligned block.
#[repr(align(4096))]
pub struct Page(pub [u8; BLOCK_BYTES]);

impl Page {
    /// A version of an object that has a block of its own.
    pub fn of(name: u64, version: u64) -> Self {
        let mut page = Self([0; BLOCK_BYTES]);
        content(name, version, &mut page.0);
        page
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    pub block: Block,
    pub version: u64,
    pub bytes: usize,
}

impl Held {
    pub fn is_packed(&self) -> bool {
        self.bytes <= PACKED_MAX
    }

    /// What it is retired at.
    pub fn cost(&self) -> u32 {
        deepheap_store::cost(self.bytes)
    }
}

/// An object that is to be packed: name and bytes.
pub type Loose = (u32, Vec<u8>);

/// Packs the objects as well as they can be; `append` stores each block, `placed` learns where
/// each object (by its place in the batch) is then. Stops at the first error.
pub fn pack(
    objects: &[Loose],
    mut append: impl FnMut(&[u8], u32) -> Result<Block, StoreError>,
    mut placed: impl FnMut(usize, Block),
) -> Result<(), StoreError> {
    let mut plan = Box::new(Plan::new());
    for (batch, first) in objects.chunks(BATCH_MAX).zip((0..).step_by(BATCH_MAX)) {
        let sizes: Vec<u16> = batch.iter().map(|(_, bytes)| bytes.len() as u16).collect();
        let blocks = plan.assign(&sizes);
        for at in 0..blocks {
            let mut page = Page([0xbb; BLOCK_BYTES]);
            let mut packed = PackedBlock::begin_with(&mut page.0, Content::Objects);
            for object in plan.objects(at) {
                packed.push(batch[object].0, &batch[object].1);
            }
            let block = append(packed.finish(), plan.cost(at))?;
            plan.objects(at).for_each(|object| placed(first + object, block));
        }
    }
    Ok(())
}

/// A file without a name.
pub fn file() -> Box<dyn Device> {
    let file = DirectFile::open_unlinked(Path::new("/var/tmp")).expect("a file");
    Box::new(FileDevice::new(file).expect("a device"))
}

/// Runs the child in a fork of the frozen store; returns its process id to the parent.
pub fn fork(model: &mut Model, body: impl FnOnce(&mut Model)) -> libc::pid_t {
    let frozen = model.store.freeze();
    // SAFETY: the child has one thread, and leaves by `child::end`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    drop(frozen);
    if pid == 0 {
        child::end(|| {
            model.store.become_child(file()).expect("a generation");
            body(model);
        });
    }
    pid
}

/// What came of a check of one object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Seen {
    Right,
    Refused(StoreError),
}

pub struct Model {
    pub store: Store,
    pub map: BTreeMap<u64, Held>,
    pub versions: u64,
    pub sizes: Sizes,
    buffer: AlignedBuffer,
    /// Calls of `look`.
    looks: u64,
}

impl Model {
    pub fn new(device: Box<dyn Device>, options: Options) -> Self {
        Self::over(Store::open(device, options, None).expect("a store"))
    }

    pub fn over(store: Store) -> Self {
        let tiers = [Some(&store), store.second_tier()].into_iter().flatten();
        let segment_bytes = tiers.map(Store::segment_bytes).max().expect("a tier");
        let buffer = AlignedBuffer::new(segment_bytes, 0).expect("memory");
        Self { store, map: BTreeMap::new(), versions: 0, sizes: Sizes::Whole, buffer, looks: 0 }
    }

    /// Gives idle space back, half a minute after the last time. Returns the bytes.
    pub fn look(&mut self) -> u64 {
        self.looks += 1;
        self.store.discard_idle(self.looks * 30_000_000_000)
    }

    /// Appends, doing meanwhile what the threads of a runtime would do.
    fn append(
        &mut self,
        append: impl FnOnce(&mut Writer<'_>) -> Block,
    ) -> Result<Block, StoreError> {
        // Half of it goes to the second tier while there is room, without waiting.
        if self.versions.is_multiple_of(2)
            && let Some(second) = self.store.second_tier()
        {
            if let Ok(Some(mut writer)) = second.try_writer(Head::Fresh) {
                return Ok(append(&mut writer));
            }
            second.write_sealed(false);
        }
        loop {
            if let Some(mut writer) = self.store.try_writer(Head::Fresh)? {
                return Ok(append(&mut writer));
            }
            if !self.store.write_sealed(false) && !self.collect() {
                self.store.retry_failed();
            }
        }
    }

    /// Stores the next version of the object.
    pub fn put(&mut self, name: u64) -> Result<(), StoreError> {
        self.put_all(&[name])
    }

    /// Stores the next versions of the objects, which are different ones; those with blocks of
    /// their own first. The others keep their old version if an error comes before them.
    pub fn put_all(&mut self, names: &[u64]) -> Result<(), StoreError> {
        self.versions += 1;
        let version = self.versions;
        let mut loose: Vec<Loose> = Vec::new();
        for &name in names {
            let bytes = self.sizes.of(name);
            if bytes <= PACKED_MAX {
                let mut data = vec![0; bytes];
                content(name, version, &mut data);
                loose.push((name as u32, data));
                continue;
            }
            let page = Page::of(name, version);
            let hash = self.store.hash(&page.0);
            let block = self.append(|writer| writer.append(name, &page.0, hash))?;
            self.publish(name, Held { block, version, bytes });
        }
        let mut placed = Vec::new();
        let append = |bytes: &[u8], cost| self.append(|to| to.append_packed(bytes, cost));
        let outcome = pack(&loose, append, |object, block| placed.push((object, block)));
        for (object, block) in placed {
            let (name, data) = &loose[object];
            self.publish(*name as u64, Held { block, version, bytes: data.len() });
        }
        outcome
    }

    /// The object is there from now on, and not where it was.
    fn publish(&mut self, name: u64, held: Held) {
        if let Some(old) = self.map.insert(name, held) {
            self.store.retire(old.block, old.cost());
        }
    }

    pub fn remove(&mut self, name: u64) {
        if let Some(old) = self.map.remove(&name) {
            self.store.retire(old.block, old.cost());
        }
    }

    /// Empties one segment of each tier if there is one to empty; true if one was freed.
    pub fn collect(&mut self) -> bool {
        let freed = self.collect_tier(|store| Some(store));
        self.collect_tier(Store::second_tier) || freed
    }

    fn collect_tier(&mut self, tier: impl Fn(&Store) -> Option<&Store>) -> bool {
        let Some(tier) = tier(&self.store) else { return false };
        let Some(victim) = tier.victim() else {
            return false;
        };
        let Ok(objects) = victim.load(self.buffer.as_mut_slice()) else {
            return false;
        };
        let (store, map) = (&self.store, &mut self.map);
        let is_there = |map: &BTreeMap<u64, Held>, name: u64, block| {
            map.get(&name).is_some_and(|held| held.block == block)
        };
        let mut loose: Vec<Loose> = Vec::new();
        for object in objects {
            match object {
                VictimObject::Whole(object) if is_there(map, object.name, object.block) => {
                    let Some(mut writer) = survivors(tier) else { return false };
                    let new = object.append_to(&mut writer);
                    drop(writer);
                    store.retire(object.block, packed::cost(BLOCK_BYTES));
                    map.get_mut(&object.name).expect("it is there").block = new;
                }
                VictimObject::Packed(object) => {
                    if is_there(map, object.name as u64, object.block) {
                        assert_eq!(object.cost, map[&(object.name as u64)].cost());
                        loose.push((object.name, object.data.to_vec()));
                    }
                }
                VictimObject::Whole(_) | VictimObject::Unreadable { .. } => {}
            }
        }
        let append = |bytes: &[u8], cost| {
            let mut writer = survivors(tier).ok_or(StoreError::Full)?;
            Ok(writer.append_packed(bytes, cost))
        };
        let _ = pack(&loose, append, |object, new| {
            let name = loose[object].0 as u64;
            let held = map.get_mut(&name).expect("it is there");
            store.retire(held.block, held.cost());
            held.block = new;
        });
        tier.release(victim)
    }

    /// Units that what is held costs.
    pub fn live_bytes(&self) -> u64 {
        self.map.values().map(|held| held.cost() as u64).sum()
    }

    /// Reads the object. Panics if bytes are served that are not its bytes.
    pub fn check(&self, name: u64) -> Option<Seen> {
        let held = self.map.get(&name)?;
        Some(self.check_all(&[(name, *held)])[0])
    }

    /// Reads objects together.
    pub fn check_all(&self, objects: &[(u64, Held)]) -> Vec<Seen> {
        check_all(&self.store, objects)
    }

    /// Reads everything; how many objects were refused.
    pub fn check_everything(&self) -> usize {
        let all: Vec<_> = self.map.iter().map(|(&name, &held)| (name, held)).collect();
        let seen = all.chunks(50).flat_map(|some| self.check_all(some));
        seen.filter(|seen| *seen != Seen::Right).count()
    }

    /// A random operation.
    pub fn step(&mut self, random: &mut Random, names: u64) -> Result<(), StoreError> {
        let name = random.below(names);
        match random.below(100) {
            0..50 if self.sizes != Sizes::Whole => {
                let some = 1 + random.below(40);
                let all: BTreeSet<u64> = (0..some).map(|_| random.below(names)).collect();
                self.put_all(&all.into_iter().collect::<Vec<_>>())?;
            }
            0..50 => self.put(name)?,
            50..60 => self.remove(name),
            60..90 => {
                self.check(name);
            }
            90..95 => {
                let from = self.map.range(name..).take(40).map(|(&name, &held)| (name, held));
                self.check_all(&from.collect::<Vec<_>>());
            }
            95 => {
                self.look();
            }
            96 => {
                self.collect();
            }
            97 => self.store.seal_and_drain(),
            _ => {
                self.store.write_sealed(false);
                self.store.second_tier().map(|second| second.write_sealed(false));
            }
        }
        Ok(())
    }
}

/// Reads objects together; panics if bytes are served that are not theirs.
pub fn check_all(store: &Store, objects: &[(u64, Held)]) -> Vec<Seen> {
    let mut pages: Vec<Page> = objects.iter().map(|_| Page([0x77; BLOCK_BYTES])).collect();
    let with_pages = objects.iter().zip(&mut pages);
    let mut requests: Vec<_> = with_pages
        .map(|((name, held), page)| match held.is_packed() {
            true => BlockRead::packed(held.block, &mut page.0),
            false => BlockRead::new(held.block, *name, &mut page.0),
        })
        .collect();
    store.read(&mut requests);
    let results: Vec<_> = requests.iter().map(|request| request.result).collect();
    let seen = results.into_iter().zip(objects).zip(&pages);
    seen.map(|((result, (name, held)), page)| match result {
        Ok(_) if held.is_packed() => {
            let mut right = vec![0; held.bytes];
            content(*name, held.version, &mut right);
            let found = packed::find(&page.0, packed::Content::Objects, *name as u32);
            assert!(found == Some(&right[..]), "wrong bytes of {name} were served");
            Seen::Right
        }
        Ok(hash) => {
            let right = Page::of(*name, held.version);
            assert!(page.0 == right.0, "wrong bytes of {name} were served");
            assert_eq!(hash, store.hash(&right.0));
            Seen::Right
        }
        Err(error) => Seen::Refused(error),
    })
    .collect()
}

/// A writer of the survivors' head; none if the store has no room.
fn survivors(store: &Store) -> Option<Writer<'_>> {
    loop {
        match store.try_writer(Head::Survivor) {
            Ok(Some(writer)) => return Some(writer),
            Ok(None) => {
                let goes_on = store.write_sealed(false) || store.retry_failed();
                assert!(goes_on, "survivors never wait for anything else");
            }
            Err(_) => return None,
        }
    }
}

/// The seed of this run: `STORE_SEED`, or the given one. Printed, so that a failure can be
/// replayed.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("STORE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(default);
    println!("STORE_SEED={seed}");
    seed
}
