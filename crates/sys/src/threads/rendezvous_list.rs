//! Rendezvous list: the files in the folder where processes meet, and those that nobody uses.
//!
//! Guarantees: what is removed has no member.
//! Never: runs in a signal handler, nor where a thread may be cancelled: it reads a folder through
//! `std`.
//! Threads: any.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use crate::errno::Result;
use crate::threads::rendezvous::{Rendezvous, folder};

/// The names of the files in the folder that begin so, in order.
pub fn names(prefix: &str) -> Result<Vec<String>> {
    let folder = std::fs::read_dir(OsStr::from_bytes(folder()?.as_bytes()))?;
    let names = folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    Ok(names)
}

/// Removes those of which no member lives: they take RAM. A file that cannot be looked at stays;
/// the next process that wants it makes it anew.
pub fn sweep(prefix: &str) {
    for name in names(prefix).unwrap_or_default() {
        if let Ok(file) = Rendezvous::existing(&name) {
            file.remove_unless_used(file.as_raw_fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::rendezvous::words;
    use core::sync::atomic::Ordering::Relaxed;

    /// A child that another test has forked has our descriptors, and so is a member while it lives.
    fn sweep_until_gone(name: &str) {
        while names(name) != Ok(vec![]) {
            std::thread::yield_now();
            sweep(name);
        }
    }

    #[test]
    fn words_are_the_same_for_all_who_ask() {
        let name = format!("test-words-{}", std::process::id());
        let [(one, member), (other, last)] = [(); 2].map(|()| words::<2>(&name).unwrap());
        one[1].store(7, Relaxed);
        assert_eq!((other[0].load(Relaxed), other[1].load(Relaxed)), (0, 7));
        sweep(&name);
        member.remove_unless_used(member.as_raw_fd());
        drop(member);
        assert_eq!(names(&name), Ok(vec![name.clone()]), "a member lives");
        drop(last);
        sweep_until_gone(&name);
    }

    #[test]
    fn who_joins_while_the_last_one_goes_is_in_the_file_that_is_there() {
        let name = format!("test-race-{}", std::process::id());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let (words, member) = words::<1>(&name).unwrap();
                        words[0].fetch_add(1, Relaxed);
                        assert!(member.door().unwrap().is_some());
                        member.remove_unless_used(member.as_raw_fd());
                        // The door may have been another's: then it stays for one that comes.
                        drop(member);
                        sweep(&name);
                    }
                });
            }
        });
        sweep_until_gone(&name);
    }
}
