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
    /// The Debian packages it is in.
    pub packages: &'static str,
    /// Commands that must be there, the program's first; of words with bars one will do.
    pub needs: &'static [&'static str],
    /// How much work it gets: `:count` in files and arguments.
    pub amount: u64,
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
    /// Its exit status when all went well.
    pub status: i32,
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

const PLAIN: Batch =
    Batch { files: &[], steps: &[], made: None, arguments: &[], status: 0, compared: &[] };

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
const MEMCACHED: &[&str] = &["-u", "root", "-s", "socket", "-m", "2048", "-t", "2", "-c", "64"];
const PYTHON: &[&str] = &["/usr/bin/python3|python3"];
/// Sums of several threads come in any order.
const ONE_THREAD: &[(&str, &str)] = &[("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")];
const OBJECTS: Job = Job::Batch(Batch {
    files: &[("objects.py", Content::Text(include_str!("workloads/objects.py")))],
    arguments: &["objects.py", AMOUNT],
    ..PLAIN
});

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
        amount: 120_000,
        quick_amount: if is_quick { Some(40_000) } else { None },
        environment: &[],
        job: Job::Server { arguments, load: Load { protocol, values } },
    }
}

/// All of them.
pub const ALL: &[Program] = &[
    server("redis-json", Protocol::Redis, Values::Json),
    server("redis-random", Protocol::Redis, Values::Random),
    server("memcached-json", Protocol::Memcached, Values::Json),
    server("memcached-random", Protocol::Memcached, Values::Random),
    Program {
        id: "sqlite",
        packages: "sqlite3",
        needs: &["sqlite3"],
        amount: 400_000,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("orders.sql", Content::Text(include_str!("workloads/orders.sql")))],
            arguments: &[":memory:", ".read orders.sql"],
            ..PLAIN
        }),
    },
    Program {
        id: "python",
        packages: "python3",
        needs: PYTHON,
        amount: 100_000,
        quick_amount: None,
        environment: &[],
        job: OBJECTS,
    },
    Program {
        id: "python-malloc",
        packages: "python3",
        needs: PYTHON,
        amount: 100_000,
        quick_amount: Some(25_000),
        environment: &[("PYTHONMALLOC", "malloc")],
        job: OBJECTS,
    },
    Program {
        id: "pandas",
        packages: "python3-pandas",
        needs: &["/usr/bin/python3|python3", "/usr/lib/python3/dist-packages/pandas"],
        amount: 500_000,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("frames.py", Content::Text(include_str!("workloads/frames.py")))],
            arguments: &["frames.py", AMOUNT],
            ..PLAIN
        }),
    },
    Program {
        id: "numpy-inverse",
        packages: "python3-numpy",
        needs: &["/usr/bin/python3|python3", "/usr/lib/python3/dist-packages/numpy"],
        amount: 1_800,
        quick_amount: None,
        environment: ONE_THREAD,
        job: Job::Batch(Batch {
            files: &[("inverse.py", Content::Text(include_str!("workloads/inverse.py")))],
            arguments: &["inverse.py", AMOUNT],
            ..PLAIN
        }),
    },
    Program {
        id: "numpy-correlation",
        packages: "python3-numpy",
        needs: &["/usr/bin/python3|python3", "/usr/lib/python3/dist-packages/numpy"],
        amount: 1_700,
        quick_amount: None,
        environment: ONE_THREAD,
        job: Job::Batch(Batch {
            files: &[("correlation.py", Content::Text(include_str!("workloads/correlation.py")))],
            arguments: &["correlation.py", AMOUNT],
            ..PLAIN
        }),
    },
    Program {
        id: "scikit-learn",
        packages: "python3-sklearn",
        needs: &["/usr/bin/python3|python3", "/usr/lib/python3/dist-packages/sklearn"],
        amount: 100_000,
        quick_amount: None,
        environment: ONE_THREAD,
        job: Job::Batch(Batch {
            files: &[("samples.py", Content::Text(include_str!("workloads/samples.py")))],
            arguments: &["samples.py", AMOUNT],
            ..PLAIN
        }),
    },
    Program {
        id: "lua",
        packages: "lua5.4",
        needs: &["lua5.4|lua"],
        amount: 200_000,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("tables.lua", Content::Text(include_str!("workloads/tables.lua")))],
            arguments: &["tables.lua", AMOUNT],
            ..PLAIN
        }),
    },
    Program {
        id: "tcl",
        packages: "tcl",
        needs: &["tclsh"],
        amount: 200_000,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("strings.tcl", Content::Text(include_str!("workloads/strings.tcl")))],
            arguments: &["strings.tcl", AMOUNT],
            ..PLAIN
        }),
    },
    Program {
        id: "perl",
        packages: "perl",
        needs: &["perl"],
        amount: 200_000,
        quick_amount: None,
        // Its hashes have the same order each time.
        environment: &[("PERL_HASH_SEED", "0")],
        job: Job::Batch(Batch {
            files: &[("words.pl", Content::Text(include_str!("workloads/words.pl")))],
            arguments: &["words.pl", AMOUNT],
            ..PLAIN
        }),
    },
    Program {
        id: "sort",
        packages: "coreutils",
        needs: &["sort"],
        amount: 1_000_000,
        quick_amount: Some(300_000),
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("lines", Content::Made(inputs::lines))],
            // Else it looks at the machine's memory and sorts in files.
            arguments: &["-S", "1G", "lines"],
            ..PLAIN
        }),
    },
    Program {
        id: "xz",
        packages: "xz-utils",
        needs: &["xz"],
        amount: 70_000,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("lines", Content::Made(inputs::lines))],
            arguments: &["-9", "-T1", "--stdout", "--keep", "lines"],
            ..PLAIN
        }),
    },
    Program {
        id: "imagemagick",
        packages: "imagemagick",
        needs: &["convert-im6.q16|magick"],
        amount: 2_000,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("picture.ppm", Content::Made(inputs::picture))],
            arguments: &["picture.ppm", "-rotate", "90", "-resize", "120%", "-flip", "ppm:-"],
            ..PLAIN
        }),
    },
    Program {
        id: "gcc",
        packages: "gcc",
        needs: &["gcc"],
        amount: 1_500,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("source.c", Content::Made(inputs::c_source))],
            arguments: &["-O1", "-S", "-o", "-", "source.c"],
            ..PLAIN
        }),
    },
    Program {
        id: "node",
        packages: "nodejs",
        needs: &["node"],
        amount: 200_000,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("records.js", Content::Text(include_str!("workloads/records.js")))],
            arguments: &["records.js", AMOUNT],
            ..PLAIN
        }),
    },
    Program {
        id: "java",
        packages: "default-jdk-headless",
        needs: &["java", "javac"],
        amount: 300_000,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("Records.java", Content::Text(include_str!("workloads/Records.java")))],
            steps: &[&["javac", "Records.java"]],
            arguments: &["-Xmx400m", "-cp", ".", "Records", AMOUNT],
            ..PLAIN
        }),
    },
    Program {
        id: "cadical",
        packages: "cadical",
        needs: &["cadical"],
        amount: 150_000,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("formula.cnf", Content::Made(inputs::formula))],
            arguments: &["-q", "formula.cnf"],
            // It can be satisfied.
            status: 10,
            ..PLAIN
        }),
    },
    Program {
        id: "spin",
        packages: "spin gcc",
        needs: &["spin", "gcc"],
        amount: 11,
        quick_amount: None,
        environment: &[],
        job: Job::Batch(Batch {
            files: &[("ring.pml", Content::Text(include_str!("workloads/ring.pml")))],
            steps: &[
                &["spin", "-a", "ring.pml"],
                &["gcc", "-O2", "-DSAFETY", "-o", "pan", "pan.c"],
            ],
            made: Some("./pan"),
            arguments: &["-w22", "-m100000"],
            // The others tell times and memory.
            compared: &["states, stored", "transitions", "errors:"],
            ..PLAIN
        }),
    },
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
    }
}
