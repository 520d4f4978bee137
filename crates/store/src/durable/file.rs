//! File: a durable heap's device, with the checkpoint that it opened at.
//!
//! Guarantees: `open` takes the newest superblock that is whole; the whole index below it is
//! verified before `open` returns, and a page of a table before it is handed out. The checkpoint at
//! which a heap was opened to be written is durable: a process that was killed before its sync may
//! have left it in caches alone.
//! Never: writes, unless to create; so a device that refuses writes can be opened and read.
//! Threads: one at a time; the log's device may be used meanwhile.

use core::ops::Deref;
use std::sync::Arc;

use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use zerocopy::FromBytes;

use crate::block::cipher::Key;
use crate::device::table_file::PageLack;
use crate::device::{Device, write_superblock};
use crate::durable::checkpoint::{Checkpoint, Snapshot};
use crate::durable::error::DurableError;
use crate::durable::layout::Layout;
use crate::durable::pages::read_bare;
use crate::format::BLOCK_BYTES;
use crate::format::geometry::Geometry;
use crate::format::index::Entry;
use crate::format::saved::{SNAPSHOTS, SNAPSHOTS_MAX, SnapshotRecord};
use crate::format::sealed_secrets::SealedSecrets;
use crate::format::superblock::{
    BIRTH_OFFSETS, HeapShape, SUPERBLOCK_OFFSETS, Stamp, Superblock, Unreadable,
};
use crate::log::identity::Identity;

/// Which of the two superblocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuperblockId {
    /// At the start of the file.
    A,
    /// At 64 KiB.
    B,
}

impl SuperblockId {
    /// Both.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// Where it lies, bytes.
    pub(crate) fn offset(self) -> u64 {
        SUPERBLOCK_OFFSETS[self as usize]
    }

    pub(crate) fn other(self) -> Self {
        Self::ALL[1 - self as usize]
    }
}

/// A durable heap's device. It is read as its last checkpoint is. See the file's header.
pub struct DurableFile {
    pub(crate) last: Checkpoint,
    /// Which superblock that is.
    pub(crate) newest: SuperblockId,
    /// Errors: `Stopped` once a sync or a superblock failed; `ReadOnly`.
    pub(crate) may_write: Result<(), DurableError>,
    /// In the order of their checkpoints.
    pub(crate) snapshots: Vec<Snapshot>,
    damaged: Option<SuperblockId>,
}

impl Deref for DurableFile {
    type Target = Checkpoint;

    fn deref(&self) -> &Checkpoint {
        &self.last
    }
}

/// The bytes of both superblocks, to tell whether they have changed.
#[derive(PartialEq, Eq)]
pub struct Superblocks([Option<Box<[u8]>>; 2]);

impl Superblocks {
    /// The superblocks that are there now.
    ///
    /// Errors: `Io`.
    pub fn of(device: &dyn Device) -> Result<Self, DurableError> {
        let read = |which: SuperblockId| read_page(device, which.offset());
        Ok(Self([read(SuperblockId::A)?, read(SuperblockId::B)?]))
    }
}

/// The superblock that `open` finds, or the reason why there is none.
pub(crate) type Found = Result<Superblock, Unreadable>;

impl DurableFile {
    /// Makes an empty heap of this shape: checkpoint 1. Whatever the device holds is lost. With a
    /// user's key the heap is encrypted.
    ///
    /// Errors: `Shape`; `Store` for a log that cannot be; `Truncated` if the device is too small;
    /// `Io`, and then there is no heap; that the system has no random bytes.
    pub fn create(
        device: Arc<dyn Device>,
        shape: HeapShape,
        mut identity: Identity,
        stamp: Stamp,
        user: Option<&Key>,
    ) -> Result<Self, DurableError> {
        identity.key = user.map(|_| Key::random()).transpose()?;
        let own = identity.key.as_ref();
        let sealed = user
            .zip(own)
            .map(|(user, own)| SealedSecrets::new(user, identity.id, &identity.secret, own));
        let log_start = Layout::new(&shape)?.log_start();
        Geometry::new(shape.segment_bytes, shape.capacity_bytes)?;
        let (checkpoint, root) = (1, Entry::NONE);
        let superblock = Superblock { identity, sealed, shape, log_start, checkpoint, root, stamp };
        let mut this = Self::of_superblock(device, superblock, SuperblockId::A)?;
        // First none, then all: never one of this heap beside one of another. The superblocks come
        // last: a heap that can be opened has its births.
        let bytes = this.superblock.write();
        let write = |bytes: &[u8; BLOCK_BYTES], offsets: [u64; 2]| {
            offsets.into_iter().try_for_each(|at| write_superblock(&*this.device, at, bytes))
        };
        write(&[0; BLOCK_BYTES], SUPERBLOCK_OFFSETS)?;
        write(&[0; BLOCK_BYTES], BIRTH_OFFSETS)?;
        this.device.sync()?;
        for offsets in [BIRTH_OFFSETS, SUPERBLOCK_OFFSETS] {
            write(&bytes, offsets)?;
            this.device.sync()?;
        }
        this.last.is_settled = true;
        Ok(this)
    }

    /// Opens the heap at its last checkpoint; an encrypted one with its user's key.
    ///
    /// Errors: all but those of checkpoints. A device that fails is an error, too: the superblock
    /// that it does not show may be the newest. If its sync fails the heap can still be opened to
    /// read.
    pub fn open(device: Arc<dyn Device>, user: Option<&Key>) -> Result<Self, DurableError> {
        let mut this = Self::open_to_read(device, user)?;
        // Before anything is overwritten that the checkpoint before this one needs.
        this.device.sync()?;
        this.may_write = Ok(());
        Ok(this)
    }

    /// As `open`; no checkpoint can be made, so nothing is ever written.
    ///
    /// Errors: as `open`. Beside a process that makes checkpoints any damage may be found: that of
    /// pages that were written meanwhile.
    pub fn open_to_read(device: Arc<dyn Device>, user: Option<&Key>) -> Result<Self, DurableError> {
        let mut this = Self::open_without_index(device, user)?;
        this.last.index = this.load_index()?;
        this.last.is_settled = true;
        this.may_write = Err(DurableError::ReadOnly);
        this.snapshots = this.load_snapshots()?;
        Ok(this)
    }

    /// The heap as it is in a snapshot, to be read.
    ///
    /// Errors: `NoSnapshot`; else as `open`.
    pub fn open_snapshot(&self, name: &str) -> Result<Self, DurableError> {
        Ok(Self {
            last: self.then(name)?,
            newest: self.newest,
            may_write: Err(DurableError::ReadOnly),
            snapshots: Vec::new(),
            damaged: None,
        })
    }

    /// The checkpoint of a snapshot.
    ///
    /// Errors: `NoSnapshot`; else as `open`.
    pub(crate) fn then(&self, name: &str) -> Result<Checkpoint, DurableError> {
        let mut then = self.last.of_snapshot(self.snapshot(name)?)?;
        then.index = then.load_index()?;
        then.is_settled = true;
        Ok(then)
    }

    /// The snapshot of this name.
    ///
    /// Errors: `NoSnapshot`.
    pub fn snapshot(&self, name: &str) -> Result<&Snapshot, DurableError> {
        let found = self.snapshots.iter().find(|snapshot| snapshot.name == name);
        found.ok_or(DurableError::NoSnapshot)
    }

    /// All snapshots, in the order of their checkpoints.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// Those of the last checkpoint.
    pub(crate) fn load_snapshots(&self) -> Result<Vec<Snapshot>, DurableError> {
        let mut snapshots: Vec<Snapshot> = Vec::new();
        if self.layout.table(SNAPSHOTS).is_none() {
            return Ok(snapshots);
        }
        self.load_table(SNAPSHOTS, &mut |_, page| {
            for record in page.chunks_exact(size_of::<SnapshotRecord>()) {
                let Ok(record) = SnapshotRecord::read_from_bytes(record) else { continue };
                if record.name[0] == 0 {
                    continue;
                }
                let snapshot = Snapshot::of(&record, self.checkpoint());
                let snapshot = snapshot.ok_or(DurableError::Inconsistent("a snapshot"))?;
                if snapshots.iter().any(|other| other.clashes_with(&snapshot)) {
                    return Err(DurableError::Inconsistent("two snapshots at one place"));
                }
                snapshots.push(snapshot);
            }
            Ok(())
        })?;
        snapshots.sort_unstable_by_key(|snapshot| snapshot.checkpoint);
        Ok(snapshots)
    }

    /// As `open`, as far as the superblocks lead.
    pub(crate) fn open_without_index(
        device: Arc<dyn Device>,
        user: Option<&Key>,
    ) -> Result<Self, DurableError> {
        let found = read_superblocks(&*device, user)?;
        let damaged = SuperblockId::ALL.into_iter().find(|&which| found[which as usize].is_err());
        let (newest, superblock) = choose(found)?;
        if user.is_some() && superblock.identity.key.is_none() {
            return Err(DurableError::NotEncrypted);
        }
        Ok(Self { damaged, ..Self::of_superblock(device, superblock, newest)? })
    }

    /// The heap to which a superblock leads, with an index that knows of no page.
    pub(crate) fn of_superblock(
        device: Arc<dyn Device>,
        superblock: Superblock,
        newest: SuperblockId,
    ) -> Result<Self, DurableError> {
        let last = Checkpoint::new(device, superblock)?;
        Ok(Self { last, newest, may_write: Ok(()), snapshots: Vec::new(), damaged: None })
    }

    /// The superblock that was not whole when the heap was opened. The end of a process or of the
    /// power during a commit leaves one, and so does a device that forgets: then the heap may have
    /// opened at the checkpoint before the last.
    pub fn damaged_superblock(&self) -> Option<SuperblockId> {
        self.damaged
    }
}

impl Snapshot {
    /// The snapshot of a record; none if that cannot be in a heap whose last checkpoint is this.
    fn of(record: &SnapshotRecord, last: u64) -> Option<Self> {
        let length = record.name.iter().position(|&byte| byte == 0);
        let name = record.name.get(..length.unwrap_or(record.name.len()))?;
        let name = core::str::from_utf8(name).ok()?.to_owned();
        let (checkpoint, area) = (record.checkpoint.get(), record.area.get());
        let is_possible = (1..last).contains(&checkpoint)
            && area < SNAPSHOTS_MAX
            && record.root.checkpoint() <= checkpoint;
        let time = record.time.get();
        is_possible.then_some(Self { name, checkpoint, time, root: record.root, area })
    }

    fn clashes_with(&self, other: &Self) -> bool {
        self.name == other.name || self.area == other.area || self.checkpoint == other.checkpoint
    }
}

/// Both superblocks.
pub(crate) fn read_superblocks(
    device: &dyn Device,
    user: Option<&Key>,
) -> Result<[Found; 2], DurableError> {
    let read = |which: SuperblockId| read_superblock(device, which.offset(), user);
    Ok([read(SuperblockId::A)?, read(SuperblockId::B)?])
}

/// The superblock at an offset. What is behind the end of the device does not begin like one.
pub(crate) fn read_superblock(
    device: &dyn Device,
    offset: u64,
    user: Option<&Key>,
) -> Result<Found, DurableError> {
    let page = read_page(device, offset)?;
    Ok(page.map_or(Err(Unreadable::Foreign), |page| Superblock::read(&page, user)))
}

/// A page without a checksum of ours; `None` if it is behind the end of the device.
fn read_page(device: &dyn Device, offset: u64) -> Result<Option<Box<[u8]>>, DurableError> {
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES, 0)?;
    let page = buffer.as_mut_slice();
    match read_bare(device, offset, page) {
        Ok(()) => Ok(Some(Box::from(&*page))),
        Err(PageLack::Damaged) => Ok(None),
        Err(PageLack::Refused(errno)) => Err(DurableError::Io(errno)),
    }
}

/// The newer of the two that count.
pub(crate) fn choose([a, b]: [Found; 2]) -> Result<(SuperblockId, Superblock), DurableError> {
    use Unreadable::{Damaged, Foreign, NeedsKey, OtherVersion, WrongKey};
    match (a, b) {
        (Err(OtherVersion(version)), _) | (_, Err(OtherVersion(version))) => {
            Err(DurableError::OtherVersion(version))
        }
        (Err(NeedsKey), _) | (_, Err(NeedsKey)) => Err(DurableError::NeedsKey),
        (Err(WrongKey), _) | (_, Err(WrongKey)) => Err(DurableError::WrongKey),
        (Ok(a), Ok(b)) if a.identity != b.identity || a.shape != b.shape => {
            Err(DurableError::SuperblocksDiffer)
        }
        (Ok(a), Ok(b)) if a.checkpoint >= b.checkpoint => Ok((SuperblockId::A, a)),
        (_, Ok(b)) => Ok((SuperblockId::B, b)),
        (Ok(a), _) => Ok((SuperblockId::A, a)),
        (Err(Damaged), _) | (_, Err(Damaged)) => Err(DurableError::SuperblocksDamaged),
        (Err(Foreign), Err(Foreign)) => Err(DurableError::NotAHeap),
    }
}
