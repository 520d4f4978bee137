//! Threads: how they start and end, their stacks, and what they wait on.

pub(crate) mod cancel;
pub(crate) mod context;
pub(crate) mod locks;
pub(crate) mod stack;
pub(crate) mod start;
pub(crate) mod waiting;
