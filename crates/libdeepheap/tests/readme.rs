//! README: its programs compile without a warning, and the one with objects prints what it should.

mod toolchain;

use std::fs::{read_to_string, write};

use toolchain::{Scratch, Standard, assert_compiles, root, run};

/// The blocks of the README in a language.
fn blocks(language: &str) -> Vec<String> {
    let readme = read_to_string(root().join("README.md")).expect("README.md");
    let opening = format!("```{language}\n");
    let opened = readme.split(opening.as_str()).skip(1);
    opened.map(|rest| rest.split("```").next().unwrap_or(rest).to_owned()).collect()
}

#[test]
fn the_programs_of_the_readme_compile_and_the_one_with_objects_runs() {
    let (c, cpp) = (blocks("c"), blocks("cpp"));
    assert_eq!((c.len(), cpp.len()), (2, 1), "programs in C and in C++");
    c.iter().for_each(|program| assert_compiles(Standard::C11, program));
    assert_compiles(Standard::Cxx17, &cpp[0]);
    let objects = c.iter().find(|program| program.contains("dh_oalloc")).expect("objects");
    let scratch = Scratch::new("readme");
    let source = scratch.path().join("objects.c");
    write(&source, objects).expect("the source is written");
    let printed = run(
        Standard::C11,
        source.to_str().expect("UTF-8"),
        &[("DEEPHEAP_CONF", "ram:16M,store:.,store_size:256M")],
    );
    assert_eq!(printed.stdout, "64 read, the first of 1 visits\n");
    assert_eq!(printed.stderr, "");
}
