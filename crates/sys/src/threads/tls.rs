//! Thread area: a few words of our own for every thread, two instructions away.
//!
//! Guarantees: zeroed for every new thread, the same address for a thread's whole life;
//! initial-exec TLS, so reading it never calls `__tls_get_addr` (which may allocate), in
//! executables and in shared objects, LD_PRELOADed or dlopened (there it takes 320 bytes of glibc's
//! static TLS surplus).
//! Never: allocates | calls anything.
//! Threads: each has its own; also in a signal handler (the interrupted thread's).

use crate::raw_call::raw_call;
use core::arch::{asm, global_asm};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};

/// The words that deepheap keeps for a thread. All zero in a new one.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct ThreadArea {
    /// The thread's cache in the heap, or null.
    pub cache: *mut c_void,
    /// Above 0: the thread is inside the runtime.
    pub depth: u32,
    /// Holds of the thread that have not ended.
    pub holds: u32,
    /// The answer of `thread_id`, or 0.
    id: u32,
    /// Whether the thread was seen to have SIGBUS open (`signals::open_fault_signal`).
    pub(crate) is_open: bool,
    /// Whether the program believes that the thread has SIGBUS blocked (preload library).
    pub believes_blocked: bool,
    /// One more than the thread's number among those that have asked for a lane, or 0.
    asked: u16,
    /// The mapping of the signal stack that the preload library gave to the thread, or 0.
    pub signal_stack: usize,
    /// Address and bytes of the signal stack that the program gave to the thread, or bytes 0
    /// (preload library).
    pub program_stack: [AtomicUsize; 2],
    /// What the thread waited in longest (`waits`).
    pub(crate) longest_wait: u64,
    /// Bytes until the next allocation that is sampled; the runtime defines it.
    pub until_sample: u64,
    /// Words that the runtime defines.
    pub spare: [usize; 30],
}

const _: () = assert!(size_of::<ThreadArea>() == 320);

// The one definition. Hidden: every executable or shared object that links this crate has its own,
// and the linker may turn the load of the offset into a constant. Referenced only by `area`, in
// whatever crate that is inlined into: the linker then takes this object from the rlib.
global_asm!(
    ".pushsection .tbss.deepheap_thread_area,\"awT\",@nobits",
    ".globl deepheap_thread_area",
    ".hidden deepheap_thread_area",
    ".type deepheap_thread_area,@object",
    ".size deepheap_thread_area,320",
    ".p2align 6",
    "deepheap_thread_area:",
    ".zero 320",
    ".popsection",
);

/// A number that no other thread has while this one lives. Never 0.
#[inline]
pub fn thread_number() -> usize {
    #[cfg(feature = "schedules")]
    if let Some(scheduler) = crate::threads::schedule::current() {
        return scheduler.thread(); // its threads share one area
    }
    area() as usize
}

/// The number that the kernel gave this thread: below 2^22, and no other thread of the process has
/// it. In the child of a fork the thread keeps the one of its parent.
#[inline(always)]
pub fn thread_id() -> u32 {
    // SAFETY: the calling thread's own area.
    match unsafe { (*area()).id } {
        0 => ask_for_id(),
        id => id,
    }
}

#[cold]
fn ask_for_id() -> u32 {
    // SAFETY: no arguments; the calling thread's own area. A handler that comes in between stores
    // the same.
    unsafe {
        let id = raw_call!(SYS_gettid).map_or(0, |id| id as u32);
        (*area()).id = id;
        id
    }
}

/// A number from 0 to 15 that differs between most threads and stays the same for each: for
/// counters that many threads would fight over.
#[inline]
pub fn lane() -> usize {
    lane_of::<16>()
}

/// As `lane`, from 0 to `LANES` - 1, a power of two.
#[inline]
pub fn lane_of<const LANES: usize>() -> usize {
    const { assert!(LANES.is_power_of_two() && LANES <= LANES_MAX) };
    lane_among(LANES)
}

/// As `lane`, from 0 to `lanes` - 1, a power of two. Threads get their lanes in turn as they ask
/// for the first time: of as many threads as there are lanes no two share one. (A hash of the
/// area's address had three or four of sixteen threads in one of sixteen lanes.)
#[inline]
pub fn lane_among(lanes: usize) -> usize {
    debug_assert!(lanes.is_power_of_two() && lanes <= LANES_MAX);
    // SAFETY: the calling thread's own area.
    let asked = match unsafe { (*area()).asked } {
        0 => ask_for_lane(),
        asked => asked,
    };
    usize::from(asked - 1) & (lanes - 1)
}

/// The most lanes; threads are numbered below it, over and over.
const LANES_MAX: usize = 1 << 15;

#[cold]
fn ask_for_lane() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let mine = (ASKED.fetch_add(1, Ordering::Relaxed) as usize % LANES_MAX) as u16 + 1;
    // SAFETY: the calling thread's own area, for as long as the thread runs.
    let asked = unsafe { AtomicU16::from_ptr(&raw mut (*area()).asked) };
    // A handler that came in between has its number already: the thread keeps that.
    match asked.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => mine,
        Err(first) => first,
    }
}

/// The calling thread's area. Never null; valid until the thread ends.
#[inline(always)]
pub fn area() -> *mut ThreadArea {
    let area: *mut ThreadArea;
    // SAFETY: on x86_64 fs:0 holds the thread pointer itself (psABI TLS variant II), and GOTTPOFF
    // names the constant offset of our symbol from it. No memory that Rust knows of is read, so
    // `pure, nomem` holds: a function runs on one thread from its beginning to its end.
    unsafe {
        asm!(
            "mov {area}, qword ptr fs:[0]",
            "add {area}, qword ptr [rip + deepheap_thread_area@GOTTPOFF]",
            area = out(reg) area,
            options(pure, nomem, nostack),
        );
    }
    area
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_zeroed_area_of_its_own() {
        let mine = area();
        // SAFETY: this thread's own area.
        unsafe { (*mine).holds = 9 };
        let other = std::thread::spawn(|| {
            // SAFETY: that thread's own area.
            let fresh = unsafe { (*area()).holds == 0 && (*area()).cache.is_null() };
            (area() as usize, fresh)
        })
        .join()
        .unwrap();
        assert_eq!(area(), mine);
        assert_ne!(other.0, mine as usize);
        assert!(other.1, "zeroed");
        assert_eq!(mine as usize % 32, 0);
        // SAFETY: this thread's own area.
        unsafe { (*mine).holds = 0 };
    }

    #[test]
    fn threads_share_lanes_evenly_and_keep_theirs() {
        const THREADS: usize = 64;
        let lanes = std::thread::scope(|scope| {
            let ask = || {
                let lane = lane_of::<64>();
                assert!((0..100).all(|_| lane_of::<64>() == lane && super::lane() == lane % 16));
                lane
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let mut counts = [0; 16];
        lanes.iter().for_each(|lane| counts[lane % 16] += 1);
        // Threads of other tests ask meanwhile.
        assert!(counts.iter().all(|&count| (1..=8).contains(&count)), "{counts:?}");
    }
}
