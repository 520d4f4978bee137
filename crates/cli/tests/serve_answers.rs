//! What `serve` answers a plain client and a browser: page, numbers, metrics; and to whom.

mod command;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command::{Folder, told};
use deepheap::internal::stats_page::StatsPage;
use deepheap::number;
use deepheap::stats::FaultKind;

/// A server, ended with the test.
struct Server {
    child: Child,
    address: String,
    token: String,
}

impl Server {
    fn start(folder: &Folder, arguments: &[&str]) -> Server {
        let mut command = folder.deepheap();
        command.arg("serve").args(arguments).args(["--listen", "127.0.0.1:0", "--every", "0.1"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start deepheap");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let (address, token) = line.trim().split_once("/?token=").expect("an address");
        let address = address.strip_prefix("http://").expect("http").to_owned();
        Server { child, address, token: token.to_owned() }
    }

    /// Status line with headers, and body.
    fn send(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("timeout");
        stream.write_all(request.as_bytes()).expect("send");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str) -> (String, String) {
        let between = if path.contains('?') { '&' } else { '?' };
        self.send(&format!("GET {path}{between}token={} HTTP/1.1\r\nHost: x\r\n\r\n", self.token))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes this process one under deepheap: with a budget, and with a fault.
fn show_this_process() {
    let page = StatsPage::create().expect("page");
    page.set(number!(budget_bytes), 256 << 20);
    page.record(0, FaultKind::Stored, 70_000);
}

#[test]
fn the_page_its_numbers_and_the_metrics_are_for_who_has_the_token() {
    show_this_process();
    let folder = Folder::new();
    let pid = std::process::id();
    let server = Server::start(&folder, &[&pid.to_string()]);
    assert!(server.token.len() == 32, "{}", server.token);

    for wrong in ["", "?token=", &format!("?token={}x", server.token), "?token=00"] {
        for path in ["/", "/data", "/metrics", "/nothing"] {
            let (head, body) = server.send(&format!("GET {path}{wrong} HTTP/1.1\r\n\r\n"));
            assert!(head.starts_with("HTTP/1.1 401 "), "{path}{wrong}: {head}");
            assert!(!body.contains("budget") && !body.contains(&server.token), "{body}");
        }
    }
    let (head, body) = server.get("/");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/html"), "{head}");
    assert!(head.contains("Content-Security-Policy: default-src 'none'"), "{head}");
    assert!(body.contains("Map of the heap") && !body.contains("{{nonce}}"), "{body}");
    // Nothing comes from elsewhere; a name space of SVG is no address.
    assert_eq!(body.matches("://").count(), body.matches("http://www.w3.org/2000/svg").count());

    // Until it has looked a second time: then there are series.
    let end = Instant::now() + Duration::from_secs(120);
    let (data, body) = loop {
        let (head, body) = server.get(&format!("/data?pid={pid}"));
        assert!(head.contains("application/json"), "{head}");
        let data: serde_json::Value = serde_json::from_str(&body).expect("json");
        let has = |name: &str| {
            let series = data["process"]["series"][name].as_array().expect("a list");
            !series.is_empty()
        };
        if ["stored", "cpus"].into_iter().all(has) {
            break (data, body);
        }
        assert!(Instant::now() < end, "{body}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(data["process"]["pid"], pid);
    assert_eq!(data["processes"][0]["budget_bytes"], 256 << 20);
    assert!(data["process"]["cpu_seconds"].is_f64(), "{body}");

    let bearer = format!("GET /metrics HTTP/1.1\r\nAuthorization: Bearer {}\r\n\r\n", server.token);
    let (head, body) = server.send(&bearer);
    let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    let sample = format!("deepheap_ram_budget_bytes{{pid=\"{pid}\",name=\"");
    assert!(body.contains(&sample) && body.ends_with("\n# EOF\n"), "{body}");
    assert!(server.get("/nothing").0.starts_with("HTTP/1.1 404 "));
    assert!(server.send("POST / HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 405 "));
    assert!(server.send("what\r\n\r\n").0.starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_process_that_has_ended_is_served_as_it_was_seen_last() {
    const NAME: &str = "a_process_that_has_ended_is_served_as_it_was_seen_last";
    const IS_SHOWN: &str = "DEEPHEAP_TEST_SHOWN";
    if std::env::var_os(IS_SHOWN).is_some() {
        show_this_process();
        println!("{IS_SHOWN}");
        std::io::stdin().read_to_end(&mut Vec::new()).expect("until it is closed");
        return;
    }
    let mut shown = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", NAME, "--nocapture"])
        .env(IS_SHOWN, "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start this test");
    let mut lines = BufReader::new(shown.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("a line").contains(IS_SHOWN)));
    let folder = Folder::new();
    let server = Server::start(&folder, &[&shown.id().to_string()]);
    let data =
        || -> serde_json::Value { serde_json::from_str(&server.get("/data").1).expect("json") };
    assert!(data()["process"]["over_ns"].is_null());
    drop(shown.stdin.take());
    assert!(shown.wait().expect("it ends").success());
    let last = loop {
        let data = data();
        if data["processes"][0]["has_ended"] == true {
            break data;
        }
    };
    assert!(last["process"]["over_ns"].is_u64(), "{last}");
    assert_eq!(last["process"]["stats"]["memory"]["budget_bytes"], 256 << 20, "{last}");
    let (_, metrics) = server.get("/metrics");
    assert!(!metrics.contains("pid="), "{metrics}");
}

#[test]
fn silent_clients_keep_nobody_waiting_and_all_shows_every_process() {
    let page = StatsPage::create().expect("page");
    page.set(number!(budget_bytes), 256 << 20);
    let folder = Folder::new();
    let token = folder.file("token", b"a-token-of-our-own\n", 0o600);
    let token = token.to_str().expect("utf8");
    let server = Server::start(&folder, &["--all", "--token-file", token]);
    assert_eq!(server.token, "a-token-of-our-own");
    // Each sends a part of a request, and no more.
    let silent = (0..64).map(|_| {
        let mut stream = TcpStream::connect(&server.address).expect("connect");
        stream.write_all(b"GET / HTTP/1.1\r\n").expect("send");
        stream
    });
    let silent: Vec<TcpStream> = silent.collect();
    let (_, body) = server.get("/data");
    drop(silent);
    assert!(body.contains(&format!("\"pid\":{}", std::process::id())), "{body}");
}

#[test]
fn a_client_that_sends_a_byte_now_and_then_is_left_in_the_end() {
    show_this_process();
    let folder = Folder::new();
    let server = Server::start(&folder, &[&std::process::id().to_string()]);
    let mut stream = TcpStream::connect(&server.address).expect("connect");
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("timeout");
    // So many headers are too long only after an hour.
    for _ in 0..300 {
        // It is closed: nothing can be sent, or the end can be read.
        if stream.write_all(b"x").is_err()
            || !matches!(stream.read(&mut [0]), Err(error) if
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted))
        {
            return;
        }
    }
    panic!("the connection stays");
}

#[test]
fn what_cannot_be_served_is_told() {
    let folder = Folder::new();
    let short = folder.file("short", b"abc\n", 0o600);
    let short = short.to_str().expect("utf8");
    for (arguments, status, words) in [
        (vec!["serve"], 2, "--all"),
        (vec!["serve", "--all", "--listen", "localhost"], 2, "127.0.0.1:7070"),
        (vec!["serve", "--all", "--listen", "192.0.2.1:80"], 2, "give another --listen"),
        (vec!["serve", "--all", "--token-file", short], 2, "openssl rand -hex 16"),
        (vec!["serve", "4194304"], 1, "there is no process"),
    ] {
        let (found, _, err) = told(&folder.output(&arguments));
        assert_eq!((found, err.contains(words)), (Some(status), true), "{arguments:?}: {err}");
    }
}

#[test]
fn a_browser_draws_the_page_without_trouble() {
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|done| done.status.success())
    });
    let Some(browser) = browser else {
        eprintln!("no browser here: nothing is looked at");
        return;
    };
    show_this_process();
    let folder = Folder::new();
    let pid = std::process::id();
    let server = Server::start(&folder, &[&pid.to_string()]);
    // Ended by `timeout`, should it hang.
    let done = Command::new("timeout")
        .args(["120", browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg("--virtual-time-budget=5000")
        .arg(format!("http://{}/?token={}", server.address, server.token))
        .output()
        .expect("start the browser");
    let drawn = String::from_utf8_lossy(&done.stdout);
    for part in [&format!("({pid})</h1>"), "0 B of 256 MiB", "<polyline", "id=\"trouble\"></span>"]
    {
        assert!(drawn.contains(part), "{part}: {:?}: {drawn}", done.status);
    }
}
