//! Redis: a fresh redis-server, as it is or under `deepheap run`, loaded by redis-benchmark.
//!
//! Guarantees: the server is stopped and its socket removed when `run` returns; nothing is
//! persisted; the data (100 000 keys of 64 bytes) fits any budget.
//! Threads: one.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::Settings;
use super::program;
use crate::failure::Failure;
use crate::ledger::{Entry, Ledger};
use crate::signals::{self, Watched};

const START_TRIES: u32 = 200;
const TRY_EVERY: Duration = Duration::from_millis(50);

/// A server that is stopped on drop.
struct Server {
    child: Child,
    _watched: Watched,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Requests a second of SET and of GET.
pub fn run(settings: &Settings, pipeline: u32, managed: bool) -> Result<Value, Failure> {
    let mut ledger = Ledger::open()?;
    let socket = std::env::temp_dir().join(Ledger::name("redis.sock"));
    ledger.note(Entry::File(socket.clone()))?;
    let server = start(settings, &socket, managed)?;

    let requests =
        if pipeline == 1 { 200_000 } else { 2_000_000 } / if settings.quick { 4 } else { 1 };
    let mut command = Command::new("redis-benchmark");
    command.arg("-s").arg(&socket);
    command.args(["-t", "set,get", "-r", "100000", "-d", "64", "-c", "50", "--csv"]);
    command.args(["-n", &requests.to_string(), "-P", &pipeline.to_string()]);
    signals::die_with_parent(&mut command);
    let text = program::output(&mut command)?;
    drop(server);

    let rate = |name: &str| {
        rate_of(&text, name)
            .ok_or_else(|| Failure::Failed(format!("redis-benchmark printed no {name}: {text}")))
    };
    Ok(json!({ "pipeline": pipeline, "requests": requests,
               "set_per_second": rate("SET")?, "get_per_second": rate("GET")? }))
}

fn start(settings: &Settings, socket: &Path, managed: bool) -> Result<Server, Failure> {
    let mut command = program::command(settings, "redis-server", managed)?;
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(socket);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn().map_err(|error| {
        Failure::os("redis-server (Debian: apt-get install redis-server redis-tools)", &error)
    })?;
    let watched = Watched::new(child.id())?;
    let mut server = Server { child, _watched: watched };
    for _ in 0..START_TRIES {
        signals::sleep(TRY_EVERY)?;
        if UnixStream::connect(socket).is_ok() {
            return Ok(server);
        }
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(Failure::Failed(format!("redis-server did not start: {status}")));
        }
    }
    Err(Failure::Failed(format!("redis-server does not listen on {}", socket.display())))
}

/// The second field of the line `"NAME","rate",...`.
fn rate_of(csv: &str, name: &str) -> Option<f64> {
    csv.lines().find_map(|line| {
        let mut fields = line.split(',').map(|field| field.trim_matches('"'));
        (fields.next()? == name).then(|| fields.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_from_the_csv() {
        let csv =
            "\"test\",\"rps\",\"avg\"\n\"SET\",\"1234.50\",\"0.1\"\n\"GET\",\"99.00\",\"0.1\"\n";
        assert_eq!(rate_of(csv, "SET"), Some(1234.5));
        assert_eq!(rate_of(csv, "GET"), Some(99.0));
        assert_eq!(rate_of(csv, "INCR"), None);
    }
}
