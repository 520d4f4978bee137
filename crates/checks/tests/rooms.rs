//! Rooms: crates depend downwards only, along the edges that ARCHITECTURE.md draws, and so do the
//! modules within a crate: no two import each other, however long the way round.

use std::collections::{BTreeMap, BTreeSet};

use deepheap_checks::{SourceFile, cargo_metadata, files};
use serde_json::{Value, json};

/// Who may depend on whom. A crate that is not here may not be in the workspace.
const EDGES: [(&str, &[&str]); 23] = [
    ("deepheap-sys", &[]),
    ("deepheap-store", &["deepheap-sys"]),
    ("deepheap-heap", &["deepheap-sys"]),
    ("deepheap-policy", &[]),
    ("deepheap-residency", &["deepheap-policy", "deepheap-store", "deepheap-heap", "deepheap-sys"]),
    (
        "deepheap-pager",
        &[
            "deepheap-residency",
            "deepheap-policy",
            "deepheap-store",
            "deepheap-heap",
            "deepheap-sys",
        ],
    ),
    ("deepheap-durable", &["deepheap-pager", "deepheap-store", "deepheap-heap", "deepheap-sys"]),
    ("deepheap-maps", &["deepheap-store", "deepheap-sys"]),
    (
        "deepheap",
        &[
            "deepheap-durable",
            "deepheap-pager",
            "deepheap-policy",
            "deepheap-maps",
            "deepheap-store",
            "deepheap-heap",
            "deepheap-sys",
            "deepheap-measure",
        ],
    ),
    ("deepheap-measure", &[]),
    ("deepheap-capi", &["deepheap"]),
    ("libdeepheap", &["deepheap-capi", "deepheap"]),
    ("deepheap-preload", &["deepheap", "deepheap-capi"]),
    (
        "deepheap-tools",
        &["deepheap", "deepheap-maps", "deepheap-pager", "deepheap-policy", "deepheap-sys"],
    ),
    ("deepheap-cli", &["deepheap", "deepheap-tools"]),
    ("deepheap-bench", &["deepheap", "deepheap-tools", "deepheap-load"]),
    (
        "deepheap-papers",
        &["deepheap", "deepheap-bench", "deepheap-tools", "deepheap-load", "deepheap-sim"],
    ),
    (
        "deepheap-fuzz",
        &[
            "deepheap",
            "deepheap-tools",
            "deepheap-pager",
            "deepheap-store",
            "deepheap-sys",
            "deepheap-sim",
            "deepheap-child",
        ],
    ),
    ("deepheap-load", &["deepheap-measure"]),
    ("libdeepheap-load", &["deepheap-load", "deepheap-measure"]),
    ("deepheap-sim", &["deepheap-store", "deepheap-sys"]),
    ("deepheap-child", &[]),
    ("deepheap-checks", &[]),
];

/// What tests of any crate may use besides, and no product may.
const FOR_TESTS: [&str; 2] = ["deepheap-sim", "deepheap-child"];

/// Edges of the workspace that the table does not allow.
fn violations(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().expect("packages");
    let mut violations = Vec::new();
    for package in packages {
        let name = package["name"].as_str().expect("a package has a name");
        let Some((_, allowed)) = EDGES.iter().find(|(room, _)| *room == name) else {
            violations.push(format!("{name} is no room: draw it in ARCHITECTURE.md and here"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("a dependency has a name");
            let is_ours = dependency["path"].is_string();
            let is_for_tests = FOR_TESTS.contains(&on) && dependency["kind"] == "dev";
            // Its own, as it is for its tests.
            let is_itself = on == name && dependency["kind"] == "dev";
            if is_ours && !allowed.contains(&on) && !is_for_tests && !is_itself {
                violations.push(format!("{name} -> {on}"));
            }
        }
    }
    violations
}

#[test]
fn crates_depend_along_the_drawn_edges_only() {
    let metadata = cargo_metadata(&["--no-deps"]);
    assert_eq!(metadata["packages"].as_array().map(Vec::len), Some(EDGES.len()));
    assert_eq!(violations(&metadata), Vec::<String>::new());
}

#[test]
fn canary_forbidden_edges_are_caught() {
    let edge = |on: &str, kind: Value| json!({ "name": on, "path": "/crates/x", "kind": kind });
    let metadata = json!({ "packages": [
        { "name": "deepheap-store", "dependencies": [
            edge("deepheap-sys", Value::Null),
            edge("deepheap-heap", Value::Null),
            edge("deepheap-sim", json!("dev")),
            { "name": "libc", "kind": null },
        ]},
        { "name": "deepheap-heap", "dependencies": [edge("deepheap-sim", Value::Null)] },
        { "name": "deepheap-util", "dependencies": [] },
    ]});
    assert_eq!(
        violations(&metadata),
        [
            "deepheap-store -> deepheap-heap",
            "deepheap-heap -> deepheap-sim",
            "deepheap-util is no room: draw it in ARCHITECTURE.md and here",
        ]
    );
}

/// The modules of a crate, and which each imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// `crates/residency/src/ownership/lists.rs` is module `ownership::lists` of `residency`.
fn module_of(path: &str) -> Option<(&str, String)> {
    let (name, file) = path.strip_prefix("crates/").unwrap_or(path).split_once("/src/")?;
    let file = file.strip_suffix(".rs")?;
    Some((name, file.strip_suffix("/mod").unwrap_or(file).replace('/', "::")))
}

/// The paths that a text names after `prefix`, those in braces one by one: `a::b` of
/// `crate::a::{b, c}` and of `crate::{a::b, d}`.
fn paths_after<'t>(text: &'t str, prefix: &str) -> Vec<&'t str> {
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut paths = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        let rest = &text[at + prefix.len()..];
        let inner = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        for path in inner.unwrap_or(rest).split(',').take(if inner.is_some() { 99 } else { 1 }) {
            let path = path.trim();
            paths.push(&path[..path.find(|c| !word(c)).unwrap_or(path.len())]);
        }
    }
    paths
}

/// What the modules of each crate import; tests are no part of it. A file and the folder of its
/// name are one room: what a file takes from its parent is not counted.
fn imports(sources: &[SourceFile]) -> BTreeMap<String, Imports> {
    let mut crates: BTreeMap<String, Imports> = BTreeMap::new();
    for source in sources {
        if let Some((name, module)) = module_of(&source.path) {
            crates.entry(name.into()).or_default().insert(module, BTreeSet::new());
        }
    }
    for source in sources {
        let Some((name, module)) = module_of(&source.path) else { continue };
        let code = source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let code: Vec<&str> = code.lines().filter_map(|line| line.split("//").next()).collect();
        let code = code.join("\n");
        let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
        let beside = |path: &&str| match parent {
            "" => (*path).to_string(),
            _ => format!("{parent}::{path}"),
        };
        let mut named: Vec<String> =
            paths_after(&code, "crate::").into_iter().map(String::from).collect();
        named.extend(paths_after(&code, "super::").iter().map(beside));
        let Some(modules) = crates.get_mut(name) else { continue };
        for path in named {
            let steps: Vec<&str> = path.split("::").collect();
            let longest = (1..=steps.len()).rev().map(|count| steps[..count].join("::"));
            let target = longest.into_iter().find(|it| modules.contains_key(it));
            if let Some(target) = target.filter(|target| *target != module)
                && let Some(imported) = modules.get_mut(&module)
            {
                imported.insert(target);
            }
        }
    }
    crates
}

/// Modules that import themselves by a way round, with their crate.
fn cycles(crates: &BTreeMap<String, Imports>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, modules) in crates {
        for module in modules.keys() {
            let mut reached = BTreeSet::new();
            let mut next = vec![module];
            while let Some(at) = next.pop() {
                for target in modules.get(at).into_iter().flatten() {
                    if reached.insert(target) {
                        next.push(target);
                    }
                }
            }
            if reached.contains(module) {
                found.push(format!("{name}: {module}"));
            }
        }
    }
    found
}

#[test]
fn no_modules_of_a_crate_import_each_other() {
    let crates = imports(&files(&["rs"]));
    assert!(crates.len() >= EDGES.len() - 1, "{:?}", crates.keys());
    assert_eq!(cycles(&crates), Vec::<String>::new());
}

#[test]
fn canary_modules_that_import_each_other_are_caught() {
    let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
    let sources = [
        file("crates/x/src/lib.rs", "mod a;\nmod b;"),
        file("crates/x/src/a.rs", "use crate::{PAGE, b::deep::Thing};"),
        file("crates/x/src/b/mod.rs", ""),
        file("crates/x/src/b/deep.rs", "use super::other::Other; // crate::c"),
        file("crates/x/src/b/other.rs", "fn f() { crate::a::call() }"),
        file("crates/x/src/c.rs", "use crate::a::B;\n#[cfg(test)]\nmod tests { use crate::c; }"),
    ];
    assert_eq!(cycles(&imports(&sources)), ["x: a", "x: b::deep", "x: b::other"]);
}
