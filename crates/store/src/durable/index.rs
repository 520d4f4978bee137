//! Index: the entries of all pages of a durable heap, in RAM.
//!
//! Guarantees: 32 bytes for each page, populated where pages were saved.
//! Never: allocates after `new`, blocks, does I/O.
//! Threads: one at a time.

use deepheap_sys::memory::pinned_array::PinnedArray;

use crate::block::checksum::Secret;
use crate::durable::error::DurableError;
use crate::durable::layout::{Layout, Node};
use crate::format::BLOCK_BYTES;
use crate::format::index::{self, Entry, FANOUT};

/// See the file's header.
pub(crate) struct Index {
    words: PinnedArray<[u64; 4]>,
    /// Entries that are not `NONE`.
    used: u64,
}

/// The hash of the bytes of a page, bound to its number.
pub(crate) fn checksum(secret: &Secret, node: Node, bytes: &[u8]) -> u64 {
    secret.hash(bytes).bound_to(node.0.into())
}

impl Index {
    /// No page was ever saved.
    pub(crate) fn new(layout: &Layout) -> Result<Self, DurableError> {
        Ok(Self { words: PinnedArray::new(layout.nodes() as usize)?, used: 0 })
    }

    /// The entry of the page.
    pub(crate) fn get(&self, node: Node) -> Entry {
        Entry::from_words(self.words[node.0 as usize])
    }

    /// The pages, each with what is known of it.
    pub(crate) fn of(
        &self,
        nodes: impl Iterator<Item = Node>,
    ) -> impl Iterator<Item = (Node, Entry)> {
        nodes.map(|node| (node, self.get(node)))
    }

    pub(crate) fn set(&mut self, node: Node, entry: Entry) {
        self.used += u64::from(self.get(node).is_none() && !entry.is_none());
        self.words[node.0 as usize] = entry.to_words();
    }

    /// Bytes of RAM that the entries take which are not `NONE`; they may lie scattered.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.used * size_of::<[u64; 4]>() as u64
    }

    /// The bytes of a page of the index.
    pub(crate) fn write(&self, layout: &Layout, node: Node) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        for (at, child) in layout.children(node).enumerate() {
            index::set_entry(&mut bytes, at, self.get(child));
        }
        bytes
    }

    /// Takes the entries of a page of the index, which was written by `checkpoint` or before; false
    /// if they cannot be.
    pub(crate) fn read(
        &mut self,
        layout: &Layout,
        node: Node,
        checkpoint: u64,
        bytes: &[u8],
    ) -> bool {
        let mut children = layout.children(node);
        for entry in index::entries(bytes) {
            let child = children.next();
            if entry.is_none() {
                continue;
            }
            let is_possible = (1..=checkpoint).contains(&entry.checkpoint());
            let Some(child) = child.filter(|_| is_possible) else { return false };
            self.set(child, entry);
        }
        true
    }
}

const _: () = assert!(FANOUT as usize * size_of::<[u64; 4]>() == BLOCK_BYTES);
