//! Ahead: what will be wanted soon is read before a thread faults on it.
//!
//! Faults, and the program, put pages into queues (`prefetch`); the fetchers serve them
//! (`fetcher`). A page that nobody wanted costs time and nothing else.

pub(crate) mod companions;
pub(crate) mod fetcher;
pub(crate) mod neighbours;
pub(crate) mod prefetch;
pub(crate) mod window;
