//! File: the file of a map with a log, opened and recovered; its superblocks.
//!
//! Guarantees: the log is recovered once, by the first process that may write, before anybody reads
//! a page. The name of a file that can be written is durable, whichever process made it.
//! Never: changes a file that is something else.
//! Threads: one at a time in a process (`table`); `prepare` one process at a time (the door).

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use deepheap_store::device::Device;
use deepheap_store::format::map_log::{LogKey, MAGIC, MapShape, MapSuperblock};
use deepheap_store::{FileDevice, MapLog, MapLogError};
use deepheap_sys::errno::Errno;
use deepheap_sys::files::direct_file::{self, DirectFile};

use crate::error::MapError;
use crate::log::tables::{LogWords, Tail};

/// Rings of its device: batches of folding and recovery at a time.
const RINGS: usize = 1;

/// See the file's header.
pub(crate) struct LogFile {
    device: Box<dyn Device>,
    shape: MapShape,
}

impl LogFile {
    /// Opens it; of `bytes` bytes.
    pub(crate) fn open(path: &Path, bytes: u64, writes: bool) -> Result<LogFile, MapError> {
        let device = device_of(path, writes)?;
        if writes {
            direct_file::sync_name(path).map_err(|errno| MapError::Open(errno.into()))?;
        }
        let shape = MapLog::open(&*device).map_err(MapError::Log)?.superblock.shape;
        match shape.file_bytes() {
            needed if needed > bytes => Err(MapError::Cut { needed, bytes }),
            _ => Ok(LogFile { device, shape }),
        }
    }

    /// Whether a file begins like one. Where that cannot be read it does not.
    pub(crate) fn is_one(file: &DirectFile) -> bool {
        let Ok(mut page) =
            deepheap_sys::memory::pinned_array::PinnedArray::<u8>::new(deepheap_sys::PAGE)
        else {
            return false;
        };
        file.read_at(&mut page, 0).is_ok() && page[..8] == MAGIC.to_le_bytes()
    }

    /// Recovers the log, if no process has done so yet; only one that `can_write` can. The caller
    /// is at the door, and nobody has read a page of the base.
    pub(crate) fn prepare(&self, words: &LogWords, can_write: bool) -> Result<(), MapError> {
        if words.is_ready.load(Acquire) != 0 {
            return Ok(());
        }
        let mut log = MapLog::open(&*self.device).map_err(MapError::Log)?;
        if !can_write {
            let survey = log.survey(&*self.device).map_err(MapError::Log)?;
            return match survey.committed_records {
                0 => Ok(()),
                _ => Err(MapError::NotRecovered),
            };
        }
        log.recover(&*self.device, now()).map_err(MapError::Log)?;
        words.sequence.store(log.superblock.sequence, Relaxed);
        words.epoch.store(log.superblock.epoch, Relaxed);
        Tail::empty(0).store(words);
        words.is_ready.store(1, Release);
        Ok(())
    }

    /// Writes a superblock by which the log begins at `start`. The caller syncs before and after,
    /// and has the lock of folding.
    pub(crate) fn begin_at(
        &self,
        words: &LogWords,
        start: u64,
        is_clean: bool,
    ) -> Result<(), Errno> {
        let epoch = words.epoch.load(Relaxed);
        let superblock = MapSuperblock {
            shape: self.shape,
            sequence: words.sequence.load(Relaxed),
            time: now(),
            epoch,
            start,
            is_clean,
        };
        let mut log = MapLog { superblock, damaged: None };
        log.write_next(&*self.device, superblock).map_err(|error| match error {
            MapLogError::Io(errno) => errno,
            _ => Errno::EIO,
        })?;
        // If this process dies before, the next one writes this superblock again, at this place.
        words.sequence.store(log.superblock.sequence, Release);
        Ok(())
    }

    /// Which log frames and records are of.
    pub(crate) fn key(&self, words: &LogWords) -> LogKey {
        LogKey { id: self.shape.id, epoch: words.epoch.load(Relaxed) }
    }

    /// Its shape.
    pub(crate) fn shape(&self) -> &MapShape {
        &self.shape
    }

    /// Where all of it is written.
    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }
}

/// It as a device.
pub(crate) fn device_of(path: &Path, writes: bool) -> Result<Box<dyn Device>, MapError> {
    let file = DirectFile::open_in_place(path, writes).map_err(MapError::Open)?;
    let device = FileDevice::with_rings(file, RINGS).map_err(MapError::Resources)?;
    #[cfg(test)]
    let device = crate::tests::tap::Tap::over(device);
    Ok(Box::new(device))
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
