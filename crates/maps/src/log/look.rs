//! Look: what a file with a log holds, for programs that look from outside.
//!
//! Never: changes anything; reads the log of a file that somebody has mapped.
//! Threads: any.

use std::path::Path;

use deepheap_store::format::map_log::MapSuperblock;
use deepheap_store::{FileDevice, MapLog, MapLogError, Survey};
use deepheap_sys::errno::Errno;
use deepheap_sys::files::direct_file::DirectFile;
use deepheap_sys::threads::rendezvous::Rendezvous;

use crate::error::MapError;
use crate::region::folder;

/// The content of a file with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The superblock that counts.
    pub superblock: MapSuperblock,
    /// Whether the other one is not whole.
    pub is_superblock_damaged: bool,
    /// The content of the log; none while a process has the file mapped.
    pub survey: Option<Result<Survey, MapLogError>>,
}

/// Looks at a file; none: it is no map with a log.
///
/// # Errors
/// It cannot be read, or only in parts.
pub fn look(path: &Path) -> Result<Option<Look>, MapError> {
    let file = DirectFile::open_to_read(path).map_err(MapError::Open)?;
    let (id, bytes) = (file.id(), file.len().map_err(MapError::Resources)?);
    let device = FileDevice::with_rings(file, 0).map_err(MapError::Resources)?;
    let log = match MapLog::open(&device) {
        Err(MapLogError::Foreign) => return Ok(None),
        opened => opened.map_err(MapError::Log)?,
    };
    let needed = log.superblock.shape.file_bytes();
    if needed > bytes {
        return Err(MapError::Cut { needed, bytes });
    }
    let is_mapped = Rendezvous::existing(&folder::name_of(id.map_err(MapError::Resources)?))
        .is_ok_and(|it| it.has_others());
    let survey = match is_mapped {
        true => None,
        // Without memory nothing can be said of the file.
        false => match log.survey(&device) {
            Err(MapLogError::Io(Errno::ENOMEM)) => {
                return Err(MapError::Resources(Errno::ENOMEM));
            }
            survey => Some(survey),
        },
    };
    let is_superblock_damaged = log.damaged.is_some();
    Ok(Some(Look { superblock: log.superblock, is_superblock_damaged, survey }))
}
