//! Config error: what is wrong with a setting and what to do about it.
//!
//! Guarantees: every message is one line that ends with the way out.
//! Never: prints; the caller does, after its own name.
//! Threads: plain data.

use core::fmt;

use crate::size::SizeError;
use crate::stats_report::bytes;

/// Why there can be no such config. Its text says what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// An item without a colon.
    NoColon(String),
    /// A key that does not exist.
    UnknownKey(String),
    /// A text that is no size.
    BadSize {
        /// The key.
        key: &'static str,
        /// What was written.
        text: String,
        /// What is wrong with it.
        reason: SizeError,
    },
    /// A size that is one, but cannot be.
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The size in bytes.
        bytes: u64,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Neither yes nor no.
    BadFlag {
        /// The key.
        key: &'static str,
        /// What was written.
        text: String,
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
    /// A path of no characters.
    EmptyPath(&'static str),
    /// A backslash before something other than a comma or a backslash.
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
                write!(out, "'{item}' is no setting: write key:value, for example ram:2G")
            }
            ConfigError::UnknownKey(key) => write!(
                out,
                "there is no setting '{key}': the settings are ram, store, store_size, \
                 page_buffer, objects, cache_policy, segment, pool_step, stats, show_stats, \
                 children and force (a comma inside a path is written \\,)"
            ),
            ConfigError::BadSize { key, text, reason } => {
                write!(out, "{key} '{text}' is not a size: {reason}")
            }
            ConfigError::OutOfRange { key, bytes: size, reason } => {
                write!(out, "{key} {} is impossible: {reason}", bytes(*size))
            }
            ConfigError::BadFlag { key, text } => {
                write!(out, "{key} '{text}' is neither: write yes or no")
            }
            ConfigError::NoneOf { key, text, words } => {
                write!(out, "{key} '{text}' is not understood: write {words}")
            }
            ConfigError::EmptyPath(key) => {
                write!(out, "{key} has no path: write {key}:/some/path or leave it out")
            }
            ConfigError::BadEscape(item) => write!(
                out,
                "'{item}' has a stray backslash: write \\\\ for a backslash and \\, for a comma"
            ),
            ConfigError::NotUtf8(variable) => {
                write!(out, "{variable} is not UTF-8: use a path without foreign bytes")
            }
            ConfigError::In(variable, error) => write!(out, "in {variable}: {error}"),
        }
    }
}

impl core::error::Error for ConfigError {}
