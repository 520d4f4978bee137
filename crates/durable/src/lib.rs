//! Durable: the files of durable heaps: which process has one open, what it holds, which
//! checkpoints it keeps.
//!
//! The heap that a process works with, and its checkpoints, are in `deepheap`. Here is what needs
//! no heap in memory: the file is opened to be written (`location`) or read (`readers`), its tables
//! are loaded (`load`, `roots`), checkpoints that somebody needs keep their space (`pins`), a file
//! is looked into or repaired (`inspect`, `repair`), and what else is done to one that no process
//! has open (`offline`).
//!
//! Must not: be needed by a process without durable heaps; know the heap of `malloc`.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod error;
pub mod heap_file;
pub mod inspect;
pub mod load;
pub mod location;
pub mod offline;
pub mod pins;
pub mod readers;
pub mod repair;
pub mod roots;

pub use error::OpenError;
pub use heap_file::HeapFile;
