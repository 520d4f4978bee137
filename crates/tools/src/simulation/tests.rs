//! Tests of simulations: traces that are made up.

use super::*;
use deepheap_pager::trace::format::{Happened, Header, Record, Traced};

const HEADER: Header = Header { pid: 1, ram: 16 << 20, begun: 0, region_base: 0, ran_before_ns: 0 };

/// A trace of a program that goes round pages, by records as a pager with `in_ram` pages makes
/// them.
fn looping(pages: u32, in_ram: u32, rounds: u32) -> Trace {
    let mut records = Vec::new();
    let mut note = |happened, page, amount, took| {
        let at = records.len() as u64 * 1000;
        let record = Record { happened, page, amount, at, took };
        records.push(Traced { lane: 0, record });
    };
    for step in 0..pages * rounds {
        let page = step % pages;
        let happened = if step < pages { Happened::Zero } else { Happened::Stored };
        note(happened, page, 1, 900);
        if let Some(oldest) = step.checked_sub(in_ram) {
            let is_first = oldest < pages;
            note(if is_first { Happened::Dirty } else { Happened::Clean }, oldest % pages, 4096, 0);
            note(
                if is_first { Happened::Written } else { Happened::Dropped },
                oldest % pages,
                4096,
                0,
            );
        }
    }
    Trace { header: HEADER, records, lost: 0, is_cut: false }
}

#[test]
fn more_ram_means_fewer_reads_and_all_of_it_none() {
    let simulation = Simulation::new(&looping(20_000, 2000, 3));
    assert_eq!(simulation.seen.reads, 40_000);
    assert_eq!(simulation.seen.touches, 60_000);
    assert_eq!(simulation.terms(1 << 46).pages, 20_000, "no room that no page needs");
    let play = |ram| simulation.play(ram, simulation.terms(ram));
    let whole = play(simulation.whole_ram());
    assert_eq!((whole.counts.missed, whole.counts.written), (0, 0), "{whole:?}");
    assert!(whole.slowdown < 1.01 && whole.written_a_second <= 0.0, "{whole:?}");
    let half = play(simulation.whole_ram() / 2);
    assert!(half.counts.reads() > 10_000, "{half:?}");
    assert!(half.slowdown > whole.slowdown && half.written_a_second > 0.0);
    assert_eq!(half, play(simulation.whole_ram() / 2));
}

#[test]
fn a_curve_falls_and_tells_how_much_ram_is_enough() {
    let simulation = Simulation::new(&looping(60_000, 2000, 3));
    let curve = simulation.curve(|terms| terms);
    assert_eq!(curve.len(), CURVE_POINTS);
    assert!(curve.windows(2).all(|pair| pair[0].ram < pair[1].ram));
    let ratio = |at: usize| curve[at].counts.miss_ratio();
    assert!(ratio(0) > 0.4 && ratio(CURVE_POINTS - 1) < 0.02, "{} to {}", ratio(0), ratio(23));
    let [tight, loose] = [1.01, 1.2].map(|most| simulation.ram_for(&curve, most));
    assert!(loose <= tight && tight <= simulation.whole_ram(), "{loose}, {tight}");
    for at in [6, 12, 18] {
        let ram = curve[at].ram;
        let terms =
            Terms { scans: false, strides: false, sequences: false, ..simulation.terms(ram) };
        let exact = simulation.play(ram, terms).counts.miss_ratio();
        assert!((ratio(at) - exact).abs() < 0.03, "{}: sampled {exact}: exact", ratio(at));
    }
}
