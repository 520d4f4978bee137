//! Threads: locks and futexes, masks of signals, thread-local values, meetings of threads, and the
//! schedule that tests play.

pub mod atomic;
pub mod cancellation;
pub mod futex;
pub mod generation_lock;
pub mod lock;
pub mod parking;
pub mod rendezvous;
pub mod rendezvous_list;
pub mod schedule;
#[cfg(feature = "schedules")]
pub(crate) mod schedules;
pub mod signals;
pub mod thread;
pub mod tls;
pub mod token;
pub mod waits;
