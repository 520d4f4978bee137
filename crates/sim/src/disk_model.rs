//! Disk model: how long a hard disk that is not there would take for each request.
//!
//! It has one arm. It moves over the distance between the end of the last request and
//! the beginning of the next, waits until the platter has turned there, and transfers. A request
//! that begins where the last one ended does neither. Seek times grow with the root of the
//! distance, so that two places at random are 5 ms apart on average; the rest are the disk of
//! HybridSwap's Table I at 7200 turns a minute:
//!
//! ```text
//! time = seek + turn + bytes / rate        seek = 1 ms + 7.5 ms * sqrt(distance / 160 GB)
//! turn = the part of 8.33 ms until the sector comes by    rate = 85 MB/s read, 70 MB/s written
//! ```
//!
//! Pure: a request and the time, a time out.

/// A request to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Bytes come.
    Read,
    /// Bytes go.
    Write,
}

const SECOND_NS: u64 = 1_000_000_000;
/// Seeks: over the shortest distance, and how much longer over the whole disk. The root of the
/// distance of two places at random is 8/15 of that of the whole: 5 ms on average.
const SEEK_LEAST_NS: u64 = 1_000_000;
const SEEK_WHOLE_NS: u64 = 7_500_000;
const DISK_BYTES: u64 = 160_000_000_000;
const TURN_NS: u64 = SECOND_NS * 60 / 7200;
const DISK_READ_RATE: u64 = 85_000_000;
const DISK_WRITE_RATE: u64 = 70_000_000;

/// A disk between two requests; at first one that has nothing to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskModel {
    /// Where the last request ended, on the disk.
    arm: u64,
    /// When it ended.
    busy_until_ns: u64,
}

impl DiskModel {
    /// A disk whose last request ended there and then.
    pub(crate) fn resumed(arm: u64, busy_until_ns: u64) -> DiskModel {
        DiskModel { arm, busy_until_ns }
    }

    /// Where the last request ended, and when.
    pub(crate) fn ended(&self) -> (u64, u64) {
        (self.arm, self.busy_until_ns)
    }

    /// When a request ends that comes at `now_ns`, behind all earlier ones.
    pub(crate) fn ends_at(
        &mut self,
        direction: Direction,
        offset: u64,
        bytes: u64,
        now_ns: u64,
    ) -> u64 {
        let begin_ns = now_ns.max(self.busy_until_ns);
        let there_ns = begin_ns + self.way_ns(offset, begin_ns);
        let rate = match direction {
            Direction::Read => DISK_READ_RATE,
            Direction::Write => DISK_WRITE_RATE,
        };
        let end_ns = there_ns + transfer_ns(bytes, rate);
        (self.arm, self.busy_until_ns) = (offset + bytes, end_ns);
        end_ns
    }

    /// How long it takes until the arm is over a place that the platter brings by.
    fn way_ns(&self, offset: u64, now_ns: u64) -> u64 {
        if offset == self.arm {
            return 0;
        }
        let distance = offset.abs_diff(self.arm).min(DISK_BYTES) as f64 / DISK_BYTES as f64;
        let seek_ns = SEEK_LEAST_NS + (SEEK_WHOLE_NS as f64 * distance.sqrt()) as u64;
        // A track passes by in one turn.
        let place_ns = transfer_ns(offset, DISK_READ_RATE) % TURN_NS;
        let turned_ns = (now_ns + seek_ns) % TURN_NS;
        seek_ns + (place_ns + TURN_NS - turned_ns) % TURN_NS
    }
}

fn transfer_ns(bytes: u64, rate: u64) -> u64 {
    (u128::from(bytes) * u128::from(SECOND_NS) / u128::from(rate)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Places at random, by a generator with this seed.
    fn places(seed: u64) -> impl Iterator<Item = u64> {
        let mut state = seed;
        core::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 20) % (DISK_BYTES / 4096) * 4096
        })
    }

    #[test]
    fn a_disk_that_is_read_in_order_gives_85_mb_a_second() {
        let mut disk = DiskModel::default();
        let mut now_ns = 0;
        for block in 0..10_000 {
            now_ns = disk.ends_at(Direction::Read, block * 4096, 4096, now_ns);
        }
        let rate = 10_000.0 * 4096.0 / (now_ns as f64 / 1e9);
        assert!((rate / 85e6 - 1.0).abs() < 0.001, "{rate}");
        let begin_ns = now_ns;
        for block in 10_000..20_000 {
            now_ns = disk.ends_at(Direction::Write, block * 4096, 4096, now_ns);
        }
        let rate = 10_000.0 * 4096.0 / ((now_ns - begin_ns) as f64 / 1e9);
        assert!((rate / 70e6 - 1.0).abs() < 0.001, "{rate}");
    }

    #[test]
    fn places_at_random_take_five_ms_of_seek_and_half_a_turn() {
        const READS: u64 = 20_000;
        let mut disk = DiskModel::default();
        let (mut now_ns, mut seeks_ns, seed) = (0, 0, 25);
        for place in places(seed).take(READS as usize) {
            let distance = place.abs_diff(disk.arm) as f64 / DISK_BYTES as f64;
            seeks_ns += 1_000_000 + (7_500_000.0 * distance.sqrt()) as u64;
            now_ns = disk.ends_at(Direction::Read, place, 4096, now_ns);
        }
        let seek_ms = seeks_ns as f64 / READS as f64 / 1e6;
        assert!((seek_ms - 5.0).abs() < 0.1, "seed {seed}: {seek_ms} ms");
        let transfer_ms = 4096.0 / 85e6 * 1e3;
        let turn_ms = now_ns as f64 / READS as f64 / 1e6 - seek_ms - transfer_ms;
        assert!((turn_ms - 25.0 / 6.0).abs() < 0.1, "seed {seed}: {turn_ms} ms");
    }

    #[test]
    fn a_short_way_is_shorter_than_a_long_one_and_none_takes_no_time() {
        let way_ms = |offset| {
            let mut disk = DiskModel::default();
            // All whole turns, so that only the seek differs.
            (disk.ends_at(Direction::Read, offset, 0, 0), disk.way_ns(offset, 0) / MS)
        };
        assert_eq!(way_ms(0), (0, 0));
        let (near, _) = way_ms(4096);
        let (far, _) = way_ms(DISK_BYTES);
        let most = SEEK_LEAST_NS + TURN_NS + MS;
        assert!((SEEK_LEAST_NS..most).contains(&near), "{near}");
        assert!(far >= SEEK_LEAST_NS + SEEK_WHOLE_NS, "{far}");
    }

    #[test]
    fn requests_wait_for_one_another() {
        let mut disk = DiskModel::default();
        let ends = places(7).take(64).map(|at| disk.ends_at(Direction::Read, at, 4096, 0));
        let last = ends.max().unwrap_or(0);
        assert!(last > 64 * 5 * MS, "{last}");
    }

    #[test]
    fn a_disk_at_rest_begins_at_once() {
        let mut disk = DiskModel::default();
        disk.ends_at(Direction::Read, 0, 4096, 0);
        let later = 5 * SECOND_NS;
        let end = disk.ends_at(Direction::Read, 4096, 4096, later);
        assert_eq!(end, later + transfer_ns(4096, DISK_READ_RATE));
    }
}
