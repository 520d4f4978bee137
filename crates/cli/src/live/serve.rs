//! Serve command: one local web page about processes under deepheap, and their metrics.
//!
//! Guarantees: nothing is told without the token; clients that do not show it keep out nobody who
//! does; only this machine is listened to unless another address was asked for; the page loads
//! nothing from elsewhere.
//! Never: changes anything in a process, but that it may be asked to draw a map.
//! Threads: main reads the processes; one accepts connections; one for each of them.

pub(crate) mod http;
pub(crate) mod metrics;
pub(crate) mod numbers;

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::collections::HashMap;
use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::arguments::Serve;
use crate::live::serve::http::{Answer, PATIENCE, Request, Until};
use crate::live::watch::{SeenProcess, Watch};
use crate::random::random_text;
use crate::refusal::{Refusal, print_out, warn};

/// The page, whole.
const PAGE: &str = include_str!("serve/page.html");
/// Connections that may be without a request at a time, and answers with a token.
const CONNECTIONS_MAX: usize = 16;
/// A map is drawn for so long after somebody looked at it.
const LOOKED_AT: Duration = Duration::from_secs(5);
/// The shortest token that a file may hold.
const TOKEN_LETTERS_MIN: usize = 16;

/// The state that all threads share.
struct Server {
    token: String,
    /// The nonce that allows the page's own script to run, and no other.
    nonce: String,
    processes: Mutex<Vec<SeenProcess>>,
    /// When a process was last looked at.
    looks: Mutex<HashMap<u32, Instant>>,
    /// Connections without a request, the oldest first.
    silent: Mutex<Vec<Arc<TcpStream>>>,
    /// Answers that are being sent to clients with the token.
    answers: AtomicUsize,
}

/// Serves until it is ended.
pub fn serve(arguments: &Serve) -> Result<(), Refusal> {
    let mut watch = Watch::new(arguments.all);
    let mut processes = Vec::new();
    match arguments.pid {
        Some(pid) => watch.add(pid, &mut processes)?,
        None if arguments.all => watch.search(&mut processes),
        None => return Err(Refusal::new("give the number of a process, or --all")),
    }
    let token = token(arguments)?;
    let address = arguments.listen;
    let listener = TcpListener::bind(address).map_err(|error| {
        Refusal::new(format!("cannot listen on {address}: {error}: give another --listen"))
    })?;
    let address = listener.local_addr().unwrap_or(address);
    if !address.ip().is_loopback() {
        warn(&format!(
            "{address} may be reached from other machines, and what goes there is not encrypted"
        ));
    }
    print_out(format!("http://{address}/?token={token}\n"))?;
    let server: &'static Server = Box::leak(Box::new(Server {
        token,
        nonce: random_text()?,
        processes: Mutex::new(processes),
        looks: Mutex::default(),
        silent: Mutex::default(),
        answers: AtomicUsize::new(0),
    }));
    thread::spawn(move || accept(server, &listener));
    loop {
        thread::sleep(Duration::from_secs_f64(arguments.every));
        let ended = watch.look(&mut locked(&server.processes), |pid| server.is_looked_at(pid));
        if let (Some(pid), false) = (arguments.pid, ended.is_empty()) {
            warn(&format!("process {pid} has ended: its last picture is served until Ctrl-C"));
        }
    }
}

/// The token of a file, or one that nobody can guess.
fn token(arguments: &Serve) -> Result<String, Refusal> {
    let Some(path) = &arguments.token_file else { return random_text() };
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| {
        Refusal::new(format!("the token cannot be read from '{shown}': {error}"))
    })?;
    let token = text.trim().to_owned();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._~".contains(letter);
    if token.len() < TOKEN_LETTERS_MIN || !token.chars().all(is_plain) {
        let text = format!(
            "'{shown}' must hold {TOKEN_LETTERS_MIN} letters and digits or more, as \
             'openssl rand -hex 16' makes them"
        );
        return Err(Refusal::new(text));
    }
    Ok(token)
}

fn accept(server: &'static Server, listener: &TcpListener) {
    for stream in listener.incoming() {
        // Out of descriptors, or a client that is gone already.
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let stream = Arc::new(stream);
        {
            let mut silent = locked(&server.silent);
            if silent.len() >= CONNECTIONS_MAX {
                let _ = silent.remove(0).shutdown(Shutdown::Both);
            }
            silent.push(stream.clone());
        }
        let conversation = stream.clone();
        // A client that goes away hurts only itself.
        let converse = move || drop(server.converse(&conversation));
        if thread::Builder::new().spawn(converse).is_err() {
            server.has_spoken(&stream);
        }
    }
}

/// What a mutex guards, also after a thread has panicked.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    fn is_looked_at(&self, pid: u32) -> bool {
        locked(&self.looks).get(&pid).is_some_and(|at| at.elapsed() < LOOKED_AT)
    }

    fn has_spoken(&self, stream: &Arc<TcpStream>) {
        locked(&self.silent).retain(|silent| !Arc::ptr_eq(silent, stream));
    }

    fn converse(&self, stream: &Arc<TcpStream>) -> std::io::Result<()> {
        let read = Request::read(&mut Until(stream, Instant::now() + PATIENCE));
        self.has_spoken(stream);
        stream.set_write_timeout(Some(PATIENCE))?;
        match read? {
            Ok(request) if !self.has_token(&request) => refused().send(&mut &**stream),
            Ok(request) => {
                let answers = self.answers.fetch_add(1, Relaxed);
                let answer = match answers < CONNECTIONS_MAX {
                    true => self.answer(&request),
                    false => Answer::text("503 Service Unavailable", "too many connections\n"),
                };
                let sent = answer.send(&mut &**stream);
                self.answers.fetch_sub(1, Relaxed);
                sent
            }
            Err(answer) => answer.send(&mut &**stream),
        }
    }

    fn has_token(&self, request: &Request) -> bool {
        request.token().is_some_and(|token| is_same(token, &self.token))
    }

    fn answer(&self, request: &Request) -> Answer {
        match request.path.as_str() {
            "/" => self.page(),
            "/data" => {
                let mut processes = locked(&self.processes);
                let pid = request.value("pid").and_then(|pid| pid.parse().ok());
                let pid = pid.filter(|pid| processes.iter().any(|process| process.pid == *pid));
                let first = processes.iter().min_by_key(|process| process.ended.is_some());
                let pid = pid.or(first.map(|process| process.pid));
                if let Some(pid) = pid {
                    let mut looks = locked(&self.looks);
                    looks.retain(|_, at| at.elapsed() < LOOKED_AT);
                    looks.insert(pid, Instant::now());
                }
                Answer::of("application/json", numbers::data(&mut processes, pid))
            }
            "/metrics" => {
                Answer::of(metrics::CONTENT_TYPE, metrics::text(&locked(&self.processes)))
            }
            _ => Answer::text("404 Not Found", "there are /, /data and /metrics\n"),
        }
    }

    fn page(&self) -> Answer {
        let mut answer =
            Answer::of("text/html; charset=utf-8", PAGE.replace("{{nonce}}", &self.nonce));
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
             connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'",
            nonce = self.nonce
        );
        answer.headers.push(("Content-Security-Policy", policy));
        answer
    }
}

/// The answer to a client that does not show the token.
fn refused() -> Answer {
    let text = "give the token that deepheap serve has printed: ?token=..., or a header \
                Authorization: Bearer ...\n";
    let mut answer = Answer::text("401 Unauthorized", text);
    answer.headers.push(("WWW-Authenticate", "Bearer".to_owned()));
    answer
}

/// Compares in a time that does not tell where two texts differ.
fn is_same(given: &str, token: &str) -> bool {
    let pairs = given.bytes().zip(token.bytes());
    given.len() == token.len() && pairs.fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
