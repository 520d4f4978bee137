//! Fetch: brings objects from the store into the page buffer, a scan's next ones together.
//!
//! Guarantees: an object is installed only after its bytes matched the checksum that the store
//! keeps; on an error it stays `Stored`, and so do the neighbours.
//! Never: waits for room for a neighbour; the page that faulted comes first.
//! Threads: the faulting one, and the fetchers.

use deepheap_heap::PageNo;
use deepheap_store::{Block, BlockRead, ContentHash, StoreError};

use crate::PAGE;
use crate::balancer::Balancer;
use crate::descriptor::{DescriptorId, State};
use crate::fault::{FaultError, FaultKind, UNKNOWN_HASH, fill_page};
use crate::object_table::Place;
use crate::pager::{PAGE_STAGING_BYTES, Pager};
use crate::policy::sequence::{AHEAD_MAX, Sequence, WINDOW_MAX};
use crate::staging::StagingBuffer;

const WINDOW: usize = WINDOW_MAX as usize;
/// What a scan asks for ahead takes no more than this part of the page buffer.
const AHEAD_PART: usize = 16;

impl Pager {
    /// Reads the object of `page`, and as many following ones as the sequence suggests; asks the
    /// fetchers for those after them when the scan is at full speed.
    pub(crate) fn fetch(
        &self,
        page: PageNo,
        block: Block,
        sequence: &mut Sequence,
    ) -> Result<Option<(FaultKind, u32)>, FaultError> {
        let window = sequence.window(page.0) as usize;
        if window == 1 {
            self.ask_beside(page);
        }
        let asked = (window == WINDOW).then(|| self.ask_ahead(page, page.0 + WINDOW_MAX));
        let fetched = self.fetch_window(page, block, window, &mut None)?;
        let Some(pages) = fetched else { return Ok(None) };
        *sequence = sequence.advance(page.0, pages);
        if let Some(end) = asked
            && pages == WINDOW_MAX
        {
            *sequence = sequence.ask_until(end);
        }
        Ok(Some((FaultKind::Stored, pages)))
    }

    /// A fault on a page that a fetcher left in the cache as the mark of a stretch: the scan has
    /// come so far, and the stretches after those on their way are asked for.
    pub(crate) fn go_on_ahead(&self, page: PageNo, sequence: &mut Sequence) {
        if let Some(from) = sequence.asked_until(page.0) {
            *sequence = sequence.ask_until(self.ask_ahead(page, from));
        }
    }

    /// Asks for the stretches of a scan that is at `page`, from the page `from` on; returns where
    /// what was asked for ends.
    fn ask_ahead(&self, page: PageNo, from: u32) -> u32 {
        let fit = self.page_buffer.limit() / (AHEAD_PART * WINDOW);
        let stretches = fit.clamp(1, AHEAD_MAX as usize);
        let end = page.0 + Self::pages_left_in_span(page, (1 + stretches) * WINDOW) as u32;
        let mut next = from;
        while next + WINDOW_MAX <= end
            && matches!(self.table.load(PageNo(next)), Place::Stored(_))
            && self.ask_for(PageNo(next))
        {
            next += WINDOW_MAX;
        }
        next
    }

    /// Reads the object of `page`, for which a page is reserved, and up to `window` in all. None if
    /// another thread has it. With a cache slot as the `mark` the first object goes there if it
    /// fits, and its reservation ends.
    pub(crate) fn fetch_window(
        &self,
        page: PageNo,
        block: Block,
        window: usize,
        mark: &mut Option<u32>,
    ) -> Result<Option<u32>, FaultError> {
        let Some(first) = self.claim_stored(page, block) else { return Ok(None) };
        let window = Self::pages_left_in_span(page, window);
        if window > 1 {
            let mut ids = [first; WINDOW];
            let mut blocks = [block; WINDOW];
            let count = self.claim_following(page, window, &mut ids, &mut blocks);
            let buffer = self.windows_staging.take(0);
            let (ids, blocks) = (&ids[..count], &blocks[..count]);
            let staged = if self.are_whole(page, count) { count } else { WINDOW + count };
            if self.try_stage(&buffer, staged * PAGE) {
                return self.fetch_claimed::<WINDOW>(page, ids, blocks, &buffer, mark).map(Some);
            }
            self.give_back(page, &ids[1..], &blocks[1..], 1);
        }
        let buffer = self.pages_staging.take(PAGE_STAGING_BYTES);
        self.fetch_claimed::<1>(page, &[first], &[block], &buffer, mark).map(Some)
    }

    /// Whether the objects of so many pages fill them: each has a block of its own, and what is
    /// read is what is installed.
    fn are_whole(&self, first: PageNo, count: usize) -> bool {
        (0..count).all(|index| self.unit_bytes(PageNo(first.0 + index as u32)) == PAGE)
    }

    fn claim_following(
        &self,
        page: PageNo,
        window: usize,
        ids: &mut [DescriptorId; WINDOW],
        blocks: &mut [Block; WINDOW],
    ) -> usize {
        let mut count = 1;
        while count < window {
            let next = PageNo(page.0 + count as u32);
            let Place::Stored(block) = self.table.load(next) else { break };
            if !self.page_buffer.try_reserve(1) {
                break;
            }
            let Some(id) = self.claim_stored(next, block) else {
                self.page_buffer.unreserve(1);
                break;
            };
            ids[count] = id;
            blocks[count] = block;
            count += 1;
        }
        count
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

    /// Reads and installs claimed pages; returns how many are in DRAM now, the first among them.
    /// `staging` has `N` pages for blocks, and `N` for what is made of them.
    fn fetch_claimed<const N: usize>(
        &self,
        first: PageNo,
        ids: &[DescriptorId],
        blocks: &[Block],
        staging: &StagingBuffer<'_>,
        mark: &mut Option<u32>,
    ) -> Result<u32, FaultError> {
        let buffer = staging.address();
        let page = |index: usize| PageNo(first.0 + index as u32);
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
            self.block_read(page(next), blocks[next], buf)
        });
        self.store.read(&mut requests[..count]);
        let whole = self.are_whole(first, ids.len());
        // SAFETY: the second half of the staging buffer.
        let pages = if whole { buffer } else { unsafe { buffer.add(N * PAGE) } };
        let mut good = 0;
        while good < ids.len() {
            let request = &requests[request_of[good]];
            let Ok(hash) = request.result else { break };
            let descriptor = self.descriptors.get(ids[good]);
            if whole {
                descriptor.set_hash(hash);
            } else {
                let Some(object) = self.object_in(page(good), request.buf) else { break };
                descriptor.set_hash(ContentHash::of(object));
                // SAFETY: a page of the staging buffer for each page; the block lies before them.
                unsafe { fill_page(pages.add(good * PAGE), object.as_ptr(), object.len()) };
            }
            good += 1;
        }
        let failure = requests[0].result.err().unwrap_or(StoreError::Corrupt(blocks[0]));
        // Neighbours that could not be read stay where they are; the first one is the fault.
        self.give_back(first, &ids[good..], &blocks[good..], good);
        if good == 0 {
            return Err(FaultError::Unreadable(failure));
        }
        let unit_bytes = self.unit_bytes(first);
        let slot = mark.take_if(|slot| self.cache.slot_bytes(*slot) >= unit_bytes);
        let marks = usize::from(slot.is_some());
        // SAFETY: the pages after the mark's.
        let rest = unsafe { pages.add(marks * PAGE) };
        let (installed, refused) = self.install(page(marks), rest, &ids[marks..good]);
        let done = marks + installed;
        self.give_back(first, &ids[done..good], &blocks[done..good], done);
        if let Some(slot) = slot {
            // SAFETY: the slot is ours alone and has room for the object, which begins the page.
            unsafe { self.cache.address(slot).copy_from_nonoverlapping(pages, unit_bytes) };
            // Last: whoever waits for it finds the others here.
            self.put_in_cache(ids[0], slot, Balancer::arrives);
            self.page_buffer.unreserve(1);
        }
        match refused {
            Some(errno) if done == 0 => Err(FaultError::Install(errno)),
            _ => Ok(done as u32),
        }
    }

    /// Returns claimed pages, the first of which is `first + offset`, to the store. The page that
    /// faulted (offset 0) keeps its reservation: `resolve` ends it.
    fn give_back(&self, first: PageNo, ids: &[DescriptorId], blocks: &[Block], offset: usize) {
        let from = PageNo(first.0 + offset as u32);
        self.unclaim(from, ids, |index| Place::Stored(blocks[index]));
        let neighbours = if offset == 0 { ids.len().saturating_sub(1) } else { ids.len() };
        self.page_buffer.unreserve(neighbours);
    }
}
