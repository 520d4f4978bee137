//! Roots: names for addresses of a durable heap, by which the next process finds what is in it.
//!
//! Guarantees: a name is found with the address that it was given last.
//! Never: touches what the addresses point to.
//! Threads: any.

use deepheap_store::TableShape;
use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::threads::lock::{Guard, Lock};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The table of roots.
const TABLE: u32 = 0x300;
/// Bytes of a name at most.
pub const NAME_BYTES: usize = 56;
/// Names that a heap can have.
pub const ROOTS_MAX: usize = PAGES * PER_PAGE;

const PAGE: usize = deepheap_heap::PAGE;
const PAGES: usize = 256;
const PER_PAGE: usize = PAGE / size_of::<Root>();

/// An entry of the table.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    /// UTF-8, with zeros behind it; all zeros: a free entry.
    name: [u8; NAME_BYTES],
    /// Bytes from the start of the region.
    offset: U64,
}

const _: () = assert!(size_of::<Root>() == 64);

/// The names of a heap.
#[derive(Default)]
pub struct Roots(Lock<Vec<Root>>);

/// The names, while nobody changes them.
pub struct HeldRoots<'a>(Guard<'a, Vec<Root>>);

impl Roots {
    /// Where roots are saved.
    pub fn shape() -> TableShape {
        TableShape { id: TABLE, pages: PAGES as u32 }
    }

    /// Gives an offset a name, or takes a name away. EINVAL: the name is empty, too long, or has a
    /// zero byte; ENOSPC: there are too many.
    pub fn set(&self, name: &str, offset: Option<u64>) -> Result<()> {
        let key = key(name).ok_or(Errno::EINVAL)?;
        let mut roots = self.0.lock();
        let known = roots.iter().position(|root| root.name == key);
        match (known, offset) {
            (Some(index), Some(offset)) => roots[index].offset = U64::new(offset),
            (Some(index), None) => {
                roots.swap_remove(index);
            }
            (None, Some(_)) if roots.len() == ROOTS_MAX => return Err(Errno::ENOSPC),
            (None, Some(offset)) => roots.push(Root { name: key, offset: U64::new(offset) }),
            (None, None) => {}
        }
        Ok(())
    }

    /// The offset that has the name.
    pub fn get(&self, name: &str) -> Option<u64> {
        let key = key(name)?;
        let roots = self.0.lock();
        roots.iter().find(|root| root.name == key).map(|root| root.offset.get())
    }

    /// All names, with the addresses that they stand for.
    pub fn all(&self, region_base: u64) -> Vec<(String, u64)> {
        let named = |root: &Root| {
            let length = root.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
            let name = String::from_utf8_lossy(&root.name[..length]).into_owned();
            (name, region_base + root.offset.get())
        };
        self.0.lock().iter().map(named).collect()
    }

    /// Holds them as they are.
    pub fn hold(&self) -> HeldRoots<'_> {
        HeldRoots(self.0.lock())
    }

    /// Adds those of a saved page, in their order; false if they are none.
    pub fn load(&self, page: u32, bytes: &[u8]) -> bool {
        let Ok(all) = <[Root]>::ref_from_bytes(bytes) else { return false };
        let mut roots = self.0.lock();
        let used = all.iter().filter(|root| root.name[0] != 0);
        roots.extend(used.filter(|root| core::str::from_utf8(&root.name).is_ok()));
        (page as usize) < PAGES && roots.len() <= ROOTS_MAX
    }
}

impl HeldRoots<'_> {
    /// Hands out all pages of the table that hold a name, and one behind them, which may have held
    /// some before.
    pub fn save(&self, page: &mut dyn FnMut(u32, u32, &[u8])) {
        let mut bytes = [0; PAGE];
        let pages = self.0.len().div_ceil(PER_PAGE);
        for number in 0..PAGES.min(pages + 1) {
            let some = self.0.iter().skip(number * PER_PAGE).take(PER_PAGE);
            bytes.fill(0);
            for (entry, root) in
                bytes.as_chunks_mut::<{ size_of::<Root>() }>().0.iter_mut().zip(some)
            {
                entry.copy_from_slice(root.as_bytes());
            }
            page(TABLE, number as u32, &bytes);
        }
    }
}

fn key(name: &str) -> Option<[u8; NAME_BYTES]> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > NAME_BYTES || bytes.contains(&0) {
        return None;
    }
    let mut key = [0; NAME_BYTES];
    key[..bytes.len()].copy_from_slice(bytes);
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again_after_they_were_saved() {
        let roots = Roots::default();
        for number in 0..200 {
            roots.set(&format!("root {number}"), Some(number * 16)).expect("room");
        }
        roots.set("root 7", None).expect("known");
        roots.set("root 8", Some(5)).expect("known");
        let again = Roots::default();
        roots.hold().save(&mut |table, page, bytes| {
            assert!(table == TABLE && again.load(page, bytes));
        });
        for number in 0..200u64 {
            let wanted = match number {
                7 => None,
                8 => Some(5),
                _ => Some(number * 16),
            };
            assert_eq!(again.get(&format!("root {number}")), wanted);
        }
        // One name less than a page has: the page behind is empty again.
        (0..150).for_each(|number| again.set(&format!("root {number}"), None).expect("known"));
        let mut pages = Vec::new();
        again.hold().save(&mut |_, page, bytes| pages.push((page, bytes.iter().any(|&b| b != 0))));
        assert_eq!(pages, [(0, true), (1, false)]);
    }

    #[test]
    fn impossible_names_are_refused() {
        let roots = Roots::default();
        for name in ["", "a\0b", &"x".repeat(NAME_BYTES + 1)] {
            assert_eq!(roots.set(name, Some(1)), Err(Errno::EINVAL));
            assert_eq!(roots.get(name), None);
        }
        roots.set(&"x".repeat(NAME_BYTES), Some(1)).expect("just short enough");
    }
}
