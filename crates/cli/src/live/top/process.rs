//! One process in `top`: its RAM, faults, device and hottest code.
//!
//! Guarantees: fits 80 columns and 22 rows; with fewer no number is cut.
//! Never: reads a process, but for the names of its code.
//! Threads: none but main.

use deepheap::internal::stats_report::{
    bytes, compression, count, duration, longest_wait, second_tier, waited_share,
};
use deepheap::stats::FaultKind;
use deepheap_tools::drive::{DAY_SECONDS, ENDURANCE_BYTES, in_words};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use crate::live::history::History;
use crate::live::stat::screen::uptime;
use crate::live::top::look::{Look, clauses, columns_of, fitting, sparkline};
use crate::live::watch::SeenProcess;

/// Columns of labels.
const LABEL_COLUMNS: usize = 9;
/// Most columns of the bar of RAM, and those of the words on its line.
const BAR_COLUMNS: usize = 120;
const BAR_WORDS_COLUMNS: usize = 30;
/// Most columns of a sparkline.
const SPARK_COLUMNS: usize = 60;
/// Columns of the words on a line with the sparklines of faults, and of the device.
const FAULT_WORDS_COLUMNS: usize = 38;
const DEVICE_WORDS_COLUMNS: usize = 46;
/// Longest name of a function that is shown.
const FUNCTION_COLUMNS: usize = 48;

/// All of it.
pub fn draw(frame: &mut Frame<'_>, area: Rect, process: &mut SeenProcess, look: Look) {
    let stats = *process.history.stats();
    let columns = usize::from(area.width);
    let labelled = |label, text, look| labelled(label, text, columns, look);
    let state = if stats.managing != 0 { "managed" } else { "in RAM, nothing is managed yet" };
    let was = if process.ended.is_some() { "was " } else { "" };
    let up = format!("{}, {was}up {}", self::state(process), uptime(stats.uptime_ns));
    let mut lines = vec![Line::from(vec![
        Span::styled(format!("{} ({})", process.name, process.pid), look.bold()),
        Span::raw(format!("  {up}  heap is {state}  ")),
        Span::styled(process.history.command.clone(), look.dim()),
    ])];
    lines.extend(ram(&process.history, columns, look));
    let [heap, stored, unmanaged] =
        [process.history.heap_bytes(), stats.stored_bytes, stats.unmanaged_bytes].map(bytes);
    let heap = format!("{heap} allocated, {stored} on SSD; beside it {unmanaged} not managed");
    lines.push(labelled("heap", heap, look));
    let compression = compression(&stats).unwrap_or("nothing was compressed".to_owned());
    lines.push(labelled("compress", compression, look));
    lines.push(labelled("hits", hits(&process.history), look));
    lines.push(Line::default());
    lines.extend(faults(&process.history, columns, look));
    lines.push(labelled(
        "waited",
        format!("{}; {}", waited_share(&stats), longest_wait(&stats)),
        look,
    ));
    lines.push(Line::default());
    lines.extend(device(&process.history, columns, look));
    lines.push(Line::default());
    let rows = usize::from(area.height).saturating_sub(lines.len() + 1);
    lines.extend(hottest(process, rows, look));
    frame.render_widget(Paragraph::new(Text::from(lines)), area);
}

/// The most important lines.
pub fn draw_summary(frame: &mut Frame<'_>, area: Rect, process: &mut SeenProcess, look: Look) {
    let columns = usize::from(area.width);
    let mut lines = ram(&process.history, columns, look);
    lines.extend(faults(&process.history, columns, look));
    lines.extend(device(&process.history, columns, look).into_iter().take(1));
    frame.render_widget(Paragraph::new(Text::from(lines)), area);
}

/// Since when it has ended, or how busy it is.
pub fn state(process: &SeenProcess) -> String {
    match process.over_ns() {
        Some(ns) => format!("ended {} ago", uptime(ns)),
        None => format!("{:.2} CPU", process.history.newest().cpus),
    }
}

fn labelled(label: &'static str, text: String, columns: usize, look: Look) -> Line<'static> {
    let text = clauses(&text, columns.saturating_sub(LABEL_COLUMNS)).to_owned();
    Line::from(vec![label_of(label, look), Span::raw(text)])
}

fn label_of(label: &'static str, look: Look) -> Span<'static> {
    Span::styled(format!("{label:<LABEL_COLUMNS$}"), look.dim())
}

/// How long each of so many pictures may be on a line with words.
fn spark_columns(columns: usize, words: usize) -> usize {
    SPARK_COLUMNS.min(columns.saturating_sub(words) / 2)
}

fn ram(history: &History, columns: usize, look: Look) -> Vec<Line<'static>> {
    let ram = history.ram();
    let free = ram.budget.saturating_sub(ram.used());
    let parts = [ram.in_ram, ram.compressed, ram.tables, free];
    let colours = [Color::Green, Color::Cyan, Color::Yellow, Color::DarkGray];
    let fills = look.glyphs.fills();
    let mut bar = vec![label_of("RAM", look)];
    let mut legend = Vec::new();
    let longest = BAR_COLUMNS.min(columns.saturating_sub(BAR_WORDS_COLUMNS));
    let widths = columns_of(parts, ram.budget.max(ram.used()), longest);
    let names = ["in RAM", "compressed", "tables", "free"];
    for (at, filled) in widths.into_iter().enumerate() {
        let style = look.colour(colours[at]);
        bar.push(Span::styled(String::from_iter(core::iter::repeat_n(fills[at], filled)), style));
        let fill = Span::styled(format!("  {}", fills[at]), style);
        legend.push([fill, Span::raw(format!(" {} {}", names[at], bytes(parts[at])))]);
    }
    bar.push(Span::raw(format!(" {} of {}", bytes(ram.used()), bytes(ram.budget))));
    // What is free follows from the others.
    let ranked: Vec<_> = legend.into_iter().zip(0_u8..).collect();
    let width = |part: &([Span<'_>; 2], u8)| part.0.iter().map(Span::width).sum();
    let legend = fitting(ranked, columns, width, |part| part.1);
    vec![Line::from(bar), Line::from_iter(legend.into_iter().flat_map(|(part, _)| part))]
}

fn hits(history: &History) -> String {
    let newest = history.newest();
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let stats = history.stats();
    let (cached, stored) = (stats.fault_cached.count as f64, stats.fault_stored.count as f64);
    let all = if cached + stored > 0.0 { percent(cached / (cached + stored)) } else { "-".into() };
    let now = newest.hit_rate().map_or("-".to_owned(), percent);
    format!(
        "{now} found compressed in RAM, {all} in all; ahead {}/s, out {}/s",
        count(newest.prefetched as u64),
        count(newest.evicted as u64),
    )
}

fn faults(history: &History, columns: usize, look: Look) -> Vec<Line<'static>> {
    let newest = history.newest();
    let spark = spark_columns(columns, FAULT_WORDS_COLUMNS);
    let mut lines = vec![Line::styled(
        format!(
            "{:<10}{:>6}  {:<spark$} {:>8} {:>8}  {}",
            "faults", "a sec.", "rate", "p50", "p99", "p99 so far"
        ),
        look.dim(),
    )];
    for kind in FaultKind::ALL {
        let at = kind as usize;
        let rates = history.moments().map(|moment| moment.faults[at]);
        let p99s = history.moments().map(|moment| moment.took[at].p99_ns as f64);
        let took = newest.took[at];
        let time = |ns| if ns == 0 { "-".to_owned() } else { duration(ns) };
        let colour = match kind {
            FaultKind::Stored => Color::Red,
            FaultKind::Cached => Color::Cyan,
            FaultKind::Zero => Color::Green,
            FaultKind::Waited => Color::Yellow,
        };
        lines.push(Line::from(vec![
            Span::raw(format!("{:<10}{:>6}  ", kind.word(), count(newest.faults[at] as u64))),
            Span::styled(sparkline(rates, spark, look.glyphs), look.colour(colour)),
            Span::raw(format!(" {:>8} {:>8}  ", time(took.p50_ns), time(took.p99_ns))),
            Span::styled(sparkline(p99s, spark, look.glyphs), look.colour(colour)),
        ]));
    }
    lines
}

fn device(history: &History, columns: usize, look: Look) -> Vec<Line<'static>> {
    let (newest, stats) = (history.newest(), history.stats());
    let reads = history.moments().map(|moment| moment.read_bytes);
    let writes = history.moments().map(|moment| moment.written_bytes);
    let spark = spark_columns(columns, DEVICE_WORDS_COLUMNS);
    let labelled = |label, text, look| labelled(label, text, columns, look);
    let rates = Line::from(vec![
        label_of("device", look),
        Span::raw(format!("read {:>8}/s ", bytes(newest.read_bytes as u64))),
        Span::styled(sparkline(reads, spark, look.glyphs), look.colour(Color::LightBlue)),
        Span::raw(format!("  written {:>8}/s ", bytes(newest.written_bytes as u64))),
        Span::styled(sparkline(writes, spark, look.glyphs), look.colour(Color::Magenta)),
    ]);
    let amplification = stats.write_amplification();
    let amplification = amplification.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    let (read, written) = (bytes(stats.device_read_bytes), bytes(stats.device_write_bytes));
    let totals =
        format!("{read} read, {written} written in all, write amplification {amplification}");
    let life = labelled("life", life(history), look);
    let mut lines = vec![rates, labelled("", totals, look), life];
    lines.extend(second_tier(stats).map(|tier| labelled("tier", tier, look)));
    lines.extend(history.years_without_tier().map(|years| {
        let years = in_words(Some(years));
        labelled("", format!("the SSD would last {years} if all of that went there"), look)
    }));
    lines
}

/// How long a device lasts that is written as it is now.
fn life(history: &History) -> String {
    let Some(years) = history.years_of_device() else {
        return "nothing is written".to_owned();
    };
    let time = in_words(Some(years));
    let endurance = ENDURANCE_BYTES / 1e12;
    let a_day = bytes((history.mean_written_bytes() * DAY_SECONDS) as u64);
    format!("{a_day} a day at this rate; {time} for an SSD rated {endurance:.0} TB")
}

fn hottest(process: &mut SeenProcess, rows: usize, look: Look) -> Vec<Line<'static>> {
    let sites = process.hottest(rows);
    let head = "hottest code (where the program faults; part of all faults, by samples)";
    let mut lines = vec![Line::styled(head, look.dim())];
    if sites.is_empty() {
        lines.push(Line::from("  no fault was seen yet"));
    }
    for (share, site) in sites {
        let mut function: String = site.function.chars().take(FUNCTION_COLUMNS).collect();
        if function.len() < site.function.len() {
            function.push('~');
        }
        lines.push(Line::from(vec![
            Span::raw(format!("{:>5.1} %  {function}  ", share * 100.0)),
            Span::styled(site.file, look.dim()),
        ]));
    }
    lines
}
