//! Discards: which free segments the device is told of, when, and how many at a time (FlashVM,
//! section 4.3).
//!
//! *Merged*: neighbouring segments that have been free for a while are told in one request, as
//! large as the device takes quickly, and up to 100 MiB. *Dummy*: what will be written again soon
//! is not told; the write tells the device as much, for nothing. How soon that is says the time
//! from one taking of a free segment to the next.
//!
//! A request can stand in the way of reads: a hole in a file waits for the reads of that file, and
//! they for it. So while anything is read a look ends after its first requests, and requests are no
//! longer than a read would notice.
//!
//! Guarantees: beside reads, requests take a part of the time that is known (`BUSY_NS` a look).
//! Never: allocates, blocks, does I/O, reads a clock.
//! Threads: under the lock of the space.

use deepheap_sys::narrow::Narrow;

/// Bytes of one request, and of what one look gives back, at most.
pub(crate) const BYTES_MAX: u64 = 100 << 20;
/// Segments that will be taken within this time are kept for that.
const SOON_NS: u64 = 10_000_000_000;
/// A request that took longer was too large: the next ones are half as large.
const LONG_NS: u64 = 1_000_000;
/// One that took less may be twice as large.
const SHORT_NS: u64 = LONG_NS / 4;
/// After so long a look ends if something was read since the last one.
const BUSY_NS: u64 = 1_000_000;
/// After so long it ends anyhow.
const QUIET_NS: u64 = 50_000_000;
/// Looks that a segment has to stay free before it is discarded.
const IDLE_LOOKS: u64 = 2;

/// The work that a look may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    /// Free segments that are kept because they will be taken soon.
    pub(crate) kept: u64,
    /// It ends once its requests have taken so long.
    pub(crate) time_ns: u64,
}

/// See the file's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Discards {
    /// Somebody wants them.
    pub(crate) is_wanted: bool,
    /// The device does not know of them.
    pub(crate) is_refused: bool,
    /// Looks so far.
    pub(crate) tick: u64,
    /// When the last one was, and the reads of the device up to then.
    looked_ns: u64,
    reads: u64,
    /// Free segments that were taken since.
    taken: u64,
    /// Free segments that were taken at any time after they had been free for long, and of which
    /// the device was not told.
    pub(crate) spared: u64,
    /// From one taking of a free segment to the next: a moving average.
    interval_ns: u64,
    /// Since a look that saw a taking.
    untaken_ns: u64,
    /// Segments of the next request.
    pub(crate) portion: u32,
    portion_max: u32,
}

impl Discards {
    /// Wanted, of segments of so many bytes.
    pub(crate) fn new(segment_bytes: u64) -> Discards {
        let portion_max = (BYTES_MAX / segment_bytes).max(1).to_u32();
        Discards {
            is_wanted: true,
            is_refused: false,
            tick: 0,
            looked_ns: 0,
            reads: 0,
            taken: 0,
            spared: 0,
            interval_ns: 0,
            untaken_ns: 0,
            portion: 1,
            portion_max,
        }
    }

    /// From here on they are for another device.
    pub(crate) fn change_device(&mut self) {
        (self.is_refused, self.portion, self.spared) = (false, 1, 0);
    }

    /// A free segment is taken, which became free at the look `since`.
    pub(crate) fn taken(&mut self, was_filled: bool, since: u64) {
        self.taken += 1;
        self.spared += u64::from(was_filled && self.is_idle(since));
    }

    /// Whether a segment that became free at the look `since` has been so for long.
    pub(crate) fn is_idle(&self, since: u64) -> bool {
        since + IDLE_LOOKS <= self.tick
    }

    /// A look begins, so many nanoseconds after some fixed instant, and so many reads after the
    /// first; none if there are no discards.
    pub(crate) fn look(&mut self, now_ns: u64, reads: u64) -> Option<Look> {
        self.tick += 1;
        let elapsed_ns = now_ns.saturating_sub(core::mem::replace(&mut self.looked_ns, now_ns));
        let is_quiet = core::mem::replace(&mut self.reads, reads) >= reads;
        self.untaken_ns = self.untaken_ns.saturating_add(elapsed_ns);
        if let Some(interval_ns) = self.untaken_ns.checked_div(core::mem::take(&mut self.taken)) {
            let is_first = self.interval_ns == 0;
            let before = if is_first { interval_ns } else { self.interval_ns };
            self.interval_ns = (before.saturating_mul(3).saturating_add(interval_ns) / 4).max(1);
            self.untaken_ns = 0;
        }
        let interval_ns = self.interval_ns.max(self.untaken_ns).max(1);
        let time_ns = if is_quiet { QUIET_NS } else { BUSY_NS };
        let is_on = self.is_wanted && !self.is_refused;
        is_on.then_some(Look { kept: SOON_NS / interval_ns, time_ns })
    }

    /// A request for so many segments took so long.
    pub(crate) fn told(&mut self, segments: u32, took_ns: u64) {
        if took_ns > LONG_NS {
            self.portion = (segments / 2).max(1);
        } else if took_ns < SHORT_NS && segments >= self.portion {
            self.portion = (2 * self.portion).min(self.portion_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn look(discards: &mut Discards, elapsed_ms: u64, taken: u64, reads: u64) -> Look {
        (0..taken).for_each(|_| discards.taken(false, 0));
        let now_ns = discards.looked_ns + elapsed_ms * MS;
        discards.look(now_ns, discards.reads + reads).expect("they are on")
    }

    #[test]
    fn what_is_taken_soon_is_kept_and_not_what_is_taken_seldom() {
        let mut discards = Discards::new(1 << 20);
        // Fifty segments a second: those of the next ten seconds.
        for _ in 0..20 {
            look(&mut discards, 100, 5, 0);
        }
        assert_eq!(look(&mut discards, 100, 5, 0).kept, 500);
        // The program pauses: what it took before says less and less.
        let kept: Vec<u64> = (0..20).map(|_| look(&mut discards, 100, 0, 0).kept).collect();
        assert!(kept.is_sorted_by(|a, b| a >= b), "{kept:?}");
        assert!(kept[9] <= 10 && kept[19] <= 5, "{kept:?}");
        // One segment a minute.
        for _ in 0..20 {
            look(&mut discards, 60_000, 1, 0);
        }
        assert_eq!(look(&mut discards, 100, 0, 0).kept, 0);
    }

    #[test]
    fn requests_grow_to_100_mib_where_they_are_quick_and_shrink_where_reads_would_notice() {
        let mut discards = Discards::new(1 << 20);
        for _ in 0..10 {
            discards.told(discards.portion, 55_000);
        }
        assert_eq!(discards.portion, 100);
        // A short run says nothing of long ones.
        discards.told(3, 4 * MS);
        assert_eq!(discards.portion, 1);
        discards.told(1, MS / 2);
        assert_eq!(discards.portion, 1, "neither short nor long");
        // A device whose requests take 300 us and 100 us for each segment.
        for _ in 0..50 {
            discards.told(discards.portion, 300_000 + 100_000 * u64::from(discards.portion));
        }
        assert!(discards.portion <= 4, "{}", discards.portion);
        let mut huge = Discards::new(8 << 20);
        (0..10).for_each(|_| huge.told(huge.portion, 1));
        assert_eq!(huge.portion, 12);
    }

    #[test]
    fn beside_reads_a_look_is_short_and_without_discards_there_is_none() {
        let mut discards = Discards::new(1 << 20);
        assert_eq!(look(&mut discards, 100, 0, 1).time_ns, BUSY_NS);
        assert_eq!(look(&mut discards, 100, 0, 0).time_ns, QUIET_NS);
        let now_ns = 300 * MS;
        discards.is_refused = true;
        assert_eq!(discards.look(now_ns, 1), None);
        discards.change_device();
        assert!(discards.look(now_ns, 1).is_some());
        discards.is_wanted = false;
        assert_eq!(discards.look(now_ns, 1), None);
    }
}
