//! Documents: their programs in C and C++ compile without a warning, run, and print what they
//! should; pieces of programs do so with what they leave out around them.
//! (`scripts/install_check.sh` runs the lines that compile and start the programs of
//! docs/languages.md, and the one in Rust.)

mod toolchain;

use std::fs::{read_to_string, write};

use toolchain::{Scratch, Standard, root, run};

/// The blocks of a document in a language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let document = read_to_string(root().join(document)).expect(document);
    let opening = format!("```{language}\n");
    let opened = document.split(opening.as_str()).skip(1);
    opened.map(|rest| rest.split("```").next().unwrap_or(rest).to_owned()).collect()
}

/// Settings for those programs that take theirs from the environment.
const CONF: [(&str, &str); 1] = [("DEEPHEAP_CONF", "ram:32M,store:.,store_size:512M")];

#[test]
fn the_programs_of_the_documents_run_and_print_something() {
    let scratch = Scratch::new("documents");
    let mut printed = Vec::new();
    for (language, standard) in [("c", Standard::C11), ("cpp", Standard::Cxx17)] {
        for (number, program) in blocks("docs/languages.md", language).iter().enumerate() {
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

/// A piece of a program: where it stands, in which language, and what is put around it.
struct Piece {
    document: &'static str,
    language: &'static str,
    before: &'static str,
    after: &'static str,
    prints: &'static str,
}

const HEADERS: &str = "#define _DEFAULT_SOURCE\n#include <deepheap.h>\n#include <fcntl.h>\n\
                       #include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
                       #include <sys/mman.h>\n#include <unistd.h>\n";

/// All of them, in the order of their documents.
const PIECES: [Piece; 4] = [
    Piece {
        document: "docs/maps.md",
        language: "c",
        before: "int main(void) {
            int file = open(\"samples.bin\", O_RDWR | O_CREAT, 0600);
            if (file < 0 || ftruncate(file, 100L << 20) != 0) return 1;
            close(file);",
        after: "double read_back = 0;
            file = open(\"samples.bin\", O_RDONLY);
            if (pread(file, &read_back, sizeof read_back, 12345678L * 8) != 8) return 1;
            printf(\"%g\\n\", read_back); }",
        prints: "1\n",
    },
    Piece {
        document: "docs/maps.md",
        language: "c",
        before: "int main(void) { size_t from = 1, to = 400000000;",
        after: "printf(\"%d, %d\\n\", (int)accounts[from], (int)accounts[to]);
            return dh_unmap(accounts); }",
        prints: "-10, 10\n",
    },
    Piece {
        document: "docs/porting.md",
        language: "c",
        before: "struct set { char bytes[200]; };",
        after: "int main(void) {
            void *array = dh_oalloc(1000, sizeof(struct set));
            if (!array) return 1;
            for (size_t i = 0; i < 1000; i++) set_at(array, i)->bytes[199] = (char)(i % 100);
            printf(\"%d\\n\", set_at(array, 742)->bytes[199]);
            dh_free(array); }",
        prints: "42\n",
    },
    Piece {
        document: "docs/porting.md",
        language: "cpp",
        before: "#include <cstdio>\n#include <string>\n#include <unordered_map>\n#include <utility>
            using Key = std::string; struct Value { char bytes[200]; };
            int main() {",
        after: "table[\"key\"].bytes[7] = 'x';
            std::printf(\"%zu, %c\\n\", table.size(), table[\"key\"].bytes[7]); }",
        prints: "1, x\n",
    },
];

#[test]
fn the_pieces_of_programs_run_with_what_they_leave_out() {
    let scratch = Scratch::new("pieces");
    for (document, language) in
        [("docs/maps.md", "c"), ("docs/porting.md", "c"), ("docs/porting.md", "cpp")]
    {
        let is_of_it = |piece: &&Piece| (piece.document, piece.language) == (document, language);
        let pieces: Vec<&Piece> = PIECES.iter().filter(is_of_it).collect();
        let blocks = blocks(document, language);
        assert_eq!(blocks.len(), pieces.len(), "{document}: each {language} block is run here");
        for (number, (block, piece)) in blocks.iter().zip(pieces).enumerate() {
            // Its own includes stand at the top of a program.
            let is_include = |line: &&str| line.starts_with("#include");
            let includes: Vec<&str> = block.lines().filter(is_include).collect();
            let code: Vec<&str> = block.lines().filter(|line| !is_include(line)).collect();
            let headers = if language == "c" { HEADERS } else { "" };
            let program = format!(
                "{headers}{}\n{}\n{}\n{}\n",
                includes.join("\n"),
                piece.before,
                code.join("\n"),
                piece.after
            );
            let source = scratch.path().join(format!("{number}.{language}"));
            write(&source, &program).expect("the source is written");
            let standard = if language == "c" { Standard::C11 } else { Standard::Cxx17 };
            let told = run(standard, source.to_str().expect("UTF-8"), &CONF);
            assert_eq!(
                (told.stderr.as_str(), told.stdout.as_str()),
                ("", piece.prints),
                "{program}"
            );
        }
    }
}
