//! Command line: what this process was started as, short enough for one line about it.
//!
//! Guarantees: at most as many bytes as there is room for; no control characters.
//! Never: allocates | raises a signal | is a cancellation point of libc.
//! Threads: any.

use std::os::fd::AsRawFd;

use crate::raw_call::{Descriptor, raw_call};

/// What stands where a name was cut.
const CUT: &[u8] = b"...";
/// More than any name that is made of it.
const TEXT_BYTES: usize = 512;

/// Fills `name` with the program's name, without its folder, and its arguments; returns how many
/// bytes that are. None without /proc.
pub fn short_name(name: &mut [u8]) -> usize {
    let mut text = [0u8; TEXT_BYTES];
    let Ok(file) = Descriptor::open(c"/proc/self/cmdline", libc::O_RDONLY, 0) else { return 0 };
    // SAFETY: the buffer has that many bytes.
    let count = unsafe { raw_call!(SYS_read, file.as_raw_fd(), text.as_mut_ptr(), text.len()) };
    shortened(&text[..count.unwrap_or(0)], name)
}

/// The same of arguments that each end with a NUL.
fn shortened(arguments: &[u8], name: &mut [u8]) -> usize {
    let arguments = arguments.strip_suffix(&[0]).unwrap_or(arguments);
    let program = arguments.iter().position(|&byte| byte == 0).unwrap_or(arguments.len());
    let folder = arguments[..program].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let all = &arguments[folder..];
    let is_cut = all.len() > name.len();
    let mut kept = if is_cut { name.len().saturating_sub(CUT.len()) } else { all.len() };
    // No part of a character in UTF-8.
    while is_cut && kept > 0 && all[kept] & 0xc0 == 0x80 {
        kept -= 1;
    }
    for (to, &byte) in name.iter_mut().zip(&all[..kept]) {
        *to = match byte {
            0 | b'\t'..=b'\r' => b' ',
            1..0x20 | 0x7f => b'?',
            _ => byte,
        };
    }
    let cut = if is_cut { CUT } else { b"" };
    let end = (kept + cut.len()).min(name.len());
    name[kept..end].copy_from_slice(&cut[..end - kept]);
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(arguments: &[u8]) -> String {
        let mut name = [0; 16];
        let len = shortened(arguments, &mut name);
        String::from_utf8(name[..len].to_vec()).expect("characters are whole")
    }

    #[test]
    fn a_name_is_that_of_the_program_with_its_arguments() {
        assert_eq!(name(b"/usr/bin/python3\0x.py\0"), "python3 x.py");
        assert_eq!(name(b"a\0/b/c\0-d\0"), "a /b/c -d");
        assert_eq!(name(b"sh\0-c\0a\nb\x1bc\0"), "sh -c a b?c");
        assert_eq!(name(b""), "");
    }

    #[test]
    fn a_long_one_is_cut_between_characters() {
        assert_eq!(name(b"0123456789abcdef\0"), "0123456789abcdef");
        assert_eq!(name(b"0123456789abcdefg\0"), "0123456789abc...");
        assert_eq!(name("0123456789ab\u{e9}defg\0".as_bytes()), "0123456789ab...");
    }

    #[test]
    fn this_process_has_one() {
        let mut own = [0; 48];
        let len = short_name(&mut own);
        assert!(len > 0 && !own[..len].contains(&b'/') || own[..len].contains(&b' '));
    }
}
