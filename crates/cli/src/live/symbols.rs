//! Symbols: the names of the functions of an ELF file, by their offset in it.
//!
//! Guarantees: hostile or cut files give `None` or no name, never a panic.
//! Never: keeps more than `SYMBOLS_MAX` names and `NAMES_BYTES_MAX` of their text.
//! Threads: pure, apart from reading the file.

use std::fs::File;

use cpp_demangle::DemangleOptions;

use crate::launch::elf::{self, Part, bytes_of, u16_at, u32_at, u64_at};

const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;
const HEADER_BYTES: u64 = 64;
const SYMBOL_BYTES: usize = 24;
/// Functions of a file; more than any program of note has.
const SYMBOLS_MAX: usize = 4 << 20;
/// Bytes of their names.
const NAMES_BYTES_MAX: u64 = 512 << 20;

/// The functions of a file.
pub struct Symbols {
    segments: Vec<Part>,
    /// Address, length, and where the name is; by address.
    functions: Vec<(u64, u64, usize)>,
    names: Vec<u8>,
}

impl Symbols {
    /// Reads them: the full table, or that of the dynamic linker if the file is stripped.
    pub fn read(path: &str) -> Option<Symbols> {
        let file = File::open(path).ok()?;
        let header = bytes_of(&file, 0, HEADER_BYTES)?;
        if &header[..5] != b"\x7fELF\x02" {
            return None;
        }
        let segments = elf::parts(&file, &header)?;
        let sections = elf::headers(&file, &header, [40, 58, 60])?;
        let of_kind = |kind| sections.iter().find(|section| u32_at(section, 4) == Some(kind));
        let symbols = of_kind(SHT_SYMTAB).or_else(|| of_kind(SHT_DYNSYM))?;
        let content = |section: &[u8], most: u64| {
            bytes_of(&file, u64_at(section, 24)?, u64_at(section, 32)?.min(most))
        };
        let names = content(sections.get(u32_at(symbols, 40)? as usize)?, NAMES_BYTES_MAX)?;
        let symbols = content(symbols, (SYMBOLS_MAX * SYMBOL_BYTES) as u64)?;
        let mut functions: Vec<(u64, u64, usize)> =
            symbols.chunks_exact(SYMBOL_BYTES).filter_map(function).collect();
        functions.sort_unstable();
        Some(Symbols { segments, functions, names })
    }

    /// The function at an offset of the file, as its author wrote it.
    pub fn name_at(&self, offset: u64) -> Option<String> {
        let address = elf::address_at(&self.segments, offset)?;
        let after = self.functions.partition_point(|(start, _, _)| *start <= address);
        let (start, length, name) = *self.functions.get(after.checked_sub(1)?)?;
        // A function in assembly often has no length.
        if length > 0 && address - start >= length {
            return None;
        }
        let name = self.names.get(name..)?.split(|byte| *byte == 0).next()?;
        let name = String::from_utf8_lossy(name);
        if let Ok(rust) = rustc_demangle::try_demangle(&name) {
            return Some(format!("{rust:#}"));
        }
        let options = DemangleOptions::new().no_params().no_return_type();
        let cpp = cpp_demangle::Symbol::new(name.as_bytes()).ok();
        let cpp = cpp.and_then(|cpp| cpp.demangle_with_options(&options).ok());
        Some(cpp.unwrap_or_else(|| name.into_owned()))
    }
}

/// A function that is in the file.
fn function(symbol: &[u8]) -> Option<(u64, u64, usize)> {
    const FUNCTION: u8 = 2;
    const INDIRECT_FUNCTION: u8 = 10;
    let kind = symbol.get(4)? & 15;
    let is_here = u16_at(symbol, 6)? != 0;
    let name = u32_at(symbol, 0)? as usize;
    (matches!(kind, FUNCTION | INDIRECT_FUNCTION) && is_here && name != 0).then_some((
        u64_at(symbol, 8)?,
        u64_at(symbol, 16)?,
        name,
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Numbers that look random, the same each time.
    pub(crate) fn noise() -> impl FnMut() -> u64 {
        let mut random: u64 = 88_172_645_463_325_252;
        move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        }
    }

    #[test]
    fn a_broken_file_gives_no_names_and_no_panic() {
        let whole = std::fs::read("/proc/self/exe").expect("exe");
        let path = std::env::temp_dir().join(format!("deepheap-elf-{}", std::process::id()));
        let shown = path.to_str().expect("utf8");
        let mut next = noise();
        for _ in 0..300 {
            let mut broken = whole[..4096].to_vec();
            for _ in 0..8 {
                let at = next() as usize % 200;
                broken[at] = next() as u8;
            }
            broken[..5].copy_from_slice(b"\x7fELF\x02");
            std::fs::write(&path, &broken).expect("write");
            if let Some(symbols) = Symbols::read(shown) {
                let _ = symbols.name_at(next() % 4096);
            }
        }
        std::fs::remove_file(&path).expect("remove");
    }
}
