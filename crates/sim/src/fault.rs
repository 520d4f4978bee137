//! Fault: what a device can do wrong, and when it is told to.
//!
//! Threads: plain values.

use deepheap_store::device::Errno;

/// A fault of a device by chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A read answers EIO; the buffer is left half filled with garbage.
    ReadRefused,
    /// A read fills only a part of the buffer, and says so (ENODATA).
    ReadShort,
    /// A read returns one bit wrong, and says that all is well.
    ReadFlipped,
    /// A read returns what was there before the last write.
    ReadStale,
    /// A read returns the bytes of another place.
    ReadMisdirected,
    /// A write answers EIO after a part of it was done.
    WriteRefused,
    /// A write answers ENOSPC; nothing was done.
    WriteNoSpace,
    /// A write says that all is well, and was never done.
    WriteLost,
    /// A write says that all is well, and stopped after some 512-byte sector.
    WriteTorn,
    /// A write says that all is well, and went to another place.
    WriteMisdirected,
    /// A write says that all is well, and one bit of it is wrong.
    WriteFlipped,
    /// Reserving space answers ENOSPC.
    ReserveNoSpace,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 12] = [
        Fault::ReadRefused,
        Fault::ReadShort,
        Fault::ReadFlipped,
        Fault::ReadStale,
        Fault::ReadMisdirected,
        Fault::WriteRefused,
        Fault::WriteNoSpace,
        Fault::WriteLost,
        Fault::WriteTorn,
        Fault::WriteMisdirected,
        Fault::WriteFlipped,
        Fault::ReserveNoSpace,
    ];

    /// Whether what was written before the fault, elsewhere or here, may be gone for good.
    pub fn destroys(self) -> bool {
        use Fault::*;
        matches!(self, WriteLost | WriteTorn | WriteMisdirected | WriteFlipped)
    }
}

/// An operation of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// One read of a batch.
    Read,
    /// One write of a batch.
    Write,
    /// A sync.
    Sync,
    /// A discard.
    Discard,
    /// A reservation of space.
    Reserve,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 5] = [
        Operation::Read,
        Operation::Write,
        Operation::Sync,
        Operation::Discard,
        Operation::Reserve,
    ];
}

/// A failure on order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Script {
    /// Of which operation.
    pub operation: Operation,
    /// The how manieth such operation fails, from 0.
    pub nth: u64,
    /// Whether all later ones fail, too.
    pub for_ever: bool,
    /// With which answer.
    pub errno: Errno,
}
