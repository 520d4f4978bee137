//! ELF: what an executable file is, as far as preloading a library into it depends on that.
//!
//! Guarantees: hostile or cut files give `None`, never a panic.
//! Never: reads more than the program headers and the interpreter's name.
//! Threads: pure, apart from reading the file.

use std::fs::File;
use std::os::unix::fs::FileExt;

const PT_INTERP: u32 = 3;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
/// `e_machine` of x86_64, the only one deepheap is built for.
const MACHINE_X86_64: u16 = 62;
/// More program headers than any linker writes.
const HEADERS_MAX: u64 = 256;
const INTERPRETER_MAX: u64 = 4096;

/// An executable of some kind.
#[derive(Debug, PartialEq, Eq)]
pub enum Elf {
    /// For another processor or word size, in words.
    Foreign(String),
    /// Without a dynamic linker: nothing can be preloaded.
    Static,
    /// With this dynamic linker.
    Dynamic(String),
}

/// What an ELF file is; `None` if it is none, or broken.
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
    let start = u64_at(&header, 32)?;
    let (size, count) = (u64::from(u16_at(&header, 54)?), u64::from(u16_at(&header, 56)?));
    for index in 0..count.min(HEADERS_MAX) {
        let mut header = [0; 56];
        file.read_exact_at(&mut header, start.checked_add(index * size)?).ok()?;
        if u32_at(&header, 0)? == PT_INTERP {
            let (offset, len) = (u64_at(&header, 8)?, u64_at(&header, 32)?);
            let mut name = vec![0; len.min(INTERPRETER_MAX) as usize];
            file.read_exact_at(&mut name, offset).ok()?;
            let name = name.split(|byte| *byte == 0).next()?;
            return Some(Elf::Dynamic(String::from_utf8_lossy(name).into_owned()));
        }
    }
    Some(Elf::Static)
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
