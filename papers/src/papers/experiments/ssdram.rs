//! SSDRAM: Figures 2 to 6 of Wang et al., "Fine-Grained Data Management for DRAM/SSD Hybrid Main
//! Memory Architecture", IEICE Transactions 2016.
//!
//! Guarantees: claims are quoted with the section that makes them.

use super::*;

const fn slower(
    what: &'static str,
    stated: &'static str,
    paper: (f64, f64),
    form: Form,
    at: &'static [&'static str],
) -> Claim {
    let (of, over) = match form {
        Form::PercentLess => (Contender::Objects, Contender::Swap),
        _ => (Contender::Swap, Contender::Objects),
    };
    Claim { what, stated, paper, metric: &MEAN, form, of, over, at }
}

const fn mean(stated: &'static str, paper: f64, of: Contender, what: &'static str) -> Claim {
    let (metric, form, paper) = (&MEAN, Form::Plain, (paper, paper));
    Claim { what, stated, paper, metric, form, of, over: of, at: &["512 B"] }
}

macro_rules! sizes {
    ($base:expr, $program:literal, $quick_512:expr, $quick_4k:expr, $($more:expr),*) => {
        &[
            Case {
                label: "256 B",
                program: Program::App($program),
                options: &[("object", "256"), $($more),*],
                quick: NOBODY,
                ..$base
            },
            Case {
                label: "512 B",
                program: Program::App($program),
                options: &[("object", "512"), $($more),*],
                quick: $quick_512,
                ..$base
            },
            Case {
                label: "1 KiB",
                program: Program::App($program),
                options: &[("object", "1K"), $($more),*],
                quick: NOBODY,
                ..$base
            },
            Case {
                label: "2 KiB",
                program: Program::App($program),
                options: &[("object", "2K"), $($more),*],
                quick: NOBODY,
                ..$base
            },
            Case {
                label: "4 KiB",
                program: Program::App($program),
                options: &[("object", "4K"), $($more),*],
                quick: $quick_4k,
                ..$base
            },
        ]
    };
}

const FIGURE_2A: Experiment = Experiment {
    id: "ssdram-figure2a",
    paper: Paper::Ssdram,
    title: "Figure 2(a): random access, 80 % reads and 20 % writes",
    claim: "Objects of 256 B to 4 KB, 10 GB of them, 64 MB of RAM: for 512 B SSDRAM takes 158 us, \
            swap 282 us, 78.5 % more (section 5.2).",
    here: "8 threads; the paper does not tell how many it had.",
    today: "The gain at reading that the paper saw came from a device that read less faster. \
            [Table 3 of the other page](ssdalloc.md) measures whether this one does.",
    axis: "size of an object",
    cases: sizes!(APP, "random_access", FOUR, OBJECTS_SWAP, ("writes", "20"), ("threads", "8")),
    metric: &MEAN,
    drawn: Drawn::Lines,
    claims: &[
        mean("158 us (5.2)", 158.0, Contender::Objects, "objects, 512 B"),
        mean("282 us (5.2)", 282.0, Contender::Swap, "swap, 512 B"),
        slower(
            "swap takes longer, 512 B",
            "78.5 % (5.2)",
            (78.5, 78.5),
            Form::PercentMore,
            &["512 B"],
        ),
    ],
};

const FIGURE_2B: Experiment = Experiment {
    id: "ssdram-figure2b",
    paper: Paper::Ssdram,
    title: "Figure 2(b): random access, all reads",
    claim: "SSDRAM saves 33.3 % to 78.7 % of the time of swap, for 256 B to 4 KB (section 5.2).",
    here: "As Figure 2(a).",
    today: "Without writes all contenders wait for the same number of reads, less those that RAM \
            spares them: with data at random places in sixteen times the RAM these are few.",
    axis: "size of an object",
    cases: sizes!(APP, "random_access", OBJECTS_SWAP, NOBODY, ("writes", "0"), ("threads", "8")),
    metric: &MEAN,
    drawn: Drawn::Lines,
    claims: &[slower(
        "objects save",
        "33.3 % to 78.7 % (5.2)",
        (33.3, 78.7),
        Form::PercentLess,
        &[],
    )],
};

const FIGURE_2C: Experiment = Experiment {
    id: "ssdram-figure2c",
    paper: Paper::Ssdram,
    title: "Figure 2(c): random access, all writes",
    claim: "SSDRAM performs better than swap, as for reads: it evicts cold objects, not pages, \
            and writes them together (section 5.2; the numbers are in the figure only).",
    here: "As Figure 2(a). A write checks the object first, so it reads.",
    today: "This is where objects gain most on any device: the column of bytes says how much less \
            is written.",
    axis: "size of an object",
    cases: sizes!(
        APP,
        "random_access",
        OBJECTS_SWAP,
        OBJECTS_SWAP,
        ("writes", "100"),
        ("threads", "8")
    ),
    metric: &MEAN,
    drawn: Drawn::Lines,
    claims: &[],
};

const FIGURE_2D: Experiment = Experiment {
    id: "ssdram-figure2d",
    paper: Paper::Ssdram,
    title: "Figure 2(d): random access to objects of random sizes",
    claim: "Sizes from 8 bytes to 1, 2 and 4 KB, 80 % reads: for up to 1 KB swap takes 90.3 % \
            more (section 5.2).",
    here: "From 16 bytes on: an object begins with its number and version, which are checked.",
    today: "As Figure 2(a).",
    axis: "sizes of objects",
    cases: &[
        Case {
            label: "16 B to 1 KiB",
            program: Program::App("random_access"),
            options: &[("object", "16-1K"), ("writes", "20"), ("threads", "8")],
            quick: OBJECTS_SWAP,
            ..APP
        },
        Case {
            label: "16 B to 2 KiB",
            program: Program::App("random_access"),
            options: &[("object", "16-2K"), ("writes", "20"), ("threads", "8")],
            quick: NOBODY,
            ..APP
        },
        Case {
            label: "16 B to 4 KiB",
            program: Program::App("random_access"),
            options: &[("object", "16-4K"), ("writes", "20"), ("threads", "8")],
            quick: NOBODY,
            ..APP
        },
    ],
    metric: &MEAN,
    drawn: Drawn::Bars,
    claims: &[slower(
        "swap takes longer, up to 1 KiB",
        "90.3 % (5.2)",
        (90.3, 90.3),
        Form::PercentMore,
        &["16 B to 1 KiB"],
    )],
};

const FIGURE_3: Experiment = Experiment {
    id: "ssdram-figure3",
    paper: Paper::Ssdram,
    title: "Figure 3: quick sort",
    claim: "A tenth of the objects, at random places, is sorted in place: at 256 B SSDRAM is 1.4 \
            times as fast as swap, at 4 KB they are close (section 5.3).",
    here: "8 threads, each with objects of its own.",
    today: "Sorting goes through its objects again and again and writes most of them: what RAM \
            holds and what is written both count. Small ones lie side by side in pages, where a \
            scan has many of them for one fault.",
    axis: "size of an object",
    cases: &[
        Case { label: "256 B", options: &[("object", "256"), ("threads", "8")], ..SORT_MORE },
        Case { label: "512 B", options: &[("object", "512"), ("threads", "8")], ..SORT_MORE },
        Case { label: "1 KiB", ..QUICKSORT },
        Case { label: "2 KiB", options: &[("object", "2K"), ("threads", "8")], ..SORT_MORE },
        Case {
            label: "4 KiB",
            options: &[("object", "4K"), ("threads", "8")],
            quick: OBJECTS_SWAP,
            ..SORT_MORE
        },
    ],
    metric: &MEAN,
    drawn: Drawn::Lines,
    claims: &[slower("swap : objects, 256 B", "1.4 (5.3)", (1.4, 1.4), Form::Times, &["256 B"])],
};
const SORT_MORE: Case = Case { quick: NOBODY, ..QUICKSORT };

const FIGURE_4: Experiment = Experiment {
    id: "ssdram-figure4",
    paper: Paper::Ssdram,
    title: "Figure 4: searches in a B tree",
    claim: "Searches for a tenth of 10 GB of objects: SSDRAM is 2.9 to 3.3 times as fast as swap \
            for 256 B to 4 KB (section 5.4).",
    here: "A B+ tree with a record behind each key, 8 threads, no updates.",
    today: "A search reads a leaf and a record. Leaves have 16 bytes for each record: with records \
            of 256 B all leaves together are about as large as the RAM, with 4 KiB a sixteenth of \
            it. The record is on the device in most searches, under every contender. Objects are \
            the wrong choice here: each of 1800 inner nodes takes a page to be used without a \
            fault, and a leaf by itself is used a ninth as often as a page of leaves, so that with \
            512 B swap holds all leaves and objects 40 % of them.",
    axis: "size of a record",
    cases: sizes!(
        SEARCHED,
        "bplus_tree",
        OBJECTS_SWAP,
        OBJECTS_SWAP,
        ("writes", "0"),
        ("threads", "8")
    ),
    metric: &MEAN,
    drawn: Drawn::Lines,
    claims: &[slower("swap : objects", "2.9 to 3.3 (5.4)", (2.9, 3.3), Form::Times, &[])],
};

const SEARCHED: Case = Case { contenders: WITH_MICRO_PAGES, ..APP };

const FIGURE_5: Experiment = Experiment {
    id: "ssdram-figure5",
    paper: Paper::Ssdram,
    title: "Figure 5: a Bloom filter",
    claim: "A vector of 80 billion bits, kept in objects, eight hash functions: at 512 B SSDRAM \
            performs 76.5 % better than swap (section 5.5).",
    here: "Half of the operations add an element, half ask for one; 8 threads.",
    today: "An element touches eight places at random, nearly all of them on the device: it is \
            the hardest of these programs for any memory, and the one that writes most for each \
            byte that it changes.",
    axis: "size of an object",
    cases: sizes!(APP, "bloom_filter", FOUR, OBJECTS_SWAP, ("writes", "50"), ("threads", "8")),
    metric: &MEAN,
    drawn: Drawn::Lines,
    claims: &[slower(
        "swap takes longer, 512 B",
        "76.5 % (5.5)",
        (76.5, 76.5),
        Form::PercentMore,
        &["512 B"],
    )],
};

const FIGURE_6: Experiment = Experiment {
    id: "ssdram-figure6",
    paper: Paper::Ssdram,
    title: "Figure 6: threads",
    claim: "The microbenchmark with 1, 2, 4 and 8 threads: SSDRAM needs less time than swap with \
            fewer than eight; with eight it is close to it (section 5.6; the numbers are in the \
            figure only).",
    here: "Objects of 512 B, half of the operations writes, a fixed time instead of a fixed \
           number of operations: the more a second, the better.",
    today: "A device of today answers many requests at a time, and rewards threads more than the \
            SATA SSD of the paper did.",
    axis: "threads",
    cases: &[
        Case {
            label: "1",
            options: &[("object", "512"), ("writes", "50"), ("threads", "1")],
            quick: OBJECTS_SWAP,
            ..RANDOM
        },
        Case {
            label: "2",
            options: &[("object", "512"), ("writes", "50"), ("threads", "2")],
            quick: NOBODY,
            ..RANDOM
        },
        Case {
            label: "4",
            options: &[("object", "512"), ("writes", "50"), ("threads", "4")],
            quick: NOBODY,
            ..RANDOM
        },
        Case { label: "8", ..RANDOM },
    ],
    metric: &THROUGHPUT,
    drawn: Drawn::Lines,
    claims: &[],
};

/// All of them.
pub const ALL: &[Experiment] =
    &[FIGURE_2A, FIGURE_2B, FIGURE_2C, FIGURE_2D, FIGURE_3, FIGURE_4, FIGURE_5, FIGURE_6];
