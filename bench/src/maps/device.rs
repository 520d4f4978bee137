//! Device: the same file without a mapping, read past the page cache: what no mapper can surpass.
//!
//! Guarantees: as many reads at a time as there are threads; a scan has four reads of a MiB.
//! Threads: as many as asked, of random reads; four of a scan.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use deepheap_load::histogram::Histogram;

use super::case::{Load, Maps, Measured, PAGE};
use super::loads::{compare, in_threads};
use crate::failure::Failure;
use crate::signals;

/// Bytes of a read of a scan, and reads at a time.
const PIECE: usize = 1 << 20;
const AT_ONCE: u64 = 4;

/// Reads the file.
pub fn run(maps: &Maps, path: &Path, threads: u64) -> Result<Measured, Failure> {
    let failed = |error: std::io::Error| Failure::os(path.display(), &error);
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
    let file = file.map_err(failed)?;
    match maps.load {
        Load::Scan => scan(maps, &file).map_err(failed),
        Load::Touch => in_threads(maps, threads, |random| {
            let page = random.below(maps.data / PAGE as u64);
            let mut room = [0; 2 * PAGE];
            let bytes = aligned(&mut room, PAGE);
            file.read_exact_at(bytes, page * PAGE as u64).map_err(failed)?;
            compare(page, u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default()))
        }),
        Load::Gather | Load::Minor => {
            Err(Failure::Refused("--on device: --load is touch or scan".into()))
        }
    }
}

/// The part of a buffer that begins at a page.
fn aligned(room: &mut [u8], bytes: usize) -> &mut [u8] {
    let start = room.as_ptr().align_offset(PAGE);
    &mut room[start..start + bytes]
}

fn scan(maps: &Maps, file: &File) -> std::io::Result<Measured> {
    let began = Instant::now();
    let read = |thread: u64| -> std::io::Result<Histogram> {
        let mut room = vec![0; PIECE + PAGE];
        let bytes = aligned(&mut room, PIECE);
        let mut times = Histogram::default();
        for piece in (thread..maps.data / PIECE as u64).step_by(AT_ONCE as usize) {
            let started = Instant::now();
            file.read_exact_at(bytes, piece * PIECE as u64)?;
            let pages = (PIECE / PAGE) as u64;
            times.record(started.elapsed().as_nanos() as u64 / pages, pages);
            if signals::interrupted().is_err() {
                break;
            }
        }
        Ok(times)
    };
    let mut times = Histogram::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..AT_ONCE).map(|thread| scope.spawn(move || read(thread))).collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = |_| Err(std::io::Error::other("a thread ended"));
            thread.join().unwrap_or_else(ended).map(|of_thread| times.merge(&of_thread))
        })
    })?;
    Ok((times, began.elapsed().as_secs_f64()))
}
