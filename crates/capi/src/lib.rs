//! The C functions of deepheap: `dh_malloc` and its family, and those of objects, as
//! `include/deepheap.h` declares them.
//!
//! A skin: it converts arguments, results and errors, and holds no logic of memory. Two libraries
//! export these functions, `libdeepheap.so` and the preload library; whichever a process finds
//! first serves all callers, so there is one runtime.
//!
//! Guarantees: errno as malloc(3) leaves it; no panic crosses into C (`extern "C"` aborts).
//! Threads: any thread; never a signal handler.

mod allocation;
mod durable;
mod error;
mod maps;
mod objects;
mod start;
mod statistics;

pub use allocation::*;
pub use durable::*;
pub use error::*;
pub use maps::*;
pub use objects::*;
pub use start::*;
pub use statistics::*;
