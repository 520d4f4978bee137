//! Place: what of a heap lies at an address that the program names, and why a call refuses it.
//!
//! Never: panics on an address that is none of ours; touches what lies there.
//! Threads: any.

use deepheap_heap::PAGE;

use crate::runtime::{Runtime, running_at};

/// Why a call could not be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectError {
    /// The pointer is not a live allocation of this heap.
    NotAnObject,
    /// Offset and length reach beyond the object.
    OutOfBounds,
    /// The device failed, or bytes do not match their checksum.
    Unreadable,
    /// The store takes no more, so nothing can be evicted.
    NoRoom,
    /// Memory or descriptors are lacking.
    Resources,
}

/// An address, and the runtime whose heap it may lie in.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) runtime: &'static Runtime,
    pub(crate) address: usize,
}

impl Place {
    /// None before there is a heap.
    pub(crate) fn of(pointer: *const u8) -> Option<Place> {
        let address = pointer as usize;
        Some(Place { runtime: running_at(address)?, address })
    }

    /// Bytes of the live allocation, or of the element of a live array of objects, that starts
    /// there.
    pub(crate) fn size(self) -> Option<usize> {
        let element = self.runtime.heap.object_at(self.address).map(|shape| shape.size);
        element.or_else(|| self.runtime.heap.allocation_size(self.address))
    }

    /// Bytes of the live allocation that starts there; from an element of less than 128 bytes,
    /// whose own are not known, to the end of its page: the same for as long as it lives.
    pub(crate) fn bytes(self) -> Option<usize> {
        let to_the_end = || self.is_inside().then(|| PAGE - self.address % PAGE);
        self.size().or_else(to_the_end)
    }

    /// Whether a part of what starts there may be touched: `NotAnObject` or `OutOfBounds` if not.
    pub(crate) fn check(self, offset: usize, length: usize) -> Result<(), ObjectError> {
        let end = offset.checked_add(length).ok_or(ObjectError::OutOfBounds)?;
        match self.size() {
            Some(bytes) if end > bytes => Err(ObjectError::OutOfBounds),
            Some(_) => Ok(()),
            None if !self.is_inside() => Err(ObjectError::NotAnObject),
            None => match self.address.checked_add(end) {
                Some(end) if are_in_use(self.runtime, self.address + offset, end) => Ok(()),
                _ => Err(ObjectError::OutOfBounds),
            },
        }
    }

    /// Whether memory pages that are in use are there, and no allocation or free room for one
    /// begins: an element of an array of small objects. The caller answers for the bounds.
    fn is_inside(self) -> bool {
        let heap = &self.runtime.heap;
        is_in_use(self.runtime, self.address)
            && !heap.is_object_page(self.runtime.page_of(self.address))
            && heap.usable_size(self.address).is_none()
    }
}

/// Whether all pages from the first byte to the last one before `end` are in use; without bytes,
/// the page that comes before. How far an object among them reaches, the pager knows.
fn are_in_use(runtime: &Runtime, first: usize, end: usize) -> bool {
    (page_of(first.min(end - 1))..end).step_by(PAGE).all(|page| is_in_use(runtime, page))
}

/// Whether a page that is in use is there.
fn is_in_use(runtime: &Runtime, address: usize) -> bool {
    runtime.heap.contains(address) && !runtime.heap.page_is_free(runtime.page_of(address))
}

/// The pages of a range, by their addresses.
pub(crate) fn pages_of(
    address: usize,
    bytes: usize,
) -> impl ExactSizeIterator<Item = usize> + Clone {
    (page_of(address)..address + bytes).step_by(PAGE)
}

/// Where the page of an address begins.
fn page_of(address: usize) -> usize {
    address & !(PAGE - 1)
}
