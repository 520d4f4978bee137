//! Top command: all processes under deepheap, live.
//!
//! Guarantees: the terminal is as it was after every exit that leaves us a chance: `q`, Ctrl-C, a
//! signal that asks for the end, a panic, a terminal that hung up; and while it is stopped.
//! Never: slows the processes down: it only reads their statistics pages.
//! Threads: none but main, and what crossterm needs for the size of the window.

pub(crate) mod look;
pub(crate) mod process;
pub(crate) mod screen;
pub(crate) mod state;

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::io::{IsTerminal, stdin, stdout};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::arguments::Top;
use crate::live::top::look::{Glyphs, Look};
use crate::live::top::screen::draw;
use crate::live::top::state::{TopState, Wish};
use crate::live::watch::Watch;
use crate::refusal::{Refusal, wants_colour};

/// How long a signal may wait for us.
const PATIENCE: Duration = Duration::from_millis(250);

/// Set by a signal that asks for the end.
static MUST_END: AtomicBool = AtomicBool::new(false);

/// Shows it until it is told to end.
pub fn top(arguments: &Top) -> Result<(), Refusal> {
    if !stdout().is_terminal() || !stdin().is_terminal() {
        return Err(Refusal::new(
            "deepheap top needs a terminal: use 'deepheap stat PID', or 'deepheap serve --all'",
        ));
    }
    let mut state = TopState::new(arguments.every, arguments.pid);
    let mut watch = Watch::new(true);
    if let Some(pid) = arguments.pid {
        watch.add(pid, &mut state.processes)?;
    }
    watch.search(&mut state.processes);
    state.put_in_order();
    let look = Look { has_colour: wants_colour(&stdout()), glyphs: Glyphs::of_environment() };
    end_on_signals();
    let mut screen = Screen::open()?;
    let mut read = Instant::now();
    while !MUST_END.load(Relaxed) {
        if screen.terminal.draw(|frame| draw(frame, &mut state, look)).is_err() {
            // The terminal is gone, and nobody is there to be told.
            return Ok(());
        }
        match wait(&mut state, read)? {
            Wish::Quit => break,
            Wish::Stop => screen = screen.stop()?,
            Wish::Nothing => {}
        }
        if read.elapsed().as_secs_f64() >= state.interval {
            read = Instant::now();
            if !state.is_paused {
                watch.look(&mut state.processes, |_| false);
                state.put_in_order();
            }
        }
    }
    Ok(())
}

/// Waits for keys until it is time to read again, or one of them changed the picture.
fn wait(state: &mut TopState, read: Instant) -> Result<Wish, Refusal> {
    let failed = |error| Refusal::new(format!("the terminal cannot be read: {error}"));
    loop {
        let interval = Duration::from_secs_f64(state.interval);
        let left = interval.saturating_sub(read.elapsed());
        if left.is_zero() || MUST_END.load(Relaxed) {
            return Ok(Wish::Nothing);
        }
        if is_hung_up_within(left.min(PATIENCE)) {
            return Ok(Wish::Quit);
        }
        if !event::poll(Duration::ZERO).map_err(failed)? {
            continue;
        }
        match event::read().map_err(failed)? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                return Ok(state.press(key));
            }
            Event::Resize(..) => return Ok(Wish::Nothing),
            _ => {}
        }
    }
}

/// Waits so long, or until there is a key or a signal. True if the terminal is gone: crossterm
/// would read from it for ever. SIGHUP tells it only to processes whose own terminal it was.
fn is_hung_up_within(time: Duration) -> bool {
    let mut keys = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    // SAFETY: it gets one such structure, which outlives the call.
    unsafe { libc::poll(&mut keys, 1, time.as_millis().max(1) as libc::c_int) };
    keys.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}

/// The terminal while it is ours; given back when dropped.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    fn open() -> Result<Screen, Refusal> {
        // It gives the terminal back after a panic, too.
        let terminal = ratatui::try_init().map_err(|error| {
            Refusal::new(format!("the terminal cannot be used: {error}: see 'deepheap stat'"))
        })?;
        Ok(Screen { terminal })
    }

    /// Stops this process as the terminal does on Ctrl-Z; returns when it goes on.
    fn stop(self) -> Result<Screen, Refusal> {
        drop(self);
        // SAFETY: sends a signal to our own process group, as the terminal would.
        unsafe { libc::kill(0, libc::SIGTSTP) };
        Screen::open()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone there is nothing to give back.
        let _ = ratatui::try_restore();
    }
}

extern "C" fn must_end(_signal: libc::c_int) {
    MUST_END.store(true, Relaxed);
    // Where the terminal is gone, the wait for keys does not return: then SIGALRM ends the process.
    // SAFETY: async-signal-safe, and nobody else uses the alarm.
    unsafe { libc::alarm(2) };
}

/// Has the signals that ask for the end, end the loop.
fn end_on_signals() {
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        let handler = must_end as extern "C" fn(libc::c_int);
        // SAFETY: the handler makes one system call and stores to an atomic.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
}
