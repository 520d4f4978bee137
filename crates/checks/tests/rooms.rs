//! Rooms: crates depend downwards only, along the edges that ARCHITECTURE.md draws.

use deepheap_checks::cargo_metadata;
use serde_json::{Value, json};

/// Who may depend on whom. A crate that is not here may not be in the workspace.
const EDGES: [(&str, &[&str]); 12] = [
    ("deepheap-sys", &[]),
    ("deepheap-store", &["deepheap-sys"]),
    ("deepheap-heap", &["deepheap-sys"]),
    ("deepheap-pager", &["deepheap-store", "deepheap-heap", "deepheap-sys"]),
    ("deepheap", &["deepheap-pager", "deepheap-store", "deepheap-heap", "deepheap-sys"]),
    ("deepheap-capi", &["deepheap"]),
    ("libdeepheap", &["deepheap-capi", "deepheap"]),
    ("deepheap-preload", &["deepheap", "deepheap-capi"]),
    ("deepheap-cli", &["deepheap"]),
    ("deepheap-bench", &["deepheap"]),
    ("deepheap-sim", &["deepheap-store"]),
    ("deepheap-checks", &[]),
];

/// What tests of any crate may use besides: the simulated device, which no product may.
const FOR_TESTS: &str = "deepheap-sim";

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
            let is_for_tests = on == FOR_TESTS && dependency["kind"] == "dev";
            if is_ours && !allowed.contains(&on) && !is_for_tests {
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
