//! Table: the maps of this process, found by address; their threads, faults and forks.
//!
//! The threads `deepheap-maps` evict when a map's RAM is nearly full: one of them, or all if pages
//! may have to be written, since a thread that writes waits for the device. The first one also
//! folds logs. Five threads `deepheap-mapread` read pages ahead. All sleep on futexes while there
//! is nothing to do.
//!
//! Guarantees: a map is found without a lock; what uses it by itself is waited for before it ends.
//! Never: allocates in `on_fault`.
//! Threads: any. Opening, closing and forks exclude each other; all signals are blocked meanwhile.

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
use core::time::Duration;

use deepheap_sys::errno::Errno;
use deepheap_sys::faults::fault_signal::{Fault, Verdict};
use deepheap_sys::memory::page_pipe::pipe_sees_stores;
use deepheap_sys::memory::zap::Zapper;
use deepheap_sys::say;
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::parking::Parking;
use deepheap_sys::threads::signals::Blocked;
use deepheap_sys::threads::thread;

use crate::calls::pins::{PinKind, TooMuch};
use crate::error::MapError;
use crate::moves::fill::{FillError, forget_rings, prepare_rings};
use crate::moves::staging::{self, BUFFER_PAGES};
use crate::moves::writers::forget_writers;
use crate::region::Region;
use crate::region::backing::ReadError;
use crate::region::join::Request;
use crate::region::unmap::ZAPPER;
use crate::tables::control::Writes;
use crate::tables::streams::{AHEAD, WINDOW_MAX};

/// Maps that a process can have.
pub const MAPS_MAX: usize = 64;
/// Faults of a thread on a page that is there, one after the other, until it is told.
const REPEATS_MAX: u32 = 1000;
/// Pages that wait to be read ahead; a page that finds no room is not read.
const AHEAD_MAX: usize = 4096;
/// Threads that evict: writes under way at a time beside those of faults.
const EVICTORS: usize = 4;
/// Threads that read ahead: reads under way at a time beside those of faults.
const READERS: usize = 5;
/// At most this part of the RAM is read ahead of a scan.
const AHEAD_PART: u64 = 8;
/// Between two looks whether a map is in use.
const PAUSE: Duration = Duration::from_micros(100);
/// Shards in a row of which none gives a page, until the evictor gives up for now.
const IDLE_LOOKS: u32 = 4096;

/// A map, or room for one.
struct Mapping {
    /// Where it begins and ends; both 0: free.
    start: AtomicUsize,
    end: AtomicUsize,
    region: AtomicPtr<Region>,
    /// Threads of ours that use it.
    users: AtomicU32,
}

static MAPPINGS: [Mapping; MAPS_MAX] = [const {
    Mapping {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        region: AtomicPtr::new(core::ptr::null_mut()),
        users: AtomicU32::new(0),
    }
}; MAPS_MAX];
/// How many mappings were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Held while maps come, go, are forked, or begin to be used by a thread of ours.
static CHANGING: Lock<()> = Lock::new(());
/// The process whose threads run.
static STARTED: AtomicU32 = AtomicU32::new(0);

static EVICTOR: Parking = Parking::new();
/// A bit for each evictor that is to look.
static WANTED: AtomicU32 = AtomicU32::new(0);
static READER: Parking = Parking::new();
static QUEUE: Lock<Queue> = Lock::new(Queue { pages: [0; AHEAD_MAX], first: 0, count: 0 });
/// Its count, for threads that do not have its lock.
static QUEUED: AtomicUsize = AtomicUsize::new(0);

/// Pages to read ahead: the mapping's index in the upper half, the page in the lower.
struct Queue {
    pages: [u64; AHEAD_MAX],
    first: usize,
    count: usize,
}

/// The map of an address.
#[inline]
pub(crate) fn find(address: usize) -> Option<&'static Region> {
    Some(find_mapping(address)?.1)
}

fn find_mapping(address: usize) -> Option<(usize, &'static Region)> {
    let used = USED.load(Acquire);
    for (index, mapping) in MAPPINGS[..used].iter().enumerate() {
        if address >= mapping.start.load(Acquire) && address < mapping.end.load(Acquire) {
            // SAFETY: a box that was leaked. It is taken back when the program has given up the
            // addresses, and looks no more for one of them.
            let region = unsafe { mapping.region.load(Acquire).as_ref() }?;
            return region.contains(address).then_some((index, region));
        }
    }
    None
}

impl Mapping {
    /// From now on the map is found; answers where it begins.
    fn show(&self, region: Box<Region>) -> *mut u8 {
        let (start, end) = (region.base, region.base + region.bytes);
        self.region.store(Box::into_raw(region), Release);
        self.start.store(start, Release);
        self.end.store(end, Release);
        start as *mut u8
    }
}

/// Takes the map that begins at an address out of the table, once no thread of ours uses it. The
/// caller has `CHANGING`, and the program uses the map no more.
fn take(address: *mut u8) -> Result<(&'static Mapping, Box<Region>), MapError> {
    let found =
        find_mapping(address as usize).filter(|(_, region)| region.base == address as usize);
    let mapping = &MAPPINGS[found.ok_or(MapError::NotAMap)?.0];
    mapping.start.store(0, Release);
    mapping.end.store(0, Release);
    // Threads of ours begin to use a map under the lock only.
    while mapping.users.load(SeqCst) != 0 {
        thread::sleep(PAUSE);
    }
    // SAFETY: `show` was given a box; nobody uses it by the caller's promise and the wait.
    Ok((mapping, unsafe { Box::from_raw(mapping.region.swap(core::ptr::null_mut(), AcqRel)) }))
}

/// Maps a file; answers where. The caller has `on_fault` called for what faults there. A file with
/// a log is made, all zeros, if it is not there and the program writes; it is as long as it was
/// made.
pub fn open(request: &Request<'_>, writes: Writes) -> Result<*mut u8, MapError> {
    let _blocked = Blocked::all();
    let _changing = CHANGING.lock();
    prepare()?;
    let free = MAPPINGS.iter().position(|mapping| mapping.region.load(Relaxed).is_null());
    let Some(free) = free else { return Err(MapError::TooManyMaps) };
    let region = Region::open(request, writes)?;
    let start = MAPPINGS[free].show(Box::new(region));
    USED.fetch_max(free + 1, AcqRel);
    start_threads();
    Ok(start)
}

/// Makes all that the first map needs.
fn prepare() -> Result<(), MapError> {
    if ZAPPER.get().is_some() {
        return Ok(());
    }
    match pipe_sees_stores() {
        Ok(true) => {}
        Ok(false) => return Err(MapError::CopiesPages),
        Err(errno) => return Err(MapError::Resources(errno)),
    }
    staging::prepare().map_err(MapError::Resources)?;
    prepare_rings();
    ZAPPER.get_or_init(Zapper::new);
    Ok(())
}

/// Ends the map that begins at `address`. If its changed pages cannot be written, it stays.
///
/// # Safety
/// No thread uses the memory any more.
pub unsafe fn close(address: *mut u8) -> Result<(), MapError> {
    let _blocked = Blocked::all();
    let _changing = CHANGING.lock();
    let (mapping, region) = take(address)?;
    region.close().map_err(|(error, region)| {
        mapping.show(region);
        error
    })
}

/// Makes the file of the map that begins at `address` `length` bytes long, or takes the length that
/// it has (0), and maps all of it; answers where. After an error the map is as it was.
///
/// # Safety
/// No thread of this process uses the memory meanwhile.
pub unsafe fn resize(address: *mut u8, length: u64) -> Result<*mut u8, MapError> {
    let _blocked = Blocked::all();
    let _changing = CHANGING.lock();
    let (mapping, mut region) = take(address)?;
    let resized = region.resize(length);
    let start = mapping.show(region);
    resized.map(|()| start)
}

/// Writes the changed pages of maps that no other process can write: the process ends.
pub fn write_all() {
    let _blocked = Blocked::all();
    let _changing = CHANGING.lock();
    for mapping in &MAPPINGS[..USED.load(Acquire)] {
        // SAFETY: a map ends under the lock only.
        let Some(region) = (unsafe { mapping.region.load(Acquire).as_ref() }) else { continue };
        if let Err(error) = region.write_if_last() {
            say!("a map cannot be written at the end of the process: ", &*error.to_string());
        }
    }
}

/// Handles a fault in a map; `NotOurs` for all else.
pub fn on_fault(fault: &Fault) -> Verdict {
    let Some(region) = find(fault.address) else { return Verdict::NotOurs };
    region.tables.header().counts.faults.fetch_add(1, Relaxed);
    let page = region.page_of(fault.address);
    let window = region.streams.window(page);
    if window == WINDOW_MAX {
        read_behind(region, fault.address, page);
    }
    let filled = region.fill(page, window);
    wake_evictor(region);
    match filled {
        Ok(0) if region.streams.repeats(page) > REPEATS_MAX => {
            explain(region, fault.address, FillError::Stuck);
            Verdict::Fatal
        }
        Ok(came) => {
            if came > 0 && came < window {
                region.streams.goes_on(page, window, came);
            }
            Verdict::Retry
        }
        // As for mmap(2): nothing to say.
        Err(FillError::Beyond) => Verdict::Fatal,
        Err(error) => {
            explain(region, fault.address, error);
            Verdict::Fatal
        }
    }
}

/// Asks for what comes behind a full window, if there is RAM for it.
fn read_behind(region: &Region, address: usize, page: u32) {
    let budget = region.tables.header().budget_pages.load(Relaxed);
    let first = page.saturating_add(WINDOW_MAX);
    if u64::from(AHEAD) <= budget / AHEAD_PART
        && first < region.mapped_pages()
        && region.streams.is_foremost(page)
    {
        let asked = ask_ahead(address, first..first.saturating_add(AHEAD));
        region.streams.goes_on(page, WINDOW_MAX, WINDOW_MAX + asked as u32);
    }
}

#[cold]
fn explain(region: &Region, address: usize, error: FillError) {
    let at = deepheap_sys::process::log::Piece::Hex(address as u64);
    let what = "the access to a map stops, at ";
    match error {
        FillError::Beyond => {}
        FillError::Read(ReadError::Truncated) => {
            say!(what, at, ": the file has been cut short by somebody else")
        }
        FillError::Read(ReadError::Io(errno)) => {
            say!(what, at, ": the file cannot be read: ", errno, "; check the device")
        }
        FillError::Read(ReadError::Damaged) => say!(
            what,
            at,
            ": what the log has of the page is damaged: end all processes that have the map, and \
             see `deepheap fsck`",
        ),
        FillError::NoRoom if region.log().is_some() => say!(
            what,
            at,
            ": its RAM and its log are full of changes that are not committed, or the file cannot \
             be written: call dh_sync more often, or free space there",
        ),
        FillError::NoRoom => say!(
            what,
            at,
            ": its RAM is full, and changed pages cannot be written to the file: free space there, \
             or check the device",
        ),
        FillError::Install(Errno::ENOENT) => {
            say!(what, at, ": the program has mapped something else there")
        }
        FillError::Install(errno) => say!(what, at, ": the kernel cannot map the page: ", errno),
        FillError::Stuck => say!(what, at, ": the page is there and faults all the same"),
    }
}

/// Has pages leave that are too many, and a log folded that is too long.
pub(crate) fn wake_evictor(region: &Region) {
    let wants_folding = || region.log().is_some_and(|log| log.wants_folding());
    if region.excess(region.spare()) > 0 || wants_folding() {
        let may_write = region.tables.header().was_writable.load(Relaxed) != 0;
        let wanted = if may_write { (1 << EVICTORS) - 1 } else { 1 };
        if WANTED.fetch_or(wanted, SeqCst) & wanted != wanted {
            EVICTOR.notify(EVICTORS as u32);
        }
    }
}

/// Queues pages of the map of this address to be read; answers how many found room.
pub(crate) fn ask_ahead(address: usize, pages: Range<u32>) -> usize {
    let Some((index, region)) = find_mapping(address) else { return 0 };
    let pages = pages.start..pages.end.min(region.mapped_pages());
    let mut asked = 0;
    // The queue is short work; a thread that finds it taken does without.
    let Some(mut queue) = QUEUE.try_lock() else { return 0 };
    for page in pages {
        if queue.count == AHEAD_MAX {
            break;
        }
        let at = (queue.first + queue.count) % AHEAD_MAX;
        queue.pages[at] = (index as u64) << 32 | u64::from(page);
        queue.count += 1;
        asked += 1;
    }
    QUEUED.store(queue.count, SeqCst);
    drop(queue);
    READER.notify(1);
    asked
}

/// Has a thread of ours use a map for a moment.
fn with(index: usize, act: impl FnOnce(&Region)) -> bool {
    let mapping = &MAPPINGS[index];
    let changing = CHANGING.lock();
    // SAFETY: taken out of the table under the lock only, when nobody uses it.
    let Some(region) = (unsafe { mapping.region.load(Acquire).as_ref() }) else { return false };
    mapping.users.fetch_add(1, SeqCst);
    drop(changing);
    act(region);
    mapping.users.fetch_sub(1, SeqCst);
    true
}

fn start_threads() {
    let own = std::process::id();
    if STARTED.swap(own, AcqRel) == own {
        return;
    }
    let mut started = true;
    for index in 0..EVICTORS {
        started &= thread::spawn(c"deepheap-maps", evict_forever, index).is_ok();
    }
    for _ in 0..READERS {
        started &= thread::spawn(c"deepheap-mapread", read_forever, 0).is_ok();
    }
    // Without them the threads that fault do it all by themselves.
    if !started {
        say!("a thread for maps cannot be started: faults take longer");
    }
}

fn evict_forever(evictor: usize) {
    let _blocked = Blocked::all();
    let own = 1 << evictor;
    loop {
        EVICTOR.wait_unless(|| WANTED.load(SeqCst) & own != 0);
        if WANTED.fetch_and(!own, SeqCst) & own == 0 {
            continue;
        }
        for index in 0..USED.load(Acquire) {
            with(index, |region| {
                let mut idle = 0;
                while region.excess(2 * region.spare()) > 0 && idle < IDLE_LOOKS {
                    idle = if region.evict_some() > 0 { 0 } else { idle + 1 };
                }
                if let Some(log) = region.log().filter(|log| evictor == 0 && log.wants_folding()) {
                    log.fold_all();
                }
            });
        }
    }
}

fn read_forever(_: usize) {
    let _blocked = Blocked::all();
    loop {
        READER.wait_unless(|| QUEUED.load(SeqCst) != 0);
        let (mut pages, mut count, mut index) = ([0u32; BUFFER_PAGES], 0, 0);
        let has_more = {
            let mut queue = QUEUE.lock();
            while queue.count > 0 && count < BUFFER_PAGES {
                let next = queue.pages[queue.first];
                if count > 0 && (next >> 32) as usize != index {
                    break;
                }
                index = (next >> 32) as usize;
                pages[count] = next as u32;
                count += 1;
                queue.first = (queue.first + 1) % AHEAD_MAX;
                queue.count -= 1;
            }
            QUEUED.store(queue.count, SeqCst);
            queue.count > 0
        };
        if count == 0 {
            continue;
        }
        if has_more {
            READER.notify(1);
        }
        with(index, |region| {
            // The thread that touches a page is told what is wrong.
            let mut passed = region.fill_many(&pages[..count]).unwrap_or(0);
            while passed != 0 {
                let index = passed.trailing_zeros() as usize;
                let together = (passed >> index).trailing_ones() as usize;
                let run = pages[index..index + together].windows(2);
                let run = run.take_while(|pair| pair[0] + 1 == pair[1]).count() as u32 + 1;
                let came = region.fill(pages[index], run).unwrap_or(0).clamp(1, run);
                passed &= !(u64::MAX >> (u64::BITS - came) << index);
            }
            wake_evictor(region);
        });
    }
}

/// Whether this process has, or has had, a map.
#[inline]
pub fn any() -> bool {
    USED.load(Acquire) != 0
}

/// The pages of a range that begins in a map, as far as they are in it: the first, and how many.
fn pages_from(address: usize, length: usize) -> Option<(&'static Region, u32, u32)> {
    let region = find(address)?;
    let end = address.saturating_add(length.max(1)).min(region.base + region.bytes);
    let first = region.page_of(address);
    Some((region, first, region.page_of(end - 1) + 1 - first))
}

/// Has the pages of a range come, and keeps them in RAM until `unpin` of the same range. Err: that
/// would be too much; nothing is pinned. Addresses in no map count for nothing.
pub fn pin(address: usize, length: usize, kind: PinKind) -> Result<(), TooMuch> {
    let Some((region, first, count)) = pages_from(address, length) else { return Ok(()) };
    let _blocked = Blocked::all();
    let pinned = region.pin(first, count, kind);
    wake_evictor(region);
    pinned
}

/// Ends one pin of the same range.
pub fn unpin(address: usize, length: usize) {
    if let Some((region, first, count)) = pages_from(address, length) {
        region.tables.unpin(first, count);
    }
}

/// The calling thread ends: so do the pins of its calls.
pub fn unpin_thread() {
    for index in 0..USED.load(Acquire) {
        let _blocked = Blocked::all();
        with(index, |region| region.tables.unpin_thread());
    }
}

/// Before `fork`: no map comes or goes. All signals are blocked until after it.
pub fn fork_prepare() {
    core::mem::forget(CHANGING.lock());
    core::mem::forget(QUEUE.lock());
}

/// After `fork`, in the parent.
///
/// # Safety
/// This thread called `fork_prepare`.
pub unsafe fn fork_parent() {
    // SAFETY: the caller's promise.
    unsafe {
        QUEUE.unlock_forgotten();
        CHANGING.unlock_forgotten();
    }
}

/// After `fork`, in the child, before anything else: every map is joined anew. Err: a map cannot
/// be, and must not be touched.
///
/// # Safety
/// This thread called `fork_prepare` in the parent; the child has no other one.
pub unsafe fn fork_child() -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        QUEUE.force_unlock();
        CHANGING.force_unlock();
    }
    QUEUE.lock().count = 0;
    QUEUED.store(0, Relaxed);
    // Also if no file could be mapped so far: the next one uses what `prepare` has made.
    let Some(zapper) = ZAPPER.get() else { return Ok(()) };
    // SAFETY: the caller's promise; nobody forks while a buffer is in use by the same thread.
    unsafe { staging::after_fork() }?;
    // SAFETY: the caller's promise.
    unsafe { forget_rings() };
    // SAFETY: the caller's promise.
    unsafe { forget_writers() };
    EVICTOR.forget_others();
    READER.forget_others();
    zapper.after_fork();
    let mut has_maps = false;
    for mapping in &MAPPINGS[..USED.load(Acquire)] {
        mapping.users.store(0, Relaxed);
        // SAFETY: the child has one thread, and it uses no map now.
        if let Some(region) = unsafe { mapping.region.load(Acquire).as_mut() } {
            region.after_fork()?;
            has_maps = true;
        }
    }
    prepare_rings();
    if has_maps {
        start_threads();
    }
    Ok(())
}
