//! `top` in a pseudo-terminal: what comes out of it, and that the terminal is as it was afterwards.

mod command;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use command::Folder;
use deepheap::internal::stats_page::StatsPage;
use deepheap::number;

const PATIENCE: Duration = Duration::from_secs(120);
/// The way back from the alternate screen, and the cursor.
const LEAVE: &str = "\x1b[?1049l";
const CURSOR: &str = "\x1b[?25h";

/// The command in a terminal of 80 columns and 24 rows.
struct Terminal {
    master: File,
    child: Child,
    output: Receiver<Vec<u8>>,
    seen: String,
    screen: vt100::Parser,
    modes: libc::termios,
}

fn modes_of(terminal: &File) -> libc::termios {
    use std::os::fd::AsRawFd;
    // SAFETY: room for one termios.
    unsafe {
        let mut modes = core::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut modes), 0);
        modes
    }
}

/// Both ends of a new one of 80 columns and 24 rows.
fn pseudo_terminal() -> (File, OwnedFd) {
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: room for two descriptors, which are ours alone then.
    unsafe {
        let opened =
            libc::openpty(&mut master, &mut slave, core::ptr::null_mut(), core::ptr::null(), &size);
        assert_eq!(opened, 0, "openpty");
        // The command must not hold its own terminal open.
        libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::fcntl(slave, libc::F_SETFD, libc::FD_CLOEXEC);
        (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    }
}

impl Terminal {
    fn start(folder: &Folder, arguments: &[&str]) -> Terminal {
        let (master, slave) = pseudo_terminal();
        let modes = modes_of(&master);
        let end = || Stdio::from(slave.try_clone().expect("dup"));
        let mut command = folder.deepheap();
        command.args(arguments).stdin(end()).stdout(end()).stderr(end());
        command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env("NO_COLOR", "1");
        // SAFETY: both calls are async-signal-safe; the terminal becomes that of a new session.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().expect("start deepheap");
        drop(command);
        let (sender, output) = channel();
        let mut reader = master.try_clone().expect("dup");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // A terminal whose last user is gone answers EIO.
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                let _ = sender.send(bytes[..n].to_vec());
            }
        });
        let screen = vt100::Parser::new(24, 80, 0);
        Terminal { master, child, output, seen: String::new(), screen, modes }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.screen.process(bytes);
        self.seen.push_str(&String::from_utf8_lossy(bytes));
    }

    /// The lines of the screen, without the blanks at their ends.
    fn shown(&self) -> String {
        let contents = self.screen.screen().contents();
        contents.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// Waits until the words are on the screen.
    #[track_caller]
    fn expect(&mut self, words: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.shown().contains(words) {
            let left = until.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.take(&bytes),
                Err(_) => panic!("no '{words}' on:\n{}", self.shown()),
            }
        }
        // 39 is the terminal's own; a place on the screen begins as a colour does.
        let is_colour = |colour| self.seen.contains(&format!("\x1b[{colour}m"));
        let is_rich = ["38;5;", "38;2;"].iter().any(|colour| self.seen.contains(colour));
        assert!(!(30..38).any(is_colour) && !is_rich, "a colour: {:?}", self.seen);
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("press");
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        use std::os::fd::AsRawFd;
        self.screen.screen_mut().set_size(rows, columns);
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the size is read during the call.
        let set = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(set, 0);
    }

    /// That the command ends well and leaves the terminal as it found it.
    #[track_caller]
    fn ends_clean(mut self) {
        let status = self.child.wait().expect("wait");
        // To the end: its last user is gone.
        loop {
            match self.output.recv_timeout(PATIENCE) {
                Ok(bytes) => self.take(&bytes),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("somebody has the terminal still open"),
            }
        }
        assert!(status.success(), "{status}: {:?}", self.seen);
        assert!(self.seen.contains(LEAVE) && self.seen.contains(CURSOR), "{:?}", self.seen);
        let modes = modes_of(&self.master);
        assert_eq!(
            (modes.c_lflag, modes.c_iflag, modes.c_oflag),
            (self.modes.c_lflag, self.modes.c_iflag, self.modes.c_oflag)
        );
    }
}

#[test]
fn it_shows_this_process_heeds_keys_and_sizes_and_leaves_the_terminal_clean() {
    let page = StatsPage::create().expect("page");
    page.set(number!(budget_bytes), 256 << 20);
    let folder = Folder::new();
    let pid = std::process::id().to_string();

    let mut terminal = Terminal::start(&folder, &["top"]);
    terminal.expect("deepheap top");
    terminal.press("?");
    terminal.expect("any key goes on");
    terminal.press("x/top_in");
    terminal.expect("names with");
    terminal.press("\r\r");
    // The help has these words, too, without the bracket.
    terminal.expect("hottest code (");
    terminal.resize(120, 40);
    // The last line is the 40th now.
    terminal.expect(&("\n".repeat(15) + "esc back"));
    terminal.press("q");
    terminal.ends_clean();

    let mut terminal = Terminal::start(&folder, &["top", &pid, "--every", "0.25"]);
    terminal.expect(&format!("({pid})"));
    // SAFETY: our own child, which was not waited for.
    unsafe { libc::kill(terminal.child.id() as i32, libc::SIGTERM) };
    terminal.ends_clean();

    let mut terminal = Terminal::start(&folder, &["top"]);
    terminal.expect("q quit");
    terminal.press("\x03");
    terminal.ends_clean();
}

#[test]
fn a_terminal_that_hangs_up_ends_it_though_no_signal_tells() {
    let (mut master, slave) = pseudo_terminal();
    let end = || Stdio::from(slave.try_clone().expect("dup"));
    let folder = Folder::new();
    let mut command = folder.deepheap();
    command.arg("top").stdin(end()).stdout(end()).stderr(Stdio::null());
    // In a session without a terminal of its own nobody sends it SIGHUP.
    // SAFETY: the call is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child = command.spawn().expect("start deepheap");
    drop((command, slave));
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("q quit") {
        let mut bytes = [0; 4096];
        let read = master.read(&mut bytes).expect("its screen");
        seen.extend_from_slice(&bytes[..read]);
    }
    drop(master);
    let until = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().expect("wait") {
            Some(status) => break status,
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill().expect("kill");
                panic!("it still runs");
            }
        }
    };
    assert!(status.success(), "{status}");
}

#[test]
fn without_a_terminal_it_names_the_other_commands() {
    let (status, _, err) = command::told(&Folder::new().output(["top"]));
    assert_eq!((status, err.contains("deepheap stat")), (Some(2), true), "{err}");
}
