//! Tests of the replay.

use super::*;

mod replacement;

fn touch(page: u32, leaves: Leaves, is_new: bool) -> Touch {
    let bytes = PAGE as u16;
    Touch { object: page, page, bytes, leaves, is_new, is_led: false, lane: 0 }
}

fn replay(scans: bool) -> Replay {
    Replay::new(Terms { scans, ..Terms::new(4 * budget_split::LEAST) })
}

#[test]
fn what_fits_is_read_never_and_what_is_zero_is_never_written() {
    let mut replay = replay(false);
    let pages = 0..3 * budget_split::LEAST as u32;
    for round in 0..4 {
        pages.clone().for_each(|page| replay.touch(&touch(page, Leaves::Dirty, round == 0)));
    }
    let counts = replay.counts();
    assert_eq!((counts.missed, counts.written, counts.new), (0, 0, pages.len() as u64));
    let mut replay = self::replay(false);
    for page in 10_000..50_000 {
        replay.touch(&touch(page, Leaves::Empty, true));
    }
    assert_eq!(replay.counts().written, 0, "{:?}", replay.counts());
}

/// It is larger than the page buffer at first, and fits one that has grown. The cache is full of
/// other objects, so that it lends nothing.
#[test]
fn going_round_in_a_set_that_the_page_buffer_can_hold_ends_in_it() {
    let mut replay = replay(false);
    let others = 100_000..100_000 + 20 * budget_split::LEAST as u32;
    others.for_each(|page| replay.touch(&touch(page, Leaves::Dirty, true)));
    let set = 0..(4 * budget_split::LEAST * 2 / 3) as u32;
    let mut faults = [0; 200];
    for (round, faults) in faults.iter_mut().enumerate() {
        let before = replay.counts().cached;
        set.clone().for_each(|page| replay.touch(&touch(page, Leaves::Dirty, round == 0)));
        *faults = replay.counts().cached - before;
    }
    assert!(faults[1] > set.len() as u64 / 4, "{faults:?}");
    assert_eq!(faults[199], 0, "{faults:?}");
}

#[test]
fn what_the_cache_does_not_fill_is_lent_to_the_page_buffer() {
    let mut replay = replay(false);
    let set = 0..(4 * budget_split::LEAST * 2 / 3) as u32;
    for round in 0..3 {
        set.clone().for_each(|page| replay.touch(&touch(page, Leaves::Dirty, round == 0)));
    }
    assert_eq!(replay.counts().cached, 0, "it is larger than the page buffer's share");
}

#[test]
fn a_changed_object_is_written_once_and_a_clean_one_dropped() {
    let mut replay = replay(false);
    let pages = 0..20 * budget_split::LEAST as u32;
    pages.clone().for_each(|page| replay.touch(&touch(page, Leaves::Dirty, true)));
    let first = replay.counts();
    assert!(first.written > 0 && first.dropped == 0 && first.missed == 0, "{first:?}");
    for _ in 0..3 {
        pages.clone().for_each(|page| replay.touch(&touch(page, Leaves::Clean, false)));
    }
    let counts = replay.counts();
    assert!(counts.written <= pages.len() as u64, "{counts:?}");
    assert!(counts.dropped > pages.len() as u64 && counts.missed > 0, "{counts:?}");
    replay.empty(0);
    replay.touch(&touch(0, Leaves::Dirty, true));
    assert_eq!(replay.counts().new, counts.new + 1);
}

#[test]
fn a_walk_in_equal_steps_waits_for_few_of_its_pages() {
    for step in [3u32, 16, 64] {
        let counts = [false, true].map(|strides| {
            let terms = Terms { strides, ..Terms::new(16 * budget_split::LEAST) };
            let mut replay = Replay::new(terms);
            for round in 0..4 {
                for from in 0..step {
                    for at in 0..80 * budget_split::LEAST as u32 / step {
                        replay.touch(&touch(from + at * step, Leaves::Clean, round == 0));
                    }
                }
            }
            replay.counts()
        });
        let [alone, walked] = counts;
        assert!(walked.missed < alone.missed / 4, "step {step}: {walked:?}, {alone:?}");
    }
}

#[test]
fn a_scan_waits_for_few_of_its_pages_and_reads_as_many() {
    let [alone, scanned] = [false, true].map(|scans| {
        let mut replay = replay(scans);
        for round in 0..3 {
            for page in 0..20 * budget_split::LEAST as u32 {
                replay.touch(&touch(page, Leaves::Clean, round == 0));
            }
        }
        replay.counts()
    });
    assert!(scanned.missed < alone.missed / 20, "{scanned:?}, {alone:?}");
    assert!(scanned.reads().abs_diff(alone.reads()) < alone.missed / 10, "{scanned:?}, {alone:?}");
}

/// A list in no order, walked again and again.
#[test]
fn a_sequence_that_comes_again_waits_for_few_of_its_pages() {
    let pages = 80 * budget_split::LEAST as u32;
    let [alone, followed] = [false, true].map(|sequences| {
        let terms = Terms { sequences, ..Terms::new(40 * budget_split::LEAST) };
        let mut replay = Replay::new(terms);
        for round in 0..5 {
            if round == 2 {
                replay.counts = Counts::default();
            }
            // An odd multiplier loses nothing.
            for at in 0..pages {
                let page = at.wrapping_mul(2_654_435_761) >> 2;
                let one = touch(page, Leaves::Clean, round == 0);
                replay.touch(&Touch { object: at, ..one });
            }
        }
        replay.counts()
    });
    assert!(followed.missed < alone.missed / 4, "{followed:?}, {alone:?}");
    assert!(followed.reads() < alone.reads() * 5 / 4, "{followed:?}, {alone:?}");
}
