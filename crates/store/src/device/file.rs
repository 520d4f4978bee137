//! File device: a file or block device as the device of a store.
//!
//! A single read is one pread. A batch goes through one of a few rings (io_uring, or the kernel's
//! AIO where that is refused), so that all of it is in flight at once; blocks that lie and come one
//! behind the other are one request. If no ring is free, the requests are made one after the other
//! until one is; so are those of a forked child, which must not touch its parent's rings. A batch
//! then takes as many times longer as it has requests: have a ring for each thread that reads
//! batches (docs/decisions/0010-checksums-and-rings.md).
//!
//! Guarantees: no request is in flight when a call returns.
//! Never: allocates after `new`. Waits for a ring: that was measured, and latecomers overtook the
//! waiting threads.
//! Threads: any.

use std::io::IoSliceMut;
use std::os::fd::AsRawFd;

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::files::direct_file::DirectFile;
use deepheap_sys::files::ring::{Request, Ring};
use deepheap_sys::threads::lock::{Guard, Lock};

use crate::device::{Device, Read, Write};

/// Batches that can be in flight at the same time, if nobody asks for more.
const RINGS_DEFAULT: usize = 8;

/// Bytes of memory, the kernel's included, that a ring of `RING_ENTRIES` takes: a page of requests,
/// one of indexes and answers, and what the kernel knows of it; 9.7 KiB were measured. AIO takes
/// two pages for answers (more from 32 processors on), and less beside them.
pub const RING_BYTES: u64 = 10 << 10;

/// Requests that a ring has in flight at most.
const RING_ENTRIES: u32 = 64;

/// A file or block device as the device of a store.
pub struct FileDevice {
    file: DirectFile,
    len: u64,
    /// Bytes of its file system that stay free for others.
    floor_bytes: u64,
    rings: Vec<Lock<Ring>>,
    /// Where to look for a free ring first.
    next_ring: AtomicUsize,
    /// We are a forked child: the rings are our parent's.
    inherited: AtomicBool,
}

impl FileDevice {
    /// As `with_rings`, with eight.
    ///
    /// Errors: as `with_rings`.
    pub fn new(file: DirectFile) -> Result<Self> {
        Self::with_rings(file, RINGS_DEFAULT)
    }

    /// The file as a device, with so many rings, or as many as are to be had; with none where they
    /// are not allowed, or where each request has to see to the page cache by itself.
    ///
    /// Errors: those of asking a block device for its size.
    pub fn with_rings(file: DirectFile, rings: usize) -> Result<Self> {
        let len = if file.is_device() { file.len()? } else { u64::MAX };
        let rings = if file.is_direct() { rings } else { 0 };
        let rings = (0..rings).map_while(|_| Ring::new(RING_ENTRIES).ok());
        Ok(Self {
            file,
            len,
            floor_bytes: 0,
            rings: rings.map(Lock::new).collect(),
            next_ring: AtomicUsize::new(0),
            inherited: AtomicBool::new(false),
        })
    }

    /// Leaves so many bytes of its file system free: `reserve` answers ENOSPC before.
    pub fn with_floor(self, floor_bytes: u64) -> Self {
        Self { floor_bytes, ..self }
    }

    /// The file.
    pub fn file(&self) -> &DirectFile {
        &self.file
    }

    /// Reads at most `RING_ENTRIES` pieces, all at once, those that touch as one; false if the ring
    /// took nothing.
    fn read_by_ring(&self, ring: &mut Ring, pieces: &mut [Read<'_>]) -> bool {
        let mut requests: [_; RING_ENTRIES as usize] =
            core::array::from_fn(|_| Request::read(0, &mut []));
        // Which request each piece is in, and how long that is.
        let mut request_of = [0; RING_ENTRIES as usize];
        let mut lengths = [0; RING_ENTRIES as usize];
        let mut count = 0;
        for (request, read) in request_of.iter_mut().zip(pieces.iter_mut()) {
            let length = read.buf.len();
            match requests[count.max(1) - 1].extend(read.offset, read.buf) {
                Ok(()) if count > 0 => {}
                Ok(()) => return false, // an empty piece at offset 0: nobody asks for that
                Err(buf) => {
                    requests[count] = Request::read(read.offset, buf);
                    count += 1;
                }
            }
            *request = count - 1;
            lengths[count - 1] += length;
        }
        ring.do_all(self.file.as_raw_fd(), &mut requests[..count]);
        let results: [_; RING_ENTRIES as usize] =
            core::array::from_fn(|at| outcome(requests[at].result(), lengths[at]));
        for (read, request) in pieces.iter_mut().zip(request_of) {
            read.result = results[request];
        }
        true
    }

    /// Reads a range without a gap in one request, or in as few as it takes.
    fn read_run(&self, run: &mut [Read<'_>]) {
        let Some(first) = run.first() else { return };
        let offset = first.offset;
        let count = run.len();
        let mut bufs: [_; RING_ENTRIES as usize] =
            core::array::from_fn(|_| IoSliceMut::new(&mut []));
        for (buf, read) in bufs.iter_mut().zip(run.iter_mut()) {
            *buf = IoSliceMut::new(read.buf);
        }
        let result = self.file.read_vectored_at(&mut bufs[..count], offset);
        for read in run {
            read.result = result;
        }
    }

    /// A ring that nobody uses now, and that is ours to use.
    fn ring(&self) -> Option<Guard<'_, Ring>> {
        if self.inherited.load(Ordering::Acquire) {
            return None;
        }
        let first = self.next_ring.fetch_add(1, Ordering::Relaxed);
        (0..self.rings.len()).find_map(|at| self.rings[(first + at) % self.rings.len()].try_lock())
    }
}

/// The result of a finished request of a ring, if it was to be `len` bytes.
fn outcome(result: i32, len: usize) -> Result<()> {
    match usize::try_from(result) {
        Ok(done) if done == len => Ok(()),
        // The end of the file: what was asked for was never written.
        Ok(_) => Err(Errno::ENODATA),
        Err(_) => Err(Errno::from_raw(-result)),
    }
}

impl Device for FileDevice {
    fn read(&self, batch: &mut [Read<'_>]) {
        if let [read] = batch {
            read.result = self.file.read_at(read.buf, read.offset);
            return;
        }
        for chunk in batch.chunks_mut(RING_ENTRIES as usize) {
            let mut rest = chunk;
            while !rest.is_empty() {
                let gap = rest.windows(2).position(|pair| !pair[1].follows(&pair[0]));
                let by_ring = |mut ring: Guard<'_, Ring>| self.read_by_ring(&mut ring, rest);
                if gap.is_some() && self.ring().is_some_and(by_ring) {
                    break;
                }
                let run;
                (run, rest) = rest.split_at_mut(gap.map_or(rest.len(), |last| last + 1));
                self.read_run(run);
            }
        }
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        for chunk in batch.chunks_mut(RING_ENTRIES as usize) {
            let ring = if chunk.len() > 1 { self.ring() } else { None };
            if let Some(mut ring) = ring {
                let mut requests: [_; RING_ENTRIES as usize] =
                    core::array::from_fn(|_| Request::write(0, &[]));
                for (request, write) in requests.iter_mut().zip(chunk.iter()) {
                    *request = Request::write(write.offset, write.data);
                }
                let count = chunk.len();
                ring.do_all(self.file.as_raw_fd(), &mut requests[..count]);
                for (write, request) in chunk.iter_mut().zip(&requests) {
                    write.result = outcome(request.result(), write.data.len());
                }
                continue;
            }
            for write in chunk {
                write.result = self.file.write_at(write.data, write.offset);
            }
        }
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.file.punch(offset, len)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        if self.free_bytes().is_some_and(|free| free < len) {
            return Err(Errno::ENOSPC);
        }
        match self.file.allocate(offset, len) {
            // A file system that cannot promise space may still have it.
            Err(Errno::ENOTSUP) => Ok(()),
            answer => answer,
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        // Without a floor the file system says itself when it is full.
        if self.floor_bytes == 0 || self.file.is_device() {
            return None;
        }
        let (free, _) = self.file.file_system_bytes().ok()?;
        Some(free.saturating_sub(self.floor_bytes))
    }

    fn memory_bytes(&self) -> u64 {
        self.rings.len() as u64 * RING_BYTES
    }

    fn after_fork(&self) {
        self.inherited.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepheap_sys::memory::pinned_array::PinnedArray;
    use std::path::Path;

    #[test]
    fn more_threads_than_rings_all_read_their_batches() {
        const BLOCKS: usize = 256;
        let file = DirectFile::open_unlinked(Path::new("/var/tmp")).expect("a file");
        let device = FileDevice::with_rings(file, 3).expect("a device");
        assert!(device.rings.len() <= 3);
        assert_eq!(device.memory_bytes(), device.rings.len() as u64 * RING_BYTES);
        let mut pages = PinnedArray::<u8>::new(BLOCKS * 4096).expect("memory");
        for (at, page) in pages.chunks_mut(4096).enumerate() {
            page.fill(at as u8);
        }
        let mut writes = [Write::new(0, &pages)];
        device.write(&mut writes);
        assert_eq!(writes[0].result, Ok(()));
        std::thread::scope(|scope| {
            for thread in 0..12 {
                let device = &device;
                scope.spawn(move || {
                    let mut bytes = PinnedArray::<u8>::new(16 * 4096).expect("memory");
                    for round in 0..50 {
                        let block = |at: usize| (thread * 31 + round * 7 + at * 13) % BLOCKS;
                        let mut reads: Vec<_> = bytes
                            .chunks_mut(4096)
                            .enumerate()
                            .map(|(at, page)| Read::new(block(at) as u64 * 4096, page))
                            .collect();
                        device.read(&mut reads);
                        for (at, read) in reads.iter().enumerate() {
                            assert_eq!(read.result, Ok(()));
                            assert!(read.buf.iter().all(|&byte| byte == block(at) as u8));
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_device_with_a_floor_leaves_its_file_system_that_much() {
        let open = || DirectFile::open_unlinked(&std::env::temp_dir()).expect("a file");
        let (free, all) = open().file_system_bytes().expect("a file system");
        assert!(free <= all);
        let device = FileDevice::new(open()).expect("a device").with_floor(all + 1);
        assert_eq!(device.free_bytes(), Some(0));
        assert_eq!(device.reserve(0, 4096), Err(Errno::ENOSPC));
        let device = FileDevice::new(open()).expect("a device").with_floor(1);
        device.reserve(0, 4096).expect("space");
        assert_eq!(FileDevice::new(open()).expect("a device").free_bytes(), None);
    }

    #[test]
    fn batches_and_single_requests_return_what_was_written() {
        let file = DirectFile::open_unlinked(&std::env::temp_dir()).expect("a file");
        let device = FileDevice::new(file).expect("a device");
        device.reserve(0, 1 << 20).expect("space");
        for inherited in [false, true] {
            if inherited {
                device.after_fork();
            }
            let mut pages = PinnedArray::<u8>::new(64 * 4096).expect("memory");
            for (at, page) in pages.chunks_mut(4096).enumerate() {
                page.fill(at as u8 + 1);
            }
            let writes = pages.chunks(4096).enumerate();
            let mut writes: Vec<_> =
                writes.map(|(at, page)| Write::new(at as u64 * 4096, page)).collect();
            device.write(&mut writes[..1]);
            device.write(&mut writes[1..]);
            assert!(writes.iter().all(|write| write.result.is_ok()));
            drop(writes);
            let mut back = PinnedArray::<u8>::new(65 * 4096).expect("memory");
            let reads = back.chunks_mut(4096).enumerate();
            // Backwards, and the last one beyond the end of what was reserved.
            let offset = |at: usize| if at == 64 { 1 << 30 } else { (63 - at as u64) * 4096 };
            let mut reads: Vec<_> = reads.map(|(at, page)| Read::new(offset(at), page)).collect();
            device.read(&mut reads[..1]);
            device.read(&mut reads[1..]);
            for (at, read) in reads.iter().enumerate().take(64) {
                assert_eq!(read.result, Ok(()));
                assert!(read.buf.iter().all(|&byte| byte == 64 - at as u8));
            }
            assert_eq!(reads[64].result, Err(Errno::ENODATA));
        }
        device.sync().expect("durable");
        device.discard(0, 1 << 20).expect("punched");
    }
}
