//! Saved places: a page of the object table as a checkpoint has it, for programs that look into a
//! file.
//!
//! 1024 numbers of 4 bytes, little-endian: 0 for an object that is nowhere, else 1 more than the
//! number of its block.
//!
//! Guarantees: `page_of` is what `Cut::save_table` hands out.
//! Never: allocates, blocks.
//! Threads: plain functions.

use deepheap_store::Block;

use crate::PAGE;

/// Objects that a page tells of.
pub const PLACES: usize = PAGE / size_of::<u32>();

/// Where the objects are that a page tells of.
pub fn places_of(page: &[u8]) -> impl Iterator<Item = Option<Block>> {
    let numbers = page.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    numbers.map(|number| number.checked_sub(1).map(Block))
}

/// The page that tells of these places.
pub fn page_of(places: &[Option<Block>; PLACES]) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    for (bytes, place) in page.as_chunks_mut::<4>().0.iter_mut().zip(places) {
        *bytes = place.map_or(0, |block| block.0 + 1).to_le_bytes();
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_from_their_page() {
        let mut places = [None; PLACES];
        (places[0], places[7], places[PLACES - 1]) =
            (Some(Block(0)), Some(Block(5)), Some(Block((1 << 30) - 1)));
        assert!(places_of(&page_of(&places)).eq(places));
    }
}
