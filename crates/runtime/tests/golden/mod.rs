//! Golden: files in the repository that hold every format that outlives a process, as text.
//!
//! A line is an offset and up to 32 bytes; lines of zeros are left out, and the first line has the
//! length. `xxd -r -c 32 FILE.hex >FILE` gives the file.

use std::fmt::Write;
use std::path::{Path, PathBuf};

const LINE_BYTES: usize = 32;

/// With this in the environment tests write golden files instead of comparing with them.
const WRITE: &str = "DEEPHEAP_GOLDEN";

/// Whether golden files are to be written.
pub fn is_to_write() -> bool {
    std::env::var(WRITE).is_ok_and(|what| what == "write")
}

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The text of a golden file.
pub fn text(name: &str) -> String {
    let path = path_of(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The bytes of a golden file.
pub fn bytes(name: &str) -> Vec<u8> {
    let text = text(&format!("{name}.hex"));
    let mut lines = text.lines();
    let length = lines.next().and_then(|line| line.strip_prefix("# bytes: "));
    let mut bytes = vec![0; length.expect("a length").parse().expect("a number")];
    for line in lines {
        let (offset, digits) = line.split_once(": ").expect("an offset");
        let offset = usize::from_str_radix(offset, 16).expect("hexadecimal");
        for (at, pair) in digits.split(' ').flat_map(|four| [&four[..2], &four[2..]]).enumerate() {
            bytes[offset + at] = u8::from_str_radix(pair, 16).expect("hexadecimal");
        }
    }
    bytes
}

/// Writes a golden file.
pub fn write(name: &str, bytes: &[u8]) {
    let mut text = format!("# bytes: {}\n", bytes.len());
    for (number, line) in bytes.chunks(LINE_BYTES).enumerate() {
        if line.iter().any(|&byte| byte != 0) {
            write!(text, "{:08x}:", number * LINE_BYTES).expect("memory");
            for (at, byte) in line.iter().enumerate() {
                let space = if at % 2 == 0 { " " } else { "" };
                write!(text, "{space}{byte:02x}").expect("memory");
            }
            text.push('\n');
        }
    }
    write_text(&format!("{name}.hex"), &text);
}

/// Writes a golden file that is text.
pub fn write_text(name: &str, text: &str) {
    std::fs::write(path_of(name), text).expect("a golden file");
}
