//! Heap file: the file of a durable heap and, if it is encrypted, its key.
//!
//! A key is in a file of its own: 32 bytes that nobody can guess, as they are or as 64 hexadecimal
//! digits.
//!
//! Guarantees: no part of a key is in a message.
//! Threads: plain values.

use std::io::Read;
use std::path::Path;

use deepheap_store::{KEY_BYTES, Key};

use crate::error::OpenError;

/// No file of a key is longer: digits, and blanks around them.
const FILE_BYTES_MAX: u64 = 4 * KEY_BYTES as u64;

/// See the file's header.
pub struct HeapFile<'a> {
    /// The file.
    pub path: &'a Path,
    /// The key that it is encrypted with; none: it is not.
    pub key: Option<Key>,
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for HeapFile<'a> {
    fn from(path: &'a P) -> Self {
        HeapFile { path: path.as_ref(), key: None }
    }
}

impl<'a> HeapFile<'a> {
    /// The file, with the key that is in another one, if one is named.
    ///
    /// # Errors
    /// `OpenError::Key`: there is no key in the file.
    pub fn with_key_file(path: &'a Path, key: Option<&Path>) -> Result<HeapFile<'a>, OpenError> {
        Ok(HeapFile { path, key: key.map(read_key).transpose()? })
    }
}

/// The key in a file.
fn read_key(path: &Path) -> Result<Key, OpenError> {
    let failed = |why: &str| OpenError::Key(format!("{}: {why}", path.display()));
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| failed(&error.to_string()))?;
    let digits = core::str::from_utf8(&bytes).ok().map(str::trim);
    let key = match <[u8; KEY_BYTES]>::try_from(&bytes[..]) {
        Ok(key) => Some(key),
        Err(_) => digits.and_then(from_digits),
    };
    key.map(Key::from_bytes).ok_or_else(|| {
        failed(
            "this is no key: give a file of 32 random bytes, or of 64 hexadecimal digits; `openssl \
             rand -hex 32` makes one",
        )
    })
}

fn from_digits(digits: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    if digits.len() != 2 * KEY_BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_make_the_key_that_they_spell() {
        let digits = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
        assert_eq!(from_digits(digits), Some(core::array::from_fn(|at| at as u8)));
        for bad in ["", "00", &digits[1..], &format!("{}+f", &digits[2..]), &"é".repeat(32)] {
            assert_eq!(from_digits(bad), None, "{bad}");
        }
    }
}
