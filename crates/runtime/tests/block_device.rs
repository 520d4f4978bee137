//! Block device: a store on one, and that the device learns what is free. Needs root and a free
//! loop device, and says so if there is none.

mod scene;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scene::memory::{Collection, seed};
use scene::process::{run, soon};
use scene::{Folder, is_played, play};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);
/// Where a scene finds its device.
const DEVICE: &str = "DEEPHEAP_TEST_DEVICE";

/// A loop device over a sparse file, detached in the end.
struct Loop {
    device: String,
    _folder: Folder,
}

impl Loop {
    fn new(test: &str) -> Option<Loop> {
        let folder = Folder::new(&format!("loop-{test}"));
        let file = folder.path().join("disk");
        let disk = std::fs::File::create(&file).expect("a file");
        disk.set_len(512 * MIB).expect("a sparse file");
        let path = file.to_str().expect("a path");
        match run("losetup", &["--find", "--show", path]) {
            Ok(device) => Some(Loop { device, _folder: folder }),
            Err(error) => {
                eprintln!("not tested: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.device]);
    }
}

/// Bytes of disk that the file behind a loop device takes.
fn disk_bytes(device: &Path) -> u64 {
    let name = device.file_name().expect("a name").to_string_lossy().into_owned();
    let file = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
    std::fs::metadata(file.expect("a loop device").trim()).expect("the file").blocks() * 512
}

#[test]
fn a_block_device_learns_what_is_free() {
    const NAME: &str = "a_block_device_learns_what_is_free";
    let own = if is_played(NAME) { None } else { Loop::new(NAME) };
    let device = match &own {
        Some(own) => PathBuf::from(&own.device),
        None if is_played(NAME) => PathBuf::from(std::env::var_os(DEVICE).expect("a device")),
        None => return,
    };
    // SAFETY: the scene inherits it; no other test of this file looks at it.
    unsafe { std::env::set_var(DEVICE, &device) };
    let conf = format!("ram:32M,compress:off,store:{}", device.display());
    play(NAME, &conf, || {
        let stats = || deepheap::stats().expect("stats");
        let data = Collection::filled(seed(), 150, MIB as usize);
        let kept = Collection::filled(seed() + 1, 5, MIB as usize);
        let full = disk_bytes(&device);
        assert!(full > 100 * MIB, "{full} bytes: {:?}", stats());
        let free = data.free();
        let is_less = || disk_bytes(&device) < full / 2;
        assert!(soon(PATIENCE, is_less), "{} of {full} bytes: {:?}", disk_bytes(&device), stats());
        let told = stats();
        assert!(told.discards > 0 && told.discarded_bytes > full / 4, "{told:?}");
        drop(free);
        kept.check();
    });
}
