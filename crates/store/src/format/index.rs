//! Index: what is known of each page of a durable heap's tables, and where its last bytes are.
//!
//! Each page has an entry. The entries of 128 pages fill an index page, which has an entry itself,
//! and so on up to one entry in the superblock: a tree of hashes.
//!
//! Guarantees: every bit pattern is an entry; `Entry::NONE` is all zero, and no page that was
//! written has it.
//! Never: allocates, blocks, does I/O.
//! Threads: plain values.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BLOCK_BYTES;
use crate::block::cipher::{TAG_BYTES, Tag};

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 32;

/// Pages that an index page tells of.
pub(crate) const FANOUT: u32 = 128;

const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);
const _: () = assert!(FANOUT as usize * ENTRY_BYTES == BLOCK_BYTES);

/// The entry of a page.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Entry {
    checksum: U64,
    /// The slot in bit 0, the checkpoint that wrote the page above.
    word: U64,
    /// Of an encrypted page; else zeros.
    tag: Tag,
}

impl Entry {
    /// The page was never written, and reads as zeros.
    pub(crate) const NONE: Self =
        Self { checksum: U64::ZERO, word: U64::ZERO, tag: [0; TAG_BYTES] };

    /// The page has this checksum and was written to this slot (0 or 1) by that checkpoint, which
    /// is not 0.
    pub(crate) fn new(checksum: u64, slot: u64, checkpoint: u64) -> Self {
        debug_assert!(checkpoint > 0 && slot < 2);
        let word = U64::new(checkpoint << 1 | slot);
        Self { checksum: U64::new(checksum), word, tag: [0; TAG_BYTES] }
    }

    /// The same, of an encrypted page.
    pub(crate) fn with_tag(self, tag: Tag) -> Self {
        Self { tag, ..self }
    }

    /// The proof that the page is as it was encrypted.
    pub(crate) fn tag(&self) -> &Tag {
        &self.tag
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The hash of the page's bytes, bound to its number.
    pub(crate) fn checksum(self) -> u64 {
        self.checksum.get()
    }

    /// Which of the page's two slots holds it.
    pub(crate) fn slot(self) -> u64 {
        self.word.get() & 1
    }

    /// The checkpoint that wrote it; 0 if none did.
    pub(crate) fn checkpoint(self) -> u64 {
        self.word.get() >> 1
    }

    /// As numbers, for a table in RAM.
    pub(crate) fn to_words(self) -> [u64; 4] {
        zerocopy::transmute!(self)
    }

    /// The entry of `to_words`.
    pub(crate) fn from_words(words: [u64; 4]) -> Self {
        zerocopy::transmute!(words)
    }
}

/// The entries of an index page.
pub(crate) fn entries(page: &[u8]) -> impl Iterator<Item = Entry> {
    page.chunks_exact(ENTRY_BYTES).map(|bytes| match Entry::read_from_bytes(bytes) {
        Ok(entry) => entry,
        Err(_) => Entry::NONE, // the pieces are as long as an entry
    })
}

/// Puts the `at`th entry into an index page.
pub(crate) fn set_entry(page: &mut [u8], at: usize, entry: Entry) {
    page[at * ENTRY_BYTES..(at + 1) * ENTRY_BYTES].copy_from_slice(entry.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_where_the_document_draws_them() {
        let mut page = [0; BLOCK_BYTES];
        let tag = core::array::from_fn(|at| at as u8);
        set_entry(&mut page, 2, Entry::new(0x0102_0304_0506_0708, 1, 3).with_tag(tag));
        assert_eq!(page[64..72], [8, 7, 6, 5, 4, 3, 2, 1], "checksum");
        assert_eq!(page[72..80], [7, 0, 0, 0, 0, 0, 0, 0], "checkpoint and slot");
        assert_eq!(page[80..96], tag, "tag");
        let read: Vec<Entry> = entries(&page).collect();
        assert_eq!(read.len(), FANOUT as usize);
        assert_eq!((read[2].slot(), read[2].checkpoint()), (1, 3));
        assert!(read.iter().enumerate().all(|(at, entry)| entry.is_none() == (at != 2)));
        assert_eq!(Entry::from_words(read[2].to_words()), read[2]);
    }
}
