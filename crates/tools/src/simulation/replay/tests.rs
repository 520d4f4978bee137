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
/// other objects, so that it lends nothing. All become somewhat smaller there.
#[test]
fn going_round_in_a_set_that_the_page_buffer_can_hold_ends_in_it() {
    let mut replay = replay(false);
    let touch =
        |page, is_new| Touch { bytes: (PAGE * 3 / 4) as u16, ..touch(page, Leaves::Dirty, is_new) };
    let others = 100_000..100_000 + 20 * budget_split::LEAST as u32;
    others.for_each(|page| replay.touch(&touch(page, true)));
    let set = 0..(4 * budget_split::LEAST * 2 / 3) as u32;
    let mut faults = [0; 200];
    for (round, faults) in faults.iter_mut().enumerate() {
        let before = replay.counts().cached;
        set.clone().for_each(|page| replay.touch(&touch(page, round == 0)));
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

/// Random numbers below a bound, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }
}

/// A replay of objects that take an `nth` of a page in the cache, each touched once. They are as
/// many as `fits` in RAM with a page buffer of so much of it, in hundredths.
fn filled(nth: u32, fits: usize) -> (Replay, u32) {
    let terms = Terms { scans: false, ..Terms::new(32 * budget_split::LEAST) };
    let cache = terms.pages * (100 - fits) / 100 * nth as usize;
    let objects = (cache + terms.pages * fits / 100) as u32;
    let mut replay = Replay::new(terms);
    (0..objects).for_each(|object| replay.touch(&small(object, nth, true)));
    (replay, objects)
}

fn small(object: u32, nth: u32, is_new: bool) -> Touch {
    Touch { bytes: (PAGE as u32 / nth) as u16, ..touch(object, Leaves::Dirty, is_new) }
}

/// Goes on with `touches`, of objects that `choose` names; what was counted meanwhile.
fn go_on(replay: &mut Replay, nth: u32, touches: u32, mut choose: impl FnMut() -> u32) -> Counts {
    let before = replay.counts();
    (0..touches).for_each(|_| replay.touch(&small(choose(), nth, false)));
    let after = replay.counts();
    Counts {
        touches: after.touches - before.touches,
        resident: after.resident - before.resident,
        cached: after.cached - before.cached,
        missed: after.missed - before.missed,
        ..Counts::default()
    }
}

/// Uniform touches make the page buffer grow for as long as no read is seen.
#[test]
fn what_fits_in_the_cache_at_its_size_there_is_hardly_read() {
    for (nth, fits) in [(5, 70), (5, 50), (5, 25), (3, 50), (2, 40), (2, 15)] {
        let mut random = Random(u64::from(nth) + fits as u64);
        let (mut replay, objects) = filled(nth, fits);
        go_on(&mut replay, nth, 1_000_000, || random.below(objects));
        let counts = go_on(&mut replay, nth, 1_000_000, || random.below(objects));
        let part = replay.border.part * 100 / (1 << 16);
        println!("{nth} {fits}: {part} % {counts:?}");
        assert!(counts.missed < 2_000, "{nth} {fits}: {part} % {counts:?}");
        let reach = (replay.terms.pages * fits / 100) as u64;
        let least = 1_000_000 * reach / u64::from(objects) * 3 / 4;
        assert!(counts.resident > least, "{nth} {fits}: {part} % {counts:?}");
    }
}

/// All would fit with a page buffer that is smaller than what is touched most of the time: few
/// reads of the rest cost less.
#[test]
fn a_hot_set_has_its_place_in_ram_though_the_rest_does_not_fit_beside_it() {
    let (mut replay, objects) = filled(5, 50);
    let hot = (replay.terms.pages * 60 / 100) as u32;
    let mut random = Random(11);
    let mut choose = || match random.below(100_000) {
        0..20 => hot + random.below(objects - hot),
        _ => random.below(hot),
    };
    go_on(&mut replay, 5, 2_000_000, &mut choose);
    let counts = go_on(&mut replay, 5, 2_000_000, &mut choose);
    println!("{} {counts:?}", replay.border.part * 100 / (1 << 16));
    assert!(counts.resident > counts.touches * 95 / 100, "{counts:?}");
}
