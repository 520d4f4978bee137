//! Log: one line to stderr, from a buffer on the stack.
//!
//! Guarantees: a line is one write(2) and starts with `deepheap[PID]: `; longer lines are cut at
//! LINE_MAX.
//! Never: allocates | takes a lock | changes errno | touches managed memory, except the text it is
//! given.
//! Threads: any, also in a signal handler.

use crate::errno::Errno;
use crate::raw_call::raw_call_again;

/// Bytes of the longest line, its prefix and newline included.
const LINE_MAX: usize = 512;

/// A piece of a line.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Text as it is.
    Text(&'a str),
    /// A number, in decimal.
    Number(u64),
    /// A number that may be negative, in decimal.
    Signed(i64),
    /// An address or a mask, in hexadecimal with 0x.
    Hex(u64),
    /// An error, as "ENOSPC (No space left on device)".
    Error(Errno),
}

impl<'a> From<&'a str> for Piece<'a> {
    fn from(text: &'a str) -> Self {
        Piece::Text(text)
    }
}
impl From<u64> for Piece<'_> {
    fn from(number: u64) -> Self {
        Piece::Number(number)
    }
}
impl From<u32> for Piece<'_> {
    fn from(number: u32) -> Self {
        Piece::Number(number.into())
    }
}
impl From<usize> for Piece<'_> {
    fn from(number: usize) -> Self {
        Piece::Number(number as u64)
    }
}
impl From<i32> for Piece<'_> {
    fn from(number: i32) -> Self {
        Piece::Signed(number.into())
    }
}
impl From<Errno> for Piece<'_> {
    fn from(errno: Errno) -> Self {
        Piece::Error(errno)
    }
}

/// Writes a line made of anything that a `Piece` can be made from: `say!("failed at ", offset, ":
/// ", errno)`.
#[macro_export]
macro_rules! say {
    ($($piece:expr),* $(,)?) => {
        $crate::process::log::say(&[$($crate::process::log::Piece::from($piece)),*])
    };
}

/// Writes `deepheap[PID]: ` and the pieces and a newline to stderr.
pub fn say(pieces: &[Piece<'_>]) {
    let mut line = Line::new();
    for piece in pieces {
        line.push(*piece);
    }
    let bytes = line.finish();
    // SAFETY: `bytes` is on this stack; a failed write cannot be reported to anyone.
    let _ = unsafe { raw_call_again!(SYS_write, libc::STDERR_FILENO, bytes.as_ptr(), bytes.len()) };
}

struct Line {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl Line {
    fn new() -> Self {
        let mut line = Line { bytes: [0; LINE_MAX], len: 0 };
        line.text("deepheap[");
        line.push(Piece::Number(u64::from(std::process::id())));
        line.text("]: ");
        line
    }

    fn push(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Text(text) => self.text(text),
            Piece::Number(number) => self.digits(number, 10),
            Piece::Signed(number) => {
                if number < 0 {
                    self.text("-");
                }
                self.digits(number.unsigned_abs(), 10);
            }
            Piece::Hex(number) => {
                self.text("0x");
                self.digits(number, 16);
            }
            Piece::Error(errno) => {
                self.text(errno.name());
                self.text(" (");
                if errno.name() == "errno" {
                    self.digits(errno.raw() as u64, 10);
                } else {
                    self.text(errno.text());
                }
                self.text(")");
            }
        }
    }

    fn text(&mut self, text: &str) {
        // One byte stays free for the newline.
        let room = LINE_MAX - 1 - self.len;
        let taken = text.len().min(room);
        self.bytes[self.len..self.len + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
    }

    fn digits(&mut self, mut number: u64, base: u64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(number % base) as usize];
            number /= base;
            if number == 0 {
                break;
            }
        }
        if let Ok(text) = core::str::from_utf8(&digits[at..]) {
            self.text(text);
        }
    }

    fn finish(&mut self) -> &[u8] {
        self.bytes[self.len] = b'\n';
        &self.bytes[..=self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_says_all_its_pieces() {
        let mut line = Line::new();
        for piece in [
            Piece::from("at "),
            Piece::Hex(0xbeef),
            Piece::from(" "),
            Piece::from(-7i32),
            Piece::from(u64::MAX),
            Piece::from(Errno::EIO),
        ] {
            line.push(piece);
        }
        let said = String::from_utf8(line.finish().to_vec()).unwrap();
        let expected = format!(
            "deepheap[{}]: at 0xbeef -718446744073709551615EIO (Input/output error)\n",
            std::process::id()
        );
        assert_eq!(said, expected);
    }

    #[test]
    fn long_line_is_cut_and_still_ends() {
        let mut line = Line::new();
        line.text(&"x".repeat(2000));
        assert_eq!(line.finish().len(), LINE_MAX);
        assert_eq!(line.finish()[LINE_MAX - 1], b'\n');
        say!("a test says ", 5u64);
    }
}
