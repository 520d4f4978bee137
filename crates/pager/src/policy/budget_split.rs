//! Budget split: how the RAM budget is shared between page buffer and object cache.

/// Limits in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// Ceiling of the page buffer.
    pub page_buffer: usize,
    /// Ceiling of the object cache.
    pub object_cache: usize,
}

/// Least number of pages either side is left with: two batches of eviction.
pub const LEAST: usize = 512;

/// The page buffer's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// So many bytes.
    Bytes(usize),
    /// So many 65536ths of what the overhead leaves.
    Part(usize),
}

/// Shares `budget` bytes less `overhead` bytes (tables, page tables, buffers). `held` pages cannot
/// leave the page buffer: they and the least of others have their place there.
pub fn split(budget: usize, overhead: usize, share: Share, held: usize) -> Split {
    let pages = (budget.saturating_sub(overhead) / crate::PAGE).max(2 * LEAST);
    let page_buffer = match share {
        Share::Bytes(bytes) => bytes / crate::PAGE,
        Share::Part(part) => (pages * part) >> 16,
    };
    let page_buffer = page_buffer.max(held + LEAST).min(pages - LEAST);
    Split { page_buffer, object_cache: pages - page_buffer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_keep_their_least_and_the_sum_is_the_budget() {
        for budget in [1 << 20, 16 << 20, 256 << 20, 1usize << 40] {
            for share in [0, 1, 1 << 14, 1 << 15, 1 << 16].map(Share::Part) {
                for held in [0, 100, 1 << 12, 1 << 40] {
                    let split = split(budget, 3 << 20, share, held);
                    assert!(split.page_buffer >= LEAST && split.object_cache >= LEAST);
                    let pages = (budget.saturating_sub(3 << 20) / crate::PAGE).max(2 * LEAST);
                    assert_eq!(split.page_buffer + split.object_cache, pages);
                    assert!(split.page_buffer >= (held + LEAST).min(pages - LEAST));
                }
            }
        }
    }
}
