//! What the screens of `top` show, and what the keys do to them.

use std::time::{Duration, Instant};

use deepheap::internal::stats_page::StatsPage;
use deepheap::number;
use deepheap::stats::FaultKind;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::*;
use crate::live::history::History;
use crate::live::top::state::Wish;

const MIB: u64 = 1 << 20;

/// A process that has `faults` on stored pages in its last interval.
fn seen_process(pid: u32, name: &str, faults: u64) -> SeenProcess {
    let page = StatsPage::create().expect("page");
    page.set(number!(budget_bytes), 256 * MIB);
    page.set(number!(page_buffer_bytes), 128 * MIB);
    page.set(number!(cache_bytes), 64 * MIB);
    page.set(number!(object_table_bytes), 32 * MIB);
    page.set(number!(allocated_bytes), 1000 * MIB);
    page.set_managing(true);
    let mut history = History::new(page, std::process::id());
    for _ in 0..faults {
        page.record(0, FaultKind::Stored, 70_000);
        page.record(0, FaultKind::Cached, 3_000);
        page.sample(0, libc::getppid as *const () as usize);
    }
    page.add(0, number!(device_write_bytes), 100 * MIB);
    std::thread::sleep(Duration::from_millis(5));
    history.add(page, std::process::id());
    SeenProcess::new(pid, name, history)
}

fn state() -> TopState {
    let mut state = TopState::new(1.0, None);
    state.processes.push(seen_process(11, "quiet", 16));
    state.processes.push(seen_process(4_194_300, "redis-server", 3200));
    state.processes.push(seen_process(13, "postgres", 800));
    state.put_in_order();
    state
}

const PLAIN: Look = Look { has_colour: false, glyphs: Glyphs::Plain };
const RICH: Look = Look { has_colour: true, glyphs: Glyphs::Blocks };

fn drawn(state: &mut TopState, look: Look, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("backend");
    terminal.draw(|frame| draw(frame, state, look)).expect("draw");
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let rows = buffer.content.chunks(width);
    let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    rows.map(|row| row.trim_end().to_owned() + "\n").collect()
}

fn press(state: &mut TopState, code: KeyCode) -> Wish {
    state.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn order(state: &TopState) -> Vec<u32> {
    state.shown().iter().map(|process| process.pid).collect()
}

#[test]
fn the_list_has_the_busiest_first_and_a_panel_of_the_chosen_one() {
    let shown = text(&drawn(&mut state(), PLAIN, 80, 24));
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("deepheap top  3 processes, RAM 672 MiB of 768 MiB"), "{shown}");
    assert!(lines[1].ends_with("DEVICE/S"), "{shown}");
    assert!(lines[2].starts_with("4194300 redis-server   224 MiB   87 0.98 GiB"), "{shown}");
    assert!(lines[3].contains("postgres") && lines[4].contains("quiet"), "{shown}");
    for words in ["+ redis-server (4194300) ", " CPU: ", "# in RAM 128 MiB", "t tables 32.0 MiB"] {
        assert!(shown.contains(words), "'{words}' is not in:\n{shown}");
    }
    // Nothing is cut at the frame.
    for words in ["224 MiB of 256 MiB", ". free 32.0 MiB"] {
        assert!(shown.contains(words), "'{words}' is not in:\n{shown}");
    }
    assert!(lines[23].ends_with("? help  q quit"), "{shown}");
}

#[test]
fn one_process_shows_everything_in_80_columns_and_24_rows() {
    let mut state = state();
    press(&mut state, KeyCode::Enter);
    let shown = text(&drawn(&mut state, PLAIN, 80, 24));
    for words in [
        "redis-server (4194300)",
        "224 MiB of 256 MiB",
        "t tables 32.0 MiB  . free 32.0 MiB",
        "hits     50 % found compressed in RAM",
        "stored",
        "device",
        "SSD rated 600 TB",
        "100.0 %  0x",
        "esc back",
    ] {
        assert!(shown.contains(words), "'{words}' is not in:\n{shown}");
    }
}

#[test]
fn a_narrow_screen_cuts_no_number_and_leaves_out_what_matters_least() {
    let mut state = state();
    let mut shown = |is_inside, width, height| {
        state.is_inside = is_inside;
        let shown = text(&drawn(&mut state, PLAIN, width, height));
        // Names are cut.
        let shown: Vec<&str> = shown.lines().filter(|line| !line.contains("heap is")).collect();
        shown.join("\n")
    };
    let numbers = |text: &str| -> Vec<String> {
        let words = text.split_whitespace().map(|word| word.trim_end_matches([',', ';']));
        words
            .filter(|word| word.contains(|c: char| c.is_ascii_digit()))
            .map(str::to_owned)
            .collect()
    };
    for is_inside in [false, true] {
        let all = numbers(&shown(is_inside, 80, 24));
        for width in 56..80 {
            let narrow = shown(is_inside, width, 15);
            let before_code = narrow.split("hottest").next().expect("a part");
            let cut = numbers(before_code).into_iter().find(|word| !all.contains(word));
            assert_eq!(cut, None, "{width} columns:\n{narrow}");
        }
    }
    let list = shown(false, 60, 15);
    let head = list.lines().nth(1).expect("a head");
    assert!(head.contains("RAM") && head.contains("FAULTS/S") && head.contains("WAITED"), "{list}");
    assert!(!head.contains("OF%") && !head.contains("HEAP") && !head.contains("DEVICE"), "{list}");
    assert!(list.starts_with("deepheap top, RAM 672 MiB of 768 MiB, "), "{list}");
    assert!(list.trim_end().ends_with("q quit"), "{list}");
    let inside = shown(true, 60, 15);
    for words in ["224 MiB of 256 MiB", "t tables 32.0 MiB", "waited"] {
        assert!(inside.contains(words), "'{words}' is not in:\n{inside}");
    }
    assert!(!inside.contains("free"), "{inside}");
}

#[test]
fn without_colours_there_are_none_and_without_blocks_all_is_ascii() {
    for inside in [false, true] {
        let mut state = state();
        state.is_inside = inside;
        for help in [false, true] {
            state.has_help = help;
            let buffer = drawn(&mut state, PLAIN, 80, 24);
            for cell in &buffer.content {
                assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
                assert!(cell.symbol().is_ascii(), "{}", cell.symbol());
            }
        }
    }
    let colours = drawn(&mut state(), RICH, 80, 24);
    assert!(colours.content.iter().any(|cell| cell.fg == Color::Green), "canary");
}

#[test]
fn no_size_of_the_screen_is_too_small_or_too_large() {
    let mut state = state();
    for (width, height) in [(1, 1), (3, 40), (40, 3), (60, 18), (79, 23), (200, 60)] {
        for view in 0..3 {
            (state.is_inside, state.has_help) = (view == 1, view == 2);
            drawn(&mut state, RICH, width, height);
        }
    }
    drawn(&mut TopState::new(1.0, None), RICH, 1, 1);
}

#[test]
fn keys_sort_choose_filter_and_explain() {
    let mut state = state();
    assert_eq!(order(&state), [4_194_300, 13, 11]);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.chosen_pid(), Some(13));
    press(&mut state, KeyCode::Char('r'));
    assert_eq!(order(&state), [11, 13, 4_194_300]);
    assert_eq!(state.chosen_pid(), Some(13), "it stays chosen where it moves");
    press(&mut state, KeyCode::Char('r'));
    (0..5).for_each(|_| _ = press(&mut state, KeyCode::Char('s')));
    assert_eq!((ORDERS[state.sort].0, order(&state)), ("name", vec![13, 11, 4_194_300]));

    "/reD".chars().for_each(|letter| _ = press(&mut state, KeyCode::Char(letter)));
    assert!(text(&drawn(&mut state, PLAIN, 80, 24)).contains("names with: reD_"));
    press(&mut state, KeyCode::Enter);
    assert_eq!((order(&state), state.chosen_pid()), (vec![4_194_300], Some(4_194_300)));
    "/xq".chars().for_each(|letter| _ = press(&mut state, KeyCode::Char(letter)));
    assert!(text(&drawn(&mut state, PLAIN, 80, 24)).contains("No process has a name"));
    press(&mut state, KeyCode::Esc);
    assert_eq!(order(&state).len(), 3);

    press(&mut state, KeyCode::Char('?'));
    assert!(text(&drawn(&mut state, PLAIN, 80, 24)).contains("any key goes on"));
    assert_eq!(press(&mut state, KeyCode::Char('q')), Wish::Nothing, "it closes the help");
    press(&mut state, KeyCode::Char('+'));
    assert_eq!(state.interval, 2.0);
    (0..9).for_each(|_| _ = press(&mut state, KeyCode::Char('-')));
    assert_eq!(state.interval, 0.25);
    assert_eq!(press(&mut state, KeyCode::Char('q')), Wish::Quit);
    let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
    assert_eq!((state.press(control('c')), state.press(control('z'))), (Wish::Quit, Wish::Stop));
}

#[test]
fn a_process_that_has_ended_keeps_its_last_picture_and_comes_last_in_the_list() {
    let begun = Instant::now();
    let mut state = state();
    press(&mut state, KeyCode::Enter);
    let before = text(&drawn(&mut state, PLAIN, 80, 24));
    let busiest = &mut state.processes[0];
    busiest.ended = Some(Instant::now());
    state.put_in_order();
    let inside = text(&drawn(&mut state, PLAIN, 80, 24));
    // Seconds, of which none have passed unless the machine is slow.
    let seconds = |before: &str| {
        let rest = inside.split_once(before).expect("how long").1;
        rest.split_once('s').expect("seconds").0.parse::<u64>().expect("a number")
    };
    let (ago, up) = (seconds("redis-server (4194300)  ended "), seconds("s ago, was up "));
    let passed = begun.elapsed().as_secs();
    assert!(ago <= passed && up <= passed, "{inside}");
    assert!(inside.contains(&format!("  ended {ago}s ago, was up {up}s  heap")), "{inside}");
    let numbers = |shown: &str| shown.lines().skip(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(numbers(&inside), numbers(&before));

    press(&mut state, KeyCode::Esc);
    let list = text(&drawn(&mut state, PLAIN, 80, 24));
    assert!(list.starts_with("deepheap top  2 processes, 1 ended, RAM 448 MiB of 512 "), "{list}");
    let last = list.lines().nth(4).expect("three processes");
    assert!(
        last.starts_with("4194300 redis-server   224 MiB") && last.contains(" ended "),
        "{list}"
    );
    assert!(list.contains(" redis-server (4194300) ended 0s ago: "), "{list}");
}
