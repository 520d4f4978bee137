//! Narrow: a number in a smaller type, where it is known to fit.
//!
//! Guarantees: a debug build stops at a number that does not fit. A release build has no branch for
//! it, because malloc and the fault path narrow numbers: there the upper bits are lost. So the
//! caller knows the range. A number of a file or of another process is not known: `try_from` it.
//! Never: allocates, blocks.
//! Threads: any, also in signal handlers.

const _: () = assert!(usize::BITS == u64::BITS, "`to_usize` loses nothing");

/// A number that may fit in a smaller type.
pub trait Narrow: Copy {
    /// The number in the largest type.
    fn to_u64(self) -> u64;

    /// It fits always.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "both have 64 bits, asserted above")]
    fn to_usize(self) -> usize {
        self.to_u64() as usize
    }

    /// The caller knows that it is below 2^32.
    #[inline]
    #[track_caller]
    #[expect(clippy::cast_possible_truncation, reason = "the caller knows that it fits")]
    fn to_u32(self) -> u32 {
        debug_assert!(self.to_u64() <= u64::from(u32::MAX), "{} does not fit", self.to_u64());
        self.to_u64() as u32
    }

    /// The caller knows that it is below 2^16.
    #[inline]
    #[track_caller]
    #[expect(clippy::cast_possible_truncation, reason = "the caller knows that it fits")]
    fn to_u16(self) -> u16 {
        debug_assert!(self.to_u64() <= u64::from(u16::MAX), "{} does not fit", self.to_u64());
        self.to_u64() as u16
    }

    /// The caller knows that it is below 2^8.
    #[inline]
    #[track_caller]
    #[expect(clippy::cast_possible_truncation, reason = "the caller knows that it fits")]
    fn to_u8(self) -> u8 {
        debug_assert!(self.to_u64() <= u64::from(u8::MAX), "{} does not fit", self.to_u64());
        self.to_u64() as u8
    }
}

impl Narrow for usize {
    #[inline]
    fn to_u64(self) -> u64 {
        self as u64
    }
}

impl Narrow for u64 {
    #[inline]
    fn to_u64(self) -> u64 {
        self
    }
}

impl Narrow for u32 {
    #[inline]
    fn to_u64(self) -> u64 {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_stays_as_it_is() {
        assert_eq!((255u32.to_u8(), 65_535usize.to_u16()), (u8::MAX, u16::MAX));
        assert_eq!((4_294_967_295u64.to_u32(), u64::MAX.to_usize()), (u32::MAX, usize::MAX));
    }
}
