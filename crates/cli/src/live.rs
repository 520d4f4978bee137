//! Live: `stat`, `top` and `serve`, which show processes while they run, and `set`, which changes
//! them.

pub(crate) mod history;
pub(crate) mod serve;
pub(crate) mod set;
pub(crate) mod sites;
pub(crate) mod stat;
pub(crate) mod symbols;
pub(crate) mod top;
pub(crate) mod watch;
