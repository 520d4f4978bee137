//! Measured: what is known of one program, and a line for each part of its peak.
//!
//! Guarantees: swap is the better of its two settings.
//! Never: does I/O.

use super::contender::{Contender, Part};
use super::programs::Program;
use super::standing::{Speed, Standing};
use crate::papers::runs::Record;

/// What is known of one program.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Which.
    pub program: &'static Program,
    /// Alone.
    pub alone: Record,
    /// For each size, and each of `Contender::LIMITED`.
    pub limited: Vec<(Part, Vec<Record>)>,
}

/// A program with less than its peak.
pub struct Line<'m> {
    /// Which.
    pub program: &'static Program,
    /// How much less.
    pub part: Part,
    /// Its memory.
    pub limit_bytes: u64,
    /// How it does with all of its memory.
    pub alone: Standing,
    /// What is known of deepheap.
    pub ours: Option<&'m Record>,
    /// What is known of swap, of the better vm.page-cluster.
    pub swap: Option<&'m Record>,
    /// How it does on swap, with vm.page-cluster 0 and 3.
    pub swaps: [Standing; 2],
    /// How it does on zram.
    pub zram: Standing,
}

impl Line<'_> {
    /// How it does on deepheap.
    pub fn deepheap(&self) -> Standing {
        self.ours.map_or(Standing::Unknown, Standing::of)
    }

    fn better_swap(&self) -> Standing {
        self.swaps[0].better(self.swaps[1])
    }

    /// How many times as long deepheap takes as the program alone.
    pub fn slower(&self) -> Speed {
        Speed::of(self.alone, self.deepheap())
    }

    /// Of deepheap beside swap.
    pub fn beside_swap(&self) -> Speed {
        Speed::of(self.deepheap(), self.better_swap())
    }

    /// The same, and that of zram.
    pub fn speeds(&self) -> (Speed, Speed) {
        (self.beside_swap(), Speed::of(self.zram, self.better_swap()))
    }
}

impl Measured {
    /// Its peak alone: that of the first round, of which all sizes are parts.
    pub fn peak_bytes(&self) -> Option<u64> {
        Some(self.alone.rounds.first()?.numbers.get("peak_bytes")? as u64)
    }

    /// For each size.
    pub fn lines(&self) -> Vec<Line<'_>> {
        let Some(peak) = self.peak_bytes() else { return Vec::new() };
        self.limited.iter().map(|(part, records)| self.line(*part, records, peak)).collect()
    }

    fn line<'m>(&'m self, part: Part, records: &'m [Record], peak: u64) -> Line<'m> {
        let of = |who: Contender| {
            let at = Contender::LIMITED.into_iter().position(|it| it == who);
            at.and_then(|at| records.get(at))
        };
        let standing = |who| of(who).map_or(Standing::Unknown, Standing::of);
        let clusters = [0, 3].map(|page_cluster| Contender::Swap { page_cluster });
        let swaps = clusters.map(standing);
        let is_near = swaps[0].better(swaps[1]) == swaps[0];
        Line {
            program: self.program,
            part,
            limit_bytes: part.of(peak),
            alone: Standing::of(&self.alone),
            ours: of(Contender::Deepheap),
            swap: of(clusters[usize::from(!is_near)]),
            swaps,
            zram: standing(Contender::Zram),
        }
    }
}
