//! HTTP: as much of HTTP/1.1 as one page and its numbers need.
//!
//! Guarantees: a request is bounded in length and time; every answer is whole, says its length and
//! closes the connection.
//! Never: believes a header beyond the one it needs; serves files.
//! Threads: one for each connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of a request line with its headers.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// How long a client may take for the whole of its request, and for each part of an answer.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The bytes of a connection, until a moment.
pub struct Until<'a>(pub &'a TcpStream, pub Instant);

impl Read for Until<'_> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.read(piece)
    }
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// The path, without what stands behind the question mark.
    pub path: String,
    query: Vec<(String, String)>,
    /// The token behind `Authorization: Bearer`.
    bearer: Option<String>,
}

impl Request {
    /// Reads one.
    ///
    /// # Errors
    /// What the connection said; inside, the answer to what is no request that is answered here.
    pub fn read(stream: &mut impl Read) -> io::Result<Result<Request, Answer>> {
        let mut bytes = Vec::new();
        let mut piece = [0; 2048];
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            if bytes.len() > REQUEST_BYTES_MAX {
                let status = "431 Request Header Fields Too Large";
                return Ok(Err(Answer::text(status, "this is too long\n")));
            }
            match stream.read(&mut piece)? {
                0 => return Ok(Err(unreadable())),
                n => bytes.extend(&piece[..n]),
            }
        };
        Ok(std::str::from_utf8(&bytes[..end]).map_err(|_| unreadable()).and_then(parse))
    }

    /// A value of the query.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The token that the client has: in a header, or in the query.
    pub fn token(&self) -> Option<&str> {
        self.bearer.as_deref().or_else(|| self.value("token"))
    }
}

fn unreadable() -> Answer {
    Answer::text("400 Bad Request", "this is no request\n")
}

fn parse(head: &str) -> Result<Request, Answer> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(unreadable());
    };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(unreadable());
    }
    if method != "GET" {
        let mut answer = Answer::text("405 Method Not Allowed", "only GET\n");
        answer.headers.push(("Allow", "GET".to_owned()));
        return Err(answer);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut bearer = None;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let (kind, token) = value.trim().split_once(' ').unwrap_or_default();
        if name.eq_ignore_ascii_case("authorization") && kind.eq_ignore_ascii_case("bearer") {
            bearer = Some(token.trim().to_owned());
        }
    }
    let query = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Ok(Request { path: path.to_owned(), query, bearer })
}

/// An answer to send.
pub struct Answer {
    status: &'static str,
    content_type: &'static str,
    /// Headers beside those that every answer has.
    pub headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    /// The document that was asked for.
    pub fn of(content_type: &'static str, body: String) -> Answer {
        Answer { status: "200 OK", content_type, headers: Vec::new(), body: body.into_bytes() }
    }

    /// Some words, mostly on why not.
    pub fn text(status: &'static str, text: &str) -> Answer {
        let content_type = "text/plain; charset=utf-8";
        Answer { status, content_type, headers: Vec::new(), body: text.as_bytes().to_vec() }
    }

    /// Sends it.
    ///
    /// # Errors
    /// What the connection said.
    pub fn send(&self, stream: &mut impl Write) -> io::Result<()> {
        let mut head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Referrer-Policy: no-referrer\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(&self.body)?;
        stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request, or the status of what it is answered.
    fn read(bytes: &[u8]) -> Result<Request, &'static str> {
        Request::read(&mut { bytes }).expect("bytes can be read").map_err(|answer| answer.status)
    }

    #[test]
    fn a_request_tells_its_path_its_query_and_its_token() {
        let request = read(b"GET /data?pid=7&token=t1 HTTP/1.1\r\nHost: a\r\n\r\n").expect("good");
        assert_eq!((request.path.as_str(), request.value("pid")), ("/data", Some("7")));
        assert_eq!((request.token(), request.value("x")), (Some("t1"), None));
        let request = read(b"GET /metrics HTTP/1.1\r\nauthorization: bearer t2\r\n\r\n");
        assert_eq!(request.expect("good").token(), Some("t2"));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert_eq!(read(b"POST / HTTP/1.1\r\n\r\n"), Err("405 Method Not Allowed"));
        for bad in
            ["", "GET", "GET / HTTP/1.1", "GET / x HTTP/1.1\r\n\r\n", "GET x HTTP/1.1\r\n\r\n"]
        {
            assert_eq!(read(bad.as_bytes()), Err("400 Bad Request"), "{bad}");
        }
        assert_eq!(read(b"GET /\xff HTTP/1.1\r\n\r\n"), Err("400 Bad Request"));
        let long = "GET /".to_owned() + &"x".repeat(REQUEST_BYTES_MAX) + " HTTP/1.1\r\n";
        assert_eq!(
            read((long.clone() + &long).as_bytes()),
            Err("431 Request Header Fields Too Large")
        );
    }

    /// `DEEPHEAP_FUZZ=1000000` plays more rounds.
    #[test]
    fn any_bytes_are_a_request_or_answered_with_a_status() {
        let rounds = std::env::var("DEEPHEAP_FUZZ").ok().and_then(|text| text.parse().ok());
        let seed = b"GET /data?pid=7&token=t HTTP/1.1\r\nAuthorization: Bearer t2\r\nA: b\r\n\r\n";
        let pieces = ["\r\n", ": ", "?", "&", "=", " ", "\r\n\r\n", "\0", "\u{e9}", "bearer "];
        let mut number = 1u64;
        let mut below = move |end: usize| {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            (number % end as u64) as usize
        };
        let (mut taken, rounds) = (0, rounds.unwrap_or(20_000));
        for round in 0..rounds {
            let mut bytes = seed.to_vec();
            for _ in 0..=below(3) {
                let at = below(bytes.len());
                match below(4) {
                    0 => bytes[at] = below(256) as u8,
                    1 => drop(bytes.splice(at..at, pieces[below(pieces.len())].bytes())),
                    2 => drop(bytes.splice(at..(at + below(9)).min(bytes.len() - 1), [])),
                    _ => drop(bytes.splice(at..at, std::iter::repeat_n(b'x', below(20_000)))),
                }
            }
            match read(&bytes) {
                Ok(request) => {
                    taken += 1;
                    assert!(request.path.starts_with('/'), "round {round}");
                    let length = request.token().map_or(0, str::len) + request.path.len();
                    assert!(length < bytes.len(), "round {round}");
                }
                Err(status) => assert!(status.starts_with('4'), "round {round}: {status}"),
            }
        }
        assert!(taken > rounds / 10 && taken < rounds, "{taken} of {rounds}");
    }
}
