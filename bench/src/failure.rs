//! Failure: why a run gave no number, and the exit status that tells scripts so.
//!
//! Guarantees: every message says what is wrong and, where the user can act, what to do.
//! Never: a panic text.

use core::fmt;

/// What ended a run.
#[derive(Debug)]
pub enum Failure {
    /// Refused before anything started: exit status 2.
    Refused(String),
    /// The run started and failed: exit status 1.
    Failed(String),
    /// SIGINT or SIGTERM, by number: exit status 128 + number.
    Interrupted(i32),
}

impl Failure {
    /// A failure of the operating system while doing `what`.
    pub fn os(what: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::Failed(format!("{what}: {error}"))
    }

    /// The last error of the C library, while doing `what`.
    pub fn last_os(what: impl fmt::Display) -> Self {
        Self::os(what, &std::io::Error::last_os_error())
    }

    /// The exit status of the process.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Refused(_) => 2,
            Self::Failed(_) => 1,
            Self::Interrupted(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Failed(why) => f.write_str(why),
            Self::Interrupted(signal) => {
                write!(f, "interrupted by signal {signal}; everything it made was removed")
            }
        }
    }
}
