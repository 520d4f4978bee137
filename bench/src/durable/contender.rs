//! Contender: a table of records in a durable heap, in LMDB, in redb, and what `flat` and `sqlite`
//! have: the same calls for each.
//!
//! Guarantees: what was committed is durable; a commit of the durable heap is that of a ticket, so
//! it is durable once the next one was asked for.
//! Threads: one.

use std::path::Path;

use clap::ValueEnum;
use deepheap::objects::{self, ObjectError};
use deepheap::{DurableHeap, DurableOptions, Ticket};
use heed::byteorder::BigEndian;
use heed::types::{Bytes, U64};
use redb::{ReadableDatabase, TableDefinition};

use crate::backend::deepheap as backend;

/// What holds the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A durable heap
    Deepheap,
    Lmdb,
    Redb,
    /// A map of deepheap's with a log
    Map,
    /// A mapping of the kernel's
    Mmap,
    Sqlite,
}

impl Kind {
    /// Those that keep records of any key.
    pub const TABLES: [Kind; 3] = [Kind::Deepheap, Kind::Lmdb, Kind::Redb];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Deepheap => "deepheap",
            Kind::Lmdb => "lmdb",
            Kind::Redb => "redb",
            Kind::Map => "map",
            Kind::Mmap => "mmap",
            Kind::Sqlite => "sqlite",
        }
    }
}

/// What a table is made for.
pub struct Shape<'a> {
    /// Folder for its files.
    pub folder: &'a Path,
    /// RAM for it.
    pub ram_bytes: u64,
    /// Records that it will have.
    pub records: u64,
    /// Bytes of each.
    pub bytes: usize,
    /// More settings of the durable heap.
    pub settings: &'a str,
}

/// What all tables can do. Keys are numbers from 0 on.
pub trait Contender {
    /// Hands a record to `see`.
    fn read(&mut self, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<(), String>;
    /// Hands the records of some keys to `see`, with their keys; one after the other where a table
    /// cannot read them together.
    fn read_batch(&mut self, keys: &[u64], see: &mut dyn FnMut(u64, &[u8])) -> Result<(), String> {
        keys.iter().try_for_each(|&key| self.read(key, &mut |value| see(key, value)))
    }
    /// Writes a record.
    fn write(&mut self, key: u64, value: &[u8]) -> Result<(), String>;
    /// Makes what was written durable.
    fn commit(&mut self) -> Result<(), String>;
    /// Ends writing: all of it is durable.
    fn finish(&mut self) -> Result<(), String>;
}

pub(super) fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

/// RAM for the heap of `malloc`, which has nothing to hold: the least that is accepted.
pub const PLAIN_BYTES: u64 = 16 << 20;

/// A hash table in a durable heap: open addressing, slots with the addresses of records, by the
/// hash that C++ has for numbers, which is the number. A record is an object, is read and written
/// by calls, and begins with its key.
pub struct Heap {
    heap: DurableHeap,
    slots: *mut u64,
    bits: u32,
    record: Vec<u8>,
    asked: Option<Ticket>,
}

impl Heap {
    /// A new one.
    pub fn create(shape: &Shape<'_>) -> Result<Heap, String> {
        backend::start(shape.ram_bytes + PLAIN_BYTES, shape.folder, "").map_err(text)?;
        let options = format!("ram:{},size:64G,{}", shape.ram_bytes, shape.settings);
        let options = DurableOptions::parse(&options).map_err(text)?;
        let heap = DurableHeap::open(&shape.folder.join("records.dh"), &options).map_err(text)?;
        let slots = (shape.records * 3 / 2).next_power_of_two();
        let table = heap.malloc(8 * slots as usize).cast::<u64>();
        if table.is_null() {
            return Err("no memory for the table".into());
        }
        // SAFETY: so large.
        unsafe { table.write_bytes(0, slots as usize) };
        heap.set_root("records", table.cast()).map_err(text)?;
        let record = vec![0; shape.bytes];
        Ok(Heap { heap, slots: table, bits: slots.ilog2(), record, asked: None })
    }

    /// Looks for a key: its slot, and its record, which is in `record` then; null: a free slot.
    fn find(&mut self, key: u64) -> Result<(*mut u64, *mut u8), String> {
        let mask = (1usize << self.bits) - 1;
        let mut at = key as usize & mask;
        loop {
            // SAFETY: a slot of the table.
            let (slot, record) = unsafe {
                let slot = self.slots.add(at);
                (slot, slot.read() as *mut u8)
            };
            if record.is_null() {
                return Ok((slot, record));
            }
            // SAFETY: a record of so many bytes; nobody else knows it.
            unsafe { objects::read(record, 0, self.record.as_mut_ptr(), self.record.len()) }
                .map_err(refused)?;
            if self.record[..8] == key.to_le_bytes() {
                return Ok((slot, record));
            }
            at = (at + 1) & mask;
        }
    }
}

fn refused(error: ObjectError) -> String {
    format!("{error:?}")
}

impl Contender for Heap {
    fn read(&mut self, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let (_, record) = self.find(key)?;
        if record.is_null() {
            return Err(format!("no record {key}"));
        }
        see(&self.record);
        Ok(())
    }

    fn read_batch(&mut self, keys: &[u64], see: &mut dyn FnMut(u64, &[u8])) -> Result<(), String> {
        let bytes = self.record.len();
        let at = |key: u64| (key as usize) & ((1 << self.bits) - 1);
        // SAFETY: slots of the table.
        let firsts = keys.iter().map(|&key| unsafe { self.slots.add(at(key)).read() } as *const u8);
        let firsts: Vec<*const u8> = firsts.collect();
        let mut values = vec![0; keys.len() * bytes];
        let are_all = !firsts.iter().any(|first| first.is_null());
        if are_all {
            // SAFETY: records of so many bytes.
            unsafe { objects::gather(firsts.as_ptr(), keys.len(), 0, bytes, values.as_mut_ptr()) }
                .map_err(refused)?;
        }
        for (&key, value) in keys.iter().zip(values.chunks(bytes)) {
            // Another key has the first slot: the record is in one of the next.
            match are_all && value[..8] == key.to_le_bytes() {
                true => see(key, value),
                false => self.read(key, &mut |value| see(key, value))?,
            }
        }
        Ok(())
    }

    fn write(&mut self, key: u64, value: &[u8]) -> Result<(), String> {
        let (slot, mut record) = self.find(key)?;
        if record.is_null() {
            record = self.heap.allocate_objects(1, value.len());
            if record.is_null() {
                return Err("no memory for a record".into());
            }
            // SAFETY: a slot of the table.
            unsafe { slot.write(record as u64) };
        }
        // SAFETY: a record of so many bytes.
        unsafe { objects::write(record, 0, value.as_ptr(), value.len()) }.map_err(refused)
    }

    fn commit(&mut self) -> Result<(), String> {
        let before = self.asked.replace(self.heap.checkpoint_async());
        before.map_or(Ok(()), |ticket| ticket.wait().map(drop).map_err(text))
    }

    fn finish(&mut self) -> Result<(), String> {
        self.commit()?;
        self.asked.take().map_or(Ok(()), |ticket| ticket.wait().map(drop).map_err(text))
    }
}

type LmdbTable = heed::Database<U64<BigEndian>, Bytes>;

pub struct Lmdb {
    // Before the environment that they belong to.
    writing: Option<heed::RwTxn<'static>>,
    reading: Option<heed::RoTxn<'static, heed::WithTls>>,
    env: &'static heed::Env,
    table: LmdbTable,
}

impl Lmdb {
    /// A new one.
    pub fn create(shape: &Shape<'_>) -> Result<Lmdb, String> {
        let map = (shape.records as usize * shape.bytes * 4).next_multiple_of(1 << 20) + (64 << 20);
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(map);
        // SAFETY: nobody else opens these files. Reading ahead is of no use to random reads of more
        // than RAM: LMDB's own advice.
        let env = unsafe {
            options.flags(heed::EnvFlags::NO_READ_AHEAD);
            options.open(shape.folder)
        };
        let env = env.map_err(text)?;
        // As long as the process.
        let env: &'static heed::Env = Box::leak(Box::new(env));
        let mut writing = env.write_txn().map_err(text)?;
        let table = env.create_database(&mut writing, None).map_err(text)?;
        Ok(Lmdb { writing: Some(writing), reading: None, env, table })
    }
}

impl Contender for Lmdb {
    fn read(&mut self, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let reading = match self.reading.take() {
            Some(reading) => reading,
            None => self.env.read_txn().map_err(text)?,
        };
        let value = self.table.get(&reading, &key).map_err(text)?;
        see(value.ok_or_else(|| format!("no record {key}"))?);
        self.reading = Some(reading);
        Ok(())
    }

    fn write(&mut self, key: u64, value: &[u8]) -> Result<(), String> {
        let mut writing = match self.writing.take() {
            Some(writing) => writing,
            None => self.env.write_txn().map_err(text)?,
        };
        self.reading = None;
        self.table.put(&mut writing, &key, value).map_err(text)?;
        self.writing = Some(writing);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), String> {
        self.writing.take().map_or(Ok(()), |writing| writing.commit().map_err(text))
    }

    fn finish(&mut self) -> Result<(), String> {
        self.commit()
    }
}

const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");

pub struct Redb {
    writing: Option<redb::WriteTransaction>,
    reading: Option<redb::ReadOnlyTable<u64, &'static [u8]>>,
    database: redb::Database,
}

impl Redb {
    /// A new one.
    pub fn create(shape: &Shape<'_>) -> Result<Redb, String> {
        // The rest is for the page cache, through which it reads and writes.
        let cache_bytes = shape.ram_bytes as usize * 3 / 4;
        let database = redb::Database::builder()
            .set_cache_size(cache_bytes)
            .create(shape.folder.join("records.redb"))
            .map_err(text)?;
        Ok(Redb { writing: None, reading: None, database })
    }
}

impl Contender for Redb {
    fn read(&mut self, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let reading = match self.reading.take() {
            Some(reading) => reading,
            None => {
                let begun = self.database.begin_read().map_err(text)?;
                begun.open_table(RECORDS).map_err(text)?
            }
        };
        let value = reading.get(key).map_err(text)?.ok_or_else(|| format!("no record {key}"))?;
        see(value.value());
        self.reading = Some(reading);
        Ok(())
    }

    fn write(&mut self, key: u64, value: &[u8]) -> Result<(), String> {
        self.reading = None;
        let writing = match self.writing.take() {
            Some(writing) => writing,
            None => self.database.begin_write().map_err(text)?,
        };
        writing.open_table(RECORDS).map_err(text)?.insert(key, value).map_err(text)?;
        self.writing = Some(writing);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), String> {
        self.writing.take().map_or(Ok(()), |writing| writing.commit().map_err(text))
    }

    fn finish(&mut self) -> Result<(), String> {
        self.commit()
    }
}
