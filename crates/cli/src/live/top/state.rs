//! State of `top`: the processes, what is chosen of them, and what a key does to that.
//!
//! Guarantees: the chosen process stays chosen wherever it moves in the list; those that have ended
//! come last; a key does one thing.
//! Never: draws, or reads a process.
//! Threads: none but main.

use deepheap::stats::FaultKind;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::live::watch::SeenProcess;

/// Seconds between two looks that can be chosen.
const INTERVALS: [f64; 6] = [0.25, 0.5, 1.0, 2.0, 5.0, 10.0];
/// Longest filter.
const FILTER_MAX: usize = 40;

/// By what a list is sorted: the word for it, and the number that counts.
type Order = (&'static str, fn(&SeenProcess) -> f64);

/// By what the list can be sorted, most first, in the order of the key `s`.
pub const ORDERS: [Order; 6] = [
    ("faults", |it| it.history.newest().all_faults()),
    ("stored", |it| it.history.newest().faults[FaultKind::Stored as usize]),
    ("RAM", |it| it.history.ram().used() as f64),
    ("heap", |it| it.history.heap_bytes() as f64),
    ("device", |it| it.history.newest().device_bytes()),
    // Of equal ones the name decides.
    ("name", |_| 0.0),
];

/// The request of a key to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing but to draw anew.
    Nothing,
    /// To end.
    Quit,
    /// To be stopped, as by Ctrl-Z.
    Stop,
}

/// Everything that a picture is made of.
pub struct TopState {
    /// The processes, in the order of the list.
    pub processes: Vec<SeenProcess>,
    /// By which of the orders they are sorted.
    pub sort: usize,
    /// Whether the least come first.
    pub is_reversed: bool,
    /// Only names with this are shown.
    pub filter: String,
    /// Whether keys go to the filter.
    pub is_typing: bool,
    /// Whether one process fills the screen.
    pub is_inside: bool,
    /// Whether the help is shown.
    pub has_help: bool,
    /// Whether nothing is read anew.
    pub is_paused: bool,
    /// Seconds between two looks.
    pub interval: f64,
    chosen: Option<u32>,
}

impl TopState {
    /// Nothing is known yet. With a process, one looks into that.
    pub fn new(interval: f64, inside: Option<u32>) -> TopState {
        TopState {
            processes: Vec::new(),
            sort: 0,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            is_inside: inside.is_some(),
            has_help: false,
            is_paused: false,
            interval,
            chosen: inside,
        }
    }

    /// The processes that are shown.
    pub fn shown(&self) -> Vec<&SeenProcess> {
        let filter = self.filter.to_lowercase();
        let fits = |process: &&SeenProcess| process.name.to_lowercase().contains(&filter);
        self.processes.iter().filter(fits).collect()
    }

    /// Where the chosen process is among those that are shown.
    pub fn chosen_row(&self) -> Option<usize> {
        let shown = self.shown();
        let row = shown.iter().position(|process| Some(process.pid) == self.chosen);
        row.or_else(|| (!shown.is_empty()).then_some(0))
    }

    /// The id of the chosen process.
    pub fn chosen_pid(&self) -> Option<u32> {
        self.chosen_row().and_then(|row| self.shown().get(row).map(|process| process.pid))
    }

    /// Brings the list in order; after each look.
    pub fn put_in_order(&mut self) {
        let (number, is_reversed) = (ORDERS[self.sort].1, self.is_reversed);
        self.processes.sort_by(|a, b| {
            let names = || a.name.cmp(&b.name).then_with(|| a.pid.cmp(&b.pid));
            let order = number(b).total_cmp(&number(a)).then_with(names);
            let order = if is_reversed { order.reverse() } else { order };
            a.ended.is_some().cmp(&b.ended.is_some()).then(order)
        });
    }

    /// A key was pressed.
    pub fn press(&mut self, key: KeyEvent) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Wish::Quit,
                KeyCode::Char('z') => Wish::Stop,
                _ => Wish::Nothing,
            };
        }
        if self.has_help {
            self.has_help = false;
            return Wish::Nothing;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.is_inside => {
                self.is_inside = false;
            }
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return Wish::Quit,
            KeyCode::Enter | KeyCode::Right => {
                // Which one that is must not change with the order.
                self.chosen = self.chosen_pid();
                self.is_inside = self.chosen.is_some();
            }
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::PageUp => self.choose(-10),
            KeyCode::PageDown => self.choose(10),
            KeyCode::Home => self.choose(isize::MIN / 2),
            KeyCode::End => self.choose(isize::MAX / 2),
            KeyCode::Char('s') => {
                self.sort = (self.sort + 1) % ORDERS.len();
                self.put_in_order();
            }
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.put_in_order();
            }
            KeyCode::Char('/') => {
                self.is_inside = false;
                self.is_typing = true;
            }
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.has_help = true,
            KeyCode::Char(' ' | 'p') => self.is_paused = !self.is_paused,
            KeyCode::Char('+') => self.change_interval(1),
            KeyCode::Char('-') => self.change_interval(-1),
            _ => {}
        }
        Wish::Nothing
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.len() < FILTER_MAX => self.filter.push(letter),
            _ => {}
        }
    }

    /// Chooses the process so many rows below.
    fn choose(&mut self, rows: isize) {
        let shown = self.shown();
        let Some(row) = self.chosen_row() else { return };
        let row = row.saturating_add_signed(rows).min(shown.len() - 1);
        self.chosen = Some(shown[row].pid);
    }

    /// Takes the next longer or shorter interval.
    fn change_interval(&mut self, steps: isize) {
        let longer = INTERVALS.iter().position(|interval| *interval > self.interval + 1e-9);
        let shorter = INTERVALS.iter().rposition(|interval| *interval < self.interval - 1e-9);
        if let Some(at) = if steps > 0 { longer } else { shorter } {
            self.interval = INTERVALS[at];
        }
    }
}
