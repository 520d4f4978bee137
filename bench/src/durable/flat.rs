//! Flat: records side by side in a file that is mapped, by deepheap with a log or by the kernel.
//!
//! Guarantees: a commit of the map with a log is atomic; one of the kernel's mapping is not.
//! Threads: one.

use std::fs::File;
use std::os::fd::AsRawFd;

use deepheap::maps::{Advice, Map, MapOptions};

use super::contender::{Contender, Shape, text};

/// A map of deepheap's with a log.
pub struct FlatMap {
    map: Map,
    bytes: usize,
}

impl FlatMap {
    /// A new file with room for all records.
    pub fn create(shape: &Shape<'_>) -> Result<FlatMap, String> {
        let length = (shape.records * shape.bytes as u64).next_multiple_of(4096);
        let ram = shape.ram_bytes;
        let options = MapOptions { writes: true, has_log: true, length, ram, ..Default::default() };
        let map = Map::open(&shape.folder.join("records.map"), options).map_err(text)?;
        map.advise(Advice::Random).map_err(text)?;
        Ok(FlatMap { map, bytes: shape.bytes })
    }
}

/// The bytes of a record.
fn record(base: *mut u8, key: u64, bytes: usize) -> *mut u8 {
    base.wrapping_add(key as usize * bytes)
}

impl Contender for FlatMap {
    fn read(&mut self, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let at = record(self.map.as_ptr(), key, self.bytes);
        // SAFETY: a record of the map; nobody writes to it meanwhile.
        see(unsafe { core::slice::from_raw_parts(at, self.bytes) });
        Ok(())
    }

    fn write(&mut self, key: u64, value: &[u8]) -> Result<(), String> {
        let at = record(self.map.as_ptr(), key, self.bytes);
        // SAFETY: as above.
        unsafe { at.copy_from_nonoverlapping(value.as_ptr(), self.bytes) };
        Ok(())
    }

    fn commit(&mut self) -> Result<(), String> {
        self.map.sync().map_err(text)
    }

    fn finish(&mut self) -> Result<(), String> {
        self.commit()
    }
}

/// A mapping of the kernel's.
pub struct FlatMapping {
    base: *mut u8,
    length: usize,
    bytes: usize,
}

impl FlatMapping {
    /// A new file with room for all records.
    pub fn create(shape: &Shape<'_>) -> Result<FlatMapping, String> {
        let length = (shape.records as usize * shape.bytes).next_multiple_of(4096);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true);
        let file = file.open(shape.folder.join("records")).map_err(text)?;
        file.set_len(length as u64).map_err(text)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping wherever the kernel likes; it stays.
        unsafe {
            let (null, fd) = (core::ptr::null_mut(), file.as_raw_fd());
            let base = libc::mmap(null, length, protection, libc::MAP_SHARED, fd, 0);
            if base == libc::MAP_FAILED || libc::madvise(base, length, libc::MADV_RANDOM) != 0 {
                return Err(text(std::io::Error::last_os_error()));
            }
            Ok(FlatMapping { base: base.cast(), length, bytes: shape.bytes })
        }
    }
}

impl Contender for FlatMapping {
    fn read(&mut self, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        // SAFETY: a record of the mapping; nobody writes to it meanwhile.
        see(unsafe { core::slice::from_raw_parts(record(self.base, key, self.bytes), self.bytes) });
        Ok(())
    }

    fn write(&mut self, key: u64, value: &[u8]) -> Result<(), String> {
        let at = record(self.base, key, self.bytes);
        // SAFETY: as above.
        unsafe { at.copy_from_nonoverlapping(value.as_ptr(), self.bytes) };
        Ok(())
    }

    fn commit(&mut self) -> Result<(), String> {
        // SAFETY: the mapping, which stays.
        match unsafe { libc::msync(self.base.cast(), self.length, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(text(std::io::Error::last_os_error())),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        self.commit()
    }
}
