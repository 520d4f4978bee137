//! libdeepheap_load.so: random numbers, Zipf's law, histograms and sizes for the C applications of
//! the papers, as `examples/papers/application.h` declares them.
//!
//! Guarantees: only `popularity_or_null` and `histogram_new` allocate, with the program's malloc.
//! Threads: any thread; a popularity is immutable, a state or a histogram belongs to one thread.

use core::ffi::{CStr, c_char};

use deepheap_load::histogram::Histogram;
use deepheap_load::permutation::Permutation;
use deepheap_load::random::{below, mix, split_next};
use deepheap_load::zipf::Zipf;
use deepheap_measure::size;

/// Which of some objects is next; C knows its address only.
pub struct Popularity {
    objects: u64,
    /// None is uniform.
    zipf: Option<Zipf>,
    order: Permutation,
}

/// A number for a number.
#[unsafe(no_mangle)]
pub extern "C" fn random_mix(number: u64) -> u64 {
    mix(number)
}

/// The next number of a sequence, whose state starts as any number.
#[unsafe(no_mangle)]
pub extern "C" fn random_next(state: &mut u64) -> u64 {
    split_next(state)
}

/// The popularity of objects, uniform for exponent 0; none without objects. Never freed: it lasts
/// as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn popularity_or_null(objects: u64, exponent: f64) -> Option<&'static Popularity> {
    (objects > 0).then(|| {
        let zipf = (exponent != 0.0).then(|| Zipf::new(objects, exponent));
        let order = Permutation::new(objects, 0);
        &*Box::leak(Box::new(Popularity { objects, zipf, order }))
    })
}

/// The next object of the sequence that `state` is of.
#[unsafe(no_mangle)]
pub extern "C" fn popularity_next(popularity: &Popularity, state: &mut u64) -> u64 {
    match &popularity.zipf {
        None => below(split_next(state), popularity.objects),
        Some(zipf) => popularity.order.forward(zipf.sample(|| split_next(state)) - 1),
    }
}

/// The object of a rank, 0 the most popular one.
#[unsafe(no_mangle)]
pub extern "C" fn popularity_object(popularity: &Popularity, rank: u64) -> u64 {
    popularity.order.forward(rank)
}

/// An empty histogram; it lasts until `histogram_free`.
#[unsafe(no_mangle)]
pub extern "C" fn histogram_new() -> Box<Histogram> {
    Box::new(Histogram::default())
}

/// Counts a value.
#[unsafe(no_mangle)]
pub extern "C" fn histogram_record(histogram: &mut Histogram, value: u64) {
    histogram.record(value, 1);
}

/// Adds all that `from` has counted.
#[unsafe(no_mangle)]
pub extern "C" fn histogram_merge(into: &mut Histogram, from: &Histogram) {
    into.merge(from);
}

/// The value that `share` (0 to 1) of all values do not exceed; 0 without values.
#[unsafe(no_mangle)]
pub extern "C" fn histogram_percentile(histogram: &Histogram, share: f64) -> u64 {
    histogram.percentile(share)
}

/// Frees a histogram, or nothing.
#[unsafe(no_mangle)]
pub extern "C" fn histogram_free(histogram: Option<Box<Histogram>>) {
    drop(histogram);
}

/// Reads a size as deepheap's settings have it; false, and nothing is written, if it is none.
///
/// # Safety
/// `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn size_read(text: *const c_char, bytes: &mut u64) -> bool {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let read = text.to_str().ok().and_then(|text| size::parse(text, None).ok());
    read.is_some_and(|read| {
        *bytes = read;
        true
    })
}
