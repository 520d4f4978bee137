//! Backends: where the objects of a run live. Each gives a placement; everything else is the same.
//!
//! Guarantees: memory that lives until the worker process ends.
//! Threads: the worker's main thread, before the other threads touch any object.

mod deepheap;
mod glibc;
mod mmap;
mod swap;

use crate::failure::Failure;
use crate::object::{Objects, Placement};
use crate::workload::{Backend, Layout, Workload};

/// Memory for all objects of the workload, not filled yet.
pub fn obtain(workload: &Workload) -> Result<Objects, Failure> {
    let placement = match workload.on {
        Backend::Deepheap => {
            deepheap::start(workload)?;
            allocate(workload, ::deepheap::malloc)?
        }
        Backend::Glibc => allocate(workload, glibc::malloc)?,
        Backend::Swap => Placement::Array(swap::map(workload.data_bytes)?),
        Backend::Mmap => Placement::Array(mmap::map(workload)?),
    };
    // SAFETY: each placement holds `objects()` objects of `object_bytes`, side by side or alone,
    // at least 16-byte aligned, freed by nobody.
    Ok(unsafe { Objects::new(placement, workload.object_bytes as usize, workload.objects()) })
}

/// deepheap's own statistics, for its backend.
pub fn statistics(workload: &Workload) -> Option<serde_json::Value> {
    (workload.on == Backend::Deepheap).then(deepheap::statistics).flatten()
}

fn allocate(workload: &Workload, malloc: fn(usize) -> *mut u8) -> Result<Placement, Failure> {
    let full = || {
        Failure::Failed(format!(
            "{}: malloc failed (out of memory or out of store) for {} bytes of data",
            workload.on.name(),
            workload.data_bytes
        ))
    };
    let one = |bytes: u64| {
        let ptr = malloc(bytes as usize);
        if ptr.is_null() { Err(full()) } else { Ok(ptr) }
    };
    match workload.layout {
        Layout::Array => Ok(Placement::Array(one(workload.objects() * workload.object_bytes)?)),
        Layout::Each => {
            let each = (0..workload.objects()).map(|_| one(workload.object_bytes));
            Ok(Placement::Each(each.collect::<Result<_, _>>()?))
        }
    }
}
