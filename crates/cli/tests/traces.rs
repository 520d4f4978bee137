//! What `simulate` and `advise` tell of a trace.

mod command;

use command::{Folder, told};
use deepheap_tools::trace::format::{Chunk, Happened, Header, Record};

/// Pages of 64 MiB.
const PAGES: u32 = 16_384;

/// A program that goes three times round so many pages with 16 MiB of RAM.
fn trace(pages: u32) -> Vec<u8> {
    const IN_RAM: u32 = 3000;
    let header =
        Header { pid: 7, ram: 16 << 20, begun: 0, region_base: 0, ran_before_ns: 1_000_000_000 };
    let (mut bytes, mut chunk) = (header.to_bytes().to_vec(), Chunk::default());
    for step in 0..3 * pages {
        let mut note = |happened, page, amount, took| {
            if chunk.is_full() {
                chunk.finish(0, 0, &mut bytes);
            }
            chunk.push(Record { happened, page, amount, at: u64::from(step) * 2000, took });
        };
        let is_first = step < pages;
        let happened = if is_first { Happened::Zero } else { Happened::Stored };
        note(happened, step % pages, 1, 1500);
        if let Some(oldest) = step.checked_sub(IN_RAM) {
            let (left, gone) = match oldest < pages {
                true => (Happened::Dirty, Happened::Written),
                false => (Happened::Clean, Happened::Dropped),
            };
            note(left, oldest % pages, 4096, 0);
            note(gone, oldest % pages, if is_first { 4096 } else { 0 }, 0);
        }
    }
    chunk.finish(0, 0, &mut bytes);
    bytes
}

#[test]
fn a_trace_is_simulated_and_drawn() {
    let folder = Folder::new();
    let file = folder.file("trace", &trace(PAGES), 0o600);
    let file = file.to_str().expect("a path");
    let arguments = ["simulate", file, "--ram", "32M", "--ram", "96M", "--svg", "curve.svg"];
    let (status, out, err) = told(&folder.output(arguments));
    assert_eq!(status, Some(0), "{err}");
    assert!(out.contains(" read 32768 objects") && out.contains("nothing written"), "{out}");
    // Each table says what its misses are, and nothing else is a part of the touches.
    let captions: Vec<&str> = out.lines().filter(|line| line.starts_with("simulated")).collect();
    assert!(captions.len() == 2 && captions[0].contains("misses: reads for 100"), "{out}");
    assert!(captions[1].contains("simulated by RAM, as above"), "{out}");
    let row = |ram: &str| out.lines().find(|line| line.trim_start().starts_with(ram));
    let misses = |ram| -> f64 {
        let words = row(ram).expect("a row").split_whitespace().nth(2);
        words.and_then(|word| word.parse().ok()).expect("a number")
    };
    assert!(misses("32 MiB") > 20.0 && misses("96 MiB") == 0.0, "{out}");
    let svg = std::fs::read_to_string(folder.path().join("curve.svg")).expect("drawn");
    assert!(svg.starts_with("<svg") && svg.contains("prefers-color-scheme"), "{svg}");
    let other = ["simulate", file, "--ram", "32M", "--policy", "page_buffer:25%,scans:off"];
    let (status, with_others, err) = told(&folder.output(other));
    assert_eq!(status, Some(0), "{err}");
    assert_ne!(out, with_others);
}

/// The numbers of each size of RAM in the tables.
fn rows(out: &str) -> Vec<(String, String)> {
    let rows = out.lines().filter(|line| line.starts_with(' '));
    rows.filter_map(|line| line.trim_start().split_once(" MiB "))
        .map(|(ram, numbers)| (ram.to_owned(), numbers.to_owned()))
        .collect()
}

#[test]
fn no_size_of_ram_has_two_ratios_on_one_screen() {
    let folder = Folder::new();
    for (pages, policy) in [(PAGES, ""), (PAGES, "scans:off"), (4 * PAGES, "")] {
        let file = folder.file("trace", &trace(pages), 0o600);
        let file = file.to_str().expect("a path");
        let policy = if policy.is_empty() { vec![] } else { vec!["--policy", policy] };
        let (status, out, err) =
            told(&folder.output([vec!["simulate", file, "--curve"], policy].concat()));
        assert_eq!(status, Some(0), "{err}");
        let mut rows = rows(&out);
        assert!(rows.len() > 20 && rows[0].0 == "16", "{out}");
        rows.sort();
        rows.dedup();
        assert!(rows.windows(2).all(|pair| pair[0].0 != pair[1].0), "{out}");
    }
}

#[test]
fn advice_is_a_sentence_for_each_slowdown_and_nonsense_is_refused_with_a_reason() {
    let folder = Folder::new();
    let file = folder.file("trace", &trace(PAGES), 0o600);
    let file = file.to_str().expect("a path");
    let (status, out, err) = told(&folder.output(["advise", file, "--svg", "a.svg"]));
    assert_eq!(status, Some(0), "{err}");
    let sentences: Vec<&str> = out.lines().take(3).collect();
    for (sentence, words) in sentences.iter().zip(["1 %", "5 %", "20 %"]) {
        let (ram, rest) = sentence.split_once(" MiB: ").expect("RAM");
        assert!((16..=80).contains(&ram.parse().unwrap_or(0)), "{out}");
        let slower = rest.strip_prefix(words).expect("a slowdown");
        let is_less = slower.starts_with(" slower than with all ") && slower.contains(" spared");
        assert!(is_less || slower == " slower or less needs all of it", "{out}");
    }
    // What is gained, and what it costs.
    let traded = out.lines().nth(3).expect("the trade");
    assert!(
        traded.starts_with("Traced with 16 MiB: ") && traded.contains(" s instead of "),
        "{out}"
    );
    // It writes 64 MiB in little more than a second, and then reads.
    let row = out.lines().find(|line| line.trim_start().starts_with("16 MiB")).expect("a row");
    let is_life = row.ends_with("days") || row.ends_with("years");
    assert!(row.contains(" %") && is_life, "{out}");
    let svg = std::fs::read_to_string(folder.path().join("a.svg")).expect("drawn");
    for words in ["slower, %", "device life", "5 % slower: "] {
        assert!(svg.contains(words), "{words} is not in {svg}");
    }
    let nonsense = folder.file("nonsense", b"dh-trac", 0o600);
    let nonsense = nonsense.to_str().expect("a path");
    for (arguments, reason) in [
        (vec!["simulate", nonsense], "no trace"),
        (vec!["advise", nonsense], "no trace"),
        (vec!["advise", "nobody"], "cannot read"),
        (vec!["advise", "4294967295"], "see ps"),
        (vec!["simulate", file, "--policy", "page_buffer:0%"], "in --policy"),
        (vec!["simulate", file, "--ram", "much"], "in --ram"),
        (vec!["simulate", file, "--svg", "none/curve.svg"], "--svg"),
        (vec!["advise", file, "--svg", "none/advice.svg"], "--svg"),
    ] {
        let (status, out, err) = told(&folder.output(&arguments));
        assert!(matches!(status, Some(1 | 2)), "{arguments:?}: {status:?} {out}");
        assert!(err.starts_with("deepheap: ") && err.contains(reason), "{arguments:?}: {err}");
    }
}
