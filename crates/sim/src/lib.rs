//! Devices that are not there, for tests and benchmarks: a faulty one, and one as slow as a disk.
//!
//! `SimDevice` keeps its pages in memory and misbehaves on order: by chance, from a seed, or at
//! an operation chosen by number. `Recorder` remembers what was asked of it, and `Medium` says what
//! may be left of that after a power failure. For tests only: it allocates and locks as it likes.
//! `ModelledDisk` is a device that takes as long as a hard disk, by `disk_model`.
#![forbid(unsafe_code)]

mod crash;
mod disk_model;
mod fault;
mod modelled_disk;
mod random;
mod sim_device;

pub use crash::{Event, Image, Loss, Medium, Recorder};
pub use fault::{Fault, Operation, Script};
pub use modelled_disk::ModelledDisk;
pub use random::Random;
pub use sim_device::SimDevice;
