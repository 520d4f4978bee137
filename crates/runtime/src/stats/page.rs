//! Statistics page: the live counters of a process, in shared memory that `deepheap stat` reads.
//!
//! It is a memfd named `deepheap-stats`, mapped shared by the process and found by others through
//! the links of `/proc/PID/fd`. Counters and histograms are sharded so that threads do not fight
//! for cache lines.
//!
//! Guarantees: `add`, `set`, `record` and `sample` are wait-free; a reader never disturbs the
//! writer; a page is read only if magic, version and size match.
//! Never: allocates, blocks or locks in `add`, `set`, `record`, `sample` and `snapshot`.
//! Threads: any thread, also in a signal handler; `become_child` only in a fork's child, alone.

use core::ffi::CStr;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use deepheap_sys::files::file_status::FileId;
use deepheap_sys::files::own_descriptor::OwnDescriptor;
use deepheap_sys::memory::memory_file;
use deepheap_sys::process::{clock, command_line};
use deepheap_sys::threads::waits::Cause;

use crate::number;
pub use crate::stats::heap_map::{HeapMap, HeapMapCopy};
use crate::stats::histogram::AtomicHistogram;
pub use crate::stats::histogram::Histogram;
use crate::stats::longest_waits::LongestWaits;
pub use crate::stats::wish::Wish;
use crate::stats::{FaultKind, Latency, Number, STATS_VERSION, Stats};

/// Name of the memfd; `/proc/PID/fd/N` of a running deepheap links to `/memfd:deepheap-stats`.
pub const STATS_PAGE_NAME: &CStr = c"deepheap-stats";
/// The page's first bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"dh-stats");
/// Counts up when the page's layout changes and that of `Stats` does not.
const LAYOUT: u32 = 2;
/// Version of the page.
const PAGE_VERSION: u32 = STATS_VERSION * 100 + LAYOUT;
/// Number of shards; a caller's index is taken modulo this.
pub const SHARDS: usize = 16;
/// Bytes of a process's name.
const NAME_BYTES: usize = 48;
/// One of so many faults of a shard is kept as a sample.
pub const FAULTS_PER_SAMPLE: u64 = 16;
/// Samples that a shard keeps.
pub const SAMPLES: usize = 32;

/// What can be asked of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To bring the gauges up to date.
    Gauges,
    /// That, and a map of its heap.
    Map,
    /// That, and to use no more than so many bytes of RAM from now on; not 0.
    Budget(u64),
    /// That, and to be in the profile of this number; not 0.
    Profile(u64),
}

/// The last samples of a shard: addresses of instructions that faulted.
#[repr(C)]
struct Ring {
    /// Faults of the shard.
    faults: AtomicU64,
    code: [AtomicU64; SAMPLES],
}

/// The counts of one group of threads; two cache lines apart from its neighbours.
#[repr(C, align(128))]
struct Shard {
    counts: [AtomicU64; Number::COUNT],
    latencies: [AtomicHistogram; FaultKind::ALL.len()],
    ring: Ring,
}

/// The shared page (some pages, in truth; only those written to take memory).
#[repr(C, align(4096))]
pub struct StatsPage {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU32,
    pid: AtomicU32,
    managing: AtomicU32,
    /// The memfd in the process that owns the page.
    descriptor: AtomicI32,
    /// Inode of the memfd.
    inode: AtomicU64,
    /// CLOCK_BOOTTIME when the page was made.
    started_ns: AtomicU64,
    wish: Wish,
    /// What the process was started as, for people; zeros behind it.
    name: [AtomicU8; NAME_BYTES],
    /// Numbers that are not counted by shards.
    set: [AtomicU64; Number::COUNT],
    longest_waits: LongestWaits,
    shards: [Shard; SHARDS],
    heap_map: HeapMap,
}

/// Its process has only begun to make it.
fn being_made() -> Error {
    Error::new(ErrorKind::NotFound, "a statistics page that is being made")
}

impl StatsPage {
    /// Makes and maps the page of this process; it stays until the process ends.
    ///
    /// # Errors
    /// What memfd_create, ftruncate or mmap said.
    pub fn create() -> Result<&'static StatsPage> {
        let mut name = [0; NAME_BYTES];
        command_line::short_name(&mut name);
        // SAFETY: null asks the kernel for a place of its own choice: nothing is replaced.
        let page = unsafe { Self::map_new(core::ptr::null_mut(), name)? };
        // SAFETY: map_new returned a live shared mapping of size_of::<StatsPage>() bytes that
        // nobody unmaps; zero bytes are valid atomics.
        Ok(unsafe { &*page })
    }

    /// Gives a fork's child a page of its own, empty, at the same address, so that references
    /// stay good, and closes the inherited one. Async-signal-safe.
    ///
    /// # Errors
    /// As `create`; the child then still shares its parent's page.
    pub fn become_child(&'static self) -> Result<()> {
        // SAFETY: `map_new` kept it, in the parent, and it is still open; taken back once, since
        // the page that names it is replaced below or the child has no statistics.
        let inherited = self.file().map(|file| unsafe { OwnDescriptor::take_back(file) });
        let name = self.name.each_ref().map(|byte| byte.load(Relaxed));
        let wish = self.wish.copy();
        // SAFETY: the address is that of the mapping made by `create`, of the same length; the
        // fresh mapping replaces it in one step and is as valid for `&self`. The only thread of
        // a fork's child is here.
        unsafe { Self::map_new(core::ptr::from_ref(self).cast_mut(), name)? };
        // What the parent was told holds for the child.
        self.wish.set(wish);
        drop(inherited);
        Ok(())
    }

    /// A fresh page, mapped at `at` if that is not null. A page that was mapped there is gone
    /// only if all went well.
    ///
    /// # Safety
    /// `at` is null or the address of a page mapped by this function.
    unsafe fn map_new(at: *mut StatsPage, name: [u8; NAME_BYTES]) -> Result<*mut StatsPage> {
        let file = memory_file::create(STATS_PAGE_NAME, size_of::<StatsPage>())?;
        let inode = FileId::of(file.as_raw_fd())?.inode;
        // SAFETY: the caller's promise.
        let page = unsafe { Self::map(file.as_raw_fd(), at)? };
        // SAFETY: a live mapping of that size, aligned to a page, zero bytes are valid atomics.
        let header = unsafe { &*page };
        header.version.store(PAGE_VERSION, Relaxed);
        header.size.store(size_of::<StatsPage>() as u32, Relaxed);
        header.pid.store(std::process::id(), Relaxed);
        header.descriptor.store(file.keep(), Relaxed);
        header.inode.store(inode, Relaxed);
        header.name.iter().zip(name).for_each(|(to, byte)| to.store(byte, Relaxed));
        header.started_ns.store(clock::boot_ns(), Relaxed);
        header.magic.store(MAGIC, Release);
        Ok(page)
    }

    /// Maps the page of a file, shared: at `at`, or where there is room.
    ///
    /// # Safety
    /// `at` is null or the address of a page mapped by this function, which is replaced.
    unsafe fn map(file: RawFd, at: *mut StatsPage) -> Result<*mut StatsPage> {
        let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | fixed);
        // SAFETY: without `at` the kernel chooses a free address; with it the caller vouches that
        // a page of this length is there to be replaced.
        let mapped = unsafe { libc::mmap(at.cast(), size_of::<Self>(), rights, flags, file, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(mapped.cast())
    }

    /// The descriptor of the page's file in the process that owns it; none if that was closed.
    pub(crate) fn file(&self) -> Option<RawFd> {
        let (descriptor, inode) = (self.descriptor.load(Relaxed), self.inode.load(Relaxed));
        let is_ours = FileId::of(descriptor).is_ok_and(|found| found.inode == inode);
        is_ours.then_some(descriptor)
    }

    /// What its process was started as, for people.
    pub fn name(&self) -> String {
        let bytes = self.name.each_ref().map(|byte| byte.load(Relaxed));
        let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    /// Adds `n` to a number. `shard` is any that differs between busy threads.
    #[inline]
    pub fn add(&self, shard: usize, number: Number, n: u64) {
        self.shards[shard % SHARDS].counts[number.index()].fetch_add(n, Relaxed);
    }

    /// Sets a number to which nobody adds.
    #[inline]
    pub fn set(&self, number: Number, value: u64) {
        self.set[number.index()].store(value, Relaxed);
    }

    /// Sets a number to which nobody adds, if this is more than it is.
    #[inline]
    pub fn raise(&self, number: Number, value: u64) {
        self.set[number.index()].fetch_max(value, Relaxed);
    }

    /// Whether memory is under management.
    pub fn set_managing(&self, is_managing: bool) {
        self.managing.store(is_managing.into(), Relaxed);
    }

    /// What another process wishes of this one.
    pub fn wish(&self) -> &Wish {
        &self.wish
    }

    /// Counts a fault that took `ns` nanoseconds.
    #[inline]
    pub fn record(&self, shard: usize, kind: FaultKind, ns: u64) {
        self.shards[shard % SHARDS].latencies[kind as usize].record(ns);
    }

    /// A fault of so many nanoseconds ended, which waited for that.
    #[inline]
    pub(crate) fn note_wait(&self, cause: Cause, ns: u64, now_ns: u64) {
        self.longest_waits.note(cause, ns, now_ns);
    }

    /// The longest fault of the last minute, for each cause of waiting; each is a number.
    fn longest_waits(&self) -> [(Number, u64); Cause::ALL.len()] {
        let now_ns = clock::monotonic_ns();
        Cause::ALL.map(|cause| {
            let number = match cause {
                Cause::Other => number!(wait_other_ns),
                Cause::Room => number!(wait_room_ns),
                Cause::TakeOver => number!(wait_take_over_ns),
                Cause::Owner => number!(wait_owner_ns),
                Cause::Fork => number!(wait_fork_ns),
                Cause::Checkpoint => number!(wait_checkpoint_ns),
                Cause::Device => number!(wait_device_ns),
                Cause::Log => number!(wait_log_ns),
                Cause::Table => number!(wait_table_ns),
            };
            (number, self.longest_waits.longest_ns(cause, now_ns))
        })
    }

    /// Keeps the address of the instruction of one of some faults.
    #[inline]
    pub fn sample(&self, shard: usize, code: usize) {
        let ring = &self.shards[shard % SHARDS].ring;
        let fault = ring.faults.fetch_add(1, Relaxed);
        if fault.is_multiple_of(FAULTS_PER_SAMPLE) {
            ring.code[(fault / FAULTS_PER_SAMPLE) as usize % SAMPLES].store(code as u64, Relaxed);
        }
    }

    /// The samples of a shard that were taken since it had `earlier` faults, as many as are kept,
    /// and how many faults it has now.
    pub fn samples_since(&self, shard: usize, earlier: u64) -> (u64, Vec<u64>) {
        let ring = &self.shards[shard % SHARDS].ring;
        let faults = ring.faults.load(Relaxed);
        let (first, end) =
            (earlier.div_ceil(FAULTS_PER_SAMPLE), faults.div_ceil(FAULTS_PER_SAMPLE));
        let kept = first.max(end.saturating_sub(SAMPLES as u64))..end;
        let samples = kept.map(|taken| ring.code[taken as usize % SAMPLES].load(Relaxed));
        (faults, samples.collect())
    }

    /// The value that a number was set to.
    pub fn last_set(&self, number: Number) -> u64 {
        self.set[number.index()].load(Relaxed)
    }

    /// The sum of a number, by shard.
    pub fn by_shard(&self, number: Number) -> [u64; SHARDS] {
        self.shards.each_ref().map(|shard| shard.counts[number.index()].load(Relaxed))
    }

    /// The value of a number.
    pub fn value(&self, number: Number) -> u64 {
        self.by_shard(number).into_iter().fold(self.last_set(number), u64::saturating_add)
    }

    /// All latencies of a kind of fault.
    pub fn histogram(&self, kind: FaultKind) -> Histogram {
        let mut histogram = Histogram::default();
        for shard in &self.shards {
            shard.latencies[kind as usize].add_to(&mut histogram);
        }
        histogram
    }

    /// Where the pages of the heap are.
    pub fn heap_map(&self) -> &HeapMap {
        &self.heap_map
    }

    /// Asks the process whose page this file is for something. Returns at once; later copies of the
    /// page show it.
    ///
    /// # Errors
    /// What the kernel said; `InvalidData` for a file that somebody may make shorter.
    pub fn ask(file: &File, what: Request) -> Result<()> {
        let keeps_length = memory_file::keeps_length(file.as_raw_fd());
        if !keeps_length || file.metadata()?.len() < size_of::<Self>() as u64 {
            return Err(Error::new(ErrorKind::InvalidData, "not a statistics page"));
        }
        // SAFETY: null: the kernel chooses a free address.
        let page = unsafe { Self::map(file.as_raw_fd(), core::ptr::null_mut())? };
        // SAFETY: mapped a line above. The file is as long and cannot become shorter, so no touch
        // faults; zero bytes, and all others, are valid atomics. Nobody else knows of the mapping.
        unsafe {
            // The request behind it releases it.
            match what {
                Request::Budget(bytes) => (*page).wish.set(bytes),
                Request::Profile(number) => (*page).wish.set_profile(number),
                Request::Gauges | Request::Map => {}
            }
            (*page).heap_map.ask(what == Request::Map);
            libc::munmap(page.cast(), size_of::<Self>());
        }
        Ok(())
    }

    /// Everything at once (each number by itself is exact, together they are a moment apart).
    pub fn snapshot(&self) -> Stats {
        let latency = |kind| Latency::of(&self.histogram(kind));
        let mut stats = Stats {
            version: STATS_VERSION,
            size: size_of::<Stats>() as u32,
            pid: self.pid.load(Relaxed),
            managing: self.managing.load(Relaxed),
            uptime_ns: clock::boot_ns().saturating_sub(self.started_ns.load(Relaxed)),
            fault_zero: latency(FaultKind::Zero),
            fault_cached: latency(FaultKind::Cached),
            fault_stored: latency(FaultKind::Stored),
            fault_waited: latency(FaultKind::Waited),
            ..Stats::default()
        };
        Number::all().for_each(|number| *number.of_mut(&mut stats) = self.value(number));
        // Nobody counts them.
        self.longest_waits().iter().for_each(|(number, ns)| *number.of_mut(&mut stats) += ns);
        stats
    }

    /// A copy of another process's page, from its memfd (`offset` 0) or its memory. Reading
    /// instead of mapping: a file that shrinks under a mapping would kill the reader.
    ///
    /// # Errors
    /// What the read said; `InvalidData` if it is no page, or one of another version; `NotFound` if
    /// it is being made.
    pub fn read_copy(file: &File, offset: u64) -> Result<Box<StatsPage>> {
        let mut copy = Box::<StatsPage>::new_uninit();
        // SAFETY: the box owns size_of::<StatsPage>() writable bytes, zeroed before they are
        // seen as a slice.
        let bytes = unsafe {
            copy.as_mut_ptr().write_bytes(0, 1);
            core::slice::from_raw_parts_mut(copy.as_mut_ptr().cast::<u8>(), size_of::<StatsPage>())
        };
        file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => match file.metadata() {
                Ok(metadata) if metadata.len() == 0 => being_made(),
                _ => Error::new(ErrorKind::InvalidData, "too short"),
            },
            _ => error,
        })?;
        // A map that was written meanwhile may be of two editions.
        let mut edition = [0; 8];
        let at = core::mem::offset_of!(StatsPage, heap_map) + HeapMap::EDITION_OFFSET;
        file.read_exact_at(&mut edition, offset + at as u64)?;
        // SAFETY: every byte was written, and any bytes are valid atomics.
        let copy = unsafe { copy.assume_init() };
        copy.heap_map.keep_if(u64::from_ne_bytes(edition));
        let (version, size) = (copy.version.load(Relaxed), copy.size.load(Relaxed));
        match copy.magic.load(Relaxed) {
            MAGIC => {}
            0 => return Err(being_made()),
            _ => return Err(Error::new(ErrorKind::InvalidData, "not a statistics page")),
        }
        if version != PAGE_VERSION || size as usize != size_of::<StatsPage>() {
            let text =
                format!("statistics of version {version}, this command knows {PAGE_VERSION}");
            return Err(Error::new(ErrorKind::InvalidData, text));
        }
        Ok(copy)
    }

    /// The process that owns the page, in its own pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::report::{longest_wait, stats_json};

    #[test]
    fn the_longest_wait_is_told_with_its_cause() {
        let page = StatsPage::create().expect("memfd");
        let now_ns = clock::monotonic_ns();
        assert!(longest_wait(&page.snapshot()).starts_with("none"));
        page.note_wait(Cause::Room, 20_000_000, now_ns);
        page.note_wait(Cause::Fork, 34_000_000, now_ns);
        page.note_wait(Cause::Fork, 21_000_000, now_ns);
        let stats = page.snapshot();
        assert_eq!((stats.wait_room_ns, stats.wait_fork_ns), (20_000_000, 34_000_000));
        assert_eq!(longest_wait(&stats), "longest of the last minute: 34.0 ms, for a fork");
        assert!(stats_json(&stats).contains("\"fork_ns\":34000000"));
    }
}
