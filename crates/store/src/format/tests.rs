//! Tests: the readers of the format meet damaged and forged bytes.
//!
//! Each round makes a valid directory or packed block and changes some of it, mostly in its header
//! and entries. Then it makes the checksum right again: otherwise the checksum would refuse all of
//! it, and the reader behind it would go untested. A second, slow reader follows
//! `docs/internals/on-disk-format.md` to the letter. Both must give the same answer.
//!
//! `DEEPHEAP_FUZZ=1000000` plays that many rounds. `STORE_SEED` replays a run.

use core::ops::Range;

use deepheap_sim::Random;
use xxhash_rust::xxh3::xxh3_64;

use super::BLOCK_BYTES;
use super::directory::{self, Filling, Told};
use super::packed::{self, Content, PACKED_MAX, PackedBlock};
use crate::block;
use crate::log::head::Head;

/// Numbers at which readers go wrong.
const EDGES: [u16; 13] = [0, 1, 7, 8, 15, 16, 24, 4072, 4080, 4095, 4096, 4097, u16::MAX];

fn rounds() -> u64 {
    let rounds = std::env::var("DEEPHEAP_FUZZ").ok();
    rounds.map_or(20_000, |rounds| rounds.parse().expect("DEEPHEAP_FUZZ is a number of rounds"))
}

fn seed(default: u64) -> u64 {
    let seed = std::env::var("STORE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(default);
    println!("STORE_SEED={seed}");
    seed
}

/// Changes a few bytes, most often among the first `hot`.
fn change(random: &mut Random, bytes: &mut [u8], hot: usize) {
    for _ in 0..=random.below(3) {
        let within = if random.once_in(8) { bytes.len() } else { hot.min(bytes.len()) };
        let Some(last) = within.checked_sub(8) else { return };
        let at = random.below(last as u64 + 1) as usize;
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => {
                let edge = EDGES[random.below(EDGES.len() as u64) as usize];
                bytes[at & !1..][..2].copy_from_slice(&edge.to_le_bytes());
            }
            2 => bytes[at..at + 8].copy_from_slice(&random.number().to_le_bytes()),
            _ => bytes.copy_within(at..at + 8, random.below(last as u64 + 1) as usize),
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes([bytes[at], bytes[at + 1]]) as usize
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u16_at(bytes, at) as u32 | (u16_at(bytes, at + 2) as u32) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// What a fuzz target saw: rounds in which bytes were changed, and of these the ones in which the
/// reader took something from them all the same.
#[derive(Default, Debug)]
struct Seen {
    changed: u64,
    taken: u64,
}

impl Seen {
    /// A target whose bytes are all refused at the door tests the door only.
    fn assert_fair(&self) {
        println!("{self:?}");
        assert!(self.taken * 4 > self.changed && self.taken < self.changed, "{self:?}");
    }
}

/// An object of a packed block: its name, and where its bytes are.
type Found = (u32, Range<usize>);

/// What the document demands of a packed block.
#[derive(Clone, Copy, PartialEq, Debug)]
enum PackedRule {
    Magic,
    EntriesEndBeforeStart,
    BeginsBehindStart,
    BeginsAtMultipleOf8,
    EndsInBlock,
}

/// The objects that the document allows, with all its rules but one.
fn packed_by_the_document(
    block: &[u8],
    content: Content,
    without: Option<PackedRule>,
) -> Vec<Found> {
    use PackedRule::*;
    let holds = |rule: PackedRule, holds: bool| holds || without == Some(rule);
    let magic = if content == Content::Pages { b"dhc1" } else { b"dhp1" };
    if block.len() != 4096 || !holds(Magic, &block[..4] == magic) {
        return Vec::new();
    }
    let (count, start) = (u16_at(block, 4), u16_at(block, 6));
    if !holds(EntriesEndBeforeStart, 16 + 8 * count <= start) {
        return Vec::new();
    }
    let entries = block[16..].chunks_exact(8).take(count);
    let objects = entries.map(|entry| (u32_at(entry, 0), u16_at(entry, 4), u16_at(entry, 6)));
    let valid = objects.filter(|&(_, offset, length)| {
        holds(BeginsBehindStart, offset >= start)
            && holds(BeginsAtMultipleOf8, offset % 8 == 0)
            && holds(EndsInBlock, offset + length <= 4096)
    });
    valid.map(|(name, offset, length)| (name, offset..offset + length)).collect()
}

fn packed_by_the_reader(block: &[u8], content: Content) -> Vec<Found> {
    let objects = packed::objects(block, content);
    let at = |data: &[u8]| data.as_ptr() as usize - block.as_ptr() as usize;
    objects.map(|(name, data)| (name, at(data)..at(data) + data.len())).collect()
}

fn packed_block(random: &mut Random) -> Vec<u8> {
    let mut buf = vec![random.number() as u8; BLOCK_BYTES];
    let content = any_content(random);
    let mut block = PackedBlock::begin_with(&mut buf, content);
    let largest = [8, 64, 500, PACKED_MAX as u64][random.below(4) as usize];
    for _ in 0..random.below(300) {
        let data = vec![random.number() as u8; random.below(largest + 1) as usize];
        if block.fits(data.len()) {
            block.push(random.below(1000) as u32, &data);
        }
    }
    block.finish();
    buf
}

/// Bytes that a packed block is not, or not quite.
fn changed_block(random: &mut Random) -> Vec<u8> {
    let mut block = packed_block(random);
    let directory = 16 + 8 * u16_at(&block, 4);
    match random.below(16) {
        0 => block.truncate(random.below(BLOCK_BYTES as u64) as usize),
        1 => block[4..].iter_mut().for_each(|byte| *byte = random.number() as u8),
        2 => block.iter_mut().for_each(|byte| *byte = random.number() as u8),
        3..6 => change(random, &mut block, 16),
        _ => change(random, &mut block[16..], directory - 16),
    }
    block
}

/// Objects mostly, since the tests ask for them mostly.
fn any_content(random: &mut Random) -> Content {
    if random.below(8) == 0 { Content::Pages } else { Content::Objects }
}

fn fuzz_packed(seed: u64, reader: impl Fn(&[u8], Content) -> Vec<Found>) -> Result<Seen, String> {
    let mut random = Random::new(seed);
    let mut seen = Seen::default();
    for round in 0..rounds() {
        let block = changed_block(&mut random);
        let content = any_content(&mut random);
        let (right, read) =
            (packed_by_the_document(&block, content, None), reader(&block, content));
        if read != right {
            return Err(format!("round {round} of seed {seed}: {read:?}, not {right:?}"));
        }
        seen.changed += 1;
        seen.taken += u64::from(!read.is_empty());
    }
    Ok(seen)
}

#[test]
fn of_any_bytes_a_packed_block_gives_the_objects_that_the_document_allows_and_no_others() {
    fuzz_packed(seed(81), packed_by_the_reader).expect("no difference").assert_fair();
}

#[test]
fn an_object_is_found_by_its_name_as_it_is_listed() {
    let mut random = Random::new(seed(82));
    for _ in 0..rounds() / 4 {
        let block = changed_block(&mut random);
        let content = any_content(&mut random);
        for (name, data) in packed::objects(&block, content) {
            // Of two entries of one name the first counts, and it may be a bad one.
            if let Some(found) = packed::find(&block, content, name) {
                let mut same = packed::objects(&block, content).filter(|object| object.0 == name);
                assert!(same.any(|object| object.1.as_ptr_range() == found.as_ptr_range()));
            }
            assert!(data.len() <= PACKED_MAX);
        }
        let _ = packed::find(&block, content, random.number() as u32);
    }
}

#[test]
fn canary_a_reader_of_packed_blocks_that_breaks_one_rule_is_caught() {
    use PackedRule::*;
    for rule in [Magic, EntriesEndBeforeStart, BeginsBehindStart, BeginsAtMultipleOf8, EndsInBlock]
    {
        let sloppy = |block: &[u8], content| packed_by_the_document(block, content, Some(rule));
        assert!(fuzz_packed(83, sloppy).is_err(), "{rule:?}");
    }
}

/// Names and checksums, if the directory is the one that is expected.
type Entries = Option<Vec<Told>>;

/// What the document demands of a directory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum DirectoryRule {
    Magic,
    Version,
    Segment,
    Sequence,
    Store,
    Count,
    EndsInDirectory,
    Checksum,
}

/// The entries, if the document allows it, with all its rules but one.
fn directory_by_the_document(
    bytes: &[u8],
    expected: Filling,
    without: Option<DirectoryRule>,
) -> Entries {
    use DirectoryRule::*;
    if bytes.len() < 64 {
        return None;
    }
    let count = expected.count as usize;
    let unsummed = [&bytes[..56], &[0; 8], &bytes[64..]].concat();
    let rules = [
        (Magic, &bytes[..8] == b"dheapseg"),
        (Version, u32_at(bytes, 8) == 3),
        (Segment, u32_at(bytes, 12) == expected.segment.0),
        (Sequence, u64_at(bytes, 16) == expected.sequence),
        (Store, u64_at(bytes, 24) == expected.store),
        (Count, u32_at(bytes, 32) == expected.count),
        (EndsInDirectory, 64 + 12 * count <= bytes.len()),
        (Checksum, u64_at(bytes, 56) == xxh3_64(&unsummed)),
    ];
    if rules.iter().any(|&(rule, holds)| !holds && without != Some(rule)) {
        return None;
    }
    let entries = bytes[64..].chunks_exact(12).take(count);
    let told = |entry: &[u8]| {
        let name = u32_at(entry, 0);
        let name = if name == u32::MAX { u64::MAX } else { name.into() };
        let order = u64_at(bytes, 40).saturating_add(u32_at(entry, 4).into());
        Told { name, checksum: u32_at(entry, 8), order }
    };
    Some(entries.map(told).collect())
}

fn directory_by_the_reader(bytes: &[u8], expected: Filling) -> Entries {
    let mut bytes = bytes.to_vec();
    let is_right = directory::filling_of(&mut bytes) == Some(expected);
    let indices = 0..expected.count as usize;
    is_right.then(|| indices.map_while(|index| directory::entry(&bytes, index)).collect())
}

/// Makes the checksum right.
fn reseal(bytes: &mut [u8]) {
    if bytes.len() >= 64 {
        bytes[56..64].fill(0);
        let sum = xxh3_64(bytes);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
    }
}

fn fuzz_directory(seed: u64, reader: impl Fn(&[u8], Filling) -> Entries) -> Result<Seen, String> {
    let mut random = Random::new(seed);
    let mut seen = Seen::default();
    for round in 0..rounds() {
        let blocks = [64, 256, 512, 2048][random.below(4) as usize];
        let mut bytes = vec![0xff; directory::blocks(blocks) as usize * BLOCK_BYTES];
        let mut filling = Filling {
            segment: block::Segment(random.below(1000) as u32),
            sequence: 1 + random.below(1000),
            store: random.number(),
            count: random.below(u64::from(blocks - directory::blocks(blocks)) + 1) as u32,
        };
        for index in 0..filling.count as usize {
            let order = random.number() >> random.below(64);
            let checksum = random.number() as u32;
            directory::set_entry(&mut bytes, index, random.number(), order, checksum);
        }
        directory::finish(&mut bytes, filling, Head::Fresh, random.number());
        let valid = bytes.clone();
        match random.below(16) {
            0 => bytes.truncate(random.below(bytes.len() as u64) as usize),
            1 => bytes.iter_mut().for_each(|byte| *byte = random.number() as u8),
            2..9 => change(&mut random, &mut bytes, 40),
            _ => change(&mut random, &mut bytes[64..], filling.count as usize * 12),
        }
        let is_sealed = !random.once_in(4);
        if is_sealed {
            reseal(&mut bytes);
        }
        // The store may be as wrong as the bytes: the reader holds against them what it is told.
        if bytes.len() >= 64 && random.once_in(2) {
            filling = Filling {
                segment: block::Segment(u32_at(&bytes, 12)),
                sequence: u64_at(&bytes, 16),
                store: u64_at(&bytes, 24),
                count: u32_at(&bytes, 32),
            };
        }
        let right = directory_by_the_document(&bytes, filling, None);
        let read = reader(&bytes, filling);
        if read != right || !is_sealed && bytes != valid && read.is_some() {
            return Err(format!("round {round} of seed {seed}: {read:?}, not {right:?}"));
        }
        seen.changed += u64::from(bytes != valid);
        seen.taken += u64::from(bytes != valid && read.is_some());
    }
    Ok(seen)
}

#[test]
fn of_any_bytes_a_directory_is_taken_only_if_the_document_allows_it() {
    fuzz_directory(seed(84), directory_by_the_reader).expect("no difference").assert_fair();
}

#[test]
fn canary_a_reader_of_directories_that_breaks_one_rule_is_caught() {
    use DirectoryRule::*;
    for rule in [Magic, Version, Segment, Sequence, Store, Count, EndsInDirectory, Checksum] {
        let sloppy =
            |bytes: &[u8], expected| directory_by_the_document(bytes, expected, Some(rule));
        assert!(fuzz_directory(85, sloppy).is_err(), "{rule:?}");
    }
}
