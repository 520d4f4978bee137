//! Statistics: the counters, as the struct of `deepheap.h` and as JSON.
//!
//! Guarantees: never writes beyond the size the caller states.
//! Threads: any thread.

use core::ffi::{c_char, c_int};
use core::mem::{offset_of, size_of};
use core::ptr;

use deepheap::Stats;
use deepheap::stats::STATS_VERSION;

use crate::error::DH_EINVAL;

/// The smallest struct that makes sense: version and size.
const STATS_SIZE_MIN: usize = offset_of!(Stats, size) + size_of::<u32>();

/// The counters of now; before deepheap has started, zeros.
fn snapshot() -> Stats {
    deepheap::stats().unwrap_or(Stats {
        version: STATS_VERSION,
        size: size_of::<Stats>() as u32,
        pid: std::process::id(),
        ..Stats::default()
    })
}

/// Fills `out`, a `struct dh_stats` of `size` bytes; 0 or `DH_EINVAL`.
///
/// # Safety
/// `out` is NULL or has `size` bytes to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_stats(out: *mut Stats, size: usize) -> c_int {
    if out.is_null() || size < STATS_SIZE_MIN {
        return DH_EINVAL;
    }
    let stats = snapshot();
    let known = size.min(size_of::<Stats>());
    // SAFETY: the caller's promise: `size` bytes at `out`; `known` is no more than that, nor
    // than the snapshot, which is ours alone.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(&stats).cast::<u8>(), out.cast(), known);
        ptr::write_bytes(out.cast::<u8>().add(known), 0, size - known);
    }
    0
}

/// Writes the statistics as JSON, in the manner of snprintf(3); returns the length of the whole.
///
/// # Safety
/// `buffer` is NULL or has `length` bytes to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_stats_json(buffer: *mut c_char, length: usize) -> usize {
    let text = deepheap::stats_json(&snapshot());
    if !buffer.is_null() && length > 0 {
        let cut = text.len().min(length - 1);
        // SAFETY: the caller's promise: `length` bytes at `buffer`, of which cut + 1 are written.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), cut);
            *buffer.add(cut) = 0;
        }
    }
    text.len()
}
