//! Layout: where each page of each table of a durable heap lies, and which index page tells of it.
//!
//! All pages have numbers: first those of the tables, one table after another, then the index
//! pages of level 1, of level 2, and so on up to the level that is a single page. Page `i` of a
//! level is told of by page `i / 128` of the next.
//!
//! Each page has two slots. The slots 0 of 256 pages lie side by side, and so do their slots 1: so
//! pages that are neighbours and were saved together are written, and read, in one request.
//!
//! Behind the log are the *areas*, each with room for one copy of every page: the tables of a
//! snapshot.
//!
//! Guarantees: no two pages and slots have the same place; the log begins behind them, the areas
//! behind the log.
//! Never: blocks, does I/O.
//! Threads: plain values.

use deepheap_sys::narrow::Narrow;

use crate::durable::error::DurableError;
use crate::format::BLOCK_BYTES;
use crate::format::geometry::SEGMENT_BYTES_MAX;
use crate::format::index::FANOUT;
use crate::format::superblock::{HeapShape, TABLE_AREA_START, TABLES_MAX, TableShape};

/// Pages of all tables together, at most: 4 TiB of tables.
const PAGES_MAX: u32 = 1 << 30;

/// Pages whose slots of one kind lie side by side.
const GROUP: u64 = 256;

/// A page of the table area, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Node(pub(crate) u32);

/// Pages that are told of by the same level of the index, or that are it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    pub(crate) first: u32,
    pub(crate) pages: u32,
}

impl Level {
    /// The pages of the level.
    pub(crate) fn nodes(self) -> impl Iterator<Item = Node> {
        (self.first..self.first + self.pages).map(Node)
    }
}

/// See the file's header.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Each table, and its first page.
    tables: Vec<(TableShape, u32)>,
    /// The tables first, the single topmost page last.
    levels: Vec<Level>,
    /// Bytes of the log.
    log_bytes: u64,
    /// The pages are those of this area; none: those of the table area.
    area: Option<u32>,
}

impl Layout {
    /// Errors: `Shape`.
    pub(crate) fn new(shape: &HeapShape) -> Result<Self, DurableError> {
        let tables = &shape.tables;
        if tables.is_empty() || tables.len() > TABLES_MAX {
            return Err(DurableError::Shape("it must have from 1 to 64 tables"));
        }
        let mut placed: Vec<(TableShape, u32)> = Vec::with_capacity(tables.len());
        let mut pages = 0u32;
        for &table in tables {
            if table.pages == 0 || placed.iter().any(|(other, _)| other.id == table.id) {
                return Err(DurableError::Shape("two tables are alike, or one is empty"));
            }
            placed.push((table, pages));
            pages = pages.saturating_add(table.pages);
            if pages > PAGES_MAX {
                return Err(DurableError::Shape("its tables are too large"));
            }
        }
        let mut levels = vec![Level { first: 0, pages }];
        let mut last = levels[0];
        while last.pages > 1 {
            last = Level { first: last.first + last.pages, pages: last.pages.div_ceil(FANOUT) };
            levels.push(last);
        }
        Ok(Self { tables: placed, levels, log_bytes: shape.capacity_bytes, area: None })
    }

    /// All pages, those of the index included.
    pub(crate) fn nodes(&self) -> u32 {
        self.root().0 + 1
    }

    /// The tables, then the levels of the index.
    pub(crate) fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// The page that the superblock tells of.
    pub(crate) fn root(&self) -> Node {
        // There is a level at least, and the last one has a single page.
        Node(self.levels.last().map_or(0, |level| level.first))
    }

    /// The pages of a table, if there is such a table.
    pub(crate) fn table(&self, id: u32) -> Option<Level> {
        let found = self.tables.iter().find(|(table, _)| table.id == id);
        found.map(|&(TableShape { pages, .. }, first)| Level { first, pages })
    }

    /// The page `page` of table `id`.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn node(&self, id: u32, page: u32) -> Node {
        match self.table(id) {
            Some(table) if page < table.pages => Node(table.first + page),
            _ => panic!("the heap has no page {page} of table {id}"),
        }
    }

    /// The level that a page is in, and which page of it it is.
    pub(crate) fn place(&self, node: Node) -> (usize, u32) {
        let above = self.levels.iter().rposition(|level| level.first <= node.0);
        let at = above.unwrap_or(0);
        (at, node.0 - self.levels[at].first)
    }

    /// The index page that tells of this one; none for the topmost.
    pub(crate) fn parent(&self, node: Node) -> Option<Node> {
        let (level, page) = self.place(node);
        self.levels.get(level + 1).map(|above| Node(above.first + page / FANOUT))
    }

    /// The pages that a page of the index tells of, in the order of its entries; none if it is one
    /// of a table.
    pub(crate) fn children(&self, node: Node) -> impl Iterator<Item = Node> {
        let (level, page) = self.place(node);
        let below = level.checked_sub(1).map(|below| self.levels[below]);
        let nodes = below.map(|below| {
            let end = ((page + 1) * FANOUT).min(below.pages);
            (below.first + page * FANOUT..below.first + end).map(Node)
        });
        nodes.into_iter().flatten()
    }

    /// The same pages in an area, where each has one place, whatever its slot.
    pub(crate) fn in_area(&self, area: u32) -> Layout {
        Layout { area: Some(area), ..self.clone() }
    }

    /// Where an area begins, bytes.
    pub(crate) fn area_start(&self, area: u32) -> u64 {
        let first = (self.log_start() + self.log_bytes).next_multiple_of(SEGMENT_BYTES_MAX);
        first + u64::from(area) * self.area_bytes()
    }

    /// Bytes of an area.
    pub(crate) fn area_bytes(&self) -> u64 {
        u64::from(self.nodes()) * BLOCK_BYTES as u64
    }

    /// Where a slot of a page lies, bytes.
    pub(crate) fn offset(&self, node: Node, slot: u64) -> u64 {
        let node = u64::from(node.0);
        if let Some(area) = self.area {
            return self.area_start(area) + node * BLOCK_BYTES as u64;
        }
        let place = (node / GROUP) * 2 * GROUP + slot * GROUP + node % GROUP;
        TABLE_AREA_START + place * BLOCK_BYTES as u64
    }

    /// Where the log begins, bytes.
    pub(crate) fn log_start(&self) -> u64 {
        let groups = u64::from(self.nodes()).div_ceil(GROUP);
        let end = TABLE_AREA_START + groups * 2 * GROUP * BLOCK_BYTES as u64;
        end.next_multiple_of(SEGMENT_BYTES_MAX)
    }

    /// The error if this page is wrong.
    pub(crate) fn damaged(&self, node: Node) -> DurableError {
        match self.place(node) {
            (0, page) => {
                let tables = self.tables.iter().rev();
                let found = tables.into_iter().find(|(_, first)| *first <= page);
                let (id, first) = found.map_or((0, 0), |(table, first)| (table.id, *first));
                DurableError::PageDamaged { table: id, page: page - first }
            }
            (level, page) => DurableError::IndexDamaged { level: level.to_u32(), page },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn layout(tables: &[u32]) -> Layout {
        let tables = (1..).zip(tables).map(|(id, &pages)| TableShape { id, pages }).collect();
        let shape = HeapShape {
            tables,
            region_base: 0,
            region_len: 0,
            segment_bytes: 1 << 20,
            capacity_bytes: 1 << 30,
        };
        Layout::new(&shape).expect("a legal shape")
    }

    #[test]
    fn every_slot_of_every_page_has_a_place_of_its_own_before_the_log() {
        let layout = layout(&[1, 700, 3]);
        assert_eq!(
            layout.levels().iter().map(|level| level.pages).collect::<Vec<_>>(),
            [704, 6, 1]
        );
        let mut places = BTreeSet::new();
        for node in (0..layout.nodes()).map(Node) {
            for slot in [0, 1] {
                let offset = layout.offset(node, slot);
                assert!(offset >= TABLE_AREA_START && offset < layout.log_start());
                assert!(places.insert(offset));
            }
        }
    }

    #[test]
    fn areas_lie_behind_the_log_one_after_another() {
        let layout = layout(&[1, 700, 3]);
        let end = layout.log_start() + (1 << 30);
        let (first, second) = (layout.in_area(0), layout.in_area(1));
        assert!(first.offset(Node(0), 0) >= end);
        assert_eq!(first.offset(Node(5), 0), first.offset(Node(5), 1));
        assert_eq!(first.offset(layout.root(), 1) + 4096, second.offset(Node(0), 1));
    }

    #[test]
    fn every_page_but_the_topmost_is_told_of_once() {
        for layout in [layout(&[1]), layout(&[128]), layout(&[129]), layout(&[70_000, 5])] {
            let mut told = vec![0; layout.nodes() as usize];
            for parent in (0..layout.nodes()).map(Node) {
                for node in layout.children(parent) {
                    told[node.0 as usize] += 1;
                    assert_eq!(layout.parent(node), Some(parent));
                }
            }
            assert_eq!(told.pop(), Some(0), "the topmost");
            assert!(told.iter().all(|&times| times == 1));
            assert_eq!(layout.parent(layout.root()), None);
        }
    }

    #[test]
    fn a_damaged_page_is_called_by_its_name() {
        let layout = layout(&[1, 700, 3]);
        let damaged = |node| layout.damaged(Node(node));
        assert_eq!(damaged(0), DurableError::PageDamaged { table: 1, page: 0 });
        assert_eq!(damaged(1), DurableError::PageDamaged { table: 2, page: 0 });
        assert_eq!(damaged(703), DurableError::PageDamaged { table: 3, page: 2 });
        assert_eq!(damaged(706), DurableError::IndexDamaged { level: 1, page: 2 });
        assert_eq!(layout.node(3, 2), Node(703));
    }
}
