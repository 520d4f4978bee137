//! Store: free space, O_DIRECT and the speed of the device at the store's location.
//!
//! Guarantees: measures on an unlinked file of its own, or reads only, on a block device.
//! Never: writes to a block device or an existing file; takes longer than `MEASURE_MAX` a part.
//! Threads: one, at start-up.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use deepheap::Config;
use deepheap::internal::obstacles::Finding;
use deepheap::internal::stats_report::{bytes, count, duration};
use deepheap::internal::store_location::{Disk, StoreLocation};
use deepheap_sys::Result;
use deepheap_sys::files::direct_file::DirectFile;

/// Time for each of the two measurements.
const MEASURE_MAX: Duration = Duration::from_millis(700);
/// The file written to measure, at most this many blocks long.
const WRITES_MAX: u64 = 256;
/// Bytes of one sequential write.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes of one random read.
const READ_BYTES: usize = 4096;
/// Fewer random reads a second come from no SSD.
const READS_OF_AN_SSD: f64 = 1500.0;

/// Aligned for O_DIRECT on every device.
#[repr(C, align(4096))]
struct Buffer([u8; WRITE_BYTES]);

/// Examines the location that a config means.
pub fn examine_store(config: &Config, tell: &mut dyn FnMut(Finding)) {
    let location = match StoreLocation::find(config) {
        Ok(location) => location,
        Err(error) => {
            let text = format!("'{}' {}", error.path.display(), error.problem);
            return tell(Finding::fail("store", text, error.fix));
        }
    };
    let shown = location.path().display();
    tell(Finding::pass(
        "store",
        match &location {
            StoreLocation::Folder(_) => format!("an unlinked file in {shown}"),
            StoreLocation::File(_) => format!("the file {shown}"),
            StoreLocation::Device(_) => format!("the block device {shown}"),
        },
    ));
    location.disk().into_iter().for_each(|disk| tell(rotation(&disk)));
    tell(space(&location, config));
    let opened = match &location {
        // Beside the file, on the same device: its content stays as it is.
        StoreLocation::File(file) => StoreLocation::Folder(folder_of(file)).open(false),
        // A device was found fit, and is only read.
        StoreLocation::Folder(_) | StoreLocation::Device(_) => location.open(true),
    };
    match opened {
        Ok(file) => {
            tell(direct(&file));
            tell(speed(&location, &file));
        }
        Err(error) => tell(Finding::fail(
            "O_DIRECT",
            format!("the store cannot be opened ({error})"),
            "name another folder on an SSD, or a device that nobody uses, with --store",
        )),
    }
}

fn folder_of(file: &Path) -> PathBuf {
    match std::path::absolute(file).ok().as_deref().and_then(Path::parent) {
        Some(folder) => folder.to_path_buf(),
        None => PathBuf::from("."),
    }
}

fn space(location: &StoreLocation, config: &Config) -> Finding {
    const NAME: &str = "store space";
    let Some(available) = location.available_bytes() else {
        return Finding::pass(NAME, "the file system does not tell its free space");
    };
    let mut text = format!("{} free", bytes(available));
    let floor = location.floor_bytes(config);
    if floor > 0 {
        text += &format!(", of which {} stay free", bytes(floor));
    }
    if let Some((problem, fix)) = location.shortened_by_limit(config) {
        return Finding::warn(NAME, format!("{text}, but the store {problem}"), fix);
    }
    if available >= config.ram {
        return Finding::pass(NAME, text);
    }
    Finding::warn(
        NAME,
        format!("{text}, less than the RAM budget of {}", bytes(config.ram)),
        "free some space, or name a larger SSD with --store: the heap cannot grow beyond it",
    )
}

/// Virtual disks often say that they rotate, whatever they are on: the speed warns, not this.
fn rotation(disk: &Disk) -> Finding {
    let name = &disk.name;
    let text = match disk.rotates {
        false => format!("{name} does not rotate"),
        true => {
            format!("{name} rotates, says the kernel; a virtual disk may be an SSD all the same")
        }
    };
    Finding::pass("store device", text)
}

fn direct(file: &DirectFile) -> Finding {
    if file.is_direct() {
        return Finding::pass("O_DIRECT", "the page cache is bypassed");
    }
    Finding::warn(
        "O_DIRECT",
        "this file system refuses it, so the page cache takes memory beside the budget",
        "name a folder on ext4, xfs or btrfs, or a block device, with --store",
    )
}

fn speed(location: &StoreLocation, file: &DirectFile) -> Finding {
    const NAME: &str = "store speed";
    match measure(location, file) {
        Ok((reads, written)) => {
            let (number, each) = (count(reads as u64), duration((1e9 / reads) as u64));
            let mut text = format!("{number} random 4 KiB reads a second, {each} each");
            if let Some(rate) = written {
                text += &format!("; writes {} a second", bytes(rate as u64));
            }
            if reads >= READS_OF_AN_SSD {
                return Finding::pass(NAME, text);
            }
            Finding::warn(NAME, text, "name a folder on an SSD with --store: this one is slow")
        }
        Err(error) => Finding::fail(
            NAME,
            format!("reading or writing failed ({error})"),
            "check the device (dmesg), or name another folder with --store",
        ),
    }
}

/// Reads a second, and bytes written a second where that is allowed.
fn measure(location: &StoreLocation, file: &DirectFile) -> Result<(f64, Option<f64>)> {
    let mut buffer = Box::new(Buffer([0x5a; WRITE_BYTES]));
    let (len, written) = match location {
        StoreLocation::Device(_) => (file.len()?, None),
        StoreLocation::Folder(_) | StoreLocation::File(_) => {
            let (written, rate) = write_speed(location, file, &mut buffer)?;
            (written, Some(rate))
        }
    };
    Ok((read_speed(file, len / READ_BYTES as u64, &mut buffer)?, written))
}

fn write_speed(
    location: &StoreLocation,
    file: &DirectFile,
    buffer: &mut Buffer,
) -> Result<(u64, f64)> {
    let most = location.file_size_limit().map_or(u64::MAX, |limit| limit.soft);
    let room = location.available_bytes().unwrap_or(u64::MAX) / 4;
    let writes = (room.min(most) / WRITE_BYTES as u64).clamp(1, WRITES_MAX);
    let begun = Instant::now();
    let mut done = 0;
    while done < writes && (done == 0 || begun.elapsed() < MEASURE_MAX) {
        // Never the same bytes twice: some devices compress or deduplicate.
        scramble(&mut buffer.0, done);
        file.write_at(&buffer.0, done * WRITE_BYTES as u64)?;
        done += 1;
    }
    let bytes = done * WRITE_BYTES as u64;
    Ok((bytes, bytes as f64 / begun.elapsed().as_secs_f64()))
}

fn read_speed(file: &DirectFile, blocks: u64, buffer: &mut Buffer) -> Result<f64> {
    let begun = Instant::now();
    let (mut done, mut random) = (0u64, 0x9e37_79b9_7f4a_7c15u64);
    while done == 0 || begun.elapsed() < MEASURE_MAX {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let block = (random >> 33) % blocks.max(1);
        file.read_at(&mut buffer.0[..READ_BYTES], block * READ_BYTES as u64)?;
        done += 1;
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

/// Makes every 8 bytes of the buffer differ from those of other seeds.
fn scramble(bytes: &mut [u8], seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in bytes.chunks_exact_mut(8) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        word.copy_from_slice(&random.to_le_bytes());
    }
}
