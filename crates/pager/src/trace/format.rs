//! Trace format: the bytes of a trace file, `docs/internals/trace-format.md`.
//!
//! Guarantees: a reader believes nothing: any bytes give a trace or a reason, and take no more
//! memory than a few times their own. A chunk that a killed program left unfinished ends the trace.
//! Never: does I/O.
//! Threads: plain functions.

use core::fmt;

use deepheap_heap::PAGE;

pub use crate::trace::{Happened, LANES, Record, UNIT_NS};

/// A file's first bytes.
pub const MAGIC: [u8; 8] = *b"dh-trace";
/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// Bytes before the first chunk.
pub const HEADER_BYTES: usize = 64;
/// Bytes before the records of a chunk.
const CHUNK_BYTES: usize = 16;
/// The most bytes that a record takes: what happened, and three or four numbers of 7 bits a byte.
const RECORD_BYTES_MAX: usize = 1 + 4 * VARINT_BYTES_MAX;
const VARINT_BYTES_MAX: usize = 10;
/// The largest chunk, bytes of records.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// No program has more RAM, bytes, nor runs for longer, units of time: whoever reads a trace may
/// calculate with its numbers.
const RAM_MAX: u64 = 1 << 48;
const TIME_MAX: u64 = 1 << 52;

/// The facts about a traced program before its first record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Its process.
    pub pid: u32,
    /// Its RAM budget, bytes.
    pub ram: u64,
    /// Seconds since 1970 when the trace began.
    pub begun: u64,
    /// The address of page 0.
    pub region_base: u64,
    /// Nanoseconds that the process had run then.
    pub ran_before_ns: u64,
}

impl Header {
    /// Its bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        for field in [VERSION, HEADER_BYTES as u32, PAGE as u32, UNIT_NS as u32] {
            put(&field.to_le_bytes());
        }
        let pid = u64::from(self.pid);
        for field in [self.ram, self.begun, self.region_base, pid, self.ran_before_ns] {
            put(&field.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Header, TraceError> {
        if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
            return Err(TraceError::NoTrace);
        }
        let u32_at = |at| u32::from_le_bytes(array_at(bytes, at));
        let u64_at = |at| u64::from_le_bytes(array_at(bytes, at));
        let shape = [u32_at(12), u32_at(16), u32_at(20)];
        if u32_at(8) != VERSION || shape != [HEADER_BYTES as u32, PAGE as u32, UNIT_NS as u32] {
            return Err(TraceError::Version(u32_at(8)));
        }
        for (at, most) in [(24, RAM_MAX), (56, TIME_MAX * UNIT_NS)] {
            if u64_at(at) > most {
                return Err(TraceError::Damaged(at));
            }
        }
        Ok(Header {
            ram: u64_at(24),
            begun: u64_at(32),
            region_base: u64_at(40),
            pid: u64_at(48) as u32,
            ran_before_ns: u64_at(56),
        })
    }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    core::array::from_fn(|index| bytes[at + index])
}

/// Why a file cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceError {
    /// It does not begin as a trace does.
    NoTrace,
    /// It is of a version that this command does not know.
    Version(u32),
    /// A chunk's bytes make no sense, so many bytes from the file's start.
    Damaged(usize),
}

impl fmt::Display for TraceError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::NoTrace => out.write_str(
                "it is no trace; `deepheap run --trace FILE` writes one once the program's memory \
                 has outgrown its RAM budget",
            ),
            TraceError::Version(version) => write!(
                out,
                "it is a trace of version {version}, and this command reads version {VERSION}; \
                 trace the program again"
            ),
            TraceError::Damaged(at) => {
                write!(out, "it is damaged at byte {at}; trace the program again")
            }
        }
    }
}

impl core::error::Error for TraceError {}

/// The numbers of a record are told as differences from those of the last one in its chunk.
#[derive(Clone, Copy, Default)]
struct Last {
    page: i64,
    at: i64,
}

/// A chunk that is being filled: records of one lane.
#[derive(Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    records: u32,
    last: Last,
}

impl Chunk {
    /// Adds a record; the chunk must not be full.
    pub fn push(&mut self, record: Record) {
        self.bytes.push(record.happened as u8);
        let now = Last { page: record.page.into(), at: record.at as i64 };
        put_signed(&mut self.bytes, now.page - self.last.page);
        put_signed(&mut self.bytes, now.at - self.last.at);
        if has_amount(record.happened) {
            put_signed(&mut self.bytes, record.amount.into());
        }
        if record.happened.is_fault() {
            put(&mut self.bytes, record.took.into());
        }
        self.last = now;
        self.records += 1;
    }

    /// Whether another record may not fit.
    pub fn is_full(&self) -> bool {
        self.bytes.len() + RECORD_BYTES_MAX > CHUNK_BYTES_MAX
    }

    /// Its bytes for the file, if there is anything to tell; it is empty afterwards.
    pub fn finish(&mut self, lane: usize, lost: u32, into: &mut Vec<u8>) {
        if self.records > 0 || lost > 0 {
            for field in [self.bytes.len() as u32, self.records, lost, lane as u32] {
                into.extend_from_slice(&field.to_le_bytes());
            }
            into.extend_from_slice(&self.bytes);
        }
        self.bytes.clear();
        (self.records, self.last) = (0, Last::default());
    }
}

fn has_amount(happened: Happened) -> bool {
    !matches!(
        happened,
        Happened::Empty
            | Happened::Dropped
            | Happened::PageBuffer
            | Happened::Cache
            | Happened::End
    )
}

/// A record, and the lane whose thread has written it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traced {
    /// The lane.
    pub lane: u8,
    /// The record.
    pub record: Record,
}

/// The content of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The program.
    pub header: Header,
    /// All records, in the order of time.
    pub records: Vec<Traced>,
    /// Records that found no room while the program ran.
    pub lost: u64,
    /// Whether the file ends amid a chunk: the program was killed, or still runs.
    pub is_cut: bool,
}

impl Trace {
    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// See [`TraceError`].
    pub fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
        let mut trace =
            Trace { header: Header::read(bytes)?, records: Vec::new(), lost: 0, is_cut: false };
        let mut at = HEADER_BYTES;
        while at < bytes.len() {
            let Some(head) = bytes.get(at..at + CHUNK_BYTES) else {
                trace.is_cut = true;
                break;
            };
            let [length, records, lost, lane] =
                [0, 4, 8, 12].map(|field| u32::from_le_bytes(array_at(head, field)));
            if length as usize > CHUNK_BYTES_MAX || lane as usize >= LANES {
                return Err(TraceError::Damaged(at));
            }
            let begin = at + CHUNK_BYTES;
            let Some(chunk) = bytes.get(begin..begin + length as usize) else {
                trace.is_cut = true;
                break;
            };
            trace.lost += u64::from(lost);
            let mut rest = chunk;
            let mut last = Last::default();
            for _ in 0..records {
                let read = read_record(&mut rest, &mut last);
                let record = read.ok_or(TraceError::Damaged(begin + chunk.len() - rest.len()))?;
                trace.records.push(Traced { lane: lane as u8, record });
            }
            if !rest.is_empty() {
                return Err(TraceError::Damaged(begin + chunk.len() - rest.len()));
            }
            at = begin + chunk.len();
        }
        trace.records.sort_by_key(|traced| traced.record.at);
        Ok(trace)
    }
}

fn read_record(rest: &mut &[u8], last: &mut Last) -> Option<Record> {
    let (&number, after) = rest.split_first()?;
    *rest = after;
    let happened = Happened::of(number)?;
    last.page = last.page.checked_add(take_signed(rest)?)?;
    last.at = last.at.checked_add(take_signed(rest)?)?;
    let amount = if has_amount(happened) { take_signed(rest)? } else { 0 };
    let took = if happened.is_fault() { take(rest)? } else { 0 };
    Some(Record {
        happened,
        page: u32::try_from(last.page).ok()?,
        amount: i16::try_from(amount).ok()?,
        at: u64::try_from(last.at).ok().filter(|&at| at <= TIME_MAX)?,
        took: u32::try_from(took).ok()?,
    })
}

/// A number in bytes of 7 bits, the lowest first; the eighth bit says that more follow.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// As `put`: 0, -1, 1, -2, ... are 0, 1, 2, 3, ...
fn put_signed(bytes: &mut Vec<u8>, number: i64) {
    put(bytes, (number << 1 ^ number >> 63) as u64);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for index in 0..VARINT_BYTES_MAX {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_signed(rest: &mut &[u8]) -> Option<i64> {
    let number = take(rest)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws from xorshift64*, which is enough here.
    struct Draw(u64);

    impl Draw {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        fn record(&mut self) -> Record {
            let happened = Happened::ALL[self.next() as usize % Happened::ALL.len()];
            Record {
                happened,
                page: (self.next() >> (32 + self.next() % 32)) as u32,
                amount: if has_amount(happened) { self.next() as i16 } else { 0 },
                at: self.next() >> (20 + self.next() % 40),
                took: if happened.is_fault() { (self.next() >> 44) as u32 } else { 0 },
            }
        }
    }

    const HEADER: Header =
        Header { pid: 4711, ram: 64 << 20, begun: 1_700_000_000, region_base: 1, ran_before_ns: 5 };

    fn file(draw: &mut Draw, chunks: usize) -> (Vec<u8>, Vec<Traced>) {
        let (mut bytes, mut all) = (HEADER.to_bytes().to_vec(), Vec::new());
        let mut chunk = Chunk::default();
        for _ in 0..chunks {
            let lane = draw.next() as usize % LANES;
            for _ in 0..draw.next() % 50 {
                let record = draw.record();
                chunk.push(record);
                all.push(Traced { lane: lane as u8, record });
            }
            chunk.finish(lane, 1, &mut bytes);
        }
        (bytes, all)
    }

    #[test]
    fn what_was_written_is_read() {
        let (bytes, mut all) = file(&mut Draw(1), 100);
        let trace = Trace::read(&bytes).unwrap();
        all.sort_by_key(|traced| traced.record.at);
        assert_eq!(trace, Trace { header: HEADER, records: all, lost: 100, is_cut: false });
    }

    #[test]
    fn a_budget_or_a_time_that_no_program_has_is_damage() {
        let told = |header: Header| Trace::read(&header.to_bytes()).map(|trace| trace.header);
        assert_eq!(told(Header { ram: u64::MAX, ..HEADER }), Err(TraceError::Damaged(24)));
        let forged = Header { ran_before_ns: u64::MAX, ..HEADER };
        assert_eq!(told(forged), Err(TraceError::Damaged(56)));
        let large = Header { ram: 1 << 46, ran_before_ns: 1 << 58, ..HEADER };
        assert_eq!(told(large), Ok(large));
    }

    #[test]
    fn a_file_that_ends_anywhere_is_a_shorter_trace() {
        let (bytes, all) = file(&mut Draw(2), 8);
        for length in HEADER_BYTES..bytes.len() {
            let trace = Trace::read(&bytes[..length]).unwrap();
            assert!(trace.records.len() <= all.len());
            assert!(trace.is_cut || trace.records.len() < all.len());
        }
        assert_eq!(Trace::read(&bytes[..HEADER_BYTES - 1]), Err(TraceError::NoTrace));
    }

    #[test]
    fn a_chunk_says_when_it_is_full() {
        let (mut chunk, mut draw, mut bytes) = (Chunk::default(), Draw(3), Vec::new());
        while !chunk.is_full() {
            chunk.push(Record { at: u64::MAX >> 20, ..draw.record() });
        }
        chunk.finish(0, 0, &mut bytes);
        assert!(bytes.len() <= CHUNK_BYTES + CHUNK_BYTES_MAX);
        let whole = [HEADER.to_bytes().as_slice(), &bytes].concat();
        assert!(!Trace::read(&whole).unwrap().is_cut);
    }

    /// `DEEPHEAP_FUZZ=1000000` plays more rounds.
    #[test]
    fn any_bytes_give_a_trace_or_a_reason() {
        let rounds = std::env::var("DEEPHEAP_FUZZ").ok().and_then(|text| text.parse().ok());
        let mut refused = 0;
        for round in 0..rounds.unwrap_or(2000u64) {
            let mut draw = Draw(round + 1);
            let (mut bytes, _) = file(&mut draw, 3);
            for _ in 0..=draw.next() % 4 {
                let at = draw.next() as usize % bytes.len();
                match draw.next() % 3 {
                    0 => bytes[at] = draw.next() as u8,
                    1 => bytes[at] ^= 1 << (draw.next() % 8),
                    _ => drop(bytes.remove(at)),
                }
            }
            match Trace::read(&bytes) {
                Ok(trace) => assert!(trace.records.len() <= bytes.len(), "round {round}"),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
        assert!(refused > 100, "damage is found: {refused}");
    }
}
