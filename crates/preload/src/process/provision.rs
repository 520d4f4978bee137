//! Provision: has the runtime open what it may need later, before the program gives up rights.
//!
//! Never: opens anything in a child of `vfork`, which is in its parent's memory and has descriptors
//! of its own. Changes errno.
//! Threads: any.

use crate::process::sharing;
use crate::seam;

/// Before the program gives up rights.
pub fn provide() {
    if !sharing::shares_memory() {
        seam::keep_errno(deepheap::internal::provide);
    }
}
