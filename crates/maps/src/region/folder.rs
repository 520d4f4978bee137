//! Folder: the rendezvous files of this user's maps.
//!
//! Never: runs in a signal handler, nor while a shard is owned: it reads a folder through `std`.
//! Threads: any.

use deepheap_sys::errno::Errno;
use deepheap_sys::files::file_status::FileId;
use deepheap_sys::threads::rendezvous_list;

const PREFIX: &str = "map-";

/// The name of a file's rendezvous.
pub(crate) fn name_of(id: FileId) -> String {
    format!("{PREFIX}{:x}-{:x}", id.device, id.inode)
}

/// The names of all that there are.
pub(crate) fn names() -> Result<Vec<String>, Errno> {
    rendezvous_list::names(PREFIX)
}

/// Removes those whose processes have all died.
pub(crate) fn sweep() {
    rendezvous_list::sweep(PREFIX);
}
