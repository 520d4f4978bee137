//! ELF: the headers of an executable file, and what it is as far as preloading a library into it
//! depends on that.
//!
//! Guarantees: hostile or cut files give `None`, never a panic.
//! Never: reads more than the program headers, the interpreter's name, and the names of symbols.
//! Threads: pure, apart from reading the file.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The kind of a part that is loaded.
pub const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
/// A symbol that each program with AddressSanitizer has or needs.
const ASAN_SYMBOL: &[u8] = b"__asan_init";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
/// `e_machine` of x86_64, the only one deepheap is built for.
const MACHINE_X86_64: u16 = 62;
/// More headers than any linker writes.
const HEADERS_MAX: usize = 4096;
const INTERPRETER_MAX: u64 = 4096;
const DYNAMIC_MAX: u64 = 64 << 10;
/// Names of symbols beyond are not looked at.
const NAMES_MAX: u64 = 64 << 20;

/// An executable of some kind.
#[derive(Debug, PartialEq, Eq)]
pub enum Elf {
    /// For another processor or word size, in words.
    Foreign(String),
    /// Without a dynamic linker: nothing can be preloaded.
    Static,
    /// With this dynamic linker.
    Dynamic(String),
    /// Built with AddressSanitizer.
    Sanitized,
}

/// The kind of an ELF file; `None` if it is none, or broken.
pub fn read(file: &File) -> Option<Elf> {
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    if &header[..4] != b"\x7fELF" {
        return None;
    }
    let machine = u16_at(&header, 18)?;
    if header[4] != CLASS_64 || header[5] != LITTLE_ENDIAN || machine != MACHINE_X86_64 {
        return Some(Elf::Foreign(machine_name(header[4], machine)));
    }
    let parts = parts(file, &header)?;
    let Some(interpreter) = parts.iter().find(|part| part.kind == PT_INTERP) else {
        return Some(Elf::Static);
    };
    let name = bytes_of(file, interpreter.offset, interpreter.len.min(INTERPRETER_MAX))?;
    let name = name.split(|byte| *byte == 0).next()?;
    let is_sanitized = symbol_names(file, &parts)
        .is_some_and(|names| names.split(|byte| *byte == 0).any(|name| name == ASAN_SYMBOL));
    Some(match is_sanitized {
        true => Elf::Sanitized,
        false => Elf::Dynamic(String::from_utf8_lossy(name).into_owned()),
    })
}

/// A program header.
pub struct Part {
    pub kind: u32,
    pub offset: u64,
    pub address: u64,
    pub len: u64,
}

/// The program headers of a file.
pub fn parts(file: &File, header: &[u8]) -> Option<Vec<Part>> {
    let part = |part: &Vec<u8>| {
        let [offset, address, len] = [8, 16, 32].map(|at| u64_at(part, at));
        Some(Part { kind: u32_at(part, 0)?, offset: offset?, address: address?, len: len? })
    };
    headers(file, header, [32, 54, 56])?.iter().map(part).collect()
}

/// The headers of a kind. These places of the file's header have where they are, how long each of
/// them is, and how many there are.
pub fn headers(file: &File, header: &[u8], at: [usize; 3]) -> Option<Vec<Vec<u8>>> {
    let size = usize::from(u16_at(header, at[1])?);
    let count = usize::from(u16_at(header, at[2])?).min(HEADERS_MAX);
    let all = bytes_of(file, u64_at(header, at[0])?, (size * count) as u64)?;
    Some(all.chunks_exact(size.max(1)).map(<[u8]>::to_vec).collect())
}

/// The address of what is at an offset of a file with these parts.
pub fn address_at(parts: &[Part], offset: u64) -> Option<u64> {
    let holds = |part: &&Part| {
        part.kind == PT_LOAD && offset.checked_sub(part.offset).is_some_and(|at| at < part.len)
    };
    let part = parts.iter().find(holds)?;
    part.address.checked_add(offset - part.offset)
}

/// The names of the symbols that the dynamic linker binds.
fn symbol_names(file: &File, parts: &[Part]) -> Option<Vec<u8>> {
    let dynamic = parts.iter().find(|part| part.kind == PT_DYNAMIC)?;
    let entries = bytes_of(file, dynamic.offset, dynamic.len.min(DYNAMIC_MAX))?;
    let value = |tag| {
        let mut entries = entries.chunks_exact(16);
        entries.find(|entry| u64_at(entry, 0) == Some(tag)).and_then(|entry| u64_at(entry, 8))
    };
    let (address, len) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    let holds = |part: &&Part| {
        part.kind == PT_LOAD && address.checked_sub(part.address).is_some_and(|at| at < part.len)
    };
    let part = parts.iter().find(holds)?;
    let offset = part.offset.checked_add(address - part.address)?;
    bytes_of(file, offset, len.min(NAMES_MAX))
}

/// So many bytes of a file, none if it is shorter.
pub fn bytes_of(file: &File, offset: u64, len: u64) -> Option<Vec<u8>> {
    // A header may name any length: the file bounds it.
    if offset.checked_add(len)? > file.metadata().ok()?.len() {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn machine_name(class: u8, machine: u16) -> String {
    match machine {
        3 => "32-bit x86".to_owned(),
        MACHINE_X86_64 => "x86_64 with 32-bit pointers (x32)".to_owned(),
        40 => "32-bit ARM".to_owned(),
        183 => "ARM64 (aarch64)".to_owned(),
        243 => "RISC-V".to_owned(),
        21 => "POWER".to_owned(),
        22 => "s390x".to_owned(),
        _ => format!("machine {machine} of ELF class {class}"),
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// A number of two bytes in a header.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

/// One of four.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

/// One of eight.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}
