//! Programs: what is measured, as data: programs that users know, each with a small workload.
//!
//! Guarantees: a workload depends on nothing but what stands here; its output tells whether the
//! program worked right.
//! Never: does I/O.

use std::io::{Result, Write};

use super::inputs;
use super::load::{Load, Protocol, Values};

/// A program with its workload.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name, also that of its files.
    pub id: &'static str,
    /// The Debian packages it is in, or those of Python.
    pub packages: &'static str,
    /// Commands that must be there, the program's first, and modules, as `python:numpy`; of words
    /// with bars one will do.
    pub needs: &'static [&'static str],
    /// How much work it gets: `:count` in files and arguments. Alone it takes about 1 GiB then.
    pub amount: u64,
    /// The same for about 100 MiB.
    pub small_amount: u64,
    /// The same in a quick sitting, which has only those that have this.
    pub quick_amount: Option<u64>,
    /// Variables of its environment.
    pub environment: &'static [(&'static str, &'static str)],
    /// What it does.
    pub job: Job,
}

/// What a program does.
#[derive(Clone, Copy, Debug)]
pub enum Job {
    /// It runs, and ends by itself.
    Batch(Batch),
    /// It serves on the UNIX socket `socket` until it is asked to end.
    Server {
        /// Its arguments.
        arguments: &'static [&'static str],
        /// What it is asked.
        load: Load,
    },
}

/// A program that ends by itself.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Files in its folder.
    pub files: &'static [(&'static str, Content)],
    /// Commands that run in its folder before, not measured.
    pub steps: &'static [&'static [&'static str]],
    /// What is run instead of the program, if a step made it.
    pub made: Option<&'static str>,
    /// Its arguments.
    pub arguments: &'static [&'static str],
    /// Only lines with one of these words are compared; all if there are none.
    pub compared: &'static [&'static str],
}

/// What a file holds.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// This text, the amount put in.
    Text(&'static str),
    /// What this writes for the amount.
    Made(fn(u64, &mut dyn Write) -> Result<()>),
}

/// The word for the amount of work.
pub const AMOUNT: &str = ":count";

const PLAIN: Batch = Batch { files: &[], steps: &[], made: None, arguments: &[], compared: &[] };

const REDIS: &[&str] = &[
    "--port",
    "0",
    "--unixsocket",
    "socket",
    "--save",
    "",
    "--appendonly",
    "no",
    "--daemonize",
    "no",
    "--loglevel",
    "warning",
];
const MEMCACHED: &[&str] = &["-u", "root", "-s", "socket", "-m", "8192", "-t", "2", "-c", "64"];
const PYTHON: &str = "/usr/bin/python3|python3";
/// Sums of several threads come in any order.
const ONE_THREAD: &[(&str, &str)] = &[("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")];

const fn server(id: &'static str, protocol: Protocol, values: Values) -> Program {
    let (packages, needs, arguments): (_, &[&str], _) = match protocol {
        Protocol::Redis => ("redis-server", &["redis-server"], REDIS),
        Protocol::Memcached => ("memcached", &["memcached"], MEMCACHED),
    };
    let is_quick = matches!((protocol, values), (Protocol::Redis, Values::Json));
    Program {
        id,
        packages,
        needs,
        amount: 920_000,
        small_amount: 120_000,
        quick_amount: if is_quick { Some(40_000) } else { None },
        environment: &[],
        job: Job::Server { arguments, load: Load { protocol, values } },
    }
}

/// One that ends by itself. The amounts: that for 1 GiB, and that for 100 MiB.
const fn batch(
    id: &'static str,
    packages: &'static str,
    needs: &'static [&'static str],
    amounts: [u64; 2],
    batch: Batch,
) -> Program {
    let [amount, small_amount] = amounts;
    Program {
        id,
        packages,
        needs,
        amount,
        small_amount,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(batch),
    }
}

/// One that works on a file or two, and needs no steps before.
const fn script(
    files: &'static [(&'static str, Content)],
    arguments: &'static [&'static str],
) -> Batch {
    Batch { files, arguments, ..PLAIN }
}

const OBJECTS: Batch = script(
    &[("objects.py", Content::Text(include_str!("workloads/objects.py")))],
    &["objects.py", AMOUNT],
);

/// All of them.
pub const ALL: &[Program] = &[
    server("redis-json", Protocol::Redis, Values::Json),
    server("redis-random", Protocol::Redis, Values::Random),
    server("memcached-json", Protocol::Memcached, Values::Json),
    server("memcached-random", Protocol::Memcached, Values::Random),
    batch(
        "sqlite",
        "sqlite3",
        &["sqlite3"],
        [4_600_000, 400_000],
        script(
            &[("orders.sql", Content::Text(include_str!("workloads/orders.sql")))],
            &[":memory:", ".read orders.sql"],
        ),
    ),
    batch(
        "duckdb",
        "duckdb",
        &[PYTHON, "python:duckdb"],
        [6_000_000, 400_000],
        script(
            &[("analytics.py", Content::Text(include_str!("workloads/analytics.py")))],
            &["analytics.py", AMOUNT],
        ),
    ),
    batch(
        "postgres-sort",
        "postgresql",
        &["sh", "unshare", "/usr/lib/postgresql"],
        [8_600_000, 800_000],
        Batch {
            files: &[
                ("postgres.sh", Content::Text(include_str!("workloads/postgres.sh"))),
                ("sorted.sql", Content::Text(include_str!("workloads/sorted.sql"))),
            ],
            steps: &[&["sh", "postgres.sh", "init"]],
            arguments: &["postgres.sh", "sort"],
            ..PLAIN
        },
    ),
    batch("python", "python3", &[PYTHON], [1_200_000, 100_000], OBJECTS),
    Program {
        quick_amount: Some(25_000),
        environment: &[("PYTHONMALLOC", "malloc")],
        ..batch("python-malloc", "python3", &[PYTHON], [950_000, 100_000], OBJECTS)
    },
    batch(
        "pandas",
        "pandas",
        &[PYTHON, "python:pandas"],
        [7_000_000, 500_000],
        script(
            &[("frames.py", Content::Text(include_str!("workloads/frames.py")))],
            &["frames.py", AMOUNT],
        ),
    ),
    batch(
        "polars",
        "polars numpy",
        &[PYTHON, "python:polars", "python:numpy"],
        [4_000_000, 300_000],
        script(
            &[("columns.py", Content::Text(include_str!("workloads/columns.py")))],
            &["columns.py", AMOUNT],
        ),
    ),
    batch(
        "faiss-hnsw",
        "faiss-cpu",
        &[PYTHON, "python:faiss"],
        [380_000, 20_000],
        script(
            &[("nearest.py", Content::Text(include_str!("workloads/nearest.py")))],
            &["nearest.py", AMOUNT],
        ),
    ),
    Program {
        environment: ONE_THREAD,
        ..batch(
            "numpy-inverse",
            "numpy",
            &[PYTHON, "python:numpy"],
            [4_600, 1_800],
            script(
                &[("inverse.py", Content::Text(include_str!("workloads/inverse.py")))],
                &["inverse.py", AMOUNT],
            ),
        )
    },
    Program {
        environment: ONE_THREAD,
        ..batch(
            "numpy-correlation",
            "numpy",
            &[PYTHON, "python:numpy"],
            [4_800, 1_700],
            script(
                &[("correlation.py", Content::Text(include_str!("workloads/correlation.py")))],
                &["correlation.py", AMOUNT],
            ),
        )
    },
    Program {
        environment: ONE_THREAD,
        ..batch(
            "scikit-learn",
            "scikit-learn",
            &[PYTHON, "python:sklearn"],
            [520_000, 100_000],
            script(
                &[("samples.py", Content::Text(include_str!("workloads/samples.py")))],
                &["samples.py", AMOUNT],
            ),
        )
    },
    batch(
        "lua",
        "lua5.4",
        &["lua5.4|lua"],
        [2_200_000, 200_000],
        script(
            &[("tables.lua", Content::Text(include_str!("workloads/tables.lua")))],
            &["tables.lua", AMOUNT],
        ),
    ),
    batch(
        "tcl",
        "tcl",
        &["tclsh"],
        [1_800_000, 200_000],
        script(
            &[("strings.tcl", Content::Text(include_str!("workloads/strings.tcl")))],
            &["strings.tcl", AMOUNT],
        ),
    ),
    Program {
        // Its hashes have the same order each time.
        environment: &[("PERL_HASH_SEED", "0")],
        ..batch(
            "perl",
            "perl",
            &["perl"],
            [2_500_000, 200_000],
            script(
                &[("words.pl", Content::Text(include_str!("workloads/words.pl")))],
                &["words.pl", AMOUNT],
            ),
        )
    },
    Program {
        quick_amount: Some(300_000),
        ..batch(
            "sort",
            "coreutils",
            &["sort"],
            [9_800_000, 1_000_000],
            // Without -S it looks at the machine's memory, and sorts in files if that is little.
            script(&[("lines", Content::Made(inputs::lines))], &["-S", "64G", "lines"]),
        )
    },
    batch(
        "xz",
        "xz-utils",
        &["xz"],
        [2_500_000, 250_000],
        script(
            &[("lines", Content::Made(inputs::lines))],
            &["--lzma2=preset=1,dict=144MiB", "-T1", "--stdout", "--keep", "lines"],
        ),
    ),
    Program {
        // Debian's policy sends pictures beyond 256 MiB to a file.
        environment: &[("MAGICK_CONFIGURE_PATH", ".")],
        ..batch(
            "imagemagick",
            "imagemagick",
            &["convert-im6.q16|magick"],
            [6_000, 2_000],
            Batch {
                files: &[
                    ("picture.ppm", Content::Made(inputs::picture)),
                    ("policy.xml", Content::Text(include_str!("workloads/policy.xml"))),
                ],
                arguments: &["picture.ppm", "-rotate", "90", "-resize", "120%", "-flip", "ppm:-"],
                ..PLAIN
            },
        )
    },
    batch(
        "gcc",
        "gcc",
        &["gcc"],
        [15_000, 1_500],
        script(
            &[("source.c", Content::Made(inputs::c_source))],
            &["-O0", "-S", "-o", "-", "source.c"],
        ),
    ),
    batch(
        "gcc-lto",
        "gcc",
        &["sh", "gcc"],
        [9_000, 1_500],
        Batch {
            files: &[("source.c", Content::Made(inputs::c_source))],
            steps: &[&["gcc", "-O1", "-flto", "-c", "source.c"]],
            arguments: &[
                "-c",
                "gcc -O1 -flto -flto-partition=one -frandom-seed=1 -nostdlib -r \
                 -flinker-output=nolto-rel source.o -o linked.o && cat linked.o",
            ],
            ..PLAIN
        },
    ),
    batch(
        "node",
        "nodejs",
        &["node"],
        [1_800_000, 200_000],
        script(
            &[("records.js", Content::Text(include_str!("workloads/records.js")))],
            // Else its heap is a part of the memory cgroup's limit, and too small.
            &["--max-old-space-size=8192", "records.js", AMOUNT],
        ),
    ),
    batch(
        "java",
        "default-jdk-headless",
        &["java", "javac"],
        [2_000_000, 300_000],
        Batch {
            files: &[("Records.java", Content::Text(include_str!("workloads/Records.java")))],
            steps: &[&["javac", "Records.java"]],
            // A heap of 1 KiB for each record, some twice what they take.
            arguments: &["-Xmx:countk", "-cp", ".", "Records", AMOUNT],
            ..PLAIN
        },
    ),
    batch(
        "spin",
        "spin gcc",
        &["spin", "gcc"],
        [14, 11],
        Batch {
            files: &[("ring.pml", Content::Text(include_str!("workloads/ring.pml")))],
            steps: &[
                &["spin", "-a", "ring.pml"],
                &["gcc", "-O2", "-DSAFETY", "-o", "pan", "pan.c"],
            ],
            made: Some("./pan"),
            arguments: &["-w22", "-m100000"],
            // The others tell times and memory.
            compared: &["states, stored", "transitions", "errors:"],
        },
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn programs_have_names_of_their_own_that_are_good_for_files() {
        let ids: BTreeSet<&str> = ALL.iter().map(|program| program.id).collect();
        assert_eq!(ids.len(), ALL.len());
        let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
        assert!(ids.iter().all(|id| id.chars().all(good)));
        assert!(ALL.len() >= 14);
        assert_eq!(ALL.iter().filter(|program| program.quick_amount.is_some()).count(), 3);
        assert!(ALL.iter().all(|program| program.small_amount < program.amount));
    }
}
