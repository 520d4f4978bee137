//! Backends: where the objects of a run live. Each gives a placement; everything else is the same.
//!
//! Guarantees: memory that lives until the worker process ends; the table of pointers that a
//! placement may need is made before the limit of RAM is set and is no part of the data on any
//! backend.
//! Threads: the worker's main thread, before the other threads touch any object.

pub mod deepheap;
mod glibc;
mod mmap;
pub mod swap;

use core::ptr;

use crate::failure::Failure;
use crate::object::{Objects, Placement};
use crate::workload::{Backend, Layout, Workload};

/// The pointers to the objects, for a workload that needs them: made, not filled in yet.
#[derive(Debug)]
pub struct Index(Vec<*mut u8>);

impl Index {
    /// Room for the pointers. In a memory cgroup they are locked in RAM, so that they are neither
    /// swapped out nor taken from what the limit leaves to the data.
    pub fn new(workload: &Workload) -> Result<Self, Failure> {
        if !workload.needs_index() {
            return Ok(Self(Vec::new()));
        }
        let index = Self(vec![ptr::null_mut(); workload.objects() as usize]);
        if workload.needs_cgroup() {
            // SAFETY: exactly the bytes of the vector.
            if unsafe { libc::mlock(index.0.as_ptr().cast(), index.bytes() as usize) } != 0 {
                return Err(Failure::last_os(format!("mlock of {} bytes", index.bytes())));
            }
        }
        Ok(index)
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        size_of_val(self.0.as_slice()) as u64
    }
}

/// Memory for all objects of the workload, not filled yet.
pub fn obtain(workload: &Workload, index: Index) -> Result<Objects, Failure> {
    let placement = match workload.on {
        Backend::Deepheap => {
            deepheap::start(workload.ram_bytes, &workload.dir, &workload.conf)?;
            match workload.layout {
                Layout::Array | Layout::Each => allocate(workload, index, ::deepheap::malloc)?,
                Layout::Objects => {
                    allocate(workload, index, |size| ::deepheap::objects::allocate(1, size))?
                }
                Layout::ObjectArray => object_array(workload)?,
            }
        }
        Backend::Glibc => allocate(workload, index, glibc::malloc)?,
        Backend::Swap => dense(workload, index, swap::map(workload.dense_bytes())?),
        Backend::Mmap => dense(workload, index, mmap::map(workload)?),
    };
    // SAFETY: each placement holds `objects()` objects of their sizes, side by side or alone, at
    // least 8-byte aligned, freed by nobody.
    let objects = unsafe { Objects::new(placement, workload.sizes(), workload.objects()) };
    Ok(objects.with_zeros(workload.zero_percent))
}

/// deepheap's own statistics, for its backend.
pub fn statistics(workload: &Workload) -> Option<serde_json::Value> {
    (workload.on == Backend::Deepheap).then(deepheap::statistics).flatten()
}

/// All objects side by side from `base` on.
fn dense(workload: &Workload, index: Index, base: *mut u8) -> Placement {
    if !workload.needs_index() {
        return Placement::Array { base, stride: workload.object_bytes.most_bytes() as usize };
    }
    let Index(mut pointers) = index;
    for (pointer, place) in pointers.iter_mut().zip(workload.sizes().places(workload.objects())) {
        *pointer = base.wrapping_add(place as usize);
    }
    Placement::Each(pointers)
}

fn allocate(
    workload: &Workload,
    index: Index,
    malloc: impl Fn(usize) -> *mut u8,
) -> Result<Placement, Failure> {
    let one = |bytes: u64| {
        let ptr = malloc(bytes as usize);
        if ptr.is_null() { Err(full(workload)) } else { Ok(ptr) }
    };
    if !workload.allocates_each() {
        return Ok(dense(workload, index, one(workload.dense_bytes())?));
    }
    let (Index(mut pointers), sizes) = (index, workload.sizes());
    for (object, pointer) in (0..).zip(&mut pointers) {
        *pointer = one(sizes.of(object))?;
    }
    if workload.object_bytes.is_fixed() {
        // Which of them is which does not matter, and so the fill goes in the order of addresses.
        pointers.sort_unstable();
    }
    Ok(Placement::Each(pointers))
}

/// One array of objects of deepheap.
fn object_array(workload: &Workload) -> Result<Placement, Failure> {
    let size = workload.object_bytes.most_bytes() as usize;
    let base = ::deepheap::objects::allocate(workload.objects() as usize, size);
    if base.is_null() {
        return Err(full(workload));
    }
    Ok(Placement::Array { base, stride: ::deepheap::objects::stride(size) })
}

fn full(workload: &Workload) -> Failure {
    Failure::Failed(format!(
        "{}: malloc failed (out of memory or out of store) for {} bytes of data",
        workload.on.name(),
        workload.data_bytes
    ))
}
