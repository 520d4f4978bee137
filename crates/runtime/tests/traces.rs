//! Traces: the file tells what the statistics count.

mod scene;

use deepheap_pager::trace::format::{Happened, Trace};
use scene::memory::{Object, PAGE, Random, seed};
use scene::{Folder, is_played, play};

const NAME: &str = "a_trace_tells_what_the_statistics_count";
const MIB: usize = 1 << 20;

/// The file lies in the folder of the test, for the scene's is gone when the scene has ended.
#[test]
fn a_trace_tells_what_the_statistics_count() {
    let folder = (!is_played(NAME)).then(|| Folder::new("traces"));
    let [trace, stats] = ["trace", "stats"]
        .map(|name| folder.as_ref().map_or(name.into(), |folder| folder.path().join(name)));
    // The scene reads them from its environment, so that it has the same ones.
    if folder.is_some() {
        // SAFETY: no other thread of this test binary reads the environment now.
        unsafe { std::env::set_var("TRACED", trace.parent().expect("a folder")) };
    }
    let place = std::env::var("TRACED").expect("the test's folder");
    let conf = format!("ram:32M,store_size:1G,trace:{place}/trace,stats:{place}/stats");
    play(NAME, &conf, || {
        let seed = seed();
        let array = Object::new(96 * MIB).expect("room");
        array.fill(seed);
        array.check(seed);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let array = &array;
                scope.spawn(move || {
                    let mut random = Random::new(seed + thread);
                    for _ in 0..5000 {
                        let _ = array.get(random.below(array.size() / 8));
                    }
                });
            }
        });
    });
    let bytes = std::fs::read(&trace).expect("a trace");
    let read = Trace::read(&bytes).expect("it is whole");
    let line = std::fs::read_to_string(&stats).expect("statistics");
    let stats: serde_json::Value =
        serde_json::from_str(line.lines().next().expect("a line")).expect("JSON");
    assert_eq!((read.lost, read.is_cut, read.header.ram), (0, false, 32 << 20));
    let count = |happened| {
        read.records.iter().filter(|traced| traced.record.happened == happened).count() as u64
    };
    for (happened, counted) in [
        (Happened::Zero, &stats["faults"]["zero"]["count"]),
        (Happened::Cached, &stats["faults"]["cached"]["count"]),
        (Happened::Stored, &stats["faults"]["stored"]["count"]),
        (Happened::Clean, &stats["evictions"]["clean"]),
        (Happened::Dirty, &stats["evictions"]["dirty"]),
        (Happened::Dropped, &stats["cache"]["reclaimed_clean"]),
        (Happened::Written, &stats["cache"]["reclaimed_dirty"]),
    ] {
        // The workers go on while the process ends.
        let (told, counted) = (count(happened), counted.as_u64().expect("a number"));
        assert!(told.abs_diff(counted) <= 512, "{happened:?}: {told} told, {counted} counted");
        assert!(told > 0, "{happened:?}");
    }
    let stored = count(Happened::Stored);
    assert!(stored > 5000, "{stored} reads of random pages");
    let events = read.records.len();
    assert!(bytes.len() < 10 * events, "{} bytes for {events} records", bytes.len());
    assert!(events > 96 * MIB / PAGE);
}
