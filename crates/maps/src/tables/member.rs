//! Member: the tables as one participant has them, and their locks, which a process may die with.
//!
//! The word names its owner: the place among the participants and that place's epoch. A thread that
//! waits for long asks whether the owner lives, and takes the lock of a dead one over; then a shard
//! must be repaired (`recover`) before it is used.
//!
//! | word | means |
//! |---|---|
//! | 0 | free |
//! | mark | owned by that participant |
//! | mark + `WAITERS` | the same, and others may sleep |
//!
//! Guarantees: one thread of one process has a lock; the death of its process frees it in the end.
//! Never: spins for long | is reentrant | is held while memory of a map is touched.
//! Threads: any, also in a signal handler, with all signals blocked.

use core::ops::Deref;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use deepheap_sys::threads::futex::{self, Woken};
use deepheap_sys::threads::rendezvous::Rendezvous;

use crate::tables::control::{Control, PARTICIPANTS_MAX, Participant};

const WAITERS: u32 = 1 << 31;
const PLACE_BITS: u32 = 8;
const EPOCHS: u32 = 1 << (31 - PLACE_BITS);
const _: () = assert!(PARTICIPANTS_MAX < 1 << PLACE_BITS);
/// How often a waiter looks at the word before it sleeps: about 2 us.
const SPINS_MAX: u32 = 100;
/// How long a waiter sleeps before it asks whether the owner lives.
const PATIENCE: Duration = Duration::from_millis(20);

/// How the locks of a participant are marked.
pub(crate) fn mark_of(place: usize, epoch: u32) -> u32 {
    (epoch % EPOCHS) << PLACE_BITS | (place as u32 + 1)
}

/// The tables, and who this process is among their participants.
pub(crate) struct Member {
    pub(crate) control: Control,
    /// Where it has entered: its open file holds the lock of its place.
    pub(crate) rendezvous: Rendezvous,
    /// Its place among the participants.
    pub(crate) place: usize,
    /// How its locks are marked: place and epoch.
    pub(crate) mark: u32,
}

impl Deref for Member {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

/// A lock of the map's; free again on drop.
pub(crate) struct Held<'a> {
    word: &'a AtomicU32,
    /// Its owner before has died with it. Only a shard is not whole then.
    pub(crate) is_inherited: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.word.swap(0, Release) & WAITERS != 0 {
            futex::wake_shared(self.word, 1);
        }
    }
}

impl Member {
    /// This process among the participants.
    pub(crate) fn participant(&self) -> &Participant {
        &self.participants()[self.place]
    }

    /// The other processes that have the map.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Participant> {
        self.living(&self.rendezvous)
    }

    /// Waits for a lock.
    pub(crate) fn hold<'a>(&self, word: &'a AtomicU32) -> Held<'a> {
        Held { word, is_inherited: self.acquire(word) }
    }

    /// Takes a lock that nobody has, or that a dead process has.
    pub(crate) fn try_hold<'a>(&self, word: &'a AtomicU32) -> Option<Held<'a>> {
        match word.compare_exchange(0, self.mark, Acquire, Relaxed) {
            Ok(_) => Some(Held { word, is_inherited: false }),
            Err(seen) if seen != 0 && !self.is_alive(seen) => {
                word.compare_exchange(seen, self.mark | WAITERS, Acquire, Relaxed).ok()?;
                Some(Held { word, is_inherited: true })
            }
            Err(_) => None,
        }
    }

    /// Whether the participant that a word names lives.
    pub(crate) fn is_alive(&self, word: u32) -> bool {
        let mark = word & !WAITERS;
        let place = ((mark & ((1 << PLACE_BITS) - 1)) as usize).wrapping_sub(1);
        let Some(participant) = self.participants().get(place) else { return false };
        if mark_of(place, participant.epoch.load(Acquire)) != mark {
            return false;
        }
        place == self.place || self.rendezvous.is_locked(place)
    }

    /// True: the owner before has died.
    fn acquire(&self, word: &AtomicU32) -> bool {
        for _ in 0..SPINS_MAX {
            if word.load(Relaxed) == 0
                && word.compare_exchange(0, self.mark, Acquire, Relaxed).is_ok()
            {
                return false;
            }
            core::hint::spin_loop();
        }
        loop {
            let seen = word.load(Relaxed);
            if seen == 0 {
                // From here on others may sleep, and only the word tells of them.
                if word.compare_exchange(0, self.mark | WAITERS, Acquire, Relaxed).is_ok() {
                    return false;
                }
                continue;
            }
            let waited = seen | WAITERS;
            if seen != waited && word.compare_exchange(seen, waited, Relaxed, Relaxed).is_err() {
                continue;
            }
            if futex::wait_shared(word, waited, Some(PATIENCE)) == Woken::TimedOut
                && !self.is_alive(waited)
                && word.compare_exchange(waited, self.mark | WAITERS, Acquire, Relaxed).is_ok()
            {
                return true;
            }
        }
    }
}
