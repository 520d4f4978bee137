//! Stream: the operations of one thread, in order, the same on every backend.
//!
//! Guarantees: the same workload, seed and thread give the same operations, whatever the memory
//! underneath does; a chase's next object comes from the data itself and is handed in by `arrive`.
//! Never: allocates, touches the objects.
//! Threads: each thread owns its stream.

use deepheap_load::permutation::Permutation;
use deepheap_load::random::Random;
use deepheap_load::zipf::Zipf;

use crate::sizes::Sizes;
use crate::workload::{Pattern, Workload};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read the header and one more word.
    Read {
        /// Index of the object.
        object: u64,
        /// The other word.
        word: u64,
    },
    /// Add 1 to the version.
    Write {
        /// Index of the object.
        object: u64,
    },
    /// Read the first word of every cache line, and add 1 to the version if `write`.
    Scan {
        /// Index of the object.
        object: u64,
        /// Whether the version is incremented too.
        write: bool,
    },
    /// Read the successor of the object, and add 1 to the version if `write`.
    Follow {
        /// Index of the object.
        object: u64,
        /// Whether the version is incremented too.
        write: bool,
    },
}

#[derive(Clone, Debug)]
enum Chooser {
    Uniform,
    Zipf(Zipf, Permutation),
    Sequential { first: u64, end: u64, at: u64 },
    Scans { first: u64, length: u64, count: u64, turn: u64 },
    Stride { first: u64, end: u64, step: u64, at: u64 },
    Chase { at: u64 },
    Hot { count: u64, order: Permutation },
}

/// The operations of one thread.
#[derive(Clone, Debug)]
pub struct Stream {
    random: Random,
    chooser: Chooser,
    objects: u64,
    sizes: Sizes,
    write_percent: u32,
}

impl Stream {
    /// The stream of thread `thread` of the workload.
    pub fn new(workload: &Workload, thread: u32) -> Self {
        let (objects, threads) = (workload.objects(), u64::from(workload.threads));
        let share = |t: u64| (u128::from(objects) * u128::from(t) / u128::from(threads)) as u64;
        let (first, end) = (share(u64::from(thread)), share(u64::from(thread) + 1));
        let chooser = match workload.pattern {
            Pattern::Uniform => Chooser::Uniform,
            Pattern::Zipf(s) => Chooser::Zipf(Zipf::new(objects, s), order(workload)),
            Pattern::Sequential => Chooser::Sequential { first, end, at: first },
            Pattern::Scans(count) => {
                let count = u64::from(count).min(end - first);
                Chooser::Scans { first, length: (end - first) / count, count, turn: 0 }
            }
            Pattern::Stride(step) => {
                let step = u64::from(step).min(end - first);
                Chooser::Stride { first, end, step, at: first }
            }
            Pattern::Chase => Chooser::Chase { at: order(workload).forward(first) },
            Pattern::Hot => Chooser::Hot { count: workload.hot_objects, order: order(workload) },
        };
        Self {
            random: Random::new(workload.seed, u64::from(thread)),
            chooser,
            objects,
            sizes: workload.sizes(),
            write_percent: workload.write_percent,
        }
    }

    /// The next operation.
    #[inline]
    pub fn next(&mut self) -> Operation {
        let object = match &mut self.chooser {
            Chooser::Uniform => self.random.below(self.objects),
            Chooser::Zipf(zipf, order) => order.forward(zipf.sample(|| self.random.next()) - 1),
            Chooser::Hot { count, order } => order.forward(self.random.below(*count)),
            Chooser::Sequential { first, end, at } => {
                let object = *at;
                *at = if object + 1 == *end { *first } else { object + 1 };
                return Operation::Scan { object, write: self.random.percent(self.write_percent) };
            }
            Chooser::Stride { first, end, step, at } => {
                let object = *at;
                let column = (object - *first) % *step;
                *at = if object + *step < *end {
                    object + *step
                } else {
                    *first + (column + 1) % *step
                };
                return Operation::Scan { object, write: self.random.percent(self.write_percent) };
            }
            Chooser::Scans { first, length, count, turn } => {
                let (scan, step) = (*turn % *count, *turn / *count);
                *turn = if *turn + 1 == *length * *count { 0 } else { *turn + 1 };
                let at = if scan % 2 == 0 { step } else { *length - 1 - step };
                let object = *first + scan * *length + at;
                return Operation::Scan { object, write: self.random.percent(self.write_percent) };
            }
            Chooser::Chase { at } => {
                let write = self.random.percent(self.write_percent);
                return Operation::Follow { object: *at, write };
            }
        };
        let write = self.random.percent(self.write_percent);
        let words = self.sizes.of(object) / crate::sizes::WORD_BYTES as u64;
        let word = 1 + self.random.below(words - 1);
        if write { Operation::Write { object } } else { Operation::Read { object, word } }
    }

    /// The last `Follow` led to `next`.
    #[inline]
    pub fn arrive(&mut self, next: u64) {
        if let Chooser::Chase { at } = &mut self.chooser {
            *at = next;
        }
    }
}

/// The bijection that scatters zipf ranks and hot objects, and orders a chase.
pub fn order(workload: &Workload) -> Permutation {
    Permutation::new(workload.objects(), workload.seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        workload: Workload,
    }

    fn workload(arguments: &str) -> Workload {
        Line::parse_from(["x"].into_iter().chain(arguments.split(' '))).workload
    }

    #[test]
    fn backends_get_the_same_operations() {
        for pattern in ["uniform", "zipf:0.99", "sequential"] {
            let take = |on: &str| {
                let line =
                    format!("--on {on} --data 1M --write 50 --threads 2 --pattern {pattern}");
                let mut stream = Stream::new(&workload(&line), 1);
                (0..1000).map(|_| stream.next()).collect::<Vec<_>>()
            };
            assert_eq!(take("swap"), take("deepheap"));
        }
    }

    #[test]
    fn peers_get_the_operations_of_objects_of_random_sizes() {
        let take = |on: &str| {
            let line = format!("--on {on} --data 1M --object-size 16-2K --allocate objects");
            let plan = workload(&line);
            let mut stream = Stream::new(&plan, 0);
            let operations: Vec<_> = (0..1000).map(|_| stream.next()).collect();
            for operation in &operations {
                let Operation::Read { object, word } = *operation else { continue };
                assert!((1..plan.sizes().of(object) / 8).contains(&word), "{operation:?}");
            }
            operations
        };
        assert_eq!(take("swap"), take("deepheap"));
    }

    #[test]
    fn the_hot_set_is_small_the_same_for_all_threads_and_scattered() {
        let line = "--on glibc --data 64M --object-size 128 --pattern hot --hot-objects 1000";
        let plan = workload(line);
        let mut hot = std::collections::BTreeSet::new();
        for thread in 0..2 {
            let mut stream = Stream::new(&plan, thread);
            for _ in 0..20_000 {
                match stream.next() {
                    Operation::Read { object, .. } => hot.insert(object),
                    other => panic!("{other:?} without --write"),
                };
            }
        }
        assert_eq!(hot.len(), 1000);
        let pages: std::collections::BTreeSet<u64> = hot.iter().map(|o| o * 128 / 4096).collect();
        assert!(pages.len() > 950, "{} pages", pages.len());
    }

    #[test]
    fn a_sequential_thread_stays_in_its_share_and_wraps() {
        let plan = workload("--on glibc --data 40K --threads 3 --pattern sequential");
        let mut seen = Vec::new();
        for thread in 0..3 {
            let mut stream = Stream::new(&plan, thread);
            let mut mine: Vec<_> = (0..50).map(|_| stream.next()).collect();
            mine.dedup();
            mine.sort_unstable_by_key(|o| format!("{o:?}"));
            mine.dedup();
            seen.extend(mine);
        }
        assert_eq!(seen.len(), 10, "{seen:?}");
    }

    #[test]
    fn scans_take_turns_and_every_other_one_goes_backwards() {
        let plan = workload("--on glibc --data 48K --threads 2 --pattern scans:2");
        let mut stream = Stream::new(&plan, 1);
        let objects: Vec<u64> = (0..7)
            .map(|_| match stream.next() {
                Operation::Scan { object, .. } => object,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(objects, [6, 11, 7, 10, 8, 9, 6]);
    }

    #[test]
    fn strides_come_to_every_object_once_before_they_begin_again() {
        let plan = workload("--on glibc --data 80K --threads 2 --pattern stride:3");
        let mut stream = Stream::new(&plan, 1);
        let objects: Vec<u64> = (0..11)
            .map(|_| match stream.next() {
                Operation::Scan { object, .. } => object,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(objects, [10, 13, 16, 19, 11, 14, 17, 12, 15, 18, 10]);
    }

    #[test]
    fn the_write_share_is_kept() {
        let mut stream = Stream::new(&workload("--on glibc --data 1M --write 30"), 0);
        let writes =
            (0..100_000).filter(|_| matches!(stream.next(), Operation::Write { .. })).count();
        assert!((29_000..31_000).contains(&writes), "{writes}");
    }
}
