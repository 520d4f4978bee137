//! Segment: the state of each segment of the log, and what is known of it.
//!
//! ```text
//!   Bare --> Growing --> Ready --> Open --> Sealed --> Writing --> Written <--> Collecting
//!    ^          |         ^ | ^               |          ^ |          |  ^          |
//!    |          v         | | |               |          | v          |  |          v
//!    +------- Bare        | | Spare --> Lost  |         Failed        |  +------ Shelved
//!    |                    v |                 |           |           |             |
//!    +---------- Discarding |                 |           |           |             |
//!    |                                        |           |           |             |
//!    +---- (freed, see below) <---------------+-----------+-----------+-------------+
//! ```
//!
//! | from | to | when |
//! |---|---|---|
//! | Bare | Growing, then Ready or Bare | its space is being assured `[Store::grow]` |
//! | Ready | Open | a head takes it `[Store::open_segment]` |
//! | Open | Sealed | full, or asked to be `[Store::seal]` |
//! | Sealed | Writing | a writer thread takes it `[Store::write_sealed]` |
//! | Writing | Written, Failed | the device answered |
//! | Written | Collecting | it is a victim `[Store::victim]` |
//! | Collecting | Written, Shelved | given up, or released with live blocks left |
//! | Shelved | Written | its live blocks changed, or time passed |
//! | Failed | Writing | it is tried again `[Store::retry_failed]` |
//! | Ready | Spare | a Failed segment tries its place `[Store::retry_failed]` |
//! | Spare | Ready, Lost | that was refused, too; or it has the bad place now, for ever |
//! | Ready | Discarding, then Bare | idle for long `[Store::discard_idle]` |
//! | Sealed, Failed, Written, Collecting, Shelved | Ready, Withheld, Bare | no live block is left |
//! | Withheld | Ready | no forked child and no checkpoint can need it any more `[Store::unpin]` |
//! | Bare | Withheld | of a heap that is opened again: a snapshot or a reader may need it |
//! | Withheld | Bare | the same, once nobody can need it any more `[Store::unpin]` |
//!
//! A freed segment is Ready; Withheld while a pin lasts that was taken after its filling; Bare if
//! it lies on an inherited device, since the place on our own is not assured.
//!
//! A segment lies at its own number on the device, unless that place was bad: then it has changed
//! places with another (`place`).
//!
//! Guarantees: `live`, `buffer` and `place` can be read and `live` changed without a lock;
//! everything else changes under the lock of the space. A place changes only while its segment is
//! in a buffer or has no blocks: a reader that finds the segment in no buffer reads at the right
//! place.
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: any; see above.

use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::narrow::Narrow;
use deepheap_sys::threads::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use zerocopy::TryFromBytes;

use crate::block::Segment;
use crate::error::StoreError;

/// Where a segment is in its life. See the file's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes)]
#[repr(u8)]
pub(crate) enum State {
    Bare,
    Growing,
    Ready,
    Open,
    Sealed,
    Writing,
    Written,
    Collecting,
    Shelved,
    Failed,
    Spare,
    Lost,
    Withheld,
    Discarding,
}

/// Number of states.
pub(crate) const STATES: usize = State::Discarding as usize + 1;

impl State {
    /// Whether the table in the file's header has this line.
    pub(crate) fn may_become(self, next: State) -> bool {
        use State::*;
        let freed = matches!(next, Ready | Withheld | Bare);
        match self {
            Bare => matches!(next, Growing | Withheld),
            Growing => matches!(next, Ready | Bare),
            Ready => matches!(next, Open | Discarding | Spare),
            Open => next == Sealed,
            Sealed => next == Writing || freed,
            Writing => matches!(next, Written | Failed),
            Written => next == Collecting || freed,
            Collecting => matches!(next, Written | Shelved) || freed,
            Shelved => next == Written || freed,
            Failed => next == Writing || freed,
            Spare => matches!(next, Ready | Lost),
            Lost => false,
            Withheld => matches!(next, Ready | Bare),
            Discarding => next == Bare,
        }
    }

    /// Whether the segment holds blocks that can be read.
    pub(crate) fn holds_blocks(self) -> bool {
        use State::*;
        matches!(self, Open | Sealed | Writing | Written | Collecting | Shelved | Failed)
    }
}

/// Marks that a segment is in no buffer.
const ON_DEVICE: u32 = 0;

/// The state of every segment; 41 bytes each, populated where touched.
pub(crate) struct SegmentTable {
    live: PinnedArray<AtomicU32>,
    buffer: PinnedArray<AtomicU32>,
    place: PinnedArray<AtomicU32>,
    state: PinnedArray<AtomicU8>,
    device: PinnedArray<AtomicU8>,
    level: PinnedArray<AtomicU8>,
    count: PinnedArray<AtomicU16>,
    sequence: PinnedArray<AtomicU64>,
    stamp: PinnedArray<AtomicU64>,
}

/// Bytes of the tables (the links of `list` included) for each segment that was ever touched.
pub(crate) const TABLE_BYTES_PER_SEGMENT: u64 = 4 + 4 + 4 + 1 + 1 + 1 + 2 + 8 + 8 + 8;

impl SegmentTable {
    /// All segments Bare.
    pub(crate) fn new(segments: u32) -> Result<Self, StoreError> {
        let segments = segments as usize;
        Ok(Self {
            live: PinnedArray::new(segments)?,
            buffer: PinnedArray::new(segments)?,
            place: PinnedArray::new(segments)?,
            state: PinnedArray::new(segments)?,
            device: PinnedArray::new(segments)?,
            level: PinnedArray::new(segments)?,
            count: PinnedArray::new(segments)?,
            sequence: PinnedArray::new(segments)?,
            stamp: PinnedArray::new(segments)?,
        })
    }

    /// Units of the segment that are not retired. Blocks with objects of different sizes may count
    /// more than their own units (see `packed::cost`): a comparison with a full segment clamps.
    pub(crate) fn live(&self, segment: Segment) -> u32 {
        self.live[segment.index()].load(Ordering::Acquire)
    }

    /// So many more live units.
    pub(crate) fn add_live(&self, segment: Segment, units: u32) {
        self.live[segment.index()].fetch_add(units, Ordering::AcqRel);
    }

    /// So many live units less; returns how many are left.
    pub(crate) fn take_live(&self, segment: Segment, units: u32) -> u32 {
        let before = self.live[segment.index()].fetch_sub(units, Ordering::AcqRel);
        debug_assert!(before >= units, "an object was retired twice, or at another cost");
        before.wrapping_sub(units)
    }

    /// So many live units, of a segment that nobody uses yet.
    pub(crate) fn set_live(&self, segment: Segment, units: u32) {
        self.live[segment.index()].store(units, Ordering::Release);
    }

    /// The buffer that holds the segment, if one does.
    pub(crate) fn buffer(&self, segment: Segment) -> Option<usize> {
        match self.buffer[segment.index()].load(Ordering::Acquire) {
            ON_DEVICE => None,
            buffer => Some(buffer as usize - 1),
        }
    }

    /// Readers find the segment in this buffer from now on, or on the device.
    pub(crate) fn set_buffer(&self, segment: Segment, buffer: Option<usize>) {
        let stored = buffer.map_or(ON_DEVICE, |buffer| buffer.to_u32() + 1);
        self.buffer[segment.index()].store(stored, Ordering::Release);
    }

    /// The segment at whose number this one lies on its device: usually itself.
    pub(crate) fn place(&self, segment: Segment) -> Segment {
        // Kept as the difference, so that a table full of zeros says "itself".
        Segment(segment.0 ^ self.place[segment.index()].load(Ordering::Acquire))
    }

    /// The segment, which nobody uses yet, lies at the number of that one.
    pub(crate) fn set_place(&self, segment: Segment, place: Segment) {
        self.place[segment.index()].store(place.0 ^ segment.0, Ordering::Release);
    }

    /// Two segments change places, neither of which is read on its device now.
    pub(crate) fn swap_places(&self, one: Segment, other: Segment) {
        let (of_one, of_other) = (self.place(one), self.place(other));
        self.place[one.index()].store(of_other.0 ^ one.0, Ordering::Release);
        self.place[other.index()].store(of_one.0 ^ other.0, Ordering::Release);
    }

    /// Whether the segment of the next number also lies right behind this one.
    pub(crate) fn is_followed(&self, segment: Segment) -> bool {
        self.place(Segment(segment.0 + 1)).0 == self.place(segment).0 + 1
    }

    /// The state; stable only under the lock of the space.
    pub(crate) fn state(&self, segment: Segment) -> State {
        match State::try_read_from_bytes(&[self.state[segment.index()].load(Ordering::Relaxed)]) {
            Ok(state) => state,
            Err(_) => unreachable!("only `set_state` writes them"),
        }
    }

    /// Changes the state without asking; only `Space`, the child of a fork, and the opening
    /// of a saved store may.
    pub(crate) fn set_state(&self, segment: Segment, state: State) {
        self.state[segment.index()].store(state as u8, Ordering::Relaxed);
    }

    /// Which generation's device holds the segment.
    pub(crate) fn device(&self, segment: Segment) -> usize {
        self.device[segment.index()].load(Ordering::Acquire) as usize
    }

    pub(crate) fn set_device(&self, segment: Segment, generation: u8) {
        self.device[segment.index()].store(generation, Ordering::Release);
    }

    /// The bucket that the segment is in while it is Written.
    pub(crate) fn level(&self, segment: Segment) -> u8 {
        self.level[segment.index()].load(Ordering::Relaxed)
    }

    pub(crate) fn set_level(&self, segment: Segment, level: u8) {
        self.level[segment.index()].store(level, Ordering::Relaxed);
    }

    /// Blocks that were appended in this filling; known once sealed.
    pub(crate) fn count(&self, segment: Segment) -> u32 {
        self.count[segment.index()].load(Ordering::Relaxed).into()
    }

    pub(crate) fn set_count(&self, segment: Segment, count: u32) {
        self.count[segment.index()].store(count.to_u16(), Ordering::Relaxed);
    }

    /// The number of this filling.
    pub(crate) fn sequence(&self, segment: Segment) -> u64 {
        self.sequence[segment.index()].load(Ordering::Relaxed)
    }

    pub(crate) fn set_sequence(&self, segment: Segment, sequence: u64) {
        self.sequence[segment.index()].store(sequence, Ordering::Relaxed);
    }

    /// When it became Ready (in calls of `discard_idle`), Shelved (in fillings) or Withheld (in
    /// pins).
    pub(crate) fn stamp(&self, segment: Segment) -> u64 {
        self.stamp[segment.index()].load(Ordering::Relaxed)
    }

    pub(crate) fn set_stamp(&self, segment: Segment, stamp: u64) {
        self.stamp[segment.index()].store(stamp, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = State> {
        (0..STATES as u8).map(|number| State::try_read_from_bytes(&[number]).expect("a state"))
    }

    #[test]
    fn every_state_but_lost_leads_back_to_a_free_segment() {
        for start in all().filter(|&state| !matches!(state, State::Lost)) {
            let mut reached = vec![start];
            let mut at = 0;
            while at < reached.len() {
                for next in all() {
                    if reached[at].may_become(next) && !reached.contains(&next) {
                        reached.push(next);
                    }
                }
                at += 1;
            }
            assert!(reached.contains(&State::Ready), "{start:?} reaches {reached:?}");
        }
    }

    #[test]
    fn segments_lie_at_their_numbers_until_they_change_places() {
        let table = SegmentTable::new(8).expect("memory");
        let places = || [0, 1, 2, 3].map(|segment| table.place(Segment(segment)).0);
        assert_eq!(places(), [0, 1, 2, 3]);
        table.swap_places(Segment(1), Segment(3));
        table.swap_places(Segment(1), Segment(2));
        assert_eq!(places(), [0, 2, 3, 1]);
        let follows = [0, 1, 2].map(|segment| table.is_followed(Segment(segment)));
        assert_eq!(follows, [false, true, false]);
    }

    #[test]
    fn a_segment_with_blocks_is_never_simply_reused() {
        for state in all().filter(|state| state.holds_blocks()) {
            assert!(!state.may_become(State::Open) && !state.may_become(State::Growing));
        }
    }
}
