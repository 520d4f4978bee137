//! Saved tables: which tables of a durable heap are saved, and its head page.
//!
//! All else is made anew from [`TABLES`] (`rebuild_runs`, `rebuild_objects`): free
//! runs and their bins, address sets, pools and their lists, open pages, the object map, counts.
//! `docs/internals/on-disk-format.md` draws the list, and a test compares the two.
//!
//! Guarantees: a table's number and the layout of its cells never change within one [`VERSION`]:
//! integers are little-endian, and cells lie one behind the other from the first page on.
//! Never: holds an address of this process but the region's base.
//! Threads: plain values.

use core::fmt;

use deepheap_sys::narrow::Narrow;

use crate::objects::chunk::{Chunk, PAGES_PER_GROUP};
use crate::page::{PAGE, PAGES_PER_SPAN};
use crate::slabs::bits::{LINE_WORDS, SHEET_WORDS};
use crate::slabs::size_class::PAGES_PER_SLAB;

/// The version of everything that is saved: the tables, their cells, the size classes.
pub(crate) const VERSION: u64 = 1;
/// The first word of the head page: `dh-heap` and a zero.
const MAGIC: u64 = u64::from_le_bytes(*b"dh-heap\0");

const _: () = assert!(cfg!(target_endian = "little"), "tables are saved as they are in memory");

/// A table of the heap: its number and how many 4 KiB pages it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Its number, fixed for ever.
    pub id: u32,
    /// Pages numbered below this.
    pub pages: u32,
}

/// Why saved tables cannot be used: what is wrong, and the number of what it is wrong with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTables {
    /// The fault, for a number to follow.
    pub what: &'static str,
    /// The number of the page, span, slab or chunk that `what` ends with.
    pub number: usize,
}

impl fmt::Display for BadTables {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.what, self.number)
    }
}

impl core::error::Error for BadTables {}

/// An error if `holds` is not so.
pub(crate) fn check(holds: bool, what: &'static str, number: usize) -> Result<(), BadTables> {
    if holds { Ok(()) } else { Err(BadTables { what, number }) }
}

/// A saved table: number, name in the documents, and bytes in a region of so many spans.
pub(crate) struct SavedTable {
    pub id: u32,
    #[cfg(test)]
    name: &'static str,
    bytes: fn(usize) -> usize,
}

macro_rules! tables {
    ($($constant:ident = $id:literal, $name:literal, $bytes:expr;)*) => {
        $(pub(crate) const $constant: u32 = $id;)*
        /// All saved tables, in the order in which they are saved.
        pub(crate) const TABLES: &[SavedTable] = &[$(SavedTable {
            id: $id,
            #[cfg(test)]
            name: $name,
            bytes: $bytes,
        }),*];
    };
}

const SLABS_PER_SPAN: usize = PAGES_PER_SPAN / PAGES_PER_SLAB;

tables! {
    HEAD = 0x100, "head", |_| PAGE;
    SLAB_CLASSES = 0x101, "slab classes", |spans| spans * SLABS_PER_SPAN;
    SLAB_USED = 0x102, "slab used", |spans| spans * SLABS_PER_SPAN * 2;
    SLAB_LINES = 0x103, "slab lines", |spans| spans * SLABS_PER_SPAN * LINE_WORDS * 8;
    SLAB_SHEETS = 0x104, "slab sheets", |spans| spans * SLABS_PER_SPAN * SHEET_WORDS * 8;
    RUN_TAGS = 0x105, "run tags", |spans| spans * PAGES_PER_SPAN * 4;
    LIVE_PAGES = 0x106, "live pages", |spans| spans * PAGES_PER_SPAN / 8;
    LIVE_SPANS = 0x107, "live spans", |spans| spans.div_ceil(64) * 8;
    DIRTY_PAGES = 0x108, "dirty pages", |spans| spans * PAGES_PER_SPAN / 8;
    DIRTY_SPANS = 0x109, "dirty spans", |spans| spans.div_ceil(64) * 8;
    HUGE_RUNS = 0x10a, "huge runs", |spans| spans * 4;
    OBJECT_SPANS = 0x10b, "object spans", |spans| spans.div_ceil(64) * 8;
    CHUNKS = 0x10c, "chunks",
        |spans| (spans * PAGES_PER_SPAN / PAGES_PER_GROUP + 1) * size_of::<Chunk>();
    BATCHES = 0x10d, "batches", |spans| spans * PAGES_PER_SPAN * 2;
}

impl SavedTable {
    /// Its number and pages in a region of `spans` spans. A forged file may tell of more spans than
    /// there can be: then it has more pages than any table.
    pub(crate) fn shape(&self, spans: usize) -> TableShape {
        let pages = (self.bytes)(spans).div_ceil(PAGE);
        TableShape { id: self.id, pages: u32::try_from(pages).unwrap_or(u32::MAX) }
    }
}

/// The head page: what fits no table. Words of 64 bits, in the order of the fields, behind magic
/// and version; the rest of the page is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub region_base: usize,
    pub region_bytes: usize,
    /// Spans from this one on were never begun.
    pub spans_begun: usize,
    /// Chunks have names below this.
    pub chunks_end: usize,
}

const HEAD_WORDS: usize = 6;

/// The words of a head page as they were loaded, good or bad.
pub(crate) type RawHead = [u64; HEAD_WORDS];

impl Head {
    /// The page.
    pub(crate) fn page(&self) -> [u8; PAGE] {
        let Head { region_base, region_bytes, spans_begun, chunks_end } = *self;
        let fields = [region_base, region_bytes, spans_begun, chunks_end].map(|field| field as u64);
        let mut page = [0; PAGE];
        for (at, word) in [MAGIC, VERSION].into_iter().chain(fields).enumerate() {
            page[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        page
    }

    /// The words at the start of a head page.
    pub(crate) fn words(page: &[u8; PAGE]) -> RawHead {
        let mut words = [0; HEAD_WORDS];
        for (word, bytes) in words.iter_mut().zip(page.chunks_exact(8)) {
            let mut copy = [0; 8];
            copy.copy_from_slice(bytes);
            *word = u64::from_le_bytes(copy);
        }
        words
    }

    /// The head of a heap whose region is `[base, base + bytes)`, from such words.
    pub(crate) fn parse(words: RawHead, base: usize, bytes: usize) -> Result<Head, BadTables> {
        let [magic, version, ..] = words;
        check(magic == MAGIC, "no heap's head is page", 0)?;
        check(version == VERSION, "tables have the unknown version", version.to_usize())?;
        let [_, _, region_base, region_bytes, spans_begun, chunks_end] =
            words.map(Narrow::to_usize);
        check(region_base == base, "the tables are of a heap at address", region_base)?;
        check(region_bytes == bytes, "the tables are of a region with bytes", region_bytes)?;
        let spans = bytes / PAGE / PAGES_PER_SPAN;
        check(spans_begun <= spans, "more spans than the region has:", spans_begun)?;
        let most = spans * PAGES_PER_SPAN / PAGES_PER_GROUP + 1;
        check((1..=most).contains(&chunks_end), "no such number of chunks:", chunks_end)?;
        Ok(Head { region_base, region_bytes, spans_begun, chunks_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slabs::size_class::{SIZE_CLASSES, SMALL_CLASSES};

    #[test]
    fn the_format_document_lists_every_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/on-disk-format.md");
        let document = std::fs::read_to_string(path).expect("the document");
        let rows: Vec<&str> = document.lines().filter(|line| line.starts_with("| 0x1")).collect();
        let expected = TABLES.iter().map(|table| format!("| 0x{:x} | {} |", table.id, table.name));
        let found = rows.iter().map(|row| row.split('|').take(3).collect::<Vec<_>>().join("|"));
        assert!(expected.eq(found.map(|row| row + "|")), "{rows:#?}");
        let version = format!("Tables of a durable heap have version {VERSION}.");
        assert!(document.contains(&version), "{version}");
    }

    /// If its number of pages were cut off, it would be that of a region of one span.
    #[test]
    fn a_table_that_is_too_large_for_any_region_is_like_no_table() {
        let tags = TABLES.iter().find(|table| table.id == RUN_TAGS).expect("a table");
        assert_eq!((tags.shape(1).pages, tags.shape(1 | 1 << 28).pages), (16, u32::MAX));
    }

    #[test]
    fn the_small_classes_are_those_of_the_format() {
        let steps = (1..=16).map(|step| 16 * step);
        let doublings = (0..6).flat_map(|j| (0..8).map(move |k| (9 + k) << (j + 5)));
        let sizes: Vec<u32> = steps.chain(doublings).collect();
        assert_eq!(sizes.len(), SMALL_CLASSES);
        assert!(SIZE_CLASSES[1..].iter().zip(sizes).all(|(class, size)| class.size == size));
    }

    #[test]
    fn a_head_comes_back_from_its_page() {
        let (region_base, region_bytes) = (1 << 40, 3 << 26);
        let head = Head { region_base, region_bytes, spans_begun: 2, chunks_end: 7 };
        let words = Head::words(&head.page());
        assert_eq!(Head::parse(words, region_base, region_bytes), Ok(head));
        assert!(Head::parse(words, 1 << 41, region_bytes).is_err());
        assert!(Head::parse(words, region_base, 4 << 26).is_err());
        for word in 0..HEAD_WORDS {
            let mut wrong = words;
            wrong[word] = u64::MAX;
            assert!(Head::parse(wrong, region_base, region_bytes).is_err(), "word {word}");
        }
        let error = BadTables { what: "the runs do not tile span", number: 5 };
        assert_eq!(error.to_string(), "the runs do not tile span 5");
    }
}
