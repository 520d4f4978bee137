//! Compression: which pages are compressed, and counts of what that did.
//!
//! Never: allocates after `new`, waits.
//! Threads: any.

use deepheap_heap::PageNo;
use deepheap_sys::atomic::{AtomicU64, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::padded::Padded;
use deepheap_sys::tls;

use crate::PAGE;
use crate::back_off::BackOff;
use crate::codec::Compress;

const LANES: usize = 16;

/// What compression did, since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressed {
    /// Pages that left the page buffer compressed.
    pub compressed: u64,
    /// Bytes that they became.
    pub compressed_bytes: u64,
    /// Pages that were tried and did not become small enough.
    pub given_up: u64,
    /// Pages that were made of their compressed bytes.
    pub decompressed: u64,
    /// Nanoseconds that all of that took.
    pub ns: u64,
}

impl Pressed {
    fn counts(self) -> [u64; 5] {
        let Pressed { compressed, compressed_bytes, given_up, decompressed, ns } = self;
        [compressed, compressed_bytes, given_up, decompressed, ns]
    }
}

/// What is compressed, and what that did.
pub(crate) struct Compression {
    compress: Compress,
    back_off: BackOff,
    /// The counts of some threads each.
    lanes: [Padded<[AtomicU64; 5]>; LANES],
}

impl Compression {
    pub(crate) fn new(compress: Compress, pages: usize) -> Result<Compression> {
        Ok(Compression { compress, back_off: BackOff::new(pages)?, lanes: Default::default() })
    }

    /// Whether anything is compressed.
    pub(crate) fn is_on(&self) -> bool {
        self.compress != Compress::Off
    }

    /// The page was tried.
    pub(crate) fn note_trial(&self, page: PageNo, compressed: bool) {
        self.back_off.note(page, compressed);
    }

    /// The most bytes of a compressed page that are worth it.
    pub(crate) fn most_bytes(&self) -> usize {
        match self.compress {
            Compress::Auto => PAGE * 5 / 6,
            Compress::Off => 0,
            Compress::Lz4 => PAGE * 7 / 8,
        }
    }

    /// What was done, in all threads.
    pub(crate) fn sum(&self) -> Pressed {
        let sum = |at: usize| self.lanes.iter().map(|lane| lane[at].load(Ordering::Relaxed)).sum();
        let [compressed, compressed_bytes, given_up, decompressed, ns] = core::array::from_fn(sum);
        Pressed { compressed, compressed_bytes, given_up, decompressed, ns }
    }

    /// In a forked child: what the parent counted is the parent's.
    pub(crate) fn become_child(&self) {
        let counters = self.lanes.iter().flat_map(|lane| lane.iter());
        counters.for_each(|counter| counter.store(0, Ordering::Relaxed));
    }

    /// Whether to try this page.
    pub(crate) fn is_tried(&self, page: PageNo) -> bool {
        match self.compress {
            Compress::Off => false,
            Compress::Auto => self.back_off.is_tried(page),
            Compress::Lz4 => true,
        }
    }

    /// Counts what was done.
    pub(crate) fn note(&self, counted: Pressed) {
        for (counter, more) in self.lanes[tls::lane()].iter().zip(counted.counts()) {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}
