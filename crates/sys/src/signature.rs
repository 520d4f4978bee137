//! Signature: recognises by its first bytes what a device or file holds.
//!
//! Guarantees: names the common file systems, swap, LVM, LUKS, MD, and partition tables. Other
//! bytes count as data, too, unless they are zero or an earlier store of deepheap.
//! Never: does I/O | allocates | sees what lies behind the head.
//! Threads: any; a pure function.

/// Bytes to look at: btrfs keeps its magic at 64 KiB.
pub(crate) const HEAD_BYTES: usize = 68 << 10;

/// The name for data that it cannot name.
const UNKNOWN: &str = "data that deepheap did not write";
/// The store writes blocks of so many bytes; see `docs/internals/on-disk-format.md`.
const BLOCK_BYTES: usize = 4096;
/// The first bytes of a directory, the first block of a segment.
const DIRECTORY: &[u8] = b"dheapseg";
/// The first bytes of a packed block, and where it has eight zeros.
const PACKED: &[u8] = b"dhp1";
const PACKED_ZEROS: core::ops::Range<usize> = 8..16;

const SIGNATURES: &[(&str, usize, &[u8])] = &[
    ("an ext2/3/4 file system", 1024 + 0x38, &[0x53, 0xef]),
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 65536 + 64, b"_BHRfS_M"),
    ("swap space", 4096 - 10, b"SWAPSPACE2"),
    ("swap space", 4096 - 10, b"SWAP-SPACE"),
    ("a hibernated system", 4096 - 10, b"S1SUSPEND"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
    ("a member of a RAID array", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a member of a RAID array", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("a bcachefs or bcache device", 4096 + 24, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT1"),
    ("a FAT file system", 82, b"FAT32"),
    ("an ISO 9660 file system", 32769, b"CD001"),
    ("a UDF file system", 32769, b"BEA01"),
    ("a squashfs file system", 0, b"hsqs"),
    ("an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("a JFS file system", 32768, b"JFS1"),
    ("a ReiserFS file system", 65536 + 52, b"ReIsEr"),
    ("an APFS container", 32, b"NXSB"),
    ("an HFS+ file system", 1024, b"H+"),
    ("an encrypted volume (BitLocker)", 3, b"-FVE-FS-"),
    ("a disk of Ceph", 0, b"bluestore block device"),
    ("a partition table (GPT)", 512, b"EFI PART"),
    ("a partition table (GPT)", 4096, b"EFI PART"),
    ("a partition table (MBR) or a boot sector", 510, &[0x55, 0xaa]),
];

/// The content of a device or file that begins with `head`, in words; None if that is zeros or an
/// earlier store.
pub(crate) fn recognise(head: &[u8]) -> Option<&'static str> {
    // Look for others before an earlier store: many formats leave the store's first bytes as they
    // were.
    let found =
        SIGNATURES.iter().find(|(_, at, magic)| head.get(*at..*at + magic.len()) == Some(*magic));
    match found {
        Some((name, _, _)) => Some(name),
        None if is_ours(head) => None,
        None => Some(UNKNOWN),
    }
}

/// Whether the first block that is not zero is one of a store: those before it may have been
/// discarded.
fn is_ours(head: &[u8]) -> bool {
    let written = head.chunks(BLOCK_BYTES).find(|block| block.iter().any(|byte| *byte != 0));
    written.is_none_or(|block| {
        block.starts_with(DIRECTORY)
            || block.starts_with(PACKED) && block.get(PACKED_ZEROS) == Some(&[0; 8])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_fits_and_is_recognised() {
        for (name, at, magic) in SIGNATURES {
            let mut head = vec![0; HEAD_BYTES];
            head[*at..*at + magic.len()].copy_from_slice(magic);
            assert_eq!(recognise(&head), Some(*name));
        }
        assert_eq!(recognise(&vec![0; HEAD_BYTES]), None);
        assert_eq!(recognise(&[]), None);
    }

    #[test]
    fn what_has_no_name_is_something_wherever_it_lies() {
        for at in [0, 1, 511, 4096, 65535, HEAD_BYTES - 1] {
            let mut head = vec![0; HEAD_BYTES];
            head[at] = 1;
            assert_eq!(recognise(&head), Some(UNKNOWN), "at {at}");
        }
        assert_eq!(recognise(b"Chapter 1"), Some(UNKNOWN));
        assert_eq!(recognise(b"dhp1"), Some(UNKNOWN), "too short to be a block");
    }

    #[test]
    fn an_earlier_store_is_nothing_also_where_it_was_discarded_in_parts() {
        let mut head = vec![7; HEAD_BYTES];
        head[..8].copy_from_slice(DIRECTORY);
        assert_eq!(recognise(&head), None);
        head[BLOCK_BYTES..].fill(0);
        assert_eq!(recognise(&head), None, "behind its directory");
        let mut head = vec![7; HEAD_BYTES];
        head[..2 * BLOCK_BYTES].fill(0);
        head[2 * BLOCK_BYTES..2 * BLOCK_BYTES + 4].copy_from_slice(PACKED);
        head[2 * BLOCK_BYTES + 8..2 * BLOCK_BYTES + 16].fill(0);
        assert_eq!(recognise(&head), None, "its directory");
        head[2 * BLOCK_BYTES + 8] = 1;
        assert_eq!(recognise(&head), Some(UNKNOWN), "no packed block");
    }

    #[test]
    fn what_was_made_over_an_earlier_store_is_named() {
        let mut head = vec![0; HEAD_BYTES];
        head[..8].copy_from_slice(DIRECTORY);
        head[4096..4100].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9]);
        assert_eq!(recognise(&head), Some("a member of a RAID array"));
    }
}
