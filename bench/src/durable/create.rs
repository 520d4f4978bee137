//! Create: makes the table of a contender, whichever that is.

use super::contender::{Contender, Heap, Kind, Lmdb, Redb, Shape};
use super::flat::{FlatMap, FlatMapping};
use super::sqlite::Sqlite;

/// Makes a table.
pub fn create(kind: Kind, shape: &Shape<'_>) -> Result<Box<dyn Contender>, String> {
    Ok(match kind {
        Kind::Deepheap => Box::new(Heap::create(shape)?),
        Kind::Lmdb => Box::new(Lmdb::create(shape)?),
        Kind::Redb => Box::new(Redb::create(shape)?),
        Kind::Map => Box::new(FlatMap::create(shape)?),
        Kind::Mmap => Box::new(FlatMapping::create(shape)?),
        Kind::Sqlite => Box::new(Sqlite::create(shape)?),
    })
}
