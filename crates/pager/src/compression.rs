//! Compression: which pages are compressed, and counts of what that did.
//!
//! Never: allocates after `new`, waits.
//! Threads: any.

use deepheap_heap::PageNo;
use deepheap_sys::atomic::{AtomicU64, Ordering};
use deepheap_sys::errno::Result;
use deepheap_sys::padded::Padded;
use deepheap_sys::tls;

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

/// The counters of some threads.
#[derive(Default)]
struct Lane {
    compressed: AtomicU64,
    compressed_bytes: AtomicU64,
    given_up: AtomicU64,
    decompressed: AtomicU64,
    ns: AtomicU64,
}

/// What is compressed, and what that did.
pub(crate) struct Compression {
    compress: Compress,
    back_off: BackOff,
    lanes: [Padded<Lane>; LANES],
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
        self.compress.most_bytes()
    }

    /// What was done, in all threads.
    pub(crate) fn sum(&self) -> Pressed {
        let sum = |counter: fn(&Lane) -> &AtomicU64| {
            self.lanes.iter().map(|lane| counter(lane).load(Ordering::Relaxed)).sum()
        };
        Pressed {
            compressed: sum(|lane| &lane.compressed),
            compressed_bytes: sum(|lane| &lane.compressed_bytes),
            given_up: sum(|lane| &lane.given_up),
            decompressed: sum(|lane| &lane.decompressed),
            ns: sum(|lane| &lane.ns),
        }
    }

    /// In a forked child: what the parent counted is the parent's.
    pub(crate) fn become_child(&self) {
        for lane in &self.lanes {
            let Lane { compressed, compressed_bytes, given_up, decompressed, ns } = &**lane;
            for counter in [compressed, compressed_bytes, given_up, decompressed, ns] {
                counter.store(0, Ordering::Relaxed);
            }
        }
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
        let lane = &self.lanes[tls::lane()];
        let counters = [
            (&lane.compressed, counted.compressed),
            (&lane.compressed_bytes, counted.compressed_bytes),
            (&lane.given_up, counted.given_up),
            (&lane.decompressed, counted.decompressed),
            (&lane.ns, counted.ns),
        ];
        for (counter, more) in counters {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}
