//! Write: stacks as files for other tools.
//!
//! Guarantees: the weights of a file add up to what was waited, in nanoseconds, or to what was
//! cold, in bytes.
//! Threads: pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::profile::flame;
use crate::profile::stacks::{Measure, Sample, Stacks};

/// The content of a file of this name.
pub fn content(stacks: &Stacks, path: &Path) -> String {
    match extension(path) {
        "json" => speedscope(stacks),
        "svg" => flame::svg(stacks),
        _ => folded(stacks),
    }
}

/// The file for allocations beside one for faults: NAME.allocations.svg.
pub fn beside(path: &Path) -> PathBuf {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) => path.with_extension(format!("allocations.{extension}")),
        None => path.with_extension("allocations"),
    }
}

/// What the content is, in words.
pub fn what(path: &Path) -> &'static str {
    match extension(path) {
        "json" => "a profile for speedscope.app",
        "svg" => "a flame graph",
        _ => "the profile as folded stacks",
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// A line for each stack: its functions, outermost first, and its weight.
fn folded(stacks: &Stacks) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for sample in &stacks.samples {
        // A semicolon or the end of a line within a name would be taken for the next.
        let clean = |name: String| name.replace([';', '\n'], ":");
        let line = stacks.names(sample).map(clean).collect::<Vec<_>>().join(";");
        *lines.entry(line).or_default() += sample.weight;
    }
    lines.retain(|_, weight| *weight > 0);
    lines.into_iter().map(|(stack, weight)| format!("{stack} {weight}\n")).collect()
}

/// The format of speedscope.app: a list of samples for each thread, in their order.
fn speedscope(stacks: &Stacks) -> String {
    let unit = match stacks.measure {
        Measure::Waited => "nanoseconds",
        Measure::Cold => "bytes",
    };
    let mut threads: BTreeMap<(u64, u64), Vec<&Sample>> = BTreeMap::new();
    for sample in &stacks.samples {
        threads.entry((sample.pid, sample.thread)).or_default().push(sample);
    }
    let profiles: Vec<_> = threads
        .iter()
        .map(|((pid, thread), samples)| {
            let name = stacks.processes.get(pid).map_or("", |name| name);
            let frames: Vec<_> = samples.iter().map(|sample| &sample.frames).collect();
            let weights: Vec<_> = samples.iter().map(|sample| sample.weight).collect();
            json!({
                "type": "sampled",
                "name": format!("{name} ({pid}), thread {thread}"),
                "unit": unit,
                "startValue": 0,
                "endValue": weights.iter().sum::<u64>(),
                "samples": frames,
                "weights": weights,
            })
        })
        .collect();
    let functions = stacks.functions.iter().map(|of| json!({ "name": of.name, "file": of.file }));
    json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("deepheap ", env!("CARGO_PKG_VERSION")),
        "name": stacks.measure.title(),
        "activeProfileIndex": 0,
        "shared": { "frames": functions.collect::<Vec<_>>() },
        "profiles": profiles,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::stacks::Function;

    fn stacks() -> Stacks {
        let function = |name: &str| Function { name: name.to_owned(), file: "f".to_owned() };
        let sample = |pid, weight, frames| Sample {
            pid,
            thread: pid,
            kind: None,
            weight,
            faults: 1,
            places: [0; 3],
            frames,
        };
        let mut stacks = Stacks::default();
        stacks.functions = vec![function("main"), function("a<b>; c")];
        stacks.samples =
            vec![sample(1, 5, vec![0, 1]), sample(1, 7, vec![0]), sample(2, 2, vec![0, 1])];
        stacks.processes = [(1, "x".to_owned()), (2, "y".to_owned())].into();
        stacks
    }

    #[test]
    fn folded_lines_have_the_process_and_the_sum_of_their_samples() {
        let mut stacks = stacks();
        let text = content(&stacks, Path::new("out.folded"));
        assert_eq!(text, "x (1);main 7\nx (1);main;a<b>: c 5\ny (2);main;a<b>: c 2\n");
        stacks.processes.remove(&2);
        stacks.samples.pop();
        assert_eq!(content(&stacks, Path::new("out")), "main 7\nmain;a<b>: c 5\n");
    }

    #[test]
    fn a_profile_for_speedscope_has_its_shape() {
        let text = content(&stacks(), Path::new("out.json"));
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let schema = "https://www.speedscope.app/file-format-schema.json";
        assert_eq!(json["$schema"], schema);
        let frames = json["shared"]["frames"].as_array().expect("frames");
        assert_eq!(frames[1], json!({ "name": "a<b>; c", "file": "f" }));
        let profiles = json["profiles"].as_array().expect("profiles");
        assert_eq!(profiles.len(), 2);
        assert_eq!(
            profiles[0],
            json!({
                "type": "sampled", "name": "x (1), thread 1", "unit": "nanoseconds",
                "startValue": 0, "endValue": 12, "samples": [[0, 1], [0]], "weights": [5, 7],
            })
        );
    }

    #[test]
    fn what_was_cold_is_in_bytes_and_in_files_of_its_own() {
        let mut stacks = stacks();
        stacks.measure = Measure::Cold;
        let text = content(&stacks, &beside(Path::new("out.json")));
        assert!(text.contains(r#""unit":"bytes""#), "{text}");
        let svg = content(&stacks, &beside(Path::new("a.b/flame.svg")));
        assert!(svg.contains("<title>main: 12 B, 85.71 %</title>"), "{svg}");
        for (path, expected) in [("a.b/c.svg", "a.b/c.allocations.svg"), ("c", "c.allocations")] {
            assert_eq!(beside(Path::new(path)), Path::new(expected));
        }
    }

    #[test]
    fn a_flame_graph_has_names_as_text() {
        let svg = content(&stacks(), Path::new("out.svg"));
        assert!(svg.contains("<title>a&lt;b&gt;; c: "), "{svg}");
        // Of the root: of both processes.
        assert_eq!(svg.matches("<g ").count(), 7, "{svg}");
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count(), "{svg}");
    }
}
