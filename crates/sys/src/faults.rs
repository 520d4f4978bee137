//! Faults: the handler of SIGBUS, and the stacks that it runs on.

pub mod fault_signal;
pub mod handler_stack;
pub(crate) mod stack_switch;
