//! A durable heap opens as it was saved, for reading as well; files that are no such heap are
//! refused by name.

mod model;
mod saved_heap;

use std::path::Path;
use std::sync::Arc;

use deepheap_sim::{Image, Operation, Random, Recorder, Script, SimDevice};
use deepheap_store::device::{Device, Errno};
use deepheap_store::durable::verify::{Finding, Report, verify_blocks, verify_tables};
use deepheap_store::{
    BLOCK_BYTES, DurableError, DurableFile, FileDevice, HeapShape, Identity, StoreError,
    SuperblockId, TableShape,
};
use deepheap_sys::files::direct_file::DirectFile;
use model::Sizes;
use saved_heap::{Map, OBJECTS, SavedHeap, device_len, judge, open_store, shape, stamp};

const SEGMENTS: u64 = 40;
const NAMES: u64 = 400;

/// A heap after so many checkpoints, on a device that others can open.
fn heap(device: &Arc<dyn Device>, seed: u64, sizes: Sizes, checkpoints: u32) -> SavedHeap {
    let mut heap = SavedHeap::create(device.clone(), SEGMENTS, sizes).expect("a heap");
    let mut random = Random::new(seed);
    for _ in 0..checkpoints {
        heap.work(&mut random, NAMES, if sizes == Sizes::Mixed { 40 } else { 400 }).expect("room");
        heap.checkpoint().expect("a correct device");
    }
    heap
}

fn recorder() -> (Recorder, Arc<dyn Device>) {
    let device = Recorder::over(device_len(SEGMENTS), Image::default());
    (device.clone(), Arc::new(device))
}

#[test]
fn a_heap_opens_as_it_was_saved_and_goes_on() {
    let seed = model::seed(31);
    for sizes in [Sizes::Whole, Sizes::Mixed] {
        let file = DirectFile::open_unlinked(Path::new("/var/tmp")).expect("a file");
        let file = FileDevice::new(file).expect("a device");
        let (_, in_memory) = recorder();
        for device in [Arc::new(file) as Arc<dyn Device>, in_memory] {
            let mut map = heap(&device, seed, sizes, 3).model.map;
            for round in 0..4 {
                let maps = |at| (at == 4 + round).then(|| map.clone());
                let mut heap = judge(device.clone(), sizes, maps).expect("as it was saved");
                assert!(heap.file.memory_bytes() < 64 << 10);
                heap.work(&mut Random::new(seed + round), NAMES, 60).expect("room");
                heap.checkpoint().expect("a correct device");
                map = heap.model.map;
            }
        }
    }
}

#[test]
fn a_heap_that_was_never_saved_is_empty() {
    let (_, device) = recorder();
    let heap = SavedHeap::create(device.clone(), SEGMENTS, Sizes::Whole).expect("a heap");
    let identity = heap.file.identity().clone();
    let heap = judge(device, Sizes::Whole, |at| (at == 1).then(Map::new)).expect("empty");
    assert_eq!(*heap.file.identity(), identity);
    assert_eq!(*heap.file.shape(), shape(SEGMENTS));
    assert_eq!(heap.file.expect_tables(&shape(SEGMENTS).tables), Ok(()));
    let other = heap.file.expect_tables(&shape(SEGMENTS + 9).tables);
    assert_eq!(other, Err(DurableError::OtherTables));
}

#[test]
fn a_device_that_refuses_writes_can_be_opened_to_be_read() {
    let device = SimDevice::new(device_len(SEGMENTS), 1);
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    let map = heap(&shared, model::seed(32), Sizes::Mixed, 3).model.map;
    let changes = [Operation::Write, Operation::Sync, Operation::Discard, Operation::Reserve];
    for operation in changes {
        let errno = Errno::EROFS;
        device.add_script(Script { operation, nth: 0, for_ever: true, errno });
    }
    let heap = SavedHeap::open_to_read(shared.clone(), Sizes::Mixed).expect("it is readable");
    assert_eq!((&heap.model.map, heap.model.check_everything()), (&map, 0));
    assert_eq!(device.faults(), 0, "nothing was written");
    let mut report = verify_tables(shared.clone(), None).expect("it is readable");
    verify_blocks(&heap.model.store, &mut report).expect("memory");
    assert!(report.is_clean() && report.pages > 10 && report.blocks > 20, "{report:?}");
    // What it was opened at could still be lost, so nothing may be built on it.
    let refused = SavedHeap::open(shared, Sizes::Mixed).map(drop);
    assert_eq!(refused, Err(DurableError::Io(Errno::EROFS)));
}

#[test]
fn a_checkpoint_writes_what_changed_and_little_more() {
    let (device, shared) = recorder();
    let mut heap = heap(&shared, model::seed(33), Sizes::Whole, 3);
    let mut saving = heap.file.begin().expect("memory");
    let zeros = [0; BLOCK_BYTES];
    saving.page(OBJECTS, 299, &zeros).expect("nothing is written");
    assert_eq!(saving.changed_bytes(), 0, "zeros that were never saved cost nothing");
    saving.page(OBJECTS, 298, &[7; BLOCK_BYTES]).expect("memory");
    saving.page(OBJECTS, 298, &[7; BLOCK_BYTES]).expect("memory");
    assert_eq!(saving.changed_bytes(), BLOCK_BYTES as u64);
    saving.page(OBJECTS, 298, &[8; BLOCK_BYTES]).expect("the last one counts");
    let before = device.events().len();
    saving.commit(stamp(&heap.model.map, 1)).expect("a correct device");
    let written = &device.events()[before..];
    // The page, two index pages above it, the superblock, two syncs.
    assert!(written.len() <= 6, "{}", written.len());
    let reopened = DurableFile::open(shared, None).expect("a heap");
    let mut seen = None;
    reopened
        .load_table(OBJECTS, &mut |page, bytes| {
            if page == 298 {
                seen = Some(bytes[0]);
            }
            Ok(())
        })
        .expect("a heap");
    assert_eq!(seen, Some(8));
}

#[test]
fn a_checkpoint_that_is_given_up_never_was() {
    let (_, shared) = recorder();
    let mut heap = heap(&shared, model::seed(34), Sizes::Whole, 3);
    let (map, checkpoint) = (heap.model.map.clone(), heap.file.checkpoint());
    for byte in 1..4 {
        let mut saving = heap.file.begin().expect("memory");
        for page in 0..saved_heap::OBJECTS_PAGES {
            saving.page(OBJECTS, page, &[byte; BLOCK_BYTES]).expect("a correct device");
        }
        drop(saving);
        assert_eq!(saved_heap::load_map(&heap.file), Ok(map.clone()), "in this process");
        let maps = |at| (at == checkpoint).then(|| map.clone());
        judge(shared.clone(), Sizes::Whole, maps).map(drop).expect("in the next one");
    }
    heap.work(&mut Random::new(1), NAMES, 100).expect("room");
    assert_eq!(heap.checkpoint(), Ok(checkpoint + 1));
    let map = heap.model.map;
    judge(shared, Sizes::Whole, |_| Some(map.clone())).map(drop).expect("as it was saved");
}

#[test]
fn a_store_full_of_what_a_checkpoint_needs_says_so_and_the_next_one_frees_it() {
    const FEW: u64 = 12;
    let (_, shared) = recorder();
    let mut heap = SavedHeap::create(shared.clone(), FEW, Sizes::Whole).expect("a heap");
    for name in 0..300 {
        heap.model.put(name).expect("room");
    }
    heap.checkpoint().expect("a correct device");
    let mut heap = SavedHeap::open(shared, Sizes::Whole).expect("a heap");
    // What is written again leaves dead blocks in segments that are withheld: they win nothing.
    let full = (0..10_000).find_map(|at| heap.model.put(at % 300).err());
    assert_eq!(full, Some(StoreError::Full));
    let stats = heap.model.store.stats();
    assert!(stats.segments_withheld > 0 && heap.model.store.is_pinned(), "{stats:?}");
    assert_eq!(heap.model.check_everything(), 0);
    let mut checkpoints = 0;
    for at in 0..3000 {
        // Dead blocks that lie among living ones are won back as well.
        if heap.model.put(at * 7 % 300) == Err(StoreError::Full) {
            heap.checkpoint().expect("a correct device");
            checkpoints += 1;
            heap.model.put(at * 7 % 300).expect("there is room again");
        }
    }
    assert!((10..300).contains(&checkpoints), "{checkpoints}");
    let stats = heap.model.store.stats();
    assert!(stats.segments_collected > 0, "{stats:?}");
    assert_eq!(heap.model.check_everything(), 0);
    heap.model.store.check_invariants();
}

#[test]
fn writes_at_random_never_leave_a_log_full_of_its_last_checkpoint() {
    let seed = model::seed(37);
    for (segments, of_all) in [16, 48, 160].into_iter().flat_map(|it| [2, 4, 16].map(|of| (it, of)))
    {
        let device = Recorder::over(device_len(segments), Image::default());
        let mut heap = SavedHeap::create(Arc::new(device), segments, Sizes::Whole).expect("a heap");
        let names = heap.model.store.stats().reservable_blocks;
        heap.model.store.reserve(names).expect("all that is reservable");
        let changed_blocks = (names / of_all).min(segments * 63 / 8);
        heap.model.store.keep_for_checkpoint(changed_blocks * 5 / 4 * BLOCK_BYTES as u64);
        (0..names).try_for_each(|name| heap.model.put(name)).expect("reserved");
        let mut random = Random::new(seed + segments + of_all);
        let mut any = move || random.below(names);
        let mut refused = 0;
        for number in 0..40 {
            let changed: Vec<u64> = (0..changed_blocks).map(|_| any()).collect();
            heap.checkpoint_of(&changed).unwrap_or_else(|error| {
                panic!("{number} of {segments} segments, one of {of_all}: {error}")
            });
            // As much as there is room for, and some room there is.
            let written = (0..names / 2).take_while(|_| heap.model.put(any()).is_ok()).count();
            refused += u64::from((written as u64) < names / 2);
            assert!(written > 0, "{number} of {segments} segments, one of {of_all}");
        }
        heap.model.store.check_invariants();
        assert_eq!(heap.model.check_everything(), 0);
        println!(
            "{segments} segments, {names} blocks, one of {of_all}: {refused} of 40 times full"
        );
    }
}

#[test]
fn a_reopened_log_keeps_its_promises_of_space() {
    let (_, shared) = recorder();
    let map = heap(&shared, model::seed(35), Sizes::Whole, 3).model.map;
    let heap = judge(shared, Sizes::Whole, |_| Some(map.clone())).expect("as it was saved");
    let store = &heap.model.store;
    assert_eq!(store.stats().live_blocks, map.len() as u64);
    store.reserve(store.room()).expect("there is room");
    assert_eq!(store.reserve(1), Err(StoreError::Full));
    assert!(store.stats().segments_free > 0, "space was assured");
    store.check_invariants();
}

#[test]
fn what_is_no_heap_is_refused_by_name() {
    let device = |image: &Image| -> Arc<dyn Device> {
        Arc::new(Recorder::over(device_len(SEGMENTS), image.clone()))
    };
    let open = |image: &Image| DurableFile::open(device(image), None).map(drop);
    assert_eq!(open(&Image::default()), Err(DurableError::NotAHeap));
    let small = Arc::new(Recorder::over(4096, Image::default()));
    assert!(matches!(DurableFile::open(small, None).map(drop), Err(DurableError::Io(_))));

    let (recorder, shared) = recorder();
    let log_start = heap(&shared, model::seed(36), Sizes::Whole, 2).file.log_start();
    let good = recorder.image();
    assert_eq!(open(&good), Ok(()));
    let mut damaged = good.clone();
    damaged.flip(3000, 1);
    damaged.flip((64 << 10) + 3000, 1);
    assert_eq!(open(&damaged), Err(DurableError::SuperblocksDamaged));
    let cut_off = Arc::new(Recorder::over(log_start + (1 << 20), good));
    let error = DurableFile::open(cut_off, None).map(drop);
    assert!(matches!(error, Err(DurableError::Truncated { .. })), "{error:?}");
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let good = shape(SEGMENTS);
    let table = |id, pages| TableShape { id, pages };
    let create = |shape: HeapShape| {
        let (_, device) = recorder();
        DurableFile::create(device, shape, Identity::random(), stamp(&Map::new(), 0), None)
            .map(drop)
    };
    assert_eq!(create(good.clone()), Ok(()));
    for tables in [
        vec![],
        vec![table(1, 0)],
        vec![table(1, 1), table(1, 2)],
        vec![table(1, 1 << 30), table(2, 1)],
        (0..65).map(|id| table(id, 1)).collect(),
    ] {
        let error = create(HeapShape { tables, ..good.clone() });
        assert!(matches!(error, Err(DurableError::Shape(_))), "{error:?}");
    }
    let error = create(HeapShape { segment_bytes: 4096, ..good.clone() });
    assert!(matches!(error, Err(DurableError::Store(StoreError::Options(_)))), "{error:?}");
    let error = create(HeapShape { capacity_bytes: 1 << 40, ..good });
    assert!(matches!(error, Err(DurableError::Truncated { .. })), "{error:?}");
}

#[test]
fn what_is_not_on_the_device_yet_is_not_saved() {
    let (_, shared) = recorder();
    let mut heap = heap(&shared, model::seed(37), Sizes::Whole, 1);
    heap.model.put(1).expect("room");
    let saved = heap.model.store.save(Default::default(), &mut |_, _, _| panic!("a page"));
    assert_eq!(saved, Err(DurableError::Store(StoreError::Unwritten)));
}

/// Opens the heap and reads everything that it has.
fn read_all(image: &Image, maps: impl Fn(u64) -> Option<Map>) -> Result<(), String> {
    let device = Arc::new(Recorder::over(device_len(SEGMENTS), image.clone()));
    judge(device, Sizes::Mixed, maps).map(drop)
}

fn report(image: &Image) -> Report {
    let device: Arc<dyn Device> = Arc::new(Recorder::over(device_len(SEGMENTS), image.clone()));
    let mut report = verify_tables(device.clone(), None).expect("a superblock is left");
    if report.findings.iter().all(|finding| matches!(finding, Finding::Superblock(_))) {
        let file = DurableFile::open(device, None).expect("a heap");
        let (store, _) = open_store(&file).expect("a store");
        verify_blocks(&store, &mut report).expect("memory");
    }
    report
}

/// Every byte of everything before the log, or with DEEPHEAP_FLIPS=all every one indeed.
#[test]
fn a_flipped_byte_is_found_or_harmless() {
    let seed = model::seed(38);
    let is_whole = std::env::var("DEEPHEAP_FLIPS").is_ok_and(|wanted| wanted == "all");
    let (device, shared) = recorder();
    let mut maps: Vec<Option<Map>> = vec![None, Some(Map::new())];
    let mut heap = SavedHeap::create(shared, SEGMENTS, Sizes::Mixed).expect("a heap");
    let mut random = Random::new(seed);
    for _ in 0..4 {
        heap.work(&mut random, NAMES, 25).expect("room");
        heap.checkpoint().expect("a correct device");
        maps.push(Some(heap.model.map.clone()));
    }
    let (image, last) = (device.image(), heap.file.checkpoint());
    let log_start = heap.file.log_start();
    let pages: Vec<u64> =
        image.pages().into_iter().filter(|page| page * 4096 < log_start).collect();
    let (mut flips, mut found, mut fallbacks) = (0, 0, 0);
    for page in pages {
        let some: Vec<u64> = match is_whole {
            true => (0..4096).collect(),
            false => (0..24).map(|_| random.below(4096)).collect(),
        };
        for at in some {
            let mut image = image.clone();
            image.flip(page * 4096 + at, 1 << random.below(8));
            flips += 1;
            // A superblock is lost; the other one tells of the checkpoint before.
            let is_superblock = page * 4096 < 1 << 20;
            let lowest = if is_superblock { last - 1 } else { last };
            let right = |at: u64| (at >= lowest).then(|| maps[at as usize].clone()).flatten();
            let judged = read_all(&image, right);
            assert!(!is_superblock || judged.is_ok(), "{judged:?}");
            let report = report(&image);
            match judged {
                Ok(()) if is_superblock => {
                    fallbacks += 1;
                    let expected = match page {
                        0 => Finding::Superblock(SuperblockId::A),
                        16 => Finding::Superblock(SuperblockId::B),
                        copy => Finding::Birth(copy * 4096),
                    };
                    assert_eq!(report.findings, [expected]);
                }
                // What the last checkpoint does not use.
                Ok(()) => assert!(report.is_clean(), "{report:?}"),
                Err(error) => {
                    found += 1;
                    assert!(error.contains("damaged"), "{error}");
                    assert!(!report.is_clean(), "{error}");
                }
            }
        }
    }
    println!("{flips} flips: {found} found, {fallbacks} of superblocks");
    assert!(found > flips / 4 && fallbacks > 0);
}

#[test]
fn damaged_blocks_are_found_by_verify() {
    let (device, shared) = recorder();
    let heap = heap(&shared, model::seed(39), Sizes::Whole, 3);
    let log_start = heap.file.log_start();
    let blocks: Vec<_> = heap.model.map.values().map(|held| held.block).take(5).collect();
    let mut image = device.image();
    for block in &blocks {
        image.flip(log_start + block.0 as u64 * 4096 + 77, 4);
    }
    let report = report(&image);
    for &block in &blocks {
        assert!(report.findings.contains(&Finding::Block(block)), "{report:?}");
    }
    assert_eq!(report.findings.len(), blocks.len());
}
