//! Contents: the bytes of an object, as they are in a page, in a slot and in a block.
//!
//! Guarantees: a page that is made of an object is complete: the object, then zeros.
//! Never: allocates, waits.
//! Threads: any, also in a signal handler.

use deepheap_store::{Block, StoreError};
use deepheap_sys::process::clock;

use crate::PAGE;
use crate::codec;
use crate::counters::Counted;
use crate::edges::Residency;
use crate::ownership::{Flag, Owned, UNKNOWN_HASH};

impl Residency {
    /// Makes the page of a cached object that is compressed. Its hash is known then if it has a
    /// backing block.
    pub fn unpress(&self, owned: &Owned, page: &mut [u8; PAGE]) -> Result<(), StoreError> {
        let descriptor = self.ownership.of(owned);
        // SAFETY: the slot is the owner's alone and holds a compressed page.
        let bytes = unsafe { self.cache.compressed(descriptor.slot()) };
        let backing = descriptor.backing();
        self.count(Counted::DenseBack, codec::is_dense(bytes).into());
        if !self.decompress(bytes, page) {
            // RAM that has changed by itself: there is nothing to serve.
            return Err(StoreError::Corrupt(backing.unwrap_or(Block(u32::MAX))));
        }
        if backing.is_some() && descriptor.hash() == UNKNOWN_HASH {
            descriptor.set_hash(self.store.hash(page));
        }
        Ok(())
    }

    /// Whether a cached object is a dense page.
    pub fn is_dense(&self, owned: &Owned) -> bool {
        let descriptor = self.ownership.of(owned);
        // SAFETY: the slot is the owner's alone, and by its flag holds a compressed page.
        let bytes = || unsafe { self.cache.compressed(descriptor.slot()) };
        descriptor.has(Flag::Compressed) && codec::is_dense(bytes())
    }

    /// Makes a page of compressed bytes; false if they are not those of one.
    #[must_use]
    pub fn decompress(&self, bytes: &[u8], page: &mut [u8; PAGE]) -> bool {
        let start_ns = clock::monotonic_ns();
        let is_page = self.decompressors.decompress(bytes, page);
        self.count(Counted::CompressNs, clock::monotonic_ns() - start_ns);
        self.count(Counted::Decompressed, 1);
        is_page
    }
}

/// The page at an address, to be filled.
///
/// # Safety
/// It is a writable page of the caller's alone during 'a.
pub unsafe fn page_at<'a>(address: *mut u8) -> &'a mut [u8; PAGE] {
    // SAFETY: the caller's promise; bytes need no alignment.
    unsafe { &mut *address.cast() }
}

/// Makes the page of an object: its bytes, then zeros.
pub fn fill_page(page: &mut [u8; PAGE], object: &[u8]) {
    let (bytes, rest) = page.split_at_mut(object.len());
    bytes.copy_from_slice(object);
    rest.fill(0);
}
