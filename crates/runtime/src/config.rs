//! Config: what `DEEPHEAP_CONF`, `dh_init` and `deepheap run` can set.
//!
//! Syntax: `key:value,key:value`, for example `ram:2G,store:/mnt/ssd,store_size:20G`. Inside a
//! value `\,` is a comma and `\\` a backslash. Of a key given twice the last counts.
//!
//! | key | value | without it |
//! |---|---|---|
//! | `ram` | size, or `50%` of the machine (or of its memory cgroup) | `50%` |
//! | `store` | a folder (an unlinked file in it), a file or a block device | `$TMPDIR` or `.` |
//! | `store_size` | size, or percentage of what the store has free | `90%` |
//! | `page_buffer` | size or percentage of `ram` that is mapped at a time | tuned by itself |
//! | `objects` | sizes of allocations placed as objects, `64-2K`, or `auto` | none |
//! | `cache_policy` | what leaves the object cache: `s3fifo`, `lru` or `clock` | `s3fifo` |
//! | `segment` | size of one write of the log: a power of two, `256K` to `8M` | `1M` |
//! | `pool_step` | objects by which a pool of one size grows at most | 10000 |
//! | `stats` | file for a JSON line at exit | none |
//! | `show_stats` | `yes` or `no`: a summary on stderr at exit | `no` |
//! | `children` | `yes` or `no`: child processes get deepheap, too | `yes` |
//! | `force` | `yes` or `no`: overwrite a device or file that holds something | `no` |
//!
//! A hyphen in a key is as good as an underscore. `objects` holds for programs under
//! `deepheap run`; what is allocated by `dh_oalloc` is an object anyhow.
//!
//! A segment larger than 1/256 of `ram` is halved until it is not, down to 256 KiB: several are in
//! memory at a time.
//!
//! Guarantees: a parsed config is possible on this machine; `parse(to_conf())` gives it back.
//! Never: touches the store; that happens when it is opened.
//! Threads: pure, apart from reading the environment and the machine's memory.

use core::fmt;
use std::path::{Path, PathBuf};

pub use crate::config_error::ConfigError;
use deepheap_heap::PAGE;
pub use deepheap_pager::CachePolicy;
use deepheap_pager::policy::budget_split;

use crate::machine::Machine;
use crate::object_placement::{OBJECT_SIZE_MAX, ObjectPlacement};
use crate::size::{self, SizeError};
use crate::stats_report::bytes;

/// The settings of a process.
const CONF_VARIABLE: &str = "DEEPHEAP_CONF";
/// Goes over `show_stats` of [`CONF_VARIABLE`].
pub const SHOW_STATS_VARIABLE: &str = "DEEPHEAP_SHOW_STATS";
/// The smallest RAM budget, in bytes: below it tables and buffers leave no room for pages.
pub const RAM_MIN_BYTES: u64 = 16 << 20;
/// The smallest page buffer, in bytes: what the pager takes in any case.
const PAGE_BUFFER_MIN_BYTES: u64 = (budget_split::LEAST * PAGE) as u64;
/// The smallest store, in bytes: below it collection has no room to work.
pub const STORE_MIN_BYTES: u64 = 16 << 20;
/// The largest store, in bytes: 2^30 block numbers of 4 KiB.
pub const STORE_MAX_BYTES: u64 = 1 << 42;
/// How much of what is free at the store may be used, if nothing is said.
pub const STORE_SIZE_DEFAULT: Share = Share::Percent(90);
/// The sizes a segment can have.
pub const SEGMENT_MIN_BYTES: u64 = 256 << 10;
/// See [`SEGMENT_MIN_BYTES`].
pub const SEGMENT_MAX_BYTES: u64 = 8 << 20;
/// The segment size if none is given.
pub const SEGMENT_DEFAULT_BYTES: u64 = 1 << 20;
/// Objects by which a pool grows at most, if nothing is said.
pub const POOL_STEP_DEFAULT: u32 = deepheap_heap::POOL_STEP as u32;

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

    fn parse(key: &'static str, text: &str) -> Result<Share, ConfigError> {
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

/// The policies of the object cache, with their names in settings.
const CACHE_POLICIES: [(CachePolicy, &str); 3] =
    [(CachePolicy::S3Fifo, "s3fifo"), (CachePolicy::Lru, "lru"), (CachePolicy::Clock, "clock")];

/// All settings. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Ceiling on everything deepheap uses in RAM.
    pub ram: u64,
    /// Folder, file or block device; `None`: `$TMPDIR` or the working folder.
    pub store: Option<PathBuf>,
    /// How much of what is free at the store may be used.
    pub store_size: Share,
    /// Where a JSON line of statistics goes at exit.
    pub stats_file: Option<PathBuf>,
    /// Whether a summary goes to stderr at exit.
    pub show_stats: bool,
    /// Whether child processes get deepheap, too.
    pub children: bool,
    /// Whether a block device or file that holds something may be overwritten.
    pub force: bool,
    /// Tuning: what is mapped at a time; `None`: tuned by itself.
    pub page_buffer: Option<Share>,
    /// Which allocations of an unmodified program become objects; `None`: none.
    pub objects: Option<ObjectPlacement>,
    /// Tuning: how the object cache chooses what leaves it.
    pub cache_policy: CachePolicy,
    /// Tuning: bytes of one segment of the log.
    pub segment_bytes: u64,
    /// Tuning: objects by which a pool of objects of one size grows at most.
    pub pool_step: u32,
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
            store: None,
            store_size: STORE_SIZE_DEFAULT,
            stats_file: None,
            show_stats: false,
            children: true,
            force: false,
            page_buffer: None,
            objects: None,
            cache_policy: CachePolicy::default(),
            segment_bytes: SEGMENT_DEFAULT_BYTES,
            pool_step: POOL_STEP_DEFAULT,
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
        for item in items(conf)? {
            if item.trim().is_empty() {
                continue;
            }
            match item.split_once(':') {
                Some((key, value)) => config.set(machine, key.trim(), value)?,
                None => return Err(ConfigError::NoColon(item)),
            }
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

    /// Sets one key as a text of settings would; `check` afterwards.
    ///
    /// # Errors
    /// What is wrong with the key or value by itself.
    pub fn set(&mut self, machine: Machine, key: &str, value: &str) -> Result<(), ConfigError> {
        match key.replace('-', "_").as_str() {
            "ram" => self.ram = size_of_key("ram", value, Some(machine.usable_bytes()))?,
            "store" => self.store = Some(path("store", value)?),
            "store_size" => self.store_size = Share::parse("store_size", value)?,
            "page_buffer" => self.page_buffer = Some(Share::parse("page_buffer", value)?),
            "objects" => self.objects = Some(objects(value)?),
            "cache_policy" => self.cache_policy = cache_policy(value)?,
            "segment" => self.segment_bytes = size_of_key("segment", value, None)?,
            "pool_step" => self.pool_step = pool_step(value)?,
            "stats" => self.stats_file = Some(path("stats", value)?),
            "show_stats" => self.show_stats = flag("show_stats", value)?,
            "children" => self.children = flag("children", value)?,
            "force" => self.force = flag("force", value)?,
            _ => return Err(ConfigError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }

    /// Whether the settings are possible together, on a machine.
    ///
    /// # Errors
    /// `ConfigError::OutOfRange`.
    pub fn check(&self, machine: Machine) -> Result<(), ConfigError> {
        let refuse =
            |key, bytes, reason: String| Err(ConfigError::OutOfRange { key, bytes, reason });
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
        if let Share::Bytes(size) = self.store_size {
            if size < STORE_MIN_BYTES {
                let least = bytes(STORE_MIN_BYTES);
                return refuse("store_size", size, format!("give at least {least}"));
            }
            if size > STORE_MAX_BYTES {
                let most = bytes(STORE_MAX_BYTES);
                return refuse("store_size", size, format!("the store takes {most} at most"));
            }
        }
        let segment = self.segment_bytes;
        if !segment.is_power_of_two() || !(SEGMENT_MIN_BYTES..=SEGMENT_MAX_BYTES).contains(&segment)
        {
            let reason = "give a power of two from 256K to 8M".to_owned();
            return refuse("segment", segment, reason);
        }
        if let Some(ObjectPlacement::Range { min, max }) = self.objects {
            if min == 0 || min > max {
                let reason = "give MIN-MAX with 1 at least, the smaller first".to_owned();
                return refuse("objects", min as u64, reason);
            }
            if max > OBJECT_SIZE_MAX {
                let most = bytes(OBJECT_SIZE_MAX as u64);
                return refuse("objects", max as u64, format!("give {most} at most"));
            }
        }
        if let Some(share) = self.page_buffer {
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
            conf.push_str(&value.replace('\\', "\\\\").replace(',', "\\,"));
        };
        let text = |path: &Path| path.to_string_lossy().into_owned();
        if let Some(path) = &self.store {
            put("store", &text(path));
        }
        if self.store_size != STORE_SIZE_DEFAULT {
            put("store_size", &self.store_size.to_string());
        }
        if let Some(share) = self.page_buffer {
            put("page_buffer", &share.to_string());
        }
        match self.objects {
            Some(ObjectPlacement::Range { min, max }) => {
                put("objects", &format!("{}-{}", size::exact(min as u64), size::exact(max as u64)));
            }
            Some(ObjectPlacement::Auto) => put("objects", "auto"),
            None => {}
        }
        for (policy, name) in CACHE_POLICIES {
            if self.cache_policy == policy && policy != CachePolicy::default() {
                put("cache_policy", name);
            }
        }
        if self.segment_bytes != SEGMENT_DEFAULT_BYTES {
            put("segment", &size::exact(self.segment_bytes));
        }
        if self.pool_step != POOL_STEP_DEFAULT {
            put("pool_step", &self.pool_step.to_string());
        }
        if let Some(path) = &self.stats_file {
            put("stats", &text(path));
        }
        for (key, value, usual) in [
            ("show_stats", self.show_stats, false),
            ("children", self.children, true),
            ("force", self.force, false),
        ] {
            if value != usual {
                put(key, if value { "yes" } else { "no" });
            }
        }
        conf
    }
}

/// The items between unescaped commas, escapes resolved.
fn items(conf: &str) -> Result<Vec<String>, ConfigError> {
    let mut items = vec![String::new()];
    let mut last = 0;
    let mut chars = conf.chars();
    while let Some(c) = chars.next() {
        match c {
            ',' => {
                items.push(String::new());
                last += 1;
            }
            '\\' => match chars.next() {
                Some(escaped @ (',' | '\\')) => items[last].push(escaped),
                _ => return Err(ConfigError::BadEscape(conf.to_owned())),
            },
            c => items[last].push(c),
        }
    }
    Ok(items)
}

fn size_of_key(key: &'static str, text: &str, whole: Option<u64>) -> Result<u64, ConfigError> {
    size::parse(text, whole).map_err(|reason| {
        let text = text.to_owned();
        ConfigError::BadSize { key, text, reason }
    })
}

fn objects(value: &str) -> Result<ObjectPlacement, ConfigError> {
    const KEY: &str = "objects";
    if value.trim().eq_ignore_ascii_case("auto") {
        return Ok(ObjectPlacement::Auto);
    }
    let Some((min, max)) = value.split_once('-') else {
        let (text, words) = (value.to_owned(), "MIN-MAX, for example 64-2K, or auto");
        return Err(ConfigError::NoneOf { key: KEY, text, words });
    };
    let bytes = |text| {
        let bytes = size_of_key(KEY, text, None)?;
        // Too many to be possible is found by `check`.
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    };
    Ok(ObjectPlacement::Range { min: bytes(min)?, max: bytes(max)? })
}

fn cache_policy(value: &str) -> Result<CachePolicy, ConfigError> {
    let name = value.trim().to_ascii_lowercase();
    let found = CACHE_POLICIES.into_iter().find(|known| known.1 == name);
    found.map(|(policy, _)| policy).ok_or_else(|| ConfigError::NoneOf {
        key: "cache_policy",
        text: value.to_owned(),
        words: "s3fifo, lru or clock",
    })
}

fn pool_step(value: &str) -> Result<u32, ConfigError> {
    match value.trim().parse() {
        Ok(objects @ 1..) => Ok(objects),
        _ => Err(ConfigError::NoneOf {
            key: "pool_step",
            text: value.to_owned(),
            words: "a number of objects, 1 at least",
        }),
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
    match std::env::var(name) {
        Ok(value) => Ok(value),
        Err(std::env::VarError::NotPresent) => Ok(String::new()),
        Err(std::env::VarError::NotUnicode(_)) => Err(ConfigError::NotUtf8(name)),
    }
}
