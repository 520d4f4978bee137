//! README: its programs in C and C++ compile without a warning, run, and print what they should.
//! (`scripts/install_check.sh` runs the lines that compile and start them, and the one in Rust.)

mod toolchain;

use std::fs::{read_to_string, write};

use toolchain::{Scratch, Standard, root, run};

/// The blocks of the README in a language.
fn blocks(language: &str) -> Vec<String> {
    let readme = read_to_string(root().join("README.md")).expect("README.md");
    let opening = format!("```{language}\n");
    let opened = readme.split(opening.as_str()).skip(1);
    opened.map(|rest| rest.split("```").next().unwrap_or(rest).to_owned()).collect()
}

/// Settings for those programs that take theirs from the environment.
const CONF: [(&str, &str); 1] = [("DEEPHEAP_CONF", "ram:32M,store:.,store_size:512M")];

#[test]
fn the_programs_of_the_readme_run_and_print_something() {
    let scratch = Scratch::new("readme");
    let mut printed = Vec::new();
    for (language, standard) in [("c", Standard::C11), ("cpp", Standard::Cxx17)] {
        for (number, program) in blocks(language).iter().enumerate() {
            let source = scratch.path().join(format!("{number}.{language}"));
            write(&source, program).expect("the source is written");
            // What a program says by itself goes before the environment: nothing else is set.
            let conf = if program.contains("dh_init") { &[][..] } else { &CONF[..] };
            let told = run(standard, source.to_str().expect("UTF-8"), conf);
            assert_eq!(told.stderr, "");
            printed.push(told.stdout);
        }
    }
    assert_eq!(
        printed,
        [
            "128 MiB in 32 MiB of RAM, all of them 'x'\n",
            "64 read, the first of 1 visits\n",
            "1 word, 8000000 samples\n",
        ]
    );
}
