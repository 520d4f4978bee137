//! Folder: the rendezvous files of this user's maps.
//!
//! Guarantees: only files of which no member lives are removed.
//! Never: runs in a signal handler, nor while a shard is owned: it reads a folder through `std`.
//! Threads: any.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use deepheap_sys::errno::Errno;
use deepheap_sys::rendezvous::{self, Rendezvous};
use deepheap_sys::sparse_file::FileId;

use crate::control::PARTICIPANTS_MAX;

const PREFIX: &str = "map-";

/// The name of a file's rendezvous.
pub fn name_of(id: FileId) -> String {
    format!("{PREFIX}{:x}-{:x}", id.device, id.inode)
}

/// The names of all that there are.
pub fn names() -> Result<Vec<String>, Errno> {
    let folder = PathBuf::from(OsString::from_vec(rendezvous::folder()?.into_bytes()));
    let names = std::fs::read_dir(folder)
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    names.sort();
    Ok(names)
}

/// Removes those whose processes have all died: their tables take RAM.
pub fn sweep() {
    let is_dead = |it: &Rendezvous| !(0..PARTICIPANTS_MAX).any(|place| it.is_locked(place));
    // What cannot be looked at stays; the next who maps the file makes it anew.
    for name in names().unwrap_or_default() {
        let Some(it) = Rendezvous::existing(&name).ok().filter(is_dead) else { continue };
        if let Ok(Some(door)) = it.door()
            && is_dead(&it)
        {
            door.remove();
        }
    }
}
