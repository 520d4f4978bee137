//! Codec: a page to fewer bytes and back, in two steps: by LZ4 (one block, no frame), and *dense*,
//! by zstd (`dense`).
//!
//! The first byte tells them apart. A block of LZ4 begins with literals, for there is nothing yet
//! that it could copy; the upper half of its first byte counts them, and is not 0. Of a dense page
//! that half is 0.
//!
//! Guarantees: what `compress` gives, `decompress` turns into the same page; of any other bytes it
//! makes some page, or none, and touches no byte beyond.
//! Never: allocates, blocks.
//! Threads: a compressor has one user at a time; `decompress` is a plain function.

mod block;
pub mod dense;

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

use crate::PAGE;

/// The memory for compressing: too large for a signal handler's stack.
pub struct Compressor {
    table: CompressTable,
    out: [u8; get_maximum_output_size(PAGE)],
}

impl Default for Compressor {
    fn default() -> Compressor {
        Compressor { table: CompressTable::small(), out: [0; _] }
    }
}

impl Compressor {
    /// The page compressed, if that is at most `most` bytes.
    pub fn compress(&mut self, page: &[u8], most: usize) -> Option<&[u8]> {
        let bytes = compress_into_with_table(page, &mut self.out, &mut self.table).ok()?;
        let out = self.out.get(..bytes).filter(|out| out.len() <= most);
        debug_assert!(out.is_none_or(|out| !is_dense(out)));
        out
    }
}

/// Whether compressed bytes are those of a dense page.
pub fn is_dense(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| first >> 4 == 0)
}

/// Makes the page of its bytes by LZ4; false if they are not those of a page.
#[must_use]
pub fn decompress(bytes: &[u8], page: &mut [u8; PAGE]) -> bool {
    block::decode(bytes, page)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use deepheap_sim::Random;

    pub(super) fn page(random: &mut Random) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        let (kinds, run) = (1 + random.below(255), 1 + random.below(64) as usize);
        for bytes in page.chunks_mut(run) {
            bytes.fill(random.below(kinds) as u8);
        }
        page
    }

    #[test]
    fn a_page_comes_back_as_it_was() {
        let (mut random, mut compressor) = (Random::new(21), Compressor::default());
        let mut smaller = 0;
        for _ in 0..2000 {
            let page = page(&mut random);
            let Some(bytes) = compressor.compress(&page, PAGE) else { continue };
            smaller += usize::from(bytes.len() < PAGE / 2);
            let mut back = [0xee; PAGE];
            assert!(decompress(bytes, &mut back) && back == page);
        }
        assert!(smaller > 500, "{smaller}");
    }

    #[test]
    fn random_bytes_are_given_up() {
        let (mut random, mut compressor) = (Random::new(22), Compressor::default());
        let mut page = [0; PAGE];
        page.iter_mut().for_each(|byte| *byte = random.number() as u8);
        assert!(compressor.compress(&page, PAGE).is_none());
    }

    /// Damages compressed bytes, and checks that each time `decompress` makes some page of them, or
    /// none, and touches no byte beyond. What damages all bytes spares the first few.
    pub(super) fn play_damage(
        seed: u64,
        spared: usize,
        mut compress: impl FnMut(&[u8; PAGE]) -> Option<Vec<u8>>,
        decompress: impl Fn(&[u8], &mut [u8; PAGE]) -> bool,
    ) {
        let mut random = Random::new(seed);
        let (mut whole, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let page = page(&mut random);
            let Some(mut bytes) = compress(&page) else { continue };
            match random.below(4) {
                0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
                1 => bytes[spared..].iter_mut().for_each(|byte| *byte = random.number() as u8),
                _ => {
                    for _ in 0..1 + random.below(4) {
                        let at = random.below(bytes.len() as u64) as usize;
                        bytes[at] = random.number() as u8;
                    }
                }
            }
            let mut guarded = [0x5a; 3 * PAGE];
            let middle = guarded[PAGE..].first_chunk_mut().expect("a page");
            let is_page = decompress(&bytes, middle);
            (whole, refused) = (whole + u32::from(is_page), refused + u32::from(!is_page));
            let around = guarded[..PAGE].iter().chain(&guarded[2 * PAGE..]);
            assert!(around.into_iter().all(|&byte| byte == 0x5a), "a byte beyond the page");
        }
        assert!(whole > 100 && refused > 100, "{whole} {refused}");
    }

    #[test]
    fn damaged_bytes_give_some_page_or_none_and_touch_nothing_beyond() {
        let mut compressor = Compressor::default();
        let compress = |page: &[u8; PAGE]| compressor.compress(page, PAGE).map(<[u8]>::to_vec);
        play_damage(23, 0, compress, decompress);
    }
}
