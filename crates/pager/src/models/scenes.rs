//! Scenes: the protocols without locks, two or three threads each.

use std::sync::{Mutex, OnceLock};

use deepheap_heap::PageNo;
use deepheap_policy::replacement::Rank;
use deepheap_residency::ownership::{DescriptorId, Found, Glimpse, Owned, Ownership, Pin};
use deepheap_residency::page_buffer::PageBuffer;
use deepheap_residency::ranges::{RangeNo, Ranges};
use deepheap_residency::trace::{Happened, Trace};
use deepheap_store::Block;
use deepheap_sys::memory::index_pool::{GROUP, IndexPool};
use deepheap_sys::memory::zap::Zapper;
use deepheap_sys::threads::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::parking::Parking;
use deepheap_sys::threads::tls;
use deepheap_sys::threads::waits::Cause;

use super::Scene;
use crate::gate::{Gate, Level};
use crate::workers::Workers;

const PAGE: PageNo = PageNo(1);

#[test]
fn what_a_lock_guards_is_seen_by_the_next_thread_that_has_it() {
    struct Shared {
        lock: Lock<()>,
        bytes: [AtomicU32; 2],
    }
    fn count(shared: &Shared) {
        let _guard = shared.lock.lock();
        let [one, other] = shared.bytes.each_ref().map(|byte| byte.load(Relaxed));
        assert_eq!(one, other);
        shared.bytes.iter().for_each(|byte| byte.store(one + 1, Relaxed));
    }
    let scene = Scene {
        make: || Shared { lock: Lock::new(()), bytes: Default::default() },
        begin: count,
        threads: &[count, count, count],
        end: |shared| assert_eq!(shared.bytes[0].load(Relaxed), 4),
        preemptions: 2,
    };
    scene.check("lock", &["lock.state.swap(FREE", "compare_exchange(FREE, id, Acquire"]);
}

#[test]
fn a_parked_thread_is_woken_by_what_it_waits_for() {
    struct Shared {
        parking: Parking,
        is_true: AtomicU32,
    }
    let scene = Scene {
        make: || Shared { parking: Parking::new(), is_true: AtomicU32::new(0) },
        begin: |shared| shared.parking.wait_unless(|| shared.is_true.load(SeqCst) == 0),
        threads: &[
            |shared| {
                while shared.is_true.load(Relaxed) == 0 {
                    shared.parking.wait_unless(|| shared.is_true.load(SeqCst) != 0);
                }
            },
            |shared| {
                shared.is_true.store(1, SeqCst);
                shared.parking.notify(1);
            },
        ],
        end: |shared| assert_eq!(shared.parking.waiting(), 0),
        preemptions: 3,
    };
    let must = ["self.waiting.fetch_add", "self.waiting.load", "is_true.store(1, SeqCst)"];
    scene.check("parking", &must);
}

#[test]
fn nobody_is_inside_a_closed_gate() {
    struct Shared {
        gate: Gate,
        bytes: [AtomicU32; 2],
    }
    fn change(shared: &Shared) {
        let _passage = shared.gate.enter(Level::Mover);
        let next = shared.bytes[0].load(Relaxed) + 1;
        shared.bytes.iter().for_each(|byte| byte.store(next, Relaxed));
    }
    fn look(shared: &Shared) {
        shared.gate.close(Cause::Fork, || {});
        let [one, other] = shared.bytes.each_ref().map(|byte| byte.load(Relaxed));
        assert_eq!(one, other, "somebody is inside");
        shared.bytes.iter().for_each(|byte| byte.store(one + 10, Relaxed));
        shared.gate.open();
    }
    let scene = Scene {
        make: || Shared { gate: Gate::new(), bytes: Default::default() },
        begin: |shared| {
            change(shared);
            look(shared);
        },
        threads: &[change, look],
        end: |shared| assert_eq!(shared.bytes[1].load(Relaxed), 22),
        preemptions: 3,
    };
    let must = ["counter.fetch_add(1", "closed.load(", "store(1 + cause as u32", "lane.load("];
    let leave = ["counter.fetch_sub(1", "closed.store(OPEN"];
    scene.check("gate", &[must.as_slice(), &leave].concat());
}

#[test]
fn a_number_of_a_pool_has_one_holder_and_the_next_one_is_woken() {
    struct Shared {
        pool: IndexPool,
        bytes: [AtomicU32; 2],
    }
    fn hold(shared: &Shared) {
        let number = shared.pool.take(|| false);
        let [one, other] = shared.bytes.each_ref().map(|byte| byte.load(Relaxed));
        assert_eq!(one, other, "two holders");
        shared.bytes.iter().for_each(|byte| byte.store(one + 1, Relaxed));
        shared.pool.give_back(number);
    }
    let scene = Scene {
        make: || Shared { pool: IndexPool::new(1), bytes: Default::default() },
        begin: |shared| {
            (1..GROUP).for_each(|_| assert!(shared.pool.take(|| false) < GROUP));
            hold(shared);
        },
        threads: &[hold, hold],
        end: |shared| assert_eq!(shared.bytes[0].load(Relaxed), 3),
        preemptions: 2,
    };
    scene.check("index pool", &["fetch_and(!bit_of(index)"]);
}

#[test]
fn the_evictor_is_woken_when_there_is_work() {
    struct Shared {
        workers: Workers,
        page_buffer: PageBuffer,
    }
    fn evict(shared: &Shared) {
        while shared.page_buffer.pages() == 0 {
            shared.workers.wait_unless(|| shared.page_buffer.pages() > 0, None);
        }
        shared.page_buffer.unreserve(1);
    }
    fn fault(shared: &Shared) {
        shared.page_buffer.adopt(1).keep();
        shared.workers.wake_sleeping_evictor();
    }
    let scene = Scene {
        make: || Shared { workers: Workers::new(), page_buffer: PageBuffer::new(0, 1) },
        begin: |shared| {
            shared.workers.wait_unless(|| true, None);
            shared.workers.wake_evictor();
            fault(shared);
            evict(shared);
        },
        threads: &[evict, fault],
        end: |shared| assert_eq!(shared.page_buffer.pages(), 0),
        preemptions: 3,
    };
    scene.check("call of the evictor", &["self.evictor_sleeps.store(1"]);
}

struct Objects {
    ownership: Ownership,
    owned: Mutex<Option<Owned>>,
    /// The bytes of two slots.
    slots: [[AtomicU32; 2]; 2],
    /// Whatever the scene counts.
    count: AtomicU32,
}

impl Objects {
    fn new() -> Objects {
        Objects {
            ownership: Ownership::new(8, 8).expect("memory"),
            owned: Mutex::default(),
            slots: Default::default(),
            count: AtomicU32::new(0),
        }
    }

    /// All that any thread will touch.
    fn begin(&self) {
        self.slots.iter().flatten().for_each(|byte| byte.store(1, Relaxed));
        self.count.store(0, Relaxed);
        let (owned, other) = (self.claim(), self.ownership.claim_fresh(PageNo(2)));
        self.ownership.zero(other.expect("zeros"));
        let id = owned.id();
        self.ownership.arrive(owned, Rank::Probation);
        let pinned = self.ownership.try_pin(PAGE, Pin::Call).expect("resident");
        self.ownership.descriptor(pinned).drop_pin(Pin::Call);
        let owned = self.ownership.claim_resident(PAGE, id).expect("resident");
        self.ownership.zero(owned);
    }

    fn claim(&self) -> Owned {
        self.ownership.claim_fresh(PAGE).expect("zeros")
    }

    /// The object is cached, in the first slot.
    fn begin_cached(&self) {
        self.begin();
        let owned = self.claim();
        self.ownership.of(&owned).set_slot(0);
        self.ownership.cached(owned);
    }

    /// Its descriptor; the only one in use.
    fn id(&self) -> DescriptorId {
        match self.ownership.look(PAGE) {
            Found::Resident(seen) | Found::OnItsWay(seen) => seen.id(),
            Found::Cached(id) => id,
            other => panic!("{other:?}"),
        }
    }

    /// Copies the object as a call does, if it is cached.
    fn read(&self) {
        let Glimpse::Cached(seen) = self.ownership.glimpse(PAGE) else { return };
        let [one, other] = self.slots[seen.slot() as usize].each_ref().map(|at| at.load(Relaxed));
        if self.ownership.is_current(seen) {
            assert_eq!(one, other, "a mixture");
        }
    }

    /// Writes it anew into the other slot, as a call does.
    fn write(&self, value: u32) {
        let Glimpse::Cached(seen) = self.ownership.glimpse(PAGE) else { return };
        let spare = 1 - seen.slot();
        self.slots[spare as usize].iter().for_each(|at| at.store(value, Relaxed));
        assert!(self.ownership.exchange_slot(seen, spare), "nobody else changes it");
    }
}

#[test]
fn a_thread_that_waits_for_an_object_sees_it_come() {
    let scene = Scene {
        make: Objects::new,
        begin: |objects| {
            objects.begin();
            *objects.owned.lock().expect("one") = Some(objects.claim());
        },
        threads: &[
            |objects| {
                let owned = objects.owned.lock().expect("one").take().expect("owned");
                objects.slots[0][0].store(7, Relaxed);
                objects.ownership.arrive(owned, Rank::Probation);
            },
            |objects| loop {
                match objects.ownership.look(PAGE) {
                    Found::OnItsWay(seen) => objects.ownership.wait(seen),
                    Found::Resident(_) => break assert_eq!(objects.slots[0][0].load(Relaxed), 7),
                    other => panic!("{other:?}"),
                }
            },
        ],
        end: |_| {},
        preemptions: 3,
    };
    scene.check("descriptor's word", &["self.word.compare_exchange_weak(old, new"]);
}

#[test]
fn a_pinned_page_does_not_leave() {
    let scene = Scene {
        make: Objects::new,
        begin: |objects| {
            objects.begin();
            objects.ownership.arrive(objects.claim(), Rank::Probation);
        },
        threads: &[
            |objects| {
                if let Some(id) = objects.ownership.try_pin(PAGE, Pin::Call) {
                    assert_eq!(objects.count.load(Relaxed), 0, "a pinned page is gone");
                    objects.ownership.descriptor(id).drop_pin(Pin::Call);
                }
            },
            |objects| {
                let id = objects.id();
                let owned = objects.ownership.claim_resident(PAGE, id).expect("resident");
                if objects.ownership.of(&owned).is_pinned() {
                    return objects.ownership.put_back(owned);
                }
                objects.count.store(1, Relaxed);
                objects.ownership.zero(owned);
            },
        ],
        end: |_| {},
        preemptions: 3,
    };
    scene.check("pin and claim", &["self.pins.fetch_add", "self.word.compare_exchange(old.0"]);
}

#[test]
fn what_a_call_copied_is_the_object_of_one_instant_beside_an_owner() {
    let scene = Scene {
        make: Objects::new,
        begin: Objects::begin_cached,
        threads: &[Objects::read, |objects| {
            let owned = objects.ownership.claim_cached(PAGE, objects.id()).expect("cached");
            objects.slots[0].iter().for_each(|at| at.store(2, Relaxed));
            objects.ownership.cached(owned);
        }],
        end: |_| {},
        preemptions: 3,
    };
    scene.check("reads beside an owner", &["fence(Ordering::Acquire)", "fence(Ordering::Release)"]);
}

#[test]
fn what_a_call_copied_is_the_object_of_one_instant_beside_a_writer() {
    let scene = Scene {
        make: Objects::new,
        begin: Objects::begin_cached,
        threads: &[Objects::read, |objects| (2..4).for_each(|value| objects.write(value))],
        end: |_| {},
        preemptions: 3,
    };
    let must = ["self.word.compare_exchange(seen.0", "fence(Ordering::Release)"];
    scene.check("reads beside a writer", &must);
}

#[test]
fn an_object_has_one_owner_who_sees_what_the_last_one_left() {
    fn own(objects: &Objects) {
        if let Some(owned) = objects.ownership.claim_stored(PAGE, Block(9)) {
            objects.count.fetch_add(1, Relaxed);
            let byte = &objects.slots[0][0];
            byte.store(byte.load(Relaxed) + 1, Relaxed);
            objects.ownership.stored(owned, Block(9));
        }
    }
    let scene = Scene {
        make: Objects::new,
        begin: |objects| {
            objects.begin();
            objects.ownership.stored(objects.claim(), Block(9));
        },
        threads: &[own, own],
        end: |objects| {
            let owners = objects.count.load(Relaxed);
            assert_eq!(objects.slots[0][0].load(Relaxed), 1 + owners, "two owners at once");
        },
        preemptions: 3,
    };
    scene.check("claim and publish", &["store(to.encode()", "entry.compare_exchange(from, to"]);
}

#[test]
fn no_change_of_an_entry_is_lost_while_its_page_of_the_table_comes_and_goes() {
    fn own(objects: &Objects) {
        let owned = objects.claim();
        assert!(matches!(objects.ownership.look(PAGE), Found::OnItsWay(_)));
        objects.count.store(objects.count.load(Relaxed) + 1, Relaxed);
        objects.ownership.zero(owned);
    }
    fn evict(objects: &Objects) {
        static ZAPPER: OnceLock<Zapper> = OnceLock::new();
        objects.ownership.table.evict(ZAPPER.get_or_init(Zapper::new));
    }
    let scene = Scene {
        make: Objects::new,
        begin: |objects| {
            objects.begin();
            objects.ownership.table.set_limit(0);
            evict(objects);
            own(objects);
        },
        threads: &[own, evict],
        end: |objects| {
            assert_eq!(objects.count.load(Relaxed), 2);
            assert!(matches!(objects.ownership.look(PAGE), Found::Zero));
        },
        preemptions: 1,
    };
    scene.check("pages of the table", &[]);
}

#[test]
fn a_record_of_a_trace_arrives_whole() {
    fn note(trace: &Trace, page: u32) {
        trace.note_fault(Happened::Stored, PageNo(page), 0, (0, u64::from(page) * 64));
    }
    fn drain(trace: &Trace) {
        trace.drain(tls::lane(), |record| assert_eq!(record.took, record.page));
    }
    let scene = Scene {
        make: || Trace::new(true).expect("memory"),
        begin: |trace| {
            for page in 1..9 {
                note(trace, page);
                drain(trace);
            }
        },
        threads: &[
            |trace| (9..12).for_each(|page| note(trace, page)),
            |trace| {
                drain(trace);
                drain(trace);
            },
        ],
        end: drain,
        preemptions: 3,
    };
    scene.check("ring", &["place[0].store(first", "place[0].load("]);
}

#[test]
fn a_page_that_is_installed_is_not_zapped_with_its_range() {
    struct Shared {
        ranges: Ranges,
        is_there: AtomicU32,
    }
    fn install(shared: &Shared) {
        shared.ranges.enter(PAGE);
        shared.is_there.store(1, Relaxed);
    }
    /// Takes the last page out, and all of the range with it.
    fn zap(shared: &Shared) {
        let range = RangeNo::of(PAGE);
        if shared.ranges.close(range, 1) {
            shared.is_there.store(0, Relaxed);
            shared.ranges.open(range, 0);
        }
    }
    let scene = Scene {
        make: || Shared { ranges: Ranges::new(512).expect("memory"), is_there: AtomicU32::new(0) },
        begin: |shared| {
            install(shared);
            zap(shared);
            install(shared);
        },
        threads: &[install, zap],
        end: |shared| assert_eq!(shared.is_there.load(Relaxed), 1),
        preemptions: 3,
    };
    scene
        .check("ranges", &["store(word, Ordering::SeqCst)", "word.compare_exchange_weak(old, new"]);
}
