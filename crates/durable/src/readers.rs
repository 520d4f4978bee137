//! Readers: opens a durable heap to be read, perhaps beside the process that writes it.
//!
//! `pins` tells why what a reader needs stays.
//!
//! Guarantees: the file is open for reading alone, and a lock holds the checkpoint that is read.
//! Never: writes; takes the writer's lock.
//! Threads: any.

use core::time::Duration;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use deepheap_store::{DurableError, DurableFile, FileDevice, Superblocks};
use deepheap_sys::threads::{generation_lock, thread};

use crate::error::OpenError;
use crate::heap_file::HeapFile;
use crate::location;

/// How often it is tried while checkpoints are made meanwhile, and the first pause.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Opens the file at its last checkpoint, or at a snapshot, and holds that.
pub fn open(of: &HeapFile<'_>, snapshot: Option<&str>) -> Result<(DurableFile, RawFd), OpenError> {
    // A checkpoint that was opened while another was made may not be held: it is opened anew.
    until_right(of.path, || open_once(of, snapshot), |_| false)
}

fn open_once(of: &HeapFile<'_>, snapshot: Option<&str>) -> Result<(DurableFile, RawFd), OpenError> {
    let file = location::open_to_read(of.path)?;
    let descriptor = file.as_raw_fd();
    let device = Arc::new(FileDevice::new(file).map_err(OpenError::System)?);
    let mut file = DurableFile::open_to_read(device, of.key.as_ref())?;
    if let Some(name) = snapshot {
        file = file.open_snapshot(name)?;
    }
    generation_lock::hold(descriptor, file.checkpoint()).map_err(OpenError::Locks)?;
    Ok((file, descriptor))
}

/// Opens a heap to be read; anew, if its tables were written over meanwhile.
pub fn until_steady<T>(
    path: &Path,
    open: impl FnMut() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    until_right(path, open, |answer| answer.as_ref().err().is_none_or(|error| !is_damage(error)))
}

/// Looks at a heap; anew, if the answer is not right and a checkpoint was made meanwhile.
pub fn until_right<T>(
    path: &Path,
    mut look: impl FnMut() -> Result<T, OpenError>,
    is_right: impl Fn(&Result<T, OpenError>) -> bool,
) -> Result<T, OpenError> {
    let superblocks = || -> Result<Superblocks, OpenError> {
        let file = location::open_to_read(path)?;
        let device = FileDevice::new(file).map_err(OpenError::System)?;
        Ok(Superblocks::of(&device)?)
    };
    let mut pause = PAUSE;
    for _ in 0..TRIES {
        let before = superblocks()?;
        let answer = look();
        if is_right(&answer) || superblocks()? == before {
            return answer;
        }
        thread::sleep(pause);
        pause = (2 * pause).min(PAUSE_MAX);
    }
    Err(OpenError::Restless)
}

/// Whether a page that was written over looks like this.
fn is_damage(error: &OpenError) -> bool {
    use DurableError::{Inconsistent, IndexDamaged, PageDamaged, SuperblocksDamaged};
    match error {
        OpenError::Format(error) => matches!(
            error,
            Inconsistent(_) | IndexDamaged { .. } | PageDamaged { .. } | SuperblocksDamaged
        ),
        OpenError::Damaged(_) => true,
        _ => false,
    }
}
