//! Documents: what they tell the reader to run or to open is there.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::Path;

use deepheap_checks::{SourceFile, files, root};

/// Targets of a Makefile that a user may call, and those of them without a line of help.
fn targets(makefile: &str) -> (BTreeSet<String>, Vec<String>) {
    let phony: BTreeSet<String> = makefile
        .replace("\\\n", " ")
        .lines()
        .filter_map(|line| line.strip_prefix(".PHONY:"))
        .flat_map(str::split_whitespace)
        .map(Into::into)
        .collect();
    let helped = |target: &str| {
        let rule = format!("{target}:");
        makefile.lines().any(|line| line.starts_with(&rule) && line.contains(" ## "))
    };
    let silent = phony.iter().filter(|target| !helped(target)).cloned().collect();
    (phony, silent)
}

/// What a document claims and the repository does not hold.
fn violations(document: &SourceFile, targets: &BTreeSet<String>) -> Vec<String> {
    let mut violations = Vec::new();
    let mut in_block = false;
    for line in document.text.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        }
        let is_code = in_block || line.starts_with("    ");
        for code in code_of(line, is_code) {
            let Some(arguments) = code.trim_start_matches(['$', '#', ' ']).strip_prefix("make ")
            else {
                continue;
            };
            let target = arguments
                .split_whitespace()
                .find(|word| !word.starts_with('-') && !word.contains('='));
            if target.is_none_or(|target| !targets.contains(target)) {
                violations.push(format!("{}: no such target: make {arguments}", document.path));
            }
        }
        for path in links(line).chain(paths(line)) {
            let folder = Path::new(&document.path).parent().expect("a document has a folder");
            let from_document = root().join(folder).join(path);
            if !from_document.exists() && !root().join(path).exists() {
                violations.push(format!("{}: no such file: {path}", document.path));
            }
        }
    }
    violations
}

/// Commands of a line: the line itself in a block of code, what is between backticks elsewhere.
fn code_of(line: &str, is_code: bool) -> Vec<&str> {
    if is_code { vec![line.trim()] } else { line.split('`').skip(1).step_by(2).collect() }
}

/// Relative targets of Markdown links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#']).next())
        .filter(|target| !target.is_empty() && !target.contains(':'))
}

/// Paths of the repository between backticks.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|code| {
        ["crates/", "docs/", "examples/", "include/", "scripts/", "packaging/", "man/"]
            .iter()
            .any(|folder| code.starts_with(folder) && !code.contains(['*', ' ', '<', '{']))
    })
}

fn makefile() -> String {
    read_to_string(root().join("Makefile")).expect("a Makefile")
}

#[test]
fn commands_and_files_of_the_documents_exist() {
    let (targets, _) = targets(&makefile());
    let documents = files(&["md"]);
    assert!(documents.iter().any(|document| document.path == "README.md"));
    let violations: Vec<String> =
        documents.iter().flat_map(|document| violations(document, &targets)).collect();
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

#[test]
fn every_target_has_a_line_of_help() {
    let (targets, silent) = targets(&makefile());
    assert!(targets.contains("test") && targets.contains("demo"), "{targets:?}");
    assert_eq!(silent, Vec::<String>::new());
}

#[test]
fn canary_stale_documents_are_caught() {
    let (targets, silent) =
        targets(".PHONY: test \\\n  demo-short\ntest: ## Tests.\ndemo-short:\n");
    assert_eq!(silent, ["demo-short"]);
    let document = SourceFile {
        path: "README.md".into(),
        text:
            "Run `make test SECONDS=1`, `make -j demo-short`, or\n\n    make all   # everything\n\n\
               See [how](docs/missing.md), [the law](LICENSE-MIT), `crates/none/src/lib.rs`.\n"
                .into(),
    };
    assert_eq!(
        violations(&document, &targets),
        [
            "README.md: no such target: make all   # everything",
            "README.md: no such file: docs/missing.md",
            "README.md: no such file: crates/none/src/lib.rs",
        ]
    );
}
