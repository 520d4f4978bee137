//! Build script: gives the shared library its soname, `libdeepheap.so.0`, and makes it stay.
//!
//! Guarantees: the number is the major version, in 0.x too: programs linked with one release run
//! with every later one of this number, as CHANGELOG.md promises. `dlclose` does not unload the
//! library: its threads and its signal handler serve memory that the program may still hold.

fn main() {
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdeepheap.so.{major}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
