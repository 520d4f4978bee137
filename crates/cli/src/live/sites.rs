//! Sites: the code whose accesses fault most, from samples that the process keeps anyway.
//!
//! The process writes one fault of 16 into a ring in its statistics page, and never looks at it
//! again; the code is named here, by the viewer, from the files that the process has mapped. So
//! these are the places that *touch* pages that are not mapped, not those that allocated them: an
//! allocation site for each page would cost every program memory and time, also when nobody looks.
//!
//! Guarantees: bounded; recent faults count more than old ones.
//! Never: stops or slows the process down.
//! Threads: plain data; `hottest` reads files.

use std::collections::HashMap;
use std::fs;

use deepheap::internal::stats_page::{SHARDS, StatsPage};

use crate::live::symbols::Symbols;

/// The part of a site's weight that is left after an interval.
const DECAY: f64 = 0.95;
/// Sites below this weight are forgotten.
const WEIGHT_MIN: f64 = 0.05;
/// More than the rings hold in many intervals.
const SITES_MAX: usize = 16_384;
/// Files whose symbols are kept.
const FILES_MAX: usize = 64;

/// Faults by the address of the instruction.
pub struct Sites {
    seen: [u64; SHARDS],
    weights: HashMap<u64, f64>,
    names: HashMap<u64, Site>,
    files: HashMap<String, Option<Symbols>>,
}

/// A place in the code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The function, or an address if it has no name.
    pub function: String,
    /// The file that it is in.
    pub file: String,
}

impl Sites {
    /// Takes the samples that are there.
    pub fn new(page: &StatsPage) -> Sites {
        let mut sites = Sites {
            seen: [0; SHARDS],
            weights: HashMap::new(),
            names: HashMap::new(),
            files: HashMap::new(),
        };
        sites.add(page);
        sites
    }

    /// Takes those that came since.
    pub fn add(&mut self, page: &StatsPage) {
        self.weights.values_mut().for_each(|weight| *weight *= DECAY);
        for (shard, seen) in self.seen.iter_mut().enumerate() {
            let earlier = *seen;
            let (faults, samples) = page.samples_since(shard, earlier);
            *seen = faults;
            // The ring has the newest ones, which stand for all.
            let weight = faults.saturating_sub(earlier) as f64 / samples.len().max(1) as f64;
            for code in samples {
                *self.weights.entry(code).or_default() += weight;
            }
        }
        if self.weights.len() > SITES_MAX / 2 {
            self.weights.retain(|_, weight| *weight > WEIGHT_MIN);
        }
        if self.weights.len() > SITES_MAX {
            self.weights.clear();
        }
    }

    /// The functions with the largest parts of the faults, largest first, and these parts. Code
    /// that has no name yet gets one if the process runs, by its id.
    pub fn hottest(&mut self, pid: Option<u32>, most: usize) -> Vec<(f64, Site)> {
        self.name_all(pid);
        let all: f64 = self.weights.values().sum();
        let mut sums: HashMap<&Site, f64> = HashMap::new();
        for (code, weight) in &self.weights {
            if let Some(site) = self.names.get(code) {
                *sums.entry(site).or_default() += weight;
            }
        }
        let mut sums: Vec<(f64, Site)> =
            sums.into_iter().map(|(site, sum)| (sum / all, site.clone())).collect();
        sums.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.function.cmp(&b.1.function)));
        sums.truncate(most);
        sums
    }

    /// Names the code that has no name yet.
    fn name_all(&mut self, pid: Option<u32>) {
        let unnamed: Vec<u64> =
            self.weights.keys().filter(|code| !self.names.contains_key(code)).copied().collect();
        if unnamed.is_empty() {
            return;
        }
        if self.names.len() > SITES_MAX {
            self.names.clear();
        }
        // Once it has ended, its id may be that of another.
        let (pid, maps) = match pid {
            Some(pid) => (pid, fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default()),
            None => (0, String::new()),
        };
        for code in unnamed {
            let site = self.name(pid, &maps, code);
            self.names.insert(code, site);
        }
    }

    fn name(&mut self, pid: u32, maps: &str, code: u64) -> Site {
        let address = || format!("{code:#x}");
        let Some(mapping) = maps.lines().filter_map(Mapping::of).find(|at| at.holds(code)) else {
            return Site { function: address(), file: "gone".to_owned() };
        };
        let file = mapping.path.rsplit('/').next().unwrap_or_default();
        if !mapping.path.starts_with('/') {
            let file = if file.is_empty() { "made at run time" } else { file };
            return Site { function: address(), file: file.to_owned() };
        }
        if self.files.len() >= FILES_MAX && !self.files.contains_key(mapping.path) {
            self.files.clear();
        }
        // As the process sees it, which may be in a container.
        let symbols = self
            .files
            .entry(mapping.path.to_owned())
            .or_insert_with(|| Symbols::read(&format!("/proc/{pid}/root{}", mapping.path)));
        let offset = code - mapping.start + mapping.offset;
        let function = symbols.as_ref().and_then(|symbols| symbols.name_at(offset));
        let function = function.unwrap_or_else(|| format!("+{offset:#x}"));
        Site { function, file: file.to_owned() }
    }
}

/// A line of `/proc/PID/maps`.
pub(crate) struct Mapping<'a> {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub path: &'a str,
}

impl<'a> Mapping<'a> {
    /// What a line says.
    pub fn of(line: &'a str) -> Option<Mapping<'a>> {
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = fields.nth(1)?;
        let path = fields.nth(2)?.trim();
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        Some(Mapping { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, path })
    }

    fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn a_function_with_a_name() -> u64 {
        a_function_with_a_name as *const () as u64
    }

    #[test]
    fn samples_become_functions_by_their_part_of_the_faults() {
        let page = StatsPage::create().expect("page");
        let ours = a_function_with_a_name();
        let libc = libc::getppid as *const () as u64;
        for fault in 0..160 {
            let code = if fault < 120 { ours } else { libc };
            page.sample(fault / 16, code as usize);
        }
        let mut sites = Sites::new(page);
        let hottest = sites.hottest(Some(std::process::id()), 2);
        let [(most, site), (less, other)] = &hottest[..] else { panic!("{hottest:?}") };
        assert!((most - 0.8).abs() < 0.01 && (less - 0.2).abs() < 0.01, "{hottest:?}");
        assert!(site.function.ends_with("a_function_with_a_name"), "{hottest:?}");
        assert_eq!(other.function, "getppid", "{hottest:?}");
        assert!(other.file.starts_with("libc.so"), "{hottest:?}");
        // What comes later counts more.
        (0..1600).for_each(|_| page.sample(9, 0x10));
        sites.add(page);
        let hottest = sites.hottest(None, 1);
        assert_eq!(hottest[0].1, Site { function: "0x10".into(), file: "gone".into() });
    }
}
