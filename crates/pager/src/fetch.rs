//! Fetch: brings objects from the store into the page buffer, a scan's next ones together.
//!
//! Guarantees: an object is installed only after its bytes matched the checksum that the store
//! keeps; on an error it stays `Stored`, and so do the neighbours.
//! Never: waits for room for a neighbour; the page that faulted comes first.
//! Threads: the faulting one, and the fetchers.

use core::ops::Range;

use deepheap_heap::{PAGES_PER_SPAN, PageNo};
use deepheap_store::{Block, BlockRead, ContentHash, StoreError};

use crate::PAGE;
use crate::balancer::Balancer;
use crate::descriptor::{DescriptorId, State};
use crate::fault::{FaultError, FaultKind, UNKNOWN_HASH, fill_page};
use crate::object_table::Place;
use crate::pager::{PAGE_STAGING_BYTES, Pager};
use crate::policy::sequence::{AHEAD_MAX, Direction, Sequence, Sequences, WINDOW_MAX};
use crate::staging::StagingBuffer;

const WINDOW: usize = WINDOW_MAX as usize;
/// What a scan asks for ahead takes no more than this part of the page buffer.
const AHEAD_PART: usize = 16;

/// Pages to fetch together: the one that faulted, or whose turn it is, and those that a scan comes
/// to after it. All are in one span, but for what waits to be fetched ahead (`stretch`).
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) page: PageNo,
    pub(crate) direction: Direction,
    /// How many in all.
    pub(crate) count: usize,
}

impl Window {
    /// What to fetch for a fault on `page`, which its sequence knows.
    pub(crate) fn of(page: PageNo, sequence: Sequence) -> Window {
        let (count, direction) = sequence.window(page.0);
        Window { page, direction, count: count as usize }.within_span()
    }

    /// A whole stretch of a scan.
    pub(crate) fn stretch(page: PageNo, direction: Direction) -> Window {
        Window { page, direction, count: WINDOW }
    }

    /// As many of the pages as are in the span of the first.
    fn within_span(self) -> Window {
        let in_span = self.page.0 as usize % PAGES_PER_SPAN;
        let left = match self.direction {
            Direction::Up => PAGES_PER_SPAN - in_span,
            Direction::Down => in_span + 1,
        };
        Window { count: self.count.min(left), ..self }
    }

    /// The page that a scan comes to after `count` others.
    pub(crate) fn page_after(self, count: usize) -> PageNo {
        PageNo(self.direction.after(self.page.0, count as u32))
    }
}

/// What a fetch has claimed, in the order of addresses.
#[derive(Clone, Copy)]
struct Claimed<'a> {
    pages: &'a [PageNo],
    ids: &'a [DescriptorId],
    blocks: &'a [Block],
    /// Which of them is the window's own page. It keeps its reservation: `resolve` ends it.
    own: usize,
}

/// What a fetch brought.
#[derive(Clone, Copy)]
pub(crate) struct Brought {
    /// Pages that are in DRAM now, the window's own one among them.
    pub(crate) pages: u32,
    /// Pages from there on that were looked at.
    extent: u32,
}

impl Pager {
    /// What to fetch for a fault on `page`, if that does not come alone.
    pub(crate) fn window_of(&self, page: PageNo, sequence: Sequence) -> Window {
        let window = Window::of(page, sequence);
        match window.count {
            2.. if self.comes_alone(page) => Window { count: 1, ..window },
            _ => window,
        }
    }

    /// Reads the object of `page`, and as many further ones as its sequence suggests; asks the
    /// fetchers for those after them when the scan is at full speed.
    pub(crate) fn fetch(
        &self,
        page: PageNo,
        block: Block,
        sequences: &mut Sequences<'_>,
    ) -> Result<Option<(FaultKind, u32)>, FaultError> {
        let sequence = sequences.of(page.0);
        let window = self.window_of(page, sequence);
        if window.count == 1 {
            self.ask_beside(page);
        }
        let asked = (window.count == WINDOW && !sequence.was_asked_for(page.0))
            .then(|| self.ask_ahead(window, window.page_after(WINDOW), sequences.asking()));
        let Some(brought) = self.fetch_window(window, block, &mut None)? else { return Ok(None) };
        let mut sequence = sequence.advance(page.0, brought.extent);
        if let Some(end) = asked
            && brought.extent == WINDOW_MAX
        {
            sequence = sequence.ask_until(end.0);
        }
        sequences.note(page.0, sequence);
        self.install_cached_further(Window { count: brought.extent as usize, ..window });
        Ok(Some((FaultKind::Stored, brought.pages - 1)))
    }

    /// A fault on a page that a fetcher left in the cache as the mark of a stretch: the scan has
    /// come so far, and the stretches after those on their way are asked for.
    pub(crate) fn go_on_ahead(&self, page: PageNo, sequences: &mut Sequences<'_>) {
        let sequence = sequences.of(page.0);
        if let Some((from, direction)) = sequence.asked_until(page.0) {
            let window = Window::stretch(page, direction);
            let end = self.ask_ahead(window, PageNo(from), sequences.asking());
            sequences.note(page.0, sequence.ask_until(end.0));
        }
    }

    /// Asks for the stretches after the window of a scan, from the page `from` on, if `scans` of
    /// the thread do that; returns where what was asked for ends.
    fn ask_ahead(&self, window: Window, from: PageNo, scans: usize) -> PageNo {
        let fit = self.page_buffer.limit() / (AHEAD_PART * WINDOW * scans.max(1));
        let stretches = fit.clamp(1, AHEAD_MAX as usize);
        let near = Window { count: (1 + stretches) * WINDOW, ..window }.within_span();
        let mut next = from;
        while window.direction.distance(window.page.0, next.0) as usize + WINDOW <= near.count
            && self.ask_for(next, window.direction)
        {
            next = PageNo(window.direction.after(next.0, WINDOW_MAX));
        }
        next
    }

    /// Reads the objects of the window that are stored, for the first of which a page is reserved;
    /// None if another thread has that one. With a cache slot as the `mark` it goes there if it
    /// fits, and its reservation ends.
    pub(crate) fn fetch_window(
        &self,
        window: Window,
        block: Block,
        mark: &mut Option<u32>,
    ) -> Result<Option<Brought>, FaultError> {
        let Some(own) = self.claim_stored(window.page, block) else { return Ok(None) };
        if window.count > 1 {
            return self.fetch_further(window, own, block, mark).map(Some);
        }
        let pages = self.fetch_one(window.page, own, block, mark)?;
        Ok(Some(Brought { pages, extent: 1 }))
    }

    /// Reads a claimed object.
    fn fetch_one(
        &self,
        page: PageNo,
        id: DescriptorId,
        block: Block,
        mark: &mut Option<u32>,
    ) -> Result<u32, FaultError> {
        let buffer = self.pages_staging.take(PAGE_STAGING_BYTES);
        let claimed = Claimed { pages: &[page], ids: &[id], blocks: &[block], own: 0 };
        self.fetch_claimed::<1>(claimed, &buffer, mark)
    }

    /// Reads the objects of a window whose own one is claimed, and those that are stored after it,
    /// if there is a buffer for them.
    #[inline(never)] // its arrays are nothing for the stack of a single fetch
    fn fetch_further(
        &self,
        window: Window,
        own: DescriptorId,
        block: Block,
        mark: &mut Option<u32>,
    ) -> Result<Brought, FaultError> {
        let (mut pages, mut ids, mut blocks) =
            ([window.page; WINDOW], [own; WINDOW], [block; WINDOW]);
        let mut extent = 1;
        let mut count = 1;
        while extent < window.count {
            let page = window.page_after(extent);
            if let Place::Stored(block) = self.table.load(page)
                && !self.comes_alone(page)
            {
                if !self.page_buffer.try_reserve(1) {
                    break;
                }
                match self.claim_stored(page, block) {
                    Some(id) => {
                        (pages[count], ids[count], blocks[count]) = (page, id, block);
                        count += 1;
                    }
                    None => self.page_buffer.unreserve(1),
                }
            }
            extent += 1;
        }
        let extent = extent as u32;
        if count == 1 {
            let pages = self.fetch_one(window.page, own, block, mark)?;
            return Ok(Brought { pages, extent });
        }
        let (pages, ids, blocks) = (&mut pages[..count], &mut ids[..count], &mut blocks[..count]);
        let mut at = 0;
        if window.direction == Direction::Down {
            pages.reverse();
            ids.reverse();
            blocks.reverse();
            at = count - 1;
        }
        let claimed = Claimed { pages, ids, blocks, own: at };
        let buffer = self.windows_staging.take(0);
        let staged = if self.are_whole(claimed.pages) { count } else { WINDOW + count };
        if !self.try_stage(&buffer, staged * PAGE) {
            self.give_back(claimed, 0..at);
            self.give_back(claimed, at + 1..count);
            drop(buffer);
            let pages = self.fetch_one(window.page, own, block, mark)?;
            return Ok(Brought { pages, extent: 1 });
        }
        let pages = self.fetch_claimed::<WINDOW>(claimed, &buffer, mark)?;
        Ok(Brought { pages, extent })
    }

    /// The part of the window from its first stored page on, and where that is stored.
    pub(crate) fn first_stored(&self, window: Window) -> Option<(Window, Block)> {
        let window = window.within_span();
        (0..window.count).find_map(|passed| {
            let page = window.page_after(passed);
            let Place::Stored(block) = self.table.load(page) else { return None };
            if self.comes_alone(page) {
                return None;
            }
            Some((Window { page, count: window.count - passed, ..window }, block))
        })
    }

    /// Whether the objects of these pages fill them: each has a block of its own, and what is read
    /// is what is installed.
    fn are_whole(&self, pages: &[PageNo]) -> bool {
        pages.iter().all(|&page| self.unit_bytes(page) == PAGE)
    }

    pub(crate) fn claim_stored(&self, page: PageNo, block: Block) -> Option<DescriptorId> {
        let id = self.take_descriptor(page);
        // The home is set before the claim: the collector, finding the entry busy, looks there.
        self.descriptors.get(id).begin(page, State::Arriving, Some(block), UNKNOWN_HASH);
        if self.table.replace(page, Place::Stored(block), Place::Busy(id)) {
            return Some(id);
        }
        self.descriptors.release(id);
        None
    }

    /// Reads and installs claimed pages; returns how many are in DRAM now, the own one among them.
    /// `staging` has `N` pages for blocks, and `N` for what is made of them.
    fn fetch_claimed<const N: usize>(
        &self,
        claimed: Claimed<'_>,
        staging: &StagingBuffer<'_>,
        mark: &mut Option<u32>,
    ) -> Result<u32, FaultError> {
        let Claimed { pages, ids, blocks, own } = claimed;
        let buffer = staging.address();
        // Neighbours often share a block: it is read once.
        let mut request_of = [0; N];
        let mut count = 0;
        for index in 0..ids.len() {
            let shared = index > 0 && blocks[index] == blocks[index - 1];
            count += usize::from(!shared);
            request_of[index] = count - 1;
        }
        let mut next = 0;
        let mut requests: [BlockRead<'_>; N] = core::array::from_fn(|at| {
            while next < ids.len() && request_of[next] < at {
                next += 1;
            }
            if at >= count {
                return BlockRead::packed(blocks[0], &mut []);
            }
            // SAFETY: the staging buffer is ours alone and holds a page for each block.
            let buf = unsafe { core::slice::from_raw_parts_mut(buffer.add(at * PAGE), PAGE) };
            self.block_read(pages[next], blocks[next], buf)
        });
        self.store.read(&mut requests[..count]);
        let whole = self.are_whole(pages);
        // SAFETY: the second half of the staging buffer.
        let contents = if whole { buffer } else { unsafe { buffer.add(N * PAGE) } };
        // Makes the page of what was read; false if that is not what it must be.
        let make_page = |index: usize| -> bool {
            let request = &requests[request_of[index]];
            let Ok(hash) = request.result else { return false };
            let descriptor = self.descriptors.get(ids[index]);
            if whole {
                descriptor.set_hash(hash);
                return true;
            }
            let Some(object) = self.object_in(pages[index], request.buf) else {
                return false;
            };
            descriptor.set_hash(ContentHash::of(object));
            // SAFETY: a page of the staging buffer for each page; the block lies before them.
            unsafe { fill_page(contents.add(index * PAGE), object.as_ptr(), object.len()) };
            true
        };
        // What could not be read stays where it is, and so does what lies beyond it.
        let end = (own..ids.len()).find(|&index| !make_page(index)).unwrap_or(ids.len());
        self.give_back(claimed, end.max(own + 1)..ids.len());
        if end == own {
            let failure = requests[request_of[own]].result.err();
            self.give_back(claimed, 0..own + 1);
            let failure = failure.unwrap_or(StoreError::Corrupt(blocks[own]));
            return Err(FaultError::Unreadable(failure));
        }
        let begin = (0..own).rev().find(|&index| !make_page(index)).map_or(0, |index| index + 1);
        self.give_back(claimed, 0..begin);
        let unit_bytes = self.unit_bytes(pages[own]);
        let slot = mark.take_if(|slot| self.cache.slot_bytes(*slot) >= unit_bytes);
        let marks = usize::from(slot.is_some());
        // A run of neighbours at a time; what the kernel refuses is given back.
        let install = |range: Range<usize>| {
            let (mut at, mut refused) = (range.start, None);
            while at < range.end && refused.is_none() {
                let run = (at + 1..range.end).find(|&next| pages[next].0 != pages[next - 1].0 + 1);
                let run = at..run.unwrap_or(range.end);
                // SAFETY: the staging buffer has a page for each of them.
                let source = unsafe { contents.add(at * PAGE) };
                let (installed, error) = self.install(pages[at], source, &ids[run]);
                at += installed;
                refused = error;
            }
            self.give_back(claimed, at..range.end);
            (at - range.start, refused)
        };
        // The own page first: the others must not keep it from coming.
        let (mut done, refused) = install(own + marks..end);
        if let Some(errno) = refused
            && done + marks == 0
        {
            self.give_back(claimed, begin..own);
            return Err(FaultError::Install(errno));
        }
        done += marks + install(begin..own).0;
        if let Some(slot) = slot {
            // SAFETY: the slot is ours alone and has room for the object, which begins its page.
            unsafe {
                let object = contents.add(own * PAGE);
                self.cache.address(slot).copy_from_nonoverlapping(object, unit_bytes);
            }
            // Last: whoever waits for it finds the others here.
            self.put_in_cache(ids[own], slot, Balancer::arrives);
            self.page_buffer.unreserve(1);
        }
        Ok(done as u32)
    }

    /// Returns claimed pages to the store.
    fn give_back(&self, claimed: Claimed<'_>, range: Range<usize>) {
        for index in range.clone() {
            self.table.publish(claimed.pages[index], Place::Stored(claimed.blocks[index]));
            self.descriptors.release(claimed.ids[index]);
        }
        let kept = usize::from(range.contains(&claimed.own));
        self.page_buffer.unreserve(range.len().saturating_sub(kept));
    }
}
