//! Refusal: why a command does not go on, in words, and the exit status that goes with it.
//!
//! Guarantees: every text says what is wrong and what to do.
//! Never: panics because nobody reads what is printed.
//! Threads: plain data.

use core::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// Wrong use, or something that must be fixed first.
pub const EXIT_REFUSED: u8 = 2;
/// Something that was looked for is not there.
const EXIT_MISSING: u8 = 1;
/// The program was found but cannot be executed; as env(1) has it.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// The program was not found; as env(1) has it.
pub const EXIT_NOT_FOUND: u8 = 127;

/// Why not.
#[derive(Debug)]
pub struct Refusal {
    /// The exit status.
    pub status: u8,
    /// One or a few lines, without the name of the command in front.
    pub text: String,
}

impl Refusal {
    /// A refusal with status 2.
    pub fn new(text: impl Into<String>) -> Refusal {
        Refusal { status: EXIT_REFUSED, text: text.into() }
    }

    /// What another part of deepheap refused, in its words.
    pub fn of(error: impl Display) -> Refusal {
        Refusal::new(error.to_string())
    }

    /// Tells it on stderr. An empty text was told already.
    pub fn print(&self) {
        if !self.text.is_empty() {
            warn(&self.text);
        }
    }

    /// The thing that was looked for is not there.
    pub fn missing(text: impl Into<String>) -> Refusal {
        Refusal::with_status(EXIT_MISSING, text)
    }

    /// Something is not as it should be, and was told already.
    pub fn told() -> Refusal {
        Refusal::missing("")
    }

    /// What was asked for cannot be printed.
    pub fn unprinted(error: io::Error) -> Refusal {
        Refusal::missing(format!("cannot write to standard output: {error}"))
    }

    /// A refusal with another status.
    pub fn with_status(status: u8, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into() }
    }
}

/// Tells on stderr what is not as it should be, and goes on.
pub fn warn(text: &str) {
    // Nothing can be done if stderr is closed.
    let _ = writeln!(io::stderr(), "deepheap: {text}");
}

/// Whether colours may go to a stream.
pub fn wants_colour(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal()
        && !is_set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Writes to standard output at once.
///
/// # Errors
/// A full disk or the like; a closed pipe ends the process quietly before.
pub fn print_out(text: impl AsRef<[u8]>) -> Result<(), Refusal> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(Refusal::unprinted)
}
