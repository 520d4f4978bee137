//! Signature: what the first bytes of a device say that it holds.
//!
//! Guarantees: knows the common file systems, swap, LVM, LUKS, MD, and partition tables.
//! Never: does I/O | allocates.
//! Threads: any; a pure function.

/// Bytes to look at: btrfs keeps its magic at 64 KiB.
pub(crate) const HEAD_BYTES: usize = 68 << 10;

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
    ("a squashfs file system", 0, b"hsqs"),
    ("a partition table (GPT)", 512, b"EFI PART"),
    ("a partition table (GPT)", 4096, b"EFI PART"),
    ("a partition table (MBR) or a boot sector", 510, &[0x55, 0xaa]),
];

/// What a device that begins with `head` holds, in words, or None if nothing known.
pub(crate) fn recognise(head: &[u8]) -> Option<&'static str> {
    let found =
        SIGNATURES.iter().find(|(_, at, magic)| head.get(*at..*at + magic.len()) == Some(*magic));
    found.map(|(name, _, _)| *name)
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
}
