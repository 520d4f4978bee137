//! A faulty device for tests.
//!
//! `SimDevice` keeps its pages in memory and misbehaves on order: by chance, from a seed, or at
//! an operation chosen by number. `Recorder` remembers what was asked of it, and `Medium` says what
//! may be left of that after a power failure. For tests only: it allocates and locks as it likes.
#![forbid(unsafe_code)]

mod crash;
mod fault;
mod random;
mod sim_device;

pub use crash::{Event, Image, Loss, Medium, Recorder};
pub use fault::{Fault, Operation, Script};
pub use random::Random;
pub use sim_device::SimDevice;
