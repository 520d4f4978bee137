//! Money: what RAM and a part of a drive cost a program for some years.
//!
//! Guarantees: linear in every price. Electricity and the program's own time are not in it.

use deepheap::simulation::Outcome;

const GIB: f64 = (1 << 30) as f64;
const TB: f64 = 1e12;

/// Prices, as the user gives them.
pub struct Prices {
    /// Dollars for a GiB of RAM.
    pub ram_price: f64,
    /// Dollars for a drive.
    pub drive_price: f64,
    /// Its size, TB.
    pub drive_size: f64,
    /// What it is rated for, TB written.
    pub drive_endurance: f64,
    /// How long both are used.
    pub years: f64,
}

/// Dollars for all the years.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Money {
    pub ram: f64,
    /// The program's part of a drive; more than one drive if it wears out several.
    pub drive: f64,
}

impl Money {
    /// Both.
    pub fn sum(&self) -> f64 {
        self.ram + self.drive
    }
}

impl Prices {
    /// Bytes that the drive is rated for.
    pub fn endurance_bytes(&self) -> f64 {
        self.drive_endurance * TB
    }

    /// What an outcome costs a program that touches so many bytes.
    pub fn of(&self, outcome: &Outcome, touched: u64) -> Money {
        let room = touched.saturating_sub(outcome.ram) as f64 / (self.drive_size * TB);
        let wear = outcome.written_a_year * self.years / self.endurance_bytes();
        Money {
            ram: self.ram_price * outcome.ram as f64 / GIB,
            // Whichever is used up first, the other goes with it.
            drive: self.drive_price * room.max(wear),
        }
    }
}

/// Where the sum is least; of equal ones, that with more RAM.
pub fn cheapest(priced: &[(Outcome, Money)]) -> Option<usize> {
    let sums = priced.iter().map(|(_, money)| money.sum()).enumerate().rev();
    sums.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use deepheap::simulation::Counts;

    use super::*;

    #[test]
    fn a_program_pays_for_room_or_for_wear_whichever_is_more() {
        let prices = Prices {
            ram_price: 10.0,
            drive_price: 120.0,
            drive_size: 1.0,
            drive_endurance: 600.0,
            years: 5.0,
        };
        let outcome = |written_a_year| Outcome {
            ram: 2 << 30,
            counts: Counts::default(),
            slowdown: 1.0,
            written_a_year,
        };
        let at_rest = prices.of(&outcome(0.0), (2 << 30) + 100_000_000_000);
        assert!((at_rest.ram - 20.0).abs() < 1e-9 && (at_rest.drive - 12.0).abs() < 1e-9);
        // 1200 TB in five years are two drives.
        let writing = prices.of(&outcome(240e12), (2 << 30) + 100_000_000_000);
        assert!((writing.drive - 240.0).abs() < 1e-9 && (writing.sum() - 260.0).abs() < 1e-9);
        assert!(prices.of(&outcome(0.0), 1 << 30).drive.abs() < 1e-9);
    }
}
