//! Durable heaps whose pages were compressed twice: such pages go to the file as they are, and a
//! later process reads them, whatever happened to the one that wrote them.

mod scene;

use std::path::Path;

use deepheap::internal::{inspect, repair};
use deepheap::{DurableHeap, DurableOptions, HeapFile};
use scene::memory::{PAGE, Random};
use scene::{folder, play_in_turn};

const CONF: &str = "ram:140M,store_size:64M";
/// The second step of compression begins at 64 MiB.
const OPTIONS: &str = "ram:72M,size:1G,store_size:1G";
/// Compressed once they are more than the heap has RAM, compressed twice they are not.
const PAGES: usize = 60 << 10;
/// As many of them change after the first time.
const CHANGED: usize = PAGES / 2;

/// The text of a page, different in every page and in every version of it. LZ4 makes it three times
/// smaller, zstd five times.
fn text(page: usize, version: u64) -> [u8; PAGE] {
    let mut random = Random::new(page as u64 * 2 + version);
    let mut text = [b' '; PAGE];
    for line in text.chunks_mut(64) {
        let [high, low] = [random.next() as u32, random.next() as u32];
        let told = format!("{{\"id\": {page}, \"key\": \"{high:08x}-{low:08x}-{version}\"}}");
        line[..told.len()].copy_from_slice(told.as_bytes());
    }
    text
}

fn write(memory: *mut u8, pages: core::ops::Range<usize>, version: u64) {
    for page in pages {
        // SAFETY: so many pages of the heap.
        unsafe { memory.add(page * PAGE).cast::<[u8; PAGE]>().write(text(page, version)) };
    }
}

fn check(memory: *const u8, pages: core::ops::Range<usize>, version: u64) {
    for page in pages {
        // SAFETY: as above.
        let found = unsafe { &*memory.add(page * PAGE).cast::<[u8; PAGE]>() };
        assert!(*found == text(page, version), "page {page}, version {version}");
    }
}

/// How many dense pages are in the blocks of a file, and how many that were compressed once
/// (`docs/internals/on-disk-format.md`, "Packed block").
fn compressed_pages_in(path: &Path) -> (usize, usize) {
    let bytes = std::fs::read(path).expect("a file");
    let number = |at: &[u8]| u16::from_le_bytes([at[0], at[1]]) as usize;
    let blocks = bytes.chunks_exact(PAGE).filter(|block| block.starts_with(b"dhc1"));
    let firsts = blocks.flat_map(|block| {
        let entries = block[16..].chunks_exact(8).take(number(&block[4..]));
        entries.map(|entry| block[number(&entry[4..])]).collect::<Vec<_>>()
    });
    let (dense, once): (Vec<u8>, Vec<u8>) = firsts.partition(|first| first >> 4 == 0);
    (dense.len(), once.len())
}

/// A heap that is encrypted, or not.
struct Kind<const ENCRYPTED: bool>;

impl<const ENCRYPTED: bool> Kind<ENCRYPTED> {
    fn open(path: &Path) -> DurableHeap {
        let key = format!(",encrypt:{}", folder().join("key").display());
        let options = format!("{OPTIONS}{}", if ENCRYPTED { &key } else { "" });
        let options = DurableOptions::parse(&options).expect("settings");
        DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"))
    }

    fn check_file(path: &Path) {
        let key = folder().join("key");
        let file = || HeapFile::with_key_file(path, ENCRYPTED.then_some(&*key)).expect("a key");
        let found = inspect::fsck(file()).expect("a heap");
        assert!(found.report.is_clean() && found.contradiction.is_none(), "{found:?}");
        assert!(repair::repair(file()).expect("a heap").is_none(), "it was to be repaired");
    }

    fn fill_and_close(path: &Path) {
        std::fs::write(folder().join("key"), "0123456789abcdef".repeat(4)).expect("a file");
        let heap = Self::open(path);
        let memory = heap.malloc(PAGES * PAGE);
        heap.set_root("text", memory).expect("a root");
        write(memory, 0..PAGES, 0);
        // SAFETY: nobody uses it any more.
        unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
        let (dense, once) = compressed_pages_in(path);
        eprintln!("{dense} dense pages in the file, {once} others");
        assert_eq!(dense > PAGES / 16, !ENCRYPTED, "what is this test of?");
    }

    fn change_and_crash(path: &Path) {
        Self::check_file(path);
        let heap = Self::open(path);
        let memory = heap.root("text");
        check(memory, 0..PAGES, 0);
        write(memory, 0..CHANGED, 1);
        heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
        // After the checkpoint: nobody will see it.
        write(memory, 0..PAGES, 2);
        // SAFETY: ends the process, as it is.
        unsafe { libc::_exit(0) };
    }

    fn check_what_is_left(path: &Path) {
        Self::check_file(path);
        let heap = Self::open(path);
        let memory = heap.root("text");
        check(memory, 0..CHANGED, 1);
        check(memory, CHANGED..PAGES, 0);
        // SAFETY: nobody uses it any more.
        unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
        Self::check_file(path);
    }

    fn play(name: &str) {
        play_in_turn(
            name,
            CONF,
            &[Self::fill_and_close, Self::change_and_crash, Self::check_what_is_left],
        );
    }
}

#[test]
fn pages_that_were_compressed_twice_are_there_in_the_next_process_and_after_a_crash() {
    Kind::<false>::play(
        "pages_that_were_compressed_twice_are_there_in_the_next_process_and_after_a_crash",
    );
}

#[test]
fn pages_that_were_compressed_twice_come_back_from_an_encrypted_heap() {
    Kind::<true>::play("pages_that_were_compressed_twice_come_back_from_an_encrypted_heap");
}

#[test]
fn a_reader_with_little_ram_reads_pages_that_were_compressed_twice() {
    play_in_turn(
        "a_reader_with_little_ram_reads_pages_that_were_compressed_twice",
        CONF,
        &[Kind::<false>::fill_and_close, |path| {
            let options = DurableOptions::parse("ram:16M,readonly,compress:off").expect("settings");
            let heap = DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"));
            check(heap.root("text"), 0..PAGES, 0);
        }],
    );
}

#[test]
fn a_heap_of_the_version_before_opens_and_has_this_version_after_its_next_checkpoint() {
    const SUPERBLOCKS: [usize; 2] = [0, 64 << 10];
    play_in_turn(
        "a_heap_of_the_version_before_opens_and_has_this_version_after_its_next_checkpoint",
        CONF,
        &[
            |path| {
                let heap = Kind::<false>::open(path);
                let memory = heap.malloc(100 * PAGE);
                heap.set_root("text", memory).expect("a root");
                write(memory, 0..100, 0);
                // SAFETY: nobody uses it any more.
                unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
                let mut bytes = std::fs::read(path).expect("a file");
                for start in SUPERBLOCKS {
                    assert_eq!(bytes[start + 8], 4);
                    bytes[start + 8] = 3;
                    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[start..start + 4088]);
                    bytes[start + 4088..start + 4096].copy_from_slice(&sum.to_le_bytes());
                }
                std::fs::write(path, bytes).expect("a file");
            },
            |path| {
                Kind::<false>::check_file(path);
                let heap = Kind::<false>::open(path);
                check(heap.root("text"), 0..100, 0);
                write(heap.root("text"), 0..50, 1);
                heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
                // SAFETY: ends the process, as it is.
                unsafe { libc::_exit(0) };
            },
            |path| {
                let bytes = std::fs::read(path).expect("a file");
                assert!(SUPERBLOCKS.iter().any(|start| bytes[start + 8] == 4), "the newer one");
                Kind::<false>::check_file(path);
                let heap = Kind::<false>::open(path);
                check(heap.root("text"), 0..50, 1);
                check(heap.root("text"), 50..100, 0);
            },
        ],
    );
}
