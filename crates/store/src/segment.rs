//! Segment: the state of each segment of the log, and what is known of it.
//!
//! ```text
//!   Bare --> Growing --> Ready --> Open --> Sealed --> Writing --> Written <--> Collecting
//!    ^          |          ^ |                |           |           |  ^          |
//!    |          v          | v                |           v           |  |          v
//!    +------- Bare     Discarding             |        Failed         |  +------ Shelved
//!    |                     |                  |           |           |             |
//!    +---------------------+                  |           v           |             |
//!    |                                        |         Lost          |             |
//!    +---- (freed, see below) <---------------+-----------------------+-------------+
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
//! | Failed | Lost | no live block is left: the buffer is free, the place never used again |
//! | Ready | Discarding, then Bare | idle for long `[Store::discard_idle]` |
//! | Sealed, Written, Collecting, Shelved | Ready, Withheld or Bare | no live block is left |
//! | Withheld | Ready | no forked child can need it any more `[Store::unpin]` |
//!
//! A freed segment is Ready; Withheld while a pin is younger than its filling; Bare if it lies on
//! an inherited device, since the place on our own is not assured.
//!
//! Guarantees: `live` and `home` can be read and `live` changed without a lock; everything else
//! changes under the lock of the space.
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: any; see above.

use deepheap_sys::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use deepheap_sys::pinned_array::PinnedArray;

use crate::block::Segment;
use crate::error::StoreError;

/// Where a segment is in its life. See the file's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    Lost,
    Withheld,
    Discarding,
}

/// Number of states.
pub(crate) const STATES: usize = 13;

const ALL: [State; STATES] = [
    State::Bare,
    State::Growing,
    State::Ready,
    State::Open,
    State::Sealed,
    State::Writing,
    State::Written,
    State::Collecting,
    State::Shelved,
    State::Failed,
    State::Lost,
    State::Withheld,
    State::Discarding,
];

impl State {
    /// Whether the table in the file's header has this line.
    pub(crate) fn may_become(self, next: State) -> bool {
        use State::*;
        let freed = matches!(next, Ready | Withheld | Bare);
        match self {
            Bare => next == Growing,
            Growing => matches!(next, Ready | Bare),
            Ready => matches!(next, Open | Discarding),
            Open => next == Sealed,
            Sealed => next == Writing || freed,
            Writing => matches!(next, Written | Failed),
            Written => next == Collecting || freed,
            Collecting => matches!(next, Written | Shelved) || freed,
            Shelved => next == Written || freed,
            Failed => next == Lost,
            Lost => false,
            Withheld => next == Ready,
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

/// What is known of every segment; 37 bytes each, populated where touched.
pub(crate) struct SegmentTable {
    live: PinnedArray<AtomicU32>,
    home: PinnedArray<AtomicU32>,
    state: PinnedArray<AtomicU8>,
    device: PinnedArray<AtomicU8>,
    level: PinnedArray<AtomicU8>,
    count: PinnedArray<AtomicU16>,
    sequence: PinnedArray<AtomicU64>,
    stamp: PinnedArray<AtomicU64>,
}

/// Bytes of the tables (the links of `list` included) for each segment that was ever touched.
pub(crate) const TABLE_BYTES_PER_SEGMENT: u64 = 4 + 4 + 1 + 1 + 1 + 2 + 8 + 8 + 8;

impl SegmentTable {
    /// All segments Bare.
    pub(crate) fn new(segments: u32) -> Result<Self, StoreError> {
        let segments = segments as usize;
        Ok(Self {
            live: PinnedArray::new(segments)?,
            home: PinnedArray::new(segments)?,
            state: PinnedArray::new(segments)?,
            device: PinnedArray::new(segments)?,
            level: PinnedArray::new(segments)?,
            count: PinnedArray::new(segments)?,
            sequence: PinnedArray::new(segments)?,
            stamp: PinnedArray::new(segments)?,
        })
    }

    /// Units of the segment that are not retired. Blocks with objects of different sizes may count
    /// more than their own units (see `packed::cost`): whoever compares with a full segment clamps.
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

    /// The buffer that holds the segment, if one does.
    pub(crate) fn home(&self, segment: Segment) -> Option<usize> {
        match self.home[segment.index()].load(Ordering::Acquire) {
            ON_DEVICE => None,
            home => Some(home as usize - 1),
        }
    }

    /// Readers find the segment in this buffer from now on, or on the device.
    pub(crate) fn set_home(&self, segment: Segment, buffer: Option<usize>) {
        let home = buffer.map_or(ON_DEVICE, |buffer| buffer as u32 + 1);
        self.home[segment.index()].store(home, Ordering::Release);
    }

    /// The state; stable only under the lock of the space.
    pub(crate) fn state(&self, segment: Segment) -> State {
        ALL[self.state[segment.index()].load(Ordering::Relaxed) as usize]
    }

    /// Changes the state without asking; only `Space` and the child of a fork may.
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
        self.count[segment.index()].load(Ordering::Relaxed) as u32
    }

    pub(crate) fn set_count(&self, segment: Segment, count: u32) {
        self.count[segment.index()].store(count as u16, Ordering::Relaxed);
    }

    /// The number of this filling.
    pub(crate) fn sequence(&self, segment: Segment) -> u64 {
        self.sequence[segment.index()].load(Ordering::Relaxed)
    }

    pub(crate) fn set_sequence(&self, segment: Segment, sequence: u64) {
        self.sequence[segment.index()].store(sequence, Ordering::Relaxed);
    }

    /// When it became Ready (in calls of `discard_idle`) or Shelved (in fillings).
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

    #[test]
    fn states_have_their_numbers() {
        for (number, state) in ALL.into_iter().enumerate() {
            assert_eq!(state as usize, number);
        }
    }

    #[test]
    fn every_state_but_lost_leads_back_to_a_free_segment() {
        for start in ALL.into_iter().filter(|&state| !matches!(state, State::Lost)) {
            let mut reached = vec![start];
            let mut at = 0;
            while at < reached.len() {
                for next in ALL {
                    if reached[at].may_become(next) && !reached.contains(&next) {
                        reached.push(next);
                    }
                }
                at += 1;
            }
            let ends = if start == State::Failed { State::Lost } else { State::Ready };
            assert!(reached.contains(&ends), "{start:?} reaches {reached:?}");
        }
    }

    #[test]
    fn a_segment_with_blocks_is_never_simply_reused() {
        for state in ALL.into_iter().filter(|state| state.holds_blocks()) {
            assert!(!state.may_become(State::Open) && !state.may_become(State::Growing));
        }
    }
}
