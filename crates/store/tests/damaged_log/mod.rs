//! Damaged log: the log of a map whose bytes are damaged or forged, recovered. It gives what was
//! committed, or a reason, and never puts a piece into a page that no record of that page had.
//!
//! Damage: bytes are changed. Forgery: frames and records of nonsense, with every checksum right.
#![allow(dead_code)] // each test file uses a part of it

use std::collections::HashMap;

use deepheap_sim::{Image, Random, Recorder};
use deepheap_store::device::{Device, Read, Write};
use deepheap_store::format::map_log::{
    FRAME_BYTES, FRAME_HEADER, FrameNote, MapShape, PIECE_BYTES, PIECES, RECORD_MAX, Record,
    SUPERBLOCK_OFFSETS,
};
use deepheap_store::{BLOCK_BYTES, MapLog};

const PAGES: u32 = 40;
/// What the bytes of a page are that no record changed.
const BASE: u8 = 0xb5;

fn put(device: &Recorder, offset: u64, data: &[u8]) {
    let mut batch = [Write::new(offset, data)];
    device.write(&mut batch);
    batch[0].result.expect("within the device");
}

fn get(device: &Recorder, offset: u64) -> Vec<u8> {
    let mut page = vec![0; BLOCK_BYTES];
    device.read(&mut [Read::new(offset, &mut page)]);
    page
}

/// The log of one round.
struct Scene {
    device: Recorder,
    shape: MapShape,
    /// Bytes of records of each page, and where in it.
    written: HashMap<u32, Vec<(usize, u8)>>,
    /// What the committed ones make of the pages.
    committed: HashMap<u32, Vec<u8>>,
    /// Whether nothing was forged.
    is_honest: bool,
    end: u64,
}

fn scene(random: &mut Random) -> Scene {
    let shape = MapShape::new(7, u64::from(PAGES) * BLOCK_BYTES as u64);
    let device = Recorder::over(shape.file_bytes(), Image::default());
    let log = MapLog::create(&device, shape, 1).expect("a correct device");
    for page in 0..PAGES {
        put(&device, shape.place_of_page(page), &[BASE; BLOCK_BYTES]);
    }
    let (key, forges) = (log.key(), random.once_in(2));
    let mut scene = Scene {
        device,
        shape,
        written: HashMap::new(),
        committed: HashMap::new(),
        is_honest: !forges,
        end: 0,
    };
    let mut open: Vec<(u32, u16, u8)> = Vec::new();
    for _ in 0..random.below(6) {
        let mut frame = vec![0; FRAME_BYTES];
        let mut at = FRAME_HEADER;
        for _ in 0..random.below(20) {
            let pages = u64::from(PAGES) + if forges { 3 } else { 0 };
            let (page, value) = (random.below(pages) as u32, random.below(200) as u8);
            let pieces = random.number() as u16;
            let content = [value; BLOCK_BYTES];
            let position = scene.end + at as u64;
            let mut record = [0; RECORD_MAX];
            let bytes = Record::write(&mut record, key, position, (page, pieces), &content);
            if at + bytes > FRAME_BYTES {
                break;
            }
            frame[at..at + bytes].copy_from_slice(&record[..bytes]);
            at += bytes;
            open.push((page, pieces, value));
            let places = (0..PIECES).filter(|piece| pieces & 1 << piece != 0);
            scene.written.entry(page).or_default().extend(places.map(|piece| (piece, value)));
        }
        let commits = match random.below(3) {
            0 => None,
            _ if forges => Some(random.below(50) as u32..random.below(50) as u32),
            _ => Some(0..PAGES),
        };
        let acknowledged = if forges { random.below(2 * scene.end + 1) } else { 0 };
        if commits.is_some() {
            for (page, pieces, value) in open.drain(..) {
                let bytes = scene.committed.entry(page).or_insert(vec![BASE; BLOCK_BYTES]);
                for piece in (0..PIECES).filter(|piece| pieces & 1 << piece != 0) {
                    bytes[piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES].fill(value);
                }
            }
        }
        FrameNote { position: scene.end, bytes: at, commits, acknowledged }.seal(key, &mut frame);
        put(&scene.device, shape.place_of(scene.end), &frame);
        scene.end = shape.frame_after(scene.end + at as u64);
    }
    scene
}

/// Changes bytes, of the superblocks sometimes.
fn damage(scene: &Scene, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let place = match random.below(4) {
            0 => SUPERBLOCK_OFFSETS[random.below(2) as usize],
            _ => scene.shape.place_of(random.below(scene.end / 4096 + 1) * 4096),
        };
        let mut block = get(&scene.device, place);
        let first = if random.once_in(2) { 128 } else { BLOCK_BYTES as u64 };
        block[random.below(first) as usize] ^= 1 << random.below(8);
        put(&scene.device, place, &block);
    }
}

/// Each piece of each page is the base's, or that of a record of the page.
fn expect_known(scene: &Scene) {
    for page in 0..PAGES {
        let bytes = get(&scene.device, scene.shape.place_of_page(page));
        for (piece, bytes) in bytes.chunks(PIECE_BYTES).enumerate() {
            let value = bytes[0];
            assert!(bytes.iter().all(|&byte| byte == value), "a torn piece of page {page}");
            let known = scene.written.get(&page).is_some_and(|it| it.contains(&(piece, value)));
            assert!(value == BASE || known, "page {page}, piece {piece} is {value}");
        }
    }
}

/// Writes a log, perhaps damages it, and recovers it; whether it was not refused.
pub fn round(random: &mut Random) -> bool {
    let scene = scene(random);
    let is_damaged = random.once_in(2);
    if is_damaged {
        damage(&scene, random);
    }
    let found = MapLog::open(&scene.device).and_then(|mut log| {
        let seen = log.survey(&scene.device)?;
        Ok((seen, log.recover(&scene.device, 2)?))
    });
    expect_known(&scene);
    match found {
        Ok((seen, done)) => {
            assert_eq!(seen.committed_records, done.committed_records);
            if scene.is_honest && !is_damaged {
                for (page, bytes) in &scene.committed {
                    let found = get(&scene.device, scene.shape.place_of_page(*page));
                    assert!(found == *bytes, "page {page}");
                }
            }
            true
        }
        Err(error) => {
            assert!(is_damaged || !scene.is_honest, "{error}");
            assert!(!error.to_string().is_empty());
            false
        }
    }
}
