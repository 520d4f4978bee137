//! Object cases: what the table of objects compares, and how much each comparison has to reach.
//!
//! Guarantees: every line of issue 3's "How fast" is here, by name; all contenders of a case fill
//! the same objects in the same order with one thread, and then do the same operations; every
//! number is of the whole process; a table of pointers is never in the RAM that is compared.

use super::Settings;
use super::case::{Case, Row, Target, case, memories, row, workload};
use super::contender::{Contender, EXPLICIT_CALLS};
use crate::raw_reads::RawReads;
use crate::sizes::ObjectSize;
use crate::workload::{Backend, Fill, Layout, Pattern, Workload};

/// Hot objects for each byte of RAM: 200,000 for 256 MiB. As pages they need three times the RAM.
const HOT_OBJECTS_PER_GIB: u64 = 800_000;
/// Bytes of single objects for each byte of RAM.
const SINGLES_PER_RAM: u64 = 17;
/// The batch of the gather, and the depth of the bare device it is compared with.
const BATCH: u32 = 64;
/// A page buffer with room for two batches of evictions.
const HANDFUL: &str = "page_buffer:2M";
/// Sizes of packets: the paper's 100 to 1500 bytes, in words.
const PACKETS: ObjectSize = ObjectSize::Between { least_bytes: 104, most_bytes: 1496 };

/// All cases.
pub fn all(settings: &Settings) -> Vec<Case> {
    vec![
        zipf(settings, 512, 2.5, 2.2),
        zipf(settings, 128, 2.0, 1.8),
        mixed(settings),
        hot(settings),
        single_hot(settings),
        single_zipf(settings),
        hot_by_calls(settings),
        zipf_by_calls(settings),
        gather(settings),
        updates(settings, 128, 1.0 / 20.0, 12.0),
        updates(settings, 512, 1.0 / 6.0, 4.0),
        packets(settings, 8),
        packets(settings, 1),
        cached_fault(settings),
        fill(settings, Fill::Pointers, 500e3),
        fill(settings, Fill::Scatter, 3e6),
    ]
}

/// How the objects of all contenders lie and are found, for the reader of the table.
pub const PIECES: &str = " in objects, of one size as an array, single ones and those of random \
                          sizes by a table of pointers that costs no contender RAM";

/// Objects of a size: one array of them where that can be, allocated one by one on deepheap where
/// sizes are random. One by one, finding them takes a table of pointers beside the budget, and swap
/// and mmap, whose objects of one size lie side by side, need none: `single` has that case.
fn objects_of(workload: &mut Workload, size: ObjectSize) {
    workload.object_bytes = size;
    workload.layout = if size.is_fixed() { Layout::ObjectArray } else { Layout::Objects };
}

/// One row for each peer, with its own target.
fn against_both(what: &str, swap: Target, mmap: Target) -> Vec<Row> {
    vec![
        row(format!("{what}, against swap"), &["swap"], swap),
        row(format!("{what}, against mmap"), &["mmap"], mmap),
    ]
}

fn zipf(settings: &Settings, bytes: u64, swap: f64, mmap: f64) -> Case {
    let contenders = memories(settings, |workload| {
        objects_of(workload, ObjectSize::Fixed(bytes));
        workload.pattern = Pattern::Zipf(0.99);
        workload.write_percent = 50;
    });
    let what = format!("zipf 0.99, 50 % writes, 8 threads, {bytes} B objects");
    let rows = against_both(&what, Target::RatioAtLeast(swap), Target::RatioAtLeast(mmap));
    case(settings, format!("zipf-{bytes}"), contenders, rows)
}

fn mixed(settings: &Settings) -> Case {
    let contenders = memories(settings, |workload| {
        objects_of(workload, ObjectSize::Between { least_bytes: 128, most_bytes: 2048 });
        workload.write_percent = 50;
        workload.threads = 32;
    });
    let what = "uniform, 50 % writes, 32 threads, objects of 128 B to 2 KiB";
    let rows = against_both(what, Target::RatioAtLeast(2.0), Target::RatioAtLeast(1.5));
    case(settings, "uniform-mixed".into(), contenders, rows)
}

fn hot_objects(settings: &Settings) -> u64 {
    (settings.ram_bytes * HOT_OBJECTS_PER_GIB / (1 << 30)).max(1)
}

fn hot(settings: &Settings) -> Case {
    let hot_objects = hot_objects(settings);
    let contenders = memories(settings, |workload| {
        objects_of(workload, ObjectSize::Fixed(128));
        workload.pattern = Pattern::Hot;
        workload.hot_objects = hot_objects;
    });
    let what = format!("hot set of {hot_objects} random objects of 128 B, reads, 8 threads");
    let rows = against_both(&what, Target::RatioAtLeast(4.0), Target::Told);
    case(settings, "hot-set".into(), contenders, rows)
}

/// Objects of 128 bytes that deepheap allocates one by one, in a seventeenth of their size: the
/// object table alone takes half of that RAM, and what the heap keeps of each object comes on top.
fn single(
    settings: &Settings,
    name: &str,
    what: &str,
    target: Target,
    change: impl Fn(&mut Workload),
) -> Case {
    let contenders = memories(settings, |workload| {
        workload.object_bytes = ObjectSize::Fixed(128);
        workload.layout = Layout::Objects;
        workload.data_bytes = SINGLES_PER_RAM * settings.ram_bytes;
        workload.write_percent = 50;
        change(workload);
    });
    let what = format!("{what}, 50 % writes, 8 threads, single objects, {SINGLES_PER_RAM} x RAM");
    case(settings, name.into(), contenders, against_both(&what, target, Target::Told))
}

fn single_hot(settings: &Settings) -> Case {
    let hot_objects = hot_objects(settings);
    let what = format!("hot set of {hot_objects} random objects of 128 B");
    single(settings, "single-hot", &what, Target::RatioAtLeast(2.5), |workload| {
        workload.pattern = Pattern::Hot;
        workload.hot_objects = hot_objects;
    })
}

fn single_zipf(settings: &Settings) -> Case {
    let what = "zipf 0.99, 128 B";
    single(settings, "single-zipf", what, Target::RatioAtLeast(2.0), |workload| {
        workload.pattern = Pattern::Zipf(0.99);
    })
}

/// deepheap by calls, and swap by pointers, of which it has no others.
fn by_calls(settings: &Settings, change: impl Fn(&mut Workload)) -> Vec<Contender> {
    let one = |on, calls| {
        let mut workload = workload(settings, on);
        change(&mut workload);
        workload.calls = calls;
        Contender::Memory(Box::new(workload))
    };
    vec![one(Backend::Deepheap, true), one(Backend::Swap, false)]
}

fn hot_by_calls(settings: &Settings) -> Case {
    let hot_objects = hot_objects(settings);
    let contenders = by_calls(settings, |workload| {
        objects_of(workload, ObjectSize::Fixed(128));
        workload.pattern = Pattern::Hot;
        workload.hot_objects = hot_objects;
    });
    let what = format!("hot set of {hot_objects} random objects of 128 B, reads by calls");
    let rows = vec![row(format!("{what}, against swap"), &["swap"], Target::RatioAtLeast(50.0))];
    case(settings, "hot-set-calls".into(), contenders, rows)
}

fn zipf_by_calls(settings: &Settings) -> Case {
    let contenders = by_calls(settings, |workload| {
        objects_of(workload, ObjectSize::Fixed(512));
        workload.pattern = Pattern::Zipf(0.99);
        workload.write_percent = 50;
    });
    let what = "zipf 0.99, 50 % writes, 8 threads, 512 B objects, by calls";
    let rows = vec![row(format!("{what}, against swap"), &["swap"], Target::RatioAtLeast(1.7))];
    case(settings, "zipf-512-calls".into(), contenders, rows)
}

fn gather(settings: &Settings) -> Case {
    let one = |on, gather| {
        let mut workload = workload(settings, on);
        objects_of(&mut workload, ObjectSize::Fixed(128));
        workload.threads = 1;
        workload.gather = gather;
        Contender::Memory(Box::new(workload))
    };
    let device = Contender::Device(Box::new(RawReads {
        depth: BATCH,
        read_bytes: 4096,
        seconds: settings.seconds,
        data_bytes: settings.data_bytes,
        dir: settings.dir.clone(),
        seed: 1,
    }));
    let contenders = vec![one(Backend::Deepheap, Some(BATCH)), one(Backend::Swap, None), device];
    let what = format!("dh_gather, batches of {BATCH}, uniform, 1 thread, 128 B objects");
    let rows = vec![
        row(format!("{what}, against swap, 1 thread"), &["swap"], Target::RatioAtLeast(5.0)),
        row(
            format!("{what}, against bare 4 KiB reads at depth {BATCH}"),
            &["device"],
            Target::RatioAtLeast(0.95),
        ),
    ];
    case(settings, "gather".into(), contenders, rows)
}

/// Every operation is an update, so that what the fill left in RAM and what updates leave there are
/// written alike, and updates fill the RAM twice before they are measured, however long that takes:
/// until it is full of them nothing has to be written. So the measured phase is no different from a
/// later one.
fn updates(settings: &Settings, bytes: u64, swap: f64, percent: f64) -> Case {
    let one = |on| {
        let mut workload = workload(settings, on);
        objects_of(&mut workload, ObjectSize::Fixed(bytes));
        workload.write_percent = 100;
        workload.warm_up_ops = Some(workload.warm_up());
        Contender::Memory(Box::new(workload))
    };
    let rows = vec![
        Row {
            title: format!("device bytes written per update, {bytes} B, uniform, against swap"),
            metric: "/device_written_bytes_per_write",
            unit: "B",
            against: &["swap"],
            target: Target::RatioAtMost(swap),
        },
        Row {
            title: format!("memory for everything that is not an object, {bytes} B, of the data"),
            metric: "/not_objects/percent_of_data",
            unit: "%",
            against: &[],
            target: Target::AtMost(percent),
        },
    ];
    let contenders = vec![one(Backend::Deepheap), one(Backend::Swap)];
    case(settings, format!("updates-{bytes}"), contenders, rows)
}

/// The paper's Figure 5a: packets go in and out whole, and nearly every access faults, because the
/// page buffer holds a handful; what the fault adds to the same access by a call.
fn packets(settings: &Settings, threads: u32) -> Case {
    let one = |calls| {
        let mut workload = workload(settings, Backend::Deepheap);
        objects_of(&mut workload, PACKETS);
        workload.threads = threads;
        workload.write_percent = 50;
        workload.whole = true;
        workload.calls = calls;
        workload.conf = HANDFUL.into();
        Contender::Memory(Box::new(workload))
    };
    let rows = vec![Row {
        title: format!(
            "packet cache, {PACKETS} B, 50 % puts, {threads} thread(s), tiny page buffer: latency \
             that pointers add to explicit calls"
        ),
        metric: "/latency_ns/mean",
        unit: "ns",
        against: &[EXPLICIT_CALLS],
        target: Target::AddedUsBelow(10.0),
    }];
    case(settings, format!("packets-{threads}"), vec![one(false), one(true)], rows)
}

/// All objects fit the cache and next to none the page buffer, so that every access is a hit that
/// faults; eviction and its threads are in the number.
fn cached_fault(settings: &Settings) -> Case {
    let mut workload = workload(settings, Backend::Deepheap);
    objects_of(&mut workload, ObjectSize::Fixed(128));
    workload.data_bytes = settings.ram_bytes / 8;
    workload.threads = 1;
    workload.conf = HANDFUL.into();
    let rows = vec![Row {
        title: "object-cache hit that faults, 128 B, 1 thread: CPU".into(),
        metric: "/cpu_us_per_op",
        unit: "us",
        against: &[],
        target: Target::AtMost(5.0),
    }];
    case(settings, "cached-fault".into(), vec![Contender::Memory(Box::new(workload))], rows)
}

fn fill(settings: &Settings, fill: Fill, objects_per_second: f64) -> Case {
    let mut workload = workload(settings, Backend::Deepheap);
    objects_of(&mut workload, ObjectSize::Fixed(128));
    workload.data_bytes = settings.data_bytes / 4;
    workload.threads = 1;
    workload.fill = fill;
    workload.warm_up_ops = Some(0);
    workload.seconds = None;
    workload.ops = Some(1);
    let (name, by) = match fill {
        Fill::Pointers => ("fill-pointers", "plain pointers"),
        Fill::Scatter => ("fill-scatter", "dh_scatter"),
    };
    let rows = vec![Row {
        title: format!("filling new 128 B objects in address order, 1 thread, by {by}"),
        metric: "/filled_objects_per_second",
        unit: "objects/s",
        against: &[],
        target: Target::AtLeast(objects_per_second),
    }];
    case(settings, name.into(), vec![Contender::Memory(Box::new(workload))], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_can_run_and_is_named_once() {
        let settings = Settings {
            data_bytes: 4 << 30,
            ram_bytes: 256 << 20,
            seconds: 1.0,
            rounds: None,
            quick: false,
            dir: ".".into(),
            deepheap: "deepheap".into(),
        };
        let cases = all(&settings);
        let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        names.dedup();
        assert_eq!(names.len(), cases.len());
        for case in &cases {
            for contender in &case.contenders {
                if let Contender::Memory(workload) = contender {
                    assert!(workload.check().is_ok(), "{}: {workload:?}", case.name);
                    let Contender::Memory(first) = &case.contenders[0] else { continue };
                    let alike = workload.needs_index() == first.needs_index();
                    // deepheap's budget counts no table of the program's, so it stands beside.
                    assert!(alike || case.name.starts_with("single-"), "{}", case.name);
                }
            }
            let name = case.contenders[0].name();
            assert!(name == "deepheap" || name == EXPLICIT_CALLS, "{}: {name}", case.name);
            for row in &case.rows {
                let found = |against: &&str| {
                    case.contenders.iter().any(|contender| contender.name().starts_with(*against))
                };
                assert!(row.against.iter().all(found), "{}", row.title);
            }
        }
        let is_single = |case: &&Case| case.name.starts_with("single-");
        assert_eq!(cases.iter().filter(is_single).count(), 2);
        for case in cases.iter().filter(is_single) {
            let Contender::Memory(ours) = &case.contenders[0] else { return };
            assert!(ours.allocates_each() && ours.objects() > 35_000_000, "{ours:?}");
        }
        let Contender::Memory(hot) = &cases[3].contenders[0] else { return };
        assert_eq!(hot.hot_objects, 200_000);
    }
}
