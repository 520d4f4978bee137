//! Config: what `DEEPHEAP_CONF`, `dh_init` and `deepheap run` can set.
//!
//! Syntax: `key:value,key:value`, for example `ram:2G,store:/mnt/ssd,store_size:20G`. Inside a
//! value `\,` is a comma and `\\` a backslash. Blanks around keys and values do not count, but for
//! one written as backslash and blank. A key can be given once.
//!
//! | key | value | without it |
//! |---|---|---|
//! | `ram` | size, or `50%` of the machine (or of its memory cgroup); `auto`: see below | `50%` |
//! | `stall` | percentage of its run time that a program may stand in faults, or `off` | `off` |
//! | `pool` | name: all processes of this user that give it share the `ram` of the first | none |
//! | `store` | a folder (an unlinked file in it), a file or a block device | `$TMPDIR` or `.` |
//! | `store_size` | size, or percentage of what the store has free | `90%` |
//! | `tier` | a second tier behind the store, for what is read back in order: as `store` | none |
//! | | with a size behind a last colon, or a percentage of what is free there | `:90%` |
//! | `store_floor` | size or percentage of the file system that stays free | `5%`, or 1 GiB |
//! | `overcommit` | memory takes room when touched (`lazy`) or allocated (`strict`) | `lazy` |
//! | `page_buffer` | size or percentage of `ram` that is mapped at a time | tuned by itself |
//! | `compress` | pages that leave reach: `auto`, `off` or `lz4` (try each) | `auto` |
//! | `encrypt` | `yes` or `no`: the store is encrypted, under a key of this process | `no` |
//! | `objects` | sizes of allocations placed as objects, `64-2K` | none |
//! | `micro_pages` | `yes` or `no`: eight objects of up to 512 bytes share a frame of RAM | `no` |
//! | `mmap` | size from which on private anonymous `mmap` is managed, or `off` | `256K` |
//! | `segment` | size of one write of the log: a power of two, `128K` to `8M` | `1M` |
//! | `strides` | `yes` or `no`: walks in equal steps are fetched ahead | `yes` |
//! | `sequences` | `yes` or `no`: pages that followed each other before are fetched ahead | `yes` |
//! | `discard` | `yes` or `no`: the store's device is told what is free | `yes` |
//! | `stats` | file for a JSON line at exit | none |
//! | `trace` | file for what faults, evictions and writes did (docs/trace-format.md) | none |
//! | `show_stats` | `yes` or `no`: a summary on stderr at exit | `no` |
//! | `children` | `yes` or `no`: child processes get deepheap, too | `yes` |
//! | `force` | `yes` or `no`: overwrite a device or file that holds something | `no` |
//!
//! A hyphen in a key is as good as an underscore. `objects` holds for programs under
//! `deepheap run`; what is allocated by `dh_oalloc` is an object anyhow.
//!
//! With `stall` the program gets the least RAM with which it stands in faults no longer than that,
//! and never more than `ram`; with a second tier it has `ram`, and less goes to the second tier.
//! `ram:auto` is `ram:50%` with `stall:2%`, unless `stall` says
//! otherwise.
//!
//! A segment larger than 1/512 of `ram` is halved until it is not, down to 128 KiB: several are in
//! memory at a time.
//!
//! Guarantees: a parsed config is possible on this machine; `parse(to_conf())` gives it back.
//! Never: touches the store; that happens when it is opened.
//! Threads: pure, apart from reading the environment and the machine's memory.

use core::fmt;
use core::ops::RangeInclusive;
use std::path::{Path, PathBuf};

pub use crate::config_error::ConfigError;
use deepheap_heap::PAGE;
use deepheap_measure::size::{self, SizeError};
pub use deepheap_pager::Compress;
use deepheap_pager::Overcommit;
use deepheap_policy::budget_split;
use deepheap_sys::environment;

use crate::config_text::{escaped, items, trimmed, unescaped};
use crate::config_words::{compress, compress_word, overcommit, pool, stall};
use crate::machine::Machine;
pub use crate::stall_limit::StallLimit;
use crate::stats_report::bytes;

/// RAM of maps that this process is the first to have, as a size or a percentage.
const MAP_RAM_VARIABLE: &str = "DEEPHEAP_MAP_RAM";
/// The largest size that `objects` may name, in bytes: larger ones gain nothing.
pub const OBJECT_SIZE_MAX: usize = 64 << 10;
/// The settings of a process.
const CONF_VARIABLE: &str = "DEEPHEAP_CONF";
/// Goes over `show_stats` of [`CONF_VARIABLE`].
pub const SHOW_STATS_VARIABLE: &str = "DEEPHEAP_SHOW_STATS";
/// The smallest RAM budget, in bytes: below it tables and buffers leave no room for pages.
pub const RAM_MIN_BYTES: u64 = 16 << 20;
/// The bound on stalls of `ram:auto` if none is given, in millionths.
const STALL_OF_AUTO_PPM: u32 = 20_000;
/// The bound on stalls with a second tier, likewise: without one a program that touches at random
/// what a scan brought would wait for a disk all the time.
const STALL_OF_TIER_PPM: u32 = 200_000;
/// With a bound on stalls nobody knows the budget before; what is made ready is for this one.
const RAM_UNDER_BOUND_BYTES: u64 = 256 << 20;
/// The smallest page buffer, in bytes: what the pager takes in any case.
const PAGE_BUFFER_MIN_BYTES: u64 = (budget_split::LEAST * PAGE) as u64;
/// The smallest store, in bytes: below it collection has no room to work.
pub const STORE_MIN_BYTES: u64 = 16 << 20;
/// The largest store, in bytes: 2^30 block numbers of 4 KiB.
pub const STORE_MAX_BYTES: u64 = 1 << 42;
/// How much of what is free at the store may be used, if nothing is said.
pub const STORE_SIZE_DEFAULT: Share = Share::Percent(90);
/// What stays free on the store's file system at least, if nothing is said and it is not small.
const STORE_FLOOR_BYTES: u64 = 1 << 30;
/// The sizes a segment can have.
pub const SEGMENT_MIN_BYTES: u64 = 128 << 10;
/// See [`SEGMENT_MIN_BYTES`].
pub const SEGMENT_MAX_BYTES: u64 = 8 << 20;
/// The segment size if none is given.
pub const SEGMENT_DEFAULT_BYTES: u64 = 1 << 20;
/// From how many bytes on a program's own mappings are managed, if nothing is said.
pub const MMAP_DEFAULT_BYTES: usize = 256 << 10;
/// Parts of the budget of which a segment is one at most: the five or six that are in memory are a
/// hundredth of the budget then (below 64 MiB, where segments do not get smaller, a 20th at most).
const BUDGET_PER_SEGMENT: u64 = 512;
/// Those of a second tier are larger, so that an arm moves less; fewer of them are in memory.
const BUDGET_PER_TIER_SEGMENT: u64 = 64;
/// Durable heaps that a process can have open.
pub const OPEN_MAX: usize = 16;

/// A part of something that is known only later: of the budget, or of what a disk has free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Percent of the whole, 1 to 100.
    Percent(u32),
    /// Bytes, whatever the whole is.
    Bytes(u64),
}

impl Share {
    /// Bytes of it, of `whole` bytes.
    pub fn bytes_of(self, whole: u64) -> u64 {
        match self {
            Share::Percent(percent) => whole / 100 * u64::from(percent),
            Share::Bytes(bytes) => bytes,
        }
    }

    pub(crate) fn parse(key: &'static str, text: &str) -> Result<Share, ConfigError> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return size_of_key(key, text, None).map(Share::Bytes);
        };
        if let Ok(percent @ 1..=100) = percent.trim().parse() {
            return Ok(Share::Percent(percent));
        }
        let (text, reason) = (text.to_owned(), SizeError::BadShare);
        Err(ConfigError::BadSize { key, text, reason })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::Percent(percent) => write!(out, "{percent}%"),
            Share::Bytes(bytes) => out.write_str(&size::exact(*bytes)),
        }
    }
}

/// A second tier behind the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondTier {
    /// Folder, file or block device.
    pub path: PathBuf,
    /// How much of what is free there may be used.
    pub size: Share,
}

/// All settings. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Ceiling on everything deepheap uses in RAM.
    pub ram: u64,
    /// How much of its run time the program may stand in faults, so that it gets the least RAM that
    /// holds this, or with a second tier, so that no more goes there; `None`: no bound.
    pub stall: Option<StallLimit>,
    /// The pool whose RAM it shares with other processes; `ram` is the most that it has of it.
    pub pool: Option<String>,
    /// Folder, file or block device; `None`: `$TMPDIR` or the working folder.
    pub store: Option<PathBuf>,
    /// How much of what is free at the store may be used.
    pub store_size: Share,
    /// The second tier; `None`: there is none.
    pub tier: Option<SecondTier>,
    /// What stays free on the file system of a store in a folder; `None`: see `floor_of`.
    pub store_floor: Option<Share>,
    /// When memory is promised room in the store.
    pub overcommit: Overcommit,
    /// Tuning: whether walks in equal steps are fetched ahead.
    pub strides: bool,
    /// Tuning: whether pages that followed each other before are fetched ahead.
    pub sequences: bool,
    /// Tuning: whether the store's device is told what is free.
    pub discard: bool,
    /// Where a JSON line of statistics goes at exit.
    pub stats_file: Option<PathBuf>,
    /// Where a trace goes once memory is managed.
    pub trace_file: Option<PathBuf>,
    /// Whether a summary goes to stderr at exit.
    pub show_stats: bool,
    /// Whether child processes get deepheap, too.
    pub children: bool,
    /// Whether a block device or file that holds something may be overwritten.
    pub force: bool,
    /// Whether what is in the store is encrypted.
    pub encrypt: bool,
    /// Tuning: what is mapped at a time; `None`: tuned by itself.
    pub page_buffer: Option<Share>,
    /// Which pages are compressed when they leave reach.
    pub compress: Compress,
    /// Sizes, in bytes, of an unmodified program's allocations that become objects; `None`: none.
    pub objects: Option<RangeInclusive<usize>>,
    /// Whether objects of up to 512 bytes lie in lanes, of which eight share a frame of RAM.
    pub micro_pages: bool,
    /// From how many bytes on an unmodified program's own mappings are managed; `None`: none is.
    pub mmap: Option<usize>,
    /// Tuning: bytes of one segment of the log.
    pub segment_bytes: u64,
}

/// Bytes of a size; percentages are of this machine (or of its memory cgroup).
///
/// # Errors
/// `ConfigError::BadSize`.
pub fn parse_size(text: &str) -> Result<u64, ConfigError> {
    size_of_key("size", text, Some(Machine::read().usable_bytes()))
}

impl Config {
    /// The settings without any text, on a machine.
    pub fn default_on(machine: Machine) -> Config {
        Config {
            ram: (machine.usable_bytes() / 2).max(RAM_MIN_BYTES),
            stall: None,
            pool: None,
            store: None,
            store_size: STORE_SIZE_DEFAULT,
            tier: None,
            store_floor: None,
            overcommit: Overcommit::Lazy,
            strides: true,
            sequences: true,
            discard: true,
            stats_file: None,
            trace_file: None,
            show_stats: false,
            children: true,
            force: false,
            encrypt: false,
            page_buffer: None,
            compress: Compress::Auto,
            objects: None,
            micro_pages: false,
            mmap: Some(MMAP_DEFAULT_BYTES),
            segment_bytes: SEGMENT_DEFAULT_BYTES,
        }
    }

    /// Reads a text of settings; an empty one gives the defaults.
    ///
    /// # Errors
    /// Every [`ConfigError`] but those of environment variables.
    pub fn parse(conf: &str) -> Result<Config, ConfigError> {
        Config::parse_on(Machine::read(), conf)
    }

    /// As `parse`, on a given machine.
    ///
    /// # Errors
    /// As `parse`.
    pub fn parse_on(machine: Machine, conf: &str) -> Result<Config, ConfigError> {
        let mut config = Config::default_on(machine);
        let mut given = Vec::new();
        for item in items(conf) {
            if item.trim().is_empty() {
                continue;
            }
            let Some((key, value)) = item.split_once(':') else {
                return Err(ConfigError::NoColon(item.trim().to_owned()));
            };
            let key = key.trim().replace('-', "_");
            let stall_before = config.stall;
            config.set(machine, &key, &unescaped(trimmed(value))?)?;
            if key != "stall" && given.iter().any(|given| given == "stall") {
                // What is given goes over what another key takes for granted.
                config.stall = stall_before;
            }
            if given.contains(&key) {
                return Err(ConfigError::Twice(key));
            }
            given.push(key);
        }
        config.check(machine)?;
        Ok(config)
    }

    /// The settings of `DEEPHEAP_CONF`, with `DEEPHEAP_SHOW_STATS` over them.
    ///
    /// # Errors
    /// `ConfigError::NotUtf8` and `ConfigError::In`.
    pub fn from_environment() -> Result<Config, ConfigError> {
        let within = |variable| move |error| ConfigError::In(variable, Box::new(error));
        let conf = variable(CONF_VARIABLE)?;
        let mut config = Config::parse(&conf).map_err(within(CONF_VARIABLE))?;
        let show_stats = variable(SHOW_STATS_VARIABLE)?;
        if !show_stats.is_empty() {
            let shown = flag("show_stats", &show_stats);
            config.show_stats = shown.map_err(within(SHOW_STATS_VARIABLE))?;
        }
        Ok(config)
    }

    /// Whether `DEEPHEAP_CONF` says how much RAM there is for deepheap.
    ///
    /// # Errors
    /// `ConfigError::NotUtf8`.
    pub(crate) fn is_ram_given() -> Result<bool, ConfigError> {
        let conf = variable(CONF_VARIABLE)?;
        let keys = items(&conf).into_iter().filter_map(|item| item.split_once(':'));
        Ok(keys.map(|(key, _)| key.trim()).any(|key| key == "ram"))
    }

    /// Sets one key as a text of settings would; `check` afterwards.
    ///
    /// # Errors
    /// What is wrong with the key or value by itself.
    pub fn set(&mut self, machine: Machine, key: &str, value: &str) -> Result<(), ConfigError> {
        match key.replace('-', "_").as_str() {
            "ram" if value.trim() == "auto" => {
                self.ram = Config::default_on(machine).ram;
                self.stall = self.stall.or(StallLimit::of_ppm(STALL_OF_AUTO_PPM));
            }
            "ram" => self.ram = size_of_key("ram", value, Some(machine.usable_bytes()))?,
            "stall" => self.stall = stall(value)?,
            "pool" => self.pool = Some(pool(value)?),
            "store" => self.store = Some(path("store", value)?),
            "store_size" => self.store_size = Share::parse("store_size", value)?,
            "tier" => {
                self.tier = Some(SecondTier::parse(value)?);
                self.stall = self.stall.or(StallLimit::of_ppm(STALL_OF_TIER_PPM));
            }
            "store_floor" => self.store_floor = Some(floor(value)?),
            "overcommit" => self.overcommit = overcommit(value)?,
            "page_buffer" => self.page_buffer = Some(Share::parse("page_buffer", value)?),
            "compress" => self.compress = compress(value)?,
            "objects" => self.objects = Some(objects(value)?),
            "micro_pages" => self.micro_pages = flag("micro_pages", value)?,
            "mmap" => self.mmap = mmap(value)?,
            "segment" => self.segment_bytes = size_of_key("segment", value, None)?,
            "strides" => self.strides = flag("strides", value)?,
            "sequences" => self.sequences = flag("sequences", value)?,
            "discard" => self.discard = flag("discard", value)?,
            "stats" => self.stats_file = Some(path("stats", value)?),
            "trace" => self.trace_file = Some(path("trace", value)?),
            "show_stats" => self.show_stats = flag("show_stats", value)?,
            "children" => self.children = flag("children", value)?,
            "force" => self.force = flag("force", value)?,
            "encrypt" => self.encrypt = flag("encrypt", value)?,
            _ => return Err(ConfigError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }

    /// The budget that buffers are made for.
    pub(crate) fn usual_ram(&self) -> u64 {
        self.stall_of_ram().map_or(self.ram, |_| self.ram.min(RAM_UNDER_BOUND_BYTES))
    }

    /// Makes segments smaller if need be: those in memory count against the budget.
    pub(crate) fn fit_segments(&mut self) {
        let most = (self.usual_ram() / BUDGET_PER_SEGMENT).max(SEGMENT_MIN_BYTES);
        while self.segment_bytes > most {
            self.segment_bytes /= 2;
        }
    }

    /// The settings of the second tier, as if it were the store.
    pub fn of_tier(&self) -> Option<Config> {
        let SecondTier { path, size } = self.tier.clone()?;
        let part = (self.usual_ram() / BUDGET_PER_TIER_SEGMENT).max(1);
        let larger = (1 << part.ilog2()).min(SEGMENT_DEFAULT_BYTES);
        let (store, segment_bytes) = (Some(path), self.segment_bytes.max(larger));
        Some(Config { store, store_size: size, segment_bytes, ..self.clone() })
    }

    /// The bound on stalls that is held by the amount of RAM, rather than by what goes to the
    /// second tier.
    pub(crate) fn stall_of_ram(&self) -> Option<StallLimit> {
        self.stall.filter(|_| self.tier.is_none())
    }

    /// Whether the heap is managed before it has outgrown `ram`: what it does not need is to go.
    pub(crate) fn is_managed_early(&self) -> bool {
        self.stall_of_ram().is_some() || self.pool.is_some()
    }

    /// Bytes that stay free on a file system of so many, where the store is in a folder. If nothing
    /// is said, 5 %, and at least 1 GiB unless that were more than an eighth of it.
    pub fn floor_of(&self, file_system_bytes: u64) -> u64 {
        match self.store_floor {
            Some(share) => share.bytes_of(file_system_bytes),
            None if file_system_bytes / 8 < STORE_FLOOR_BYTES => file_system_bytes / 20,
            None => (file_system_bytes / 20).max(STORE_FLOOR_BYTES),
        }
    }

    /// Whether the settings are possible together, on a machine.
    ///
    /// # Errors
    /// `ConfigError::OutOfRange`.
    pub fn check(&self, machine: Machine) -> Result<(), ConfigError> {
        let refuse_value = |key, value, reason| Err(ConfigError::OutOfRange { key, value, reason });
        let refuse = |key, size, reason: String| refuse_value(key, bytes(size), reason);
        if self.ram < RAM_MIN_BYTES {
            return refuse("ram", self.ram, format!("give at least {}", bytes(RAM_MIN_BYTES)));
        }
        if self.ram > machine.usable_bytes().max(RAM_MIN_BYTES) {
            let owner = match machine.cgroup_limit_bytes {
                Some(_) => "the memory cgroup of this process is limited to",
                None => "this machine has only",
            };
            let has = bytes(machine.usable_bytes());
            return refuse(
                "ram",
                self.ram,
                format!("{owner} {has}; give less, or leave it at 50%"),
            );
        }
        if let (Some(_), Some(pool)) = (self.stall_of_ram(), &self.pool) {
            let reason = "the programs of a pool get RAM by what they want, not by a bound on \
                          stalls; leave out pool, or give stall:off";
            return refuse_value("pool", pool.clone(), reason.to_owned());
        }
        let tier_size = self.tier.as_ref().map(|tier| tier.size);
        for (key, size) in [("store_size", Some(self.store_size)), ("tier", tier_size)] {
            let Some(Share::Bytes(size)) = size else { continue };
            if size < STORE_MIN_BYTES {
                return refuse(key, size, format!("give at least {}", bytes(STORE_MIN_BYTES)));
            }
            if size > STORE_MAX_BYTES {
                let most = bytes(STORE_MAX_BYTES);
                return refuse(key, size, format!("the store takes {most} at most"));
            }
        }
        let segment = self.segment_bytes;
        if !segment.is_power_of_two() || !(SEGMENT_MIN_BYTES..=SEGMENT_MAX_BYTES).contains(&segment)
        {
            let reason = "give a power of two from 128K to 8M".to_owned();
            return refuse("segment", segment, reason);
        }
        if let Some(sizes) = &self.objects {
            let (min, max) = (*sizes.start(), *sizes.end());
            let refuse = |reason| refuse_value("objects", range(min, max), reason);
            if min > max {
                return refuse(format!("give the smaller first, {}", range(max, min)));
            }
            if min == 0 {
                return refuse("the smallest object has 1 byte".to_owned());
            }
            if max > OBJECT_SIZE_MAX {
                let most = bytes(OBJECT_SIZE_MAX as u64);
                return refuse(format!("the largest object has {most}"));
            }
        }
        if let Some(share) = self.page_buffer {
            if self.is_managed_early() {
                let reason = "with a bound on stalls, or a pool, its size follows the RAM that \
                              there is; leave out page_buffer, or give stall:off and no pool";
                return refuse_value("page_buffer", share.to_string(), reason.to_owned());
            }
            let size = share.bytes_of(self.ram);
            if size > self.ram {
                let reason = format!("the whole budget is {}; give a part of it", bytes(self.ram));
                return refuse("page_buffer", size, reason);
            }
            if size < PAGE_BUFFER_MIN_BYTES {
                let least = bytes(PAGE_BUFFER_MIN_BYTES);
                return refuse("page_buffer", size, format!("give at least {least}"));
            }
        }
        Ok(())
    }

    /// The text that gives this config back.
    pub fn to_conf(&self) -> String {
        let mut conf = format!("ram:{}", size::exact(self.ram));
        let mut put = |key: &str, value: &str| {
            conf.push(',');
            conf.push_str(key);
            conf.push(':');
            conf.push_str(&escaped(value));
        };
        let text = |path: &Path| path.to_string_lossy().into_owned();
        if let Some(limit) = self.stall {
            put("stall", &limit.to_string());
        }
        if let Some(pool) = &self.pool {
            put("pool", pool);
        }
        if let Some(path) = &self.store {
            put("store", &text(path));
        }
        if self.store_size != STORE_SIZE_DEFAULT {
            put("store_size", &self.store_size.to_string());
        }
        if let Some(tier) = &self.tier {
            put("tier", &tier.text());
            // Behind the tier, which has one by itself.
            if self.stall.is_none() {
                put("stall", "off");
            }
        }
        if let Some(share) = self.store_floor {
            put("store_floor", &share.to_string());
        }
        if self.overcommit == Overcommit::Strict {
            put("overcommit", "strict");
        }
        if let Some(share) = self.page_buffer {
            put("page_buffer", &share.to_string());
        }
        if self.compress != Compress::Auto {
            put("compress", compress_word(self.compress));
        }
        if let Some(sizes) = &self.objects {
            put("objects", &range(*sizes.start(), *sizes.end()));
        }
        if self.mmap != Some(MMAP_DEFAULT_BYTES) {
            put("mmap", &self.mmap.map_or("off".to_owned(), |bytes| size::exact(bytes as u64)));
        }
        if self.segment_bytes != SEGMENT_DEFAULT_BYTES {
            put("segment", &size::exact(self.segment_bytes));
        }
        if let Some(path) = &self.stats_file {
            put("stats", &text(path));
        }
        if let Some(path) = &self.trace_file {
            put("trace", &text(path));
        }
        for (key, value, usual) in [
            ("micro_pages", self.micro_pages, false),
            ("strides", self.strides, true),
            ("sequences", self.sequences, true),
            ("discard", self.discard, true),
            ("show_stats", self.show_stats, false),
            ("children", self.children, true),
            ("force", self.force, false),
            ("encrypt", self.encrypt, false),
        ] {
            if value != usual {
                put(key, if value { "yes" } else { "no" });
            }
        }
        conf
    }
}

impl SecondTier {
    /// Reads `PATH` or `PATH:SIZE`. A path may have colons: only what reads as a size behind the
    /// last one is a size.
    fn parse(value: &str) -> Result<SecondTier, ConfigError> {
        let (path_text, size) = value
            .rsplit_once(':')
            .and_then(|(path, size)| Some((path, Share::parse("tier", size).ok()?)))
            .unwrap_or((value, STORE_SIZE_DEFAULT));
        Ok(SecondTier { path: path("tier", path_text)?, size })
    }

    /// What `parse` reads.
    fn text(&self) -> String {
        let place = self.path.to_string_lossy().into_owned();
        let is_read_back = SecondTier::parse(&place).is_ok_and(|read| read.path == self.path);
        match self.size {
            STORE_SIZE_DEFAULT if is_read_back => place,
            size => format!("{place}:{size}"),
        }
    }
}

/// `64-2K`, as `objects` reads it.
fn range(min: usize, max: usize) -> String {
    format!("{}-{}", size::exact(min as u64), size::exact(max as u64))
}

fn size_of_key(key: &'static str, text: &str, whole: Option<u64>) -> Result<u64, ConfigError> {
    size::parse(text, whole).map_err(|reason| {
        let text = text.to_owned();
        ConfigError::BadSize { key, text, reason }
    })
}

/// What `DEEPHEAP_MAP_RAM` gives a map, if it is set.
pub(crate) fn map_ram(machine: Machine) -> Result<Option<u64>, ConfigError> {
    let text = variable(MAP_RAM_VARIABLE)?;
    if text.is_empty() {
        return Ok(None);
    }
    size_of_key(MAP_RAM_VARIABLE, &text, Some(machine.usable_bytes())).map(Some)
}

fn objects(value: &str) -> Result<RangeInclusive<usize>, ConfigError> {
    const KEY: &str = "objects";
    let (min, max) = match value.split_once('-') {
        Some((min, max)) if !min.trim().is_empty() && !max.contains('-') => (min, max),
        _ => {
            let (text, words) = (value.to_owned(), "MIN-MAX, for example 64-2K");
            return Err(ConfigError::NoneOf { key: KEY, text, words });
        }
    };
    let bytes = |text| {
        let bytes = size_of_key(KEY, text, None)?;
        // Too many to be possible is found by `check`.
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    };
    Ok(bytes(min)?..=bytes(max)?)
}

fn mmap(value: &str) -> Result<Option<usize>, ConfigError> {
    if matches!(value.trim().to_ascii_lowercase().as_str(), "off" | "no") {
        return Ok(None);
    }
    let bytes = size_of_key("mmap", value, None)?;
    Ok(Some(usize::try_from(bytes).unwrap_or(usize::MAX)))
}

/// `0` is a floor, too: everything may be taken.
fn floor(value: &str) -> Result<Share, ConfigError> {
    match value.trim().strip_suffix('%').map(str::trim) {
        Some("0") => Ok(Share::Bytes(0)),
        _ => Share::parse("store_floor", value),
    }
}

fn path(key: &'static str, value: &str) -> Result<PathBuf, ConfigError> {
    if value.is_empty() { Err(ConfigError::EmptyPath(key)) } else { Ok(PathBuf::from(value)) }
}

fn flag(key: &'static str, value: &str) -> Result<bool, ConfigError> {
    match value.trim().to_ascii_lowercase().as_str() {
        "yes" | "on" | "true" | "1" => Ok(true),
        "no" | "off" | "false" | "0" => Ok(false),
        _ => Err(ConfigError::BadFlag { key, text: value.to_owned() }),
    }
}

/// An environment variable; empty if it is not set.
fn variable(name: &'static str) -> Result<String, ConfigError> {
    let value = environment::variable(name).unwrap_or_default();
    value.into_string().map_err(|_| ConfigError::NotUtf8(name))
}
