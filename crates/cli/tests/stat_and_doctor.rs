//! What `stat`, `doctor`, `completions` and `man` tell.

mod command;

use command::{Folder, told};
use deepheap::internal::stats_page::StatsPage;
use deepheap::number;
use deepheap::stats::FaultKind;

/// Words of the screen that its help explains.
const WORDS: [&str; 21] = [
    "heap is managed",
    "in RAM",
    "compressed",
    "page tables",
    "tables",
    "store buffers",
    "other",
    "store",
    "heap",
    "faults",
    "zero",
    "stored",
    "waited",
    "prefetch",
    "evicted",
    "cache",
    "tier",
    "mix",
    "log",
    "for room",
    "calls",
];

#[test]
fn stat_shows_a_running_process() {
    let page = StatsPage::create().expect("page");
    page.set(number!(budget_bytes), 256 << 20);
    page.set_managing(true);
    page.add(0, number!(prefetched), 4321);
    page.record(0, FaultKind::Stored, 70_000);
    page.add(0, number!(blocks_refused), 99);
    page.add(0, number!(writes_retried), 77);
    page.set(number!(stall_share_now_ppm), 34_000);
    page.set(number!(stall_bound_ppm), 25_000);
    page.set(number!(tier_capacity_bytes), 7 << 30);
    page.set(number!(tier_stored_bytes), 5 << 20);
    page.set(number!(tier_read_bytes), 3 << 20);
    page.set(number!(tier_write_bytes), 40 << 20);
    page.set(number!(device_write_bytes), 60 << 20);
    let folder = Folder::new();
    let pid = std::process::id().to_string();

    let (status, out, err) = told(&folder.output(["stat", &pid]));
    assert_eq!(status, Some(0), "{err}");
    let words = [
        "256 MiB",
        "4.32k",
        "70.0 us",
        "heap is managed",
        "of the run time: 3.4 % now",
        "stat --help",
    ];
    let troubles = ["99 could not be read", "made again 77 times"];
    let tier = [
        "5.00 MiB of 7.00 GiB",
        "read 3.00 MiB, wrote 40.0 MiB",
        "40 % of what was written went to the second tier",
        "the bound is 2.5 %: less goes to the second tier",
    ];
    for words in words.into_iter().chain(troubles).chain(tier) {
        assert!(out.contains(words), "'{words}' is not in:\n{out}");
    }
    assert!(!out.contains('\x1b'), "colours in a file:\n{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "too wide:\n{out}");

    let (status, help, _) = told(&folder.output(["stat", "--help"]));
    assert_eq!(status, Some(0));
    for word in WORDS {
        assert!(out.contains(word), "'{word}' is not in:\n{out}");
        assert!(help.contains(&format!("  {word}  ")), "'{word}' is not explained in:\n{help}");
    }

    let (status, out, _) = told(&folder.output(["stat", "--json", &pid]));
    assert_eq!(status, Some(0));
    let json: serde_json::Value = serde_json::from_str(&out).expect("json");
    assert_eq!(json["faults"]["prefetched"], 4321);

    // Without a process: a line for each. Other tests may run some.
    let (status, out, err) = told(&folder.output(["stat"]));
    assert_eq!(status, Some(0), "{err}");
    assert!(out.lines().any(|line| line.trim_start().starts_with(&pid)), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "too wide:\n{out}");
    let name = std::fs::read_to_string("/proc/self/comm").expect("name");
    let (status, out, err) = told(&folder.output(["stat", "--json", name.trim_end()]));
    // Another run of this test has the same name.
    let is_one = status == Some(0) && out.contains("4321");
    assert!(is_one || err.contains("choose one of"), "{status:?} {out} {err}");
}

#[test]
fn stat_tells_what_is_missing() {
    let folder = Folder::new();
    let (status, _, err) = told(&folder.output(["stat", "4194304"]));
    assert_eq!((status, err.contains("there is no process")), (Some(1), true), "{err}");
    let mut sleeper = std::process::Command::new("sleep").arg("20").spawn().expect("sleep");
    let (status, _, err) = told(&folder.output(["stat", &sleeper.id().to_string()]));
    sleeper.kill().and_then(|()| sleeper.wait()).expect("kill");
    assert_eq!((status, err.contains("does not run under deepheap")), (Some(1), true), "{err}");
    let (status, _, err) = told(&folder.output(["stat", "no such name"]));
    assert_eq!((status, err.contains("`deepheap stat` lists those")), (Some(1), true), "{err}");
}

#[test]
fn doctor_gives_every_failure_a_fix() {
    let folder = Folder::new();
    let (status, out, err) = told(&folder.output(["doctor", "--store", "/does/not/exist"]));
    assert_eq!((status, err.as_str()), (Some(1), ""));
    assert!(out.contains("FAIL  store"), "{out}");
    assert!(out.contains("fix: create the folder"), "{out}");
    assert!(!out.contains('\x1b'), "colours in a file:\n{out}");
    let (status, out, _) = told(&folder.output(["doctor", "--json", "--store", "/does/not/exist"]));
    let json: serde_json::Value = serde_json::from_str(&out).expect("json");
    assert_eq!((status, &json["runs_here"]), (Some(1), &false.into()));
    let findings = json["findings"].as_array().expect("findings");
    let store = findings.iter().find(|it| it["name"] == "store").expect("the store");
    assert!(store["severity"] == "fail" && store["fix"].is_string(), "{store}");
}

#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    let folder = Folder::new();
    let (status, out, _) = told(&folder.output(["help", "run"]));
    assert!(status == Some(0) && out.contains("--store-size"), "{out}");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let output = folder.deepheap().arg("--help").stdout(full).output().expect("start");
    let (status, _, err) = told(&output);
    assert_eq!((status, err.contains("cannot write")), (Some(1), true), "{err}");
}

#[test]
fn completions_and_manual_are_written() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish"] {
        let (status, out, _) = told(&folder.output(["completions", shell]));
        assert!(status == Some(0) && out.contains("store-size"), "{shell}");
    }
    let here = folder.path().to_str().expect("utf8");
    assert_eq!(folder.output(["man", here]).status.code(), Some(0));
    let page = std::fs::read_to_string(folder.path().join("deepheap-run.1")).expect("page");
    assert!(page.contains("DEEPHEAP_CONF") && page.contains("store\\-size"), "{page}");
    assert!(folder.path().join("deepheap.1").exists());
    // The synopsis gives options with their values, which stay on one line.
    assert!(page.contains("\\-\\-ram\\fR\u{a0}\\fISIZE\\fR]"), "{page}");
    // Commands stay as they are, and fit 80 columns with the indentation of a man page.
    let (_, examples) = page.split_once("\n.nf\n").expect("examples");
    let (examples, _) = examples.split_once("\n.fi\n").expect("their end");
    assert!(examples.lines().count() >= 4, "{examples}");
    let lines = examples.lines().map(|line| line.replace('\\', ""));
    assert!(lines.clone().all(|line| line.starts_with("  deepheap run ")), "{examples}");
    assert!(lines.clone().all(|line| line.len() <= 73), "{examples}");
    assert_eq!(folder.output(["man", "/does/not/exist"]).status.code(), Some(2));
}
