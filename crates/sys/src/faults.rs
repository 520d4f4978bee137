//! Faults: the handler of SIGBUS, the stacks that it runs on, and what becomes of other signals
//! meanwhile.

pub mod deferral;
pub mod fault_signal;
pub mod handler_stack;
pub(crate) mod stack_switch;
