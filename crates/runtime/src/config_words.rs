//! Config words: settings that are a word of their own.
//!
//! Guarantees: what is none is refused with the words that there are.
//! Threads: pure.

use deepheap_pager::{Compress, Overcommit};

use crate::config_error::ConfigError;
use crate::stall_limit::StallLimit;

/// The longest name of a pool.
const POOL_NAME_MAX: usize = 32;

/// The ways to compress, by their words.
const COMPRESS: [Compress; 3] = [Compress::Auto, Compress::Off, Compress::Lz4];

pub(crate) fn compress_word(compress: Compress) -> &'static str {
    match compress {
        Compress::Auto => "auto",
        Compress::Off => "off",
        Compress::Lz4 => "lz4",
    }
}

pub(crate) fn compress(value: &str) -> Result<Compress, ConfigError> {
    let (key, word) = ("compress", value.trim().to_ascii_lowercase());
    let found = COMPRESS.into_iter().find(|&compress| compress_word(compress) == word);
    let (text, words) = (value.to_owned(), "auto, off or lz4");
    found.ok_or(ConfigError::NoneOf { key, text, words })
}

/// A percentage of the run time, or `off`.
pub(crate) fn stall(text: &str) -> Result<Option<StallLimit>, ConfigError> {
    if text.trim() == "off" {
        return Ok(None);
    }
    let words = "a percentage of the run time from 0.1% to 50%, or off";
    let error = || ConfigError::NoneOf { key: "stall", text: text.to_owned(), words };
    StallLimit::parse(text).map(Some).ok_or_else(error)
}

/// What can be part of a file's name.
pub(crate) fn pool(value: &str) -> Result<String, ConfigError> {
    let name = value.trim();
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=POOL_NAME_MAX).contains(&name.len()) && name.bytes().all(is_usual) {
        return Ok(name.to_owned());
    }
    let words = "a name of up to 32 letters, digits, '-', '_' and '.'";
    Err(ConfigError::NoneOf { key: "pool", text: value.to_owned(), words })
}

pub(crate) fn overcommit(value: &str) -> Result<Overcommit, ConfigError> {
    match value.trim().to_ascii_lowercase().as_str() {
        "lazy" => Ok(Overcommit::Lazy),
        "strict" => Ok(Overcommit::Strict),
        _ => Err(ConfigError::NoneOf {
            key: "overcommit",
            text: value.to_owned(),
            words: "lazy or strict",
        }),
    }
}
