//! Scene: files, maps and processes for the tests of maps.

#![allow(dead_code, unused_imports, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, Once};

pub use deepheap_child::{fork as process, kill, wait as ended};
use deepheap_maps::{self as maps, MapError, Request, Writes};
use deepheap_sys::faults::fault_signal;

pub const PAGE: usize = 4096;
/// A word is at so many places of a page.
pub const WORDS: usize = PAGE / 8;

static ALONE: Mutex<()> = Mutex::new(());
static INSTALL: Once = Once::new();
static NUMBER: AtomicU32 = AtomicU32::new(0);

extern "C" fn prepare() {
    maps::fork_prepare();
}
extern "C" fn parent() {
    // SAFETY: between the two, this thread has forked.
    unsafe { maps::fork_parent() };
}
extern "C" fn child() {
    // SAFETY: as above.
    unsafe { maps::fork_child() }.expect("the child joins its maps");
}

/// One test at a time: they fork, and count what is in RAM. Installs what a program has.
pub fn alone() -> MutexGuard<'static, ()> {
    INSTALL.call_once(|| {
        fault_signal::install(maps::on_fault).unwrap();
        // SAFETY: handlers of the right kind.
        assert_eq!(0, unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) });
    });
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A file that is removed with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A file of so many bytes; the words of page p are p << 16 + their index.
    pub fn numbered(bytes: usize) -> Scratch {
        let scratch = Scratch::zeros(bytes);
        let file = scratch.open();
        let mut page = Vec::with_capacity(PAGE);
        for start in (0..bytes).step_by(PAGE) {
            page.clear();
            for word in 0..WORDS {
                page.extend(number_at(start / PAGE, word).to_le_bytes());
            }
            file.write_all_at(&page[..PAGE.min(bytes - start)], start as u64).unwrap();
        }
        scratch
    }

    /// A file of zeros.
    pub fn zeros(bytes: usize) -> Scratch {
        let number = NUMBER.fetch_add(1, SeqCst);
        let name = format!("map-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        File::create(&path).unwrap().set_len(bytes as u64).unwrap();
        Scratch(path)
    }

    pub fn open(&self) -> File {
        File::options().read(true).write(true).open(&self.0).unwrap()
    }

    /// The word of a page, as read(2) has it.
    pub fn word(&self, page: usize, word: usize) -> u64 {
        let mut bytes = [0; 8];
        self.open().read_exact_at(&mut bytes, (page * PAGE + word * 8) as u64).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// The sum of all words, as read(2) has them.
    pub fn sum(&self) -> u64 {
        let bytes = std::fs::read(&self.0).unwrap();
        bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).sum()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn number_at(page: usize, word: usize) -> u64 {
    (page as u64) << 16 | word as u64
}

/// A map, ended with it.
pub struct Mapped {
    pub at: *mut u8,
}

// SAFETY: addresses; words are used as atomics.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub fn new(file: &Scratch, budget_bytes: u64, writes: bool) -> Mapped {
        Self::of(&file.0, budget_bytes, writes).unwrap()
    }

    pub fn of(path: &Path, budget_bytes: u64, writes: bool) -> Result<Mapped, MapError> {
        maps::open(&Request { path, length: 0, writes, budget_bytes }, Writes::InPlace)
            .map(|at| Mapped { at })
    }

    pub fn word(&self, page: usize, word: usize) -> &AtomicU64 {
        // SAFETY: a word of the map, aligned.
        unsafe { AtomicU64::from_ptr(self.at.add(page * PAGE + word * 8).cast()) }
    }

    pub fn stats(&self) -> maps::Stats {
        maps::stats(self.at).unwrap()
    }

    pub fn check(&self) {
        #[cfg(debug_assertions)]
        maps::check_invariants(self.at).unwrap();
    }

    pub fn sync(&self) {
        maps::sync(self.at, 0).unwrap();
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the tests' borrows have ended.
        unsafe { maps::close(self.at) }.unwrap();
    }
}

/// Memory that processes forked from here share.
pub fn shared_words<const N: usize>() -> &'static [AtomicU64; N] {
    // SAFETY: a new mapping of zeros, which stays; atomics may be zero.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(core::ptr::null_mut(), N * 8, protection, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast()
    }
}

/// A stream of numbers from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// A seed: that of the environment (DEEPHEAP_SEED), or a new one; it is printed.
pub fn seed() -> u64 {
    let given = std::env::var("DEEPHEAP_SEED").ok().and_then(|text| text.parse().ok());
    let time = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = given.unwrap_or_else(time);
    println!("DEEPHEAP_SEED={seed}");
    seed
}
