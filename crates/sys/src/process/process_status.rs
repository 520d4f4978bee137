//! Process status: what the kernel counts of this process, from /proc/self/status.
//!
//! Never: allocates | raises a signal | is a cancellation point of libc.
//! Threads: any.

use std::os::fd::AsRawFd;

use crate::raw_call::{Descriptor, raw_call};

/// More than the lines that are wanted take, which stand in the first half.
const TEXT_BYTES: usize = 4096;

/// The kilobytes behind each label, such as `VmPTE:`; none where there is no such line. None at all
/// if there is no /proc.
pub fn kilobytes<const N: usize>(labels: [&str; N]) -> Option<[Option<u64>; N]> {
    let mut text = [0u8; TEXT_BYTES];
    let file = Descriptor::open(c"/proc/self/status", libc::O_RDONLY, 0).ok()?;
    // SAFETY: the buffer has that many bytes.
    let count =
        unsafe { raw_call!(SYS_read, file.as_raw_fd(), text.as_mut_ptr(), text.len()) }.ok()?;
    Some(labels.map(|label| number_behind(&text[..count], label.as_bytes())))
}

fn number_behind(text: &[u8], label: &[u8]) -> Option<u64> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(label))?;
    let digits = line.iter().skip_while(|byte| !byte.is_ascii_digit());
    let digits = digits.take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_their_lines() {
        let text = b"Name:\tRssAnon: 7\nRssAnon:\t    1204 kB\nRssShmem:\t       0 kB\n";
        assert_eq!(number_behind(text, b"RssAnon:"), Some(1204));
        assert_eq!(number_behind(text, b"RssShmem:"), Some(0));
        assert_eq!(number_behind(text, b"VmPTE:"), None);
    }

    #[test]
    fn what_this_process_touched_is_counted() {
        // In a process of its own: other tests give memory back meanwhile.
        deepheap_child::must_succeed(deepheap_child::fork(|| {
            let anonymous =
                || kilobytes(["RssAnon:"]).expect("/proc is there")[0].expect("a number");
            let before = anonymous();
            let touched = vec![1u8; 32 << 20];
            assert!(anonymous() > before + (16 << 10), "{before} KiB before, {}", anonymous());
            drop(touched);
        }));
    }
}
