//! Object report: which places of a program were decided for objects, for the summary at exit.
//!
//! Guarantees: places are named by library and offset, as `addr2line -e LIBRARY OFFSET` takes them.
//! Never: runs before the exit. It does allocate: not for fault paths.
//! Threads: the one that exits.

use core::ffi::CStr;
use core::fmt::Write;
use std::path::Path;

use crate::config::Config;
use crate::object_placement::{AUTO_SIZES, Chosen, ObjectPlacement, SITES_OF_PROCESS};
use crate::stats_report::{bytes, count};

/// Places that are told one by one.
const TOLD_MAX: usize = 8;

/// Lines for the summary; none unless the settings say `objects:auto`.
pub(crate) fn object_report(config: &Config) -> String {
    if config.objects != Some(ObjectPlacement::Auto) {
        return String::new();
    }
    let mut chosen = [Chosen { caller: 0, sizes: (0, 0), objects: 0 }; TOLD_MAX];
    let places = SITES_OF_PROCESS.chosen(&mut chosen);
    told(&chosen[..places.min(TOLD_MAX)], places, place_of)
}

fn told(chosen: &[Chosen], places: usize, place_of: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    if chosen.is_empty() {
        let (min, max) = (bytes(*AUTO_SIZES.start() as u64), bytes(*AUTO_SIZES.end() as u64));
        return format!(
            "deepheap:   objects none: no place had many live allocations of {min} to {max}\n"
        );
    }
    for (index, site) in chosen.iter().enumerate() {
        let word = if index == 0 { "objects" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "deepheap:   {word:<7} {} of {} to {} bytes from {}",
            count(site.objects),
            site.sizes.0,
            site.sizes.1,
            place_of(site.caller),
        );
    }
    if places > chosen.len() {
        let _ = writeln!(text, "deepheap:           and {} places more", places - chosen.len());
    }
    text
}

/// The library or program that an address of code lies in, and where.
fn place_of(address: usize) -> String {
    // SAFETY: all zeros is what dladdr leaves where it finds nothing.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: dladdr takes any address and fills our own struct.
    let is_found = unsafe { libc::dladdr(address as *const _, &mut found) } != 0;
    if !is_found || found.dli_fname.is_null() {
        return format!("{address:#x}");
    }
    // SAFETY: dladdr found a library, whose name is a C string while it is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy();
    let offset = address - found.dli_fbase as usize;
    let name = Path::new(name.as_ref()).file_name().unwrap_or_default();
    format!("{}+{offset:#x}", name.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_with_sizes_and_counts() {
        let site = |caller, objects| Chosen { caller, sizes: (128, 143), objects };
        let text = told(&[site(0x10, 123_456), site(0x20, 7)], 3, |at| format!("prog+{at:#x}"));
        assert_eq!(
            text,
            "deepheap:   objects 123k of 128 to 143 bytes from prog+0x10\n\
             deepheap:           7 of 128 to 143 bytes from prog+0x20\n\
             deepheap:           and 1 places more\n"
        );
        assert!(told(&[], 0, |_| String::new()).contains("none"));
    }

    #[test]
    fn code_is_named_by_its_library() {
        let text = place_of(place_of as *const () as usize);
        assert!(text.starts_with("deepheap") && text.contains("+0x"), "{text}");
        assert_eq!(place_of(8), "0x8");
    }
}
