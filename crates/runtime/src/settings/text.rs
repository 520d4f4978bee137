//! Text: settings as they are written, `key:value,key:value`, with escapes in values.
//!
//! Guarantees: `unescaped(trimmed(escaped(value)))` is the value.
//! Threads: plain functions.

use crate::settings::error::{ConfigError, shown};

/// The items between unescaped commas, as they are written.
pub(crate) fn items(conf: &str) -> Vec<&str> {
    let (mut items, mut start, mut is_escaped) = (Vec::new(), 0, false);
    for (at, c) in conf.char_indices() {
        if c == ',' && !is_escaped {
            items.push(&conf[start..at]);
            start = at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    items.push(&conf[start..]);
    items
}

/// A value without the blanks around it; one behind a backslash stays.
pub(crate) fn trimmed(value: &str) -> &str {
    let value = value.trim_start();
    let kept = value.trim_end();
    let slashes = kept.len() - kept.trim_end_matches('\\').len();
    match value[kept.len()..].chars().next() {
        Some(blank) if slashes % 2 == 1 => &value[..kept.len() + blank.len_utf8()],
        _ => kept,
    }
}

/// The meaning of a value that is written with escapes.
pub(crate) fn unescaped(value: &str) -> Result<String, ConfigError> {
    let mut meant = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (c, chars.clone().next()) {
            ('\\', Some(next)) if matches!(next, ',' | '\\') || next.is_whitespace() => {
                meant.push(next);
                chars.next();
            }
            ('\\', _) => {
                let fix = "write \\\\ for a backslash and \\, for a comma";
                let text = format!("{} has a stray backslash: {fix}", shown(value));
                return Err(ConfigError::new(text));
            }
            _ => meant.push(c),
        }
    }
    Ok(meant)
}

/// The way to write a value: `unescaped(trimmed(escaped(value)))` gives it back.
pub(crate) fn escaped(value: &str) -> String {
    let mut written = String::with_capacity(value.len() + 2);
    for (at, c) in value.char_indices() {
        let is_at_an_end = at == 0 || at + c.len_utf8() == value.len();
        if matches!(c, ',' | '\\') || (c.is_whitespace() && is_at_an_end) {
            written.push('\\');
        }
        written.push(c);
    }
    written
}
