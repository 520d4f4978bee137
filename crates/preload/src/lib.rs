//! The preload library: what `deepheap run` puts in front of libc, so that an unmodified program's
//! heap is ours.
//!
//! Guarantees: every symbol exported here keeps the meaning libc gives it. Memory that libc or the
//! dynamic linker allocates for itself stays plain (glibc's own heap); everything else is managed.
//! A system call made through libc on managed memory behaves as on ordinary memory, or is refused
//! with an error and a logged reason.
//! Never: uses std threads, std thread-locals or formatted printing; allocates managed memory for
//! itself.
//!
//! `calls` is the table of the wrapped functions and its macro; read it first.
//!
//! Left out on purpose:
//! - `operator new` and `operator delete`: libstdc++'s and libc++'s call `malloc` and `free`, which
//!   are ours. So the new-handler loop, `std::bad_alloc` and a program's own replacement keep
//!   working.
//! - `vfork`: the child shares the parent's memory, and with it the userfaultfd, the fault handler
//!   and the runtime, so its faults are resolved as in the parent. A wrapper could not return
//!   twice.
//! - `malloc_trim`, `mallopt`, `malloc_info`, `malloc_stats`: glibc's answer for the plain heap,
//!   the only heap they can tune.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!("deepheap-preload speaks x86_64 glibc only");

mod buffers;
mod caller;
mod calls;
mod memory;
mod process;
mod real;
mod refusal;
mod seam;
mod signals;
mod start_up;
mod threads;

/// The C library's `dh_...` functions: a program that uses them has this one runtime.
pub use deepheap_capi::*;

#[global_allocator]
static PINNED: deepheap::internal::PinnedAllocator = deepheap::internal::PinnedAllocator;
