//! Append file: a file of deepheap's that is only appended to.
//!
//! Guarantees: its descriptor is one that the program leaves alone; `append` writes all of the
//! bytes, or says why not.
//! Never: is a cancellation point | allocates after `create`.
//! Threads: any; the caller serialises.

use crate::errno::Result;
use crate::files::own_descriptor::OwnDescriptor;
use crate::raw_call::{Descriptor, c_string, write_all};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The mode of a new file: its owner reads and writes it.
const MODE: u32 = 0o600;

/// An open file.
#[derive(Debug)]
pub struct AppendFile(OwnDescriptor);

impl AppendFile {
    /// Makes the file, or empties the one that is there.
    pub fn create(path: &Path) -> Result<AppendFile> {
        let path = c_string(path.as_os_str().as_bytes())?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;
        let file = Descriptor::open(&path, flags | libc::O_CLOEXEC, MODE)?;
        Ok(AppendFile(OwnDescriptor::adopt(file)))
    }

    /// Writes all of the bytes at the end of the file.
    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        write_all(self.0.as_raw_fd(), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;

    #[test]
    fn bytes_come_one_after_the_other_and_a_full_device_is_told() {
        let path = std::env::temp_dir().join(format!("append-file-{}", std::process::id()));
        std::fs::write(&path, "what was there").unwrap();
        let file = AppendFile::create(&path).unwrap();
        file.append(b"one ").unwrap();
        file.append(b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one two");
        std::fs::remove_file(&path).unwrap();
        let full = AppendFile::create(Path::new("/dev/full")).unwrap();
        assert_eq!(full.append(b"x"), Err(Errno::ENOSPC));
    }
}
