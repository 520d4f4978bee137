//! Doctor command: one line a thing, the fix under what is missing, a severity at the end.
//!
//! Guarantees: exit status 0 if deepheap can run, 1 if not; lines appear as they are found.
//! Never: colours anything but a terminal.
//! Threads: none but main.

use std::io::stdout;

use deepheap::Config;
use deepheap::internal::machine::Machine;
use deepheap::internal::obstacles::{Finding, Severity};
use deepheap_tools::doctor::examine_machine;
use deepheap_tools::doctor::store::examine_store;
use serde_json::{Value, json};

use crate::arguments;
use crate::refusal::{Refusal, print_out, wants_colour};

/// Columns of the longest name of a thing.
const NAME_WIDTH: usize = 13;

/// Examines the machine and tells.
pub fn doctor(arguments: &arguments::Doctor) -> Result<(), Refusal> {
    let has_colour = wants_colour(&stdout());
    let (mut failed, mut warned) = (0, 0);
    let mut lost = Ok(());
    let mut findings = Vec::new();
    let mut tell = |finding: Finding| {
        match finding.severity {
            Severity::Pass => {}
            Severity::Warn => warned += 1,
            Severity::Fail => failed += 1,
        }
        if arguments.json {
            findings.push(json(&finding));
        } else if lost.is_ok() {
            lost = print_out(line(&finding, has_colour));
        }
    };
    let mut config = match Config::from_environment() {
        Ok(config) => config,
        Err(error) => {
            tell(Finding {
                severity: Severity::Fail,
                name: "settings",
                text: error.to_string(),
                fix: Some("correct the variable, or unset it".to_owned()),
            });
            Config::default_on(Machine::read())
        }
    };
    if let Some(store) = &arguments.store {
        config.store = Some(store.clone());
    }
    examine_machine(&config, &mut tell);
    examine_store(&config, &mut tell);
    lost?;
    let outcome = if failed == 0 { Ok(()) } else { Err(Refusal::told()) };
    if arguments.json {
        let whole = json!({ "runs_here": failed == 0, "findings": findings });
        return print_out(format!("{whole}\n")).and(outcome);
    }
    let severity = match (failed, warned) {
        (0, 0) => "\nThis machine has all that deepheap needs.\n".to_owned(),
        (0, 1) => "\ndeepheap runs here; one thing could be better.\n".to_owned(),
        (0, n) => format!("\ndeepheap runs here; {n} things could be better.\n"),
        (1, _) => "\ndeepheap cannot run here until one thing is fixed.\n".to_owned(),
        (n, _) => format!("\ndeepheap cannot run here until {n} things are fixed.\n"),
    };
    print_out(severity).and(outcome)
}

fn json(finding: &Finding) -> Value {
    let severity = match finding.severity {
        Severity::Pass => "pass",
        Severity::Warn => "warn",
        Severity::Fail => "fail",
    };
    json!({
        "name": finding.name,
        "severity": severity,
        "text": finding.text,
        "fix": finding.fix,
    })
}

fn line(finding: &Finding, has_colour: bool) -> String {
    let (word, colour) = match finding.severity {
        Severity::Pass => ("pass", "32"),
        Severity::Warn => ("warn", "33"),
        Severity::Fail => ("FAIL", "31;1"),
    };
    let word = if has_colour { format!("\x1b[{colour}m{word}\x1b[0m") } else { word.to_owned() };
    let mut line = format!("{word}  {:NAME_WIDTH$} {}\n", finding.name, finding.text);
    if let Some(fix) = &finding.fix {
        line += &format!("{:1$}fix: {fix}\n", "", NAME_WIDTH + 7);
    }
    line
}
