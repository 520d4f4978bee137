//! Block: decodes a block of LZ4 that holds one page.
//!
//! ```text
//!   sequence  token     literals << 4 | (length - 4)
//!             more of a number that is 15 there: bytes to add; one below 255 is the last
//!             literals
//!             distance  2 bytes, little endian: `length` bytes are copied from so far before
//!   ...
//!   the last  token and literals only
//! ```
//!
//! A copy whose distance is less than its length repeats what lies before it. Pages are full of
//! such runs, mostly of zeros. A general decoder copies them byte by byte, each of which waits for
//! the one before: 7 us for a page with one number in it. Here what is copied doubles in each step.
//!
//! Guarantees: those of `codec::decompress`.
//! Never: allocates, blocks, reads or writes beyond `bytes` and `page`.
//! Threads: a plain function.

use crate::PAGE;

/// What a half of the token says of a number that goes on after it.
const MORE: usize = 15;
/// The least length of a copy.
const COPY_MIN: usize = 4;
/// Bytes that are moved for the literals of a short sequence, which has 14 at most: with the
/// distance behind them that is all it reads.
const LITERALS: usize = 16;
/// Bytes of the page that a short sequence may write: literals, a copy of 18 bytes in steps of 8,
/// and what the last step writes beyond.
const SHORT_ROOM: usize = LITERALS + 18 + 7;

/// Fills the page; false if the bytes do not end where the page does.
pub(super) fn decode(bytes: &[u8], page: &mut [u8; PAGE]) -> bool {
    fill(bytes, page) == Some(PAGE)
}

/// How much of the page the bytes fill; none if they are not a block, or of more than a page.
fn fill(mut bytes: &[u8], page: &mut [u8; PAGE]) -> Option<usize> {
    let mut to = 0;
    loop {
        let (&token, rest) = bytes.split_first()?;
        bytes = rest;
        let (mut literals, mut len) = (usize::from(token >> 4), usize::from(token & 15));
        if literals != MORE && len != MORE && bytes.len() >= LITERALS && PAGE - to >= SHORT_ROOM {
            // SAFETY: both have room, by the line above.
            to = unsafe { short(&mut bytes, page, to, literals, len + COPY_MIN) }?;
            continue;
        }
        add(&mut literals, &mut bytes)?;
        page.get_mut(to..to + literals)?.copy_from_slice(bytes.split_off(..literals)?);
        to += literals;
        if bytes.is_empty() {
            return Some(to);
        }
        let &distance = bytes.split_off(..2)?.first_chunk()?;
        let distance = usize::from(u16::from_le_bytes(distance));
        add(&mut len, &mut bytes)?;
        len += COPY_MIN;
        if distance == 0 || distance > to || len > PAGE - to {
            return None;
        }
        let (from, end) = (to - distance, to + len);
        while to < end {
            // The bytes from there on repeat, also those that were just copied.
            let step = (to - from).min(end - to);
            page.copy_within(from..from + step, to);
            to += step;
        }
    }
}

/// Adds to a number what follows of it, if it goes on.
fn add(number: &mut usize, bytes: &mut &[u8]) -> Option<()> {
    if *number == MORE {
        while {
            let &more = bytes.split_off_first()?;
            *number += usize::from(more);
            more == 255
        } {}
    }
    Some(())
}

/// A sequence of at most 14 literals and a copy of at most 18 bytes, by loads and stores of a fixed
/// size; answers where the page goes on.
///
/// # Safety
/// There are `LITERALS` bytes after the token, and `SHORT_ROOM` in the page from `to` on.
#[inline]
unsafe fn short(
    bytes: &mut &[u8],
    page: &mut [u8; PAGE],
    to: usize,
    literals: usize,
    len: usize,
) -> Option<usize> {
    let (at, to_copy) = (bytes.as_ptr(), to + literals);
    // SAFETY: 16 bytes are there on both sides; the distance is 2 of them, after at most 14.
    let distance = unsafe {
        let literal = at.cast::<[u8; LITERALS]>().read();
        page.as_mut_ptr().add(to).cast::<[u8; LITERALS]>().write(literal);
        usize::from(u16::from_le_bytes(at.add(literals).cast::<[u8; 2]>().read()))
    };
    *bytes = &bytes[literals + 2..];
    if distance == 0 || distance > to_copy {
        return None;
    }
    // SAFETY: it begins in the page.
    let into = unsafe { page.as_mut_ptr().add(to_copy) };
    if distance >= len {
        // SAFETY: 18 bytes from within the page, all read before any is written, to 18 of the room.
        unsafe {
            let copied = into.sub(distance).cast::<[u8; 18]>().read();
            into.cast::<[u8; 18]>().write(copied);
        }
    } else {
        let (mut done, mut distance) = (0, distance);
        while done < len {
            // SAFETY: 8 bytes from within the page to the room, `done` being at most 17. What is
            // read of bytes that are still to be copied, the next step writes over.
            unsafe {
                let copied = into.add(done).sub(distance).cast::<[u8; 8]>().read();
                into.add(done).cast::<[u8; 8]>().write(copied);
            }
            done += distance.min(8);
            if distance < 8 {
                distance *= 2;
            }
        }
    }
    Some(to_copy + len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::page;
    use deepheap_sim::Random;
    use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

    fn push_number(block: &mut Vec<u8>, number: usize) {
        if let Some(mut left) = number.checked_sub(MORE) {
            while left >= 255 {
                block.push(255);
                left -= 255;
            }
            block.push(left as u8);
        }
    }

    fn push_token(block: &mut Vec<u8>, literals: &[u8], copied: usize) {
        let half = |number: usize| number.min(MORE) as u8;
        block.push(half(literals.len()) << 4 | half(copied));
        push_number(block, literals.len());
        block.extend(literals);
    }

    /// A block of a page: literals, a copy, and the rest as literals.
    fn block(literals: usize, distance: usize, len: usize) -> (Vec<u8>, [u8; PAGE]) {
        let mut page: [u8; PAGE] = core::array::from_fn(|at| (at * 7 + at / 251) as u8);
        for at in literals..literals + len {
            page[at] = page[at - distance];
        }
        let mut block = Vec::new();
        push_token(&mut block, &page[..literals], len - COPY_MIN);
        block.extend((distance as u16).to_le_bytes());
        push_number(&mut block, len - COPY_MIN);
        push_token(&mut block, &page[literals + len..], 0);
        (block, page)
    }

    fn decoded(block: &[u8]) -> Option<[u8; PAGE]> {
        let mut page = [0xee; PAGE];
        decode(block, &mut page).then_some(page)
    }

    #[test]
    fn a_copy_of_any_distance_and_length_repeats_what_lies_before() {
        for literals in [1, 7, 14, 15, 16, 300, PAGE - 128, PAGE - 60] {
            for distance in (1..=literals).filter(|distance| *distance < 40 || distance % 97 == 0) {
                for len in (4..=60.min(PAGE - literals)).chain([270, 1000, PAGE - literals]) {
                    if literals + len <= PAGE {
                        let (block, page) = block(literals, distance, len);
                        assert!(decoded(&block) == Some(page), "{literals} {distance} {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_block_of_one_page_is_refused() {
        let (whole, _) = block(20, 3, 30);
        assert!((0..whole.len()).all(|len| decoded(&whole[..len]).is_none()));
        assert!(decoded(&[&whole[..], &[0]].concat()).is_none());
        for distance in [0u16, 21, u16::MAX] {
            let mut block = whole.clone();
            block[22..24].copy_from_slice(&distance.to_le_bytes());
            assert!(decoded(&block).is_none(), "{distance}");
        }
        let (mut short, _) = block(14, 3, 18);
        short[15] = 15;
        assert!(decoded(&short).is_none());
    }

    #[test]
    fn it_agrees_with_the_library_on_whole_blocks_and_on_damaged_ones() {
        let mut random = Random::new(24);
        let (mut whole, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = [0; get_maximum_output_size(PAGE)];
            let len = compress_into(&page(&mut random), &mut bytes).expect("room for all");
            for _ in 0..random.below(3) {
                bytes[random.below(len as u64) as usize] = random.number() as u8;
            }
            let mut by_library = [0xee; PAGE];
            let theirs = matches!(decompress_into(&bytes[..len], &mut by_library), Ok(PAGE));
            let ours = decoded(&bytes[..len]);
            assert!(ours == theirs.then_some(by_library), "{:?}", &bytes[..len]);
            (whole, refused) = (whole + u32::from(theirs), refused + u32::from(!theirs));
        }
        assert!(whole > 1000 && refused > 1000, "{whole} {refused}");
    }
}
