//! Tests of dense pages. Those of memory and stack are in `tests/dense_pages.rs`.

use deepheap_sim::Random;

use super::*;
use crate::codec::Compressor;
use crate::codec::tests::{page, play_damage};

/// The page compressed by LZ4, and then dense.
fn dense<'a>(
    page: &[u8; PAGE],
    lz4: &mut Compressor,
    compressor: &'a mut DenseCompressor,
) -> Option<&'a [u8]> {
    let bytes = lz4.compress(page, PAGE - 1)?;
    compressor.input()[..bytes.len()].copy_from_slice(bytes);
    compressor.compress(bytes.len(), PAGE)
}

#[test]
fn a_page_comes_back_as_it_was_from_either_step() {
    let (mut random, mut lz4) = (Random::new(31), Compressor::default());
    let mut compressor = DenseCompressor::new().expect("memory");
    let decompressors = DenseDecompressors::new(2).expect("memory");
    let (mut smaller, mut count) = (0, 0);
    for _ in 0..2000 {
        let page = page(&mut random);
        let Some(bytes) = lz4.compress(&page, PAGE - 1).map(<[u8]>::to_vec) else { continue };
        let mut back = [0xee; PAGE];
        assert!(!codec::is_dense(&bytes) && decompressors.decompress(&bytes, &mut back));
        assert!(back == page);
        compressor.input()[..bytes.len()].copy_from_slice(&bytes);
        assert!(!compressor.is_dense());
        let Some(dense) = compressor.compress(bytes.len(), PAGE) else { continue };
        (smaller, count) = (smaller + usize::from(dense.len() < bytes.len()), count + 1);
        let mut back = [0xee; PAGE];
        assert!(codec::is_dense(dense) && decompressors.decompress(dense, &mut back));
        assert!(back == page);
    }
    assert!(smaller > 500 && count > 1000, "{smaller} of {count}");
}

#[test]
fn what_is_no_page_of_lz4_does_not_become_dense() {
    let mut compressor = DenseCompressor::new().expect("memory");
    *compressor.input() = [0xff; PAGE];
    assert!(compressor.compress(100, PAGE).is_none());
    assert!(compressor.compress(0, PAGE).is_none());
    assert!(!DenseDecompressors::new(0).expect("memory").decompress(&[], &mut [0; PAGE]));
}

#[test]
fn damaged_bytes_give_some_page_or_none_and_touch_nothing_beyond() {
    let (mut lz4, mut compressor) =
        (Compressor::default(), DenseCompressor::new().expect("memory"));
    let decompressors = DenseDecompressors::new(1).expect("memory");
    let compress = |page: &[u8; PAGE]| dense(page, &mut lz4, &mut compressor).map(<[u8]>::to_vec);
    play_damage(33, 2, compress, |bytes, page| decompressors.decompress(bytes, page));
}

#[test]
fn the_first_bytes_are_those_that_the_document_draws() {
    let (mut lz4, mut compressor) =
        (Compressor::default(), DenseCompressor::new().expect("memory"));
    let dense = dense(&[7; PAGE], &mut lz4, &mut compressor).expect("one byte repeats");
    assert_eq!(dense[..2], [0x00, 0x10]);
}

#[test]
fn threads_that_want_the_one_decompressor_take_turns() {
    let (mut lz4, mut compressor) =
        (Compressor::default(), DenseCompressor::new().expect("memory"));
    let page: [u8; PAGE] = core::array::from_fn(|at| (at / 64) as u8);
    let dense = dense(&page, &mut lz4, &mut compressor).expect("it repeats");
    let decompressors = DenseDecompressors::new(1).expect("memory");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let mut back = [0; PAGE];
                    assert!(decompressors.decompress(dense, &mut back) && back == page);
                }
            });
        }
    });
}
