//! Tests: pages and plots from recorded runs, what is measured again, and what is promised of the
//! experiments.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::experiments::{Case, GOALS};
use super::numbers::Numbers;
use super::*;

/// A folder that is removed.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("papers-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A number that only this point has.
fn throughput(index: usize) -> f64 {
    10_000.0 + index as f64 * 100.0
}

fn machine() -> Machine {
    Machine { cpus: 2, ..Machine::default() }
}

fn recorded(point: &Point, index: usize, settings: &Settings) -> Record {
    let reads = if point.contender == experiments::Contender::Objects { 2.0 } else { 3.0 };
    let report = json!({ "threads": 8, "seconds": 3.0, "operations": 3.0 * throughput(index),
        "operations_per_second": throughput(index), "writes": throughput(index),
        "p99_ns": 1_000_000 + index, "device_read_bytes": 4096.0 * reads * 3.0 * throughput(index),
        "device_written_bytes": 4096.0 * throughput(index),
        "changed_lines": 7, "useful_entries_in_ram": 1000 * index, "deviation_us": 5,
        "signal_us": 0.777, "peak_bytes": 40 << 20 });
    let round = Round {
        date: "2026-11-21".into(),
        command: "deepheap-papers papers --quick".into(),
        machine: machine(),
        limit_bytes: None,
        numbers: Numbers::of_application(&report),
        report: serde_json::Value::Null,
    };
    let mut record = Record::empty(&point.id(), &point.settings(settings));
    record.rounds.push(round);
    record
}

fn groups(settings: &Settings) -> Vec<Group> {
    let all: Vec<&Experiment> = experiments::all().collect();
    plan(&all, settings)
}

fn points(quick: bool) -> Vec<Point> {
    let settings = Settings { quick, ..Settings::example() };
    groups(&settings).into_iter().flat_map(|group| group.points).collect()
}

#[test]
fn pages_and_plots_show_what_was_recorded_and_what_failed() {
    let folder = Folder::new("pages");
    let (runs, settings) = (Runs::open(&folder.0.join("runs.jsonl")).unwrap(), Settings::example());
    let mut numbers = BTreeMap::new();
    for (index, point) in points(true).iter().enumerate() {
        let mut record = recorded(point, index, &settings);
        if point.id() == "bloom_filter.object-512.threads-8.writes-50.mmap" {
            record.rounds.clear();
            record.failed = Some("killed by signal 9".into());
        } else if point.id() == "random_access.object-4K.threads-8.writes-20.swap" {
            record.rounds[0].numbers.set("killed_before", 2.0);
        } else if point.program != experiments::Program::Device {
            numbers.insert(point.id(), record.median("operations_per_second"));
        }
        runs.save(&record).unwrap();
    }
    let all: Vec<&Experiment> = experiments::all().collect();
    let results = Results::new(&runs, &settings);
    write_pages(&folder.0, &results, &all).unwrap();
    let page = |name: &str| fs::read_to_string(folder.0.join(name)).unwrap();
    let (readme, ssdalloc, ssdram) = (page("README.md"), page("ssdalloc.md"), page("ssdram.md"));
    let text = [readme.as_str(), &ssdalloc, &ssdram].concat();

    for (id, number) in numbers {
        let shown = figure::or_dash(number, "/s");
        // One without a place in a table of points.
        assert!(id.starts_with("overheads") || text.contains(&shown), "{id}: {shown}");
    }
    assert!(ssdram.contains("| 512 B | mmap | failed: killed by signal 9 |"), "{ssdram}");
    let killed = "(was killed for memory 2 times before)";
    assert_eq!(text.matches(killed).count(), 1, "{ssdram}");
    assert!(text.contains("2026-11-21") && text.contains("`deepheap-papers papers --quick`"));
    assert!(text.contains("2 CPUs") && text.contains("600 TB"));
    assert!(ssdalloc.contains("| signal |  | 0.666 (3.7) | 0.777 us | 1.17x |"), "{ssdalloc}");
    assert!(!text.contains("{0}") && !text.contains("{2}"), "a place that was not filled in");
    for experiment in &all {
        assert!(text.contains(&format!("## {}", experiment.title)), "{}", experiment.id);
        let svg = folder.0.join(format!("{}.svg", experiment.id));
        assert_eq!(svg.exists(), text.contains(&format!("({}.svg)", experiment.id)));
    }
    assert!(readme.contains("| memcached, 512 B | lines changed | ≤ 21 lines | 7 lines | pass |"));
    assert!(
        readme.contains("**no number**") && readme.contains("These are not, and why"),
        "{readme}"
    );
    let lines = readme.replace("\n  ", " ");
    let why = "Reads an operation: 2, with swap 3; reads alone would give 1.50x.";
    assert!(lines.contains(why), "{readme}");
    let long = |line: &&str| line.chars().count() > 100 && !line.starts_with(['|', '!', '<']);
    assert_eq!(text.lines().find(long), None);
    assert!(!text.contains("\n\n\n"), "two empty lines");
}

#[test]
fn swap_that_was_killed_for_memory_is_tried_again_and_that_is_counted() {
    let outcome = || {
        let numbers = Numbers::of_anything(&json!({}));
        Ok(Outcome { numbers, limit_bytes: None })
    };
    let killed = || Err(Failure::Failed(format!("x: {}", enclosure::OUT_OF_MEMORY)));
    let after = |times, who| tried(who, |so_far| if so_far < times { killed() } else { outcome() });
    let counted = |times| after(times, Contender::Swap).map(|o| o.numbers.get("killed_before"));
    assert!(matches!(counted(0), Ok(Some(0.0))));
    assert!(matches!(counted(SWAP_TRIES - 1), Ok(Some(2.0))));
    assert!(counted(SWAP_TRIES).is_err() && after(1, Contender::Mmap).is_err());
    let other = tried(Contender::Swap, |_| Err(Failure::Failed("WRONG ANSWERS".into())));
    assert!(other.is_err());
}

#[test]
fn pages_without_any_run_say_so() {
    let folder = Folder::new("empty");
    let (runs, settings) = (Runs::open(&folder.0.join("runs.jsonl")).unwrap(), Settings::example());
    let all: Vec<&Experiment> = experiments::all().collect();
    let pages = page::all(&Results::new(&runs, &settings), &all);
    for page in &pages {
        assert!(page.text.contains("Nothing has been measured yet"), "{}", page.file);
        assert!(!page.text.contains(".svg"), "{}", page.file);
    }
    assert!(pages[0].text.contains(&format!("0 of {} are reached", GOALS.len())));
}

#[test]
fn what_is_there_with_the_same_settings_is_not_measured_again() {
    let folder = Folder::new("resume");
    let (runs, settings) = (Runs::open(&folder.0.join("runs.jsonl")).unwrap(), Settings::example());
    let point = &points(true)[0];
    let tries = |settings: &Settings, round, anew| {
        try_point(point, round, anew, settings, &runs, &machine()).unwrap()
    };
    // Nothing can be measured in a folder that is not there, so that every try is told.
    assert!(matches!(tries(&settings, 0, false), Tried::Failed(_)));
    let known = runs.load(&point.id(), &point.settings(&settings));
    assert!(known.rounds.is_empty() && known.failed.is_some());

    runs.save(&recorded(point, 0, &settings)).unwrap();
    assert!(matches!(tries(&settings, 0, false), Tried::Known));
    assert!(matches!(tries(&settings, 1, false), Tried::Failed(_)), "a second round is missing");
    let known = runs.load(&point.id(), &point.settings(&settings));
    assert_eq!((known.rounds.len(), known.failed.is_some()), (1, true), "the first is kept");

    let longer = Settings { seconds: 4.0, ..settings.clone() };
    assert!(matches!(tries(&longer, 0, false), Tried::Failed(_)), "another setting");
    runs.save(&recorded(point, 0, &settings)).unwrap();
    assert!(matches!(tries(&settings, 0, true), Tried::Failed(_)), "--again");
    runs.save(&recorded(point, 0, &settings)).unwrap();
    let other = Machine { cpus: 64, ..Machine::default() };
    let tried = try_point(point, 0, false, &settings, &runs, &other).unwrap();
    assert!(matches!(tried, Tried::Failed(_)), "another machine");
}

#[test]
fn a_record_that_was_cut_short_is_none() {
    let folder = Folder::new("cut");
    let path = folder.0.join("runs.jsonl");
    let (runs, settings) = (Runs::open(&path).unwrap(), Settings::example());
    let (one, other) = (&points(true)[0], &points(true)[1]);
    runs.save(&recorded(one, 3, &settings)).unwrap();
    runs.save(&recorded(other, 3, &settings)).unwrap();
    let rounds = |runs: &Runs, point: &Point| {
        runs.load(&point.id(), &point.settings(&settings)).rounds.len()
    };
    let text = fs::read_to_string(&path).unwrap();
    let asked = one.settings(&settings);
    assert_eq!(runs.load(&one.id(), &asked).median("operations_per_second"), Some(10_300.0));
    fs::write(&path, &text[..text.len() - 20]).unwrap();
    let again = Runs::open(&path).unwrap();
    assert_eq!(rounds(&again, one) + rounds(&again, other), 1, "the last line was cut");
}

#[test]
fn experiments_are_named_once_and_claims_are_about_their_own_cases() {
    let mut ids = BTreeSet::new();
    for experiment in experiments::all() {
        assert!(ids.insert(experiment.id), "{} twice", experiment.id);
        let labels: BTreeSet<&str> = experiment.cases.iter().map(|case| case.label).collect();
        assert_eq!(labels.len(), experiment.cases.len(), "{}: a label twice", experiment.id);
        for claim in experiment.claims {
            assert!(claim.at.iter().all(|at| labels.contains(at)), "{}: {claim:?}", experiment.id);
            let runs = |who| {
                let about = |c: &&Case| claim.at.is_empty() || claim.at.contains(&c.label);
                experiment.cases.iter().filter(about).any(|case| case.contenders.contains(&who))
            };
            assert!(runs(claim.of) && runs(claim.over), "{}: {claim:?}", experiment.id);
            let section = claim.stated.contains('(') && claim.stated.ends_with(')');
            assert!(section, "{}: no section: {}", experiment.id, claim.stated);
        }
        for case in experiment.cases {
            assert!(case.quick.iter().all(|who| case.contenders.contains(who)), "{case:?}");
            // Who is compared by the memory it used has to be measured before.
            let compared = case.contenders.contains(&Contender::Swap);
            assert!(!compared || case.contenders.contains(&Contender::Objects), "{case:?}");
        }
    }
}

#[test]
fn goals_are_about_points_that_are_measured() {
    for quick in [false, true] {
        let ids: BTreeSet<String> = points(quick).iter().map(Point::id).collect();
        for goal in GOALS {
            let mut who: Vec<Contender> = goal.against.to_vec();
            who.retain(|contender| goal.case.contenders.contains(contender));
            assert!(!who.is_empty() || goal.against.is_empty(), "{goal:?}");
            who.push(goal.of);
            for contender in who {
                let id = Point::of(goal.case, contender).id();
                assert!(ids.contains(&id), "quick: {quick}: {id} is not measured");
            }
        }
    }
}

#[test]
fn what_goals_are_about_is_measured_in_all_rounds_and_the_rest_once() {
    let settings = Settings { quick: false, rounds: 3, ..Settings::example() };
    let goals: BTreeSet<String> = GOALS
        .iter()
        .flat_map(|goal| goal.case.contenders.iter().map(|&who| Point::of(goal.case, who).id()))
        .collect();
    for group in groups(&settings) {
        for id in group.points.iter().map(Point::id) {
            assert_eq!(group.rounds, if goals.contains(&id) { 3 } else { 1 }, "{id}");
        }
    }
}

#[test]
fn a_quick_sitting_is_short() {
    // At ten seconds a point, a quarter of an hour.
    let quick = points(true).len();
    assert!(quick <= 90, "{quick} points");
    assert!(points(false).len() > quick);
}
