//! Load: a heap's tables, from its file into RAM.
//!
//! Guarantees: what is loaded was verified, page by page and together.
//! Never: writes, touches the heap's memory.
//! Threads: one, before others know the heap.

use deepheap_heap::{Heap, PAGE};
use deepheap_pager::Pager;
use deepheap_store::durable::saved::Load;
use deepheap_store::{
    DurableError, DurableFile, Options as StoreOptions, SavedUpTo, Store, TableShape, VisitPage,
};

use crate::error::OpenError;
use crate::roots::Roots;

/// The table of the object table's pages.
pub const OBJECT_TABLE: u32 = 0x200;

/// The tables of a heap of this shape.
pub fn expected_tables(
    region_len: usize,
    options: &StoreOptions,
    is_encrypted: bool,
) -> Result<Vec<TableShape>, OpenError> {
    let store = Store::table_shapes(options).map_err(OpenError::Store)?;
    let heap = Heap::table_shapes(region_len);
    let heap = heap.into_iter().map(|shape| TableShape { id: shape.id, pages: shape.pages });
    let ours = [
        TableShape { id: OBJECT_TABLE, pages: Pager::table_pages(region_len / PAGE) },
        Roots::shape(),
    ];
    let tags = is_encrypted.then(|| Store::tags_shape(options).map_err(OpenError::Store));
    Ok(store.into_iter().chain(heap).chain(ours).chain(tags.transpose()?).collect())
}

/// Refuses a heap whose tables are not those of this version.
pub fn expect_tables(file: &DurableFile) -> Result<(), OpenError> {
    let length = file.shape().region_len as usize;
    let options = file.store_options(4, 3);
    Ok(file.expect_tables(&expected_tables(length, &options, file.is_encrypted())?)?)
}

/// An error if something is not right.
pub fn right(is_right: bool, what: &'static str) -> Result<(), DurableError> {
    if is_right { Ok(()) } else { Err(DurableError::Inconsistent(what)) }
}

/// A heap for the tables of a file, without memory behind it.
pub fn heap_of(file: &DurableFile) -> Result<Heap, OpenError> {
    let shape = file.shape();
    let heap = Heap::new(shape.region_base as usize, shape.region_len as usize);
    heap.map_err(OpenError::System)
}

/// Loads heap and roots; whether the heap is new: it has no table.
pub fn load_heap(file: &DurableFile, heap: &Heap, roots: &Roots) -> Result<bool, OpenError> {
    let load: &mut Load<'_> = &mut |table, visit: &mut VisitPage<'_>| file.load_table(table, visit);
    let is_new = load_pages(heap, load)?;
    if !is_new {
        heap.loaded().map_err(|bad| OpenError::Damaged(bad.to_string()))?;
    }
    load_roots(roots, load)?;
    Ok(is_new)
}

/// Loads the pages of a heap's tables; whether there was none.
pub(crate) fn load_pages(heap: &Heap, load: &mut Load<'_>) -> Result<bool, DurableError> {
    let mut is_new = true;
    for shape in Heap::table_shapes(heap.region_bytes()) {
        load(shape.id, &mut |page, bytes| {
            is_new = false;
            right(heap.load(shape.id, page, bytes), "a table of the heap")
        })?;
    }
    Ok(is_new)
}

/// Loads the roots.
pub(crate) fn load_roots(roots: &Roots, load: &mut Load<'_>) -> Result<(), DurableError> {
    load(Roots::shape().id, &mut |page, bytes| right(roots.load(page, bytes), "the table of roots"))
}

/// The store of a heap, with so many buffers and segments in reserve.
pub fn open_store(
    file: &DurableFile,
    buffers: usize,
    reserve_segments: u32,
) -> Result<(Store, SavedUpTo), OpenError> {
    let options = file.store_options(buffers, reserve_segments);
    let load: &mut Load<'_> = &mut |table, visit: &mut VisitPage<'_>| file.load_table(table, visit);
    Ok(Store::open_saved(file, options, load)?)
}
