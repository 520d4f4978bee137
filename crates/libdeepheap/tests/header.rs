//! The headers: `include/deepheap.h` and what it includes say what the library does, word for word.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod toolchain;

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::process::Command;

use toolchain::{Standard, assert_compiles, assert_compiles_with, library_folder, root};

/// `deepheap.h` and the headers that it includes.
fn header() -> String {
    let names = ["deepheap.h", "deepheap/memory.h", "deepheap/durable.h", "deepheap/map.h"];
    names.map(|name| read_to_string(root().join("include").join(name)).unwrap()).concat()
}

/// The headers without comments and preprocessor lines, spaces made single.
fn declarations() -> Vec<String> {
    let header = header();
    let mut code = String::new();
    let mut rest = header.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").unwrap().1;
    }
    code.push_str(rest);
    let code: Vec<&str> = code
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("extern \"C\""))
        .collect();
    single_spaced(&code.join("\n")).split_inclusive(';').map(|text| text.trim().into()).collect()
}

fn single_spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Function declarations of the header, attributes taken off.
fn declared_functions() -> BTreeSet<String> {
    let attributes = |text: &str| {
        let end = text.find(" DH_").unwrap_or(text.len());
        text[..end].trim_end_matches(';').to_owned()
    };
    declarations()
        .iter()
        .filter(|text| text.contains('(') && text.contains("dh_"))
        .map(|text| attributes(text))
        .collect()
}

/// Function definitions of the Rust sources, in the words of C.
fn exported_functions() -> BTreeSet<String> {
    let mut functions = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("crates/capi/src")).unwrap() {
        let source = single_spaced(&read_to_string(entry.unwrap().path()).unwrap());
        for definition in source.split("extern \"C\" fn ").skip(1) {
            let (signature, _) = definition.split_once(" {").unwrap();
            let (name, rest) = signature.split_once('(').unwrap();
            let (arguments, result) = rest.rsplit_once(')').unwrap();
            let arguments: Vec<String> = arguments
                .trim_matches([',', ' '])
                .split(", ")
                .filter_map(|argument| argument.split_once(": "))
                .map(|(name, rust)| declarator(rust, name))
                .collect();
            let arguments = if arguments.is_empty() { "void".into() } else { arguments.join(", ") };
            let result = result.strip_prefix(" -> ").unwrap_or("()");
            functions.insert(declarator(result, &format!("{name}({arguments})")));
        }
    }
    functions
}

/// A C declarator for a name of a Rust type.
fn declarator(rust: &str, name: &str) -> String {
    if rust == "*const *mut c_void" {
        return format!("void *const {name}[]");
    }
    let c = match rust {
        "()" => "void ",
        "c_int" => "int ",
        "usize" => "size_t ",
        "isize" => "ssize_t ",
        "u32" => "uint32_t ",
        "u64" => "uint64_t ",
        "Latency" => "struct dh_latency ",
        "*mut c_void" => "void *",
        "*const c_void" => "const void *",
        "*mut c_char" => "char *",
        "*const c_char" => "const char *",
        "*mut Stats" => "struct dh_stats *",
        "*mut u64" => "uint64_t *",
        "*mut Heap" => "dh_heap *",
        "*mut MapStats" => "struct dh_map_stats *",
        "*mut CheckpointInfo" => "struct dh_checkpoint *",
        other => panic!("no C type is known for {other}"),
    };
    format!("{c}{name}")
}

/// Fields of a struct of the header.
fn declared_fields(name: &str) -> Vec<String> {
    let all = declarations().join(" ");
    let opening = format!("struct {name} {{ ");
    let (_, body) = all.split_once(&opening).unwrap_or_else(|| panic!("{opening} is missing"));
    let (body, _) = body.split_once('}').unwrap();
    body.split(';').map(str::trim).filter(|field| !field.is_empty()).map(Into::into).collect()
}

/// Fields of a struct of a Rust source below crates/, in the words of C.
fn defined_fields(file: &str, name: &str) -> Vec<String> {
    let source = read_to_string(root().join("crates").join(file)).unwrap();
    let opening = format!("pub struct {name} {{\n");
    let (before, body) = source.split_once(&opening).unwrap();
    let attributes = before.rsplit("\n\n").next().unwrap();
    assert!(attributes.contains("#[repr(C)]"), "{name} is not repr(C)");
    let (body, _) = body.split_once("\n}").unwrap();
    body.lines()
        .filter_map(|line| line.trim().strip_prefix("pub ")?.strip_suffix(','))
        .map(|field| field.split_once(": ").unwrap())
        .map(|(name, rust)| declarator(rust, name))
        .collect()
}

/// Name and value of every constant that a text defines, `before` and `after` its name.
fn constants(text: &str, before: &str, after: &str) -> BTreeSet<(String, i32)> {
    text.split(before)
        .skip(1)
        .filter_map(|code| {
            let (name, rest) = code.split_once(after)?;
            let value: String =
                rest.chars().take_while(|c| c.is_ascii_digit() || *c == '-').collect();
            Some((name.trim().to_owned(), value.parse().ok()?))
        })
        .filter(|(name, _)| name.chars().all(char::is_alphanumeric) && name != "OK")
        .collect()
}

#[test]
fn declarations_are_the_definitions() {
    let declared = declared_functions();
    assert!(declared.len() >= 10, "the parser found only {declared:#?}");
    assert_eq!(declared, exported_functions());
}

#[test]
fn structs_are_the_library_s() {
    for (declared, file, defined) in [
        ("dh_latency", "runtime/src/stats.rs", "Latency"),
        ("dh_stats", "runtime/src/stats.rs", "Stats"),
        ("dh_checkpoint", "capi/src/durable.rs", "CheckpointInfo"),
        ("dh_map_stats", "maps/src/calls/access.rs", "Stats"),
    ] {
        assert_eq!(declared_fields(declared), defined_fields(file, defined));
    }
}

#[test]
fn error_codes_and_advice_are_the_library_s() {
    let header = header();
    let declared = constants(&header, " DH_", " = ");
    let mut defined = BTreeSet::new();
    for file in ["error.rs", "objects.rs"] {
        let source = read_to_string(root().join("crates/capi/src").join(file)).unwrap();
        let found = constants(&source, "const DH_", ": c_int = ");
        assert!(found.len() >= 4, "the parser found only {found:?} in {file}");
        defined.extend(found);
    }
    assert_eq!(declared, defined);
}

#[test]
fn version_is_the_package_s() {
    let header = header();
    for (name, value) in [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        assert!(header.contains(&format!("#define DH_VERSION_{name} {value}\n")), "{name}");
    }
}

#[test]
fn library_exports_the_declared_and_nothing_else() {
    let library = library_folder().join("libdeepheap.so");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output().unwrap();
    let symbols = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<&str> =
        symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let functions = declared_functions();
    let declared: BTreeSet<&str> = functions
        .iter()
        .map(|text| text.split('(').next().unwrap())
        .map(|text| text.rsplit([' ', '*']).next().unwrap())
        .collect();
    assert_eq!(exported, declared);
}

#[test]
fn soname_carries_the_major_version() {
    let library = library_folder().join("libdeepheap.so");
    let output = Command::new("readelf").arg("-d").arg(&library).output().unwrap();
    let soname = concat!("libdeepheap.so.", env!("CARGO_PKG_VERSION_MAJOR"));
    assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("soname: [{soname}]")));
}

#[test]
fn header_stands_alone_in_every_standard() {
    for standard in Standard::ALL {
        let source = "#include \"deepheap.h\"\n#include \"deepheap.h\"\n\
                      int main(void) { struct dh_stats s; return dh_stats(&s, sizeof s); }\n";
        assert_compiles(standard, source);
        for name in ["memory", "durable", "map"] {
            let source =
                format!("#include \"deepheap/{name}.h\"\nint main(void) {{ return DH_OK; }}\n");
            assert_compiles(standard, &source);
        }
    }
    for standard in Standard::ALL {
        let headers = ["nvmalloc", "ssdalloc", "nvmalloc", "ssdalloc"];
        let headers = headers.map(|name| format!("#include \"deepheap/{name}.h\"\n")).concat();
        let source = headers + "int main(void) { ssd_free(nv_malloc(1)); return 0; }\n";
        assert_compiles(standard, &source);
    }
    for standard in [Standard::Cxx17, Standard::Cxx20] {
        let source = "#include \"deepheap.hpp\"\n#include \"deepheap.hpp\"\n\
                      int main() { return deepheap::resource() == nullptr; }\n";
        assert_compiles(standard, source);
        assert_compiles_with(standard, &["-fno-rtti"], source);
    }
}
