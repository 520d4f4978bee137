//! Loads: what is done with the pages of a mapped file.
//!
//! Guarantees: what is read is compared; an operation is timed as a whole, its faults included.
//! Threads: as many as asked, of `touch`; one of the others.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use deepheap_load::histogram::Histogram;
use deepheap_load::random::Random;

use super::case::{Load, Mapper, Maps, Measured, PAGE};
use crate::failure::Failure;
use crate::signals;

/// Before times count: RAM is full by then.
pub const WARM_UP: Duration = Duration::from_secs(3);
/// A row that is gathered, and rows of one call.
const ROW_BYTES: usize = 512;
const ROWS: usize = 1024;
/// Of so many neighbours one page is touched, for the kernel maps as many together.
const MAPPED_TOGETHER: u64 = 16;

/// A mapping, and how to have it made durable.
pub struct Mapping<'a> {
    /// Where it begins.
    pub base: usize,
    /// Makes all of it durable.
    pub sync: &'a dyn Fn() -> Result<(), Failure>,
}

/// Runs the load that was asked for.
pub fn run(maps: &Maps, mapping: &Mapping<'_>, threads: u64) -> Result<Measured, Failure> {
    let base = mapping.base;
    match (maps.commit, maps.load) {
        (Some(records), _) => commit(maps, mapping, records),
        (None, Load::Touch) => touch(maps, base, threads),
        (None, Load::Gather) => gather(maps, base),
        (None, Load::Scan) => scan(maps, base),
        (None, Load::Minor) => minor(maps, base),
    }
}

fn word(at: usize) -> &'static AtomicU64 {
    // SAFETY: an aligned word of a mapping that stays until the process ends.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }
}

/// Whether a page has its number.
pub fn compare(page: u64, found: u64) -> Result<(), Failure> {
    if page == found {
        return Ok(());
    }
    Err(Failure::Failed(format!("page {page} says that it is {found}")))
}

fn look(base: usize, page: u64) -> Result<(), Failure> {
    compare(page, word(base + page as usize * PAGE).load(Ordering::Relaxed))
}

/// Stores records at random and has them made durable, over and over; tells how long that took each
/// time, without the stores.
fn commit(maps: &Maps, mapping: &Mapping<'_>, records: u64) -> Result<Measured, Failure> {
    let mut random = Random::new(maps.seed, 0);
    let mut times = Histogram::default();
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < maps.seconds {
        for _ in 0..records {
            let page = random.below(maps.data / PAGE as u64);
            store_record(maps, mapping.base, page, &mut random);
        }
        let before = Instant::now();
        (mapping.sync)()?;
        times.record(before.elapsed().as_nanos() as u64, 1);
        signals::interrupted()?;
    }
    Ok((times, began.elapsed().as_secs_f64()))
}

/// What this run's values differ by from those of other runs with the same seed.
static RUN: OnceLock<u64> = OnceLock::new();

fn nanoseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Stores a record of a page, not the first: that has the page's number.
fn store_record(maps: &Maps, base: usize, page: u64, random: &mut Random) {
    let bytes = u64::from(maps.record).next_multiple_of(8);
    let record = 1 + random.below(PAGE as u64 / bytes - 1);
    let at = base + page as usize * PAGE + (record * bytes) as usize;
    // What a page held after an earlier run is not stored again: a map would not write it.
    let value = random.below(u64::MAX) ^ *RUN.get_or_init(nanoseconds);
    for index in 0..bytes as usize / 8 {
        word(at + index * 8).store(value, Ordering::Relaxed);
    }
}

/// Touches random pages in all threads.
fn touch(maps: &Maps, base: usize, threads: u64) -> Result<Measured, Failure> {
    in_threads(maps, threads, |random| {
        let page = random.below(maps.data / PAGE as u64);
        let looked = look(base, page);
        if random.percent(maps.write) {
            store_record(maps, base, page, random);
        }
        looked
    })
}

/// Does an operation in all threads, over and over, and times each after a while.
pub fn in_threads(
    maps: &Maps,
    threads: u64,
    operation: impl Fn(&mut Random) -> Result<(), Failure> + Sync,
) -> Result<Measured, Failure> {
    let (counts, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let operation = &operation;
    let (counts, ends) = (&counts, &ends);
    // Processes that run side by side have other pages.
    let seed = if maps.alone { maps.seed + u64::from(std::process::id()) } else { maps.seed };
    let run = move |thread: u64| {
        let mut random = Random::new(seed, thread);
        let mut times = Histogram::default();
        while !ends.load(Ordering::Relaxed) {
            let began = Instant::now();
            operation(&mut random)?;
            if counts.load(Ordering::Relaxed) {
                times.record(began.elapsed().as_nanos() as u64, 1);
            }
        }
        Ok(times)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let slept = signals::sleep(WARM_UP).and_then(|()| {
            counts.store(true, Ordering::Relaxed);
            signals::sleep(Duration::from_secs_f64(maps.seconds))
        });
        counts.store(false, Ordering::Relaxed);
        ends.store(true, Ordering::Relaxed);
        let mut times = Histogram::default();
        for thread in threads {
            let of_thread = thread.join();
            times.merge(&of_thread.map_err(|_| Failure::Failed("a thread ended".into()))??);
        }
        slept.map(|()| (times, maps.seconds))
    })
}

/// Copies rows that a list names. On the kernel's mapping a row at a time, as `numpy.take` does;
/// without the advice of random access every page of the list is asked for (MADV_WILLNEED) first.
fn gather(maps: &Maps, base: usize) -> Result<Measured, Failure> {
    let mut random = Random::new(maps.seed, 0);
    let mut times = Histogram::default();
    let mut rows = vec![0u8; ROWS * ROW_BYTES];
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < maps.seconds {
        signals::interrupted()?;
        let pages: Vec<u64> = (0..ROWS).map(|_| random.below(maps.data / PAGE as u64)).collect();
        let list: Vec<*const u8> =
            pages.iter().map(|page| (base + *page as usize * PAGE) as *const u8).collect();
        let started = Instant::now();
        if matches!(maps.on, Mapper::Map | Mapper::Log) {
            // SAFETY: addresses of the map, and room for all rows.
            let read = unsafe {
                deepheap::objects::gather(list.as_ptr(), ROWS, 0, ROW_BYTES, rows.as_mut_ptr())
            };
            if !matches!(read, Ok(ROWS)) {
                return Err(Failure::Failed(format!("gather: {read:?}")));
            }
        } else {
            if maps.on == Mapper::MmapPlain {
                // SAFETY: pages of the mapping. Advice that is refused is none.
                list.iter().for_each(|page| unsafe {
                    libc::madvise(page.cast_mut().cast(), PAGE, libc::MADV_WILLNEED);
                });
            }
            for (row, from) in rows.chunks_mut(ROW_BYTES).zip(&list) {
                // SAFETY: addresses of the mapping.
                unsafe { row.as_mut_ptr().copy_from_nonoverlapping(*from, ROW_BYTES) };
            }
        }
        times.record(started.elapsed().as_nanos() as u64 / ROWS as u64, ROWS as u64);
        for (row, &page) in rows.chunks(ROW_BYTES).zip(&pages) {
            compare(page, u64::from_le_bytes(row[..8].try_into().unwrap_or_default()))?;
        }
    }
    Ok((times, began.elapsed().as_secs_f64()))
}

/// Touches each page, in order.
fn scan(maps: &Maps, base: usize) -> Result<Measured, Failure> {
    const TIMED_TOGETHER: u64 = 64;
    let mut times = Histogram::default();
    let began = Instant::now();
    let mut last = began;
    for page in 0..maps.data / PAGE as u64 {
        look(base, page)?;
        if page % TIMED_TOGETHER == TIMED_TOGETHER - 1 {
            signals::interrupted()?;
            let now = Instant::now();
            times.record((now - last).as_nanos() as u64 / TIMED_TOGETHER, TIMED_TOGETHER);
            last = now;
        }
    }
    Ok((times, began.elapsed().as_secs_f64()))
}

/// Touches pages that are in RAM after this process's page tables have forgotten them.
fn minor(maps: &Maps, base: usize) -> Result<Measured, Failure> {
    let pages = maps.data / PAGE as u64;
    for page in 0..pages {
        look(base, page)?;
    }
    let mut times = Histogram::default();
    let mut spent = Duration::ZERO;
    let began = Instant::now();
    let mut random = Random::new(maps.seed, 0);
    while began.elapsed().as_secs_f64() < maps.seconds {
        signals::interrupted()?;
        // SAFETY: a shared mapping: its page tables are dropped, and nothing else.
        if unsafe { libc::madvise(base as *mut _, maps.data as usize, libc::MADV_DONTNEED) } != 0 {
            return Err(Failure::last_os("madvise"));
        }
        for group in 0..pages / MAPPED_TOGETHER {
            let page = group * MAPPED_TOGETHER + random.below(MAPPED_TOGETHER);
            let started = Instant::now();
            look(base, page)?;
            let took = started.elapsed();
            spent += took;
            times.record(took.as_nanos() as u64, 1);
        }
    }
    Ok((times, spent.as_secs_f64()))
}
