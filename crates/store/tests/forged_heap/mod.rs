//! Forged heap: a heap's file that is damaged or forged, opened and read. It is refused with a
//! reason, or serves right bytes.
//!
//! Damage: bytes of the file are changed, whole pages lost, or exchanged for others. Forgery: the
//! tables are changed and saved anew, with every checksum right, so that what reads them is
//! reached; and superblocks are changed and get their checksum.
#![allow(dead_code)] // each test file uses a part of it

use std::sync::Arc;

use deepheap_sim::{Image, Random, Recorder};
use deepheap_store::device::{Device, Read, Write};
use deepheap_store::durable::verify::{verify_blocks, verify_tables};
use deepheap_store::{BLOCK_BYTES, DurableError, DurableFile, StoreError};
use xxhash_rust::xxh3::xxh3_64;

use crate::model::{self, Seen, Sizes};
use crate::saved_heap::{self, Map, SavedHeap, device_len, load_map, open_store, stamp};

const SEGMENTS: u64 = 16;
const NAMES: u64 = 120;
/// Numbers at which readers go wrong.
const EDGES: [u64; 9] = [0, 1, 2, 4095, 4096, 1 << 20, u32::MAX as u64, 1 << 63, u64::MAX];

/// A heap of which all is right, and what each of its checkpoints holds.
pub struct Good {
    image: Image,
    maps: Vec<Option<Map>>,
}

pub fn good(seed: u64) -> Good {
    let sizes = if seed.is_multiple_of(2) { Sizes::Whole } else { Sizes::Mixed };
    let device = Recorder::over(device_len(SEGMENTS), Image::default());
    let mut heap = SavedHeap::create(Arc::new(device.clone()), SEGMENTS, sizes).expect("a heap");
    let mut random = Random::new(seed);
    let mut maps = vec![None, Some(Map::new())];
    for _ in 0..4 {
        let steps = if sizes == Sizes::Mixed { 25 } else { 200 };
        // So few segments may be full of what the last checkpoint needs. The next one gives room.
        if let Err(error) = heap.work(&mut random, NAMES, steps) {
            assert_eq!(error, StoreError::Full);
            heap.checkpoint().expect("a correct device");
            maps.push(Some(heap.model.map.clone()));
            heap.work(&mut random, NAMES, steps).expect("room");
        }
        heap.checkpoint().expect("a correct device");
        maps.push(Some(heap.model.map.clone()));
    }
    Good { image: device.image(), maps }
}

/// What came of rounds of one kind.
#[derive(Debug)]
pub struct Outcomes {
    pub rounds: u64,
    pub refused: u64,
    pub opened: u64,
    pub blocks_refused: u64,
    pub blocks_right: u64,
}

fn page_of(device: &Recorder, page: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read(&mut [Read::new(page * BLOCK_BYTES as u64, &mut bytes)]);
    bytes
}

fn put_page(device: &Recorder, page: u64, bytes: &[u8]) {
    device.write(&mut [Write::new(page * BLOCK_BYTES as u64, bytes)]);
}

/// Changes some of the bytes: by a bit, a number, a run of noise, or all of them.
fn spoil(random: &mut Random, bytes: &mut [u8]) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64) as usize & !7;
        let word = &mut bytes[at..at + 8];
        match random.below(6) {
            0 => word[random.below(8) as usize] ^= 1 << random.below(8),
            1 => word.copy_from_slice(&EDGES[random.below(9) as usize].to_le_bytes()),
            2 => word[..4].copy_from_slice(&(random.below(9000) as u32).to_le_bytes()),
            3 => word[4..].copy_from_slice(&(random.below(9000) as u32).to_le_bytes()),
            4 => bytes[at..].iter_mut().take(200).for_each(|byte| *byte = random.below(256) as u8),
            _ if random.once_in(8) => bytes.fill(random.below(256) as u8),
            _ => word.copy_from_slice(&random.below(u64::MAX).to_le_bytes()),
        }
    }
}

/// Changes what is on the device; checksums stay what they were.
fn damage(random: &mut Random, device: &Recorder, others: &[Good]) {
    let pages = device.image().pages();
    let any = |random: &mut Random| pages[random.below(pages.len() as u64) as usize];
    for _ in 0..=random.below(6) {
        // Superblocks are few among the pages, and most of what there is to read wrongly.
        let page = if random.once_in(6) { 16 * random.below(2) } else { any(random) };
        let mut bytes = page_of(device, page);
        match random.below(6) {
            0 => bytes.fill(0),
            1 => bytes = page_of(device, any(random)),
            2 => {
                let other = &others[random.below(others.len() as u64) as usize];
                let other = Recorder::over(device_len(SEGMENTS), other.image.clone());
                bytes = page_of(&other, page);
            }
            _ => spoil(random, &mut bytes),
        }
        put_page(device, page, &bytes);
    }
}

/// Changes superblocks, which get their checksum: both, for the older one would do.
fn forge_superblocks(random: &mut Random, device: &Recorder) {
    for page in [0, 16] {
        let mut bytes = page_of(device, page);
        // What is in use of it: the fields, and the list of tables.
        let used = if random.once_in(2) { 8..168 } else { 8..1200 };
        spoil(random, &mut bytes[used]);
        let sum = xxh3_64(&bytes[..4088]);
        bytes[4088..].copy_from_slice(&sum.to_le_bytes());
        put_page(device, page, &bytes);
    }
}

/// Changes tables, and saves them as a checkpoint of which all checksums are right.
fn forge_tables(random: &mut Random, device: &Recorder) {
    let mut file = DurableFile::open(Arc::new(device.clone()), None).expect("a good heap");
    let mut pages = Vec::new();
    for table in file.shape().tables.clone() {
        let mut keep = |number: u32, bytes: &[u8]| {
            pages.push((table.id, number, bytes.to_vec()));
            Ok(())
        };
        file.load_table(table.id, &mut keep).expect("a good heap");
    }
    let stamp = stamp(&Map::new(), file.stamp().words[1]);
    let mut saving = file.begin().expect("memory");
    for _ in 0..=random.below(3) {
        let chosen = random.below(pages.len() as u64) as usize;
        let (table, number, bytes) = &mut pages[chosen];
        spoil(random, bytes);
        saving.page(*table, *number, bytes).expect("a correct device");
    }
    saving.commit(stamp).expect("a correct device");
}

/// Opens what is there and reads all of it. `maps` are what it may hold; none: whatever it says.
fn open(
    device: &Recorder,
    maps: Option<&[Option<Map>]>,
    outcomes: &mut Outcomes,
) -> Result<(), DurableError> {
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    let mut report = verify_tables(shared.clone(), None)?;
    let file = DurableFile::open(shared, None)?;
    let known = saved_heap::shape(SEGMENTS);
    file.expect_tables(&known.tables)?;
    if file.shape().capacity_bytes != known.capacity_bytes {
        // A superblock that was forged well: its heap would be another.
        return Err(DurableError::OtherTables);
    }
    let (store, _) = open_store(&file)?;
    let map = load_map(&file)?;
    if let Some(maps) = maps {
        let right = maps.get(file.checkpoint() as usize).cloned().flatten();
        assert_eq!(Some(&map), right.as_ref(), "damage was taken for a table");
        store.check_invariants();
    }
    verify_blocks(&store, &mut report).expect("memory");
    // A forged table may name blocks that there are not, or that were never written.
    let in_store = |block: u32| (block as u64) < SEGMENTS * (model::SEGMENT_BYTES / 4096);
    let objects: Vec<_> = map
        .into_iter()
        .filter(|(_, held)| in_store(held.block.0) && (1..=BLOCK_BYTES).contains(&held.bytes))
        .collect();
    if maps.is_some() {
        // Panics at a wrong byte.
        for seen in model::check_all(&store, &objects) {
            match seen {
                Seen::Right => outcomes.blocks_right += 1,
                Seen::Refused(_) => outcomes.blocks_refused += 1,
            }
        }
    }
    outcomes.opened += 1;
    Ok(())
}

impl Outcomes {
    pub const NONE: Outcomes =
        Outcomes { rounds: 0, refused: 0, opened: 0, blocks_refused: 0, blocks_right: 0 };
}

/// What is done to a heap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Damage,
    ForgedSuperblocks,
    ForgedTables,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Damage, Kind::ForgedSuperblocks, Kind::ForgedTables];
}

/// Spoils one of the heaps, then opens and reads it. Panics at a wrong byte.
pub fn round(heaps: &[Good], kind: Kind, random: &mut Random, outcomes: &mut Outcomes) {
    let heap = &heaps[random.below(heaps.len() as u64) as usize];
    let device = Recorder::over(device_len(SEGMENTS), heap.image.clone());
    match kind {
        Kind::Damage => damage(random, &device, heaps),
        Kind::ForgedSuperblocks => forge_superblocks(random, &device),
        Kind::ForgedTables => forge_tables(random, &device),
    }
    let maps = (kind == Kind::Damage).then_some(heap.maps.as_slice());
    outcomes.rounds += 1;
    if let Err(error) = open(&device, maps, outcomes) {
        assert!(!error.to_string().is_empty());
        outcomes.refused += 1;
    }
}
