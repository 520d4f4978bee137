//! Dense: the second step of compression, by zstd (level 1): one frame without magic number, size
//! of the content and checksum. It takes about twice the time of LZ4, and half the bytes.
//!
//! ```text
//!   0x00  a frame without content size, checksum and dictionary
//!   0x10  its window: 4096 bytes
//!   ...   blocks of zstd (RFC 8878, section 3.1.1.2) that give 4096 bytes
//! ```
//!
//! Guarantees: those of `codec`. zstd never allocates. Its contexts lie in fixed memory of ours
//! (`staticSize`). zstd grows the workspace of a compressor in one place, which returns an error
//! for such a context (`ZSTD_resetCCtx_internal`); a decompressor that gets whole input and output
//! has no buffer to grow. What else allocates is neither used nor compiled in: dictionaries,
//! threads, legacy formats. `tests/dense_pages.rs` counts calls of malloc.
//! Never: allocates after `new`; does I/O; waits, but for another thread's page in `decompress`.
//! Threads: a compressor has one user at a time. Decompressors are a pool, for any thread, also in
//! a signal handler: a thread that has one is inside the gate, where no handler of the program
//! runs. Those locks are leaves.

use core::ffi::c_void;
use core::ptr::null_mut;

use deepheap_sys::errno::Result;
use deepheap_sys::memory::padded::Padded;
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::threads::lock::Lock;
use deepheap_sys::threads::tls;
use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_setParameter, ZSTD_DCtx, ZSTD_DCtx_setParameter,
    ZSTD_cParameter as CParameter, ZSTD_compress2, ZSTD_dParameter as DParameter,
    ZSTD_decompressDCtx, ZSTD_format_e as Format, ZSTD_initStaticCCtx, ZSTD_initStaticDCtx,
    ZSTD_isError,
};

use crate::PAGE;
use crate::codec;

const LEVEL: i32 = 1;
/// The hash table of zstd has 2^11 entries: for a page 2^13 find nothing more, and have to be
/// cleared.
const HASH_LOG: i32 = 11;
/// Bytes of a context for pages at this level, as `ZSTD_estimateCCtxSize_usingCParams` tells.
const COMPRESSING_BYTES: usize = 50 << 10;
/// As `ZSTD_estimateDCtxSize` tells. Pages touch 28 KiB of it.
const DECOMPRESSING_BYTES: usize = 94 << 10;

/// RAM that a compressor and a decompressor take once they are used.
pub const CONTEXT_BYTES: usize = COMPRESSING_BYTES.next_multiple_of(PAGE) + 2 * PAGE + (28 << 10);

/// The memory for making pages dense. It takes RAM from the first page on.
pub struct DenseCompressor {
    memory: PinnedArray<u64>,
    /// In `memory`; null before the first page.
    context: *mut ZSTD_CCtx,
    buffers: PinnedArray<[u8; PAGE]>,
}

// SAFETY: the context is ours and lies in memory of ours; zstd ties it to no thread.
unsafe impl Send for DenseCompressor {}

impl DenseCompressor {
    /// Maps its memory.
    pub fn new() -> Result<DenseCompressor> {
        let memory = PinnedArray::new(COMPRESSING_BYTES / size_of::<u64>())?;
        Ok(DenseCompressor { memory, context: null_mut(), buffers: PinnedArray::new(2)? })
    }

    /// Where the bytes of a page go, compressed by LZ4, before `compress`.
    pub fn input(&mut self) -> &mut [u8; PAGE] {
        &mut self.buffers[0]
    }

    /// Whether what is in `input` is dense already.
    pub fn is_dense(&self) -> bool {
        codec::is_dense(&self.buffers[0])
    }

    /// The page whose bytes are the first `length` of `input`, dense, if that is at most `most`
    /// bytes.
    pub fn compress(&mut self, length: usize, most: usize) -> Option<&[u8]> {
        if self.context.is_null() {
            self.context = begin_compressing(&mut self.memory);
        }
        let [input, page] = &mut *self.buffers else { return None };
        if !codec::decompress(input.get(..length)?, page) {
            return None;
        }
        let to = input.get_mut(..most)?;
        let (start, page) = (to.as_mut_ptr().cast::<c_void>(), page.as_ptr().cast::<c_void>());
        // SAFETY: our context, or null, which is an error to zstd; two pages of ours that do not
        // overlap, and their true lengths.
        let bytes = unsafe { ZSTD_compress2(self.context, start, to.len(), page, PAGE) };
        // An error is a number above all lengths.
        let dense = to.get(..bytes)?;
        debug_assert!(codec::is_dense(dense));
        Some(dense)
    }
}

/// A context in this memory; null if that is too small.
fn begin_compressing(memory: &mut PinnedArray<u64>) -> *mut ZSTD_CCtx {
    // SAFETY: the array's own memory, aligned to 8, which nobody else uses and which stays.
    let context =
        unsafe { ZSTD_initStaticCCtx(memory.as_mut_ptr().cast(), size_of_val(&**memory)) };
    let parameters = [
        (CParameter::ZSTD_c_compressionLevel, LEVEL),
        (CParameter::ZSTD_c_hashLog, HASH_LOG),
        (CParameter::ZSTD_c_contentSizeFlag, 0),
        // Its name is ZSTD_c_format.
        (CParameter::ZSTD_c_experimentalParam2, Format::ZSTD_f_zstd1_magicless as i32),
    ];
    // SAFETY: null is an error to zstd; otherwise a context that was just begun.
    let is_set = |(parameter, value)| unsafe {
        ZSTD_isError(ZSTD_CCtx_setParameter(context, parameter, value)) == 0
    };
    if parameters.into_iter().all(is_set) { context } else { null_mut() }
}

/// The memory for making pages of dense ones. It takes RAM from the first page on.
pub struct DenseDecompressors(Box<[Padded<Lock<Decompressor>>]>);

struct Decompressor {
    memory: PinnedArray<u64>,
    /// In `memory`; null before the first page.
    context: *mut ZSTD_DCtx,
}

// SAFETY: as for a compressor.
unsafe impl Send for Decompressor {}

impl DenseDecompressors {
    /// So many threads can decompress at a time, and one at least: a heap that is opened again may
    /// have dense pages.
    pub fn new(count: usize) -> Result<DenseDecompressors> {
        let decompressor = |_| {
            let memory = PinnedArray::new(DECOMPRESSING_BYTES / size_of::<u64>())?;
            Ok(Padded(Lock::new(Decompressor { memory, context: null_mut() })))
        };
        Ok(DenseDecompressors((0..count.max(1)).map(decompressor).collect::<Result<_>>()?))
    }

    /// Bytes of RAM that they take, with a compressor for each.
    pub fn bytes(&self) -> usize {
        self.0.len() * CONTEXT_BYTES
    }

    /// Makes the page of its compressed bytes, dense or not; false if they are not those of a page.
    #[must_use]
    pub fn decompress(&self, bytes: &[u8], page: &mut [u8; PAGE]) -> bool {
        if !codec::is_dense(bytes) {
            return codec::decompress(bytes, page);
        }
        let (all, lane) = (&self.0, tls::lane());
        let free = (0..all.len()).find_map(|offset| all[(lane + offset) % all.len()].try_lock());
        // Another one's page takes microseconds.
        free.unwrap_or_else(|| all[lane % all.len()].lock()).decompress(bytes, page)
    }
}

impl Decompressor {
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8; PAGE]) -> bool {
        if self.context.is_null() {
            self.context = begin_decompressing(&mut self.memory);
        }
        if self.context.is_null() {
            return false;
        }
        let (to, from) = (page.as_mut_ptr().cast::<c_void>(), bytes.as_ptr().cast::<c_void>());
        // SAFETY: our context; page and bytes, and their true lengths.
        unsafe { ZSTD_decompressDCtx(self.context, to, PAGE, from, bytes.len()) == PAGE }
    }
}

/// A context in this memory; null if that is too small.
fn begin_decompressing(memory: &mut PinnedArray<u64>) -> *mut ZSTD_DCtx {
    // SAFETY: the array's own memory, aligned to 8, which nobody else uses and which stays.
    let context =
        unsafe { ZSTD_initStaticDCtx(memory.as_mut_ptr().cast(), size_of_val(&**memory)) };
    // Its name is ZSTD_d_format.
    let format = DParameter::ZSTD_d_experimentalParam1;
    let magicless = Format::ZSTD_f_zstd1_magicless as i32;
    // SAFETY: null is an error to zstd; otherwise a context that was just begun.
    match unsafe { ZSTD_isError(ZSTD_DCtx_setParameter(context, format, magicless)) } {
        0 => context,
        _ => null_mut(),
    }
}

#[cfg(test)]
mod tests;
