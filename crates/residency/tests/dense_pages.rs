//! Dense pages: zstd works in the fault path, so it must not allocate, and has a handler's stack.
//!
//! The test is alone in its process: it counts calls of malloc by its thread.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use deepheap_residency::codec::Compressor;
use deepheap_residency::codec::dense::{DenseCompressor, DenseDecompressors};
use deepheap_sim::Random;

const PAGE: usize = 4096;

/// The thread whose calls are counted, as `pthread_self` names it; 0: none.
static COUNTED: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
}

fn this_thread() -> u64 {
    // SAFETY: only tells.
    unsafe { libc::pthread_self() }
}

fn count() {
    let is_counted = COUNTED.load(Ordering::Relaxed) == this_thread();
    CALLS.fetch_add(is_counted.into(), Ordering::Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    count();
    // SAFETY: as the caller asks.
    unsafe { __libc_malloc(bytes) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count_of: usize, bytes: usize) -> *mut c_void {
    count();
    // SAFETY: as the caller asks.
    unsafe { __libc_calloc(count_of, bytes) }
}

/// Of some pages, some compress well, some badly, and some bytes are damaged.
fn play(
    lz4: &mut Compressor,
    compressor: &mut DenseCompressor,
    decompressors: &DenseDecompressors,
) -> u32 {
    let (mut random, mut pages, mut damaged) = (Random::new(41), 0, [0; PAGE]);
    let mut page = [0; PAGE];
    for round in 0..3000 {
        let (kinds, run) = (1 + random.below(255), 1 + random.below(64) as usize);
        for bytes in page.chunks_mut(run) {
            bytes.fill(random.below(kinds) as u8);
        }
        let Some(bytes) = lz4.compress(&page, PAGE - 1) else { continue };
        compressor.input()[..bytes.len()].copy_from_slice(bytes);
        let Some(dense) = compressor.compress(bytes.len(), PAGE) else { continue };
        pages += 1;
        let bytes = &mut damaged[..dense.len()];
        bytes.copy_from_slice(dense);
        if round % 2 == 0 {
            bytes[random.below(bytes.len() as u64) as usize] = random.number() as u8;
        }
        let _ = decompressors.decompress(bytes, &mut [0; PAGE]);
    }
    pages
}

/// What a handler's stack has left for it, well above what is used: 24 KiB.
const STACK_MAX: usize = 24 << 10;
const PAINT: u8 = 0xa7;

/// Paints the stack below, and then tells how much of it `play` has used.
#[inline(never)]
fn stack_of(play: &mut dyn FnMut()) -> usize {
    const DEPTH: usize = 128 << 10;
    #[inline(never)]
    fn paint() -> usize {
        let mut painted = [0u8; DEPTH];
        painted.fill(PAINT);
        std::hint::black_box(&mut painted).as_ptr() as usize
    }
    let bottom = paint();
    play();
    // SAFETY: stack of this thread below this frame, which nothing uses now.
    let is_painted =
        |at: &usize| unsafe { (bottom as *const u8).add(*at).read_volatile() } == PAINT;
    DEPTH - (0..DEPTH).take_while(is_painted).count()
}

#[test]
fn zstd_never_allocates_and_leaves_a_handlers_stack_alone() {
    let (mut lz4, mut compressor) =
        (Compressor::default(), DenseCompressor::new().expect("memory"));
    let decompressors = DenseDecompressors::new(1).expect("memory");
    let mut pages = 0;
    COUNTED.store(this_thread(), Ordering::Relaxed);
    let stack = stack_of(&mut || pages += play(&mut lz4, &mut compressor, &decompressors));
    COUNTED.store(0, Ordering::Relaxed);
    assert_eq!(CALLS.load(Ordering::Relaxed), 0, "calls of malloc");
    println!("{pages} pages, {stack} bytes of stack");
    assert!(pages > 1000 && stack < STACK_MAX, "{pages} pages, {stack} bytes of stack");
    // The counts count.
    let known = stack_of(&mut || {
        std::hint::black_box([1u8; STACK_MAX]);
    });
    assert!(known >= STACK_MAX, "{known}");
    COUNTED.store(this_thread(), Ordering::Relaxed);
    drop(std::hint::black_box(vec![1u8; 100]));
    COUNTED.store(0, Ordering::Relaxed);
    assert!(CALLS.load(Ordering::Relaxed) > 0);
}
