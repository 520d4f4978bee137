//! Screen of `top`: the list of processes and the help.
//!
//! Guarantees: readable in 80 columns and 24 rows, and without colours; a smaller screen
//! shows a part.
//! Never: reads a process; it draws what the state holds.
//! Threads: pure functions.

use deepheap::internal::stats_report::{bytes, count, share};
use deepheap::stats::FaultKind;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};

use crate::live::top::look::{Glyphs, Look};
use crate::live::top::process;
use crate::live::top::state::{ORDERS, TopState};
use crate::live::watch::SeenProcess;

/// Rows of the panel below the list.
const PANEL_ROWS: u16 = 10;
/// Fewer rows than that have no panel.
const ROWS_WITH_PANEL: u16 = 18;

const HELP: [&str; 19] = [
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
    "HEAP          what the program has allocated",
    "FAULTS/S      touches that waited; STORED/S: for the SSD,",
    "WAITED        part of its run time that it waited for want of RAM, now",
    "HIT           faults that found their page compressed in RAM",
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
    frame.render_widget(title(state, look), head);
    frame.render_widget(keys(state, look), foot);
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
                let name = format!(" {} ({}) ", state.processes[at].name, state.processes[at].pid);
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

fn title(state: &TopState, look: Look) -> Line<'static> {
    let histories = || state.processes.iter().map(|process| &process.history);
    let used: u64 = histories().map(|history| history.ram().used()).sum();
    let budget: u64 = histories().map(|history| history.ram().budget).sum();
    let faults: f64 = histories().map(|history| history.newest().all_faults()).sum();
    let number = state.processes.len();
    let processes = if number == 1 { "process" } else { "processes" };
    let pause = if state.is_paused { "  PAUSED" } else { "" };
    Line::from(vec![
        Span::styled("deepheap top", look.bold()),
        Span::raw(format!(
            "  {number} {processes}, RAM {} of {}, {} faults/s{pause}",
            bytes(used),
            bytes(budget),
            count(faults as u64),
        )),
    ])
}

fn keys(state: &TopState, look: Look) -> Line<'static> {
    if !state.message.is_empty() {
        return Line::styled(state.message.clone(), look.bold());
    }
    if state.is_typing {
        return Line::from(format!("names with: {}_   enter keeps it, esc ends it", state.filter));
    }
    let interval = state.interval;
    let keys = if state.is_inside {
        format!("esc back  space pause  +/- every {interval} s  ? help  q quit")
    } else {
        let filter = match state.filter.as_str() {
            "" => "/ filter".to_owned(),
            filter => format!("/ '{filter}'"),
        };
        let order = if state.is_reversed { " up" } else { "" };
        format!(
            "enter look  s sort: {}{order}  r reverse  {filter}  +/- every {interval} s  ? help  \
             q quit",
            ORDERS[state.sort].0,
        )
    };
    Line::styled(keys, look.dim())
}

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
    let columns = [
        ("    PID", "", 7),
        ("NAME", "name", 13),
        ("     RAM", "RAM", 8),
        (" OF%", "", 4),
        ("    HEAP", "heap", 8),
        ("FAULTS/S", "faults", 8),
        ("STORED/S", "stored", 8),
        ("  WAITED", "", 8),
        ("DEVICE/S", "device", 8),
    ];
    let head = columns.map(|(name, order, _)| {
        let style = match (order == ORDERS[state.sort].0, look.has_colour) {
            (false, _) => look.dim(),
            (true, true) => look.bold(),
            (true, false) => look.bold().add_modifier(Modifier::UNDERLINED),
        };
        Span::styled(name, style)
    });
    let rows = shown.iter().map(|process| row(process));
    let table = Table::new(rows, columns.map(|(_, _, width)| Constraint::Length(width)))
        .header(Row::new(head))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut chosen = TableState::default();
    chosen.select(state.chosen_row());
    frame.render_stateful_widget(table, area, &mut chosen);
}

fn row(process: &SeenProcess) -> Row<'static> {
    let (newest, ram) = (process.history.newest(), process.history.ram());
    let stored = FaultKind::Stored as usize;
    let of_budget = (ram.used() * 100).checked_div(ram.budget).unwrap_or(0);
    // In a column there is no room for more words.
    let waited = share(process.history.stats().stall_share_now_ppm);
    let waited = waited.replace("less than", "<");
    Row::new([
        format!("{:>7}", process.pid),
        process.name.clone(),
        format!("{:>8}", bytes(ram.used())),
        format!("{of_budget:>4}"),
        format!("{:>8}", bytes(process.history.stats().allocated_bytes)),
        format!("{:>8}", count(newest.all_faults() as u64)),
        format!("{:>8}", count(newest.faults[stored] as u64)),
        format!("{waited:>8}"),
        format!("{:>8}", bytes(newest.device_bytes() as u64)),
    ])
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
