//! Sizes: a type has at most twelve fields and thirty methods, and its methods stand in at most
//! three files. What is larger is named here with its size, and may only become smaller.

use std::collections::{BTreeMap, BTreeSet};

use deepheap_checks::{SourceFile, files};

/// Crates that no product has in it.
const NO_PRODUCT: [&str; 5] = ["checks", "sim", "child", "load", "libload"];

/// Fields, methods, and files with methods.
type Size = [usize; 3];

const LIMITS: Size = [12, 30, 3];

/// Layouts of files and of shared memory, and tables of numbers: crate, name, size.
const TABLES: [(&str, &str, Size); 12] = [
    ("durable", "Inspection", [16, 0, 0]),
    ("heap", "Chunk", [15, 13, 1]),
    ("maps", "Header", [22, 0, 0]),
    ("maps", "LogWords", [19, 0, 0]),
    ("maps", "Shard", [13, 12, 1]),
    ("runtime", "Config", [24, 15, 2]),
    ("runtime", "Stats", [92, 10, 1]),
    ("runtime", "StatsPage", [14, 25, 1]),
    ("store", "Bytes", [22, 0, 0]),
    ("store", "Header", [14, 0, 0]),
    ("store", "StoreStats", [29, 0, 0]),
    ("store", "SuperblockBytes", [13, 0, 0]),
];

/// Types that do too much still: crate, name, size.
const LARGE: [(&str, &str, Size); 13] = [
    ("heap", "Heap", [8, 79, 6]),
    ("maps", "Log", [3, 21, 6]),
    ("maps", "Owned", [4, 25, 5]),
    ("maps", "Region", [9, 45, 12]),
    ("pager", "EvictionContext", [13, 9, 2]),
    ("pager", "Pager", [16, 240, 24]),
    ("residency", "Descriptor", [12, 34, 1]),
    ("residency", "ObjectTable", [14, 34, 3]),
    ("residency", "Ownership", [2, 31, 1]),
    ("runtime", "DurableHeap", [2, 25, 4]),
    ("store", "Blocks", [8, 25, 4]),
    ("store", "Space", [12, 49, 4]),
    ("store", "Store", [10, 83, 8]),
];

/// Whether a line of a body, four columns in, begins a method.
fn is_method(line: &str) -> bool {
    let Some(mut rest) = line.strip_prefix("    ") else { return false };
    if let Some(public) = rest.strip_prefix("pub(") {
        rest = public.split_once(") ").map_or("", |(_, rest)| rest);
    }
    loop {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "fn" => return true,
            "pub" | "const" | "unsafe" | "async" | "extern" | "\"C\"" => rest = after,
            _ => return false,
        }
    }
}

/// Whether a line of a body, four columns in, is a field.
fn is_field(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("    ") else { return false };
    let name = rest.rsplit_once(") ").filter(|(public, _)| public.starts_with("pub("));
    let name = name.map_or(rest, |(_, rest)| rest);
    let name = name.strip_prefix("pub ").unwrap_or(name);
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
    end > 0 && name[end..].starts_with(": ")
}

/// The type whose methods `impl` gives, if it is no trait's.
fn implemented(header: &str) -> Option<&str> {
    let rest = header.strip_prefix("impl")?;
    if header.contains(" for ") {
        return None;
    }
    let mut depth = 0;
    let after_parameters = rest.find(|c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0 && c == ' '
    })?;
    let name = &rest[after_parameters + 1..];
    Some(&name[..name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len())])
}

/// The size of each type of the product, by crate and name.
fn sizes(sources: &[SourceFile]) -> BTreeMap<(String, String), Size> {
    let mut sizes: BTreeMap<(String, String), Size> = BTreeMap::new();
    let mut places: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        let Some((room, path)) = source
            .path
            .strip_prefix("crates/")
            .and_then(|path| path.split_once("/src/"))
            .filter(|(room, path)| {
                !NO_PRODUCT.contains(room) && !path.contains("test") && !path.contains("schedules")
            })
        else {
            continue;
        };
        let code = source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let words = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub "));
            let words = words.unwrap_or(line);
            let (name, of) = if let Some(rest) = words.strip_prefix("struct ") {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                (Some(&rest[..end.unwrap_or(rest.len())]), 0)
            } else {
                (implemented(words), 1)
            };
            let Some(name) = name.filter(|_| !line.ends_with([';', '}'])) else { continue };
            let key = (room.to_string(), name.to_string());
            let is_one = [is_field, is_method][of];
            let body = lines.by_ref().take_while(|line| *line != "}" && *line != ");");
            let count = body.filter(|line| is_one(line)).count();
            let size = sizes.entry(key.clone()).or_default();
            size[of] += count;
            if of == 1 && count > 0 {
                let places = places.entry(key).or_default();
                places.insert(path);
                size[2] = places.len();
            }
        }
    }
    sizes
}

/// Types over a limit, as the table would name them.
fn large(sources: &[SourceFile]) -> Vec<String> {
    let over = |size: &Size| size.iter().zip(&LIMITS).any(|(size, limit)| size > limit);
    let large = sizes(sources).into_iter().filter(|(_, size)| over(size));
    let mut large: Vec<String> =
        large.map(|((room, name), size)| format!("(\"{room}\", \"{name}\", {size:?}),")).collect();
    large.sort();
    large
}

#[test]
fn no_type_is_larger_than_the_limits_or_than_it_was() {
    let mut named: Vec<String> = TABLES
        .iter()
        .chain(&LARGE)
        .map(|(room, name, size)| format!("(\"{room}\", \"{name}\", {size:?}),"))
        .collect();
    named.sort();
    let found = large(&files(&["rs"]));
    assert!(
        found == named,
        "fields, methods, files: make a type smaller, or a table shorter. Found:\n{}",
        found.join("\n")
    );
}

#[test]
fn canary_large_types_are_caught() {
    let file = |path: &str, text: String| SourceFile { path: path.into(), text };
    let fields: String = (0..13).map(|n| format!("    pub(crate) f{n}: u8,\n")).collect();
    let methods: String =
        (0..16).map(|n| format!("    pub const unsafe fn m{n}() {{\n    }}\n")).collect();
    let sources = [
        file("crates/x/src/a.rs", format!("pub struct A<T> {{\n{fields}}}\n")),
        file("crates/x/src/b.rs", format!("impl<T: Into<u8>> B<T> {{\n{methods}}}\n")),
        file("crates/x/src/c.rs", format!("impl B<u8>\nwhere\n{{\n{methods}}}\n")),
        file("crates/x/src/d.rs", format!("impl fmt::Display for B {{\n{methods}}}\n")),
        file("crates/x/src/tests.rs", format!("impl B {{\n{methods}}}\n")),
        file("crates/sim/src/e.rs", format!("impl B {{\n{methods}}}\n")),
    ];
    assert_eq!(large(&sources), ["(\"x\", \"A\", [13, 0, 0]),", "(\"x\", \"B\", [0, 32, 2]),"]);
}
