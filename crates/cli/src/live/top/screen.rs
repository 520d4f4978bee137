//! Screen of `top`: the list of processes and the help.
//!
//! Guarantees: readable in 80 columns and 24 rows, and without colours; a smaller screen
//! shows a part: what matters least goes first, as a whole.
//! Never: reads a process; it draws what the state holds.
//! Threads: pure functions.

use deepheap::internal::stats_report::{bytes, count, share};
use deepheap::stats::FaultKind;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};

use crate::live::top::look::{Glyphs, Look, fitting};
use crate::live::top::process;
use crate::live::top::state::{ORDERS, TopState};
use crate::live::watch::SeenProcess;

/// Rows of the panel below the list.
const PANEL_ROWS: u16 = 10;
/// Fewer rows than that have no panel.
const ROWS_WITH_PANEL: u16 = 18;

const HELP: [&str; 21] = [
    "up down       choose a process (also k j, page up, page down)",
    "enter         look into it; esc or left goes back",
    "s   r         sort by the next column; the other way round",
    "/             show only names with some letters; esc ends that",
    "space         stop the picture, and go on",
    "+   -         look less often, more often",
    "q             quit",
    "",
    "RAM           what deepheap uses of the budget, OF% how much of it:",
    "              in RAM (touched without a fault), compressed in RAM (a",
    "              touch is a fault, but reads nothing), tables",
    "HEAP          what the program has allocated, and mapped",
    "FAULTS/S      touches that waited; STORED/S: for the SSD,",
    "WAITED        part of its run time that it waited for want of RAM, now",
    "              (ended: the numbers are its last)",
    "CPU           processors that it keeps busy",
    "hits          faults that found their page compressed in RAM",
    "hottest code  functions whose accesses fault most, by samples,",
    "              whoever allocated the memory",
    "Processes of other users are seen by root only. deepheap stat PID has",
    "all counters.",
];

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, state: &mut TopState, look: Look) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    let chosen = state.chosen_pid();
    let inside = if state.is_inside { chosen } else { None };
    let columns = usize::from(head.width);
    frame.render_widget(title(state, columns, look), head);
    frame.render_widget(keys(state, columns, look), foot);
    let find = |processes: &mut Vec<SeenProcess>, pid| {
        processes.iter().position(|process| Some(process.pid) == pid)
    };
    match find(&mut state.processes, inside) {
        Some(at) => process::draw(frame, body, &mut state.processes[at], look),
        None => {
            let panel = if body.height >= ROWS_WITH_PANEL { PANEL_ROWS } else { 0 };
            let [list, panel] =
                Layout::vertical([Constraint::Min(0), Constraint::Length(panel)]).areas(body);
            draw_list(frame, list, state, look);
            if let Some(at) = find(&mut state.processes, chosen) {
                let shown = &state.processes[at];
                let (busy, command) = (process::state(shown), &shown.history.command);
                let name = format!(" {} ({}) {busy}: {command} ", shown.name, shown.pid);
                let block = bordered(look).border_style(look.dim()).title(name);
                let inner = block.inner(panel);
                frame.render_widget(block, panel);
                process::draw_summary(frame, inner, &mut state.processes[at], look);
            }
        }
    }
    if state.has_help {
        draw_help(frame, look);
    }
}

const PLAIN_BORDER: ratatui::symbols::border::Set<'static> = ratatui::symbols::border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

fn bordered(look: Look) -> Block<'static> {
    match look.glyphs {
        Glyphs::Blocks => Block::bordered(),
        Glyphs::Plain => Block::bordered().border_set(PLAIN_BORDER),
    }
}

fn title(state: &TopState, columns: usize, look: Look) -> Line<'static> {
    let running = || state.processes.iter().filter(|process| process.ended.is_none());
    let histories = || running().map(|process| &process.history);
    let used: u64 = histories().map(|history| history.ram().used()).sum();
    let budget: u64 = histories().map(|history| history.ram().budget).sum();
    let faults: f64 = histories().map(|history| history.newest().all_faults()).sum();
    let number = running().count();
    let processes = if number == 1 { "process" } else { "processes" };
    let ended = match state.processes.len() - number {
        0 => String::new(),
        ended => format!(", {ended} ended"),
    };
    let pause = if state.is_paused { "  PAUSED" } else { "" };
    let parts = [
        (3, format!("  {number} {processes}{ended}")),
        (1, format!(", RAM {} of {}", bytes(used), bytes(budget))),
        (2, format!(", {} faults/s", count(faults as u64))),
        (0, pause.to_owned()),
    ];
    const NAME: &str = "deepheap top";
    let left = columns.saturating_sub(NAME.len());
    let shown = fitting(parts.into(), left, |(_, text)| text.len(), |(rank, _)| *rank);
    let text: String = shown.into_iter().map(|(_, text)| text).collect();
    Line::from(vec![Span::styled(NAME, look.bold()), Span::raw(text)])
}

fn keys(state: &TopState, columns: usize, look: Look) -> Line<'static> {
    if state.is_typing {
        return Line::from(format!("names with: {}_   enter keeps it, esc ends it", state.filter));
    }
    let every = format!("+/- every {} s", state.interval);
    let keys = if state.is_inside {
        vec![(0, "esc back".to_owned()), (3, "space pause".to_owned()), (4, every)]
    } else {
        let filter = match state.filter.as_str() {
            "" => "/ filter".to_owned(),
            filter => format!("/ '{filter}'"),
        };
        let order = if state.is_reversed { " up" } else { "" };
        vec![
            (0, "enter look".to_owned()),
            (3, format!("s sort: {}{order}", ORDERS[state.sort].0)),
            (6, "r reverse".to_owned()),
            (4, filter),
            (5, every),
        ]
    };
    let keys = [keys, vec![(1, "? help".to_owned()), (2, "q quit".to_owned())]].concat();
    let shown = fitting(keys, columns + GAP, |(_, key)| key.len() + GAP, |(rank, _)| *rank);
    let shown: Vec<String> = shown.into_iter().map(|(_, key)| key).collect();
    Line::styled(shown.join("  "), look.dim())
}

/// Blanks between keys.
const GAP: usize = 2;

/// A column of the list.
struct Column {
    head: &'static str,
    /// The order that it is sorted by, or nothing.
    order: &'static str,
    width: u16,
    /// A narrow screen leaves out the highest first.
    rank: u8,
}

const COLUMNS: [Column; 11] = [
    Column { head: "    PID", order: "", width: 7, rank: 1 },
    Column { head: "NAME", order: "name", width: 13, rank: 0 },
    Column { head: "     RAM", order: "RAM", width: 8, rank: 2 },
    Column { head: " OF%", order: "", width: 4, rank: 8 },
    Column { head: "    HEAP", order: "heap", width: 8, rank: 6 },
    Column { head: "FAULTS/S", order: "faults", width: 8, rank: 4 },
    Column { head: "STORED/S", order: "stored", width: 8, rank: 5 },
    Column { head: "  WAITED", order: "", width: 8, rank: 3 },
    Column { head: "DEVICE/S", order: "device", width: 8, rank: 7 },
    Column { head: "  CPU", order: "", width: 5, rank: 9 },
    Column { head: "COMMAND", order: "", width: 16, rank: 10 },
];

fn draw_list(frame: &mut Frame<'_>, area: Rect, state: &TopState, look: Look) {
    let shown = state.shown();
    if shown.is_empty() {
        let text = if state.processes.is_empty() {
            "No process of yours runs under deepheap.\nStart one with 'deepheap run PROGRAM'."
        } else {
            "No process has a name with these letters: esc shows all."
        };
        frame.render_widget(Paragraph::new(Text::from(text)), area);
        return;
    }
    let all: Vec<usize> = (0..COLUMNS.len()).collect();
    let width_of = |at: &usize| usize::from(COLUMNS[*at].width) + 1;
    let fits = fitting(all, usize::from(area.width) + 1, width_of, |at| COLUMNS[*at].rank);
    let head = fits.iter().map(|&at| {
        let style = match (COLUMNS[at].order == ORDERS[state.sort].0, look.has_colour) {
            (false, _) => look.dim(),
            (true, true) => look.bold(),
            (true, false) => look.bold().add_modifier(Modifier::UNDERLINED),
        };
        Span::styled(COLUMNS[at].head, style)
    });
    let rows = shown.iter().map(|process| {
        let cells = cells(process);
        let row = Row::new(fits.iter().map(|&at| cells[at].clone()).collect::<Vec<_>>());
        if process.ended.is_some() { row.style(look.dim()) } else { row }
    });
    // The last one takes what is left.
    let widths = fits.iter().map(|&at| match (at + 1 == COLUMNS.len(), COLUMNS[at].width) {
        (true, least) => Constraint::Min(least),
        (false, width) => Constraint::Length(width),
    });
    let table = Table::new(rows, widths)
        .header(Row::new(head))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut chosen = TableState::default();
    chosen.select(state.chosen_row());
    frame.render_stateful_widget(table, area, &mut chosen);
}

fn cells(process: &SeenProcess) -> [String; COLUMNS.len()] {
    let (newest, ram) = (process.history.newest(), process.history.ram());
    let stored = FaultKind::Stored as usize;
    let of_budget = (ram.used() * 100).checked_div(ram.budget).unwrap_or(0);
    // In a column there is no room for more words.
    let waited = share(process.history.stats().stall_share_now_ppm);
    let waited = match process.ended {
        Some(_) => "ended".to_owned(),
        None => waited.replace("less than", "<"),
    };
    [
        format!("{:>7}", process.pid),
        process.name.clone(),
        format!("{:>8}", bytes(ram.used())),
        format!("{of_budget:>4}"),
        format!("{:>8}", bytes(process.history.heap_bytes())),
        format!("{:>8}", count(newest.all_faults() as u64)),
        format!("{:>8}", count(newest.faults[stored] as u64)),
        format!("{waited:>8}"),
        format!("{:>8}", bytes(newest.device_bytes() as u64)),
        format!("{:>5.2}", newest.cpus),
        process.history.command.clone(),
    ]
}

fn draw_help(frame: &mut Frame<'_>, look: Look) {
    let area = frame.area();
    let (width, height) = (74.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let area = Rect { x, y, width, height };
    let block = bordered(look).title(" any key goes on ");
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(Text::from_iter(HELP)).block(block), area);
}

#[cfg(test)]
mod tests;
