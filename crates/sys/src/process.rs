//! The process: its environment, clocks, status, and the lines that it writes.

pub mod clock;
pub mod command_line;
pub mod environment;
pub mod kept_stderr;
pub mod log;
pub mod process_status;
