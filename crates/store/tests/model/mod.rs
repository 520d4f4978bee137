//! Model: a store beside the plain map that says what it must hold.
//!
//! Single-threaded: the model does the work of the writer and collector threads itself, when a
//! writer would otherwise have to wait.
#![allow(dead_code)] // each test file uses a part of it

use std::collections::BTreeMap;

use deepheap_sim::Random;
use deepheap_store::{
    BLOCK_BYTES, Block, BlockRead, ContentHash, Device, Head, Options, Store, StoreError,
    VictimPolicy,
};
use deepheap_sys::aligned_buffer::AlignedBuffer;

/// The smallest segments: the most of them on a small device.
pub const SEGMENT_BYTES: u64 = 256 << 10;

pub fn options(segments: u64, policy: VictimPolicy) -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: segments * SEGMENT_BYTES,
        buffers: 4,
        reserve_segments: 2,
        policy,
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
    buffer: AlignedBuffer,
}

impl Model {
    pub fn new(device: Box<dyn Device>, options: Options) -> Self {
        Self::over(Store::open(device, options).expect("a store"))
    }

    pub fn over(store: Store) -> Self {
        let buffer = AlignedBuffer::new(store.segment_bytes(), 0).expect("memory");
        Self { store, map: BTreeMap::new(), versions: 0, buffer }
    }

    /// Appends, doing meanwhile what the threads of a runtime would do.
    fn append(&mut self, name: u64, version: u64) -> Result<Held, StoreError> {
        let page = Page::of(name, version);
        let hash = ContentHash::of(&page.0);
        loop {
            if let Some(mut writer) = self.store.try_writer(Head::Fresh)? {
                let block = writer.append(name, &page.0, hash);
                return Ok(Held { block, version });
            }
            if !self.store.write_sealed(false) {
                self.collect();
            }
        }
    }

    /// Stores the next version of the object.
    pub fn put(&mut self, name: u64) -> Result<(), StoreError> {
        self.versions += 1;
        let held = self.append(name, self.versions)?;
        if let Some(old) = self.map.insert(name, held) {
            self.store.retire(old.block);
        }
        Ok(())
    }

    pub fn remove(&mut self, name: u64) {
        if let Some(old) = self.map.remove(&name) {
            self.store.retire(old.block);
        }
    }

    /// Empties one segment if there is one to empty; true if it was freed.
    pub fn collect(&mut self) -> bool {
        let Some(victim) = self.store.victim() else {
            return false;
        };
        let Ok(objects) = victim.load(self.buffer.as_mut_slice()) else {
            return false;
        };
        for object in objects {
            let Some(held) = self.map.get_mut(&object.name) else { continue };
            if held.block != object.block {
                continue;
            }
            let Ok(hash) = object.verify() else { continue };
            let mut writer = loop {
                match self.store.try_writer(Head::Survivor) {
                    Ok(Some(writer)) => break writer,
                    Ok(None) => assert!(self.store.write_sealed(false), "survivors never wait"),
                    Err(_) => return false,
                }
            };
            let new = writer.append(object.name, object.data, hash);
            drop(writer);
            self.store.retire(held.block);
            held.block = new;
        }
        self.store.release(victim)
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
                self.store.discard_idle();
            }
            96 => {
                self.collect();
            }
            97 => self.store.seal_and_drain(),
            _ => {
                self.store.write_sealed(false);
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
        .map(|((name, held), page)| BlockRead::new(held.block, *name, &mut page.0))
        .collect();
    store.read(&mut requests);
    let results: Vec<_> = requests.iter().map(|request| request.result).collect();
    let seen = results.into_iter().zip(objects).zip(&pages);
    seen.map(|((result, (name, held)), page)| match result {
        Ok(hash) => {
            let right = Page::of(*name, held.version);
            assert!(page.0 == right.0, "wrong bytes of {name} were served");
            assert_eq!(hash, ContentHash::of(&right.0));
            Seen::Right
        }
        Err(error) => Seen::Refused(error),
    })
    .collect()
}

/// The seed of this run: `STORE_SEED`, or the given one. Printed, so that a failure can be
/// replayed.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("STORE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(default);
    println!("STORE_SEED={seed}");
    seed
}
