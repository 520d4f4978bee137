//! Enclosure: the memory cgroup, and for swap the swap file, that an application is measured in.
//!
//! How often a program that swaps was helped out by `lender` is in its numbers as `spared`.
//!
//! Guarantees: swap and mmap have as much memory as the object variant used, or are not measured.
//! Never: moves a process in or out.
//! Threads: the one that waits for the program.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::experiments::Contender;
use super::launch::{Ended, Running};
use super::numbers::Numbers;
use super::point::{Outcome, Point};
use super::settings::Settings;
use deepheap_bench::cgroup::{Cgroup, Swapping};
use deepheap_bench::failure::Failure;
use deepheap_bench::ledger::Ledger;
use deepheap_bench::lender::Lender;
use deepheap_bench::swap_file::SwapFile;

/// What a failure for want of memory says, that of a worker too.
pub const OUT_OF_MEMORY: &str = "out of memory in its memory cgroup";
/// Why swap and mmap cannot be measured. The bare RAM, without what a program needs besides its
/// data, would not be what objects had.
pub const NO_PEAK: &str = "not measured: how much memory it may have is what the same program used \
                           with objects, and that is not known";

/// What a program runs in.
#[derive(Debug)]
pub struct Enclosure {
    cgroup: Option<Cgroup>,
    _swap: Option<SwapFile>,
    limit_bytes: Option<u64>,
    /// The program is let wait when it is out of memory.
    spares: bool,
}

impl Enclosure {
    /// For a contender. Without root there is nothing: the program runs as it is.
    pub fn new(
        point: &Point,
        settings: &Settings,
        ledger: &mut Ledger,
        peak_bytes: Option<u64>,
    ) -> Result<Self, Failure> {
        let mut new = Self { cgroup: None, _swap: None, limit_bytes: None, spares: false };
        if !settings.root {
            return Ok(new);
        }
        let limit_bytes = limit_bytes(point, settings, peak_bytes)?;
        let cgroup = Cgroup::create(ledger)?;
        if let Some(bytes) = limit_bytes {
            if point.contender == Contender::Swap {
                // What malloc and slabs add to the data is swapped, too.
                let data_bytes = settings.data_bytes / 2 * 3;
                let cluster = point.program.page_cluster();
                new._swap = Some(SwapFile::create(ledger, &settings.dir, data_bytes, cluster)?);
                new.spares = cgroup.spare();
            }
            cgroup.limit(bytes, Swapping::Eager)?;
            new.limit_bytes = Some(bytes);
        }
        new.cgroup = Some(cgroup);
        Ok(new)
    }

    /// Makes a command run inside.
    pub fn enclose(&self, command: &mut Command) -> Result<(), Failure> {
        self.cgroup.as_ref().map_or(Ok(()), |cgroup| cgroup.enclose(command))
    }

    /// Waits for the program that reports, which runs inside or asks one inside.
    pub fn outcome(&self, running: Running, limit: Duration) -> Result<Outcome, Failure> {
        let limited = self.cgroup.as_ref().zip(self.limit_bytes).filter(|_| self.spares);
        let mut lender = limited.map(|(cgroup, limit)| Lender::new(cgroup, limit));
        let ended = running.wait_and(limit, || lender.iter_mut().for_each(Lender::look));
        let line = ended.and_then(Ended::success);
        let killed = lender.as_ref().is_some_and(Lender::has_ended);
        let line = line.map_err(|failure| self.explained(failure, killed))?;
        let last = line.lines().last().unwrap_or_default();
        let report: Value = serde_json::from_str(last)
            .map_err(|error| Failure::Failed(format!("no line of JSON ({error}): {last}")))?;
        let mut numbers = Numbers::of_application(&report);
        if let Some(usage) = self.cgroup.as_ref().map(|cgroup| cgroup.usage(0, 0)) {
            let peaks = [
                ("peak_bytes", usage.peak_bytes),
                ("kernel_peak_bytes", usage.kernel_peak_bytes),
                ("spared", lender.as_ref().map(Lender::times)),
            ];
            for (name, bytes) in peaks {
                bytes.into_iter().for_each(|bytes| numbers.set(name, bytes as f64));
            }
        }
        Ok(Outcome { numbers, limit_bytes: self.limit_bytes })
    }

    /// A program that was killed for memory looks like any other that was killed.
    fn explained(&self, failure: Failure, ended: bool) -> Failure {
        let kills = self.cgroup.as_ref().map_or(0, Cgroup::oom_kills);
        match failure {
            Failure::Failed(why) if kills > 0 || ended => {
                Failure::Failed(format!("{OUT_OF_MEMORY} ({why})"))
            }
            other => other,
        }
    }
}

/// How much memory swap and mmap have; the others have no limit.
fn limit_bytes(
    point: &Point,
    settings: &Settings,
    peak_bytes: Option<u64>,
) -> Result<Option<u64>, Failure> {
    match peak_bytes {
        _ if !point.contender.needs_root() => Ok(None),
        Some(peak) => Ok(Some(peak.max(point.ram_bytes(settings)))),
        None => Err(Failure::Failed(NO_PEAK.into())),
    }
}

/// Refuses a program that is not built.
pub fn must_be_there(program: &Path) -> Result<(), Failure> {
    if program.is_file() {
        return Ok(());
    }
    Err(Failure::Failed(format!("{}: not there; build it: make apps", program.display())))
}

#[cfg(test)]
mod tests {
    use super::super::experiments::{GOALS, RAM_PART};
    use super::*;

    #[test]
    fn without_the_memory_of_objects_swap_and_mmap_are_not_measured() {
        let settings = Settings::example();
        let (ram, case) = (settings.ram_bytes, GOALS[0].case);
        assert_eq!(case.ram_part, RAM_PART);
        let limit = |who, peak| limit_bytes(&Point::of(case, who), &settings, peak);
        for who in [Contender::Swap, Contender::Mmap] {
            assert!(matches!(limit(who, Some(2 * ram)), Ok(Some(bytes)) if bytes == 2 * ram));
            assert!(matches!(limit(who, Some(ram / 2)), Ok(Some(bytes)) if bytes == ram));
            let why = limit(who, None).map_err(|failure| failure.to_string());
            assert_eq!(why, Err(NO_PEAK.into()));
        }
        assert!(matches!(limit(Contender::Pages, None), Ok(None)));
    }
}
