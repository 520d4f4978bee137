//! Contender: what gives a program its memory, and how much of its peak that is.
//!
//! Never: does I/O.

use core::fmt;
use core::str::FromStr;

/// What gives a program its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// The kernel, without a limit.
    Alone,
    /// `deepheap run`.
    Deepheap,
    /// A swap file, read 2^`page_cluster` pages at a time.
    Swap {
        /// vm.page-cluster.
        page_cluster: u32,
    },
    /// Swap on compressed RAM.
    Zram,
}

impl Contender {
    /// Those that get less than the program's peak.
    pub const LIMITED: [Self; 4] = [
        Self::Deepheap,
        Self::Swap { page_cluster: 0 },
        Self::Swap { page_cluster: 3 },
        Self::Zram,
    ];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Deepheap => "deepheap",
            Self::Swap { page_cluster: 0 } => "swap-0",
            Self::Swap { .. } => "swap-3",
            Self::Zram => "zram",
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::LIMITED.into_iter().chain([Self::Alone]).find(|who| who.name() == text);
        found.ok_or_else(|| format!("'{text}': use alone, deepheap, swap-0, swap-3 or zram"))
    }
}

/// A part of a program's peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    over: u64,
    under: u64,
}

impl Part {
    /// Those that are measured if nothing else is asked.
    pub const USUAL: [Self; 3] =
        [Self { over: 2, under: 3 }, Self { over: 1, under: 2 }, Self { over: 1, under: 4 }];

    /// This part of so many bytes, in whole MiB.
    pub fn of(self, bytes: u64) -> u64 {
        ((bytes * self.over / self.under) >> 20) << 20
    }

    /// As a part of a file's name.
    pub fn id(self) -> String {
        format!("{}-{}", self.over, self.under)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.over, self.under)
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(over, under)| {
            let (over, under) = (over.parse().ok()?, under.parse().ok()?);
            (0 < over && over <= under && under <= 100).then_some(Self { over, under })
        });
        parsed.ok_or_else(|| format!("'{text}': use a part of the peak, as 1/2"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_and_parts_are_read_as_they_are_written() {
        for contender in Contender::LIMITED {
            assert_eq!(contender.name().parse(), Ok(contender));
        }
        for part in Part::USUAL {
            assert_eq!(part.to_string().parse(), Ok(part));
        }
        for wrong in ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
        assert!("swap".parse::<Contender>().is_err());
        assert_eq!(Part::USUAL[0].of(301 << 20), 200 << 20);
    }
}
