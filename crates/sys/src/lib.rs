//! The only door to the kernel: every system call, signal and lock of deepheap is here, one noun
//! per file.
//!
//! Guarantees: wrappers tell the kernel's whole truth (partial lengths, EAGAIN, EEXIST), features
//! are probed at run time, and what the fault path needs is callable in a signal handler.
//! Never: uses std threads, std thread-locals or the global allocator on the fault path.
//! Threads: each file says who may call it, and from where.

#![cfg_attr(not(test), warn(unreachable_pub))]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("deepheap-sys runs on x86_64 Linux only, for now");

pub mod errno;
pub mod faults;
pub mod files;
pub mod memory;
pub mod moving_mean;
pub mod narrow;
pub mod process;
pub mod random;
pub mod raw_call;
mod signature;
pub mod threads;

pub use errno::{Errno, Result};

/// Bytes of one page: the only page size deepheap handles.
pub const PAGE: usize = 4096;
