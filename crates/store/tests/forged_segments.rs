//! A segment whose directory was changed on the device, checksum and all, moves no object under a
//! wrong name, serves no wrong byte, and loses nothing.

mod model;

use std::sync::{Arc, Mutex};

use deepheap_sim::{Random, SimDevice};
use deepheap_store::device::{Device, Read, Result, Write};
use deepheap_store::{BLOCK_BYTES, StoreError, VictimObject};
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use model::{Model, SEGMENT_BYTES, Seen, Sizes, options};
use xxhash_rust::xxh3::xxh3_64;

const SEGMENTS: u64 = 24;

/// A device that forges what it reads, while there are numbers to forge by.
#[derive(Clone)]
struct Forger {
    device: SimDevice,
    random: Arc<Mutex<Option<Random>>>,
}

impl Device for Forger {
    fn read(&self, batch: &mut [Read<'_>]) {
        self.device.read(batch);
        if let Some(random) = &mut *self.random.lock().expect("no panic") {
            batch.iter_mut().for_each(|read| forge(random, read.buf));
        }
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        self.device.write(batch);
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }

    fn len(&self) -> u64 {
        self.device.len()
    }
}

/// Changes the entries of a directory and makes its checksum right, or changes a block.
fn forge(random: &mut Random, bytes: &mut [u8]) {
    if !bytes.starts_with(b"dheapseg") {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= random.once_in(4) as u8;
        return;
    }
    let directory = &mut bytes[..BLOCK_BYTES];
    for _ in 0..=random.below(4) {
        let entry = 64 + 12 * random.below(63) as usize;
        match random.below(4) {
            0 => directory[entry..entry + 8].fill(0xff), // the name of packed blocks
            1 => directory.copy_within(64..64 + 12, entry), // another's name
            2 => directory[entry..entry + 8].copy_from_slice(&random.below(900).to_le_bytes()),
            _ => directory[36 + random.below(20) as usize] ^= 1 << random.below(8),
        }
    }
    directory[56..64].fill(0);
    let sum = xxh3_64(directory);
    directory[56..64].copy_from_slice(&sum.to_le_bytes());
}

/// What came of the victims that were loaded while the device forged.
#[derive(Default, Debug)]
struct Loads {
    /// Objects that were given, and of which the bytes are those that were appended.
    right: u64,
    /// Objects and blocks that were given as damaged.
    damaged: u64,
}

/// Loads a victim, and holds what it gives against the map. What is dead is nobody's.
fn load(model: &Model, buffer: &mut AlignedBuffer, loads: &mut Loads) {
    let Some(victim) = model.store.victim() else { return };
    let objects = victim.load(buffer.as_mut_slice()).expect("the checksum is right");
    for object in objects {
        let (name, block, data) = match object {
            VictimObject::Whole(object) if object.hash.is_none() => {
                loads.damaged += 1;
                continue;
            }
            VictimObject::Whole(object) => (object.name, object.block, object.data),
            VictimObject::Packed(object) => (object.name as u64, object.block, object.data),
            VictimObject::Unreadable { .. } => {
                loads.damaged += 1;
                continue;
            }
        };
        let mut whole =
            model.map.iter().filter(|(_, held)| held.block == block && !held.is_packed());
        assert!(whole.all(|owner| *owner.0 == name), "{name} was given for another object");
        if let Some(held) = model.map.get(&name).filter(|held| held.block == block) {
            let mut right = vec![0; held.bytes];
            model::content(name, held.version, &mut right);
            assert!(data == right, "wrong bytes of {name} were given to collection");
            loads.right += 1;
        }
    }
}

#[test]
fn a_forged_directory_gives_no_object_that_was_not_appended_under_its_name() {
    let seed = model::seed(86);
    let mut random = Random::new(seed);
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, seed);
    let forger = Forger { device, random: Arc::new(Mutex::new(None)) };
    let mut model = Model::new(Box::new(forger.clone()), options(SEGMENTS));
    model.sizes = Sizes::Mixed;
    let mut buffer = AlignedBuffer::new(SEGMENT_BYTES as usize, 0).expect("memory");
    let mut loads = Loads::default();
    for round in 0..400 {
        for _ in 0..10 {
            model.step(&mut random, 900).expect("room");
        }
        model.store.seal_and_drain();
        *forger.random.lock().expect("no panic") = Some(Random::new(seed + round));
        load(&model, &mut buffer, &mut loads);
        for name in (0..900).step_by(50) {
            let seen = model.check(name).unwrap_or(Seen::Right);
            let refused = matches!(seen, Seen::Refused(StoreError::Corrupt(_)));
            assert!(refused || seen == Seen::Right, "{seen:?}");
        }
        *forger.random.lock().expect("no panic") = None;
    }
    println!("{loads:?}");
    assert!(loads.right > 1000 && loads.damaged > 20, "{loads:?}");
    assert_eq!(model.check_everything(), 0, "nothing was lost");
    model.store.check_invariants();
}
