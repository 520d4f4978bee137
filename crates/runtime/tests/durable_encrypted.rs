//! Encryption: what leaves RAM is not readable on the disk, neither that of `malloc`'s heap nor
//! that of a durable one; a durable one opens with its key alone.

mod scene;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use deepheap::HeapFile;
use deepheap::internal::{inspect, repair};
use deepheap::{DurableHeap, DurableOptions, OpenError};
use scene::memory::Object;
use scene::{folder, play};

const MIB: usize = 1 << 20;
/// What memory is filled with: nothing that comes about by itself.
const MARK: &[u8; 32] = b"deepheap: nobody else reads this";

fn mark(memory: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(MARK.len()) {
        // SAFETY: the caller's memory is so long.
        unsafe { memory.add(at).copy_from_nonoverlapping(MARK.as_ptr(), MARK.len()) };
    }
}

fn is_marked(memory: *const u8, bytes: usize) -> bool {
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(memory, bytes) };
    bytes.chunks(MARK.len()).all(|piece| piece == MARK)
}

/// How often the mark is in the file.
fn marks_in(file: &File) -> usize {
    let mut bytes = vec![0; MIB];
    let (mut at, mut found) = (0, 0);
    while let Ok(read) = file.read_at(&mut bytes, at)
        && read > 0
    {
        found += bytes[..read].windows(MARK.len()).filter(|piece| piece == MARK).count();
        at += read as u64;
    }
    found
}

/// The files without a name that this process has open: the store.
fn unnamed_files() -> Vec<File> {
    let links = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let links = links.filter_map(|link| Some(link.ok()?.path()));
    let is_unnamed = |link: &std::path::PathBuf| {
        std::fs::read_link(link).is_ok_and(|to| to.to_string_lossy().ends_with("(deleted)"))
    };
    // Not by the store's own descriptor, which wants aligned memory.
    links.filter(is_unnamed).filter_map(|link| File::open(link).ok()).collect()
}

fn spill(name: &str, setting: &str, is_readable: bool) {
    play(name, &format!("ram:16M,store_size:256M,compress:off{setting}"), || {
        let objects: Vec<Object> = (0..48).map(|_| Object::new(MIB).expect("room")).collect();
        objects.iter().for_each(|object| mark(object.address() as *mut u8, MIB));
        let files = unnamed_files();
        assert!(!files.is_empty(), "where is the store?");
        let found: usize = files.iter().map(marks_in).sum();
        eprintln!("{found} marks on the disk");
        assert_eq!(found > 1000, is_readable);
        assert!(is_readable || found == 0);
        let is_right = |object: &Object| is_marked(object.address() as *const u8, MIB);
        assert!(objects.iter().all(is_right));
    });
}

#[test]
fn spilled_memory_is_not_readable_on_the_disk() {
    spill("spilled_memory_is_not_readable_on_the_disk", ",encrypt:yes", false);
}

#[test]
fn canary_spilled_memory_is_found_where_it_is_not_encrypted() {
    spill("canary_spilled_memory_is_found_where_it_is_not_encrypted", "", true);
}

#[test]
fn an_encrypted_heap_shows_nothing_and_opens_with_its_key_alone() {
    const NAME: &str = "an_encrypted_heap_shows_nothing_and_opens_with_its_key_alone";
    play(NAME, "ram:64M,store_size:512M", || {
        let file = |name: &str, bytes: &[u8]| {
            let path = folder().join(name);
            std::fs::write(&path, bytes).expect("a file");
            path
        };
        let right = file("right", "0123456789abcdef".repeat(4).as_bytes());
        let wrong = file("wrong", &[7; 32]);
        let none = file("none", b"no key");
        let heap = folder().join("heap");
        let open = |path: &Path, key: Option<&Path>| {
            let key = key.map_or(String::new(), |key| format!(",encrypt:{}", key.display()));
            let options = format!("ram:16M,size:1G,compress:off{key}");
            DurableOptions::parse(&options).and_then(|options| DurableHeap::open(path, &options))
        };
        let close = |heap: DurableHeap| {
            // SAFETY: nobody uses it any more.
            unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
        };
        let made = open(&heap, Some(&right)).unwrap_or_else(|error| panic!("{error}"));
        let memory = made.malloc(40 * MIB);
        mark(memory, 40 * MIB);
        made.set_root("a name that nobody else reads", memory).expect("a root");
        made.snapshot("kept").unwrap_or_else(|error| panic!("{error}"));
        close(made);
        assert_eq!(marks_in(&File::open(&heap).expect("the heap")), 0);
        let bytes = std::fs::read(&heap).expect("the heap");
        assert!(!bytes.windows(17).any(|piece| piece == b"a name that nobod"), "a root's name");
        let refused = |key: Option<&Path>, errno: i32, words: &str| {
            let error = open(&heap, key).map(|_| ()).expect_err("it is refused");
            eprintln!("{error}");
            assert_eq!(error.errno(), errno, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        };
        refused(None, libc::ENOKEY, "is encrypted: give");
        refused(Some(&wrong), libc::EKEYREJECTED, "another key");
        refused(Some(&none), libc::ENOKEY, "this is no key");
        refused(Some(&folder().join("missing")), libc::ENOKEY, "No such file");
        let keyed = |key: &Path| HeapFile::with_key_file(&heap, Some(key)).expect("a key");
        let inspected = inspect::inspect(keyed(&right)).expect("a heap");
        assert_eq!(inspected.roots[0].0, "a name that nobody else reads");
        let found = inspect::fsck(keyed(&right)).expect("a heap");
        assert!(found.report.is_clean() && found.contradiction.is_none(), "{found:?}");
        assert!(found.report.blocks > 5000);
        let refused = inspect::inspect(&heap).expect_err("no key");
        assert!(matches!(refused, OpenError::Format(_)), "{refused}");
        let again = open(&heap, Some(&right)).unwrap_or_else(|error| panic!("{error}"));
        let memory = again.root("a name that nobody else reads");
        assert!(is_marked(memory, 40 * MIB));
        mark(memory, 20 * MIB);
        close(again);
        DurableHeap::roll_back(keyed(&right), "kept").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(repair::repair(keyed(&right)).expect("a heap"), None);
        let plain = folder().join("plain");
        close(open(&plain, None).unwrap_or_else(|error| panic!("{error}")));
        let error = open(&plain, Some(&right)).map(|_| ()).expect_err("it has no key");
        assert_eq!(error.errno(), libc::EKEYREJECTED);
        assert!(error.to_string().contains("not encrypted"), "{error}");
    });
}
