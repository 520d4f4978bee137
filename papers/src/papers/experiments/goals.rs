//! Goals: how good each application has to be, whatever the papers had.
//!
//! Guarantees: every line of the "How good" table is here; each names points that an experiment
//! measures.

use super::*;

/// What has to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    /// The number itself, or the ratio, is at least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// Less than this.
    Below(f64),
}

/// One line.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// What is compared.
    pub what: &'static str,
    /// Where.
    pub case: &'static Case,
    /// In what.
    pub metric: &'static Metric,
    /// Whose number.
    pub of: Contender,
    /// With whom it is compared: the best of these; nobody means the number itself.
    pub against: &'static [Contender],
    /// How far.
    pub reach: Reach,
    /// Why it may be missed, for what reads do not explain.
    pub short: &'static str,
}

const SWAP: &[Contender] = &[Contender::Swap];
const PAGES: &[Contender] = &[Contender::Pages];
const OTHERS: &[Contender] = &[Contender::Pages, Contender::Mmap];

const SERVED_SHORT: &str = "A set unlinks the old item from its neighbours in memcached's list and \
                            changes them. The fill leaves neighbours in one page of swap; as \
                            objects they share a block only if they left RAM together.";
const EMBEDDINGS_SHORT: &str = "An operation uses the rows of a batch through pointers, one after \
                                the other, and each one that is on SSD is a signal, a read and an \
                                eviction of its own; asked for together (calls) they are one wait.";

const fn twice_swap(case: &'static Case) -> Goal {
    Goal {
        what: "objects : swap, throughput",
        case,
        metric: &THROUGHPUT,
        of: Contender::Objects,
        against: SWAP,
        reach: Reach::AtLeast(2.0),
        short: "",
    }
}

const fn twice_swap_by_calls(case: &'static Case) -> Goal {
    Goal { what: "calls : swap, throughput", of: Contender::Calls, ..twice_swap(case) }
}

const fn ahead(case: &'static Case) -> Goal {
    Goal {
        what: "objects : the better of pages and mmap, throughput",
        case,
        metric: &THROUGHPUT,
        of: Contender::Objects,
        against: OTHERS,
        reach: Reach::AtLeast(1.3),
        short: "",
    }
}

const fn ahead_by_calls(case: &'static Case) -> Goal {
    Goal {
        what: "calls : the better of pages and mmap, throughput",
        of: Contender::Calls,
        ..ahead(case)
    }
}

const fn written(case: &'static Case, part: f64, short: &'static str) -> Goal {
    Goal {
        what: "objects : pages, device bytes for each write",
        case,
        metric: &WRITTEN,
        of: Contender::Objects,
        against: PAGES,
        reach: Reach::AtMost(1.0 / part),
        short,
    }
}

const MICRO_NAMED: Case = Case { label: "array of 128 B objects", ..MICRO_128 };
const SERVED_512: Case = Case { label: "memcached, 512 B", ..MEMCACHED_512 };
const SERVED_MIXED: Case = Case { label: "memcached, 4 B to 4 KiB", ..MEMCACHED_MIXED };

/// All lines.
pub const GOALS: &[Goal] = &[
    twice_swap(&RANDOM),
    ahead(&RANDOM),
    twice_swap(&BPLUS_TREE),
    ahead(&BPLUS_TREE),
    twice_swap(&PACKETS),
    ahead(&PACKETS),
    twice_swap_by_calls(&PACKETS),
    ahead_by_calls(&PACKETS),
    twice_swap(&HASHCACHE),
    ahead(&HASHCACHE),
    twice_swap(&QUICKSORT),
    ahead(&QUICKSORT),
    twice_swap(&BLOOM_FILTER),
    ahead(&BLOOM_FILTER),
    twice_swap_by_calls(&BLOOM_FILTER),
    ahead_by_calls(&BLOOM_FILTER),
    Goal { short: EMBEDDINGS_SHORT, ..twice_swap(&EMBEDDINGS) },
    Goal { short: EMBEDDINGS_SHORT, ..ahead(&EMBEDDINGS) },
    twice_swap_by_calls(&EMBEDDINGS),
    ahead_by_calls(&EMBEDDINGS),
    Goal { short: SERVED_SHORT, ..twice_swap(&SERVED_512) },
    Goal { short: SERVED_SHORT, ..ahead(&SERVED_512) },
    Goal {
        what: "objects : swap, 99th percentile",
        case: &SERVED_512,
        metric: &P99,
        of: Contender::Objects,
        against: SWAP,
        reach: Reach::Below(1.0),
        short: "The slowest operations are sets whose old value, whose neighbours in memcached's \
                list and whose new place are all on SSD: up to four reads one after the other, \
                some of them under a lock of memcached.",
    },
    Goal {
        what: "objects : pages, useful entries with the same budget",
        case: &HASHCACHE,
        metric: &USEFUL,
        of: Contender::Objects,
        against: PAGES,
        reach: Reach::AtLeast(10.0),
        short: "The table has 4 bytes for each set of 128, which is half of a sixteenth of the \
                data; buffers that do not grow with the data take most of what a small budget has \
                left.",
    },
    written(&MICRO_NAMED, 15.0, ""),
    written(
        &SERVED_MIXED,
        3.5,
        "Values have half a page in the mean, and one whose header memcached changes, as it does \
         with the neighbours in its lists, is written whole: size spares about half.",
    ),
    Goal {
        what: "lines changed",
        case: &SERVED_512,
        metric: &CHANGED,
        of: Contender::Objects,
        against: &[],
        reach: Reach::AtMost(21.0),
        short: "",
    },
];

const APPLICATIONS: Experiment = Experiment {
    id: "applications",
    paper: Paper::Goals,
    title: "All applications, half writes",
    claim: "",
    here: "Every application with half of its operations writes (quick sort writes what it sorts), \
           under every contender.",
    today: "",
    axis: "application",
    cases: &[
        RANDOM,
        BPLUS_TREE,
        PACKETS,
        HASHCACHE,
        QUICKSORT,
        BLOOM_FILTER,
        EMBEDDINGS,
        SERVED_512,
        SERVED_MIXED,
    ],
    metric: &THROUGHPUT,
    drawn: Drawn::LogBars,
    claims: &[],
};

const ARRAY: Experiment = Experiment {
    id: "array",
    paper: Paper::Goals,
    title: "An array of 128-byte objects, half writes",
    claim: "",
    here: "The microbenchmark of SSDAlloc, for the bytes that it makes the device write.",
    today: "",
    axis: "",
    cases: &[MICRO_NAMED],
    metric: &THROUGHPUT,
    drawn: Drawn::No,
    claims: &[],
};

const SERVED_ZIPF: Case = Case {
    label: "RAM 1/16",
    options: &[("object", "512"), ("writes", "50"), ("threads", "8"), ("zipf", "0.99")],
    quick: NOBODY,
    ..MEMCACHED_512
};
const SERVED_BY_RAM: Experiment = Experiment {
    id: "memcached-zipf",
    paper: Paper::Goals,
    title: "memcached, 512-byte values of which some are hot",
    claim: "",
    here: "8 connections, half of the operations sets, keys by a zipf distribution of 0.99.",
    today: "",
    axis: "RAM",
    cases: &[SERVED_ZIPF, Case { label: "RAM 1/4", ram_part: 4, ..SERVED_ZIPF }],
    metric: &THROUGHPUT,
    drawn: Drawn::No,
    claims: &[],
};

/// The experiments that the goals ask for, besides those of the papers.
pub const ALL: &[Experiment] = &[APPLICATIONS, ARRAY, SERVED_BY_RAM];
