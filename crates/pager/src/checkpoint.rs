//! Checkpoint: gives every object a stored copy of what it held at one instant, the *cut*.
//!
//! Before the cut the changed objects are written while the program goes on (`write_changed`). At
//! the cut the gate is closed and all resident pages are protected against writes. That is the
//! instant. From `release_writers` on, threads that write to resident pages go on one by one, after
//! they have *captured* the object for the checkpoint (`capture`); one that faults waits until the
//! cut ends. The changes from before the instant are written then, and the object table is handed
//! out.
//!
//! A write belongs to a cut if it came before the protection of its page. When a write belongs
//! to it, so does every write that came before that one, by whichever thread: a write that did not
//! was held up until all pages were protected, and nothing that came after it can belong to the
//! cut.
//!
//! Guarantees: during a cut no object moves. After its `write_changed` the backing block of each
//! object holds what the object was at the instant, and one without such a block is free, or was
//! zeros.
//! Never: allocates; waits for the collector, or for the program, during a cut.
//! Threads: one at a time, outside the fault path, all signals blocked during a cut.

pub(crate) mod capture;
pub(crate) mod capture_write;

use deepheap_residency::ownership::{
    Descriptor, DescriptorId, Flag, ObjectTable, Owned, OwnedList, State, UNKNOWN_HASH,
};
use deepheap_residency::staging::StagingBuffer;
use deepheap_store::{
    Block, Content, ContentHash, Head, PACKED_MAX, SavedTable, Store, StoreError, Writer,
};
use deepheap_sys::errno::Errno;
use deepheap_sys::memory::own_memory::{self, PARTS_MAX, Part};
use deepheap_sys::process::clock;
use deepheap_sys::threads::signals::Blocked;
use deepheap_sys::threads::thread;
use deepheap_sys::threads::waits::Cause;

use crate::PAGE;
use crate::checkpoint::capture::{COPIES, Copy};
use crate::evict::is_all_zero;
use crate::gate::Level;
use crate::pager::Pager;
use crate::reclaim::packer::{Builder, Packer};

/// Objects that are looked at together.
const TOGETHER: usize = PARTS_MAX;
/// How long a cut waits for buffers of the log to be written.
const PATIENCE_NS: u64 = 5_000_000_000;
const PAUSE: core::time::Duration = core::time::Duration::from_micros(50);

/// Why there is no checkpoint now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutError {
    /// The log has no room, or its device failed.
    Store(StoreError),
    /// The log has no free segment before collection has made one: try again.
    Busy,
    /// A system call uses memory of the heap: try again.
    InUse,
    /// The program has protected the page of this address, or has given it back past us.
    Unreadable(usize),
    /// The kernel refuses.
    Kernel(Errno),
}

impl From<StoreError> for CutError {
    fn from(error: StoreError) -> Self {
        CutError::Store(error)
    }
}

/// The instant of a checkpoint. Dropping it ends it: the program goes on.
pub struct Cut<'a> {
    pager: &'a Pager,
    buffer: &'a CheckpointBuffer<'a>,
}

/// Memory for the copies of a checkpoint.
pub struct CheckpointBuffer<'a> {
    /// Of objects that are looked at together.
    together: StagingBuffer<'a>,
    /// Of objects that are captured.
    captured: StagingBuffer<'a>,
}

/// When a group of objects is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// While the program goes on.
    Before,
    InCut,
}

/// Owned objects that are looked at together, and the bytes of each.
struct Group {
    when: When,
    owned: OwnedList<TOGETHER>,
    bytes: [Bytes; TOGETHER],
    /// Those of which a thread has made a copy, as they were at the instant.
    copies: [Option<Copy>; TOGETHER],
    /// The first object for which the writer had no room, if there is one.
    rest: u32,
}

/// Where the bytes of an object are while it is owned.
#[derive(Clone, Copy)]
struct Bytes {
    at: *const u8,
    length: usize,
    /// The objects with which it shares a block; none: it has a block of its own.
    content: Option<Content>,
}

impl Pager {
    /// Pages of the object table of a region.
    pub fn table_pages(region_pages: usize) -> u32 {
        (region_pages * ObjectTable::BYTES_PER_PAGE).div_ceil(PAGE) as u32
    }

    /// Fills a page of the object table of a heap that is opened again, as `Cut::save_table` has
    /// handed it out, before anyone uses the heap. Its spans are managed already, and room for what
    /// is touched is reserved. False if that is no page of such a table.
    #[must_use]
    pub fn load_table(&self, page: u32, places: &[u8]) -> bool {
        let residency = &self.residency;
        let mut touched = 0;
        let is_table =
            residency.ownership.table.load_page(page, places, residency.store.blocks(), |page| {
                touched += usize::from(residency.promises.covers(page));
            });
        residency.promises.adopt(touched);
        is_table
    }

    /// The object table is that of a checkpoint, whose pages come when they are wanted: instead of
    /// `load_table`. False if the table has no such page.
    #[must_use]
    pub fn adopt_table(&self, saved: SavedTable) -> bool {
        // Which of its pages were touched is found as they come; their tables are counted already.
        self.budget.touched_peak(self.residency.heap.granted_pages());
        let covers = |page| self.residency.promises.covers(page);
        self.residency.ownership.table.set_saved(saved, self.residency.store.blocks(), covers)
    }

    /// Before the cut: as `Cut::save_table`, of what was evicted since the last checkpoint.
    ///
    /// # Errors
    /// As `Cut::save_table`.
    pub fn save_cold_table(&self, page: &mut dyn FnMut(u32, &[u8]) -> bool) -> Result<(), u32> {
        // A handler of the program that faulted here would wait for itself.
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        self.residency.ownership.save(true, page)
    }

    /// After `save_cold_table` and `Cut::save_table`: whether their pages are those of the last
    /// checkpoint now.
    pub fn end_saving(&self, is_saved: bool) {
        let _blocked = Blocked::all();
        let _passage = self.gate.enter(Level::Mover);
        self.residency.ownership.table.end_saving(is_saved);
    }

    /// Memory for the copies of a checkpoint. It counts against the budget.
    pub fn checkpoint_buffer(&self) -> CheckpointBuffer<'_> {
        CheckpointBuffer {
            together: self.residency.take_staging_for_checkpoint(TOGETHER * PAGE),
            captured: self.residency.take_staging_for_checkpoint(COPIES * PAGE),
        }
    }

    /// Writes objects that have changed to the log, so that the cut will find few; the program goes
    /// on. They stay where they are in RAM. Returns how many were written.
    pub fn write_changed(&self, buffer: &CheckpointBuffer<'_>) -> Result<u64, CutError> {
        self.write_all(&buffer.together, When::Before)
    }

    /// Begins the cut: threads that write wait.
    ///
    /// # Errors
    /// `InUse`, `Kernel`; nothing has changed then.
    pub fn begin_cut<'a>(&'a self, buffer: &'a CheckpointBuffer<'a>) -> Result<Cut<'a>, CutError> {
        self.gate.close(Cause::Checkpoint, || {});
        self.capture.stop();
        let mut is_in_use = false;
        self.residency.ownership.descriptors.for_each(|_, descriptor| {
            is_in_use |= descriptor.is_pinned_for_a_call();
            if descriptor.has(Flag::Captured) {
                descriptor.set(Flag::Captured, false);
            }
        });
        let is_protected = match is_in_use {
            true => Err(CutError::InUse),
            false => self.residency.frames.protect(true).map_err(CutError::Kernel),
        };
        is_protected.map(|()| Cut { pager: self, buffer }).inspect_err(|_| {
            self.capture.close();
            self.gate.open();
        })
    }

    fn write_all(&self, buffer: &StagingBuffer<'_>, when: When) -> Result<u64, CutError> {
        let (mut next, mut written) = (0, 0);
        // In a cut: once all objects were looked at, all are captured, and no more are copied.
        while (next as usize) < self.residency.ownership.descriptors.used()
            || when == When::InCut && self.capture.next_full(0).is_some()
        {
            let passage = (when == When::Before).then(|| self.gate.enter(Level::Mover));
            let Some(mut packer) = self.packer(false) else { continue };
            let mut writer = match when {
                When::Before => self.residency.store.writer(Head::Fresh)?,
                When::InCut => self.writer_in_cut()?,
            };
            written += self.write_group(buffer, &mut packer, &mut writer, &mut next, when)?;
            drop((writer, packer, passage));
            if when == When::InCut {
                self.capture.note_progress();
            }
        }
        Ok(written)
    }

    /// A writer without waiting for the collector, which waits for the gate.
    fn writer_in_cut(&self) -> Result<Writer<'_>, CutError> {
        let end_ns = clock::monotonic_ns() + PATIENCE_NS;
        loop {
            if let Some(writer) = self.residency.store.try_writer(Head::Fresh)? {
                return Ok(writer);
            }
            if !self.residency.store.write_sealed(false) {
                if !self.residency.store.is_writing() || clock::monotonic_ns() > end_ns {
                    return Err(CutError::Busy);
                }
                thread::sleep(PAUSE);
            }
        }
    }

    /// Writes the changed ones among the objects that were copied for a cut and those from `next`
    /// on, and moves `next` behind those that it is done with.
    fn write_group(
        &self,
        buffer: &StagingBuffer<'_>,
        packer: &mut Packer,
        writer: &mut Writer<'_>,
        next: &mut u32,
        when: When,
    ) -> Result<u64, CutError> {
        let residency = &self.residency;
        const NOTHING: Bytes = Bytes { at: core::ptr::null(), length: 0, content: None };
        let mut group = Group {
            when,
            owned: OwnedList::empty(),
            bytes: [NOTHING; TOGETHER],
            copies: [None; TOGETHER],
            rest: u32::MAX,
        };
        if when == When::InCut {
            self.claim_copied(&mut group);
        }
        let used = residency.ownership.descriptors.used() as u32;
        while group.owned.len() < TOGETHER && *next < used {
            if let Some(owned) = self.claim_to_write(DescriptorId(*next), when) {
                group.owned.push(owned);
            }
            *next += 1;
        }
        let count = group.owned.len();
        let copied = self.copy_resident(buffer, &mut group, count);
        let (mut unreadable, mut written) = (None, 0);
        packer.packing.clear();
        for index in 0..count {
            let descriptor = residency.ownership.descriptor(group.owned.id(index));
            let bytes = group.bytes[index];
            let is_resident = descriptor.state() != State::Cached;
            if bytes.at.is_null() {
                unreadable = Some(descriptor.page());
                self.publish_again(group.owned.take(index));
            } else if is_resident && is_as_stored(&residency.store, descriptor, bytes.as_slice()) {
                self.publish_captured(&mut group, index, None);
            } else if let Some(content) = bytes.content {
                packer.packing.push(content, index, bytes.length);
            } else if writer.room() == 0 {
                self.leave_for_later(&mut group, index);
            } else {
                let hash = residency.store.hash(bytes.as_slice());
                let block = self.append_whole(descriptor.page(), bytes.as_slice(), hash, writer);
                self.publish_captured(&mut group, index, Some((block, hash)));
                written += 1;
            }
        }
        for content in [Content::Objects, Content::Pages] {
            written += self.write_packed(content, packer, &mut group, writer);
        }
        *next = group.rest.min(*next);
        match (copied, unreadable) {
            (Err(errno), _) => Err(CutError::Kernel(errno)),
            (Ok(()), Some(page)) if when == When::InCut => {
                Err(CutError::Unreadable(residency.frames.address_of(page)))
            }
            // Before the cut another look follows.
            (Ok(()), _) => Ok(written),
        }
    }

    /// Claims an object that may have to be written: all resident ones, and cached ones without a
    /// backing block. In a cut none that is captured already.
    fn claim_to_write(&self, id: DescriptorId, when: When) -> Option<Owned> {
        let descriptor = self.residency.ownership.descriptor(id);
        // Once it is, it is until the cut ends. It may be in this group already: as a copy.
        if when == When::InCut && descriptor.has(Flag::Captured) {
            return None;
        }
        let page = descriptor.page();
        let owned = match descriptor.state() {
            State::Cached if descriptor.backing().is_none() => {
                self.residency.ownership.claim_cached(page, id)
            }
            State::Resident | State::Leaving if when == When::InCut => {
                Some(self.claim_from_capturing(id))
            }
            State::Resident => self.residency.ownership.claim_resident(page, id),
            State::Cached | State::Free | State::Arriving | State::Leaving => None,
        }?;
        let is_captured = when == When::InCut && descriptor.has(Flag::Captured);
        let is_cached = descriptor.state() == State::Cached;
        let is_stored = is_cached && descriptor.backing().is_some();
        if is_captured || is_stored || self.residency.heap.page_is_free(page) {
            self.note_captured(&owned, when);
            self.publish_again(owned);
            return None;
        }
        Some(owned)
    }

    /// Claims an object that is resident in a cut. Only threads that capture it own it meanwhile,
    /// and they do not wait.
    fn claim_from_capturing(&self, id: DescriptorId) -> Owned {
        let descriptor = self.residency.ownership.descriptor(id);
        loop {
            let word = descriptor.word();
            match self.residency.ownership.claim_resident(descriptor.page(), id) {
                Some(owned) => return owned,
                None if word.state() == State::Leaving => descriptor.wait_while(word),
                None => {}
            }
        }
    }

    /// Claims objects of which a thread has made a copy.
    fn claim_copied(&self, group: &mut Group) {
        let mut from = 0;
        while let (true, Some((copy, id))) =
            (group.owned.len() < TOGETHER, self.capture.next_full(from))
        {
            group.copies[group.owned.len()] = Some(copy);
            group.owned.push(self.claim_from_capturing(id));
            from = copy.after();
        }
    }

    fn note_captured(&self, owned: &Owned, when: When) {
        let descriptor = self.residency.ownership.of(owned);
        if when == When::InCut && descriptor.state() == State::Leaving {
            descriptor.set(Flag::Captured, true);
        }
    }

    /// An owned object of the group is as stored, in this block if it was written now, and stays
    /// where it was.
    fn publish_captured(
        &self,
        group: &mut Group,
        index: usize,
        written: Option<(Block, ContentHash)>,
    ) {
        let owned = group.owned.take(index);
        if let Some((block, hash)) = written {
            self.residency.drop_backing(&owned);
            let descriptor = self.residency.ownership.of(&owned);
            descriptor.set_hash(hash);
            descriptor.set_backing(Some(block));
        }
        self.note_captured(&owned, group.when);
        if let Some(copy) = group.copies[index] {
            self.capture.give_back(copy);
        }
        self.publish_again(owned);
    }

    /// The writer has no room for an owned object of the group. One that was copied is found again.
    fn leave_for_later(&self, group: &mut Group, index: usize) {
        let owned = group.owned.take(index);
        if group.copies[index].is_none() {
            group.rest = group.rest.min(owned.id().0);
        }
        self.publish_again(owned);
    }

    /// Notes where the bytes of each object are, and copies those of resident ones. Those that
    /// cannot be read are null.
    fn copy_resident(
        &self,
        buffer: &StagingBuffer<'_>,
        group: &mut Group,
        count: usize,
    ) -> Result<(), Errno> {
        let nowhere = Part { from: 0, to: core::ptr::null_mut(), length: 0 };
        let (mut parts, mut which, mut resident) = ([nowhere; TOGETHER], [0; TOGETHER], 0);
        for index in 0..count {
            let descriptor = self.residency.ownership.descriptor(group.owned.id(index));
            let length = self.residency.kept_bytes(descriptor.page());
            let content = (length <= PACKED_MAX).then_some(Content::Objects);
            let bytes = |at| Bytes { at, length, content };
            group.bytes[index] = if let Some(copy) = group.copies[index] {
                bytes(self.capture.address(copy))
            } else if descriptor.state() != State::Cached {
                // SAFETY: the buffer has a page for each object.
                let to = unsafe { buffer.address().add(index * PAGE) };
                let from = self.residency.frames.address_of(descriptor.page());
                (parts[resident], which[resident]) = (Part { from, to, length }, index);
                resident += 1;
                bytes(to)
            } else if descriptor.has(Flag::Compressed) {
                // SAFETY: the slot is the owner's alone, and holds a compressed page.
                let page = unsafe { self.residency.cache.compressed(descriptor.slot()) };
                Bytes { at: page.as_ptr(), length: page.len(), content: Some(Content::Pages) }
            } else {
                bytes(self.residency.cache.address(descriptor.slot()))
            };
        }
        let mut done = 0;
        while done < resident {
            // SAFETY: the buffer is ours alone.
            let copied = unsafe { own_memory::copy(&parts[done..resident]) };
            let unread = match copied {
                Ok(count) => done + count..(done + count + 1).min(resident),
                Err(_) => done..resident,
            };
            done = unread.end;
            which[unread].iter().for_each(|&index| group.bytes[index].at = core::ptr::null());
            copied?;
        }
        Ok(())
    }

    /// Packs the listed objects of this content into blocks.
    fn write_packed(
        &self,
        content: Content,
        packer: &mut Packer,
        group: &mut Group,
        writer: &mut Writer<'_>,
    ) -> u64 {
        let mut written = 0;
        for block in 0..packer.packing.plan(content) {
            let members = || packer.packing.members(content, block);
            if writer.room() == 0 {
                members().for_each(|index| self.leave_for_later(group, index));
                continue;
            }
            let mut staging = self.residency.take_staging(PAGE);
            let mut builder = Builder::new(staging.page(), content);
            for index in members() {
                let page = self.residency.ownership.descriptor(group.owned.id(index)).page();
                builder.push(page, group.bytes[index].as_slice());
            }
            let at = builder.append(writer);
            for index in members() {
                let hash = match content {
                    Content::Objects => self.residency.store.hash(group.bytes[index].as_slice()),
                    // It is made when the page is decompressed.
                    Content::Pages => UNKNOWN_HASH,
                };
                self.publish_captured(group, index, Some((at, hash)));
                written += 1;
            }
        }
        written
    }

    /// An owned object stays where it was: in the cache, or in the page buffer.
    fn publish_again(&self, owned: Owned) {
        match self.residency.ownership.of(&owned).state() {
            State::Cached => self.residency.ownership.cached(owned),
            _ => self.residency.ownership.put_back(owned),
        }
    }
}

/// Whether the stored copy of an owned, resident object is these bytes, which it holds. Zeros
/// need none.
fn is_as_stored(store: &Store, descriptor: &Descriptor, bytes: &[u8]) -> bool {
    match descriptor.backing() {
        Some(_) => store.hash(bytes) == descriptor.hash(),
        None => is_all_zero(bytes),
    }
}

impl Bytes {
    /// The bytes.
    fn as_slice(&self) -> &[u8] {
        // SAFETY: `copy_resident` noted memory of the owner's, which lasts as long as the group.
        unsafe { core::slice::from_raw_parts(self.at, self.length) }
    }
}

impl Cut<'_> {
    /// Threads that write to resident pages go on from now on; what they write is not of this cut.
    pub fn release_writers(&self) {
        self.pager.capture.open(&self.buffer.captured);
    }

    /// The longest that a thread was held up since `begin_cut` by a write to a resident page.
    /// Longer ones may have not ended yet.
    pub fn longest_wait_ns(&self) -> u64 {
        self.pager.capture.longest_wait_ns()
    }

    /// Writes what has changed since it was last written. Returns how many objects were.
    pub fn write_changed(&self) -> Result<u64, CutError> {
        self.pager.write_all(&self.buffer.together, When::InCut)
    }

    /// Hands out pages of the object table: the number of each, and the places of 1024 objects,
    /// little-endian: 0 for zeros, else 1 more than the number of the block.
    ///
    /// Only those that the last checkpoint may not have as they are. `page` answers whether the
    /// checkpoint wrote the page. `Pager::end_saving` must follow, however it ends.
    ///
    /// # Errors
    /// The number of a page that is lost: then there can be no checkpoint.
    pub fn save_table(&self, page: &mut dyn FnMut(u32, &[u8]) -> bool) -> Result<(), u32> {
        self.pager.residency.ownership.save(false, page)
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        self.pager.capture.close();
        if self.pager.residency.frames.protect(false).is_err() {
            // Writers would fault for ever.
            deepheap_sys::process::log::say(&[deepheap_sys::process::log::Piece::Text(
                "the kernel does not end the protection of a heap's pages; aborting",
            )]);
            std::process::abort();
        }
        self.pager.gate.open();
    }
}
