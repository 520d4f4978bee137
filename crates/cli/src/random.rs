//! Random: texts that nobody can guess.

use std::fs::File;
use std::io::Read;

use crate::refusal::Refusal;

/// Bytes of a text.
const BYTES: usize = 16;

/// Random hexadecimal digits, from the kernel.
pub fn random_text() -> Result<String, Refusal> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Refusal::missing(format!("/dev/urandom cannot be read: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
