//! Formats do not drift: what an earlier deepheap wrote is read by this one as it was meant, and
//! what this one writes is what its version number says. `golden/README.md` tells what the files
//! hold and how to make new ones.

mod golden;
mod scene;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use deepheap::internal::stats_page::StatsPage;
use deepheap::internal::stats_table::TOLD;
use deepheap::internal::{inspect, repair};
use deepheap::maps::{Map, MapOptions};
use deepheap::stats::FaultKind;
use deepheap::{DurableHeap, DurableOptions, HeapFile};
use deepheap_durable::offline::open_existing;
use deepheap_pager::trace::format::{Chunk, Happened, Header, Record, Trace, Traced};
use deepheap_store::{CHECKSUMS, SNAPSHOTS};
use scene::memory::{PAGE, Random};
use scene::{folder, play, play_in_turn};
use xxhash_rust::xxh3::xxh3_64;

const CONF: &str = "ram:140M,store_size:64M";
/// The version of durable heaps that is written.
const HEAP: &str = "heap-4";
/// One whose pages are compressed, some of them twice.
const COMPRESSED: &str = "heap-4-compressed";
const MAP: &str = "map-1";
const TRACE: &str = "trace-1";
/// Where superblocks lie, in heaps and in maps with a log.
const SUPERBLOCKS: [usize; 2] = [0, 64 << 10];

fn options(text: &str) -> DurableOptions {
    DurableOptions::parse(text).expect("settings")
}

fn open(path: &Path, settings: &str) -> DurableHeap {
    DurableHeap::open(path, &options(settings)).unwrap_or_else(|error| panic!("{error}"))
}

fn close(heap: DurableHeap) {
    // SAFETY: nobody uses it any more.
    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
}

/// What a heap holds under these names: how much, how it is allocated, and what is in it.
const HELD: [(&str, usize, Kind); 6] = [
    ("small", 40, Kind::Malloc),
    ("large", 3 * PAGE + 100, Kind::Malloc),
    ("page", PAGE, Kind::Aligned),
    ("tiny", 24, Kind::Object),
    ("object", 128, Kind::Object),
    ("pages", 5000, Kind::Object),
];

#[derive(Clone, Copy)]
enum Kind {
    Malloc,
    Aligned,
    Object,
}

/// So many bytes: a text of this name and version, and zeros from its 200th byte on.
fn text(name: &str, bytes: usize, version: u32) -> Vec<u8> {
    let text = format!("{name}, version {version}. ");
    let mut text: Vec<u8> = text.bytes().cycle().take(bytes.min(200)).collect();
    text.resize(bytes, 0);
    text
}

fn write_at(at: *mut u8, bytes: &[u8]) {
    assert!(!at.is_null(), "no memory");
    // SAFETY: so long, and nobody else's.
    unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

fn read_at(at: *const u8, bytes: usize) -> Vec<u8> {
    assert!(!at.is_null(), "no such root");
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(at, bytes) }.to_vec()
}

/// Makes the heap: all of it in version 1, of which there is a snapshot, then some in version 2.
fn make_heap(path: &Path) {
    let heap = open(path, "ram:16M,size:1G,store_size:64M,address:0x300000000000,compress:off");
    for (name, bytes, kind) in HELD {
        let allocate = || match kind {
            Kind::Malloc => heap.malloc(bytes),
            Kind::Aligned => heap.aligned_alloc(PAGE, bytes),
            Kind::Object => heap.allocate_objects(1, bytes),
        };
        let freed = allocate();
        let at = allocate();
        heap.set_root(name, at).expect("a root");
        write_at(at, &text(name, bytes, 1));
        // SAFETY: allocated above, and nobody's.
        unsafe { deepheap::free(freed) };
    }
    heap.snapshot("first").unwrap_or_else(|error| panic!("{error}"));
    write_at(heap.root("large"), &text("large", 3 * PAGE + 100, 2));
    close(heap);
}

fn check_heap(path: &Path, settings: &str, version_of_large: u32) {
    let heap = open(path, settings);
    for (name, bytes, _) in HELD {
        let version = if name == "large" { version_of_large } else { 1 };
        assert!(read_at(heap.root(name), bytes) == text(name, bytes, version), "{name}");
    }
    close(heap);
}

fn expect_clean(path: &Path) {
    let found = inspect::fsck(HeapFile::from(path)).expect("a heap");
    assert!(found.report.is_clean() && found.contradiction.is_none(), "{found:?}");
    assert!(repair::repair(HeapFile::from(path)).expect("a heap").is_none());
}

/// Puts the golden file there, as one of this version.
fn unpack(name: &str, path: &Path, version: Option<u32>) {
    let mut bytes = golden::bytes(name);
    for start in SUPERBLOCKS {
        if let Some(version) = version {
            bytes[start + 8..start + 12].copy_from_slice(&version.to_le_bytes());
            let sum = xxh3_64(&bytes[start..start + 4088]);
            bytes[start + 4088..start + 4096].copy_from_slice(&sum.to_le_bytes());
        }
    }
    std::fs::write(path, bytes).expect("a file");
}

#[test]
fn a_heap_file_holds_what_the_deepheap_that_wrote_it_put_there() {
    // A deepheap that knew no dense pages wrote the same.
    fn unpack_older(path: &Path) {
        unpack(HEAP, path, Some(3));
    }
    fn look(path: &Path) {
        expect_clean(path);
        check_heap(path, "ram:16M,readonly,snapshot:first", 1);
        check_heap(path, "ram:16M,readonly", 2);
    }
    fn go_on(path: &Path) {
        let heap = open(path, "ram:16M");
        write_at(heap.root("large"), &text("large", 3 * PAGE + 100, 3));
        close(heap);
        check_heap(path, "ram:16M,readonly,snapshot:first", 1);
        check_heap(path, "ram:16M", 3);
        expect_clean(path);
    }
    play_in_turn(
        "a_heap_file_holds_what_the_deepheap_that_wrote_it_put_there",
        CONF,
        &[|path| unpack(HEAP, path, None), look, go_on, unpack_older, look, go_on],
    );
}

#[test]
fn a_heap_file_of_a_version_that_is_not_read_is_refused_and_stays() {
    const NAME: &str = "a_heap_file_of_a_version_that_is_not_read_is_refused_and_stays";
    play(NAME, CONF, || {
        let path = folder().join("heap");
        for version in [2, 5] {
            unpack(HEAP, &path, Some(version));
            let before = std::fs::read(&path).expect("the file");
            let refused = DurableHeap::open(&path, &options("ram:16M"));
            let said = refused.map(drop).expect_err("it is refused").to_string();
            eprintln!("{said}");
            let why = format!("has version {version} of the format, and this deepheap reads");
            assert!(said.contains(&why), "{said}");
            assert!(before == std::fs::read(&path).expect("the file"), "it was changed");
        }
    });
}

/// The pages of the tables, but for checksums and times, which are not twice the same.
fn tables_of(path: &Path) -> BTreeMap<(u32, u32), Vec<u8>> {
    let (file, _) = open_existing(&HeapFile::from(path)).unwrap_or_else(|error| panic!("{error}"));
    let mut pages = BTreeMap::new();
    for table in file.shape().tables.iter().filter(|it| ![CHECKSUMS, SNAPSHOTS].contains(&it.id)) {
        let mut note = |page, bytes: &[u8]| {
            pages.insert((table.id, page), bytes.to_vec());
            Ok(())
        };
        file.load_table(table.id, &mut note).unwrap_or_else(|error| panic!("{error}"));
    }
    pages
}

/// What lies in the log, but for the directories, which have checksums.
fn blocks_of(path: &Path) -> Vec<Vec<u8>> {
    let (file, _) = open_existing(&HeapFile::from(path)).unwrap_or_else(|error| panic!("{error}"));
    let start = file.log_start() as usize;
    let bytes = std::fs::read(path).expect("a file");
    let end = (start + file.shape().capacity_bytes as usize).min(bytes.len());
    let blocks = bytes[start..end].chunks(PAGE).filter(|block| !block.starts_with(b"dheapseg"));
    blocks.filter(|block| block.iter().any(|&byte| byte != 0)).map(<[u8]>::to_vec).collect()
}

/// The golden file, unpacked; if it is to be written, it becomes the one that was made.
fn golden_beside(name: &str, made: &Path) -> PathBuf {
    if golden::is_to_write() {
        golden::write(name, &std::fs::read(made).expect("a file"));
    }
    let golden = folder().join("golden");
    unpack(name, &golden, None);
    golden
}

#[test]
fn a_heap_file_written_anew_is_the_golden_one() {
    play_in_turn(
        "a_heap_file_written_anew_is_the_golden_one",
        CONF,
        &[make_heap, |path| {
            let golden = golden_beside(HEAP, path);
            let (made, right) = (tables_of(path), tables_of(&golden));
            for (of, page) in &right {
                assert!(made.get(of) == Some(page), "page {} of table {:#x} differs", of.1, of.0);
            }
            assert_eq!(made.len(), right.len());
            assert!(blocks_of(path) == blocks_of(&golden), "blocks differ");
            let superblock = |path: &Path| {
                let bytes = std::fs::read(path).expect("a file");
                // All but what is random, checksums and the time.
                [8..16, 24..32, 40..88, 96..128, 832..1392]
                    .map(|range: core::ops::Range<usize>| bytes[range].to_vec())
            };
            assert_eq!(superblock(path), superblock(&golden));
        }],
    );
}

/// The text of a page: LZ4 makes it three times smaller, zstd five times.
fn page_text(page: usize) -> [u8; PAGE] {
    let mut random = Random::new(page as u64);
    let mut text = [b' '; PAGE];
    for line in text.chunks_mut(64) {
        let [high, low] = [random.next() as u32, random.next() as u32];
        let told = format!("{{\"id\": {page}, \"key\": \"{high:08x}-{low:08x}\"}}");
        line[..told.len()].copy_from_slice(told.as_bytes());
    }
    text
}

/// So many pages of others' are more than such a heap has RAM, compressed once. Twice they are not.
const OTHERS: usize = 60 << 10;
/// Pages that stay; one is written before each eighth of the others.
const PAGES: usize = 8;

#[test]
fn pages_that_were_compressed_are_read_from_the_golden_file() {
    fn make(path: &Path) {
        if !golden::is_to_write() {
            return;
        }
        let heap = open(path, "ram:72M,size:1G,store_size:1G,address:0x310000000000");
        let others = heap.malloc(OTHERS * PAGE);
        for kept in 0..PAGES {
            let at = heap.aligned_alloc(PAGE, PAGE);
            heap.set_root(&kept.to_string(), at).expect("a root");
            write_at(at, &page_text(kept));
            for page in kept * OTHERS / PAGES..(kept + 1) * OTHERS / PAGES {
                write_at(others.wrapping_add(page * PAGE), &page_text(PAGES + page));
            }
        }
        // SAFETY: allocated above.
        unsafe { deepheap::free(others) };
        close(heap);
    }
    /// Without what no checkpoint needs, as far as a check does not miss it.
    fn pack(path: &Path) {
        if golden::is_to_write() {
            DurableHeap::compact(path).unwrap_or_else(|error| panic!("{error}"));
            let mut bytes = std::fs::read(path).expect("a file");
            let is_filled = |block: &[u8]| {
                !block.starts_with(b"dheapseg") && block.iter().any(|&byte| byte != 0)
            };
            for at in (0..bytes.len()).step_by(PAGE) {
                let block = bytes[at..at + PAGE].to_vec();
                if is_filled(&block) {
                    bytes[at..at + PAGE].fill(0);
                    std::fs::write(path, &bytes).expect("a file");
                    let found = inspect::fsck(HeapFile::from(path));
                    if !found.is_ok_and(|it| it.report.is_clean() && it.contradiction.is_none()) {
                        bytes[at..at + PAGE].copy_from_slice(&block);
                    }
                }
            }
            golden::write(COMPRESSED, &bytes);
        }
        unpack(COMPRESSED, path, None);
    }
    play_in_turn(
        "pages_that_were_compressed_are_read_from_the_golden_file",
        CONF,
        &[make, pack, |path| {
            let (mut once, mut twice) = (0, 0);
            for block in blocks_of(path).iter().filter(|block| block.starts_with(b"dhc1")) {
                let number = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]) as usize;
                for entry in 0..number(4) {
                    let first = block[number(16 + 8 * entry + 4)];
                    *if first >> 4 == 0 { &mut twice } else { &mut once } += 1;
                }
            }
            assert!(once > 0 && twice > 0, "{once} pages compressed once, {twice} twice");
            expect_clean(path);
            let heap = open(path, "ram:16M");
            for page in 0..PAGES {
                assert!(read_at(heap.root(&page.to_string()), PAGE) == page_text(page), "{page}");
            }
        }],
    );
}

const MAP_BYTES: u64 = 10 * PAGE as u64;

fn map(path: &Path) -> Result<Map, deepheap::maps::MapFailure> {
    let options = MapOptions { writes: true, length: MAP_BYTES, has_log: true, ..<_>::default() };
    Map::open(path, options)
}

/// Commits twice, and is killed: the file's log has two commits that are not in its pages.
fn make_map(path: &Path) {
    let map = map(path).unwrap_or_else(|error| panic!("{error}"));
    for version in 1..=2 {
        for page in (0..10).step_by(3) {
            write_at(map.as_ptr().wrapping_add(page * PAGE + 300), &text("map", 600, version));
        }
        map.sync().unwrap_or_else(|error| panic!("{error}"));
    }
    // SAFETY: ends the process, as it is.
    unsafe { libc::_exit(0) };
}

fn check_map(path: &Path) {
    let map = map(path).unwrap_or_else(|error| panic!("{error}"));
    for page in 0..10 {
        let mut right = vec![0; PAGE];
        if page % 3 == 0 {
            right[300..900].copy_from_slice(&text("map", 600, 2));
        }
        assert!(read_at(map.as_ptr().wrapping_add(page * PAGE), PAGE) == right, "page {page}");
    }
}

/// The file's bytes, without what is random, checksums and the time.
fn map_bytes(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).expect("a file");
    for start in SUPERBLOCKS {
        for range in [16..24, 32..40, 4088..4096] {
            bytes[start..][range].fill(0);
        }
    }
    for frame in bytes[1 << 20..].chunks_mut(PAGE).filter(|page| page.starts_with(b"dhframe1")) {
        frame[56..64].fill(0);
        let end = u32::from_le_bytes([frame[24], frame[25], frame[26], frame[27]]) as usize;
        let mut record = 64;
        while record < end.min(PAGE) {
            frame[record..record + 8].fill(0);
            let pieces = u16::from_le_bytes([frame[record + 12], frame[record + 13]]);
            record += 16 + 256 * pieces.count_ones() as usize;
        }
    }
    bytes
}

#[test]
fn a_map_log_holds_what_was_committed_and_is_written_as_it_was() {
    play_in_turn(
        "a_map_log_holds_what_was_committed_and_is_written_as_it_was",
        CONF,
        &[make_map, |path| {
            let golden = golden_beside(MAP, path);
            assert!(map_bytes(path) == map_bytes(&golden), "the files differ");
            check_map(&golden);
            check_map(path);
        }],
    );
}

#[test]
fn a_map_log_of_another_version_is_refused_and_stays() {
    play("a_map_log_of_another_version_is_refused_and_stays", CONF, || {
        let path = folder().join("map");
        for version in [0, 2] {
            unpack(MAP, &path, Some(version));
            let before = std::fs::read(&path).expect("the file");
            let said = map(&path).map(drop).expect_err("it is refused").to_string();
            eprintln!("{said}");
            assert!(said.contains(&format!("it has version {version} of the format")), "{said}");
            assert!(before == std::fs::read(&path).expect("the file"), "it was changed");
        }
    });
}

/// One record of each kind, in two chunks, one of which has lost records.
fn trace() -> (Vec<u8>, Trace) {
    let header = Header {
        pid: 4711,
        ram: 64 << 20,
        begun: 1_790_000_000,
        region_base: 0x1000_0000_0000,
        ran_before_ns: 5_000_000,
    };
    let (mut bytes, mut records) = (header.to_bytes().to_vec(), Vec::new());
    for (lane, lost) in [(3, 0), (15, 7)] {
        let mut chunk = Chunk::default();
        for (number, happened) in Happened::ALL.into_iter().enumerate() {
            let has_amount = number < 6 || (7..9).contains(&number);
            let record = Record {
                happened,
                page: 1_000_000 - 70 * number as u32,
                amount: if has_amount { 40 - 100 * lane as i16 } else { 0 },
                at: 1000 * number as u64 + lane as u64,
                took: if happened.is_fault() { 300 } else { 0 },
            };
            chunk.push(record);
            records.push(Traced { lane: lane as u8, record });
        }
        chunk.finish(lane, lost, &mut bytes);
    }
    records.sort_by_key(|traced| traced.record.at);
    (bytes, Trace { header, records, lost: 7, is_cut: false })
}

#[test]
fn a_trace_is_read_as_it_was_meant_and_written_as_it_was() {
    let (written, meant) = trace();
    if golden::is_to_write() {
        golden::write(TRACE, &written);
    }
    let golden = golden::bytes(TRACE);
    assert_eq!(Trace::read(&golden).expect("a trace"), meant);
    assert!(golden == written, "a trace is written otherwise than by version 1");
    for version in [0, 2] {
        let mut other = golden.clone();
        other[8] = version;
        let said = Trace::read(&other).expect_err("it is refused").to_string();
        let why = format!("a trace of version {version}, and this command reads version 1");
        assert!(said.contains(&why), "{said}");
    }
}

#[test]
fn the_page_of_statistics_has_the_layout_of_its_version() {
    let page = StatsPage::create().expect("memfd");
    // SAFETY: the version is the word behind the magic number, of 8 bytes.
    let version = unsafe { core::ptr::from_ref(page).cast::<u32>().add(2).read() };
    let mut layout = format!("version {version}, {} bytes\n", size_of::<StatsPage>());
    for told in &TOLD {
        let (group, name) = told.json;
        writeln!(layout, "{} {group}.{name}", told.number.index()).expect("memory");
    }
    for kind in FaultKind::ALL {
        writeln!(layout, "{} {kind:?}", kind as usize).expect("memory");
    }
    let name = format!("statistics-{version}.txt");
    if golden::is_to_write() {
        golden::write_text(&name, &layout);
    }
    assert!(golden::text(&name) == layout, "a new layout needs a new version\n{layout}");
}
