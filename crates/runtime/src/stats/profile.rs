//! Profile: some of the faults, each with registers and stack of its thread, for `deepheap
//! profile`.
//!
//! The command makes a file in shared memory: a page of numbers (`Control`), and slots. A process
//! that is profiled maps it, and its forked children have the mapping, too. Waits of a group of
//! threads add up; the fault with which they pass an interval, which varies, is a *sample* and
//! stands for all of them. It takes the next slot for good. The interval doubles each time that
//! `LEVEL` slots are taken: so sampling costs less and less, and the slots never run out.
//!
//! Slots are written by the kernel, which copies out of this process's memory (`own_memory`). It
//! stops at stack that is absent, and where there is no memory for the slot, and raises no signal.
//!
//! Behind them are as many slots for allocations, which `allocations` takes and gives back.
//!
//! Guarantees: the samples stand for all waits, apart from those since the last one of each group.
//! Without a profile, `note` is one look at a pointer.
//! Never: allocates or locks in `note`; is believed by the reader.
//! Threads: any may note, in the fault handler; `join` outside of it.

use core::mem::offset_of;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64};
use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use deepheap_pager::FaultKind;
use deepheap_sys::faults::fault_signal::Fault;
use deepheap_sys::memory::own_memory::{self, Part};
use deepheap_sys::process::{clock, environment};
use deepheap_sys::say;
use deepheap_sys::threads::tls;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Names the profile, for the program and its children.
pub const PROFILE_VARIABLE: &str = "DEEPHEAP_PROFILE";
/// Behind the number in it: allocations are sampled, too.
pub const WITH_ALLOCATIONS: &str = "+allocations";
const PAGE: usize = 4096;
/// Bytes of a slot, of which a `Head` and stack behind it are a sample.
const SLOT_BYTES: usize = 16 << 10;
const HEAD_BYTES: usize = size_of::<Head>();
/// Slots of a file for faults, and for allocations.
pub(crate) const SLOTS: u64 = 8192;
/// Slots that are taken before samples become half as many.
const LEVEL: u64 = 256;
/// The interval at first: a sample takes some microseconds.
const INTERVAL_NS: u64 = 250_000;
/// Bytes of the file; those that nobody wrote take no memory.
const FILE_BYTES: usize = PAGE + 2 * SLOTS as usize * SLOT_BYTES;
/// Where the slots begin in the file, and their bytes.
pub const ALL_SLOTS: (i64, i64) = (PAGE as i64, (FILE_BYTES - PAGE) as i64);
/// The kind of a slot that holds lines of /proc/PID/maps; those of samples are smaller.
const MODULES: u64 = 100;
/// The kind of a slot that holds an allocation.
const ALLOCATION: u64 = 101;

/// The numbers of a profile.
#[repr(C)]
pub(crate) struct Control {
    /// 0 once it is over.
    interval_ns: AtomicU64,
    /// Slots taken.
    taken: AtomicU64,
    /// Slots that could not be written or were not there.
    lost: AtomicU64,
    /// Processes that have joined, their forked children not counted.
    joined: AtomicU64,
    /// Which slots of allocations are taken, a bit each.
    allocations: [AtomicU64; SLOTS as usize / 64],
    /// Allocations that found no slot.
    allocations_lost: AtomicU64,
}

const _: () = assert!(size_of::<Control>() <= PAGE);

/// What a slot begins with.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout,
)]
pub struct Head {
    /// 1 and what `FaultKind` it was, or that it holds modules or an allocation. 0: nobody wrote
    /// it.
    kind: u64,
    /// The process.
    pub pid: u64,
    /// Which process that joined it is, or was forked from: all with this number have the same
    /// modules. From 1 on.
    pub image: u64,
    /// The thread, as the kernel numbers it.
    pub thread: u64,
    /// The instruction, the stack pointer and rbp.
    pub ip: u64,
    /// See `ip`.
    pub sp: u64,
    /// See `ip`.
    pub bp: u64,
    /// Nanoseconds of waiting that it stands for.
    pub waited_ns: u64,
    /// Faults that it stands for.
    pub faults: u64,
    /// Bytes of modules.
    bytes: u64,
    /// Bytes that an allocation stands for: those in RAM, those compressed there, and those on
    /// SSD, when most was cold.
    pub places: [u64; 3],
}

/// What threads of a lane have waited since their last sample.
#[repr(align(64))]
struct Lane {
    /// Until the next sample.
    left_ns: AtomicI64,
    waited_ns: AtomicU64,
    faults: AtomicU64,
}

static CONTROL: AtomicPtr<Control> = AtomicPtr::new(core::ptr::null_mut());
/// See `Head`.
static IMAGE: AtomicU64 = AtomicU64::new(0);
/// The profile that is joined, or to be joined when there are faults; 0 if there is none.
static NUMBER: AtomicU64 = AtomicU64::new(0);
static LANES: [Lane; 16] = [const {
    Lane { left_ns: AtomicI64::new(0), waited_ns: AtomicU64::new(0), faults: AtomicU64::new(0) }
}; 16];

/// A fault has been served.
#[inline]
pub(crate) fn note(fault: &Fault, kind: FaultKind, ns: u64) {
    // Acquire: IMAGE is that of the profile.
    let control = CONTROL.load(Acquire);
    if !control.is_null() {
        // SAFETY: `join` mapped it for good.
        count(unsafe { &*control }, fault, kind, ns);
    }
}

/// Counts a fault, and samples it if it is due. The numbers of a lane are threads' that may come
/// in between: relaxed, for one swap takes each nanosecond once, whoever takes it.
#[cold]
fn count(control: &Control, fault: &Fault, kind: FaultKind, ns: u64) {
    let interval_ns = control.interval_ns.load(Relaxed);
    if interval_ns == 0 {
        return;
    }
    let lane = &LANES[tls::lane()];
    lane.waited_ns.fetch_add(ns, Relaxed);
    lane.faults.fetch_add(1, Relaxed);
    if lane.left_ns.fetch_sub(ns as i64, Relaxed) > ns as i64 {
        return;
    }
    let level = control.taken.load(Relaxed).min(SLOTS) / LEVEL;
    let mean_ns = interval_ns.min(1 << 20) << level;
    lane.left_ns.store((mean_ns / 2 + scattered(clock::monotonic_ns()) % mean_ns) as i64, Relaxed);
    let faults = lane.faults.swap(0, Relaxed);
    if faults == 0 {
        return; // another thread has sampled just now
    }
    let [ip, sp, bp] = fault.registers().map(|register| register as u64);
    let head = Head {
        kind: kind as u64 + 1,
        pid: std::process::id().into(),
        image: IMAGE.load(Relaxed),
        thread: tls::thread_id().into(),
        ip,
        sp,
        bp,
        waited_ns: lane.waited_ns.swap(0, Relaxed),
        faults,
        ..Head::default()
    };
    write(control, &head, sp as usize, SLOT_BYTES - HEAD_BYTES);
}

/// Any number from a time, so that loops are not sampled at one place.
fn scattered(ns: u64) -> u64 {
    ns.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// Writes the next slot: the head, and up to so many bytes from there on, as many as can be read.
fn write(control: &Control, head: &Head, from: usize, length: usize) {
    let slot = control.taken.fetch_add(1, Relaxed);
    if slot >= SLOTS || !copy(control, slot, head, from, length) {
        control.lost.fetch_add(1, Relaxed);
    }
}

/// The place of a slot in the mapping.
fn at_slot(control: &Control, slot: u64) -> *mut u8 {
    let start = core::ptr::from_ref(control).cast_mut().cast::<u8>();
    start.wrapping_add(PAGE + slot as usize * SLOT_BYTES)
}

fn copy(control: &Control, slot: u64, head: &Head, from: usize, length: usize) -> bool {
    const PARTS: usize = SLOT_BYTES / PAGE + 2;
    let to = at_slot(control, slot);
    let head = core::ptr::from_ref(head) as usize;
    let mut parts = [Part { from: head, to, length: HEAD_BYTES }; PARTS];
    let (mut count, mut done) = (1, 0);
    // A part is whole or not at all, so each has its own page.
    while done < length && count < PARTS {
        let at = from.wrapping_add(done);
        let part = (PAGE - at % PAGE).min(length - done);
        // SAFETY: the slot has so many bytes.
        parts[count] = Part { from: at, to: unsafe { to.add(HEAD_BYTES + done) }, length: part };
        (count, done) = (count + 1, done + part);
    }
    // SAFETY: nobody else has the slot, and nobody reads it through a reference. The kernel writes
    // to it: if there is no memory for it, the copy ends.
    unsafe { own_memory::copy(&parts[..count]) }.is_ok_and(|whole| whole > 0)
}

/// The slots of allocations, by number from 0 on. The orders are relaxed: a bit says who may write
/// a slot, and the kernel writes it.
impl Control {
    /// The profile that this process has joined.
    pub(crate) fn joined() -> Option<&'static Control> {
        // Acquire: as in `note`.
        // SAFETY: null, or `join` mapped it for good.
        unsafe { CONTROL.load(Acquire).cast_const().as_ref() }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.interval_ns.load(Relaxed) == 0
    }

    /// Takes a slot and writes it: what is known of an allocation, and the stack from `sp` on.
    pub(crate) fn write_allocation(&self, [ip, sp, bp]: [u64; 3]) -> Option<u64> {
        let slot = self.take_slot()?;
        let (pid, image) = (std::process::id().into(), IMAGE.load(Relaxed));
        let thread = tls::thread_id().into();
        let head = Head { kind: ALLOCATION, pid, image, thread, ip, sp, bp, ..Head::default() };
        if copy(self, SLOTS + slot, &head, sp as usize, SLOT_BYTES - HEAD_BYTES) {
            return Some(slot);
        }
        self.give_slot(slot);
        None
    }

    /// Counts an allocation that could not be written.
    pub(crate) fn lose_allocation(&self) {
        self.allocations_lost.fetch_add(1, Relaxed);
    }

    fn take_slot(&self) -> Option<u64> {
        self.allocations.iter().zip(0..).find_map(|(word, at)| {
            loop {
                let bit = (!word.load(Relaxed)).trailing_zeros();
                if bit == u64::BITS {
                    return None;
                }
                if word.fetch_or(1 << bit, Relaxed) & 1 << bit == 0 {
                    return Some(at * 64 + u64::from(bit));
                }
            }
        })
    }

    /// Gives a slot of this process back.
    pub(crate) fn give_slot(&self, slot: u64) {
        self.allocations[slot as usize / 64].fetch_and(!(1 << (slot % 64)), Relaxed);
    }

    /// An empty one, for good.
    #[cfg(test)]
    pub(crate) fn of_test() -> &'static Control {
        let (at, rights) = (core::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses a free place; zero bytes are valid atomics.
        unsafe {
            let mapped = libc::mmap(at, FILE_BYTES, rights, flags, -1, 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            &*mapped.cast::<Control>()
        }
    }

    /// How many slots of allocations are taken.
    #[cfg(test)]
    pub(crate) fn taken_slots(&self) -> u32 {
        self.allocations.iter().map(|word| word.load(Relaxed).count_ones()).sum()
    }

    /// Writes where the bytes are that an allocation stands for.
    pub(crate) fn tell_places(&self, slot: u64, places: [u64; 3]) {
        let to = at_slot(self, SLOTS + slot).wrapping_add(offset_of!(Head, places));
        let part = Part { from: places.as_ptr() as usize, to, length: size_of_val(&places) };
        // SAFETY: the slot is this process's. If there is no memory for it, it stays.
        let _ = unsafe { own_memory::copy(&[part]) };
    }
}

/// As the environment says; for the start, before the environment can be managed memory. Whether
/// allocations are to be sampled: then it is joined now.
pub(crate) fn learn_number() -> bool {
    let value = environment::variable(PROFILE_VARIABLE);
    let value = value.as_ref().and_then(|value| value.to_str());
    let with = value.and_then(|value| value.strip_suffix(WITH_ALLOCATIONS));
    let number = with.or(value).and_then(|text| u64::from_str_radix(text, 16).ok());
    NUMBER.store(number.unwrap_or(0), Relaxed);
    if with.is_some() {
        begin();
    }
    with.is_some() && Control::joined().is_some()
}

/// There will be faults from now on: joins the profile of the environment.
pub(crate) fn begin() {
    if CONTROL.load(Relaxed).is_null() {
        join(NUMBER.load(Relaxed));
    }
}

/// Joins another profile, which this process was asked to join.
pub(crate) fn follow(number: u64) {
    if number != 0 && NUMBER.swap(number, Relaxed) != number {
        join(number);
    }
}

fn join(number: u64) {
    if number != 0
        && let Err(error) = try_join(number)
        && error.kind() != ErrorKind::NotFound
    // it is over
    {
        say!("this process is not profiled: ", &*error.to_string());
    }
}

fn try_join(number: u64) -> Result<()> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(flags).open(path_of(number))?;
    let status = file.metadata()?;
    // SAFETY: no arguments.
    if status.uid() != unsafe { libc::geteuid() } || status.len() < FILE_BYTES as u64 {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let (at, fd) = (core::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: the kernel chooses a free place.
    let mapped = unsafe { libc::mmap(at, FILE_BYTES, rights, libc::MAP_SHARED, fd, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    let control = mapped.cast::<Control>();
    // SAFETY: mapped above; zero bytes are valid atomics. The command wrote this page, so there is
    // memory for it, and does not make the file shorter.
    IMAGE.store(unsafe { (*control).joined.fetch_add(1, Relaxed) } + 1, Relaxed);
    // An earlier one stays mapped: a thread may be at it.
    CONTROL.store(control, Release);
    note_modules();
    Ok(())
}

/// Puts down which files are mapped where, as far as they can be executed. Outside of the fault
/// path.
pub(crate) fn note_modules() {
    let control = CONTROL.load(Acquire);
    if control.is_null() {
        return;
    }
    // SAFETY: `join` mapped it for good.
    let control = unsafe { &*control };
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut text = String::new();
    let flush = |text: &mut String| {
        let (pid, image) = (std::process::id().into(), IMAGE.load(Relaxed));
        let head = Head { kind: MODULES, pid, image, bytes: text.len() as u64, ..Head::default() };
        write(control, &head, text.as_ptr() as usize, text.len());
        text.clear();
    };
    for line in maps.lines().filter(|line| is_module(line)) {
        if text.len() + line.len() >= SLOT_BYTES - HEAD_BYTES {
            flush(&mut text);
        }
        text += line;
        text.push('\n');
    }
    flush(&mut text);
}

/// Whether a line of /proc/PID/maps is of a file that can be executed.
pub fn is_module(line: &str) -> bool {
    line.len() < PAGE && line.contains(" r-xp ") && line.contains('/')
}

/// In the child of a fork: what its parent has waited is the parent's.
pub(crate) fn become_child() {
    for lane in &LANES {
        lane.waited_ns.store(0, Relaxed);
        lane.faults.store(0, Relaxed);
    }
}

/// Where a profile is, as its processes see it.
pub fn path_of(number: u64) -> PathBuf {
    format!("/dev/shm/deepheap-profile-{number:016x}").into()
}

/// What a profile holds.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Samples, in the order of their slots, with the stack from `sp` on, as far as
    /// it is known.
    pub samples: Vec<(Head, Vec<u8>)>,
    /// Allocations of which something is in RAM or on SSD, likewise.
    pub allocations: Vec<(Head, Vec<u8>)>,
    /// Lines of /proc/PID/maps, by `image`.
    pub modules: Vec<(u64, String)>,
    /// Samples that are missing.
    pub lost: u64,
    /// Allocations that are missing.
    pub allocations_lost: u64,
}

impl Head {
    /// What kind of fault it was.
    pub fn kind(&self) -> Option<FaultKind> {
        FaultKind::ALL.into_iter().find(|kind| *kind as u64 + 1 == self.kind)
    }
}

/// The command: makes an empty profile of this file.
///
/// # Errors
/// What the kernel said.
pub fn make(file: &File) -> Result<()> {
    file.set_len(FILE_BYTES as u64)?;
    file.write_all_at(&[0; PAGE], 0)?;
    file.write_all_at(&INTERVAL_NS.to_ne_bytes(), offset_of!(Control, interval_ns) as u64)
}

/// The command: nothing is sampled from now on.
///
/// # Errors
/// What the kernel said.
pub fn end(file: &File) -> Result<()> {
    file.write_all_at(&[0; 8], offset_of!(Control, interval_ns) as u64)
}

fn number_at(file: &File, offset: usize) -> Result<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, offset as u64)?;
    Ok(u64::from_ne_bytes(word))
}

/// The command: how many processes have joined.
///
/// # Errors
/// What the kernel said.
pub fn joined(file: &File) -> Result<u64> {
    number_at(file, offset_of!(Control, joined))
}

/// The command: what is in it.
///
/// # Errors
/// What the kernel said.
pub fn read(file: &File) -> Result<Recorded> {
    let number = |offset| number_at(file, offset);
    let mut recorded = Recorded {
        lost: number(offset_of!(Control, lost))?,
        allocations_lost: number(offset_of!(Control, allocations_lost))?,
        ..Recorded::default()
    };
    let taken = number(offset_of!(Control, taken))?.min(SLOTS);
    let mut slots: Vec<u64> = (0..taken).collect();
    for word in 0..SLOTS / 64 {
        let bits = number(offset_of!(Control, allocations) + word as usize * 8)?;
        let is_taken = |bit: &u64| bits & 1 << bit != 0;
        slots.extend((0..64).filter(is_taken).map(|bit| SLOTS + word * 64 + bit));
    }
    let mut bytes = vec![0; SLOT_BYTES];
    for slot in slots {
        file.read_exact_at(&mut bytes, (PAGE + slot as usize * SLOT_BYTES) as u64)?;
        let Ok((head, rest)) = Head::read_from_prefix(&bytes) else { continue };
        let stack = || {
            let end = rest.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            rest[..end.next_multiple_of(8)].to_vec()
        };
        if head.kind == MODULES {
            let text = &rest[..rest.len().min(head.bytes as usize)];
            recorded.modules.push((head.image, String::from_utf8_lossy(text).into_owned()));
        } else if head.kind == ALLOCATION && head.places != [0; 3] {
            recorded.allocations.push((head, stack()));
        } else if head.kind().is_some() {
            recorded.samples.push((head, stack()));
        }
    }
    Ok(recorded)
}
