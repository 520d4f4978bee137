//! What tests of several files use.

#[cfg(debug_assertions)]
mod invariants;

use deepheap_heap::PageNo;
use deepheap_residency::ownership::{Ownership, Place};

/// As `place`, but leaves alone what is known to be all zeros.
pub(crate) fn place_quietly(ownership: &Ownership, page: PageNo) -> Place {
    match ownership.peek(page) {
        None if !ownership.table.may_be_stored(page) => Place::Zero,
        _ => ownership.place(page),
    }
}

#[cfg(not(debug_assertions))]
impl crate::pager::Pager {
    /// The structures have their walks in builds with debug assertions only.
    pub(crate) fn check_invariants(&self) {}
}
