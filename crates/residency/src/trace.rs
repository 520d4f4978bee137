//! Trace: faults, evictions and writes, one record each, in rings of pinned memory.
//!
//! Threads are spread over the lanes, of which each has a ring. A record is two words. A thread
//! takes a place of its ring by one compare-exchange, and writes the second word and then the
//! first, which is never 0 (release). The thread that drains reads the first word (acquire): if it
//! is not 0 the second is there, too. It puts a 0 back before it moves the ring's tail (release),
//! and a thread that takes the place again has read that tail (acquire): a place that is taken is
//! empty.
//!
//! Guarantees: a record is drained once, or counted as lost if its ring was full. While nothing is
//! traced, `note` is one look at a flag.
//! Never: allocates after `new`; takes a lock; waits, but to drain.
//! Threads: any may note, in a signal handler, too; one at a time drains.

use deepheap_heap::PageNo;
use deepheap_sys::errno::Result;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::process::clock;
use deepheap_sys::threads::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use deepheap_sys::threads::parking::Parking;
use deepheap_sys::threads::tls;

/// Threads are spread over so many rings.
pub const LANES: usize = 16;
/// Records of a ring. At 300,000 faults a second of one thread it is full after 13 ms.
const RING: u64 = if cfg!(feature = "schedules") { 8 } else { 4096 };
/// Each time so many more records are in a ring, the thread that drains is woken.
const CALL: u64 = RING / 4;
const RECORD_BYTES: usize = 16;
/// The unit of a record's times, nanoseconds.
pub const UNIT_NS: u64 = 64;

/// The content of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Happened {
    /// A fault on a page that was never written; `amount`: pages from it on that came.
    Zero = 1,
    /// A fault found the object cached; `amount`: pages of the scan that were passed.
    Cached,
    /// A fault read the object; `amount`: pages of the scan that were passed.
    Stored,
    /// A worker read pages of a scan ahead; `amount`: pages that were passed.
    Ahead,
    /// The object left the page buffer unchanged; `amount`: its bytes.
    Clean,
    /// It left it changed; `amount`: its bytes.
    Dirty,
    /// It is zeros, or the program gave it up: nothing of it is kept.
    Empty,
    /// It was compressed in the cache; `amount`: bytes that it became.
    Pressed,
    /// The object left the cache for a new block; `amount`: bytes of it.
    Written,
    /// It left the cache for the block that it has.
    Dropped,
    /// The page buffer's limit changed; in place of a page stands the limit in pages.
    PageBuffer,
    /// The cache's limit changed, likewise.
    Cache,
    /// The process ends.
    End,
}

impl Happened {
    /// Every kind, from number 1 on.
    pub const ALL: [Happened; 13] = [
        Happened::Zero,
        Happened::Cached,
        Happened::Stored,
        Happened::Ahead,
        Happened::Clean,
        Happened::Dirty,
        Happened::Empty,
        Happened::Pressed,
        Happened::Written,
        Happened::Dropped,
        Happened::PageBuffer,
        Happened::Cache,
        Happened::End,
    ];

    /// The kind with this number.
    pub fn of(number: u8) -> Option<Happened> {
        Happened::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Whether the program touched the page.
    pub fn is_fault(self) -> bool {
        matches!(self, Happened::Zero | Happened::Cached | Happened::Stored)
    }
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What happened.
    pub happened: Happened,
    /// The page, or a limit in pages.
    pub page: u32,
    /// Pages or bytes, up to 4096; what, says `happened`. Pages are negative for a scan downwards.
    pub amount: i16,
    /// When, in units of `UNIT_NS` since the trace began.
    pub at: u64,
    /// How long a fault took, in the same units.
    pub took: u32,
}

/// The bits of the first word: the page, the amount, and from here on what happened.
const AMOUNT_SHIFT: u32 = 32;
const HAPPENED_SHIFT: u32 = 48;
/// The second word has so many bits of time (13 days), and above them how long it took, up to
/// 67 ms.
const AT_BITS: u32 = 44;
const AT_MASK: u64 = (1 << AT_BITS) - 1;
const TOOK_MOST: u64 = (1 << (u64::BITS - AT_BITS)) - 1;

impl Record {
    fn to_words(self) -> (u64, u64) {
        let first = u64::from(self.page)
            | u64::from(self.amount as u16) << AMOUNT_SHIFT
            | (self.happened as u64) << HAPPENED_SHIFT;
        let took = u64::from(self.took).min(TOOK_MOST);
        (first, self.at.min(AT_MASK) | took << AT_BITS)
    }

    fn from_words(first: u64, second: u64) -> Option<Record> {
        Some(Record {
            happened: Happened::of((first >> HAPPENED_SHIFT) as u8)?,
            page: first as u32,
            amount: (first >> AMOUNT_SHIFT) as u16 as i16,
            at: second & AT_MASK,
            took: (second >> AT_BITS) as u32,
        })
    }
}

struct Ring {
    places: PinnedArray<[AtomicU64; 2]>,
    /// Places that were ever taken, and ever emptied.
    head: AtomicU64,
    tail: AtomicU64,
    lost: AtomicU32,
}

impl Ring {
    fn new() -> Result<Ring> {
        let [head, tail] = [AtomicU64::new(0), AtomicU64::new(0)];
        let places = PinnedArray::new(RING as usize)?;
        Ok(Ring { places, head, tail, lost: AtomicU32::new(0) })
    }

    fn place(&self, at: u64) -> &[AtomicU64; 2] {
        &self.places[(at % RING) as usize]
    }

    /// Whether the thread that drains should be called.
    fn push(&self, record: Record) -> bool {
        let mut at = self.head.load(Ordering::Relaxed);
        loop {
            if at - self.tail.load(Ordering::Acquire).min(at) >= RING {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            // SeqCst for the sake of `Parking`.
            match self.head.compare_exchange_weak(at, at + 1, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => at = now,
            }
        }
        let (first, second) = record.to_words();
        let place = self.place(at);
        place[1].store(second, Ordering::Relaxed);
        place[0].store(first, Ordering::Release);
        at % CALL == CALL - 1
    }

    fn pop(&self) -> Option<Record> {
        let at = self.tail.load(Ordering::Relaxed);
        let place = self.place(at);
        let first = place[0].load(Ordering::Acquire);
        if first == 0 {
            return None; // nobody has taken it, or its thread is still writing
        }
        let second = place[1].load(Ordering::Relaxed);
        place[0].store(0, Ordering::Relaxed);
        self.tail.store(at + 1, Ordering::Release);
        Record::from_words(first, second)
    }

    fn is_waiting(&self) -> bool {
        self.head.load(Ordering::SeqCst) - self.tail.load(Ordering::Relaxed) >= CALL
    }
}

/// The rings of a process, or none.
pub struct Trace {
    rings: Box<[Ring]>,
    begun_ns: u64,
    is_on: AtomicBool,
    drainer: Parking,
}

impl Trace {
    /// Rings if something is traced, and none otherwise.
    pub fn new(is_on: bool) -> Result<Trace> {
        let lanes = if is_on { LANES } else { 0 };
        Ok(Trace {
            rings: (0..lanes).map(|_| Ring::new()).collect::<Result<Box<[Ring]>>>()?,
            begun_ns: clock::monotonic_ns(),
            is_on: AtomicBool::new(is_on),
            drainer: Parking::new(),
        })
    }

    /// Whether something is traced.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Ends it: what is in the rings is still to be drained.
    pub fn end(&self) {
        self.is_on.store(false, Ordering::SeqCst);
        self.drainer.notify(1);
    }

    /// In a forked child: the trace is the parent's.
    pub fn become_child(&self) {
        self.is_on.store(false, Ordering::SeqCst);
        self.drainer.forget_others();
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.rings.len() * RING as usize * RECORD_BYTES
    }

    /// Notes what happened to a page just now.
    #[inline]
    pub fn note(&self, happened: Happened, page: PageNo, amount: usize) {
        if self.is_on() {
            // An amount is at most a page.
            let amount = i16::try_from(amount).unwrap_or(i16::MAX);
            let at = self.units_until(clock::monotonic_ns());
            self.push(Record { happened, page: page.0, amount, at, took: 0 });
        }
    }

    /// Notes that the process ends.
    pub fn note_end(&self) {
        self.note(Happened::End, PageNo(0), 0);
    }

    /// Notes a fault that began at `start_ns` and took `ns`.
    #[inline]
    pub fn note_fault(
        &self,
        happened: Happened,
        page: PageNo,
        passed: i16,
        (start_ns, ns): (u64, u64),
    ) {
        if self.is_on() {
            let took = u32::try_from(ns / UNIT_NS).unwrap_or(u32::MAX);
            let at = self.units_until(start_ns);
            self.push(Record { happened, page: page.0, amount: passed, at, took });
        }
    }

    fn units_until(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.begun_ns) / UNIT_NS
    }

    #[cold]
    fn push(&self, record: Record) {
        if self.rings[tls::lane()].push(record) {
            self.drainer.notify(1);
        }
    }

    /// Sleeps until there is something to drain, or the trace ends.
    pub fn wait(&self) {
        self.drainer.wait_unless(|| {
            !self.is_on.load(Ordering::SeqCst) || self.rings.iter().any(Ring::is_waiting)
        });
    }

    /// Takes out all records of a lane, in the order of their places; returns how many were lost
    /// since the last call. One thread at a time.
    pub fn drain(&self, lane: usize, mut take: impl FnMut(Record)) -> u32 {
        let Some(ring) = self.rings.get(lane) else { return 0 };
        let until = ring.head.load(Ordering::Acquire);
        while ring.tail.load(Ordering::Relaxed) < until {
            let Some(record) = ring.pop() else { break };
            take(record);
        }
        ring.lost.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(page: u32, happened: Happened) -> Record {
        Record { happened, page, amount: -3, at: u64::from(page) << 9, took: page }
    }

    #[test]
    fn a_record_is_the_same_after_a_ring() {
        for (number, happened) in Happened::ALL.into_iter().enumerate() {
            assert_eq!(Happened::of(number as u8 + 1), Some(happened));
            let ring = Ring::new().unwrap();
            let written = record((1 << 30) - 1, happened);
            ring.push(Record { took: 9, ..written });
            let most = Record { at: u64::MAX, took: u32::MAX, amount: i16::MIN, ..written };
            ring.push(most);
            assert_eq!(ring.pop(), Some(Record { took: 9, ..written }));
            let kept = Record { at: AT_MASK, took: TOOK_MOST as u32, ..most };
            assert_eq!(ring.pop(), Some(kept));
            assert_eq!(ring.pop(), None);
        }
        assert_eq!(Happened::of(0), None);
        assert_eq!(Happened::of(Happened::ALL.len() as u8 + 1), None);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let trace = Trace::new(true).unwrap();
        for page in 0..RING as u32 + 7 {
            trace.note(Happened::Clean, PageNo(page), 4096);
        }
        let mut pages = Vec::new();
        let lost: u32 = (0..LANES).map(|lane| trace.drain(lane, |it| pages.push(it.page))).sum();
        assert_eq!(lost, 7);
        assert!(pages.into_iter().eq(0..RING as u32));
        let off = Trace::new(false).unwrap();
        off.note(Happened::Clean, PageNo(1), 1);
        assert_eq!((off.bytes(), off.drain(0, |_| panic!("nothing is traced"))), (0, 0));
    }

    /// Threads that share rings, and one that drains meanwhile: each record comes once or is
    /// counted, those of a thread in their order.
    #[test]
    fn records_of_many_threads_come_once_each() {
        const THREADS: u32 = 8;
        const EACH: u32 = 100_000;
        let trace = Trace::new(true).unwrap();
        let (mut seen, mut lost) = (vec![0u32; THREADS as usize], 0u64);
        let mut came = 0u64;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let trace = &trace;
                scope.spawn(move || {
                    for page in 1..=EACH {
                        trace.note(Happened::Dirty, PageNo(thread << 24 | page), 7);
                    }
                });
            }
            while came + lost < u64::from(THREADS * EACH) {
                for lane in 0..LANES {
                    lost += u64::from(trace.drain(lane, |record| {
                        let (thread, page) = (record.page >> 24, record.page & 0xff_ffff);
                        assert!(page > seen[thread as usize], "in order, once");
                        seen[thread as usize] = page;
                        came += 1;
                    }));
                }
            }
        });
        assert!(came >= RING, "{came} came, {lost} lost");
    }
}
