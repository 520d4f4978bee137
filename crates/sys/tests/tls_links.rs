//! Thread area, linked: in an executable, and in a shared object that is dlopened or preloaded;
//! through another crate, in debug and in release with thin LTO. Builds crates of its own, so it is
//! run on request: `cargo test -p deepheap-sys --test tls_links -- --ignored`.

#![allow(clippy::unwrap_used)] // all of this file is a test

use std::path::{Path, PathBuf};
use std::process::Command;

const WORKSPACE: &str = r#"
[workspace]
resolver = "3"
members = ["between", "executable", "object"]
[profile.dev]
panic = "abort"
[profile.release]
panic = "abort"
lto = "thin"
codegen-units = 4
"#;

const BETWEEN: &str = r"
pub fn enter() -> u32 {
    let area = deepheap_sys::threads::tls::area();
    unsafe { (*area).depth += 1; (*area).depth }
}
#[inline]
pub fn depth() -> u32 { unsafe { (*deepheap_sys::threads::tls::area()).depth } }
";

/// Its own area first; then, told an object to open, that object's; then whose `getppid` there is.
const EXECUTABLE: &str = r#"
use std::ffi::{CString, c_char, c_int, c_void};
unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(object: *mut c_void, name: *const c_char) -> *mut c_void;
    fn getppid() -> c_int;
}
fn main() {
    assert_eq!((between::enter(), between::enter(), between::depth()), (1, 2, 2));
    std::thread::spawn(|| assert_eq!(between::depth(), 0)).join().unwrap();
    if let Some(object) = std::env::args().nth(1) {
        let object = CString::new(object).unwrap();
        unsafe {
            let object = dlopen(object.as_ptr(), 2);
            assert!(!object.is_null());
            let enter = dlsym(object, c"object_enter".as_ptr());
            let enter: extern "C" fn() -> u32 = std::mem::transmute(enter);
            assert_eq!((enter(), enter()), (1, 2));
            assert_eq!(std::thread::spawn(move || enter()).join().unwrap(), 1);
        }
        assert_eq!(between::depth(), 2, "the object has its own");
    }
    if std::env::var_os("LD_PRELOAD").is_some() {
        assert_eq!(unsafe { (getppid(), getppid()) }, (-1, -2));
    }
}
"#;

const OBJECT: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn object_enter() -> u32 { between::enter() }
#[unsafe(no_mangle)]
pub extern "C" fn getppid() -> i32 { -(between::enter() as i32) }
"#;

fn write_package(root: &Path, name: &str, file: &str, extra: &str, source: &str) {
    let sys = env!("CARGO_MANIFEST_DIR");
    let between = if name == "between" { "" } else { "between = { path = \"../between\" }" };
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{extra}\n\
         [dependencies]\ndeepheap-sys = {{ path = \"{sys}\" }}\n{between}\n"
    );
    std::fs::create_dir_all(root.join(name).join("src")).unwrap();
    std::fs::write(root.join(name).join("Cargo.toml"), manifest).unwrap();
    std::fs::write(root.join(name).join("src").join(file), source).unwrap();
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "builds crates of its own"]
fn the_area_links_and_works_in_executables_and_shared_objects() {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tls_links");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::write(root.join("Cargo.toml"), WORKSPACE).unwrap();
    write_package(&root, "between", "lib.rs", "", BETWEEN);
    write_package(&root, "executable", "main.rs", "", EXECUTABLE);
    write_package(&root, "object", "lib.rs", "[lib]\ncrate-type = [\"cdylib\"]", OBJECT);
    for (profile, options) in [("debug", &[][..]), ("release", &["--release"][..])] {
        let target = root.join("target");
        succeeds(
            Command::new(env!("CARGO"))
                .args(["build", "--offline", "--quiet"])
                .args(options)
                .current_dir(&root)
                .env("CARGO_TARGET_DIR", &target),
        );
        let executable = target.join(profile).join("executable");
        let object = target.join(profile).join("libobject.so");
        succeeds(&mut Command::new(&executable));
        succeeds(Command::new(&executable).arg(&object));
        succeeds(Command::new(&executable).env("LD_PRELOAD", &object));
    }
}
