//! Simulated device: pages in memory, behind the `Device` trait, with faults on order.
//!
//! Guarantees: the same seed and the same calls in the same order have the same outcome; without
//! faults it is a correct device.
//! Threads: any, one after the other. Clones are handles of the same device.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deepheap_store::device::{Device, Errno, Read, Result, Write};

use crate::fault::{Fault, Operation, Script};
use crate::random::Random;

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// A page, and what it was before the last write.
struct Page {
    now: Box<[u8]>,
    before: Box<[u8]>,
}

struct DeviceState {
    random: Random,
    pages: HashMap<u64, Page>,
    /// One in how many operations suffers the fault; 0 for none.
    chances: [u64; Fault::ALL.len()],
    scripts: Vec<Script>,
    /// Bytes that take no write.
    broken: Vec<Range<u64>>,
    /// Operations so far.
    counts: [u64; Operation::ALL.len()],
    faults: u64,
    delay: Option<Duration>,
}

/// A device in memory that misbehaves on order.
#[derive(Clone)]
pub struct SimDevice {
    len: u64,
    state: Arc<Mutex<DeviceState>>,
}

impl SimDevice {
    /// How many clones of it there are, itself included.
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.state)
    }

    /// A device of `len` bytes, without faults so far, whose chances the seed determines.
    pub fn new(len: u64, seed: u64) -> Self {
        let state = DeviceState {
            random: Random::new(seed),
            pages: HashMap::new(),
            chances: [0; Fault::ALL.len()],
            scripts: Vec::new(),
            broken: Vec::new(),
            counts: [0; Operation::ALL.len()],
            faults: 0,
            delay: None,
        };
        Self { len, state: Arc::new(Mutex::new(state)) }
    }

    /// From now on one in so many operations suffers the fault; 0 for none.
    pub fn set_chance(&self, fault: Fault, one_in: u64) {
        self.lock().chances[fault as usize] = one_in;
    }

    /// From now on an operation fails on order, too.
    pub fn add_script(&self, script: Script) {
        self.lock().scripts.push(script);
    }

    /// From now on a write that touches one of these bytes fails (EIO).
    pub fn break_place(&self, bytes: Range<u64>) {
        self.lock().broken.push(bytes);
    }

    /// No faults from now on.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.chances = [0; Fault::ALL.len()];
        state.scripts.clear();
        state.broken.clear();
    }

    /// Every batch takes so long from now on.
    pub fn set_delay(&self, delay: Option<Duration>) {
        self.lock().delay = delay;
    }

    /// Operations of this kind so far.
    pub fn count(&self, operation: Operation) -> u64 {
        self.lock().counts[operation as usize]
    }

    /// Faults so far, those on order included.
    pub fn faults(&self) -> u64 {
        self.lock().faults
    }

    /// Pages that hold something.
    pub fn pages(&self) -> usize {
        self.lock().pages.len()
    }

    fn lock(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) {
        let delay = self.lock().delay;
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
    }

    /// Whether the device may be asked that.
    fn check(&self, offset: u64, bytes: usize, address: usize) -> Result<()> {
        let aligned = [offset as usize, bytes, address].iter().all(|at| at.is_multiple_of(PAGE));
        let end = offset.checked_add(bytes as u64);
        match end {
            _ if !aligned => Err(Errno::EINVAL),
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Errno::ENXIO),
        }
    }
}

impl DeviceState {
    /// Counts the operation; an error if it fails on order.
    fn begin(&mut self, operation: Operation) -> Result<()> {
        let nth = self.counts[operation as usize];
        self.counts[operation as usize] += 1;
        let hit = self.scripts.iter().find(|script| {
            script.operation == operation
                && (script.nth == nth || (script.for_ever && script.nth <= nth))
        });
        match hit.map(|script| script.errno) {
            Some(errno) => {
                self.faults += 1;
                Err(errno)
            }
            None => Ok(()),
        }
    }

    /// Whether the fault happens now.
    fn strikes(&mut self, fault: Fault) -> bool {
        let struck = self.random.once_in(self.chances[fault as usize]);
        self.faults += struck as u64;
        struck
    }

    fn load(&self, offset: u64, buf: &mut [u8], stale: bool) {
        for (at, out) in buf.chunks_mut(PAGE).enumerate() {
            match self.pages.get(&(offset / PAGE as u64 + at as u64)) {
                Some(page) if stale => out.copy_from_slice(&page.before),
                Some(page) => out.copy_from_slice(&page.now),
                None => out.fill(0),
            }
        }
    }

    fn store(&mut self, offset: u64, data: &[u8]) {
        for (at, bytes) in data.chunks(PAGE).enumerate() {
            let number = offset / PAGE as u64 + at as u64;
            let page = self.pages.entry(number).or_insert_with(|| Page {
                now: vec![0; PAGE].into(),
                before: vec![0; PAGE].into(),
            });
            let Page { now, before } = page;
            core::mem::swap(now, before);
            now.copy_from_slice(before);
            now[..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Another place for `bytes` bytes, aligned.
    fn elsewhere(&mut self, len: u64, bytes: usize) -> u64 {
        let places = (len.saturating_sub(bytes as u64) / PAGE as u64).max(1);
        self.random.below(places) * PAGE as u64
    }

    fn read_one(&mut self, len: u64, read: &mut Read<'_>) -> Result<()> {
        self.begin(Operation::Read)?;
        let half = read.buf.len() / 2;
        if self.strikes(Fault::ReadRefused) {
            read.buf[..half].fill(0xee);
            return Err(Errno::EIO);
        }
        if self.strikes(Fault::ReadShort) {
            self.load(read.offset, read.buf, false);
            read.buf[half..].fill(0xdd);
            return Err(Errno::ENODATA);
        }
        let stale = self.strikes(Fault::ReadStale);
        let misdirected = self.strikes(Fault::ReadMisdirected);
        let offset = if misdirected { self.elsewhere(len, read.buf.len()) } else { read.offset };
        self.load(offset, read.buf, stale);
        if self.strikes(Fault::ReadFlipped) {
            let bit = self.random.below(read.buf.len() as u64 * 8) as usize;
            read.buf[bit / 8] ^= 1 << (bit % 8);
        }
        Ok(())
    }

    fn write_one(&mut self, len: u64, write: &Write<'_>) -> Result<()> {
        self.begin(Operation::Write)?;
        let sectors = (write.data.len() / SECTOR) as u64;
        let end = write.offset + write.data.len() as u64;
        if self.broken.iter().any(|broken| broken.start < end && write.offset < broken.end) {
            self.faults += 1;
            return Err(Errno::EIO);
        }
        if self.strikes(Fault::WriteNoSpace) {
            return Err(Errno::ENOSPC);
        }
        if self.strikes(Fault::WriteRefused) {
            let done = self.random.below(sectors) as usize * SECTOR;
            self.store(write.offset, &write.data[..done]);
            return Err(Errno::EIO);
        }
        if self.strikes(Fault::WriteLost) {
            return Ok(());
        }
        if self.strikes(Fault::WriteTorn) {
            let done = self.random.below(sectors) as usize * SECTOR;
            self.store(write.offset, &write.data[..done]);
            return Ok(());
        }
        if self.strikes(Fault::WriteMisdirected) {
            let offset = self.elsewhere(len, write.data.len());
            self.store(offset, write.data);
            return Ok(());
        }
        if self.strikes(Fault::WriteFlipped) {
            let mut data = write.data.to_vec();
            let bit = self.random.below(data.len() as u64 * 8) as usize;
            data[bit / 8] ^= 1 << (bit % 8);
            self.store(write.offset, &data);
            return Ok(());
        }
        self.store(write.offset, write.data);
        Ok(())
    }
}

impl Device for SimDevice {
    fn read(&self, batch: &mut [Read<'_>]) {
        self.pause();
        for read in batch {
            let fits = self.check(read.offset, read.buf.len(), read.buf.as_ptr() as usize);
            read.result = fits.and_then(|()| self.lock().read_one(self.len, read));
        }
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        self.pause();
        for write in batch {
            let fits = self.check(write.offset, write.data.len(), write.data.as_ptr() as usize);
            write.result = fits.and_then(|()| self.lock().write_one(self.len, write));
        }
    }

    fn sync(&self) -> Result<()> {
        self.lock().begin(Operation::Sync)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len as usize, 0)?;
        let mut state = self.lock();
        state.begin(Operation::Discard)?;
        let pages = offset / PAGE as u64..(offset + len) / PAGE as u64;
        for page in pages {
            state.pages.remove(&page);
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len as usize, 0)?;
        let mut state = self.lock();
        state.begin(Operation::Reserve)?;
        if state.strikes(Fault::ReserveNoSpace) { Err(Errno::ENOSPC) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Aligned([u8; PAGE]);

    fn write(device: &SimDevice, page: u64, byte: u8) -> Result<()> {
        let data = Aligned([byte; PAGE]);
        let mut batch = [Write::new(page * PAGE as u64, &data.0)];
        device.write(&mut batch);
        batch[0].result
    }

    fn read(device: &SimDevice, page: u64) -> Result<[u8; PAGE]> {
        let mut data = Aligned([0; PAGE]);
        let mut batch = [Read::new(page * PAGE as u64, &mut data.0)];
        device.read(&mut batch);
        batch[0].result.map(|()| data.0)
    }

    #[test]
    fn without_faults_it_is_a_correct_device() {
        let device = SimDevice::new(1 << 20, 1);
        for page in 0..256 {
            assert_eq!(write(&device, page, page as u8), Ok(()));
        }
        for page in 0..256 {
            assert_eq!(read(&device, page), Ok([page as u8; PAGE]));
        }
        assert_eq!(write(&device, 256, 0), Err(Errno::ENXIO));
        assert_eq!(device.discard(0, 1 << 20), Ok(()));
        assert_eq!(read(&device, 9), Ok([0; PAGE]));
        assert_eq!(device.faults(), 0);
    }

    #[test]
    fn every_fault_is_noticeable() {
        for fault in Fault::ALL.into_iter().filter(|&fault| fault != Fault::ReserveNoSpace) {
            let device = SimDevice::new(1 << 20, 5);
            assert_eq!((write(&device, 3, 1), write(&device, 3, 2)), (Ok(()), Ok(())));
            device.set_chance(fault, 1);
            let written = write(&device, 3, 3);
            let seen = read(&device, 3);
            assert!(written.is_err() || seen != Ok([3; PAGE]), "{fault:?}");
            assert!(device.faults() > 0);
        }
    }

    #[test]
    fn a_broken_place_takes_no_write_and_its_neighbours_do() {
        let device = SimDevice::new(1 << 20, 1);
        assert_eq!(write(&device, 2, 1), Ok(()));
        device.break_place(2 * PAGE as u64..3 * PAGE as u64);
        let pages = [1, 2, 3].map(|page| write(&device, page, 2));
        assert_eq!(pages, [Ok(()), Err(Errno::EIO), Ok(())]);
        assert_eq!(read(&device, 2), Ok([1; PAGE]), "what was there can be read");
        device.heal();
        assert_eq!(write(&device, 2, 2), Ok(()));
    }

    #[test]
    fn an_operation_fails_on_order_once_or_for_ever() {
        for for_ever in [false, true] {
            let device = SimDevice::new(1 << 20, 1);
            let (operation, errno) = (Operation::Write, Errno::EROFS);
            device.add_script(Script { operation, nth: 1, for_ever, errno });
            assert_eq!(write(&device, 0, 1), Ok(()));
            assert_eq!(write(&device, 0, 1), Err(errno));
            assert_eq!(write(&device, 0, 1).is_err(), for_ever);
            assert_eq!(device.count(operation), 3);
        }
    }
}
