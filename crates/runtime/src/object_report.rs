//! Object report: what was decided for places of a program, and why, for the summary at exit.
//!
//! Guarantees: places are named by library and offset, as `addr2line -e LIBRARY OFFSET` takes them.
//! Never: runs before the exit. It does allocate: not for fault paths.
//! Threads: the one that exits.

use core::ffi::CStr;
use core::fmt::Write;
use std::path::Path;

use crate::config::Config;
use crate::object_placement::{AUTO_SIZES, ObjectPlacement, SITES_OF_PROCESS, Told, Verdict};
use crate::stats_report::{bytes, count};

/// Places that are told one by one.
const TOLD_MAX: usize = 8;

/// Lines for the summary; none unless the settings say `objects:auto`.
pub(crate) fn object_report(config: &Config) -> String {
    if config.objects != Some(ObjectPlacement::Auto) {
        return String::new();
    }
    let mut sites = [Told::NONE; TOLD_MAX];
    let places = SITES_OF_PROCESS.told(&mut sites);
    report(&sites[..places.min(TOLD_MAX)], places, place_of)
}

fn report(sites: &[Told], places: usize, place_of: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    if !sites.iter().any(|site| site.verdict == Verdict::Objects) {
        let (min, max) = (bytes(*AUTO_SIZES.start() as u64), bytes(*AUTO_SIZES.end() as u64));
        text = match sites {
            [] => format!(
                "deepheap:   objects none: no place had many live allocations of {min} to {max}\n"
            ),
            _ => "deepheap:   objects none: no place showed what they are for\n".to_owned(),
        };
    }
    let mut last = None;
    for site in sites {
        let (word, what, why) = match site.verdict {
            Verdict::Objects => ("objects", count(site.objects) + " ", together(site)),
            Verdict::Pages => ("pages", String::new(), together(site)),
            Verdict::InRam => ("pages", String::new(), together(site) + ", most of it in RAM"),
            Verdict::None => ("pages", String::new(), "too few came back to tell".to_owned()),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "deepheap:   {:<7} {what}of {} to {} bytes from {}: {} live, {why}",
            if last == Some(word) { "" } else { word },
            site.sizes.0,
            site.sizes.1,
            place_of(site.caller),
            count(site.live_most),
        );
        last = Some(word);
    }
    if places > sites.len() {
        let _ = writeln!(text, "deepheap:           and {} places more", places - sites.len());
    }
    text
}

fn together(site: &Told) -> String {
    format!("{}% of neighbours used together", site.together_percent)
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
    fn places_are_told_with_what_was_chosen_and_why() {
        let site = |caller, verdict, together_percent| Told {
            caller,
            sizes: (128, 143),
            verdict,
            live_most: 8192,
            together_percent,
            objects: 123_456,
        };
        let sites = [
            site(0x10, Verdict::Objects, 3),
            site(0x20, Verdict::Objects, 0),
            site(0x30, Verdict::Pages, 88),
            site(0x40, Verdict::InRam, 4),
            site(0x50, Verdict::None, 0),
        ];
        let name = |at| format!("prog+{at:#x}");
        assert_eq!(
            report(&sites, 6, name),
            "deepheap:   objects 123k of 128 to 143 bytes from prog+0x10: 8.19k live, \
             3% of neighbours used together\n\
             deepheap:           123k of 128 to 143 bytes from prog+0x20: 8.19k live, \
             0% of neighbours used together\n\
             deepheap:   pages   of 128 to 143 bytes from prog+0x30: 8.19k live, \
             88% of neighbours used together\n\
             deepheap:           of 128 to 143 bytes from prog+0x40: 8.19k live, \
             4% of neighbours used together, most of it in RAM\n\
             deepheap:           of 128 to 143 bytes from prog+0x50: 8.19k live, \
             too few came back to tell\n\
             deepheap:           and 1 places more\n"
        );
        assert!(report(&[], 0, name).contains("none: no place had many live"));
        assert!(
            report(&sites[2..], 2, name).starts_with("deepheap:   objects none: no place showed")
        );
    }

    #[test]
    fn code_is_named_by_its_library() {
        let text = place_of(place_of as *const () as usize);
        assert!(text.starts_with("deepheap") && text.contains("+0x"), "{text}");
        assert_eq!(place_of(8), "0x8");
    }
}
