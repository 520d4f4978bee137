//! Create: a new file of a map with a log.
//!
//! Guarantees: it comes into being whole, or not at all, also if another process makes one of the
//! same name. Its name is not durable yet (`file`).
//! Never: changes a file that is there | runs in a signal handler, nor while a shard is owned: it
//! gives it its name through `std`.
//! Threads: one at a time in a process (`table`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use deepheap_store::format::map_log::MapShape;
use deepheap_store::{Identity, MapLog};
use deepheap_sys::errno::Errno;
use deepheap_sys::files::direct_file::{DirectFile, OpenError, file_system_is_memory};

use crate::error::MapError;
use crate::log::file::{device_of, now};

/// Makes a file of so many bytes of data, all zeros, unless there is one.
pub(crate) fn create(path: &Path, data_bytes: u64) -> Result<(), MapError> {
    if path.exists() {
        return Ok(());
    }
    if data_bytes == 0 {
        return Err(MapError::Empty);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    match file_system_is_memory(folder) {
        Ok(false) => {}
        Ok(true) => return Err(MapError::InMemory),
        Err(errno) => return Err(system(errno)),
    }
    // Under another name until it is whole, so that nobody else sees it before.
    let mut name = OsString::from(path);
    name.push(format!(".{}.new", std::process::id()));
    let unfinished = Unfinished(PathBuf::from(name));
    let shape = MapShape::new(Identity::random().id, data_bytes);
    let file = DirectFile::create(&unfinished.0);
    file.and_then(|file| file.set_len(shape.file_bytes())).map_err(system)?;
    let device = device_of(&unfinished.0, true)?;
    MapLog::create(&*device, shape, now()).map_err(MapError::Log)?;
    match std::fs::hard_link(&unfinished.0, path).map_err(Errno::from) {
        // Another process was first.
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(system(errno)),
    }
}

fn system(errno: Errno) -> MapError {
    MapError::Open(OpenError::System(errno))
}

/// A file that is removed with it.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
