//! Schedules: plays the pager with threads; at each atomic operation a seed decides which one runs.
//!
//! A few threads do what programs do (touch, pin, read and write by calls, owned and not, scan,
//! prefetch, allocate and free) on some seventy objects, while others evict, fetch, write and
//! collect; page buffer and object cache hold a fraction of the objects, and the log is short.
//! Pager, heap, store, userfaultfd and eviction are the real ones; only threads, futexes and the
//! device are simulated. A touch of a page that is not present asks the pager directly, without a
//! signal.
//!
//! Each number that a thread finds must be the one it left. When all have ended, the pager's counts
//! must be right, and lists and tables must agree (`invariants`). A thread that sleeps and is never
//! woken fails the test.
//!
//! A fork is the instant between `fork_prepare` and `fork_parent`: then, too, lists and tables must
//! agree and no lock may be held, since the child would find this state.
//!
//! A checkpoint's cut stops writers, as that of a durable heap: what it hands out must lead to what
//! every object holds at that instant (`checkpoints`).
//!
//! It cannot find errors that need weaker memory orders than sequential consistency (`models` looks
//! for those), nor errors in the child of a fork.

mod at_once;
mod calls;
mod checkpoints;
mod coroutines;
mod kept_slots;
mod kind;
mod lanes;
mod memory;
mod publication;

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use deepheap_heap::{Freed, Heap, PageNo, SPAN, Shortage, ThreadCache};
use deepheap_policy::sequence::{Direction, Sequences};
use deepheap_residency::ownership::{Pin, Place, State};
use deepheap_sim::{Random, SimDevice};
use deepheap_store::{Options as StoreOptions, Store};
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use deepheap_sys::memory::pagemap;
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::schedule;
use shuttle::rand::RngCore;
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, MaxSteps, Runner};

use super::*;
use crate::gate::Level;
use coroutines::Coroutines;
use kind::Kind;

/// Threads that touch objects; in every object each of them has a number of its own, and so has the
/// one that writes during cuts.
const TOUCHING: usize = 3;
const NUMBERS: usize = TOUCHING + 1;
const STEPS: usize = 40;
/// Writes of one object by calls: the first one gets a spare slot, the others use it.
const CALLS_IN_A_ROW: usize = 4;
const FORKS: usize = 30;
/// How often a page is protected, and for how long.
const PROTECTIONS: usize = 10;
const PROTECTED_STEPS: usize = 200;
/// How long a page is pinned.
const PINNED_STEPS: usize = 20;
/// Pages of a run that gives its DRAM back when it is freed.
const LONG_RUN_PAGES: usize = 260;
const MEMORY_PAGES: usize = 40;
/// Half of all touches go to so many things.
const CONTENDED: usize = 5;
/// Pages that the page buffer holds.
const PAGE_BUFFER: usize = 8;
/// Bytes that the cache holds: a few slabs.
const CACHE_BYTES: usize = 192 << 10;
const SEGMENT_BYTES: u64 = 256 << 10;
const SEGMENTS: u64 = 8;

/// An object that lives as long as the world, and what its numbers must be.
struct Thing {
    address: usize,
    numbers: [AtomicU64; NUMBERS],
}

/// A heap with a pager, and what is on it.
struct World {
    heap: &'static Heap,
    pager: Pager,
    /// The collector's buffer.
    segment: RefCell<AlignedBuffer>,
    /// The first ones are memory pages, side by side.
    things: Vec<Thing>,
    /// A memory page behind those of the things, which one thread protects now and then.
    protected: Thing,
    coroutines: Coroutines,
    is_done: AtomicBool,
    working: AtomicUsize,
    /// Which thing each thread is in a call for, and 1; 0: it is in none.
    calling: [AtomicUsize; TOUCHING],
    /// Held by a fork and by a cut, as the runtime's lock of that name: only one closes the gate.
    growth: Lock<()>,
    /// A cut is under way, or is about to begin.
    is_cutting: AtomicBool,
    saved: RefCell<checkpoints::Saved>,
    /// Cuts that were made.
    cuts: AtomicUsize,
    /// Numbers that changed while one was under way.
    written_in_cuts: AtomicUsize,
    kind: Kind,
}

// SAFETY: its threads run one at a time, on one thread of the system.
unsafe impl Sync for World {}

fn region(bytes: usize) -> usize {
    // SAFETY: fresh address space, nobody's.
    let memory = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes + SPAN,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(memory, libc::MAP_FAILED);
    (memory as usize).next_multiple_of(SPAN)
}

impl World {
    fn new(kind: Kind) -> &'static World {
        const SPANS: usize = 4;
        let region_base = region(SPANS * SPAN);
        let heap: &Heap = Box::leak(Box::new(Heap::new(region_base, SPANS * SPAN).expect("heap")));
        let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, 1);
        let options = StoreOptions {
            segment_bytes: SEGMENT_BYTES,
            capacity_bytes: SEGMENTS * SEGMENT_BYTES,
            buffers: 4,
            reserve_segments: 2,
        };
        let store = Store::open(Box::new(device), options, None).expect("store");
        let options = Options {
            region_base,
            region_pages: SPANS * SPAN / PAGE,
            // Two evictions at a time, where there are as many processors.
            budget_bytes: 32 << 20,
            page_buffer_bytes: None,
            overcommit: Overcommit::Lazy,
            compress: crate::Compress::Auto,
            makes_checkpoints: kind.makes_checkpoints(),
            follows_strides: true,
            follows_sequences: true,
            traces: false,
            lanes_shift: (kind == Kind::InLanes).then_some(lanes::FRAMES.trailing_zeros()),
        };
        let pager = Pager::new(&options, heap, store, None).expect("pager");
        heap.report_free_pages(true);
        memory::limit(&pager, SPANS * SPAN);
        pager.residency.frames.page_buffer.set_limit(PAGE_BUFFER);
        pager.residency.cache.set_limit(CACHE_BYTES);
        pager.budget.cache_is_short.store(false, Ordering::Relaxed);
        if kind == Kind::Alone {
            pager.workers.begin_without();
        }
        let segment = AlignedBuffer::new(SEGMENT_BYTES as usize, 0).expect("a buffer");
        let mut world = World {
            heap,
            pager,
            segment: RefCell::new(segment),
            things: Vec::new(),
            protected: Thing { address: 0, numbers: Default::default() },
            coroutines: Coroutines::new(),
            is_done: AtomicBool::new(false),
            working: AtomicUsize::new(0),
            calling: Default::default(),
            growth: Lock::new(()),
            is_cutting: AtomicBool::new(false),
            saved: RefCell::default(),
            cuts: AtomicUsize::new(0),
            written_in_cuts: AtomicUsize::new(0),
            kind,
        };
        let mut cache = ThreadCache::new_in(heap).expect("cache");
        let memory = world.allocate(&mut cache, (MEMORY_PAGES + 1) * PAGE);
        world.protected.address = memory + MEMORY_PAGES * PAGE;
        let mut addresses: Vec<_> = (0..MEMORY_PAGES).map(|page| memory + page * PAGE).collect();
        for (size, count) in [(PAGE, 6), (200, 12), (1000, 6), (64, 6)] {
            addresses.extend((0..count).map(|_| world.allocate_object(size)));
        }
        if kind == Kind::InLanes {
            addresses.extend(world.rivals());
        }
        let numbers = || core::array::from_fn(|_| AtomicU64::new(0));
        world.things =
            addresses.iter().map(|&address| Thing { address, numbers: numbers() }).collect();
        Box::leak(Box::new(world))
    }

    fn allocate(&self, cache: &mut ThreadCache, size: usize) -> usize {
        loop {
            match self.heap.allocate(cache, size, 16) {
                Ok(allocated) => return allocated.ptr,
                Err(Shortage::Pages(pages)) => self.heap.grant(pages),
                Err(Shortage::Spans(count)) => {
                    let range = self.heap.begin_spans(count).expect("a long region");
                    self.pager.manage(range.first, range.count).expect("managed");
                    self.heap.publish_spans(range);
                }
                Err(shortage) => panic!("{size} bytes: {shortage:?}"),
            }
        }
    }

    fn allocate_object(&self, size: usize) -> usize {
        loop {
            match self.heap.allocate_object(size) {
                Ok(allocated) => return allocated.ptr,
                Err(Shortage::ObjectBlocks(blocks)) => self.heap.grant_object_blocks(blocks as u64),
                Err(Shortage::ObjectSpans(count)) => {
                    let range = self.heap.begin_spans(count).expect("a long region");
                    self.pager.manage_objects(range.first, range.count).expect("managed");
                    self.heap.add_object_spans(range);
                }
                Err(Shortage::LaneSpans(count)) => {
                    let range = self.heap.begin_spans(count).expect("a long region");
                    self.pager.manage_lanes(range.first, range.count).expect("managed");
                    self.heap.add_lane_spans(range);
                }
                Err(shortage) => panic!("{size} bytes: {shortage:?}"),
            }
        }
    }

    fn free(&self, cache: &mut ThreadCache, address: usize) {
        match self.heap.free(cache, address) {
            Freed::Done => {}
            Freed::Run(run) => {
                let mut next = Some(run);
                while let Some(run) = next {
                    self.heap.recycle(run, self.pager.discard(run));
                    next = self.heap.take_freed();
                }
            }
            Freed::Pages(pages) => self.pager.discard_free_pages(pages.as_slice()),
            Freed::Objects(freed) => {
                let resident = match freed.reshaped {
                    true => self.pager.discard_resident(freed.run()),
                    false => self.pager.discard(freed.run()),
                };
                self.heap.recycle_objects(freed, resident);
            }
            Freed::NotAllocated => panic!("{address:#x} lives"),
        }
    }

    /// Does something to a word of the heap, as a program does.
    fn touch<T>(
        &self,
        sequences: &mut Sequences,
        address: usize,
        access: impl FnOnce(*mut u64) -> T,
    ) -> T {
        loop {
            let is_stopped = self.is_cutting.load(Ordering::Relaxed);
            if is_present(address) && !(is_stopped && is_protected(address)) {
                // No other thread has run since the look.
                let done = access(address as *mut u64);
                schedule::point();
                return done;
            }
            schedule::point();
            self.pager.resolve(address, sequences, 0).expect("a page");
        }
    }

    /// Adds 1 to a thread's number in a thing, which must be what the thread left there.
    fn count(&self, sequences: &mut Sequences, thread: usize, number: usize) {
        let thing = &self.things[number];
        self.touch(sequences, thing.address + 8 * thread, |word| {
            // SAFETY: a word of a live object, which is present, and only this thread's.
            unsafe { add_one(word, &thing.numbers[thread]) };
        });
    }

    /// Any thing, half of the time one of a few.
    fn any(&self, random: &mut Random) -> usize {
        let all = self.things.len();
        match random.below(2) {
            0 => random.below(CONTENDED as u64) as usize * (all / CONTENDED),
            _ => random.below(all as u64) as usize,
        }
    }

    /// A pinned page stays, whatever the other threads do.
    fn count_pinned(&self, sequences: &mut Sequences, thread: usize, number: usize) {
        let thing = &self.things[number];
        let page = self.pager.residency.frames.page_at(thing.address);
        let id = loop {
            if let Some(id) = self.pager.residency.ownership.try_pin(page, Pin::Call) {
                break id;
            }
            let touched = self.pager.resolve(thing.address, sequences, 0);
            touched.expect("a page");
        };
        if self.pager.is_in_lane(page) {
            // As `pin_page` does.
            self.touch(sequences, thing.address, |_| ());
        }
        for _ in 0..PINNED_STEPS {
            assert!(is_present(thing.address), "a pinned page is gone");
            let word = (thing.address + 8 * thread) as *mut u64;
            // SAFETY: as in `count`.
            unsafe { add_one(word, &thing.numbers[thread]) };
            deepheap_sys::threads::thread::yield_now();
        }
        self.pager.residency.ownership.descriptor(id).drop_pin(Pin::Call);
    }

    fn touch_things(&self, thread: usize, seed: u64) {
        let mut random = Random::new(seed);
        let mut sequences = Sequences::default();
        for _ in 0..STEPS {
            let number = self.any(&mut random);
            match random.below(24) {
                0 => (0..MEMORY_PAGES).for_each(|at| self.count(&mut sequences, thread, at)),
                1 => (0..MEMORY_PAGES).rev().for_each(|at| self.count(&mut sequences, thread, at)),
                2 | 3 | 10 | 11 => self.call(&mut sequences, Operation::Write, thread, number),
                4 | 5 => self.call(&mut sequences, Operation::Read, thread, number),
                12 => (0..CALLS_IN_A_ROW).for_each(|_| {
                    self.call(&mut sequences, Operation::Write, thread, number);
                }),
                // The same way each time, in steps that are never equal.
                13 => (0..64).map(|at| at * (at + 1) / 2 % 64).for_each(|at| {
                    self.count(&mut sequences, thread, at % MEMORY_PAGES);
                }),
                6 | 8 | 9 => self.count_pinned(&mut sequences, thread, number),
                14..=16 if self.kind == Kind::InLanes => {
                    let rivals = self.things.len() - 12;
                    let two = [0; 2].map(|_| rivals + random.below(12) as usize);
                    if two[0] != two[1] {
                        self.count_both(&mut sequences, thread, two);
                    }
                }
                7 => {
                    let some: [usize; 4] = core::array::from_fn(|_| self.any(&mut random));
                    self.pager.prefetch(some.into_iter().map(|at| self.things[at].address));
                }
                _ => self.count(&mut sequences, thread, number),
            }
        }
    }

    /// Allocates, writes, looks and frees.
    fn allocate_and_free(&self, seed: u64) {
        let mut random = Random::new(seed);
        let mut sequences = Sequences::default();
        let mut cache = ThreadCache::new_in(self.heap).expect("cache");
        let mut live: VecDeque<(usize, u64)> = VecDeque::new();
        for step in 0..2 * STEPS as u64 {
            let address = match random.below(7) {
                6 => self.allocate(&mut cache, LONG_RUN_PAGES * PAGE),
                0 => self.allocate(&mut cache, 3 * PAGE),
                1 => self.allocate(&mut cache, 300),
                kind => self.allocate_object([64, 200, 1000, PAGE][kind as usize - 2]),
            };
            let content = step << 32 | random.below(1 << 32);
            // SAFETY: a word of a live object, which is present, and only this thread's.
            self.touch(&mut sequences, address, |word| unsafe { word.write_volatile(content) });
            live.push_back((address, content));
            while live.len() > 6 || (step + 1 == 2 * STEPS as u64 && !live.is_empty()) {
                let at = random.below(live.len() as u64) as usize;
                let Some((address, content)) = live.remove(at) else { break };
                // SAFETY: as above.
                let found =
                    self.touch(&mut sequences, address, |word| unsafe { word.read_volatile() });
                assert_eq!(found, content, "what was allocated at {address:#x}");
                self.free(&mut cache, address);
            }
        }
        self.heap.thread_exit(cache);
        while let Some(run) = self.heap.take_freed() {
            self.heap.recycle(run, self.pager.discard(run));
        }
    }

    /// Counts on a page and protects it: eviction cannot take it out meanwhile.
    fn protect(&self, seed: u64) {
        let mut random = Random::new(seed);
        let mut sequences = Sequences::default();
        let page = self.protected.address as *mut libc::c_void;
        for _ in 0..PROTECTIONS {
            self.touch(&mut sequences, self.protected.address, |word| {
                // SAFETY: a word of a live object, which is present, and only this thread's.
                unsafe { add_one(word, &self.protected.numbers[0]) };
                // SAFETY: nobody else touches the page.
                assert_eq!(unsafe { libc::mprotect(page, PAGE, libc::PROT_NONE) }, 0);
            });
            (0..random.below(PROTECTED_STEPS as u64))
                .for_each(|_| deepheap_sys::threads::thread::yield_now());
            // SAFETY: as above.
            let freed = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
            assert_eq!(freed, 0);
        }
    }

    /// Looks at what the child of a fork would find.
    fn fork(&self, seed: u64) {
        let mut random = Random::new(seed);
        for _ in 0..FORKS {
            (0..random.below(PROTECTED_STEPS as u64))
                .for_each(|_| deepheap_sys::threads::thread::yield_now());
            let _growth = self.growth.lock();
            self.pager.fork_prepare();
            self.check_invariants();
            self.pager.fork_parent(|| None);
        }
    }

    /// Checks at one instant: no other thread runs meanwhile.
    fn check_invariants(&self) {
        let scheduler = schedule::current();
        schedule::set(None);
        self.pager.check_invariants();
        schedule::set(scheduler);
    }

    // As the workers of a runtime do.

    fn evictor(&self) {
        let mut moves = Moves::default();
        while !self.is_done() {
            self.pager.wait_for_eviction(None);
            while self.pager.must_evict() && !self.is_done() {
                self.pager.ask_for_help(moves.evicted() > 0);
                if !self.pager.evict(0, &mut moves).expect("room") {
                    deepheap_sys::threads::thread::yield_now();
                }
            }
        }
    }

    fn helper(&self) {
        while !self.is_done() {
            self.pager.help(1, |_, _| {});
            let _passage = self.pager.gate.enter(Level::Mover);
            self.pager.residency.cache.end_spares();
        }
    }

    fn writer(&self) {
        while !self.is_done() {
            self.pager.residency.store.write_sealed(true);
        }
    }

    fn collector(&self) {
        let mut segment = self.segment.borrow_mut();
        while !self.is_done() {
            if self.pager.residency.store.wait_for_work(|| None)
                && !self
                    .pager
                    .collect(&self.pager.residency.store, segment.as_mut_slice())
                    .expect("a segment")
            {
                deepheap_sys::threads::thread::yield_now();
            }
        }
    }

    fn fetcher(&self) {
        let mut moves = Moves::default();
        while !self.is_done() {
            self.pager.serve_prefetch(&mut moves);
        }
    }

    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    /// Wakes the workers until they have ended; they may be about to sleep when they are woken.
    fn end_workers(&self) {
        self.is_done.store(true, Ordering::Relaxed);
        while self.working.load(Ordering::Relaxed) > 0 {
            self.pager.workers.wake_evictor();
            self.pager.workers.call_helper();
            self.pager.residency.store.stop_waiting();
            let _ = self.pager.ahead.queues.ask_for(PageNo(0), Direction::Up);
            deepheap_sys::threads::thread::yield_now();
        }
        self.pager.residency.store.resume_waiting();
    }

    /// Copies the bytes of a page and writes them back later while others write, which is
    /// forbidden.
    fn be_careless(&self, seed: u64) {
        let mut random = Random::new(seed);
        for _ in 0..STEPS {
            let address = self.things[self.any(&mut random)].address;
            if is_present(address) {
                // SAFETY: a page that is present; nobody else runs meanwhile.
                let bytes = unsafe { (address as *const [u64; NUMBERS]).read_volatile() };
                (0..STEPS).for_each(|_| deepheap_sys::threads::thread::yield_now());
                if is_present(address) && !is_protected(address) {
                    // SAFETY: as above. During a cut it would be a fault, which nobody serves here.
                    unsafe { (address as *mut [u64; NUMBERS]).write_volatile(bytes) };
                }
            }
        }
    }

    /// All threads have ended: checks that the pager's counts are right.
    fn check(&self) {
        self.check_invariants();
        let mut resident = 0;
        let mut cached = 0;
        let residency = &self.pager.residency;
        let spans = residency.frames.managed_spans();
        let mut present = HashSet::new();
        pagemap::present_pages(
            residency.frames.region_base(),
            spans * SPAN,
            &mut |first, pages, _| {
                present
                    .extend((0..pages).map(|page| residency.frames.page_at(first + page * PAGE).0));
            },
        )
        .expect("the page map");
        for page in (0..spans * SPAN / PAGE).map(|page| PageNo(page as u32)) {
            let here = present.contains(&page.0);
            match crate::tests::place_quietly(&residency.ownership, page) {
                Place::Busy(id) => {
                    let descriptor = residency.ownership.descriptor(id);
                    assert_eq!(descriptor.state(), State::Resident, "{page:?}");
                    assert_eq!(descriptor.page(), page);
                    assert!(!descriptor.is_pinned(), "{page:?}");
                    // In its lane it need not be mapped.
                    let in_lane = self.pager.is_in_lane(page);
                    assert!(here || in_lane, "{page:?} is resident and not there");
                    resident += usize::from(!in_lane);
                }
                Place::Cached(id) => {
                    assert_eq!(residency.ownership.descriptor(id).page(), page);
                    cached += 1;
                    assert!(!here, "{page:?} is cached and there");
                }
                place => assert!(!here && place != Place::Lost, "{page:?} is {place:?}"),
            }
        }
        assert_eq!(residency.frames.page_buffer.pages(), resident, "reservations");
        assert_eq!(residency.cache.objects(), cached, "cached objects");
        let mut sequences = Sequences::default();
        for (number, thing) in self.things.iter().enumerate() {
            for (thread, expected) in thing.numbers.iter().enumerate() {
                // SAFETY: a word of a live object, which is present.
                let read = |word: *mut u64| unsafe { word.read_volatile() };
                let found = self.touch(&mut sequences, thing.address + 8 * thread, read);
                assert_eq!(found, expected.load(Ordering::Relaxed), "{number} of {thread}");
            }
        }
    }
}

/// # Safety
/// The word is present, and only one thread's.
unsafe fn add_one(word: *mut u64, expected: &AtomicU64) {
    // SAFETY: the caller's promise.
    let found = unsafe { word.read_volatile() };
    assert_eq!(found, expected.load(Ordering::Relaxed), "the number at {word:?}");
    // SAFETY: as above.
    unsafe { word.write_volatile(found + 1) };
    expected.store(found + 1, Ordering::Relaxed);
}

fn is_present(address: usize) -> bool {
    const IS_PRESENT: u64 = 1 << 63;
    page_map_entry(address) & IS_PRESENT != 0
}

/// Whether a page that is present may not be written: a cut is under way.
fn is_protected(address: usize) -> bool {
    const IS_PROTECTED: u64 = 1 << 57;
    page_map_entry(address) & IS_PROTECTED != 0
}

/// What the kernel says of a page. Every touch asks: to open the file each time took most of the
/// time of a schedule. No schedule forks the process, which would need a file of its own.
fn page_map_entry(address: usize) -> u64 {
    use std::os::unix::fs::FileExt;
    static PAGE_MAP: OnceLock<File> = OnceLock::new();
    let open = || File::open("/proc/self/pagemap").expect("the page map");
    let mut entry = [0; 8];
    let page_map = PAGE_MAP.get_or_init(open);
    page_map.read_exact_at(&mut entry, (address / PAGE * 8) as u64).expect("the page map");
    u64::from_ne_bytes(entry)
}

/// Plays one schedule: all threads together, until all have ended.
fn play(world: &'static World) {
    let mut seeds = shuttle::rand::thread_rng();
    world.coroutines.begin(seeds.next_u64());
    schedule::set(Some(&world.coroutines));
    world.is_done.store(false, Ordering::Relaxed);
    let mut threads = Vec::new();
    let mut spawn = |run: Box<dyn FnOnce(u64) + Send>| {
        let seed = seeds.next_u64();
        threads.push(shuttle::thread::spawn(move || run(seed)));
    };
    for thread in 0..TOUCHING {
        spawn(Box::new(move |seed| world.touch_things(thread, seed)));
    }
    spawn(Box::new(|seed| world.allocate_and_free(seed)));
    spawn(Box::new(|seed| world.protect(seed)));
    spawn(Box::new(|seed| world.fork(seed)));
    if world.kind.makes_checkpoints() {
        spawn(Box::new(|seed| world.make_checkpoints(seed)));
    }
    if world.kind == Kind::Careless {
        spawn(Box::new(|seed| world.be_careless(seed)));
    }
    let mut workers = Vec::new();
    let workers_of = [
        World::evictor,
        World::table_evictor,
        World::write_in_cuts,
        World::helper,
        World::writer,
        World::collector,
        World::fetcher,
        World::fetcher,
    ];
    for run in workers_of.into_iter().filter(|_| world.kind != Kind::Alone) {
        world.working.fetch_add(1, Ordering::Relaxed);
        workers.push(shuttle::thread::spawn(move || {
            run(world);
            world.working.fetch_sub(1, Ordering::Relaxed);
        }));
    }
    for thread in threads {
        thread.join().expect("it ends well");
    }
    world.end_workers();
    for worker in workers {
        worker.join().expect("it ends well");
    }
    world.check();
    schedule::set(None);
}

fn run(kind: Kind, schedules: usize) {
    let seed = std::env::var("DEEPHEAP_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 ^ 0xd00d);
    eprintln!("DEEPHEAP_TEST_SEED={seed}");
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(20_000_000);
    config.failure_persistence = shuttle::FailurePersistence::None;
    let runner = Runner::new(RandomScheduler::new_from_seed(seed, schedules), config);
    let world = World::new(kind);
    runner.run(move || play(world));
    if kind != Kind::Alone {
        memory::check_traffic(&world.pager);
    }
    let cuts = world.cuts.load(Ordering::Relaxed);
    let written = world.written_in_cuts.load(Ordering::Relaxed);
    eprintln!("{cuts} cuts, {written} numbers changed meanwhile");
    assert!(!kind.makes_checkpoints() || cuts > 0 && written > 0);
    let collected = world.pager.residency.store.stats().segments_collected;
    assert!(schedules < 60 || collected > 0, "nothing was collected");
}

fn schedules() -> usize {
    let schedules = std::env::var("DEEPHEAP_SCHEDULES").ok().and_then(|count| count.parse().ok());
    schedules.unwrap_or(60)
}

#[test]
fn no_schedule_loses_a_write_to_an_object_in_a_lane() {
    run(Kind::InLanes, schedules());
}

#[test]
fn no_schedule_loses_a_write_where_there_are_no_workers() {
    run(Kind::Alone, schedules());
}

#[test]
fn no_schedule_loses_a_write_or_a_wake_up() {
    run(Kind::Ordinary, schedules());
}

#[test]
fn canary_a_thread_that_breaks_the_rules_is_found() {
    assert!(std::panic::catch_unwind(|| run(Kind::Careless, 50)).is_err());
}
