//! Error: what is wrong with a setting and what to do about it.
//!
//! Guarantees: every message is one line that ends with the way out.
//! Never: prints; the caller does, after its own name.
//! Threads: plain data.

use core::fmt;

/// Why there can be no such config. Its text says what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    /// An error of this text. The user's text is in it as `shown` has it.
    pub(crate) fn new(text: String) -> ConfigError {
        ConfigError(text)
    }

    /// The same error, found in an environment variable.
    pub(crate) fn within(self, variable: &str) -> ConfigError {
        ConfigError(format!("in {variable}: {self}"))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl core::error::Error for ConfigError {}

/// A text of the user's in quotes and on one line: control characters as Rust writes them.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::from("'");
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown + "'"
}
