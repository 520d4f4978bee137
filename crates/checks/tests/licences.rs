//! Licences: everything that is linked in may be used under a licence that deny.toml allows.

use deepheap_checks::{cargo_metadata, root};

/// The list of deny.toml.
fn allowed() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let (_, list) = text.split_once("allow = [").expect("a list of licences");
    let (list, _) = list.split_once(']').expect("the end of the list");
    list.split('"').skip(1).step_by(2).map(Into::into).collect()
}

/// Whether an SPDX expression can be met with the allowed licences. Before version 2 of SPDX a
/// slash meant OR; AND binds more tightly than OR.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    alternatives(&expression, " OR ")
        .iter()
        .any(|choice| alternatives(choice, " AND ").iter().all(|term| is_term_met(term, allowed)))
}

fn is_term_met(term: &str, allowed: &[String]) -> bool {
    let term = term.trim();
    match term.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => is_met(inner, allowed),
        None => allowed.iter().any(|licence| licence == term),
    }
}

/// Splits at a separator outside parentheses.
fn alternatives<'a>(expression: &'a str, separator: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (index, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && index >= start && expression[index..].starts_with(separator) => {
                parts.push(&expression[start..index]);
                start = index + separator.len();
            }
            _ => {}
        }
    }
    parts.push(&expression[start..]);
    parts
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let allowed = allowed();
    let metadata = cargo_metadata(&[]);
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 12, "only {} packages", packages.len());
    let refused: Vec<String> = packages
        .iter()
        .map(|package| (&package["name"], package["license"].as_str().unwrap_or("no licence")))
        .filter(|(_, licence)| !is_met(licence, &allowed))
        .map(|(name, licence)| format!("{name}: {licence}"))
        .collect();
    assert!(refused.is_empty(), "not in deny.toml: {refused:#?}");
}

#[test]
fn canary_strange_licences_are_caught() {
    let allowed: Vec<String> = ["MIT", "Apache-2.0", "Unicode-3.0"].map(Into::into).into();
    for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR X) AND Unicode-3.0", "(MIT)"] {
        assert!(is_met(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR X) AND Y", "MITX", "no licence"] {
        assert!(!is_met(bad, &allowed), "{bad}");
    }
}
