//! Signals: the program's handlers, masks and signal stacks, around the SIGBUS that is ours.

pub(crate) mod action;
pub(crate) mod mask;
pub(crate) mod relay;
pub(crate) mod set;
pub(crate) mod stack;
