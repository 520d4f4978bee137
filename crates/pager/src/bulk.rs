//! Bulk: fresh objects that a program writes in order, many in one call, go straight to the log.
//!
//! The cache would have to let go of an older object for each of them, and S3-FIFO would have them
//! leave soon themselves, packed with each other: here they are packed at once. What was just
//! written still stands in a segment buffer for a while; and it is remembered as if it had left the
//! cache, so that what is wanted soon comes to the main queue.
//!
//! Guarantees: an object is published only after its block was appended; one that somebody else has
//! is left to the ordinary way.
//! Never: allocates; waits while it owns an object.
//! Threads: any, inside the mover's gate, with all signals blocked.

use deepheap_store::packed::{CAPACITY, WELL_FILLED, footprint};
use deepheap_store::{Head, PackedBlock, Writer};

use crate::PAGE;
use crate::access::{AccessBuffer, Piece, Pieces, WINDOW_PIECES};
use crate::descriptor::DescriptorId;
use crate::evict::Moves;
use crate::object_table::Place;
use crate::pager::Pager;

impl Pager {
    /// Writes those pieces of a window that need not go through the cache; returns which.
    pub(crate) fn write_in_bulk(
        &self,
        pieces: &[Piece],
        buffer: &AccessBuffer<'_>,
        moves: &mut Moves,
    ) -> Pieces {
        let mut done = 0;
        if !self.is_bulk(pieces) {
            return done;
        }
        let mut writer: Option<Writer<'_>> = None;
        let mut first = 0;
        while let Some(end) = full_block(pieces, first) {
            if writer.as_ref().is_none_or(|writer| writer.room() == 0) {
                drop(writer.take());
                // Why there is none is found out again on the ordinary way.
                writer = self.store.writer(Head::Fresh).ok();
            }
            let Some(writer) = &mut writer else { break };
            done |= self.append_block(pieces, first..end, buffer, writer, moves);
            first = end;
        }
        done
    }

    /// Whether a window is a part of a bulk of fresh objects for which the cache has no room.
    fn is_bulk(&self, pieces: &[Piece]) -> bool {
        let fresh = |piece: &Piece| {
            let page = self.page_at(piece.address);
            piece.length == self.unit_bytes(page)
                && self.is_packed(page)
                && self.table.load(page) == Place::Zero
        };
        // In order: no object twice.
        pieces.len() == WINDOW_PIECES
            && self.cache.is_full()
            && pieces.is_sorted_by(|one, next| one.address / PAGE < next.address / PAGE)
            && pieces.iter().all(fresh)
    }

    /// Packs these pieces into one block.
    fn append_block(
        &self,
        pieces: &[Piece],
        which: core::ops::Range<usize>,
        buffer: &AccessBuffer<'_>,
        writer: &mut Writer<'_>,
        moves: &mut Moves,
    ) -> Pieces {
        let staging = self.pages_staging.take(PAGE);
        // SAFETY: the staging page is ours alone.
        let block = unsafe { core::slice::from_raw_parts_mut(staging.address(), PAGE) };
        let mut packed = PackedBlock::begin(block);
        let mut owned = [DescriptorId(0); WINDOW_PIECES];
        let (mut count, mut cost, mut done) = (0, 0, 0);
        for at in which {
            let page = self.page_at(pieces[at].address);
            let Some(id) = self.claim_fresh(page) else { continue };
            let bytes = pieces[at].length;
            // Another object may have come to the page since, of another size.
            let fits = self.unit_bytes(page) == bytes && packed.fits(bytes);
            // SAFETY: the piece's page of the buffer, which is this thread's alone.
            let object = unsafe { core::slice::from_raw_parts(buffer.bytes(at), bytes) };
            let is_zero = object.iter().all(|&byte| byte == 0);
            done |= Pieces::from(fits) << at;
            if is_zero || !fits {
                self.unclaim(page, &[id], |_| Place::Zero);
                continue;
            }
            packed.push(page.0, object);
            cost += self.cost_of(page);
            owned[count] = id;
            count += 1;
        }
        if count > 0 {
            let block = writer.append_packed(packed.finish(), cost);
            for &id in &owned[..count] {
                let page = self.descriptors.get(id).page();
                self.descriptors.remember(page);
                self.table.publish(page, Place::Stored(block));
                self.descriptors.release(id);
            }
            moves.reclaimed_dirty += count as u32;
        }
        done
    }
}

/// Where the pieces end that fill one block well, from `first` on; none if those that are left do
/// not.
fn full_block(pieces: &[Piece], first: usize) -> Option<usize> {
    let (mut end, mut used) = (first, 0);
    while let Some(piece) = pieces.get(end)
        && used + footprint(piece.length) <= CAPACITY
    {
        used += footprint(piece.length);
        end += 1;
    }
    (used >= WELL_FILLED).then_some(end)
}
