//! SSDAlloc: Tables 1, 3, 4 and 5 and Figures 3 to 6 of Badam and Pai, "SSDAlloc: Hybrid SSD/RAM
//! Memory Management Made Easy", NSDI 2011.
//!
//! Guarantees: claims are quoted with the section that makes them. OPP is the paper's name for
//! objects, MP for memory pages in a log.

use super::*;

const fn times(
    what: &'static str,
    stated: &'static str,
    paper: (f64, f64),
    over: Contender,
    at: &'static [&'static str],
) -> Claim {
    let (metric, form, of) = (&THROUGHPUT, Form::Times, Contender::Objects);
    Claim { what, stated, paper, metric, form, of, over, at }
}

const fn plain(
    what: &'static str,
    stated: &'static str,
    paper: f64,
    metric: &'static Metric,
    of: Contender,
    at: &'static [&'static str],
) -> Claim {
    Claim { what, stated, paper: (paper, paper), metric, form: Form::Plain, of, over: of, at }
}

const fn less_written(
    what: &'static str,
    stated: &'static str,
    paper: (f64, f64),
    than: Contender,
    at: &'static [&'static str],
) -> Claim {
    let (metric, form, over) = (&WRITTEN, Form::Times, Contender::Objects);
    Claim { what, stated, paper, metric, form, of: than, over, at }
}

const fn changed(case: &'static [&'static str], stated: &'static str, paper: f64) -> Claim {
    plain("lines changed", stated, paper, &CHANGED, Contender::Objects, case)
}

const SWAP: Contender = Contender::Swap;
const PAGES: Contender = Contender::Pages;

const TABLE_1: Experiment = Experiment {
    id: "ssdalloc-table1",
    paper: Paper::Ssdalloc,
    title: "Table 1: lines changed, and what they gain",
    claim: "Four programs, ported by changing 9 to 36 lines, run 4.1 to 17.4 times as fast as on \
            an SSD as swap and 1.2 to 3.5 times as fast as on a log-structured swap (section 1).",
    here: "The same four applications, half of the operations writes. One SSD stands for the \
           paper's five, so that where the paper has a range over SSDs, here is one number.",
    today: "The paper's swap wrote one page at a time, to the place where the page was before, and \
            its SSDs were slow at that. Swap of today writes large pieces, and today's SSDs have \
            logs of their own; that is why the gain over swap is smaller here. What stays is the \
            writing that is saved: see Figure 3(c).",
    axis: "application",
    cases: &[
        Case { label: "memcached, 4 B to 4 KiB", ..MEMCACHED_MIXED },
        BPLUS_TREE,
        PACKETS,
        HASHCACHE,
    ],
    metric: &THROUGHPUT,
    drawn: Drawn::Bars,
    claims: &[
        changed(&["memcached, 4 B to 4 KiB"], "21 (1)", 21.0),
        changed(&["B+ tree, 64 B keys"], "15 (1)", 15.0),
        changed(&["packets, 100 to 1500 B"], "9 (1)", 9.0),
        changed(&["HashCache"], "36 (1; 28 in 5.5)", 36.0),
        times("objects : swap", "5.5 to 17.4 (1)", (5.5, 17.4), SWAP, &["memcached, 4 B to 4 KiB"]),
        times("objects : swap", "4.3 to 12.7 (1)", (4.3, 12.7), SWAP, &["B+ tree, 64 B keys"]),
        times("objects : swap", "4.8 to 10.1 (1)", (4.8, 10.1), SWAP, &["packets, 100 to 1500 B"]),
        times("objects : swap", "5.3 to 17.1 (1)", (5.3, 17.1), SWAP, &["HashCache"]),
        times("objects : pages", "1.4 to 3.5 (1)", (1.4, 3.5), PAGES, &["memcached, 4 B to 4 KiB"]),
        times("objects : pages", "1.4 to 3.2 (1)", (1.4, 3.2), PAGES, &["B+ tree, 64 B keys"]),
        times("objects : pages", "1.3 to 2.3 (1)", (1.3, 2.3), PAGES, &["packets, 100 to 1500 B"]),
        times("objects : pages", "1.3 to 3.3 (1)", (1.3, 3.3), PAGES, &["HashCache"]),
    ],
};

const DEVICE: Case =
    Case { program: Program::Device, contenders: BARE, quick: BARE, options: &[], ..MICRO };

const TABLE_3: Experiment = Experiment {
    id: "ssdalloc-table3",
    paper: Paper::Ssdalloc,
    title: "Table 3: the device itself",
    claim: "Five SSDs of 2010, reads a second of 4 KiB and of half a KiB (section 3).",
    here: "Reads at random places of a file, 64 in flight, without the page cache.",
    today: "The Intel SSDs of the paper read half a KiB 1.7 times as often a second as 4 KiB \
            (44,000 and 26,000 for the X25-E), and much of what objects gained at reading came \
            from that. This device does so {2} times as often. Where that is near one, a read of \
            an object that is on the device takes as long as a read of its page, and objects gain \
            at reading only by what more of them RAM holds.",
    axis: "size of a read",
    cases: &[
        Case { label: "512 B", options: &[("read-size", "512")], ..DEVICE },
        Case { label: "4 KiB", options: &[("read-size", "4K")], ..DEVICE },
    ],
    metric: &THROUGHPUT,
    drawn: Drawn::No,
    claims: &[
        Claim {
            what: "reads a second",
            stated: "3,700 to 49,000 (3)",
            paper: (3_700.0, 49_000.0),
            metric: &THROUGHPUT,
            form: Form::Plain,
            of: Contender::Bare,
            over: Contender::Bare,
            at: &["512 B"],
        },
        Claim {
            what: "reads a second",
            stated: "3,200 to 29,000 (3)",
            paper: (3_200.0, 29_000.0),
            metric: &THROUGHPUT,
            form: Form::Plain,
            of: Contender::Bare,
            over: Contender::Bare,
            at: &["4 KiB"],
        },
        Claim {
            what: "512 B : 4 KiB",
            stated: "44,000 : 26,000 (3, X25-E)",
            paper: (44.0 / 26.0, 44.0 / 26.0),
            metric: &THROUGHPUT,
            form: Form::FirstToLast,
            of: Contender::Bare,
            over: Contender::Bare,
            at: &[],
        },
    ],
};

macro_rules! overhead {
    ($what:literal, $paper:literal, $name:literal) => {{
        static METRIC: Metric =
            Metric { name: $name, title: $what, unit: "us", more_is_better: false };
        plain($what, concat!($paper, " (3.7)"), $paper, &METRIC, Contender::Objects, &[])
    }};
}

const TABLE_4: Experiment = Experiment {
    id: "ssdalloc-table4",
    paper: Paper::Ssdalloc,
    title: "Table 4: what a fault is made of, in microseconds of CPU",
    claim: "A fault on an object costs 0.833 us, most of it the signal; a processor core gives a \
            million of them a second (section 3.7).",
    here: "`deepheap-bench overheads`: CPU time of objects of 128 B that are in the cache, not in \
           the page buffer; the table that it prints says what each step includes.",
    today: "A signal costs more than in 2010: the kernel's mitigations against speculation and, on \
            a virtual machine, the page tables of the host stand between a program and its \
            memory. Materializing here includes installing the page under concurrent faults, \
            which takes a system call.",
    axis: "",
    cases: &[Case {
        label: "128 B",
        program: Program::Overheads,
        options: &[],
        contenders: OBJECTS,
        quick: OBJECTS,
        ..MICRO
    }],
    metric: &MEAN,
    drawn: Drawn::No,
    claims: &[
        overhead!("TLB miss", 0.014, "tlb_miss_us"),
        overhead!("look-up of an address", 0.046, "address_lookup_us"),
        overhead!("page materialization", 0.138, "materialize_us"),
        overhead!("page dematerialization", 0.172, "dematerialize_us"),
        overhead!("signal", 0.666, "signal_us"),
        overhead!("combined", 0.833, "combined_us"),
    ],
};

const TABLE_5: Experiment = Experiment {
    id: "ssdalloc-table5",
    paper: Paper::Ssdalloc,
    title: "Table 5: response times",
    claim: "Random accesses to an array of 128-byte objects on the Intel X25-E: OPP has the \
            lowest average and deviation (section 5.1).",
    here: "Half of the accesses are writes, 8 threads; the memory is filled and warmed up first.",
    today: "The paper's swap had an average of 624 us. Here it has {2} us: the device is faster, \
            and the kernel has learned to swap to SSDs.",
    axis: "share of writes",
    cases: &[MICRO_128],
    metric: &MEAN,
    drawn: Drawn::No,
    claims: &[
        plain("objects, average", "257 us (5.1)", 257.0, &MEAN, Contender::Objects, &[]),
        plain("pages, average", "468 us (5.1)", 468.0, &MEAN, PAGES, &[]),
        plain("swap, average", "624 us (5.1)", 624.0, &MEAN, SWAP, &[]),
        plain("objects, deviation", "66 us (5.1)", 66.0, &DEVIATION, Contender::Objects, &[]),
        plain("pages, deviation", "98 us (5.1)", 98.0, &DEVIATION, PAGES, &[]),
        plain("swap, deviation", "287 us (5.1)", 287.0, &DEVIATION, SWAP, &[]),
    ],
};

/// Shares of writes that Figures 3(a) and 3(c) ask for.
const MICRO_WRITES_25: Case = Case {
    label: "25 %",
    options: &[("object-size", "128"), ("write", "25")],
    quick: NOBODY,
    ..MICRO
};
const MICRO_WRITES_75: Case = Case {
    label: "75 %",
    options: &[("object-size", "128"), ("write", "75")],
    quick: NOBODY,
    ..MICRO
};
const MICRO_WRITES_100: Case = Case {
    label: "100 %",
    options: &[("object-size", "128"), ("write", "100")],
    quick: SERVED,
    ..MICRO
};

const FIGURE_3A: Experiment = Experiment {
    id: "ssdalloc-figure3a",
    paper: Paper::Ssdalloc,
    title: "Figure 3(a): random accesses, by the share of writes",
    claim: "An array of 32 GB in 128-byte objects, 1.5 GB of RAM, 8 to 10 threads, Intel X25-E: \
            OPP works best, and the more so the more is written (section 5.1).",
    here: "An array of 128-byte objects, 8 threads.",
    today: "In the paper reading less made reads faster (Table 3), and random writes of pages made \
            swap collapse. On this device a read costs the same for an object and for a page, and \
            all contenders wait for the same reads; objects gain what their smaller writes \
            leave of the device, and lose what the table takes of so little RAM: 4 bytes for each \
            128 are half of a sixteenth.",
    axis: "share of writes",
    cases: &[
        Case {
            label: "0 %",
            options: &[("object-size", "128"), ("write", "0")],
            quick: NOBODY,
            ..MICRO
        },
        MICRO_WRITES_25,
        MICRO_128,
        MICRO_WRITES_75,
        MICRO_WRITES_100,
    ],
    metric: &THROUGHPUT,
    drawn: Drawn::Lines,
    claims: &[
        times("objects : pages", "1.8 to 3.5 (5.1)", (1.8, 3.5), PAGES, &[]),
        times("objects : swap", "2.2 to 14.5 (5.1)", (2.2, 14.5), SWAP, &[]),
    ],
};

const FIGURE_3B: Experiment = Experiment {
    id: "ssdalloc-figure3b",
    paper: Paper::Ssdalloc,
    title: "Figure 3(b): half writes, by the size of an object",
    claim: "With half of the operations writes, OPP beats the others on all five SSDs, and the \
            benefit scales inversely with the size of the object (section 5.1).",
    here: "One device, and the sizes that the text of section 5.1 goes through.",
    today: "The smaller the object, the less is written: that scaling is the same today. The gain \
            at reading is not (Table 3), and with RAM for a sixteenth of the data the table of \
            128-byte objects takes half of it.",
    axis: "size of an object",
    cases: &[
        Case { label: "128 B", ..MICRO_128 },
        Case {
            label: "512 B",
            options: &[("object-size", "512"), ("write", "50")],
            quick: SERVED,
            ..MICRO
        },
        Case {
            label: "1 KiB",
            options: &[("object-size", "1K"), ("write", "50")],
            quick: NOBODY,
            ..MICRO
        },
        Case {
            label: "2 KiB",
            options: &[("object-size", "2K"), ("write", "50")],
            quick: NOBODY,
            ..MICRO
        },
        Case {
            label: "4 KiB",
            options: &[("object-size", "4K"), ("write", "50")],
            quick: NOBODY,
            ..MICRO
        },
    ],
    metric: &THROUGHPUT,
    drawn: Drawn::Lines,
    claims: &[
        times("objects : pages", "1.4 to 3.5 (5.1)", (1.4, 3.5), PAGES, &["128 B"]),
        times("objects : swap", "5.5 to 17.4 (5.1)", (5.5, 17.4), SWAP, &["128 B"]),
        times("objects : pages", "1.6 to 2.8 (5.1)", (1.6, 2.8), PAGES, &["1 KiB"]),
        times("objects : pages", "1.4 to 2.3 (5.1)", (1.4, 2.3), PAGES, &["2 KiB"]),
    ],
};

const FIGURE_3C: Experiment = Experiment {
    id: "ssdalloc-figure3c",
    paper: Paper::Ssdalloc,
    title: "Figure 3(c): what a write makes the device write",
    claim: "OPP writes 31.5 times less than MP and swap for the same work (section 5.1).",
    here: "The bytes that the block device counted while measuring, for each operation that \
           wrote: the log's own collection and the file system's journal are in it.",
    today: "This part of the story does not age: flash wears by the byte.",
    axis: "share of writes",
    cases: &[MICRO_WRITES_25, MICRO_128, MICRO_WRITES_75, MICRO_WRITES_100],
    metric: &WRITTEN,
    drawn: Drawn::LogBars,
    claims: &[
        less_written("pages : objects", "31.5 (5.1)", (31.5, 31.5), PAGES, &[]),
        less_written("swap : objects", "31.5 (5.1)", (31.5, 31.5), SWAP, &[]),
    ],
};

const FIGURE_4A: Experiment = Experiment {
    id: "ssdalloc-figure4a",
    paper: Paper::Ssdalloc,
    title: "Figure 4(a): memcached, by the requests at a time",
    claim: "Values of 4 bytes to 4 KB, instances of memcached loaded by four machines: OPP beats \
            MP by 1.6 and swap by 5.1 (section 5.2).",
    here: "One memcached with threads, more connections instead of more instances, half of the \
           requests sets, all keys equally likely; the loader runs on the same machine.",
    today: "memcached of today has threads and locks by item, and needs no instances beside each \
            other to keep a device busy.",
    axis: "connections",
    cases: &[
        Case {
            label: "1",
            options: &[("object", "4-4K"), ("writes", "50"), ("threads", "1")],
            quick: NOBODY,
            ..MEMCACHED
        },
        Case {
            label: "2",
            options: &[("object", "4-4K"), ("writes", "50"), ("threads", "2")],
            quick: OBJECTS_SWAP,
            ..MEMCACHED
        },
        Case {
            label: "4",
            options: &[("object", "4-4K"), ("writes", "50"), ("threads", "4")],
            quick: NOBODY,
            ..MEMCACHED
        },
        Case { label: "8", ..MEMCACHED_MIXED },
    ],
    metric: &THROUGHPUT,
    drawn: Drawn::Lines,
    claims: &[
        times("objects : pages", "1.6 (5.2)", (1.6, 1.6), PAGES, &["8"]),
        times("objects : swap", "5.1 (5.2)", (5.1, 5.1), SWAP, &["8"]),
        plain("objects, mean", "287 us (5.2)", 287.0, &MEAN, Contender::Objects, &["8"]),
        plain("swap, mean", "667 us (5.2)", 667.0, &MEAN, SWAP, &["8"]),
    ],
};

const FIGURE_4B: Experiment = Experiment {
    id: "ssdalloc-figure4b",
    paper: Paper::Ssdalloc,
    title: "Figure 4(b): memcached, by the largest value",
    claim: "Values from 128 bytes to a limit: the smaller they are, the more OPP gains over MP and \
            swap (section 5.2; the numbers are in the figure only).",
    here: "As Figure 4(a), 8 connections.",
    today: "Each value that is not in RAM, and each such neighbour in memcached's lists, is a \
            read of a block, whatever its size: these reads, and not the writes, bound all of \
            them.",
    axis: "largest value",
    cases: &[
        Case {
            label: "512 B",
            options: &[("object", "128-512"), ("writes", "50"), ("threads", "8")],
            quick: NOBODY,
            ..MEMCACHED
        },
        Case {
            label: "1 KiB",
            options: &[("object", "128-1K"), ("writes", "50"), ("threads", "8")],
            quick: NOBODY,
            ..MEMCACHED
        },
        Case {
            label: "2 KiB",
            options: &[("object", "128-2K"), ("writes", "50"), ("threads", "8")],
            quick: OBJECTS_SWAP,
            ..MEMCACHED
        },
        Case {
            label: "4 KiB",
            options: &[("object", "128-4K"), ("writes", "50"), ("threads", "8")],
            quick: OBJECTS_SWAP,
            ..MEMCACHED
        },
    ],
    metric: &THROUGHPUT,
    drawn: Drawn::Lines,
    claims: &[],
};

const FIGURE_4C: Experiment = Experiment {
    id: "ssdalloc-figure4c",
    paper: Paper::Ssdalloc,
    title: "Figure 4(c): memcached at half sets",
    claim: "With half of the requests inserts, OPP is 4.1 to 6.4 times as fast as swap and 1.2 to \
            1.5 times as MP for values of 4 bytes to 4 KB, more for values of 0.5 KB, and writes \
            3.88 to 31.6 times less (section 5.2).",
    here: "As Figure 4(a), 8 connections, one device.",
    today: "See Table 1.",
    axis: "values",
    cases: &[MEMCACHED_512, MEMCACHED_MIXED],
    metric: &THROUGHPUT,
    drawn: Drawn::Bars,
    claims: &[
        times("objects : swap", "4.1 to 6.4 (5.2)", (4.1, 6.4), SWAP, &["4 B to 4 KiB"]),
        times("objects : pages", "1.2 to 1.5 (5.2)", (1.2, 1.5), PAGES, &["4 B to 4 KiB"]),
        times("objects : swap", "4.9 to 16.4 (5.2)", (4.9, 16.4), SWAP, &["512 B"]),
        times("objects : pages", "1.3 to 3.2 (5.2)", (1.3, 3.2), PAGES, &["512 B"]),
        less_written("pages : objects, written", "3.88 to 31.6 (5.2)", (3.88, 31.6), PAGES, &[]),
        less_written("swap : objects, written", "3.88 to 31.6 (5.2)", (3.88, 31.6), SWAP, &[]),
    ],
};

const FIGURE_5A: Experiment = Experiment {
    id: "ssdalloc-figure5a",
    paper: Paper::Ssdalloc,
    title: "Figure 5(a): a packet cache, pointers against calls",
    claim: "Getting and putting packets through pointers costs up to 20 us more than through \
            calls that read and write the SSD directly, without a difference in throughput; OPP \
            is 1.3 to 2.3 times as fast as MP and 4.8 to 10.1 times as swap (section 5.3).",
    here: "Packets in LRU order, 8 threads, half of the operations puts; calls are `dh_read` and \
           `dh_write`.",
    today: "The device of today answers sooner, and eight threads share two processors: what a \
            pointer's fault takes of them weighs more than the signal of the paper did.",
    axis: "size of a packet",
    cases: &[
        Case {
            label: "100 B",
            program: Program::App("packets"),
            options: &[("object", "100"), ("writes", "50"), ("threads", "8")],
            contenders: OBJECTS_CALLS,
            quick: NOBODY,
            ..APP
        },
        Case {
            label: "500 B",
            program: Program::App("packets"),
            options: &[("object", "500"), ("writes", "50"), ("threads", "8")],
            contenders: OBJECTS_CALLS,
            quick: OBJECTS_CALLS,
            ..APP
        },
        Case {
            label: "1000 B",
            program: Program::App("packets"),
            options: &[("object", "1000"), ("writes", "50"), ("threads", "8")],
            contenders: OBJECTS_CALLS,
            quick: NOBODY,
            ..APP
        },
        Case {
            label: "1500 B",
            program: Program::App("packets"),
            options: &[("object", "1500"), ("writes", "50"), ("threads", "8")],
            contenders: OBJECTS_CALLS,
            quick: OBJECTS_CALLS,
            ..APP
        },
        Case { label: "100 to 1500 B", ..PACKETS },
    ],
    metric: &MEAN,
    drawn: Drawn::Bars,
    claims: &[
        Claim {
            what: "objects, over calls",
            stated: "up to 20 us (5.3)",
            paper: (20.0, 20.0),
            metric: &MEAN,
            form: Form::Added,
            of: Contender::Objects,
            over: Contender::Calls,
            at: &[],
        },
        times("objects : pages", "1.3 to 2.3 (5.3)", (1.3, 2.3), PAGES, &["100 to 1500 B"]),
        times("objects : swap", "4.8 to 10.1 (5.3)", (4.8, 10.1), SWAP, &["100 to 1500 B"]),
    ],
};

const FIGURE_6: Experiment = Experiment {
    id: "ssdalloc-figure6",
    paper: Paper::Ssdalloc,
    title: "Figure 6: HashCache, useful index entries in RAM",
    claim: "An index of 3 billion entries in sets of 128 bytes, 2 to 4.5 GB of RAM: OPP holds far \
            more useful entries, for it keeps sets, not pages (section 5.5; the numbers are in the \
            figure only, on a logarithmic scale). At half inserts OPP is 5.3 to 17.1 times as fast \
            as swap and 1.3 to 3.3 times as MP.",
    here: "Useful entries are those of the largest working set, of sets strewn over the index, \
           that comes to RAM in up to twelve passes: 95 of 100 lookups of one pass do not wait \
           for the device.",
    today: "The content of a cache is a matter of sizes, not of devices: it is as true as it was.",
    axis: "RAM, as a part of the index",
    cases: &[
        Case { label: "1/16", ..HASHCACHE },
        Case { label: "1/12", ram_part: 12, quick: NOBODY, ..HASHCACHE },
        Case { label: "1/8", ram_part: 8, quick: NOBODY, ..HASHCACHE },
    ],
    metric: &USEFUL,
    drawn: Drawn::LogBars,
    claims: &[
        times("objects : swap, throughput", "5.3 to 17.1 (5.5)", (5.3, 17.1), SWAP, &["1/16"]),
        times("objects : pages, throughput", "1.3 to 3.3 (5.5)", (1.3, 3.3), PAGES, &["1/16"]),
    ],
};

const FIGURE_5B: Experiment = Experiment {
    id: "ssdalloc-figure5b",
    paper: Paper::Ssdalloc,
    title: "Figure 5(b): a B+ tree, by the size of a key",
    claim: "Updates and lookups in a tree with 25 keys a node: MP is 3.8 times as fast as swap; \
            with 64-byte keys OPP is 1.4 to 3.2 times as fast as MP and 4.3 to 12.7 times as swap \
            (section 5.4).",
    here: "Half of the operations are updates, 8 threads.",
    today: "Inner nodes are hot, but lie among the leaves: as a page, one stays in RAM with a leaf \
            or more that nobody asks for; as an object, by itself. Besides, an operation needs one \
            leaf, of 1808 bytes with the largest keys, of 312 with the smallest.",
    axis: "size of a key",
    cases: &[
        Case {
            label: "4 B",
            program: Program::App("bplus_tree"),
            options: &[("object", "4"), ("writes", "50"), ("threads", "8")],
            quick: OBJECTS_PAGES,
            ..APP
        },
        Case {
            label: "16 B",
            program: Program::App("bplus_tree"),
            options: &[("object", "16"), ("writes", "50"), ("threads", "8")],
            quick: NOBODY,
            ..APP
        },
        Case { label: "64 B", ..BPLUS_TREE },
    ],
    metric: &THROUGHPUT,
    drawn: Drawn::Lines,
    claims: &[
        Claim {
            what: "pages : swap",
            stated: "3.8 (5.4)",
            paper: (3.8, 3.8),
            metric: &THROUGHPUT,
            form: Form::Times,
            of: Contender::Pages,
            over: Contender::Swap,
            at: &[],
        },
        times("objects : pages", "1.4 to 3.2 (5.4)", (1.4, 3.2), PAGES, &["64 B"]),
        times("objects : swap", "4.3 to 12.7 (5.4)", (4.3, 12.7), SWAP, &["64 B"]),
    ],
};

/// All of them.
pub const ALL: &[Experiment] = &[
    TABLE_1, TABLE_3, TABLE_4, TABLE_5, FIGURE_3A, FIGURE_3B, FIGURE_3C, FIGURE_4A, FIGURE_4B,
    FIGURE_4C, FIGURE_5A, FIGURE_5B, FIGURE_6,
];
