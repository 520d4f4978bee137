//! Bulk: fresh objects that a program writes in order, many in one call, go straight to the log.
//!
//! In the cache each of them would drive out an older object, and soon they would leave it
//! themselves, packed with each other: such is S3-FIFO. Here they are packed at once. They stay in
//! a segment buffer for a while, and the ghost remembers them as if they had left the cache, so
//! that those wanted soon enter the main queue.
//!
//! Guarantees: an object is published only after its block was appended; one that another thread
//! has goes the ordinary path.
//! Never: allocates; waits while it owns an object.
//! Threads: any, inside the mover's gate, with all signals blocked.

use deepheap_policy::replacement::Queue;
use deepheap_residency::ownership::{OwnedList, Place};
use deepheap_residency::staging::CALL_PIECES;
use deepheap_store::packed::{CAPACITY, WELL_FILLED, footprint};
use deepheap_store::{Content, Writer};

use crate::PAGE;
use crate::calls::access::{AccessBuffer, Piece, Pieces};
use crate::moves::Moves;
use crate::pager::Pager;
use crate::reclaim::packer::Builder;

impl Pager {
    /// Writes the pieces of a call that need not go through the cache; returns which.
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
                // If there is no writer, the ordinary path meets the same error and reports it.
                writer = self.fresh_writer(&self.residency.store).ok();
            }
            let Some(writer) = &mut writer else { break };
            done |= self.append_block(pieces, first..end, buffer, writer, moves);
            first = end;
        }
        done
    }

    /// Whether a call is part of a bulk write of fresh objects for which the cache has no room.
    fn is_bulk(&self, pieces: &[Piece]) -> bool {
        let fresh = |piece: &Piece| {
            let page = self.residency.frames.page_at(piece.address);
            piece.length == self.residency.kept_bytes(page)
                && self.residency.is_packed(page)
                && self.residency.ownership.place(page) == Place::Zero
        };
        // In order, so that no object comes twice.
        pieces.len() == CALL_PIECES
            && self.residency.cache.is_full()
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
        let mut staging = self.residency.take_staging(PAGE);
        let mut builder = Builder::new(staging.page(), Content::Objects);
        let mut objects = OwnedList::<CALL_PIECES>::empty();
        let mut done = 0;
        for at in which {
            let page = self.residency.frames.page_at(pieces[at].address);
            // Packed objects have their promise since they were allocated.
            debug_assert!(!self.residency.promises.covers(page));
            let Some(owned) = self.residency.ownership.claim_fresh(page) else { continue };
            let bytes = pieces[at].length;
            // The page may hold another object by now, of another size.
            let fits = self.residency.kept_bytes(page) == bytes && builder.fits(bytes);
            // SAFETY: the piece's page of the buffer, which is this thread's alone.
            let object = unsafe { core::slice::from_raw_parts(buffer.bytes(at), bytes) };
            let is_zero = object.iter().all(|&byte| byte == 0);
            done |= Pieces::from(fits) << at;
            if is_zero || !fits {
                self.residency.to_zero(owned);
                continue;
            }
            builder.push(page, object);
            objects.push(owned);
        }
        let count = objects.len();
        if count > 0 {
            let block = builder.append(writer);
            for index in 0..count {
                let owned = objects.take(index);
                // As if it had left the cache just now.
                let page = self.residency.ownership.of(&owned).page();
                self.residency.ownership.descriptors.ghost.insert(page.0, Queue::Small);
                self.residency.ownership.stored(owned, block);
            }
            moves.reclaimed_dirty += count as u32;
        }
        done
    }
}

/// The end of the pieces from `first` on that fill one block well; none if too few are left.
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
