//! libdeepheap: the C library as files, `libdeepheap.so` and `libdeepheap.a`.
//!
//! The functions live in `deepheap-capi`, which the preload library takes in as well, so that a
//! process under `deepheap run` has one runtime, not two.
//!
//! Guarantees: exports what `include/deepheap.h` declares and nothing else; what the runtime
//! allocates for itself is pinned, and counted.

pub use deepheap_capi::*;

#[global_allocator]
static PINNED: deepheap::internal::PinnedAllocator = deepheap::internal::PinnedAllocator;
