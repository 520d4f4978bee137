//! Modules: the files that a process has mapped to execute them: where each was loaded, its
//! symbols, and the tables by which a stack is unwound.
//!
//! Guarantees: hostile or cut files give no names and no tables, never a panic.
//! Never: keeps more of the tables than `TABLE_BYTES_MAX` of a file.
//! Threads: pure, apart from reading the files.

use core::ops::Range;
use std::collections::HashMap;
use std::fs::{self, File};
use std::rc::Rc;

use framehop::{ExplicitModuleSectionInfo, Module};

use crate::launch::elf::{self, PT_LOAD, Part, bytes_of, u32_at, u64_at};
use crate::live::sites::Mapping;
use crate::live::symbols::Symbols;

const TABLE_BYTES_MAX: u64 = 512 << 20;
const PAGE: u64 = 4096;

/// A file that is mapped.
pub struct Mapped {
    /// Its addresses.
    pub range: Range<u64>,
    offset: u64,
    /// Its name, without folders.
    pub name: String,
    binary: Rc<Binary>,
}

/// What is known of a file.
struct Binary {
    symbols: Option<Symbols>,
    tables: Option<Tables>,
}

type Section = (Range<u64>, Rc<[u8]>);

/// Of a file: its parts, and the tables for exceptions.
struct Tables {
    parts: Vec<Part>,
    frames: Option<Section>,
    index: Option<Section>,
}

/// Files, each read once.
#[derive(Default)]
pub struct Files(HashMap<String, Rc<Binary>>);

impl Files {
    /// What a line of /proc/PID/maps says is mapped; the process may be in a container.
    pub fn mapped(&mut self, line: &str, pid: u64) -> Option<Mapped> {
        let Mapping { start, end, offset, path } = Mapping::of(line)?;
        let binary = self.0.entry(path.to_owned()).or_insert_with(|| {
            let inside = format!("/proc/{pid}/root{path}");
            let path = if fs::exists(&inside).unwrap_or(false) { &inside } else { path };
            Rc::new(Binary { symbols: Symbols::read(path), tables: Tables::read(path) })
        });
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Some(Mapped { range: start..end, offset, name, binary: binary.clone() })
    }
}

impl Mapped {
    /// The function at an address: its name, or where it begins.
    pub fn function_at(&self, address: u64) -> String {
        let offset = address - self.range.start + self.offset;
        let named = self.binary.symbols.as_ref().and_then(|symbols| symbols.name_at(offset));
        named.unwrap_or_else(|| {
            let tables = self.binary.tables.as_ref();
            let start = tables.and_then(|tables| tables.start_of_function(offset));
            format!("{}+{:#x}", self.name, start.unwrap_or(offset))
        })
    }

    /// For the unwinder.
    pub fn module(&self) -> Option<Module<Rc<[u8]>>> {
        let tables = self.binary.tables.as_ref()?;
        // Of parts that share a page of the file, the last is the one that is executed.
        let begins = |part: &&Part| {
            let end = part.offset.saturating_add(part.len);
            part.kind == PT_LOAD && (part.offset & !(PAGE - 1)..end).contains(&self.offset)
        };
        let part = tables.parts.iter().filter(begins).max_by_key(|part| part.offset)?;
        let moved = part.offset.wrapping_sub(part.address);
        let base = self.range.start.wrapping_sub(self.offset).wrapping_add(moved);
        let (frames_at, frames) = tables.frames.clone().unzip();
        let (index_at, index) = tables.index.clone().unzip();
        let sections = ExplicitModuleSectionInfo {
            eh_frame_svma: frames_at,
            eh_frame: frames,
            eh_frame_hdr_svma: index_at,
            eh_frame_hdr: index,
            ..Default::default()
        };
        Some(Module::new(self.name.clone(), self.range.clone(), base, sections))
    }
}

impl Tables {
    fn read(path: &str) -> Option<Tables> {
        let file = File::open(path).ok()?;
        let header = bytes_of(&file, 0, 64)?;
        if &header[..5] != b"\x7fELF\x02" {
            return None;
        }
        let parts = elf::parts(&file, &header)?;
        let sections = elf::headers(&file, &header, [40, 58, 60])?;
        let content = |section: &[u8]| {
            bytes_of(&file, u64_at(section, 24)?, u64_at(section, 32)?.min(TABLE_BYTES_MAX))
        };
        let names = sections.get(usize::from(elf::u16_at(&header, 62)?))?;
        let names = content(names)?;
        let of_name = |name: &[u8]| {
            let is_it = |section: &&Vec<u8>| {
                let at = u32_at(section, 0).map(|at| at as usize);
                at.and_then(|at| names.get(at..)).is_some_and(|rest| rest.starts_with(name))
            };
            let section = sections.iter().find(is_it)?;
            let (start, bytes) = (u64_at(section, 16)?, content(section)?);
            let end = start.checked_add(bytes.len() as u64)?;
            Some((start..end, Rc::from(bytes)))
        };
        let [frames, index] = [&b".eh_frame\0"[..], b".eh_frame_hdr\0"].map(of_name);
        Some(Tables { parts, frames, index })
    }

    /// The address of the function that has this offset of the file, by the index of the tables:
    /// pairs of 32-bit numbers, relative to the index, in order.
    fn start_of_function(&self, offset: u64) -> Option<u64> {
        const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let address = elf::address_at(&self.parts, offset)?;
        let (range, bytes) = self.index.as_ref()?;
        if !bytes.starts_with(&HEADER) {
            return None;
        }
        let pairs = bytes.get(12..)?.as_chunks::<8>().0;
        let count = pairs.len().min(u32_at(bytes, 8)? as usize);
        let start = |pair: &[u8; 8]| {
            let relative = i32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]]);
            range.start.wrapping_add_signed(relative.into())
        };
        let after = pairs[..count].partition_point(|pair| start(pair) <= address);
        pairs.get(after.checked_sub(1)?).map(start)
    }
}
