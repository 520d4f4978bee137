//! Provision: has the runtime open what it may need later, before the program gives up rights.
//!
//! Never: opens anything in a child of `vfork`, which is in its parent's memory and has descriptors
//! of its own. Changes errno.
//! Threads: any.

use crate::{own_process, seam};

/// Before the program gives up rights.
pub fn provide() {
    if !own_process::shares_memory() {
        seam::keep_errno(deepheap::internal::provide);
    }
}
