//! Lanes: the RAM of small objects, of which eight share a frame (SSDRAM, 3.2 to 3.4).
//!
//! The RAM is a memory file. The addresses of small objects are windows of shared memory on it,
//! over and over: page p has frame p mod F of the file, and in it lane p / F mod 8, 512 bytes. So
//! where an object lies is known from its page alone, and eight pages that share a frame can be
//! mapped at once. The word of a lane says whose bytes are in it.
//!
//! A page can be *exiled* from the windows: it has a private mapping of its own then, and is like
//! any other page of the page buffer, but for where its bytes begin. It stays so until its object
//! comes to its lane again.
//!
//! Guarantees: a word changes only under the lock of its lane; whether a page is exiled changes
//! only while its object is owned.
//! Never: allocates after `new`; moves an object: `lanes/fault` and `lanes/exit` do.
//! Threads: any, inside the gate, also in a signal handler. A thread takes the lock of a lane while
//! it owns nothing, and never two at a time. Under it objects are claimed, but nothing is waited
//! for.

pub(crate) mod exit;
pub(crate) mod fault;

use deepheap_heap::{LANE_BYTES, LANES, PAGES_PER_SPAN, PageNo};
use deepheap_sys::errno::Result;
use deepheap_sys::files::sparse_file::SparseFile;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use deepheap_sys::threads::lock::{Guard, Lock};
use deepheap_sys::threads::tls;

use crate::PAGE;

/// The part of the RAM budget that lanes leave alone: tables, buffers and the least of cache and
/// page buffer.
const LEFT_ALONE: usize = 16 << 20;
/// One part in so many of the rest is for lanes.
const BUDGET_PART: usize = 2;
/// Frames, as a power of two. Fewer would make many mappings.
const SHIFT_LEAST: u32 = 8;
/// Pages beyond could not have all lanes of a frame.
const SHIFT_MOST: u32 = 24;
/// The least for tests: pages that the heap hands out together lie in one window.
const SHIFT_TESTED: u32 = 4;
/// Lanes share so many locks.
const STRIPES: usize = 1024;
/// Threads share so many notes of their last faults.
const THREADS: usize = 256;
/// Bytes that a used frame takes beside its own: the words of its lanes, and its entry in the page
/// table of the alias.
const TABLE_BYTES_PER_FRAME: usize = LANES * size_of::<u32>() + 8;

/// How many frames lanes have under a budget of so many bytes, as a power of two. A seventh more
/// than their part is let pass, so that of 128 MiB they have half.
pub fn lanes_shift(budget_bytes: usize) -> u32 {
    let frames = budget_bytes.saturating_sub(LEFT_ALONE) / BUDGET_PART / PAGE;
    (frames * 8 / 7).max(1).ilog2().clamp(SHIFT_LEAST, SHIFT_MOST)
}

/// The number of a lane: eight times that of its frame, and which of that frame's it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LaneNo(usize);

/// See the file's header.
pub(crate) struct Lanes {
    shift: u32,
    file: Lock<SparseFile>,
    /// Where all frames are mapped for our own copies.
    alias: usize,
    /// For each lane 1 more than the page that has it, or 0.
    words: PinnedArray<AtomicU32>,
    stripes: Box<[Lock<()>]>,
    /// A bit for each frame that takes RAM.
    used: PinnedArray<AtomicU64>,
    used_frames: AtomicUsize,
    /// A bit for each page of the region.
    exiled: PinnedArray<AtomicU64>,
    exiled_pages: AtomicUsize,
    /// The last two pages in lanes that a thread faulted on, the last one in the lower half.
    /// Threads may share one: then a pattern is seen later.
    last: Box<[AtomicU64]>,
    /// Where the next look for pages that can come home begins.
    pub(crate) home_hand: AtomicUsize,
}

/// Objects that are in lanes at a fork and cannot leave them: pinned ones, and those for which the
/// cache has no slot. The child finds their bytes here.
pub(crate) struct LeftInLanes {
    pub(crate) lanes: Vec<LaneNo>,
    pub(crate) bytes: Option<PinnedArray<u8>>,
}

impl Lanes {
    /// Lanes of 2^`shift` frames for a region of so many pages. Nothing takes RAM yet.
    pub(crate) fn new(shift: u32, region_pages: usize) -> Result<Lanes> {
        let shift = shift.clamp(SHIFT_TESTED, SHIFT_MOST);
        let frames = 1usize << shift;
        let file = SparseFile::create(c"deepheap-lanes", (frames * PAGE) as u64)?;
        let alias = file.map(frames * PAGE)?.addr();
        Ok(Lanes {
            shift,
            file: Lock::new(file),
            alias,
            words: PinnedArray::new(frames * LANES)?,
            stripes: (0..STRIPES).map(|_| Lock::new(())).collect(),
            used: PinnedArray::new(frames.div_ceil(64))?,
            used_frames: AtomicUsize::new(0),
            exiled: PinnedArray::new(region_pages.div_ceil(64))?,
            exiled_pages: AtomicUsize::new(0),
            last: (0..THREADS).map(|_| AtomicU64::new(0)).collect(),
            home_hand: AtomicUsize::new(0),
        })
    }

    /// The number of frames is 2 to this power.
    pub(crate) fn shift(&self) -> u32 {
        self.shift
    }

    fn frames(&self) -> usize {
        1 << self.shift
    }

    fn frame_of(&self, page: PageNo) -> usize {
        page.0 as usize % self.frames()
    }

    /// The lane of a page.
    pub(crate) fn lane_of(&self, page: PageNo) -> LaneNo {
        let lane = (page.0 as usize >> self.shift) % LANES;
        LaneNo(self.frame_of(page) * LANES + lane)
    }

    /// Where the bytes of a lane are, for us. Only a thread that holds its lock, or owns or has
    /// pinned the object that is there, may look.
    pub(crate) fn bytes_of(&self, lane: LaneNo) -> *mut u8 {
        (self.alias + lane.0 * LANE_BYTES) as *mut u8
    }

    pub(crate) fn lock(&self, lane: LaneNo) -> Guard<'_, ()> {
        self.stripes[lane.0 % STRIPES].lock()
    }

    /// The page whose object is in a lane: a hint without the lock.
    pub(crate) fn occupant(&self, lane: LaneNo) -> Option<PageNo> {
        self.words[lane.0].load(Ordering::Acquire).checked_sub(1).map(PageNo)
    }

    /// Notes whose object is in a lane. Under its lock.
    pub(crate) fn set_occupant(&self, lane: LaneNo, page: Option<PageNo>) {
        self.words[lane.0].store(page.map_or(0, |page| page.0 + 1), Ordering::Release);
    }

    /// Pages whose objects are in lanes, from lane `from` on, and the lanes.
    pub(crate) fn occupants(&self) -> impl Iterator<Item = (LaneNo, PageNo)> {
        let lanes = (0..self.words.len()).map(LaneNo);
        lanes.filter_map(|lane| Some((lane, self.occupant(lane)?)))
    }

    // Frames.

    /// Whether the frame of a page takes RAM.
    pub(crate) fn has_frame(&self, page: PageNo) -> bool {
        let frame = self.frame_of(page);
        self.used[frame / 64].load(Ordering::Relaxed) >> (frame % 64) & 1 == 1
    }

    /// The frame of a page takes RAM from now on; false if it did before.
    #[must_use]
    pub(crate) fn use_frame(&self, page: PageNo) -> bool {
        let (frame, bit) = (self.frame_of(page), 1 << (self.frame_of(page) % 64));
        let is_new = self.used[frame / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0;
        self.used_frames.fetch_add(usize::from(is_new), Ordering::Relaxed);
        is_new
    }

    /// RAM that it takes, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.used_frames.load(Ordering::Relaxed) * (PAGE + TABLE_BYTES_PER_FRAME)
    }

    // Exile.

    /// Whether a page has a private mapping of its own. For the owner of its object, or a hint.
    pub(crate) fn is_exiled(&self, page: PageNo) -> bool {
        let page = page.0 as usize;
        self.exiled[page / 64].load(Ordering::Acquire) >> (page % 64) & 1 == 1
    }

    /// Notes whether it has. Owner only.
    pub(crate) fn set_exiled(&self, page: PageNo, exiled: bool) {
        let (page, bit) = (page.0 as usize, 1 << (page.0 % 64));
        if exiled {
            self.exiled[page / 64].fetch_or(bit, Ordering::Release);
            self.exiled_pages.fetch_add(1, Ordering::Relaxed);
        } else {
            self.exiled[page / 64].fetch_and(!bit, Ordering::Release);
            self.exiled_pages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The next page that is exiled, in the first `spans` spans; None if there is none near.
    pub(crate) fn next_exiled(&self, spans: usize) -> Option<PageNo> {
        const LOOKS: usize = 4096;
        let words = spans * PAGES_PER_SPAN / 64;
        for _ in 0..LOOKS {
            let at = self.home_hand.fetch_add(1, Ordering::Relaxed) % (64 * words.max(1));
            let (word, bit) = (at / 64, at % 64);
            let exiled = self.exiled[word].load(Ordering::Relaxed) >> bit;
            if exiled & 1 == 1 {
                return Some(PageNo(at as u32));
            }
            if exiled == 0 {
                self.home_hand.fetch_add(63 - bit, Ordering::Relaxed);
            }
        }
        None
    }

    /// How many pages are exiled.
    pub(crate) fn exiled_pages(&self) -> usize {
        self.exiled_pages.load(Ordering::Relaxed)
    }

    /// Notes a fault of the calling thread on a page. True if its last two faults were on another
    /// page of the same lane and, before that, on this one: it wants both at once.
    pub(crate) fn alternates(&self, page: PageNo) -> bool {
        let mixed = tls::thread_number().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let last = &self.last[mixed >> (usize::BITS - THREADS.trailing_zeros())];
        let pages = last.load(Ordering::Relaxed);
        // 1 more than each, as in the words of lanes.
        let (before, latest) = ((pages >> 32) as u32, pages as u32);
        let this = page.0 + 1;
        if latest != this {
            last.store(u64::from(latest) << 32 | u64::from(this), Ordering::Relaxed);
        }
        let is_rival =
            latest != this && latest > 0 && self.lane_of(PageNo(latest - 1)) == self.lane_of(page);
        is_rival && before == this
    }

    // Windows.

    /// Maps pages, none of them exiled, on their frames, in place of what is there.
    ///
    /// # Safety
    /// The addresses are those of the pages, which are the caller's; nobody needs what is there.
    pub(crate) unsafe fn map(&self, first: PageNo, pages: usize, address: usize) -> Result<()> {
        let file = self.file.lock();
        let mut done = 0;
        while done < pages {
            let frame = (first.0 as usize + done) % self.frames();
            let run = (self.frames() - frame).min(pages - done);
            let (offset, to) = ((frame * PAGE) as u64, address + done * PAGE);
            // SAFETY: the caller's promise.
            unsafe { file.map_over(offset, run * PAGE, to) }?;
            done += run;
        }
        Ok(())
    }

    /// In a forked child: makes a file of its own, which the alias maps from now on. The objects in
    /// lanes are its parent's.
    ///
    /// # Safety
    /// No other thread exists in this process.
    pub(crate) unsafe fn become_child(&self) -> Result<()> {
        let bytes = self.frames() * PAGE;
        let own = SparseFile::create(c"deepheap-lanes", bytes as u64)?;
        // SAFETY: the alias is ours.
        unsafe { own.map_over(0, bytes, self.alias) }?;
        *self.file.lock() = own;
        for word in &*self.used {
            word.store(0, Ordering::Relaxed);
        }
        self.used_frames.store(0, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let bytes = self.frames() * PAGE;
        // SAFETY: mapped by `new`, and nobody uses it any more.
        let _ = unsafe { deepheap_sys::memory::mapping::unmap(self.alias as *mut u8, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes() -> Lanes {
        Lanes::new(SHIFT_LEAST, 1 << 20).expect("a memory file")
    }

    #[test]
    fn pages_that_share_a_frame_have_lanes_of_their_own() {
        let lanes = lanes();
        let frames = lanes.frames() as u32;
        assert_eq!(frames, 256);
        for page in [0, 1, 17, frames - 1] {
            let mut places = Vec::new();
            for window in 0..LANES as u32 {
                let lane = lanes.lane_of(PageNo(window * frames + page));
                places.push(lanes.bytes_of(lane).addr() - lanes.alias);
                let of_frame = lane.0 / LANES;
                assert_eq!(of_frame, page as usize);
            }
            let first = page as usize * PAGE;
            assert_eq!(places, (first..first + PAGE).step_by(LANE_BYTES).collect::<Vec<_>>());
            let again = lanes.lane_of(PageNo(LANES as u32 * frames + page));
            assert_eq!(again, lanes.lane_of(PageNo(page)));
        }
    }

    #[test]
    fn a_thread_that_wants_two_pages_of_a_lane_at_once_is_seen() {
        let lanes = lanes();
        let (one, other) = (PageNo(0), PageNo(2048));
        assert_eq!(lanes.lane_of(one), lanes.lane_of(other));
        let seen = [one, other, other, one, other].map(|page| lanes.alternates(page));
        assert_eq!(seen, [false, false, false, true, true]);
        assert!(!lanes.alternates(PageNo(7)));
        assert!(!lanes.alternates(one), "there was another fault between");
    }

    #[test]
    fn lanes_have_half_of_a_large_budget_and_little_of_a_small_one() {
        let shifts = [16, 24, 32, 64, 128, 200, 256, 4096].map(|mib| lanes_shift(mib << 20));
        let mib = shifts.map(|shift| (PAGE << shift) >> 20);
        assert_eq!(mib, [1, 4, 8, 16, 64, 64, 128, 2048]);
    }

    #[test]
    fn a_frame_takes_ram_once_it_is_used() {
        let lanes = lanes();
        assert_eq!((lanes.memory_bytes(), lanes.has_frame(PageNo(3))), (0, false));
        assert!(lanes.use_frame(PageNo(3)) && !lanes.use_frame(PageNo(259)));
        assert!(lanes.has_frame(PageNo(515)) && lanes.memory_bytes() > PAGE);
    }
}
