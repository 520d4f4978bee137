//! `fsck --repair`: whatever page of the tables is damaged, the heap opens again, with what it
//! held.

mod scene;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use deepheap::internal::inspect;
use deepheap::internal::repair::{Repair, repair};
use deepheap::{DurableHeap, DurableOptions, free};
use scene::memory::Random;
use scene::{folder, play};

const CONF: &str = "ram:64M,store_size:512M";
const OPTIONS: &str = "ram:16M,size:1G,store_size:256M";
const PAGE: u64 = 4096;
const BOTH: [u64; 2] = [0, 1];

fn open(path: &Path) -> DurableHeap {
    let options = DurableOptions::parse(OPTIONS).expect("settings");
    DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn close(heap: DurableHeap) {
    // SAFETY: nobody uses it any more.
    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
}

/// A block of a list: bytes of `number` behind this.
#[repr(C)]
struct Node {
    next: *mut Node,
    size: usize,
    number: usize,
}

const NODES: usize = 4000;

/// A list of small blocks, runs, single objects, batched ones and one array, over two checkpoints.
fn fill(heap: &DurableHeap) {
    let mut random = Random::new(7);
    let mut last: *mut Node = std::ptr::null_mut();
    let mut spare = Vec::new();
    for number in 0..NODES {
        let size = match number % 8 {
            0..3 => size_of::<Node>() + random.below(200),
            3 | 4 => 40 + random.below(60),
            5 | 6 => 200 + random.below(9000),
            _ => 20_000 + random.below(30_000),
        };
        let memory = match number % 2 {
            0 => heap.malloc(size),
            _ => heap.allocate_objects(1, size),
        };
        assert!(!memory.is_null(), "block {number}");
        // SAFETY: so large.
        unsafe {
            memory.write_bytes(number as u8 | 1, size);
            if number % 3 == 0 {
                spare.push(memory);
                continue;
            }
            memory.cast::<Node>().write(Node { next: last, size, number });
        }
        last = memory.cast();
        if number == NODES / 2 {
            heap.set_root("list", last.cast()).expect("a root");
            heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
        }
    }
    // SAFETY: live, and nobody else's.
    spare.into_iter().for_each(|memory| unsafe { free(memory) });
    let array = heap.allocate_objects(300, 5000);
    // SAFETY: so large.
    (0..300).for_each(|at| unsafe { array.add(at * 8192).write(at as u8) });
    heap.set_root("array", array).expect("a root");
    heap.set_root("list", last.cast()).expect("a root");
}

/// Reads the list to its end; how many blocks it has.
fn count(heap: &DurableHeap) -> usize {
    let mut node: *const Node = heap.root("list").cast();
    let mut count = 0;
    while !node.is_null() {
        // SAFETY: what the list holds, by its own sizes.
        unsafe {
            let Node { next, size, number } = node.read();
            let bytes = std::slice::from_raw_parts(node.cast::<u8>(), size);
            let rest = &bytes[size_of::<Node>()..];
            assert!(rest.iter().all(|&byte| byte == number as u8 | 1), "block {number}");
            node = next;
        }
        count += 1;
    }
    let array = heap.root("array");
    // SAFETY: the array of `fill`.
    (0..300).for_each(|at| unsafe { assert_eq!(array.add(at * 8192).read(), at as u8) });
    count
}

/// The file's pages, as the format document draws them.
struct Layout {
    /// Table, first page, pages.
    tables: Vec<(u32, u64, u64)>,
    /// The first page of each level of the index.
    levels: Vec<(u64, u64)>,
}

impl Layout {
    fn of(path: &Path) -> Layout {
        let file = File::open(path).expect("the heap");
        let mut head = [0; 4096];
        file.read_exact_at(&mut head, 0).expect("a superblock");
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| head[at + byte]));
        let mut first = 0;
        let mut tables = Vec::new();
        for table in 0..number(120) as usize {
            let (id, pages) = (number(832 + 8 * table), number(836 + 8 * table) as u64);
            tables.push((id, first, pages));
            first += pages;
        }
        let mut levels = vec![(0, first)];
        let mut pages = first;
        while pages > 1 {
            pages = pages.div_ceil(128);
            levels.push((first, pages));
            first += pages;
        }
        Layout { tables, levels }
    }

    fn offset(page: u64, slot: u64) -> u64 {
        (1 << 20) + ((page / 256) * 512 + slot * 256 + page % 256) * PAGE
    }
}

/// Spoils these slots of a page, as far as there is anything in them; whether there was.
fn spoil(path: &Path, page: u64, slots: &[u64]) -> bool {
    let file = File::options().read(true).write(true).open(path).expect("the heap");
    let mut spoilt = false;
    for &slot in slots {
        let mut bytes = [0; PAGE as usize];
        let at = Layout::offset(page, slot);
        if file.read_exact_at(&mut bytes, at).is_err() || bytes.iter().all(|&byte| byte == 0) {
            continue;
        }
        bytes[..512].fill(0x5a);
        file.write_all_at(&bytes, at).expect("a write");
        spoilt = true;
    }
    spoilt
}

fn spoil_at(path: &Path, offset: u64) {
    let file = File::options().write(true).open(path).expect("the heap");
    file.write_all_at(&[0x5a; 4096], offset).expect("a write");
}

/// Repairs a spoilt copy, opens it, and looks whether it can be used.
fn repaired(path: &Path, what: &str, is_all_there: bool) -> Repair {
    let done = repair(path).unwrap_or_else(|error| panic!("{what}: {error}"));
    let done = done.unwrap_or_else(|| panic!("{what}: nothing to repair"));
    eprintln!("{what}: {done:?}");
    let found = inspect::fsck(path).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(found.report.is_clean() && found.contradiction.is_none(), "{what}: {found:?}");
    if is_all_there {
        assert_eq!(done.lost, Vec::<String>::new(), "{what}");
    }
    for round in 0..2 {
        let heap = open(path);
        if is_all_there {
            assert_eq!(count(&heap), NODES - NODES.div_ceil(3), "{what}, round {round}");
        }
        for size in [24, 100, 3000, 100_000] {
            let (memory, object) = (heap.malloc(size), heap.allocate_objects(1, size));
            assert!(!memory.is_null() && !object.is_null(), "{what}");
            // SAFETY: so large, and nobody else's.
            unsafe {
                memory.write_bytes(1, size);
                object.write_bytes(2, size);
                free(memory);
            }
        }
        close(heap);
    }
    done
}

fn copy(from: &Path, name: &str) -> PathBuf {
    let to = folder().join(name);
    let output =
        std::process::Command::new("cp").arg("--sparse=always").arg(from).arg(&to).output();
    assert!(output.expect("cp").status.success());
    to
}

#[test]
fn whichever_page_of_the_tables_is_damaged_a_repaired_heap_opens_with_what_can_be_known() {
    const NAME: &str =
        "whichever_page_of_the_tables_is_damaged_a_repaired_heap_opens_with_what_can_be_known";
    const ROOTS: u32 = 0x300;
    const CHUNKS: u32 = 0x10c;
    play(NAME, CONF, || {
        let path = folder().join("heap");
        let heap = open(&path);
        fill(&heap);
        assert_eq!(count(&heap), NODES - NODES.div_ceil(3));
        close(heap);
        assert_eq!(repair(&path).unwrap_or_else(|error| panic!("{error}")), None);
        let layout = Layout::of(&path);
        let mut done = 0;
        for &(table, first, pages) in &layout.tables {
            for page in (first..first + pages).take(600) {
                let spoilt = copy(&path, "spoilt");
                if !spoil(&spoilt, page, &BOTH) {
                    continue;
                }
                let is_all_there = ![ROOTS, CHUNKS].contains(&table);
                let what = format!("page {} of table {table:#x}", page - first);
                let repair = repaired(&spoilt, &what, is_all_there);
                assert_eq!(repair.lost.is_empty(), is_all_there, "{what}");
                done += 1;
                break;
            }
        }
        assert!(done > 12, "{done} tables have pages");
        for (level, &(first, pages)) in layout.levels.iter().enumerate().skip(1) {
            let spoilt = copy(&path, "spoilt");
            let found = (first..first + pages).find(|&page| spoil(&spoilt, page, &BOTH));
            let what = format!("page {found:?} of level {level}");
            repaired(&spoilt, &what, false);
        }
        // The newer slot alone: the other one leads to the checkpoint before.
        let (root, _) = layout.levels[layout.levels.len() - 1];
        for slot in BOTH {
            let spoilt = copy(&path, "spoilt");
            assert!(spoil(&spoilt, root, &[slot]));
            match inspect::fsck(&spoilt) {
                Ok(found) if found.report.is_clean() => {}
                _ => drop(repaired(&spoilt, &format!("slot {slot} of the topmost page"), false)),
            }
        }
        for (places, what) in [
            (&[0][..], "superblock A"),
            (&[64 << 10], "superblock B"),
            (&[0, 64 << 10], "both superblocks"),
            (&[256 << 10, 512 << 10], "the copies of the first superblock"),
            (&[0, 64 << 10, 256 << 10], "all superblocks but one copy of the first"),
        ] {
            let spoilt = copy(&path, "spoilt");
            places.iter().for_each(|&place| spoil_at(&spoilt, place));
            repaired(&spoilt, what, true);
        }
        let spoilt = copy(&path, "spoilt");
        [0, 64, 256, 512].iter().for_each(|place| spoil_at(&spoilt, place << 10));
        let refused = repair(&spoilt).expect_err("nothing says what it is");
        eprintln!("all superblocks: {refused}");
    });
}
