//! Generation lock: shared locks of a file's readers, one number each, that its writer can ask for.
//!
//! A number stands for a byte far behind the end of any file. A reader holds a shared lock of the
//! open file description on it (`F_OFD_SETLK`); the writer asks whether anyone does.
//!
//! Guarantees: a lock ends with its descriptor, so with its process, however that ends. Locks of
//! this kind do not meet those of flock(2).
//! Never: waits, allocates.
//! Threads: any.

use core::ops::RangeInclusive;
use std::os::fd::RawFd;

use crate::errno::Result;
use crate::raw_call::raw_call_again;

/// The byte of number 0.
const BASE: u64 = 1 << 62;
/// The largest number.
pub const NUMBER_MAX: u64 = BASE - 2;

fn bytes_of(numbers: &RangeInclusive<u64>, kind: i32) -> libc::flock {
    // SAFETY: all zeros is a valid `flock`.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    let (first, last) = ((*numbers.start()).min(NUMBER_MAX), (*numbers.end()).min(NUMBER_MAX));
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = (BASE + first) as i64;
    lock.l_len = (last - first + 1) as i64;
    lock
}

/// Holds a number, together with other processes. The file is open for reading.
pub fn hold(file: RawFd, number: u64) -> Result<()> {
    let mut lock = bytes_of(&(number..=number), libc::F_RDLCK);
    // SAFETY: the kernel reads the struct.
    unsafe { raw_call_again!(SYS_fcntl, file, libc::F_OFD_SETLK, &raw mut lock) }?;
    Ok(())
}

/// The lowest of these numbers, or one of them, that somebody holds through another description of
/// the file; none if nobody holds any.
pub fn holder_among(file: RawFd, numbers: RangeInclusive<u64>) -> Result<Option<u64>> {
    if numbers.is_empty() {
        return Ok(None);
    }
    let mut lock = bytes_of(&numbers, libc::F_WRLCK);
    // SAFETY: the kernel reads and writes the struct.
    unsafe { raw_call_again!(SYS_fcntl, file, libc::F_OFD_GETLK, &raw mut lock) }?;
    match i32::from(lock.l_type) {
        libc::F_UNLCK => Ok(None),
        _ => Ok(Some((lock.l_start as u64).saturating_sub(BASE).max(*numbers.start()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_number_is_held_until_its_descriptor_is_closed() {
        let path = std::env::temp_dir().join(format!("deepheap-numbers-{}", std::process::id()));
        let writer = std::fs::File::create(&path).expect("a file");
        let readers = [(); 2].map(|()| std::fs::File::open(&path).expect("a file"));
        let held = |numbers| holder_among(writer.as_raw_fd(), numbers).expect("locks");
        assert_eq!(held(0..=NUMBER_MAX), None);
        for reader in &readers {
            hold(reader.as_raw_fd(), 7).expect("shared");
        }
        hold(readers[1].as_raw_fd(), 9).expect("shared");
        assert_eq!((held(0..=6), held(0..=7), held(8..=8)), (None, Some(7), None));
        assert_eq!(held(8..=NUMBER_MAX), Some(9));
        let [one, other] = readers;
        drop(one);
        assert_eq!(held(7..=7), Some(7), "the other one has it");
        drop(other);
        assert_eq!(held(0..=NUMBER_MAX), None);
        #[expect(clippy::reversed_empty_ranges, reason = "the point")]
        let none = held(3..=2);
        assert_eq!(none, None);
        std::fs::remove_file(path).expect("a file");
    }
}
