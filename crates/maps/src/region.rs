//! Region: one map of this process: the addresses, the RAM, the file and the shared tables.
//!
//! This file has the parts alone. Other files use them: `join` and `resize` beside this one, and
//! `tables/member` (the locks of shards), `tables/entries` (the pages that a shard has in RAM),
//! `moves/fill` (pages come), `moves/evict` with `settle` (pages go), `moves/recover` (the dead).
//!
//! Guarantees: none of it changes while the map is used, but in the child of a fork.
//! Threads: any.

pub(crate) mod backing;
pub(crate) mod folder;
pub(crate) mod join;
pub(crate) mod list;
pub(crate) mod ranges;
pub(crate) mod resize;
pub(crate) mod unmap;

use core::sync::atomic::Ordering::Relaxed;

use deepheap_sys::PAGE;
use deepheap_sys::errno::Errno;
use deepheap_sys::files::sparse_file::{Placement, SparseFile};
use deepheap_sys::memory::mapping;
use deepheap_sys::memory::page_pipe::PagePipe;
use deepheap_sys::memory::userfaultfd::{Userfaultfd, feature};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::error::MapError;
use crate::moves::staging;
use crate::region::backing::Backing;
use crate::region::ranges::Ranges;
use crate::tables::control::PIPES;
use crate::tables::member::Member;
use crate::tables::streams::Streams;

/// One map of this process.
pub(crate) struct Region {
    /// Where it is mapped, and how far.
    pub(crate) base: usize,
    pub(crate) bytes: usize,
    pub(crate) tables: Member,
    pub(crate) memory: SparseFile,
    pub(crate) pipes: [PagePipe; PIPES],
    pub(crate) backing: Backing,
    pub(crate) watch: Watch,
    /// When ranges left page tables (`unmap`).
    pub(crate) ranges: Ranges,
    pub(crate) streams: Streams,
}

/// How the kernel watches a map.
pub(crate) struct Watch {
    pub(crate) uffd: Userfaultfd,
    /// Whether it can tell what this process has written (`log/tracking`).
    pub(crate) is_tracked: bool,
    /// Whether writes can be faults that it resolves.
    is_protectable: bool,
    /// Whether a page that comes through the memory file is clean in the page table until it is
    /// written: then it leaves without a TLB flush of its own.
    pub(crate) comes_clean: bool,
}

impl Watch {
    /// For a map that has a log or not, in a process that writes or not.
    pub(crate) fn open(has_log: bool, writes: bool) -> Result<Watch, Errno> {
        let watch = |uffd, is_tracked, is_protectable| {
            let comes_clean = staging::can_copy() && (is_protectable || !writes);
            Watch { uffd, is_tracked, is_protectable, comes_clean }
        };
        if has_log && let Ok(uffd) = Userfaultfd::open_with(feature::TRACKS_SHARED) {
            return Ok(watch(uffd, true, true));
        }
        if writes && let Ok(uffd) = Userfaultfd::open_with(feature::CLEAN_SHARED) {
            return Ok(watch(uffd, false, true));
        }
        Ok(watch(Userfaultfd::open_with(feature::MISSING_SHARED)?, false, false))
    }

    /// Has the kernel report touches of pages that are not in RAM, in a range mapped for it.
    pub(crate) fn register(&self, base: usize, bytes: usize) -> Result<(), Errno> {
        match self.is_protectable {
            true => self.uffd.register_protectable(base, bytes),
            false => self.uffd.register_missing(base, bytes),
        }
    }

    /// Maps a part of the RAM, watched.
    pub(crate) fn map(
        &self,
        memory: &SparseFile,
        offset: usize,
        bytes: usize,
        writes: bool,
        placement: Placement,
    ) -> Result<usize, MapError> {
        let protection = if writes { libc::PROT_WRITE } else { 0 } | libc::PROT_READ;
        let at = memory.map_part(offset as u64, bytes, protection, placement);
        let at = at.map_err(MapError::Resources)?;
        if let Err(errno) = self.register(at as usize, bytes) {
            // SAFETY: just mapped, and unknown to all.
            let _ = unsafe { mapping::unmap(at, bytes) };
            return Err(MapError::Kernel(errno));
        }
        Ok(at as usize)
    }
}

/// The content of a page, in 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hash(pub u64, pub u64);

impl Region {
    /// The hash of a page.
    ///
    /// # Safety
    /// `page` is one that can be read and does not change meanwhile.
    pub(crate) unsafe fn hash(&self, page: *const u8) -> Hash {
        // SAFETY: the caller's promise.
        let bytes = unsafe { core::slice::from_raw_parts(page, PAGE) };
        let hash = xxh3_128_with_seed(bytes, self.tables.header().seed.load(Relaxed));
        Hash(hash as u64, (hash >> 64) as u64)
    }

    /// Bytes of the file when it was mapped last.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.tables.header().file_bytes.load(Relaxed)
    }

    /// Pages of it.
    pub(crate) fn file_pages(&self) -> u32 {
        self.file_bytes().div_ceil(PAGE as u64) as u32
    }

    /// Pages that this process has mapped and that are pages of the file.
    pub(crate) fn mapped_pages(&self) -> u32 {
        self.file_pages().min((self.bytes / PAGE) as u32)
    }

    /// Whether an address lies in it.
    pub(crate) fn contains(&self, address: usize) -> bool {
        (self.base..self.base + self.bytes).contains(&address)
    }

    /// The page of an address in it.
    pub(crate) fn page_of(&self, address: usize) -> u32 {
        ((address - self.base) / PAGE) as u32
    }

    /// Where a page is in the file.
    pub(crate) fn offset_of(page: u32) -> u64 {
        u64::from(page) * PAGE as u64
    }

    /// Whether the page is in RAM. In doubt it is.
    pub(crate) fn is_in_memory(&self, page: u32) -> bool {
        self.memory.has_page(Self::offset_of(page)).unwrap_or(true)
    }

    /// Corrects the count of pages in RAM by the memory's own.
    pub(crate) fn recount(&self) {
        if let Ok(bytes) = self.memory.resident_bytes() {
            self.tables.header().resident.store(bytes / PAGE as u64, Relaxed);
        }
    }

    /// The map's tables or memory cannot be used: pages may be lost, so the process must not go on.
    /// Other processes, if there are any, end what it has begun.
    #[cold]
    pub(crate) fn broken(what: &str, errno: Errno) -> ! {
        deepheap_sys::say!("fatal: a map's ", what, " cannot be used: ", errno);
        std::process::abort()
    }
}
