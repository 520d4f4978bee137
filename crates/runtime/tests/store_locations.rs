//! Where a store may be: a block device, if nothing that is somebody's is on it; and a folder of an
//! ordinary user's, for a program of that user's.

mod scene;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use deepheap::Config;
use deepheap::internal::store_location::StoreLocation;
use scene::memory::{Collection, PAGE, seed};
use scene::process::{run, soon};
use scene::{Folder, act, finish, is_played, spawn, this_binary};

/// The user whom nothing belongs to.
const NOBODY: u32 = 65_534;
/// In the environment of a scene: its store.
const PLACE: &str = "DEEPHEAP_TEST_PLACE";

/// A block device of zeros, over a file; gone in the end.
struct BlockDevice {
    path: String,
    folder: Folder,
}

impl BlockDevice {
    /// None, and why, where that is not allowed.
    fn new(name: &str, bytes: u64) -> Result<BlockDevice, String> {
        let folder = Folder::new(name);
        let image = folder.path().join("image");
        let file = fs::File::create(&image).and_then(|file| file.set_len(bytes));
        file.map_err(|error| error.to_string())?;
        let path = run("losetup", &["--find", "--show", &image.to_string_lossy()])?;
        Ok(BlockDevice { path, folder })
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.path]);
    }
}

/// A file system on a device, mounted; unmounted in the end.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &str, at: &Path) -> Result<Mounted, String> {
        fs::create_dir_all(at).map_err(|error| error.to_string())?;
        run("mount", &[device, &at.to_string_lossy()])?;
        Ok(Mounted(at.to_path_buf()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run("umount", &[&self.0.to_string_lossy()]);
    }
}

/// The location of the store, as it is found now.
fn find_now(config: &Config) -> Result<StoreLocation, String> {
    StoreLocation::find(config).map_err(|error| error.to_string())
}

/// The location of the store. Daemons look at what is new on a device, and lock it meanwhile.
fn find_location(config: &Config) -> Result<StoreLocation, String> {
    let mut found = Err(String::new());
    soon(Duration::from_secs(60), || {
        found = find_now(config);
        !found.as_ref().is_err_and(|error| error.contains("used by another process"))
    });
    found
}

/// In a scene: more than its RAM holds, into the store and back.
fn fill_and_check() -> ! {
    let location = std::env::var(PLACE).expect("a store");
    act(&format!("ram:16M,store:{location},store_size:128M"), || {
        let data = Collection::filled(seed(), 15_000, PAGE);
        data.check();
        data.check();
        let stats = deepheap::stats().expect("it runs");
        assert!(stats.device_write_bytes > 16 << 20, "{} bytes", stats.device_write_bytes);
    });
}

#[test]
fn a_block_device_keeps_what_ram_does_not_hold() {
    const NAME: &str = "a_block_device_keeps_what_ram_does_not_hold";
    if is_played(NAME) {
        fill_and_check();
    }
    let device = match BlockDevice::new(NAME, 160 << 20) {
        Ok(device) => device,
        Err(reason) => return eprintln!("SKIPPED {NAME}: needs root and a loop device: {reason}"),
    };
    // Again where an earlier store was.
    for _ in 0..2 {
        let mut command = Command::new(this_binary());
        command.env(PLACE, &device.path);
        let ending = finish(NAME, spawn(NAME, device.folder.path(), command));
        assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
    }
}

#[test]
fn a_block_device_with_something_on_it_is_taken_by_force_only_and_a_mounted_one_never() {
    const NAME: &str = "a_block_device_with_something_on_it";
    let device = match BlockDevice::new(NAME, 64 << 20) {
        Ok(device) => device,
        Err(reason) => return eprintln!("SKIPPED {NAME}: needs root and a loop device: {reason}"),
    };
    let path = device.path.as_str();
    let config = |more: &str| {
        let config = Config::parse(&format!("store:{path},store_size:32M{more}"));
        config.expect("settings")
    };
    let find = |more: &str| find_location(&config(more));
    let is_refused = |found: Result<StoreLocation, String>, words: &[&str]| {
        let error = found.expect_err("it is somebody's");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    let refused = |more: &str, words: &[&str]| is_refused(find(more), words);
    let taken = Ok(StoreLocation::Device(PathBuf::from(path)));
    assert_eq!(find(""), taken, "zeros");
    run("mkswap", &[path]).expect("mkswap");
    refused("", &[path, "swap space", "--force"]);
    assert_eq!(find(",force:yes"), taken);
    run("mkfs.ext4", &["-q", "-F", path]).expect("mkfs.ext4");
    refused("", &[path, "ext2/3/4", "--force"]);
    assert_eq!(find(",force:yes"), taken);
    let _mounted = Mounted::new(path, &device.folder.path().join("mount")).expect("mount");
    // It is in use for as long as it is mounted.
    is_refused(find_now(&config("")), &[path, "mounted"]);
    is_refused(find_now(&config(",force:yes")), &[path, "mounted"]);
}

#[test]
fn a_share_of_a_device_is_taken_if_a_store_fits() {
    const NAME: &str = "a_share_of_a_device_is_taken_if_a_store_fits";
    let device = match BlockDevice::new(NAME, 100 << 20) {
        Ok(device) => device,
        Err(reason) => return eprintln!("SKIPPED {NAME}: needs root and a loop device: {reason}"),
    };
    let capacity = |share: &str| {
        let config = Config::parse(&format!("store:{},store_size:{share}", device.path));
        let config = config.expect("settings");
        find_location(&config).map(|location| location.capacity_bytes(&config))
    };
    assert_eq!(capacity("25%"), Ok(Some(25 << 20)));
    assert_eq!(capacity("100%"), Ok(Some(100 << 20)));
    let refused = capacity("15%").expect_err("15 MiB are too little");
    let words = [device.path.as_str(), "only 100 MiB free", "15%", "a larger --store-size"];
    assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
}

#[test]
fn a_program_of_an_ordinary_user_outgrows_ram() {
    const NAME: &str = "a_program_of_an_ordinary_user_outgrows_ram";
    if is_played(NAME) {
        // SAFETY: no arguments.
        assert_ne!(unsafe { libc::geteuid() }, 0);
        fill_and_check();
    }
    let folder = Folder::new(NAME);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
    let mut command = Command::new(this_binary());
    command.env(PLACE, folder.path());
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let ending = finish(NAME, spawn(NAME, folder.path(), command));
    assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
}
