//! Config: what `DEEPHEAP_CONF`, `dh_init` and `deepheap run` can set.
//!
//! Syntax: `key:value,key:value`, for example `ram:2G,store:/mnt/ssd,store_size:20G`. Inside a
//! value `\,` is a comma and `\\` a backslash. Blanks around keys and values do not count, but for
//! one written as backslash and blank. A key can be given once; a hyphen in it is as good as an
//! underscore. [`KEYS`] has all of them: parser, options, help, man pages and the table in
//! docs/tuning.md come from there.
//!
//! A segment larger than 1/512 of `ram` is halved until it is not, down to 128 KiB: several are in
//! memory at a time.
//!
//! Guarantees: a parsed config is possible on this machine; `parse(to_conf())` gives it back.
//! Never: touches the store; that happens when it is opened.
//! Threads: pure, apart from reading the environment and the machine's memory.

use core::ops::RangeInclusive;
use std::path::PathBuf;

pub use deepheap_pager::Compress;
use deepheap_pager::Overcommit;
use deepheap_sys::process::environment;

pub use crate::settings::error::ConfigError;
use crate::settings::error::shown;
use crate::settings::machine::Machine;
use crate::settings::text::{escaped, items, trimmed, unescaped};
use crate::settings::value::{Field, Given};
pub use crate::settings::value::{STORE_SIZE_DEFAULT, SecondTier, Share, StallLimit};

/// RAM of maps that this process is the first to have, as a size or a percentage.
const MAP_RAM_VARIABLE: &str = "DEEPHEAP_MAP_RAM";
/// The largest size that `objects` may name, in bytes: larger ones gain nothing.
pub const OBJECT_SIZE_MAX: usize = 64 << 10;
/// The settings of a process.
const CONF_VARIABLE: &str = "DEEPHEAP_CONF";
/// Goes over `show_stats` of `CONF_VARIABLE`.
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
/// The smallest store, in bytes: below it collection has no room to work.
pub const STORE_MIN_BYTES: u64 = 16 << 20;
/// The largest store, in bytes: 2^30 block numbers of 4 KiB.
pub const STORE_MAX_BYTES: u64 = 1 << 42;
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
    /// Whether nothing is said while the program mostly waits for want of RAM.
    pub quiet: bool,
    /// Whether child processes get deepheap, too.
    pub children: bool,
    /// Whether a block device or file that holds something may be overwritten.
    pub force: bool,
    /// Whether what is in the store is encrypted.
    pub encrypt: bool,
    /// Tuning: what is mapped at a time; `None`: tuned by itself.
    pub page_buffer: Option<Share>,
    /// Which pages are compressed when they are evicted.
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

/// A setting.
#[derive(Clone, Copy)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The text for its value; of a flag what differs from how it is without it.
    pub value: &'static str,
    /// Whether `deepheap run` has an option for it, too.
    pub has_option: bool,
    /// Its effect, in words.
    pub what: &'static str,
    /// How it is without it.
    pub without: &'static str,
    field: Accessor,
}

type Accessor = fn(&mut Config) -> Field<'_>;

/// All settings, those that most programs want first. One that has a bound on stalls by itself
/// stands before `stall`.
pub static KEYS: [Key; 24] = [
    key("ram", "SIZE", |config| Field::Bytes(&mut config.ram))
        .does("RAM budget, the ceiling on all that deepheap uses; auto: 50% with stall 2%")
        .without("50% of the machine, or of its memory cgroup"),
    key("store", "PATH", |config| Field::Path(&mut config.store))
        .does("Folder on an SSD, file or block device for what does not fit")
        .without("$TMPDIR, or the working folder"),
    key("store_size", "SIZE", |config| Field::Share(&mut config.store_size))
        .does("How much of the store may be used, as a size or a percentage of what is free there")
        .without("90%"),
    key("tier", "PATH[:SIZE]", |config| Field::Tier(&mut config.tier))
        .does("Second tier for what is read back in order: folder on a hard disk, file or device")
        .without("none; 90% of what is free there where it has no SIZE"),
    key("stall", "PERCENT", |config| Field::Stall(&mut config.stall))
        .does(
            "Use the least RAM with which the program waits in faults for no more than this \
             part of its run time, or off; with tier: let no more go there",
        )
        .without("off; 2% with ram auto, 20% with tier"),
    key("pool", "NAME", |config| Field::Name(&mut config.pool))
        .does(
            "Share the RAM of the first process of this user that names the pool; ram is the \
             most of it that this program has",
        )
        .without("none"),
    key("store_floor", "SIZE", |config| Field::ShareIfAny(&mut config.store_floor))
        .does("What stays free on the file system of a store in a folder, or a percentage of it")
        .without("5%, and 1 GiB unless it is small"),
    key("overcommit", "WORD", |config| Field::Overcommit(&mut config.overcommit))
        .does(
            "When memory takes room in the store: lazy (when it is touched; without room the \
             program ends), or strict (when it is allocated)",
        )
        .without("lazy"),
    key("page_buffer", "SIZE", |config| Field::ShareIfAny(&mut config.page_buffer))
        .does("How much of the budget is mapped at a time, as a size or a percentage")
        .without("found while the program runs"),
    key("compress", "HOW", |config| Field::Compress(&mut config.compress))
        .does(
            "Compress evicted pages: auto (if it gets a sixth smaller; once more before it leaves \
             RAM), lz4 (once; try all) or off",
        )
        .without("auto"),
    key("objects", "MIN-MAX", |config| Field::Sizes(&mut config.objects))
        .does("Place the program's allocations of these sizes as objects (for deepheap run)")
        .without("none"),
    key("mmap", "SIZE", |config| Field::From(&mut config.mmap))
        .does("Manage the program's own private anonymous mappings from this size on, or off")
        .without("256K"),
    key("encrypt", "yes", |config| Field::Flag(&mut config.encrypt))
        .does("Encrypt what is in the store, under a key that ends with the process")
        .without("no"),
    key("stats", "FILE", |config| Field::Path(&mut config.stats_file))
        .does("At exit, add a line of JSON statistics to this file")
        .without("none"),
    key("trace", "FILE", |config| Field::Path(&mut config.trace_file))
        .does("Write what faults, evictions and writes do into this file, for simulate and advise")
        .without("none"),
    key("show_stats", "yes", |config| Field::Flag(&mut config.show_stats))
        .does("At exit, print to stderr how it went")
        .without("no"),
    key("quiet", "yes", |config| Field::Flag(&mut config.quiet))
        .does(
            "Do not say so while the program mostly waits for want of RAM, nor that a child is \
              statically linked",
        )
        .without("no"),
    key("children", "no", |config| Field::Flag(&mut config.children))
        .does("Leave child processes alone (else each has a heap and a budget of its own)")
        .without("yes"),
    key("force", "yes", |config| Field::Flag(&mut config.force))
        .does("Overwrite a device or file that holds something")
        .without("no"),
    tuning_key("micro_pages", "yes", |config| Field::Flag(&mut config.micro_pages))
        .does("Let eight objects of up to 512 bytes share a frame of RAM")
        .without("no"),
    tuning_key("segment", "SIZE", |config| Field::Bytes(&mut config.segment_bytes))
        .does("Size of one write of the log, a power of two from 128K to 8M")
        .without("1M, and less under a small budget"),
    tuning_key("strides", "no", |config| Field::Flag(&mut config.strides))
        .does("Do not fetch ahead of walks in equal steps of 3 to 64 pages")
        .without("yes"),
    tuning_key("sequences", "no", |config| Field::Flag(&mut config.sequences))
        .does("Do not fetch pages ahead because they followed each other before")
        .without("yes"),
    tuning_key("discard", "no", |config| Field::Flag(&mut config.discard))
        .does("Do not tell the device of the store what is free")
        .without("yes"),
];

const fn key(name: &'static str, value: &'static str, field: Accessor) -> Key {
    Key { name, value, has_option: true, what: "", without: "", field }
}

/// One that is for texts of settings alone.
const fn tuning_key(name: &'static str, value: &'static str, field: Accessor) -> Key {
    Key { has_option: false, ..key(name, value, field) }
}

/// Bytes of a size; percentages are of this machine (or of its memory cgroup).
///
/// # Errors
/// What is wrong with it.
pub fn parse_size(text: &str) -> Result<u64, ConfigError> {
    Given { key: "size", text, whole: Some(Machine::read().usable_bytes()) }.bytes()
}

impl Key {
    const fn does(self, what: &'static str) -> Key {
        Key { what, ..self }
    }

    const fn without(self, without: &'static str) -> Key {
        Key { without, ..self }
    }

    /// Whether its option takes no value.
    pub fn is_flag(&self) -> bool {
        matches!(self.value, "yes" | "no")
    }

    /// The option of `deepheap run`.
    pub fn option(&self) -> String {
        let no = if self.value == "no" { "no-" } else { "" };
        format!("--{no}{}", self.name.replace('_', "-"))
    }

    /// The index of a key of this name.
    fn find(name: &str) -> Result<usize, ConfigError> {
        let meant = name.replace('-', "_");
        KEYS.iter().position(|key| key.name == meant).ok_or_else(|| {
            let (meant, keys) = (shown(&meant), KEYS.each_ref().map(|key| key.name).join(", "));
            ConfigError::new(format!(
                "there is no setting {meant}: the settings are {keys} (a comma inside a path is \
                 written \\,)"
            ))
        })
    }
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
            quiet: false,
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
    /// What is wrong with the first setting that is, or with all of them together.
    pub fn parse(conf: &str) -> Result<Config, ConfigError> {
        Config::parse_on(Machine::read(), conf)
    }

    /// As `parse`, on a given machine.
    ///
    /// # Errors
    /// As `parse`.
    pub fn parse_on(machine: Machine, conf: &str) -> Result<Config, ConfigError> {
        let mut given: [Option<String>; KEYS.len()] = [const { None }; KEYS.len()];
        for item in items(conf).into_iter().filter(|item| !item.trim().is_empty()) {
            let Some((key, value)) = item.split_once(':') else {
                let (item, fix) = (shown(item.trim()), "write key:value, for example ram:2G");
                return Err(ConfigError::new(format!("{item} is no setting: {fix}")));
            };
            let key = Key::find(key.trim())?;
            if given[key].replace(unescaped(trimmed(value))?).is_some() {
                let name = KEYS[key].name;
                return Err(ConfigError::new(format!("{name} is set twice: set it once")));
            }
        }
        let mut config = Config::default_on(machine);
        for (key, value) in KEYS.iter().zip(&given) {
            if let Some(value) = value {
                config.set(machine, key.name, value)?;
            }
        }
        config.check(machine)?;
        Ok(config)
    }

    /// Sets one key as a text of settings would; `check` afterwards. `stall` is to be set behind
    /// what has a bound on stalls by itself.
    ///
    /// # Errors
    /// What is wrong with the key or value by itself.
    pub fn set(&mut self, machine: Machine, key: &str, text: &str) -> Result<(), ConfigError> {
        let Key { name, field, .. } = KEYS[Key::find(key)?];
        let bound_ppm = match name {
            "ram" if text.trim() == "auto" => {
                self.ram = Config::default_on(machine).ram;
                self.stall = self.stall.or(StallLimit::of_ppm(STALL_OF_AUTO_PPM));
                return Ok(());
            }
            "tier" => StallLimit::of_ppm(STALL_OF_TIER_PPM),
            _ => None,
        };
        let whole = (name == "ram").then(|| machine.usable_bytes());
        field(self).set(Given { key: name, text, whole })?;
        self.stall = self.stall.or(bound_ppm);
        Ok(())
    }

    /// The text that gives this config back.
    pub fn to_conf(&self) -> String {
        let nowhere = Machine { memory_bytes: 0, cgroup_limit_bytes: None };
        let (mut config, mut usual) = (self.clone(), Config::default_on(nowhere));
        usual.stall = self.tier.as_ref().and(StallLimit::of_ppm(STALL_OF_TIER_PPM));
        let mut conf = String::new();
        for Key { name, field, .. } in &KEYS {
            let text = field(&mut config).text();
            if text != field(&mut usual).text() || *name == "ram" {
                let separator = if conf.is_empty() { "" } else { "," };
                conf += &format!("{separator}{name}:{}", escaped(&text));
            }
        }
        conf
    }

    /// The settings of `DEEPHEAP_CONF`, with `DEEPHEAP_SHOW_STATS` over them.
    ///
    /// # Errors
    /// As `parse`, and a variable that is not UTF-8.
    pub fn from_environment() -> Result<Config, ConfigError> {
        let conf = variable(CONF_VARIABLE)?;
        let mut config = Config::parse(&conf).map_err(|error| error.within(CONF_VARIABLE))?;
        let show_stats = variable(SHOW_STATS_VARIABLE)?;
        if !show_stats.is_empty() {
            let given = Given { key: "show_stats", text: &show_stats, whole: None };
            let shown = given.flag().map_err(|error| error.within(SHOW_STATS_VARIABLE));
            config.show_stats = shown?;
        }
        Ok(config)
    }

    /// Whether `DEEPHEAP_CONF` says how much RAM there is for deepheap.
    ///
    /// # Errors
    /// A variable that is not UTF-8.
    pub(crate) fn is_ram_given() -> Result<bool, ConfigError> {
        let conf = variable(CONF_VARIABLE)?;
        let keys = items(&conf).into_iter().filter_map(|item| item.split_once(':'));
        Ok(keys.map(|(key, _)| key.trim()).any(|key| key == "ram"))
    }

    /// The budget that buffers are made for.
    pub(crate) fn usual_ram(&self) -> u64 {
        self.stall_of_ram().map_or(self.ram, |_| self.ram.min(RAM_UNDER_BOUND_BYTES))
    }

    /// Makes segments smaller if need be: those in memory count against the budget.
    pub(crate) fn fit_segments(&mut self) {
        self.segment_bytes = halved(self.segment_bytes, self.usual_ram() / BUDGET_PER_SEGMENT);
    }

    /// The settings of the second tier, as if it were the store.
    pub fn of_tier(&self) -> Option<Config> {
        let SecondTier { path, size } = self.tier.clone()?;
        let part = (self.usual_ram() / BUDGET_PER_TIER_SEGMENT).max(1);
        let larger = (1 << part.ilog2()).min(SEGMENT_DEFAULT_BYTES);
        let (store, segment_bytes) = (Some(path), self.segment_bytes.max(larger));
        Some(Config { store, store_size: size, segment_bytes, ..self.clone() })
    }

    /// Whether memory takes its room in the store when it is touched.
    pub(crate) fn is_lazy(&self) -> bool {
        self.overcommit == Overcommit::Lazy
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
}

/// The size of a segment, halved until it is at most so large, or the smallest.
pub(crate) fn halved(mut segment_bytes: u64, most: u64) -> u64 {
    while segment_bytes > most.max(SEGMENT_MIN_BYTES) {
        segment_bytes /= 2;
    }
    segment_bytes
}

/// The RAM that `DEEPHEAP_MAP_RAM` gives a map, if it is set.
pub(crate) fn map_ram(machine: Machine) -> Result<Option<u64>, ConfigError> {
    let text = variable(MAP_RAM_VARIABLE)?;
    if text.is_empty() {
        return Ok(None);
    }
    let whole = Some(machine.usable_bytes());
    Given { key: MAP_RAM_VARIABLE, text: &text, whole }.bytes().map(Some)
}

/// An environment variable; empty if it is not set.
fn variable(name: &'static str) -> Result<String, ConfigError> {
    let value = environment::variable(name).unwrap_or_default();
    let fix = "use a path without foreign bytes";
    value.into_string().map_err(|_| ConfigError::new(format!("{name} is not UTF-8: {fix}")))
}
