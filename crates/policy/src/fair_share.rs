//! Fair share: how much of the RAM of a pool each of its programs may use.
//!
//! Each of n programs that want more has an nth of the RAM. The RAM that some leave of that,
//! because they are at rest or have enough, goes to the others in equal parts. No program is given
//! RAM: one that wants more takes free RAM, and while little is free, those above their share give.
//!
//! | wants | its share |
//! |---|---|
//! | nothing, for it is at rest | the least that it can do with |
//! | to keep what it has | what it uses, and no more than an equal part |
//! | more | an equal part |
//!
//! Guarantees: what is granted together becomes no more than the whole, unless the least of all
//! members is more: RAM that somebody uses is not free, even if it is no longer granted.
//! Pure: observations in, a decision out.

/// While somebody wants more, so much of the whole is to be free: what gives needs time.
const RESERVE_PART: u64 = 8;
/// A process that uses all it has and wants for nothing takes so much of the whole at a time.
const STEP_PART: u64 = 32;

/// A program's use for more RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// It does not run.
    Nothing,
    /// It runs, and hardly misses any.
    Keep,
    /// It runs, and waits for what is not in RAM.
    More,
}

/// A program of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Bytes that it may use.
    pub granted: u64,
    /// Bytes that it uses: more than is granted if it has just given some.
    pub used: u64,
    /// Bytes below which it cannot go.
    pub least: u64,
    /// Its use for more.
    pub want: Want,
}

impl Member {
    /// RAM that nobody else can have now.
    fn held(&self) -> u64 {
        self.granted.max(self.used)
    }

    fn demand(&self) -> u64 {
        match self.want {
            Want::Nothing => self.least,
            Want::Keep => self.used.max(self.least),
            Want::More => u64::MAX,
        }
    }

    fn share(&self, equal_part: u64) -> u64 {
        self.demand().min(equal_part.max(self.least))
    }
}

/// Bytes of a pool that no member has.
pub fn free(total: u64, members: &[Member]) -> u64 {
    total.saturating_sub(members.iter().map(Member::held).sum())
}

/// The bytes that member `own` of a pool of `total` bytes may use from now on; `is_full` if it uses
/// all that it has.
pub fn next(total: u64, members: &[Member], own: usize, is_full: bool) -> u64 {
    let me = &members[own];
    let equal_part = equal_part(total, members);
    let held: u64 = members.iter().map(Member::held).sum();
    let (free, excess) = (free(total, members), held.saturating_sub(total));
    let share = me.share(equal_part);
    let is_short =
        |other: &Member| other.want == Want::More && other.granted < other.share(equal_part);
    let others_want = members.iter().enumerate().any(|(index, it)| index != own && is_short(it));
    let reserve = if others_want { total / RESERVE_PART } else { 0 };
    let lacks = (reserve + excess).saturating_sub(free);
    let granted = if me.granted > share && lacks > 0 {
        me.granted - lacks.min(me.granted - share)
    } else if me.want == Want::More {
        me.granted + free.min(share.saturating_sub(me.granted))
    } else if me.want == Want::Keep && is_full {
        me.granted + (total / STEP_PART).min(free.saturating_sub(reserve))
    } else {
        me.granted
    };
    granted.max(me.least)
}

/// The most that a member that wants more has for its share, so that all shares together are the
/// whole.
fn equal_part(total: u64, members: &[Member]) -> u64 {
    let (mut left, mut above) = (total, members.len() as u64);
    let is_above = |member: &&Member, part: u64| member.demand() > part;
    let mut part = left / above.max(1);
    // Each round takes out those that want less than an equal part of what is left.
    for _ in members {
        let below = members.iter().filter(|member| !is_above(member, part));
        let (count, sum) = below.fold((0, 0u64), |(count, sum), it| (count + 1, sum + it.demand()));
        left = total.saturating_sub(sum);
        above = members.len() as u64 - count;
        let next = left.checked_div(above).unwrap_or(u64::MAX);
        if next == part {
            break;
        }
        part = next;
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: u64 = 1024;
    const LEAST: u64 = 16;

    /// Programs that touch so much, and a device that takes so much out of RAM in a round.
    struct Pool {
        members: Vec<Member>,
        touches: Vec<u64>,
        most_held: u64,
    }

    impl Pool {
        fn of(count: usize) -> Pool {
            let member = Member { granted: LEAST, used: 0, least: LEAST, want: Want::Nothing };
            Pool { members: vec![member; count], touches: vec![0; count], most_held: 0 }
        }

        /// Lets them touch so much each, for some rounds.
        fn run(&mut self, touches: &[u64], rounds: usize) {
            const WRITTEN: u64 = 20;
            self.touches.copy_from_slice(touches);
            for _ in 0..rounds {
                for own in 0..self.members.len() {
                    let touched = self.touches[own];
                    let me = &mut self.members[own];
                    me.used = me.used.max(touched.min(me.granted));
                    me.used = me.used.min(me.granted.max(me.used.saturating_sub(WRITTEN)));
                    me.want = match touched {
                        0 => Want::Nothing,
                        _ if touched > me.granted => Want::More,
                        _ => Want::Keep,
                    };
                    let is_full = me.used >= me.granted;
                    self.members[own].granted = next(TOTAL, &self.members, own, is_full);
                    let held = self.members.iter().map(Member::held).sum();
                    self.most_held = self.most_held.max(held);
                }
            }
        }

        fn granted(&self) -> Vec<u64> {
            self.members.iter().map(|member| member.granted).collect()
        }
    }

    fn is_about(granted: u64, wanted: u64) -> bool {
        granted.abs_diff(wanted) <= TOTAL / RESERVE_PART
    }

    #[test]
    fn all_that_want_more_have_equal_parts_and_the_whole_is_not_passed() {
        for count in 1..=5 {
            let mut pool = Pool::of(count);
            // The first has all before the others come.
            let alone: Vec<u64> =
                (0..count).map(|it| if it == 0 { 2 * TOTAL } else { 0 }).collect();
            pool.run(&alone, 200);
            let left = TOTAL - (count as u64 - 1) * LEAST;
            assert!(is_about(pool.granted()[0], left), "{:?}", pool.granted());
            pool.run(&vec![2 * TOTAL; count], 400);
            for granted in pool.granted() {
                assert!(is_about(granted, TOTAL / count as u64), "{:?}", pool.granted());
            }
            assert!(pool.most_held <= TOTAL, "{} held", pool.most_held);
        }
    }

    #[test]
    fn what_one_leaves_goes_to_who_wants_it_and_comes_back_when_it_is_wanted_again() {
        let mut pool = Pool::of(2);
        pool.run(&[768, 0], 200);
        assert!(pool.granted()[0] >= 768, "{:?}", pool.granted());
        for turn in 0..6 {
            let mut touches = [0, 0];
            touches[(turn + 1) % 2] = 768;
            pool.run(&touches, 200);
            assert!(pool.granted()[(turn + 1) % 2] >= 768, "{:?}", pool.granted());
        }
        assert!(pool.most_held <= TOTAL, "{} held", pool.most_held);
    }

    #[test]
    fn who_has_enough_keeps_it_up_to_an_equal_part() {
        let mut pool = Pool::of(3);
        pool.run(&[200, 300, 2 * TOTAL], 200);
        let granted = pool.granted();
        assert!(granted[0] >= 200 && granted[1] >= 300, "{granted:?}");
        assert!(is_about(granted[2], TOTAL - 500), "{granted:?}");
        // One that has enough and two that have not: the first gives what is above its part.
        let mut pool = Pool::of(3);
        pool.run(&[600, 0, 0], 200);
        pool.run(&[600, 2 * TOTAL, 2 * TOTAL], 400);
        assert!(pool.granted().iter().all(|&it| is_about(it, TOTAL / 3)), "{:?}", pool.granted());
    }

    #[test]
    fn without_want_nothing_moves() {
        let mut pool = Pool::of(2);
        pool.run(&[500, 300], 100);
        let before = pool.granted();
        pool.run(&[0, 0], 100);
        assert_eq!(pool.granted(), before);
        pool.run(&[500, 300], 100);
        assert_eq!(pool.granted(), before);
    }

    #[test]
    fn members_that_cannot_have_their_least_together_have_it_all_the_same() {
        let member = Member { granted: 0, used: 0, least: 600, want: Want::More };
        let members = [member, Member { granted: 600, used: 600, ..member }];
        assert_eq!([0, 1].map(|own| next(TOTAL, &members, own, true)), [600, 600]);
    }
}
