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

mod aliases;
mod allocation;
mod asynchronous_io;
mod caller;
mod calls;
mod children;
mod clocks;
mod context;
mod descriptor_list;
mod descriptors;
mod duplicate;
mod exec;
mod files;
mod fork;
mod formatted;
mod guarded;
mod ipc;
mod locks;
mod mapping;
mod messages;
mod own_memory;
mod own_process;
mod own_stack;
mod paths;
mod pins;
mod placement;
mod plain;
mod polling;
mod processes;
mod provision;
mod randomness;
mod real;
mod refusal;
mod rights;
mod seam;
mod signal_action;
mod signal_mask;
mod signal_relay;
mod signal_set;
mod signal_stack;
mod sockets;
mod spawn;
mod start_up;
mod stdio;
mod system_call;
mod thread;
mod transfer;
mod variadic;
mod vectors;
mod waiting;

/// The C library's `dh_...` functions: a program that uses them has this one runtime.
pub use deepheap_capi::*;

#[global_allocator]
static PINNED: deepheap::internal::PinnedAllocator = deepheap::internal::PinnedAllocator;
