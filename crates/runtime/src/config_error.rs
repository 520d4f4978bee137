//! Config error: what is wrong with a setting and what to do about it.
//!
//! Guarantees: every message is one line that ends with the way out.
//! Never: prints; the caller does, after its own name.
//! Threads: plain data.

use core::fmt::{self, Write};

use deepheap_measure::size::SizeError;

/// Why there can be no such config. Its text says what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// An item without a colon.
    NoColon(String),
    /// A key that does not exist.
    UnknownKey {
        /// The key.
        key: String,
        /// Those that do.
        keys: String,
    },
    /// A text that is no size.
    BadSize {
        /// The key.
        key: &'static str,
        /// What was written.
        text: String,
        /// What is wrong with it.
        reason: SizeError,
    },
    /// A value that is understood, but cannot be.
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The value, as people write it.
        value: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// None of the words that there are.
    NoneOf {
        /// The key.
        key: &'static str,
        /// What was written.
        text: String,
        /// What to write.
        words: &'static str,
    },
    /// A key that was there before in the same text.
    Twice(&'static str),
    /// A path of no characters.
    EmptyPath(&'static str),
    /// A backslash before something other than a comma, a blank or a backslash.
    BadEscape(String),
    /// An environment variable that is not UTF-8.
    NotUtf8(&'static str),
    /// One of the others, in this environment variable.
    In(&'static str, Box<ConfigError>),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::NoColon(item) => {
                write!(out, "'{}' is no setting: write key:value, for example ram:2G", Line(item))
            }
            ConfigError::UnknownKey { key, keys } => write!(
                out,
                "there is no setting '{}': the settings are {keys} (a comma inside a path is \
                 written \\,)",
                Line(key),
            ),
            ConfigError::BadSize { key, text, reason } => {
                write!(out, "{key} '{}' is not a size: {reason}", Line(text))
            }
            ConfigError::OutOfRange { key, value, reason } => {
                write!(out, "{key} {value} is impossible: {reason}")
            }
            ConfigError::NoneOf { key, text, words } => {
                write!(out, "{key} '{}' is not understood: write {words}", Line(text))
            }
            ConfigError::Twice(key) => write!(out, "{key} is set twice: set it once"),
            ConfigError::EmptyPath(key) => {
                write!(out, "{key} is empty: give a path, or leave {key} out")
            }
            ConfigError::BadEscape(item) => write!(
                out,
                "'{}' has a stray backslash: write \\\\ for a backslash and \\, for a comma",
                Line(item),
            ),
            ConfigError::NotUtf8(variable) => {
                write!(out, "{variable} is not UTF-8: use a path without foreign bytes")
            }
            ConfigError::In(variable, error) => write!(out, "in {variable}: {error}"),
        }
    }
}

impl core::error::Error for ConfigError {}

/// A text of the user's on one line: control characters as Rust writes them.
struct Line<'a>(&'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c.is_control() {
            true => write!(out, "{}", c.escape_default()),
            false => out.write_char(c),
        })
    }
}
