//! Load: fills a key-value server, then reads and writes it, and verifies what it reads.
//!
//! Each connection has keys of its own, so it knows which version of a value it must read. The
//! choice of the key follows Zipf's law with exponent 0.99; one operation of ten writes.
//!
//! Guarantees: a value depends on seed, key and version only, and is the one that was written last,
//! or it counts as wrong.
//! Never: writes a value that the server may drop and takes its absence for right.
//! Threads: one for each connection.

use std::io::{BufRead, BufReader, Error, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use deepheap_load::permutation::Permutation;
use deepheap_load::random::{Random, mix};
use deepheap_load::zipf::Zipf;

const CONNECTIONS: u64 = 8;
const ZIPF: f64 = 0.99;
const WRITES_PERCENT: u32 = 10;
/// Bytes of a value, about as many of one of text.
const VALUE_BYTES: usize = 1000;
/// Writes on their way at once while filling.
const FILL_BATCH: u64 = 32;
/// Operations for each key, on average, after the fill.
const OPERATIONS_A_KEY: u64 = 2;

/// How the server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RESP, of Redis.
    Redis,
    /// The text protocol of memcached.
    Memcached,
}

/// What the values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Documents as services keep them, which compress.
    Json,
    /// Random bytes, which do not.
    Random,
}

/// What a server is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// How it is spoken to.
    pub protocol: Protocol,
    /// What it holds.
    pub values: Values,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Values that were read and right.
    pub right: u64,
    /// Values that were read and wrong, or absent.
    pub wrong: u64,
}

/// A load that goes on.
#[derive(Debug)]
pub struct Going {
    threads: Vec<JoinHandle<Result<Served>>>,
    started: Instant,
}

impl Load {
    /// Starts all connections.
    pub fn start(self, socket: &Path, keys: u64) -> Going {
        let start = |connection| {
            let socket = PathBuf::from(socket);
            std::thread::spawn(move || self.work(&socket, keys, connection))
        };
        Going { threads: (0..CONNECTIONS).map(start).collect(), started: Instant::now() }
    }

    fn work(self, socket: &Path, keys: u64, connection: u64) -> Result<Served> {
        let stream = UnixStream::connect(socket)?;
        let mut replies = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        let mut stream = stream;
        let own = (keys / CONNECTIONS).max(1);
        let first = connection * own;
        let mut versions = vec![0_u32; own as usize];
        let mut request = Vec::new();
        for batch in (0..own).step_by(FILL_BATCH as usize) {
            let batch = batch..own.min(batch + FILL_BATCH);
            request.clear();
            batch.clone().for_each(|key| self.put(first + key, 0, &mut request));
            stream.write_all(&request)?;
            batch.into_iter().try_for_each(|_| self.stored(&mut replies))?;
        }
        let mut random = Random::new(19, connection);
        let (zipf, scatter) = (Zipf::new(own, ZIPF), Permutation::new(own, connection));
        let (mut served, mut value) = (Served { right: 0, wrong: 0 }, Vec::new());
        for _ in 0..own * OPERATIONS_A_KEY {
            let key = scatter.forward(zipf.sample(|| random.next()) - 1);
            let version = &mut versions[key as usize];
            request.clear();
            if random.percent(WRITES_PERCENT) {
                *version += 1;
                self.put(first + key, *version, &mut request);
                stream.write_all(&request)?;
                self.stored(&mut replies)?;
                continue;
            }
            self.get(first + key, &mut request);
            stream.write_all(&request)?;
            let is_there = self.read(&mut replies, &mut value)?;
            if is_there && value == self.value(first + key, *version) {
                served.right += 1;
            } else {
                served.wrong += 1;
            }
        }
        Ok(served)
    }

    fn put(self, key: u64, version: u32, out: &mut Vec<u8>) {
        let value = self.value(key, version);
        let length = value.len();
        let head = match self.protocol {
            Protocol::Redis => {
                format!("*3\r\n$3\r\nSET\r\n$14\r\nkey:{key:010}\r\n${length}\r\n")
            }
            Protocol::Memcached => format!("set key:{key:010} 0 0 {length}\r\n"),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&value);
        out.extend_from_slice(b"\r\n");
    }

    fn get(self, key: u64, out: &mut Vec<u8>) {
        let text = match self.protocol {
            Protocol::Redis => format!("*2\r\n$3\r\nGET\r\n$14\r\nkey:{key:010}\r\n"),
            Protocol::Memcached => format!("get key:{key:010}\r\n"),
        };
        out.extend_from_slice(text.as_bytes());
    }

    /// Reads that something was stored.
    fn stored(self, replies: &mut impl BufRead) -> Result<()> {
        let line = line(replies)?;
        match (self.protocol, line.as_str()) {
            (Protocol::Redis, "+OK") | (Protocol::Memcached, "STORED") => Ok(()),
            _ => Err(Error::other(format!("the server answers: {line}"))),
        }
    }

    /// Reads a value; false if the server does not have it.
    fn read(self, replies: &mut impl BufRead, value: &mut Vec<u8>) -> Result<bool> {
        let head = line(replies)?;
        let length = match self.protocol {
            Protocol::Redis if head == "$-1" => return Ok(false),
            Protocol::Memcached if head == "END" => return Ok(false),
            Protocol::Redis => head.strip_prefix('$'),
            Protocol::Memcached => head.strip_prefix("VALUE ").and_then(|h| h.split(' ').nth(2)),
        };
        let length = length.and_then(|length| length.parse::<usize>().ok());
        let length = length.filter(|&length| length <= 1 << 20);
        let length = length.ok_or_else(|| Error::other(format!("the server answers: {head}")))?;
        value.resize(length + 2, 0);
        replies.read_exact(value)?;
        value.truncate(length);
        if self.protocol == Protocol::Memcached && line(replies)? != "END" {
            return Err(Error::other("the server does not end a value"));
        }
        Ok(true)
    }

    /// The value of a key in a version.
    fn value(self, key: u64, version: u32) -> Vec<u8> {
        let mut random = Random::new(mix(key) ^ u64::from(version), 6);
        match self.values {
            Values::Random => {
                let words = (0..VALUE_BYTES / 8).flat_map(|_| random.next().to_le_bytes());
                words.collect()
            }
            Values::Json => document(key, version, &mut random),
        }
    }
}

/// A document of an order, of about `VALUE_BYTES`.
fn document(key: u64, version: u32, random: &mut Random) -> Vec<u8> {
    const CITIES: [&str; 8] =
        ["Basel", "Lima", "Osaka", "Quebec", "Nairobi", "Tromso", "Hobart", "Sofia"];
    const STATES: [&str; 4] = ["open", "paid", "shipped", "returned"];
    let mut text = Vec::with_capacity(VALUE_BYTES + 128);
    let city = CITIES[random.below(8) as usize];
    let state = STATES[random.below(4) as usize];
    // Writing to a vector cannot fail.
    let _ = write!(
        text,
        "{{\"id\":{key},\"version\":{version},\"customer\":\"{:016x}\",\"city\":\"{city}\",\
         \"state\":\"{state}\",\"items\":[",
        random.next()
    );
    while text.len() < VALUE_BYTES - 100 {
        let comma = if text.ends_with(b"[") { "" } else { "," };
        let _ = write!(
            text,
            "{comma}{{\"product\":\"P-{:06}\",\"pieces\":{},\"price\":{}.{:02},\"gift\":{}}}",
            random.below(1_000_000),
            random.below(20) + 1,
            random.below(500),
            random.below(100),
            random.percent(10)
        );
    }
    let _ = write!(text, "],\"total\":{}}}", random.below(100_000));
    text
}

fn line(replies: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if replies.read_line(&mut line)? == 0 {
        return Err(Error::other("the server hung up"));
    }
    Ok(line.trim_end().into())
}

impl Going {
    /// Whether all connections are done, well or not.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// What they saw, and how long it took until now.
    pub fn end(self) -> Result<(Served, Duration)> {
        let mut all = Served { right: 0, wrong: 0 };
        let mut failed = None;
        for thread in self.threads {
            match thread.join().unwrap_or_else(|_| Err(Error::other("a connection panicked"))) {
                Ok(served) => {
                    all.right += served.right;
                    all.wrong += served.wrong;
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok((all, self.started.elapsed())), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADS: [Load; 4] = [
        Load { protocol: Protocol::Redis, values: Values::Json },
        Load { protocol: Protocol::Redis, values: Values::Random },
        Load { protocol: Protocol::Memcached, values: Values::Json },
        Load { protocol: Protocol::Memcached, values: Values::Random },
    ];

    #[test]
    fn values_are_those_of_key_and_version_and_about_as_long_as_said() {
        for load in LOADS {
            assert_eq!(load.value(7, 1), load.value(7, 1));
            assert_ne!(load.value(7, 1), load.value(7, 2));
            assert_ne!(load.value(7, 1), load.value(8, 1));
            for key in 0..100 {
                let length = load.value(key, 0).len();
                assert!((VALUE_BYTES - 100..VALUE_BYTES + 20).contains(&length), "{length}");
            }
        }
    }

    #[test]
    fn json_values_are_json() {
        let value: serde_json::Value = serde_json::from_slice(&LOADS[0].value(3, 2)).unwrap();
        assert_eq!((&value["id"], &value["version"]), (&3.into(), &2.into()));
    }

    #[test]
    fn replies_are_read_and_what_is_no_reply_is_refused() {
        let read = |load: Load, mut reply: &[u8]| {
            let mut value = Vec::new();
            load.read(&mut reply, &mut value).ok().map(|is_there| is_there.then_some(value))
        };
        let (redis, memcached) = (LOADS[0], LOADS[2]);
        assert_eq!(read(redis, b"$3\r\na\r\n\r\n"), Some(Some(b"a\r\n".to_vec())));
        assert_eq!(read(redis, b"$-1\r\n"), Some(None));
        assert_eq!(read(redis, b"-ERR\r\n"), None);
        assert_eq!(read(memcached, b"VALUE k 0 2\r\nab\r\nEND\r\n"), Some(Some(b"ab".to_vec())));
        assert_eq!(read(memcached, b"END\r\n"), Some(None));
        assert_eq!(read(memcached, b"VALUE k 0 2\r\nab\r\nVALUE"), None);
        assert!(redis.stored(&mut &b"+OK\r\n"[..]).is_ok());
        assert!(memcached.stored(&mut &b"SERVER_ERROR out of memory\r\n"[..]).is_err());
    }
}
