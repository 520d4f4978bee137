//! Process: how a process becomes two or another program, and what it may do.

pub(crate) mod children;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod lists;
pub(crate) mod provision;
pub(crate) mod rights;
pub(crate) mod sharing;
pub(crate) mod spawn;
pub(crate) mod unmanaged;
