//! SQLite: a table of records in a database with a write-ahead log, by its own command, which gets
//! statements through a pipe and answers through another; it ends at the first error.
//!
//! Guarantees: `synchronous=FULL`: a commit is durable.
//! Threads: one; SQLite's own process, in the same memory cgroup.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::contender::{Contender, Shape, text};

/// The command, and what it is asked and answers.
pub struct Sqlite {
    child: Child,
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    is_writing: bool,
}

impl Sqlite {
    /// A new database with an empty table, and so much of the RAM as its cache; the rest is for
    /// the page cache, through which it reads and writes.
    pub fn create(shape: &Shape<'_>) -> Result<Sqlite, String> {
        let mut command = Command::new("sqlite3");
        command.args(["-batch", "-bail"]).arg(shape.folder.join("records.db"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        crate::signals::die_with_parent(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| format!("the command sqlite3 does not run: {error}; install it"))?;
        let answers = child.stdout.take().ok_or("sqlite3 has no output")?;
        let asks = child.stdin.take();
        let mut sqlite =
            Sqlite { child, asks, answers: BufReader::new(answers), is_writing: false };
        let cache_kib = shape.ram_bytes / 2 / 1024;
        let answer = sqlite.ask(&format!(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-{cache_kib}; \
             CREATE TABLE records (key INTEGER PRIMARY KEY, value BLOB);"
        ))?;
        match answer.trim() {
            "wal" => Ok(sqlite),
            other => Err(format!("sqlite3 answers {other}")),
        }
    }

    fn tell(&mut self, statements: &str) -> Result<(), String> {
        let asks = self.asks.as_mut().ok_or("sqlite3 has ended")?;
        writeln!(asks, "{statements}").map_err(text)
    }

    /// What it answers to these statements, line by line.
    fn ask(&mut self, statements: &str) -> Result<String, String> {
        self.tell(&format!("{statements}\n.print end"))?;
        let (mut all, mut line) = (String::new(), String::new());
        loop {
            line.clear();
            match self.answers.read_line(&mut line).map_err(text)? {
                0 => return Err("sqlite3 has ended".into()),
                _ if line == "end\n" => return Ok(all),
                _ => all.push_str(&line),
            }
        }
    }
}

impl Contender for Sqlite {
    fn read(&mut self, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let answer = self.ask(&format!("SELECT hex(value) FROM records WHERE key={key};"))?;
        let digits = answer.trim().as_bytes().chunks(2);
        let byte = |two: &[u8]| u8::from_str_radix(core::str::from_utf8(two).ok()?, 16).ok();
        let value: Option<Vec<u8>> = digits.map(byte).collect();
        see(&value.ok_or_else(|| format!("sqlite3 answers {answer}"))?);
        Ok(())
    }

    fn write(&mut self, key: u64, value: &[u8]) -> Result<(), String> {
        let mut statement = String::new();
        if !self.is_writing {
            statement.push_str("BEGIN; ");
            self.is_writing = true;
        }
        let _ = write!(statement, "INSERT OR REPLACE INTO records VALUES ({key}, x'");
        value.iter().for_each(|byte| {
            let _ = write!(statement, "{byte:02x}");
        });
        statement.push_str("');");
        self.tell(&statement)
    }

    fn commit(&mut self) -> Result<(), String> {
        self.is_writing = false;
        match self.ask("COMMIT;")?.trim() {
            "" => Ok(()),
            other => Err(format!("sqlite3 answers {other}")),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        if self.is_writing { self.commit() } else { Ok(()) }
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.asks = None;
        let _ = self.child.wait();
    }
}
