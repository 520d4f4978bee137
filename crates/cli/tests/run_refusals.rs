//! What `deepheap run` refuses, before the program starts: status and message.

mod command;

use std::process::Output;

use command::{Folder, told};

const ELF_HEADER_BYTES: usize = 64;

#[track_caller]
fn assert_refused(output: &Output, status: i32, said: &[&str]) {
    let (code, out, err) = told(output);
    assert_eq!(code, Some(status), "{err}");
    assert_eq!(out, "", "the program must not have run");
    for words in said {
        assert!(err.contains(words), "'{words}' is not in: {err}");
    }
    assert!(!err.contains("panicked") && !err.contains("RUST_BACKTRACE"), "{err}");
}

/// An ELF header without program headers.
fn elf(machine: u16, class: u8) -> Vec<u8> {
    let mut bytes = vec![0; ELF_HEADER_BYTES];
    bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
    bytes[16] = 2;
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes
}

#[test]
fn options_that_cannot_be() {
    let folder = Folder::new();
    for (option, value, said) in [
        ("--ram", "lots", "'lots' is not a size"),
        ("--ram", "-1", "in --ram: ram '-1' is not a size: it is negative"),
        ("--ram", "1.5.5G", "in --ram: ram '1.5.5G' is not a size: its number has two points"),
        ("--store-size", "-1G", "it is negative"),
        ("--page-buffer", "-1G", "it is negative"),
        ("--ram", "8M", "give at least 16.0 MiB"),
        ("--ram", "0", "give at least 16.0 MiB"),
        ("--ram", "150%", "more than 100%"),
        ("--ram", "900T", "give less"),
        ("--objects", "128", "in --objects: objects '128' is not understood: write MIN-MAX"),
        ("--objects", "-5", "objects '-5' is not understood: write MIN-MAX"),
        ("--objects", "1500-100", "objects 1500-100 is impossible: give the smaller first"),
        ("--objects", "64-1M", "the largest object has 64.0 KiB"),
        ("--page-buffer", "200%", "1% to 100%"),
        ("--page-buffer", "4K", "give at least 2.00 MiB"),
        ("--store-size", "1K", "give at least"),
        ("--store-size", "101%", "1% to 100%"),
        ("--store-size", "4T", "free"),
        ("--store", "/does/not/exist", "create the folder"),
        ("--store", "", "in --store: store is empty: give a path"),
        ("--stats", "", "in --stats: stats is empty: give a path"),
        ("--store", "/dev/null", "no folder, file or block device"),
        ("--store", "/proc", "name a folder on an SSD"),
        ("--stats", "/does/not/exist.json", "a folder that exists"),
    ] {
        assert_refused(&folder.output(["run", option, value, "echo", "ran"]), 2, &[said]);
    }
    assert_refused(&folder.output(["run", "--bogus", "echo"]), 2, &["--bogus"]);
    assert_refused(&folder.output(["run"]), 2, &["PROGRAM"]);
}

#[test]
fn a_store_in_memory() {
    let folder = Folder::new();
    let said = ["/dev/shm", "memory itself", "--store"];
    assert_refused(&folder.output(["run", "--store", "/dev/shm", "echo", "ran"]), 2, &said);
    // $TMPDIR was not asked for in so many words: the working folder takes its place.
    let mut command = folder.deepheap();
    let output = command.env("TMPDIR", "/dev/shm").args(["run", "printenv", "DEEPHEAP_CONF"]);
    let (status, out, err) = told(&output.output().expect("start"));
    assert_eq!(status, Some(0), "{err}");
    assert!(out.contains(&*folder.path().to_string_lossy()), "{out}");
}

#[test]
fn a_store_file_that_is_somebodys() {
    let folder = Folder::new();
    let precious = folder.file("thesis", b"Chapter 1", 0o600);
    let open = folder.file("open", b"", 0o644);
    let store = |path: &std::path::Path| {
        folder.output(["run", "--store", path.to_str().expect("utf8"), "echo", "ran"])
    };
    assert_refused(&store(&precious), 2, &["holds data", "--force"]);
    assert_refused(&store(&open), 2, &["other users", "chmod 600"]);
    assert_eq!(std::fs::read(&precious).expect("read"), b"Chapter 1");
    let good = folder.file("good", b"", 0o600);
    assert_eq!(told(&store(&good)).1, "ran\n");
}

/// The command under limits that a shell sets first.
fn limited(folder: &Folder, limits: &str, arguments: &str) -> Output {
    let command = folder.deepheap();
    let program = command.get_program().to_str().expect("utf8");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("{limits}; exec {program} {arguments}")]);
    shell.current_dir(folder.path()).env_remove("DEEPHEAP_CONF").env_remove("TMPDIR");
    shell.output().expect("start a shell")
}

#[test]
fn limits_that_leave_too_little() {
    let folder = Folder::new();
    let run = "run --ram 64M --store . echo ran";
    for (limits, arguments, said) in [
        ("ulimit -n 20", run, &["ulimit -n is 20", "needs 64", "have root raise"][..]),
        ("ulimit -S -n 20", run, &["ulimit -n is 20", "needs 64", "ulimit -n 1024"]),
        ("ulimit -S -v 8000000", run, &["ulimit -v is 7.63 GiB", "ulimit -v unlimited"]),
        ("ulimit -S -f 2048", run, &["store '.' is limited to 1.00 MiB", "ulimit -f unlimited"]),
        (
            "ulimit -S -f 204800",
            "run --store . --store-size 1G echo ran",
            &["store '.' is limited to 100 MiB", "ulimit -f unlimited"],
        ),
    ] {
        assert_refused(&limited(&folder, limits, arguments), 2, said);
    }
    // A part of what is free is less under the limit, which is told.
    let (status, out, err) = told(&limited(&folder, "ulimit -S -f 204800", run));
    assert_eq!((status, out.as_str()), (Some(0), "ran\n"), "{err}");
    assert!(err.contains("is limited to 100 MiB") && err.contains("ulimit -f unlimited"), "{err}");
}

#[test]
fn doctor_survives_the_limits_that_it_tells() {
    let folder = Folder::new();
    let limits = "ulimit -S -n 20; ulimit -S -f 204800; ulimit -S -v 8000000";
    let (status, out, err) = told(&limited(&folder, limits, "doctor --store ."));
    assert_eq!((status, err.as_str()), (Some(1), ""), "{out}");
    for words in ["FAIL  open files", "FAIL  address space", "is limited to 100 MiB", "2 things"] {
        assert!(out.contains(words), "'{words}' is not in:\n{out}");
    }
}

#[test]
fn settings_of_the_environment() {
    let folder = Folder::new();
    for (variable, value, said) in [
        ("DEEPHEAP_CONF", "rma:2G", "there is no setting 'rma'"),
        ("DEEPHEAP_CONF", "ram", "key:value"),
        ("DEEPHEAP_CONF", "ram:64M,ram:64M", "ram is set twice: set it once"),
        ("DEEPHEAP_SHOW_STATS", "maybe", "write yes or no"),
    ] {
        let mut command = folder.deepheap();
        let output = command.env(variable, value).args(["run", "echo", "ran"]).output();
        assert_refused(&output.expect("start"), 2, &[said, &format!("in {variable}: ")]);
    }
}

#[test]
fn programs_that_are_not_there_or_not_executable() {
    let folder = Folder::new();
    let plain = folder.file("plain", b"#!/bin/sh\necho ran\n", 0o644);
    let plain = plain.to_str().expect("utf8");
    let here = folder.path().to_str().expect("utf8");
    assert_refused(&folder.output(["run", "no-such-program-here"]), 127, &["PATH"]);
    assert_refused(&folder.output(["run", "./no-such-program"]), 127, &["cannot find"]);
    assert_refused(&folder.output(["run", ""]), 127, &["empty"]);
    assert_refused(&folder.output(["run", plain]), 126, &["not executable", "chmod +x"]);
    assert_refused(&folder.output(["run", here]), 126, &["is a folder"]);
    let orphan = folder.file("orphan", b"#!/no/such/interpreter\n", 0o755);
    let orphan = folder.output(["run", orphan.to_str().expect("utf8")]);
    assert_refused(&orphan, 126, &["/no/such/interpreter"]);
}

#[test]
fn programs_into_which_nothing_can_be_preloaded() {
    let folder = Folder::new();
    let mut musl = elf(62, 2);
    musl[32..40].copy_from_slice(&(ELF_HEADER_BYTES as u64).to_le_bytes());
    musl[54..56].copy_from_slice(&56u16.to_le_bytes());
    musl[56..58].copy_from_slice(&1u16.to_le_bytes());
    let name = b"/lib/ld-musl-x86_64.so.1\0";
    let mut header = [0u8; 56];
    header[..4].copy_from_slice(&3u32.to_le_bytes());
    header[8..16].copy_from_slice(&(ELF_HEADER_BYTES as u64 + 56).to_le_bytes());
    header[32..40].copy_from_slice(&(name.len() as u64).to_le_bytes());
    musl.extend_from_slice(&header);
    musl.extend_from_slice(name);
    for (name, content, mode, said) in [
        ("static", elf(62, 2), 0o755, "statically linked"),
        ("arm", elf(183, 2), 0o755, "ARM64"),
        ("i386", elf(3, 1), 0o755, "32-bit x86"),
        ("musl", musl, 0o755, "musl"),
        ("setuid", std::fs::read("/bin/true").expect("true"), 0o4755, "setuid"),
        ("setgid", std::fs::read("/bin/true").expect("true"), 0o2755, "setgid"),
    ] {
        let program = folder.file(name, &content, mode);
        let output = folder.output(["run", program.to_str().expect("utf8")]);
        assert_refused(&output, 2, &[name, said]);
    }
    let script = format!("#!{}/static -e\n", folder.path().display());
    let script = folder.file("script", script.as_bytes(), 0o755);
    let output = folder.output(["run", script.to_str().expect("utf8")]);
    assert_refused(&output, 2, &["script", "which runs", "statically linked"]);
}

#[test]
fn a_program_with_address_sanitizer() {
    let folder = Folder::new();
    let source = folder.file("asan.c", b"int main(void) { return 0; }\n", 0o644);
    let program = folder.path().join("asan");
    let mut compiler = std::process::Command::new("gcc");
    compiler.arg("-fsanitize=address").arg("-o").arg(&program).arg(&source);
    assert!(compiler.status().expect("a C compiler").success());
    let output = folder.output(["run", program.to_str().expect("utf8")]);
    assert_refused(&output, 2, &["asan' is built with AddressSanitizer", "-fsanitize"]);
}

#[test]
fn a_missing_library() {
    let folder = Folder::new();
    let mut command = folder.deepheap();
    std::fs::remove_file(folder.path().join("libdeepheap_preload.so")).expect("remove");
    let output = command.args(["run", "echo", "ran"]).output().expect("start");
    assert_refused(&output, 2, &["libdeepheap_preload.so is missing", "cargo build"]);
}
