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

/// Pages below docs/ that the contents of the book do not name.
fn not_in_book(documents: &[SourceFile]) -> Vec<String> {
    let pages = documents.iter().filter_map(|document| document.path.strip_prefix("docs/"));
    let contents = documents.iter().find(|document| document.path == "docs/SUMMARY.md");
    let contents = contents.map_or("", |contents| &contents.text);
    let named: BTreeSet<&str> = contents.lines().flat_map(links).collect();
    let is_left_out = |page: &&str| *page != "SUMMARY.md" && !named.contains(page);
    pages.filter(is_left_out).map(str::to_owned).collect()
}

/// Links from docs/ to files beside it, which are not in the book.
fn out_of_book(document: &SourceFile) -> Vec<String> {
    let Some(page) = document.path.strip_prefix("docs/") else { return Vec::new() };
    let depth = page.matches('/').count();
    let leads_out = |link: &&str| link.matches("../").count() > depth;
    let links = document.text.lines().flat_map(links).filter(leads_out);
    links.map(|link| format!("docs/{page}: {link} is not in the book")).collect()
}

#[test]
fn the_book_has_every_page_and_what_they_link_to() {
    let documents = files(&["md"]);
    assert_eq!(not_in_book(&documents), Vec::<String>::new());
    let out: Vec<String> = documents.iter().flat_map(out_of_book).collect();
    assert_eq!(out, Vec::<String>::new());
}

/// `ARCHITECTURE.md` is read in one sitting, and a user sees all pages of `docs/` at a glance.
const ARCHITECTURE_BYTES_MAX: usize = 25_000;
const USER_PAGES_MAX: usize = 12;

/// Documents that have become too long, or too many.
fn too_much(documents: &[SourceFile]) -> Vec<String> {
    let is_user_page = |path: &str| {
        let page = path.strip_prefix("docs/");
        page.is_some_and(|page| !page.contains('/') && page != "SUMMARY.md")
    };
    let mut too_much = Vec::new();
    for document in documents.iter().filter(|document| document.path == "ARCHITECTURE.md") {
        let bytes = document.text.len();
        if bytes > ARCHITECTURE_BYTES_MAX {
            too_much.push(format!("ARCHITECTURE.md: {bytes} of {ARCHITECTURE_BYTES_MAX} bytes"));
        }
    }
    let pages = documents.iter().filter(|document| is_user_page(&document.path)).count();
    if pages > USER_PAGES_MAX {
        too_much.push(format!("docs/: {pages} of {USER_PAGES_MAX} pages for users"));
    }
    too_much
}

#[test]
fn the_architecture_is_short_and_the_pages_for_users_are_few() {
    let documents = files(&["md"]);
    assert!(documents.iter().any(|document| document.path == "ARCHITECTURE.md"));
    assert_eq!(too_much(&documents), Vec::<String>::new());
}

#[test]
fn canary_long_and_many_documents_are_caught() {
    let document = |path: String, bytes: usize| SourceFile { path, text: "x".repeat(bytes) };
    let mut documents = vec![
        document("ARCHITECTURE.md".into(), ARCHITECTURE_BYTES_MAX),
        document("docs/SUMMARY.md".into(), 1),
        document("docs/internals/maps.md".into(), ARCHITECTURE_BYTES_MAX + 1),
    ];
    documents.extend((0..USER_PAGES_MAX).map(|page| document(format!("docs/{page}.md"), 1)));
    assert_eq!(too_much(&documents), Vec::<String>::new());
    documents[0].text.push('x');
    documents.push(document("docs/one-more.md".into(), 1));
    assert_eq!(
        too_much(&documents),
        ["ARCHITECTURE.md: 25001 of 25000 bytes", "docs/: 13 of 12 pages for users"]
    );
}

#[test]
fn canary_pages_out_of_the_book_are_caught() {
    let document =
        |path: &str, text: &str| SourceFile { path: path.into(), text: text.to_string() };
    let documents = [
        document("docs/SUMMARY.md", "- [One](one.md)\n"),
        document("docs/one.md", "[two](papers/two.md), [code](../crates/one.rs)"),
        document("docs/papers/two.md", "[one](../one.md), [notes](../../NOTES.md)"),
        document("README.md", "[one](docs/one.md)"),
    ];
    assert_eq!(not_in_book(&documents), ["papers/two.md"]);
    let out: Vec<String> = documents.iter().flat_map(out_of_book).collect();
    assert_eq!(
        out,
        [
            "docs/one.md: ../crates/one.rs is not in the book",
            "docs/papers/two.md: ../../NOTES.md is not in the book"
        ]
    );
}

/// The functions that a header declares.
fn declared(header: &str) -> BTreeSet<&str> {
    let mut functions = BTreeSet::new();
    for line in header.lines().filter(|line| !line.starts_with([' ', '#', '/', '}'])) {
        let Some((before, _)) = line.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        functions.extend(name.starts_with("dh_").then_some(name));
    }
    functions
}

/// Declared functions without a manual page that is installed and uninstalled.
fn without_page(header: &str, makefile: &str, has_page: impl Fn(&str) -> bool) -> Vec<String> {
    let (install, uninstall) = makefile.split_once("\nuninstall:").expect("both targets");
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let links: BTreeSet<&str> = install.split(|letter| !is_of_name(letter)).collect();
    // Groups in braces: the names of each begin with what is before the brace.
    let mut removed = BTreeSet::new();
    for words in uninstall.split_whitespace().filter_map(|word| word.strip_suffix(".3")) {
        let words = words.rsplit('/').next().unwrap_or_default();
        let (start, group) = words.split_once('{').unwrap_or((words, ""));
        let group = group.trim_end_matches('}');
        removed.extend(group.split(',').map(|end| format!("{start}{end}")));
    }
    let is_there = |name: &str| (has_page(name) || links.contains(name)) && removed.contains(name);
    declared(header).into_iter().filter(|name| !is_there(name)).map(str::to_owned).collect()
}

#[test]
fn every_function_has_a_manual_page() {
    let headers = ["memory", "durable", "map"];
    let read = |name| read_to_string(root().join(format!("include/deepheap/{name}.h")));
    let header = headers.map(|name| read(name).expect("a header")).concat();
    assert!(declared(&header).len() > 30, "{:?}", declared(&header));
    let has_page = |name: &str| root().join(format!("man/{name}.3")).exists();
    assert_eq!(without_page(&header, &makefile(), has_page), Vec::<String>::new());
}

#[test]
fn canary_functions_without_a_manual_page_are_caught() {
    let header = "int dh_one(void);\nvoid *dh_two(int a,\n          int dh_no(int));\n * dh_no(3)\n\
                  int dh_three(void);\nint dh_four(void);\n";
    let makefile = "install:\n\tln -sf dh_two dh_three;\nuninstall:\n\
                    \trm \"$(MANDIR)/man3\"/dh_{one,two}.3 man3/dh_four.3\n";
    let missing = without_page(header, makefile, |name| name == "dh_one");
    assert_eq!(missing, ["dh_four", "dh_three"]);
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
