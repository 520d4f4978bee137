//! Join: a process becomes a participant of a map, leaves it, or is forked.
//!
//! The first one makes the tables, the RAM and the pipes, and decides on the budget. The others
//! open RAM and pipes by the descriptors of any participant that lives. When the last one leaves,
//! or has died, all of it is gone, and the next one begins anew.
//!
//! Guarantees: changed pages are written before the last process that can write them leaves.
//! Never: runs in a signal handler.
//! Threads: one at a time in a process (`table`), one process at a time (the door).

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::time::Duration;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use deepheap_sys::errno::Errno;
use deepheap_sys::files::direct_file::{OpenError, file_system_is_memory};
use deepheap_sys::files::file_status::FileId;
use deepheap_sys::files::sparse_file::{Placement, SparseFile};
use deepheap_sys::memory::mapping;
use deepheap_sys::memory::page_pipe::PagePipe;
use deepheap_sys::threads::rendezvous::{Door, Rendezvous};
use deepheap_sys::threads::thread;
use deepheap_sys::{PAGE, random};

use crate::error::MapError;
use crate::log::create::create;
use crate::log::file::LogFile;
use crate::region::backing::Backing;
use crate::region::folder;
use crate::region::ranges::Ranges;
use crate::region::{Region, Watch};
use crate::tables::control::{
    BUDGET_MIN, Control, Header, MAGIC, PATH_BYTES, PIPES, Participant, VERSION, Writes, bytes_of,
    bytes_told, plan,
};
use crate::tables::member::{Member, mark_of};
use crate::tables::streams::Streams;

/// The most pages of a file: a page plus one fits in 32 bits.
pub(crate) const PAGES_MAX: u64 = u32::MAX as u64 - 1;

/// Between two looks at processes that cannot be reached, and how many: a second or more.
const PAUSE: Duration = Duration::from_millis(1);
const TRIES: u32 = 1000;

/// The file to map, and how.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The file.
    pub path: &'a Path,
    /// Bytes from its beginning; 0: all.
    pub length: u64,
    /// Whether the program writes.
    pub writes: bool,
    /// Bytes of RAM for the map, if this process is the first that has it.
    pub budget_bytes: u64,
}

/// RAM and pipes of a map, opened.
struct Means {
    memory: SparseFile,
    pipes: [PagePipe; PIPES],
}

impl Region {
    /// Joins, and maps the file. Nothing is read. With a log, it is made if it is not there.
    pub(crate) fn open(request: &Request<'_>, writes: Writes) -> Result<Region, MapError> {
        if writes == Writes::Log && request.writes {
            create(request.path, request.length)?;
        }
        let is_memory = file_system_is_memory(request.path);
        let is_memory = is_memory.map_err(|errno| MapError::Open(OpenError::System(errno)))?;
        let backing = Backing::open(request.path, request.writes).map_err(MapError::Open)?;
        if is_memory && !backing.file().is_device() {
            return Err(MapError::InMemory);
        }
        let backing = match writes {
            Writes::Log => backing.with_log(request.path)?,
            Writes::InPlace if LogFile::is_one(backing.file()) => return Err(MapError::HasLog),
            Writes::InPlace => backing,
        };
        let file_bytes = backing.bytes().map_err(MapError::Resources)?;
        if file_bytes == 0 {
            return Err(MapError::Empty);
        }
        let length = if request.length == 0 { file_bytes } else { request.length };
        if length.max(file_bytes).div_ceil(PAGE as u64) > PAGES_MAX {
            return Err(MapError::TooLong);
        }
        if request.budget_bytes < BUDGET_MIN {
            return Err(MapError::Budget(request.budget_bytes));
        }
        let bytes = (length as usize).next_multiple_of(PAGE);
        let watch = Watch::open(writes == Writes::Log, request.writes).map_err(MapError::Kernel)?;
        let id = backing.file().id().map_err(MapError::Resources)?;
        folder::sweep();
        let mut patience = TRIES;
        loop {
            let rendezvous = Rendezvous::open(&folder::name_of(id)).map_err(MapError::Folder)?;
            let Some(door) = rendezvous.door().map_err(MapError::Folder)? else { continue };
            let (control, means) = match Self::find_living(&rendezvous) {
                Ok(Some(found)) => found,
                // One that is being killed gives its descriptors up before its lock.
                Err(MapError::Unreachable(_)) if patience > 0 => {
                    patience -= 1;
                    drop(door);
                    thread::sleep(PAUSE);
                    continue;
                }
                Err(error) => return Err(error),
                // Not truncated: somebody may be looking at it.
                Ok(None) if rendezvous.bytes().map_err(MapError::Folder)? > 0 => {
                    door.remove();
                    continue;
                }
                Ok(None) => Self::begin(&rendezvous, &door, request, writes, file_bytes)?,
            };
            if let (Some(log), Some(words)) = (backing.log(), control.log_words()) {
                log.prepare(words, backing.can_write())?;
            }
            let Means { memory, pipes } = means;
            let entered =
                enter(&rendezvous, &control, &memory, &pipes, request.writes, backing.can_write());
            let (place, mark) = entered.map_err(|errno| match errno {
                Errno::EAGAIN => MapError::TooMany,
                errno => MapError::Folder(errno),
            })?;
            let header = control.header();
            // A file that has grown is longer for all. One that was cut is read up to its end.
            // Asked again, for at the door nobody makes it shorter.
            let file_bytes = backing.bytes().map_err(MapError::Resources)?;
            header.file_bytes.fetch_max(file_bytes, Relaxed);
            drop(door);
            let of_file = file_bytes.next_multiple_of(PAGE as u64);
            memory.grow(of_file).map_err(MapError::Resources)?;
            let base = watch.map(&memory, 0, bytes, request.writes, Placement::Anywhere)?;
            let ranges = Ranges::new(header.budget_pages.load(Relaxed));
            let region = Region {
                base,
                bytes,
                tables: Member { control, rendezvous, place, mark },
                memory,
                pipes,
                backing,
                watch,
                ranges,
                streams: Streams::default(),
            };
            region.announce_writer(request.writes);
            return Ok(region);
        }
    }

    /// Tables, and RAM and pipes by the descriptors of a process that has them; none if none lives.
    fn find_living(rendezvous: &Rendezvous) -> Result<Option<(Control, Means)>, MapError> {
        let Some(control) = tables_of(rendezvous).map_err(MapError::Folder)? else {
            return Ok(None);
        };
        let Some(control) = control else {
            return if rendezvous.has_others() { Err(MapError::Version) } else { Ok(None) };
        };
        let mut failure = None;
        let means = control.living(rendezvous).find_map(|participant| {
            let means = means_of(control.header(), participant);
            means.map_err(|errno| failure = Some(errno)).ok()
        });
        match (means, failure) {
            (Some(means), _) => Ok(Some((control, means))),
            (None, None) => Ok(None),
            (None, Some(Errno::EMFILE)) => Err(MapError::Resources(Errno::EMFILE)),
            (None, Some(errno)) => Err(MapError::Unreachable(errno)),
        }
    }

    /// Makes tables, RAM and pipes.
    fn begin(
        rendezvous: &Rendezvous,
        door: &Door<'_>,
        request: &Request<'_>,
        writes: Writes,
        file_bytes: u64,
    ) -> Result<(Control, Means), MapError> {
        let (pages, shards) = plan(request.budget_bytes, writes);
        let bytes = bytes_of(shards, writes);
        door.reset(bytes).map_err(MapError::Folder)?;
        let base = rendezvous.map(bytes).map_err(MapError::Resources)?;
        // SAFETY: just mapped, and nobody else's.
        let control = unsafe { Control::new(base, bytes, shards) };
        let means = make_means(file_bytes).map_err(MapError::Resources)?;
        let header = control.header();
        header.version.store(VERSION, Relaxed);
        header.shards.store(shards, Relaxed);
        header.has_log.store(u32::from(writes == Writes::Log), Relaxed);
        header.file_bytes.store(file_bytes, Relaxed);
        let memory = means.memory.id().map_err(MapError::Resources)?;
        header.memory_device.store(memory.device, Relaxed);
        header.memory_inode.store(memory.inode, Relaxed);
        for (pipe, inode) in means.pipes.iter().zip(&header.pipe_inodes) {
            let pipe = pipe.id().map_err(MapError::Resources)?;
            header.pipe_device.store(pipe.device, Relaxed);
            inode.store(pipe.inode, Relaxed);
        }
        let random = u128::from_ne_bytes(random::of_process());
        let random = random as u64 ^ ((random >> 64) as u64).rotate_left(32);
        header.seed.store(random ^ memory.inode, Relaxed);
        header.budget_bytes.store(request.budget_bytes, Relaxed);
        header.budget_pages.store(pages, Relaxed);
        let path = request.path.canonicalize().unwrap_or_else(|_| request.path.into());
        let path = path.as_os_str().as_bytes();
        let end = &path[path.len().saturating_sub(PATH_BYTES - 1)..];
        for (byte, place) in end.iter().zip(&header.path) {
            place.store(*byte, Relaxed);
        }
        header.magic.store(MAGIC, Release);
        Ok((control, means))
    }

    /// From here on pages may be changed. When this returns, no eviction is under way that has not
    /// seen that.
    fn announce_writer(&self, writes: bool) {
        if writes {
            // Also if another one was first: it may have died before it had waited.
            self.tables.header().was_writable.store(1, SeqCst);
            for shard in 0..self.tables.shards() {
                drop(self.own(shard));
            }
        }
    }

    /// Leaves: writes changed pages if no other process could, and unmaps. If they cannot be
    /// written, all stays as it was.
    pub(crate) fn close(self: Box<Self>) -> Result<(), (MapError, Box<Region>)> {
        // Its own file, so that the door does not borrow the region.
        let written = self.tables.rendezvous.reopened().map_err(MapError::Folder).and_then(|by| {
            let door = by.door().map_err(MapError::Folder)?;
            self.write_if_last()?;
            self.tables.participant().pid.store(0, Release);
            if let Some(door) = door.filter(|_| !self.tables.rendezvous.has_others()) {
                door.remove();
            }
            Ok(())
        });
        match written {
            Ok(()) => Ok(()),
            Err(error) => Err((error, self)),
        }
    }

    /// Writes changed pages, if this process can and no other one that lives.
    pub(crate) fn write_if_last(&self) -> Result<(), MapError> {
        let mut others = self.tables.others();
        let is_covered = others.any(|other| other.can_write.load(Relaxed) != 0);
        if is_covered || !self.backing.can_write() {
            return Ok(());
        }
        if self.tables.header().was_writable.load(Acquire) == 0 {
            return Ok(());
        }
        match self.log() {
            Some(log) => log.close(),
            None => self.write_changed(0..self.file_pages()),
        }
        .map_err(MapError::Sync)
    }

    /// Whether this process has mapped the file to write.
    pub(crate) fn is_writer(&self) -> bool {
        self.tables.participant().is_writer.load(Relaxed) != 0
    }

    /// In the child of a fork: becomes a participant of its own, before anything is touched: the
    /// child's mapping is not registered, and holes would be filled with zeros.
    pub(crate) fn after_fork(&mut self) -> Result<(), Errno> {
        let rendezvous = self.tables.rendezvous.reopened()?;
        let door = rendezvous.door()?;
        let (writes, can_write) = (self.is_writer(), self.backing.can_write());
        let (memory, pipes) = (&self.memory, &self.pipes);
        let (place, mark) = enter(&rendezvous, &self.tables, memory, pipes, writes, can_write)?;
        drop(door);
        self.watch = Watch::open(self.log().is_some(), writes)?;
        self.watch.register(self.base, self.bytes)?;
        // The parent's death is seen when nobody has its open file any more: neither the descriptor
        // nor a mapping that was made by it.
        let (bytes, shards) = (self.tables.bytes(), self.tables.shards());
        let base = rendezvous.map(bytes)?;
        // SAFETY: just mapped; the same tables.
        let control = unsafe { Control::new(base, bytes, shards) };
        if let Some(log) = self.backing.log() {
            log.device().after_fork();
        }
        self.tables = Member { control, rendezvous, place, mark };
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Before the userfaultfd goes: afterwards holes would read as zeros.
        // SAFETY: mapped by `open`; the program uses it no more.
        let _ = unsafe { mapping::unmap(self.base as *mut u8, self.bytes) };
    }
}

/// The tables of a rendezvous: none if there are none yet; the inner one none if they are another
/// version's.
pub(crate) fn tables_of(rendezvous: &Rendezvous) -> Result<Option<Option<Control>>, Errno> {
    let bytes = rendezvous.bytes()?;
    if bytes < size_of::<Header>() {
        return Ok(None);
    }
    let base = rendezvous.map(bytes)?;
    // SAFETY: just mapped, and long enough for a header.
    let control = unsafe { Control::new(base, bytes, 1) };
    let header = control.header();
    if header.magic.load(Acquire) != MAGIC || header.version.load(Relaxed) != VERSION {
        return Ok(Some(None));
    }
    let shards = header.shards.load(Relaxed);
    if !shards.is_power_of_two() || bytes_told(header) > bytes {
        return Ok(Some(None));
    }
    core::mem::forget(control);
    // SAFETY: as above, long enough for so many shards.
    Ok(Some(Some(unsafe { Control::new(base, bytes, shards) })))
}

fn make_means(file_bytes: u64) -> Result<Means, Errno> {
    let bytes = file_bytes.next_multiple_of(PAGE as u64);
    let memory = SparseFile::create(c"deepheap-map", bytes)?;
    let pipes = pipes_by(|_| PagePipe::create())?;
    Ok(Means { memory, pipes })
}

fn means_of(header: &Header, participant: &Participant) -> Result<Means, Errno> {
    let pid = participant.pid.load(Acquire);
    let (device, inode) = (&header.memory_device, &header.memory_inode);
    let id = FileId { device: device.load(Relaxed), inode: inode.load(Relaxed) };
    let memory = SparseFile::of_process(pid, participant.memory.load(Relaxed), id)?;
    let pipes = pipes_by(|pipe| {
        let inode = header.pipe_inodes[pipe].load(Relaxed);
        let id = FileId { device: header.pipe_device.load(Relaxed), inode };
        PagePipe::of_process(pid, participant.pipes[pipe].load(Relaxed), id)
    })?;
    Ok(Means { memory, pipes })
}

fn pipes_by(make: impl Fn(usize) -> Result<PagePipe, Errno>) -> Result<[PagePipe; PIPES], Errno> {
    let mut pipes = Vec::with_capacity(PIPES);
    for pipe in 0..PIPES {
        pipes.push(make(pipe)?);
    }
    pipes.try_into().map_err(|_| Errno::EINVAL)
}

/// Becomes a participant: place and mark. EAGAIN: there is no free place. The caller is at the
/// door.
fn enter(
    rendezvous: &Rendezvous,
    control: &Control,
    memory: &SparseFile,
    pipes: &[PagePipe; PIPES],
    is_writer: bool,
    can_write: bool,
) -> Result<(usize, u32), Errno> {
    for (place, participant) in control.participants().iter().enumerate() {
        if !rendezvous.try_lock(place)? {
            continue;
        }
        participant.pid.store(0, Relaxed);
        // Before it can write: a process that commits must not rely on what it knew before, and
        // finds a writer here if it finds this count.
        participant.is_writer.store(1, Relaxed);
        control.header().writers_began.fetch_add(1, SeqCst);
        // From here on the locks of this place's last participant are those of a dead one.
        let epoch = participant.epoch.fetch_add(1, Release) + 1;
        participant.memory.store(memory.as_raw_fd(), Relaxed);
        for (number, pipe) in participant.pipes.iter().zip(pipes) {
            number.store(pipe.as_raw_fd(), Relaxed);
        }
        participant.is_writer.store(u32::from(is_writer), Relaxed);
        participant.can_write.store(u32::from(can_write), Relaxed);
        participant.pid.store(std::process::id(), Release);
        return Ok((place, mark_of(place, epoch)));
    }
    Err(Errno::EAGAIN)
}
