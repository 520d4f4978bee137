//! Tests: the power fails at every write and sync of what a real map asked of its file.
//!
//! A map is used in this process; what it writes and syncs is recorded. Then a simulated medium is
//! crashed at every point of that, with every kind of loss, and the production code recovers it:
//! what a sync that returned had committed is there, and nothing that no sync was asked for. The
//! recovery is crashed, too. So is the one of a map whose processes were killed: what it reads is
//! not all durable.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Once, PoisonError};

use deepheap_sim::{Event, Loss, Medium, Random, Recorder};
use deepheap_store::device::{Device, Read};
use deepheap_store::{MapLog, MapLogError};
use deepheap_sys::PAGE;
use deepheap_sys::faults::fault_signal;
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use deepheap_sys::memory::pagemap::is_present;

use crate::calls::{access, table};
use crate::region::Region;
use crate::region::join::Request;
use crate::strict_tests;
use crate::tables::control::{ENTRIES, Writes};
use crate::tables::ownership::Owned;

pub(crate) mod tap;

use tap::note;

static ALONE: Mutex<()> = Mutex::new(());
static INSTALL: Once = Once::new();

const PAGES: usize = 1600;
const RAM: u64 = 2 << 20;

/// A map of its own file, ended and removed with it.
struct Mapped {
    at: *mut u8,
    path: PathBuf,
}

impl Mapped {
    fn new(name: &str) -> Mapped {
        INSTALL.call_once(|| fault_signal::install(table::on_fault).expect("a handler"));
        let name = format!("deepheap-log-{}-{name}", std::process::id());
        let path = PathBuf::from("/var/tmp").join(name);
        let _ = std::fs::remove_file(&path);
        Mapped { at: Self::open(&path), path }
    }

    fn open(path: &std::path::Path) -> *mut u8 {
        let length = (PAGES * PAGE) as u64;
        let request = Request { path, length, writes: true, budget_bytes: RAM };
        table::open(&request, Writes::Log).expect("a map")
    }

    fn word(&self, page: usize, word: usize) -> &AtomicU64 {
        // SAFETY: a word of the map, aligned.
        unsafe { AtomicU64::from_ptr(self.at.add(page * PAGE + word * 8).cast()) }
    }

    fn region(&self) -> &'static Region {
        table::find(self.at as usize).expect("a map")
    }

    fn check(&self) {
        strict_tests::check_invariants(self.at).expect("tables and RAM agree");
    }
}

/// Every page in RAM is as it was logged.
fn check_logged(owned: &Owned<'_>) {
    let mut bytes = [0u8; PAGE];
    for (entry, page) in (0..ENTRIES).filter_map(|at| Some((at, owned.page(at)?))) {
        // SAFETY: a page of ours.
        let hash = unsafe {
            let into = bytes.as_mut_ptr();
            owned.region.memory.read_page(into, Region::offset_of(page)).expect("a page");
            owned.region.hash(into)
        };
        assert_eq!(hash, owned.hash(entry), "page {page}");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the tests' borrows have ended.
        unsafe { table::close(self.at) }.expect("it ends");
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Words that are not 0, by page and number.
type Model = BTreeMap<(u32, u32), u64>;

/// What a workload asked of the file, and what each sync was to commit.
struct Recorded {
    len: u64,
    events: Vec<Event>,
    /// By its number: what is committed once it has returned. The first is the empty file.
    states: Vec<Model>,
}

/// Notes that sync `number` begins, or has returned.
const fn begun(number: usize) -> u64 {
    2 * number as u64
}

const fn done(number: usize) -> u64 {
    2 * number as u64 + 1
}

/// Stores and syncs by chance; syncs of parts and folding among them.
fn record(seed: u64) -> Recorded {
    tap::begin();
    note(Event::Mark(begun(0)));
    let map = Mapped::new(&format!("crash-{seed}"));
    note(Event::Mark(done(0)));
    let len = std::fs::metadata(&map.path).expect("a file").len();
    let mut random = Random::new(seed);
    let (mut now, mut committed) = (Model::new(), Model::new());
    let mut states = vec![Model::new()];
    for round in 0..8 {
        for _ in 0..random.below(260) {
            // Some pages are changed all the time, most seldom.
            let page = match random.once_in(3) {
                true => random.below(8),
                false => random.below(PAGES as u64),
            };
            let (word, value) = (random.below(512), random.below(1 << 40));
            map.word(page as usize, word as usize).store(value, Relaxed);
            now.insert((page as u32, word as u32), value);
        }
        let pages = match random.once_in(4) {
            true => {
                let first = random.below(PAGES as u64 - 1) as u32;
                first..first + 1 + random.below(PAGES as u64 - u64::from(first)) as u32
            }
            false => 0..PAGES as u32,
        };
        committed.retain(|(page, _), _| !pages.contains(page));
        committed.extend(now.iter().filter(|((page, _), _)| pages.contains(page)));
        states.push(committed.clone());
        note(Event::Mark(begun(states.len() - 1)));
        let at = map.at.wrapping_add(pages.start as usize * PAGE);
        access::sync(at, pages.len() * PAGE).expect("it is committed");
        note(Event::Mark(done(states.len() - 1)));
        if round % 3 == 2 {
            let region = map.region();
            region.log().expect("a log").fold_all();
        }
    }
    map.check();
    let events = tap::end();
    drop(map);
    Recorded { len, events, states }
}

/// What the base of a recovered file holds.
fn read_base(device: &Recorder, log: &MapLog) -> Model {
    let mut model = Model::new();
    let mut buffer = AlignedBuffer::new(PAGE, 0).expect("memory");
    let shape = log.superblock.shape;
    // Other pages are zeros.
    let first = shape.base_start() / PAGE as u64;
    let pages = device.image().pages().into_iter().filter_map(|page| page.checked_sub(first));
    for page in pages.map(|page| page as u32) {
        let place = shape.place_of_page(page);
        let mut reads = [Read::new(place, buffer.as_mut_slice())];
        device.read(&mut reads);
        assert_eq!(reads[0].result, Ok(()));
        for (number, word) in reads[0].buf.chunks(8).enumerate() {
            let value = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            if value != 0 {
                model.insert((page, number as u32), value);
            }
        }
    }
    model
}

fn without_zeros(model: &Model) -> Model {
    model.iter().filter(|(_, value)| **value != 0).map(|(key, value)| (*key, *value)).collect()
}

/// Recovers what a crash or a kill has left, and crashes one recovery of so many, too.
fn recover(
    len: u64,
    mut medium: Medium,
    crashes_one_in: u64,
    random: &mut Random,
) -> core::result::Result<Model, MapLogError> {
    let device = Recorder::over(len, medium.crash(Loss::Nothing, random));
    let mut log = MapLog::open(&device)?;
    log.recover(&device, 1)?;
    if random.once_in(crashes_one_in) {
        let events = device.events();
        for event in &events[..random.below(events.len() as u64 + 1) as usize] {
            medium.apply(event);
        }
        let loss = Loss::ALL[random.below(Loss::ALL.len() as u64) as usize];
        return recover(len, Medium::over(medium.crash(loss, random)), 3, random);
    }
    Ok(read_base(&device, &log))
}

#[test]
fn a_crash_at_any_write_or_sync_leaves_a_whole_commit() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = std::env::var("DEEPHEAP_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut points = 0;
    for seed in seed..=seed {
        println!("DEEPHEAP_SEED={seed}");
        let recorded = record(seed);
        let mut random = Random::new(seed);
        let mut medium = Medium::default();
        // What had returned, and what was begun.
        let (mut returned, mut last) = (None, 0);
        let states: Vec<Model> = recorded.states.iter().map(without_zeros).collect();
        for (at, event) in recorded.events.iter().enumerate() {
            medium.apply(event);
            if let Event::Mark(mark) = event {
                last = (mark / 2) as usize;
                if mark % 2 == 1 {
                    returned = Some(last);
                }
            }
            // Two kinds of loss at each point, all of them at any three in a row; and processes
            // are killed, and the power fails while the next one recovers what they have left.
            for turn in 0..4 {
                let loss = Loss::ALL[(2 * at + turn) % Loss::ALL.len()];
                points += 1;
                let (left, crashes_one_in) = match turn {
                    0 | 1 => (Medium::over(medium.crash(loss, &mut random)), 3),
                    _ => (medium.clone(), 1),
                };
                match recover(recorded.len, left, crashes_one_in, &mut random) {
                    Ok(found) => {
                        let first = returned.unwrap_or(0);
                        let is_right = states[first..=last].contains(&found);
                        assert!(is_right, "seed {seed}, event {at}, {loss:?}, {first}..={last}");
                    }
                    // Before it was made there need not be one.
                    Err(error) => assert_eq!(returned, None, "seed {seed}, event {at}: {error}"),
                }
            }
        }
    }
    println!("{points} points");
    assert!(points > 500, "{points} points");
}

#[test]
fn pages_that_are_changed_all_the_time_do_not_keep_the_log_from_being_folded() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let map = Mapped::new("hot");
    let log = map.region().log().expect("a log");
    let mut starts = Vec::new();
    for round in 1..20u64 {
        map.word(3, 5).store(round, Relaxed);
        map.word(round as usize * 11, 9).store(round, Relaxed);
        access::sync(map.at, 0).expect("it is committed");
        map.word(3, 5).store(round << 32, Relaxed);
        log.fold_all();
        starts.push(log.words.start.load(Relaxed));
    }
    starts.dedup();
    assert!(starts.len() > 5, "the log begins later and later: {starts:?}");
    map.check();
}

#[test]
fn a_commit_looks_only_at_what_was_written_and_misses_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let map = Mapped::new("tracked");
    let log = map.region().log().expect("a log");
    let mut random = Random::new(5);
    let mut known = 0;
    for round in 1..60u64 {
        let mut pages = Vec::new();
        for _ in 0..random.below(40) {
            let page = random.below(300) as usize;
            map.word(page, 7).store(round << 16 | page as u64, Relaxed);
            pages.push(page);
        }
        // Pages leave the page tables, and RAM.
        if random.once_in(4) {
            let at = map.at.wrapping_add(random.below(200) as usize * PAGE);
            access::advise(at, 60 * PAGE, access::Advice::DontNeed).expect("they leave");
        }
        match random.once_in(5) {
            true => access::sync(map.at, 150 * PAGE).expect("it is committed"),
            false => access::sync(map.at, 0).expect("it is committed"),
        }
        access::sync(map.at, 0).expect("it is committed");
        known += u64::from(log.words.tracked.load(Relaxed) != 0);
        for owned in map.region().shards_of(0..PAGES as u32) {
            check_logged(&owned);
        }
    }
    if map.region().watch.is_tracked {
        assert!(known > 50, "{known}");
    }
    map.check();
}

#[test]
fn a_page_comes_into_no_page_table_until_it_is_touched() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let map = Mapped::new("clean");
    let region = map.region();
    if !region.watch.comes_clean {
        println!("skipped: this kernel makes its entries dirty");
        return;
    }
    map.word(3, 1).store(77, Relaxed);
    access::advise(map.at, 8 * PAGE, access::Advice::DontNeed).expect("it leaves");
    assert!(!region.is_in_memory(3));
    let _ = region.fill_many(&[2, 3]);
    assert!(region.is_in_memory(3));
    let address = region.base + 3 * PAGE;
    assert_eq!(is_present(address), Ok(false));
    let faults = access::stats(map.at).expect("a map").faults;
    assert_eq!(map.word(3, 1).load(Relaxed), 77);
    assert_eq!(is_present(address), Ok(true));
    assert_eq!(access::stats(map.at).expect("a map").faults, faults, "the kernel maps it");
    map.check();
}

#[test]
fn canary_a_log_that_loses_a_commit_is_told() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let recorded = record(77);
    let mut medium = Medium::default();
    recorded.events.iter().for_each(|event| medium.apply(event));
    medium.apply(&Event::Sync);
    let image = medium.crash(Loss::Nothing, &mut Random::new(1));
    let log = MapLog::open(&Recorder::over(recorded.len, image.clone())).expect("a file");
    let shape = log.superblock.shape;
    let device = Recorder::over(recorded.len, image.clone());
    let survey = log.survey(&device).expect("a log");
    assert!(survey.frames >= 2 && survey.commits >= 1, "{survey:?}");
    let mut damaged = image;
    damaged.flip(shape.place_of(log.superblock.start) + 40, 4);
    let device = Recorder::over(recorded.len, damaged);
    let lost = MapLogError::CommitLost { position: log.superblock.start };
    assert_eq!(log.survey(&device), Err(lost));
    let mut log = MapLog::open(&device).expect("a file");
    assert_eq!(log.recover(&device, 1), Err(lost));
    let writes = device.events();
    assert!(writes.is_empty(), "a damaged log is left as it is");
    drop(Arc::new(writes));
}

#[test]
fn a_page_that_is_asked_for_twice_at_a_time_comes_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let map = Mapped::new("twice");
    let region = map.region();
    for page in [2, 5] {
        map.word(page, 1).store(page as u64, Relaxed);
    }
    access::sync(map.at, 0).expect("synced");
    access::advise(map.at, 8 * PAGE, access::Advice::DontNeed).expect("they leave");
    let read = access::stats(map.at).expect("a map").pages_read;
    assert_eq!(region.fill_many(&[2, 5, 2, 2, 6]), Ok(0));
    assert_eq!(access::stats(map.at).expect("a map").pages_read, read + 3);
    map.check();
    assert_eq!((map.word(2, 1).load(Relaxed), map.word(5, 1).load(Relaxed)), (2, 5));
}
