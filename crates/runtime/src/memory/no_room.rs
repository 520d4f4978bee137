//! No room: the line that says why an allocation failed: the store is full, or could never hold as
//! much, or the RAM budget has no room for its tables.
//!
//! Guarantees: each reason is said once in a process, when the first allocation is refused for it.
//! Never: touches managed memory.
//! Threads: any, inside the runtime.

use core::sync::atomic::{AtomicBool, Ordering};

use deepheap_heap::PAGE;
use deepheap_store::{BLOCK_BYTES, Store, StoreStats};
use deepheap_sys::say;

use crate::settings::limits;
use crate::stats::report::bytes;

/// Says once that the store could not promise so many blocks.
pub(crate) fn say_store_is_full(store: &Store, wanted_blocks: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    once(&SAID, || {
        let limit = limits::file_size().map(|limit| limit.soft);
        line(&store.stats(), store.segment_bytes() as u64, wanted_blocks, limit)
    });
}

/// Says once that an allocation of more than so many pages is more than RAM or the store can hold.
pub(crate) fn say_too_large(pages: u64, most_pages: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    once(&SAID, || {
        format!(
            "an allocation of more than {} is refused, neither RAM nor the store holds more than \
             {}; give a larger --store-size (store_size:)",
            of_pages(pages),
            of_pages(most_pages),
        )
    });
}

/// Says once that the budget has no room for the tables of so many more pages.
pub(crate) fn say_tables_are_too_large(pages: u64, ram_bytes: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    once(&SAID, || {
        format!(
            "{} more are refused, the RAM budget of {} has no room for their tables; give more \
             --ram (ram:)",
            of_pages(pages),
            bytes(ram_bytes),
        )
    });
}

fn of_pages(pages: u64) -> String {
    bytes(pages.saturating_mul(PAGE as u64))
}

fn once(said: &AtomicBool, line: impl FnOnce() -> String) {
    if !said.swap(true, Ordering::Relaxed) {
        say!(&*line());
    }
}

/// `file_limit`: bytes of the largest file that the process may write, if there is a limit.
fn line(
    store: &StoreStats,
    segment_bytes: u64,
    wanted_blocks: u64,
    file_limit: Option<u64>,
) -> String {
    let blocks = |blocks: u64| bytes(blocks * BLOCK_BYTES as u64);
    let segments = |segments: u64| bytes(segments * segment_bytes);
    let capacity = store.segments * segment_bytes;
    let unusable = (store.segments_withheld + store.segments_lost) * segment_bytes;
    let usable = store.reservable_blocks * BLOCK_BYTES as u64;
    let mut text = format!(
        "the store is full, {} more cannot be promised: of its {} it can promise {}, and has \
         promised {} ({} stored, the rest in RAM or never written); {} are for collection and \
         directories",
        blocks(wanted_blocks),
        bytes(capacity),
        bytes(usable),
        blocks(store.reserved_blocks),
        blocks(store.live_blocks),
        bytes(capacity.saturating_sub(usable + unusable)),
    );
    if store.segments_withheld > 0 {
        text += &format!(", {} are kept for forked children", segments(store.segments_withheld));
    }
    if store.segments_lost > 0 {
        text += &format!(", {} take no writes", segments(store.segments_lost));
    }
    // The device may have less than the store was to have.
    if store.reserved_blocks + wanted_blocks <= store.reservable_blocks {
        text += ", and the device has no more space above its floor (--store-floor); free some";
    } else if let Some(limit) = file_limit.filter(|limit| capacity + segment_bytes > *limit) {
        text += &format!("; ulimit -f is {}: raise it", bytes(limit));
    } else {
        text += "; give a larger --store-size (store_size:)";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> StoreStats {
        StoreStats {
            segments: 180,
            reservable_blocks: 9922,
            reserved_blocks: 9900,
            live_blocks: 5000,
            ..StoreStats::default()
        }
    }

    #[test]
    fn the_line_says_how_much_of_the_store_was_usable_and_why_no_more() {
        let text = line(&store(), 256 << 10, 256, None);
        let all = "the store is full, 1.00 MiB more cannot be promised: of its 45.0 MiB it can \
                   promise 38.8 MiB, and has promised 38.7 MiB (19.5 MiB stored, the rest in RAM \
                   or never written); 6.24 MiB are for collection and directories; give a larger \
                   --store-size (store_size:)";
        assert_eq!(text, all);
        assert_eq!(line(&store(), 256 << 10, 256, Some(1 << 30)), all);
        let text = line(&store(), 256 << 10, 256, Some(45 << 20));
        assert!(text.ends_with("; ulimit -f is 45.0 MiB: raise it"), "{text}");
        let store = StoreStats { segments_withheld: 8, segments_lost: 4, ..store() };
        let text = line(&store, 256 << 10, 1, None);
        for words in [
            "2.00 MiB are kept for forked children",
            "1.00 MiB take no writes",
            "device has no more space",
        ] {
            assert!(text.contains(words), "no '{words}' in {text}");
        }
        assert!(text.len() < 480, "a line of the log is cut at 512 bytes");
    }
}
