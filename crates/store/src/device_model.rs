//! Device model: how long a device that is not there would take for each request.
//!
//! A *hard disk* has one arm. It moves over the distance between the end of the last request and
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
//! A *network volume* answers each request after a delay, however many are under way, and takes no
//! more than so many requests and bytes a second.
//!
//! Pure: a request and the time, a time out.

use core::str::FromStr;

/// A device that there is a model of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// A hard disk.
    HardDisk,
    /// A volume that is reached by a network.
    Network,
}

impl ModelKind {
    /// The word for it in settings.
    pub fn name(self) -> &'static str {
        match self {
            ModelKind::HardDisk => "hdd",
            ModelKind::Network => "net",
        }
    }
}

impl FromStr for ModelKind {
    type Err = ();

    fn from_str(text: &str) -> Result<ModelKind, ()> {
        let kinds = [ModelKind::HardDisk, ModelKind::Network];
        kinds.into_iter().find(|kind| kind.name() == text).ok_or(())
    }
}

/// What is asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
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

const NETWORK_DELAY_NS: u64 = 700_000;
const NETWORK_REQUESTS: u64 = 3_000;
const NETWORK_RATE: u64 = 125_000_000;

/// A device between two requests.
#[derive(Clone, Copy, Debug)]
pub struct DeviceModel {
    kind: ModelKind,
    /// Where the last request ended, on the device.
    arm: u64,
    /// When it ended.
    busy_until_ns: u64,
}

impl DeviceModel {
    /// A device that has nothing to do.
    pub fn new(kind: ModelKind) -> DeviceModel {
        DeviceModel::resumed(kind, 0, 0)
    }

    /// A device whose last request ended there and then.
    pub fn resumed(kind: ModelKind, arm: u64, busy_until_ns: u64) -> DeviceModel {
        DeviceModel { kind, arm, busy_until_ns }
    }

    /// Where the last request ended, and when.
    pub fn ended(&self) -> (u64, u64) {
        (self.arm, self.busy_until_ns)
    }

    /// When a request ends that comes at `now_ns`, behind all earlier ones.
    pub fn ends_at(&mut self, direction: Direction, offset: u64, bytes: u64, now_ns: u64) -> u64 {
        let begin_ns = now_ns.max(self.busy_until_ns);
        let (end_ns, delay_ns) = match self.kind {
            ModelKind::HardDisk => {
                let there_ns = begin_ns + self.way_ns(offset, begin_ns);
                let rate = match direction {
                    Direction::Read => DISK_READ_RATE,
                    Direction::Write => DISK_WRITE_RATE,
                };
                (there_ns + transfer_ns(bytes, rate), 0)
            }
            ModelKind::Network => {
                let least_ns = SECOND_NS / NETWORK_REQUESTS;
                (begin_ns + transfer_ns(bytes, NETWORK_RATE).max(least_ns), NETWORK_DELAY_NS)
            }
        };
        (self.arm, self.busy_until_ns) = (offset + bytes, end_ns);
        end_ns + delay_ns
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
        let mut disk = DeviceModel::new(ModelKind::HardDisk);
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
        let mut disk = DeviceModel::new(ModelKind::HardDisk);
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
            let mut disk = DeviceModel::new(ModelKind::HardDisk);
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
    fn requests_of_a_disk_wait_for_one_another_and_those_of_a_network_hardly_do() {
        let end = |kind: ModelKind| {
            let mut device = DeviceModel::new(kind);
            let ends = places(7).take(64).map(|at| device.ends_at(Direction::Read, at, 4096, 0));
            ends.max().unwrap_or(0)
        };
        let (disk, network) = (end(ModelKind::HardDisk), end(ModelKind::Network));
        assert!(disk > 64 * 5 * MS, "{disk}");
        assert_eq!(network, 64 * (SECOND_NS / NETWORK_REQUESTS) + NETWORK_DELAY_NS);
        let mut volume = DeviceModel::new(ModelKind::Network);
        assert_eq!(volume.ends_at(Direction::Write, 0, 1 << 20, 0), 8_388_608 + NETWORK_DELAY_NS);
    }

    #[test]
    fn a_device_at_rest_begins_at_once() {
        let mut network = DeviceModel::new(ModelKind::Network);
        network.ends_at(Direction::Read, 0, 4096, 0);
        let later = 5 * SECOND_NS;
        let end = network.ends_at(Direction::Read, 0, 4096, later);
        assert_eq!(end, later + SECOND_NS / NETWORK_REQUESTS + NETWORK_DELAY_NS);
    }
}
