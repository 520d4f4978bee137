//! Experiments: every table and figure of section 5 of the two papers, as data.
//!
//! An experiment is a row of cases (a size, a share of writes, an application), each measured under
//! some contenders, one metric that is plotted, and the claims of the paper that stand beside ours.
//! Two experiments that ask for the same program with the same options share its points.
//!
//! Guarantees: numbers in here are the papers' own, or say what is asked; none is a result.
//! Never: touches the machine.

mod goals;
mod ssdalloc;
mod ssdram;

pub use goals::{GOALS, Goal, Reach};

/// Which page an experiment is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    /// Badam and Pai, SSDAlloc, NSDI 2011.
    Ssdalloc,
    /// Wang et al., SSDRAM, IEICE 2016.
    Ssdram,
    /// Neither: what deepheap itself set out to reach.
    Goals,
}

/// Where the memory of a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// deepheap, object by object, through pointers.
    Objects,
    /// The same with objects of up to 512 bytes in lanes (`micro_pages:on`).
    MicroPages,
    /// Objects through dh_read, dh_gather, dh_prefetch and their kin.
    Calls,
    /// deepheap, page by page.
    Pages,
    /// malloc, and a swap file in a memory cgroup.
    Swap,
    /// A mapped file in a memory cgroup.
    Mmap,
    /// No memory above the device at all.
    Bare,
}

impl Contender {
    /// All of them, in the order of measuring and of tables: swap and mmap get the RAM that the
    /// object variant was seen to use, so that comes first.
    pub const ALL: [Self; 7] = [
        Self::Objects,
        Self::MicroPages,
        Self::Calls,
        Self::Pages,
        Self::Swap,
        Self::Mmap,
        Self::Bare,
    ];

    /// The word in tables and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Objects => "objects",
            Self::MicroPages => "micro-pages",
            Self::Calls => "calls",
            Self::Pages => "pages",
            Self::Swap => "swap",
            Self::Mmap => "mmap",
            Self::Bare => "device",
        }
    }

    /// Whether it can be measured by root only.
    pub fn needs_root(self) -> bool {
        matches!(self, Self::Swap | Self::Mmap)
    }
}

/// Who does the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// An application of examples/papers.
    App(&'static str),
    /// memcached, by examples/papers/memcached/run.sh, under memcached_load.
    Memcached,
    /// `deepheap-bench run`.
    Memory,
    /// `deepheap-bench overheads`.
    Overheads,
    /// `deepheap-bench device`.
    Device,
}

impl Program {
    /// The word in tables and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::App(name) => name,
            Self::Memcached => "memcached",
            Self::Memory => "memory",
            Self::Overheads => "overheads",
            Self::Device => "device",
        }
    }

    /// vm.page-cluster under swap: 2^K pages are read at a time. One, but for a program that goes
    /// through its data in order.
    pub fn page_cluster(self) -> u32 {
        if self == Self::App("quicksort") { 3 } else { 0 }
    }

    /// Objects that an operation uses, about: so much sooner is it warm.
    pub fn objects_an_operation(self) -> u64 {
        match self {
            Self::App("embeddings") => 64,
            Self::App("bloom_filter") => 8,
            _ => 1,
        }
    }
}

/// One place on the horizontal axis.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What is written there.
    pub label: &'static str,
    /// What runs.
    pub program: Program,
    /// Its options, besides those that all runs have.
    pub options: &'static [(&'static str, &'static str)],
    /// The RAM is this part of the data.
    pub ram_part: u64,
    /// Who runs it.
    pub contenders: &'static [Contender],
    /// Who runs it with --quick; nobody leaves the case out.
    pub quick: &'static [Contender],
}

/// A number of a run, by its name there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// As in a run's numbers.
    pub name: &'static str,
    /// What a reader sees.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whether more of it is better.
    pub more_is_better: bool,
}

/// How a claim compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// The number of `of` itself.
    Plain,
    /// `of` divided by `over`.
    Times,
    /// By how many per cent `of` is more than `over`.
    PercentMore,
    /// By how many per cent `of` is less than `over`.
    PercentLess,
    /// `of` less `over`.
    Added,
    /// The number of `of` in the first case divided by that in the last.
    FirstToLast,
}

/// A number of the paper, and where ours is.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// What it is of.
    pub what: &'static str,
    /// The paper's, as it states it, the section with it.
    pub stated: &'static str,
    /// The same as numbers, from and to.
    pub paper: (f64, f64),
    /// What is compared.
    pub metric: &'static Metric,
    /// How.
    pub form: Form,
    /// Whose number.
    pub of: Contender,
    /// Compared with whose; not used by `Form::Plain`.
    pub over: Contender,
    /// The labels of the cases it is about; none means all.
    pub at: &'static [&'static str],
}

/// How the metric is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// A line for each contender, over the cases.
    Lines,
    /// Bars beside each other, in groups by case.
    Bars,
    /// The same on a logarithmic scale.
    LogBars,
    /// Not at all.
    No,
}

/// A table or figure.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// For --only and the names of files.
    pub id: &'static str,
    /// Its page.
    pub paper: Paper,
    /// What it is called there, and what it shows.
    pub title: &'static str,
    /// How the paper did it and what it says, with the section.
    pub claim: &'static str,
    /// How it is done here, where that differs.
    pub here: &'static str,
    /// What today's hardware changes; `{0}` is what was reached for the first claim.
    pub today: &'static str,
    /// What the horizontal axis says.
    pub axis: &'static str,
    /// The places on it.
    pub cases: &'static [Case],
    /// What is plotted.
    pub metric: &'static Metric,
    /// How.
    pub drawn: Drawn,
    /// What stands beside ours.
    pub claims: &'static [Claim],
}

impl Case {
    /// Who runs it.
    pub fn contenders(&self, quick: bool) -> &'static [Contender] {
        if quick { self.quick } else { self.contenders }
    }
}

/// All experiments, in the order of the pages.
pub fn all() -> impl Iterator<Item = &'static Experiment> {
    ssdalloc::ALL.iter().chain(ssdram::ALL).chain(goals::ALL)
}

/// The RAM is a sixteenth of the data, if nothing else is said.
pub const RAM_PART: u64 = 16;

const OBJECTS: &[Contender] = &[Contender::Objects];
const BARE: &[Contender] = &[Contender::Bare];
const NOBODY: &[Contender] = &[];
const OBJECTS_SWAP: &[Contender] = &[Contender::Objects, Contender::Swap];
const OBJECTS_CALLS: &[Contender] = &[Contender::Objects, Contender::Calls];
const OBJECTS_PAGES: &[Contender] = &[Contender::Objects, Contender::Pages];
/// Those of memcached, which has no mapped variant.
const SERVED: &[Contender] = &[Contender::Objects, Contender::Pages, Contender::Swap];
const FOUR: &[Contender] =
    &[Contender::Objects, Contender::Pages, Contender::Swap, Contender::Mmap];
const WITH_MICRO_PAGES: &[Contender] = &[
    Contender::Objects,
    Contender::MicroPages,
    Contender::Pages,
    Contender::Swap,
    Contender::Mmap,
];
const FIVE: &[Contender] =
    &[Contender::Objects, Contender::Calls, Contender::Pages, Contender::Swap, Contender::Mmap];

/// Operations a second.
pub static THROUGHPUT: Metric = Metric {
    name: "operations_per_second",
    title: "operations a second",
    unit: "/s",
    more_is_better: true,
};
/// Mean time of an operation.
pub static MEAN: Metric = Metric {
    name: "mean_us",
    title: "mean time of an operation",
    unit: "us",
    more_is_better: false,
};
/// Its standard deviation.
static DEVIATION: Metric = Metric {
    name: "deviation_us",
    title: "standard deviation of the time of an operation",
    unit: "us",
    more_is_better: false,
};
/// The time that 99 of 100 operations stay below.
pub static P99: Metric = Metric {
    name: "p99_us",
    title: "99th percentile of the time of an operation",
    unit: "us",
    more_is_better: false,
};
/// Bytes that the device had to write for each operation that wrote.
pub static WRITTEN: Metric = Metric {
    name: "written_bytes_per_write",
    title: "device bytes written for each write",
    unit: "B",
    more_is_better: false,
};
/// Lines of the program that differ.
static CHANGED: Metric = Metric {
    name: "changed_lines",
    title: "lines that differ from the program with malloc",
    unit: "lines",
    more_is_better: false,
};
/// What RAM holds of a random working set.
static USEFUL: Metric = Metric {
    name: "useful_entries_in_ram",
    title: "useful index entries in RAM",
    unit: "entries",
    more_is_better: true,
};

/// The microbenchmark of SSDAlloc: an array of objects.
const MICRO: Case = Case {
    label: "",
    program: Program::Memory,
    options: &[],
    ram_part: RAM_PART,
    contenders: FOUR,
    quick: FOUR,
};
/// An application; its contenders and options come with the case.
const APP: Case = Case { program: Program::App(""), ..MICRO };

/// The cases that more than one experiment asks for.
const MICRO_128: Case =
    Case { label: "50 %", options: &[("object-size", "128"), ("write", "50")], ..MICRO };
const RANDOM: Case = Case {
    label: "random access, 512 B",
    program: Program::App("random_access"),
    options: &[("object", "512"), ("writes", "50"), ("threads", "8")],
    contenders: WITH_MICRO_PAGES,
    ..APP
};
const PACKETS: Case = Case {
    label: "packets, 100 to 1500 B",
    program: Program::App("packets"),
    options: &[("object", "100-1500"), ("writes", "50"), ("threads", "8")],
    contenders: FIVE,
    quick: FIVE,
    ..APP
};
const BPLUS_TREE: Case = Case {
    label: "B+ tree, 64 B keys",
    program: Program::App("bplus_tree"),
    options: &[("object", "64"), ("writes", "50"), ("threads", "8")],
    ..APP
};
const HASHCACHE: Case = Case {
    label: "HashCache",
    program: Program::App("hashcache"),
    options: &[("writes", "50"), ("threads", "8")],
    ..APP
};
const QUICKSORT: Case = Case {
    label: "quick sort, 1 KiB",
    program: Program::App("quicksort"),
    options: &[("object", "1K"), ("threads", "8")],
    ..APP
};
const BLOOM_FILTER: Case = Case {
    label: "Bloom filter, 512 B",
    program: Program::App("bloom_filter"),
    options: &[("object", "512"), ("writes", "50"), ("threads", "8")],
    contenders: FIVE,
    quick: FIVE,
    ..APP
};
const EMBEDDINGS: Case = Case {
    label: "embeddings",
    program: Program::App("embeddings"),
    options: &[("writes", "50"), ("threads", "8")],
    contenders: FIVE,
    quick: FIVE,
    ..APP
};
const MEMCACHED: Case = Case { program: Program::Memcached, contenders: SERVED, ..MICRO };
const MEMCACHED_512: Case = Case {
    label: "512 B",
    options: &[("object", "512"), ("writes", "50"), ("threads", "8")],
    quick: SERVED,
    ..MEMCACHED
};
const MEMCACHED_MIXED: Case = Case {
    label: "4 B to 4 KiB",
    options: &[("object", "4-4K"), ("writes", "50"), ("threads", "8")],
    quick: SERVED,
    ..MEMCACHED
};
