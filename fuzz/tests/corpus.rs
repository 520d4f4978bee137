//! The corpus: inputs that reached code which no earlier one had reached, and those that once found
//! a defect. Each is played again.

use std::fs;
use std::path::PathBuf;

use deepheap_fuzz::TARGETS;

#[test]
fn every_input_of_the_corpus_is_taken_as_it_should_be() {
    for target in TARGETS {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let mut files: Vec<_> = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("the folder can be read").path())
            .collect();
        files.sort_unstable();
        assert!(!files.is_empty(), "{} is empty", folder.display());
        for file in &files {
            println!("{}", file.display());
            (target.play)(&fs::read(file).expect("a file of ours"));
        }
        println!("{}: {} inputs", target.name, files.len());
    }
}
