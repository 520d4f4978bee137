//! Saved heap: a small durable heap over the model: a store, and a table that says where its
//! objects are.
#![allow(dead_code)] // each test file uses a part of it

use std::collections::BTreeMap;
use std::sync::Arc;

use deepheap_sim::Random;
use deepheap_store::{
    BLOCK_BYTES, Block, Device, DurableError, DurableFile, Goal, HeapShape, Identity, KEY_BYTES,
    Key, PinToken, SavedUpTo, Stamp, Store, StoreError, TableShape, WORDS,
};

use crate::model::{self, Held, Model, SEGMENT_BYTES, Seen, Sizes};

/// The table of the objects.
pub const OBJECTS: u32 = 16;
/// Pages that it can have: so many that the index has two levels.
pub const OBJECTS_PAGES: u32 = 300;
/// Bytes of a row: block, bytes, version.
const ROW_BYTES: usize = 16;
const ROWS: u64 = (BLOCK_BYTES / ROW_BYTES) as u64;
/// From one object's row to the next one's: so that the rows lie on several pages.
const SPREAD: u64 = 41;

pub type Map = BTreeMap<u64, Held>;

/// What a heap of such objects is encrypted with.
pub fn key_of(sizes: Sizes) -> Option<Key> {
    (sizes == Sizes::Encrypted).then(|| Key::from_bytes([7; KEY_BYTES]))
}

pub fn shape(segments: u64) -> HeapShape {
    let options = model::options(segments);
    let mut tables = Store::table_shapes(&options).expect("a legal log").to_vec();
    tables.push(TableShape { id: OBJECTS, pages: OBJECTS_PAGES });
    HeapShape {
        tables,
        region_base: 1 << 44,
        region_len: 1 << 42,
        segment_bytes: options.segment_bytes,
        capacity_bytes: options.capacity_bytes,
    }
}

/// Bytes of a device that such a heap fits on, with some snapshots.
pub fn device_len(segments: u64) -> u64 {
    (32 << 20) + segments * SEGMENT_BYTES
}

pub fn stamp(map: &Map, versions: u64) -> Stamp {
    let mut words = [0; WORDS];
    (words[0], words[1]) = (map.len() as u64, versions);
    Stamp { time: 1_790_000_000 + versions, is_clean: false, words }
}

/// Whether the heap pins what its checkpoints need, as it must.
#[derive(Clone, Copy, PartialEq)]
pub enum Pinning {
    Careful,
    /// For a canary only.
    Forgotten,
}

pub struct SavedHeap {
    pub file: DurableFile,
    pub model: Model,
    pub pinning: Pinning,
    device: Arc<dyn Device>,
    since: SavedUpTo,
    /// What snapshots and the last checkpoint need, and, if it is undecided, the one before as
    /// well: each with the snapshots that it is that of.
    pins: Vec<(PinToken, Vec<u64>)>,
}

impl SavedHeap {
    pub fn create(
        device: Arc<dyn Device>,
        segments: u64,
        sizes: Sizes,
    ) -> Result<Self, DurableError> {
        let stamp = stamp(&Map::new(), 0);
        let (identity, mut shape) = (Identity::random(), shape(segments));
        let key = key_of(sizes);
        if key.is_some() {
            shape.tables.push(Store::tags_shape(&model::options(segments))?);
        }
        let file = DurableFile::create(device.clone(), shape, identity, stamp, key.as_ref())?;
        Self::over(file, sizes, device)
    }

    pub fn open(device: Arc<dyn Device>, sizes: Sizes) -> Result<Self, DurableError> {
        let key = key_of(sizes);
        Self::over(DurableFile::open(device.clone(), key.as_ref())?, sizes, device)
    }

    pub fn open_to_read(device: Arc<dyn Device>, sizes: Sizes) -> Result<Self, DurableError> {
        let key = key_of(sizes);
        Self::over(DurableFile::open_to_read(device.clone(), key.as_ref())?, sizes, device)
    }

    fn over(
        file: DurableFile,
        sizes: Sizes,
        device: Arc<dyn Device>,
    ) -> Result<Self, DurableError> {
        let (store, since) = open_store(&file)?;
        let mut model = Model::over(store);
        model.sizes = sizes;
        model.map = load_map(&file)?;
        let words = file.stamp().words;
        assert_eq!(words[0], model.map.len() as u64, "the words are those of the tables");
        model.versions = words[1];
        let held = model.store.hold_snapshots(&file)?;
        let mut pins: Vec<_> = held.into_iter().map(|(at, pin)| (pin, vec![at])).collect();
        pins.push((model.store.pin_all()?, Vec::new()));
        Ok(Self { file, model, pinning: Pinning::Careful, device, since, pins })
    }

    /// Random work.
    pub fn work(&mut self, random: &mut Random, names: u64, steps: u32) -> Result<(), StoreError> {
        (0..steps).try_for_each(|_| self.model.step(random, names))
    }

    /// Makes a checkpoint of what there is now.
    pub fn checkpoint(&mut self) -> Result<u64, DurableError> {
        self.checkpoint_of(&[])
    }

    /// The same, of the next versions of objects, which were changed in RAM only.
    pub fn checkpoint_of(&mut self, changed: &[u64]) -> Result<u64, DurableError> {
        self.model.store.make_checkpoint(true);
        let written = changed.iter().try_for_each(|&name| self.model.put(name));
        let made = written.map_err(DurableError::from).and_then(|()| self.write_checkpoint());
        self.model.store.make_checkpoint(false);
        made
    }

    fn write_checkpoint(&mut self) -> Result<u64, DurableError> {
        self.model.store.collect_for(Goal::Room);
        while !self.model.store.has_reached_goal() && self.model.collect() {}
        let store = &self.model.store;
        store.collect_for(Goal::Needed);
        store.seal_and_drain();
        store.retry_failed();
        let pin = store.pin_all()?;
        if self.pinning == Pinning::Forgotten {
            self.pins.drain(..).for_each(|(pin, _)| store.unpin(pin));
        }
        let made = self.save();
        let store = &self.model.store;
        match made {
            Ok((checkpoint, since)) => {
                self.since = since;
                match self.pinning {
                    Pinning::Careful => self.pins.push((pin, Vec::new())),
                    Pinning::Forgotten => store.unpin(pin),
                }
                self.let_go();
                Ok(checkpoint)
            }
            Err(error) => {
                match error {
                    DurableError::Undecided(_) => self.pins.push((pin, Vec::new())),
                    _ => store.unpin(pin),
                }
                Err(error)
            }
        }
    }

    /// Ends the pins that are neither the last one nor that of a snapshot.
    fn let_go(&mut self) {
        let store = &self.model.store;
        let last = self.pins.len().saturating_sub(1);
        for (at, (pin, mut of)) in core::mem::take(&mut self.pins).into_iter().enumerate() {
            let was_named = !of.is_empty();
            of.retain(|at| self.file.snapshots().iter().any(|it| it.checkpoint == *at));
            if was_named && of.is_empty() {
                store.unname_pin(&pin);
            }
            match of.is_empty() && at < last {
                true => store.unpin(pin),
                false => self.pins.push((pin, of)),
            }
        }
    }

    /// Keeps the last checkpoint under a name.
    pub fn snapshot(&mut self, name: &str) -> Result<u64, DurableError> {
        self.file.may_keep(name)?;
        let kept = self.file.checkpoint();
        let (pin, of) = self.pins.last_mut().expect("that of the last checkpoint");
        if of.is_empty() && self.model.store.name_pin(pin).is_err() {
            return Err(DurableError::NoRoomForSnapshot);
        }
        of.push(kept);
        let made = self.file.keep(name);
        if !matches!(made, Err(DurableError::Undecided(_))) {
            self.let_go();
        }
        made
    }

    /// Keeps a snapshot no longer.
    pub fn forget(&mut self, name: &str) -> Result<u64, DurableError> {
        let made = self.file.forget(name)?;
        self.let_go();
        Ok(made)
    }

    /// Makes it what it is in a snapshot, as which it is opened again.
    pub fn go_back(&mut self, name: &str) -> Result<u64, DurableError> {
        let map = load_map(&self.file.open_snapshot(name)?)?;
        let made = self.file.go_back(name, stamp(&map, self.model.versions))?;
        *self = Self::open(self.device.clone(), self.model.sizes)?;
        Ok(made)
    }

    fn save(&mut self) -> Result<(u64, SavedUpTo), DurableError> {
        let mut saving = self.file.begin()?;
        let mut page = |table, page, bytes: &[u8]| saving.page(table, page, bytes);
        let since = self.model.store.save(self.since, &mut page)?;
        for (number, bytes) in rows(&self.model.map) {
            page(OBJECTS, number, &bytes)?;
        }
        let checkpoint = saving.commit(stamp(&self.model.map, self.model.versions))?;
        Ok((checkpoint, since))
    }
}

/// The store of the heap, as it was saved.
pub fn open_store(file: &DurableFile) -> Result<(Store, SavedUpTo), DurableError> {
    let options = file.store_options(4, 2);
    Store::open_saved(file, options, &mut |table, visit| file.load_table(table, visit))
}

/// The pages of the table of objects.
fn rows(map: &Map) -> Vec<(u32, Vec<u8>)> {
    (0..OBJECTS_PAGES)
        .map(|page| {
            let mut bytes = vec![0; BLOCK_BYTES];
            let first = page as u64 * ROWS;
            for row in (first..first + ROWS).filter(|row| row % SPREAD == 0) {
                if let Some(held) = map.get(&(row / SPREAD)) {
                    let at = (row - first) as usize * ROW_BYTES;
                    bytes[at..at + 4].copy_from_slice(&held.block.0.to_le_bytes());
                    bytes[at + 4..at + 8].copy_from_slice(&(held.bytes as u32).to_le_bytes());
                    bytes[at + 8..at + 16].copy_from_slice(&held.version.to_le_bytes());
                }
            }
            (page, bytes)
        })
        .collect()
}

pub fn load_map(file: &DurableFile) -> Result<Map, DurableError> {
    let mut map = Map::new();
    file.load_table(OBJECTS, &mut |page, bytes| {
        for (row, bytes) in (page as u64 * ROWS..).zip(bytes.chunks(ROW_BYTES)) {
            let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
            let version = word(8) as u64 | (word(12) as u64) << 32;
            if version > 0 {
                let held = Held { block: Block(word(0)), version, bytes: word(4) as usize };
                map.insert(row / SPREAD, held);
            }
        }
        Ok(())
    })?;
    Ok(map)
}

/// Opens the heap, and holds it against what it must be: the map of checkpoint `at`.
pub fn judge(
    device: Arc<dyn Device>,
    sizes: Sizes,
    maps: impl Fn(u64) -> Option<Map>,
) -> Result<SavedHeap, String> {
    let heap = SavedHeap::open(device, sizes).map_err(|error| error.to_string())?;
    let at = heap.file.checkpoint();
    let right = maps(at).ok_or_else(|| format!("opened at checkpoint {at}"))?;
    if heap.model.map != right {
        return Err(format!("the map of checkpoint {at} is another"));
    }
    heap.model.store.check_invariants();
    match heap.model.check_everything() {
        0 => Ok(heap),
        lost => Err(format!("{lost} objects of checkpoint {at} are lost")),
    }
}

/// Holds all snapshots against what they must be: the maps of their checkpoints.
pub fn judge_snapshots(heap: &SavedHeap, map: impl Fn(u64) -> Option<Map>) -> Result<(), String> {
    for snapshot in heap.file.snapshots() {
        let at = snapshot.checkpoint;
        let then = heap.file.open_snapshot(&snapshot.name).map_err(|error| error.to_string())?;
        let found = load_map(&then).map_err(|error| error.to_string())?;
        if Some(&found) != map(at).as_ref() {
            return Err(format!("the map of snapshot {at} is another"));
        }
        let (store, _) = open_store(&then).map_err(|error| error.to_string())?;
        let all: Vec<_> = found.into_iter().collect();
        let lost = model::check_all(&store, &all).iter().filter(|it| **it != Seen::Right).count();
        if lost > 0 {
            return Err(format!("{lost} objects of snapshot {at} are lost"));
        }
    }
    Ok(())
}
