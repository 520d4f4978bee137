//! Writers, readers, a collector and writer threads at the same time: every read is right, every
//! thread gets on.

mod model;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deepheap_sim::{Fault, Random, SimDevice};
use deepheap_store::{
    BLOCK_UNITS, ContentHash, Device, FileDevice, Head, Store, StoreError, VictimPolicy,
};
use deepheap_sys::aligned_buffer::AlignedBuffer;
use deepheap_sys::direct_file::DirectFile;
use model::{Held, Page, SEGMENT_BYTES, Seen, options};

const SEGMENTS: u64 = 64;
const NAMES: u64 = 1800;
const EVICTORS: u64 = 2;

/// The table of objects: who holds an object's lock holds its block.
struct Table {
    objects: Vec<Mutex<Option<Held>>>,
    versions: AtomicU64,
    done: AtomicBool,
    /// Evicting threads that have not ended: they may wait for the collector.
    evicting: AtomicU64,
    full: AtomicU64,
    reads: AtomicU64,
}

impl Table {
    fn new() -> Self {
        Self {
            objects: (0..NAMES).map(|_| Mutex::new(None)).collect(),
            versions: AtomicU64::new(1),
            done: AtomicBool::new(false),
            evicting: AtomicU64::new(EVICTORS),
            full: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }
    }

    fn lock(&self, name: u64) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.objects[name as usize].lock().expect("no thread panicked")
    }

    fn evict(&self, store: &Store, random: &mut Random) {
        while !self.done.load(Ordering::Relaxed) {
            let mut writer = match store.writer(Head::Fresh) {
                Ok(writer) => writer,
                Err(StoreError::Full) => {
                    self.full.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            for _ in 0..writer.room().min(40) {
                let name = random.below(NAMES);
                let version = self.versions.fetch_add(1, Ordering::Relaxed);
                let page = Page::of(name, version);
                let hash = ContentHash::of(&page.0);
                let mut object = self.lock(name);
                let block = writer.append(name, &page.0, hash);
                let new = Held { block, version };
                if let Some(old) = object.replace(new) {
                    store.retire(old.block, BLOCK_UNITS);
                }
            }
        }
        self.evicting.fetch_sub(1, Ordering::Relaxed);
    }

    fn read(&self, store: &Store, random: &mut Random) {
        while !self.done.load(Ordering::Relaxed) {
            let name = random.below(NAMES);
            let some = if random.once_in(4) { 20 } else { 1 };
            let guards: Vec<_> =
                (name..NAMES.min(name + some)).map(|name| self.lock(name)).collect();
            let named = guards.iter().zip(name..);
            let held: Vec<_> =
                named.filter_map(|(guard, name)| guard.map(|held| (name, held))).collect();
            for seen in model::check_all(store, &held) {
                assert_eq!(seen, Seen::Right);
            }
            self.reads.fetch_add(held.len() as u64, Ordering::Relaxed);
        }
    }

    fn collect(&self, store: &Store) {
        let mut buffer = AlignedBuffer::new(store.segment_bytes(), 0).expect("memory");
        while self.evicting.load(Ordering::Relaxed) > 0 {
            store.wait_for_work(None);
            let Some(victim) = store.victim() else { continue };
            let Ok(objects) = victim.load(buffer.as_mut_slice()) else { continue };
            for object in objects {
                if self.lock(object.name).is_none_or(|held| held.block != object.block) {
                    continue;
                }
                let mut writer = store.writer(Head::Survivor).expect("survivors go on");
                let mut entry = self.lock(object.name);
                let Some(held) = entry.as_mut().filter(|held| held.block == object.block) else {
                    continue;
                };
                // The device flips bits: the object stays where it is.
                let Ok(hash) = object.verify() else { continue };
                let new = writer.append(object.name, object.data, hash);
                store.retire(held.block, BLOCK_UNITS);
                held.block = new;
            }
            store.release(victim);
        }
    }
}

fn stress(store: &Store, seed: u64, time: Duration) {
    let table = Table::new();
    store.reserve(NAMES).expect("room");
    std::thread::scope(|scope| {
        for number in 0..EVICTORS {
            let table = &table;
            scope.spawn(move || table.evict(store, &mut Random::new(seed + number)));
            scope.spawn(move || table.read(store, &mut Random::new(seed + 100 + number)));
        }
        scope.spawn(|| table.collect(store));
        scope.spawn(|| while store.write_sealed(true) || !table.done.load(Ordering::Relaxed) {});
        let start = Instant::now();
        while start.elapsed() < time {
            // A fork may happen at any time: freezing must not deadlock.
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(1));
                drop(store.freeze());
            }
            store.discard_idle();
            let pin = store.pin_all().expect("few pins");
            store.unpin(pin);
        }
        table.done.store(true, Ordering::Relaxed);
        store.stop_waiting();
    });
    store.check_invariants();
    let stats = store.stats();
    let held = (0..NAMES).filter_map(|name| table.lock(name).map(|held| (name, held)));
    let held: Vec<_> = held.collect();
    assert_eq!(stats.live_blocks, held.len() as u64);
    for seen in held.chunks(32).flat_map(|some| model::check_all(store, some)) {
        assert_eq!(seen, Seen::Right);
    }
    println!(
        "{} reads, {} full, {stats:?}",
        table.reads.load(Ordering::Relaxed),
        table.full.load(Ordering::Relaxed)
    );
    assert!(stats.segments_collected > 0, "{stats:?}");
    assert_eq!(table.full.load(Ordering::Relaxed), 0, "what is reserved is never refused");
}

fn open(device: Box<dyn Device>, policy: VictimPolicy) -> Store {
    Store::open(device, options(SEGMENTS, policy)).expect("a store")
}

#[test]
fn all_threads_see_what_they_should_on_a_simulated_device() {
    let seed = model::seed(31);
    let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, seed);
    for fault in [Fault::ReadFlipped, Fault::ReadRefused, Fault::ReadStale] {
        // Rare enough that a second read is right; a corrupt directory only delays collection.
        device.set_chance(fault, 20_000);
    }
    device.set_delay(Some(Duration::from_micros(50)));
    let store = open(Box::new(device), VictimPolicy::Greedy);
    stress(&store, seed, Duration::from_secs(3));
}

#[test]
fn all_threads_see_what_they_should_on_a_file() {
    let seed = model::seed(32);
    let file = DirectFile::open_unlinked(Path::new("/var/tmp")).expect("a file");
    let device = FileDevice::new(file).expect("a device");
    let store = open(Box::new(device), VictimPolicy::CostBenefit);
    stress(&store, seed, Duration::from_secs(3));
}
