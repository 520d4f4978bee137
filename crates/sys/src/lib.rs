//! The only door to the kernel: every system call, signal and lock of deepheap is here, one noun
//! per file.
//!
//! Guarantees: wrappers tell the kernel's whole truth (partial lengths, EAGAIN, EEXIST), features
//! are probed at run time, and what the fault path needs is callable in a signal handler.
//! Never: uses std threads, std thread-locals or the global allocator on the fault path.
//! Threads: each file says who may call it, and from where.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("deepheap-sys runs on x86_64 Linux only, for now");

pub mod aligned_buffer;
pub mod append_file;
pub mod atomic;
pub mod byte_copy;
pub mod cancellation;
pub mod clock;
pub mod direct_file;
pub mod environment;
pub mod errno;
pub mod fault_signal;
pub mod file_status;
pub mod futex;
pub mod generation_lock;
pub mod handler_stack;
pub mod index_pool;
pub mod joint_writes;
pub mod kept_stderr;
pub mod large_stack;
pub mod lock;
pub mod log;
pub mod mapping;
pub mod memory_file;
pub mod moving_mean;
pub mod own_descriptor;
pub mod own_memory;
pub mod padded;
pub mod page_extractor;
pub mod page_pipe;
pub mod pagemap;
pub mod parking;
pub mod pinned_allocator;
pub mod pinned_array;
pub mod pipe;
pub mod process_status;
pub mod random;
pub mod raw_call;
pub mod rendezvous;
pub mod rendezvous_list;
pub mod ring;
pub mod schedule;
#[cfg(feature = "schedules")]
mod schedules;
pub mod signals;
mod signature;
pub mod sparse_file;
mod stack_switch;
pub mod stream_list;
pub mod thread;
pub mod tls;
pub mod token;
pub mod userfaultfd;
pub mod zap;

pub use errno::{Errno, Result};

/// Bytes of one page: the only page size deepheap handles.
pub const PAGE: usize = 4096;
