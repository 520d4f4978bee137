//! Value: what a setting can be, how it is read and how it is written.
//!
//! Guarantees: what is none is refused with what to write; what `text` gives, `set` reads.
//! Threads: pure.

use core::fmt;
use core::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use deepheap_measure::size;
use deepheap_pager::{Compress, Overcommit};

use crate::settings::error::{ConfigError, shown};

/// How much of what is free at the store may be used, if nothing is said.
pub const STORE_SIZE_DEFAULT: Share = Share::Percent(90);
/// Bounds that can be held: below, a single read of the device breaks it; above, RAM decides
/// nothing.
const STALL_PPM: RangeInclusive<u32> = 1_000..=500_000;
/// The longest name of a pool.
const POOL_NAME_MAX: usize = 32;

const OVERCOMMIT: [(&str, Overcommit); 2] =
    [("lazy", Overcommit::Lazy), ("strict", Overcommit::Strict)];
const COMPRESS: [(&str, Compress); 3] =
    [("auto", Compress::Auto), ("off", Compress::Off), ("lz4", Compress::Lz4)];

type Result<T> = core::result::Result<T, ConfigError>;

/// A part of something that is known only later: of the budget, or of what a disk has free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Percent of the whole, 0 to 100.
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

/// A part of the run time that a program may stand in faults; there is none that cannot be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimit {
    ppm: u32,
}

impl StallLimit {
    /// So many millionths of the run time; none if that bound cannot be held.
    pub fn of_ppm(ppm: u32) -> Option<StallLimit> {
        STALL_PPM.contains(&ppm).then_some(StallLimit { ppm })
    }

    /// Millionths of the run time.
    pub fn ppm(self) -> u32 {
        self.ppm
    }
}

/// Where a setting is kept, by what it can be.
pub(crate) enum Field<'a> {
    Flag(&'a mut bool),
    Bytes(&'a mut u64),
    /// From how many bytes on, or `off`.
    From(&'a mut Option<usize>),
    Path(&'a mut Option<PathBuf>),
    /// A text that can be part of a file's name.
    Name(&'a mut Option<String>),
    Share(&'a mut Share),
    ShareIfAny(&'a mut Option<Share>),
    Tier(&'a mut Option<SecondTier>),
    Stall(&'a mut Option<StallLimit>),
    /// Sizes of objects, `64-2K`.
    Sizes(&'a mut Option<RangeInclusive<usize>>),
    Overcommit(&'a mut Overcommit),
    Compress(&'a mut Compress),
}

impl Field<'_> {
    /// Reads its value.
    pub(crate) fn set(self, given: Given<'_>) -> Result<()> {
        match self {
            Field::Flag(flag) => *flag = given.flag()?,
            Field::Bytes(bytes) => *bytes = given.bytes()?,
            Field::From(bytes) => {
                *bytes = if given.is_off() { None } else { Some(given.count()?) };
            }
            Field::Path(path) => *path = Some(given.path()?),
            Field::Name(name) => *name = Some(given.name()?),
            Field::Share(share) => *share = given.share()?,
            Field::ShareIfAny(share) => *share = Some(given.share()?),
            Field::Tier(tier) => *tier = Some(given.tier()?),
            Field::Stall(limit) => *limit = given.stall()?,
            Field::Sizes(sizes) => *sizes = Some(given.sizes()?),
            Field::Overcommit(when) => *when = given.one_of(&OVERCOMMIT, "lazy or strict")?,
            Field::Compress(how) => *how = given.one_of(&COMPRESS, "auto, off or lz4")?,
        }
        Ok(())
    }

    /// The text that `set` reads; empty if there is nothing.
    pub(crate) fn text(self) -> String {
        let shown = |share: Option<Share>| share.map_or(String::new(), |share| share.to_string());
        match self {
            Field::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
            Field::Bytes(bytes) => size::exact(*bytes),
            Field::From(bytes) => bytes.map_or("off".to_owned(), |it| size::exact(it as u64)),
            Field::Path(path) => path.as_deref().map_or(String::new(), lossy),
            Field::Name(name) => name.clone().unwrap_or_default(),
            Field::Share(share) => shown(Some(*share)),
            Field::ShareIfAny(share) => shown(*share),
            Field::Tier(tier) => tier.as_ref().map_or(String::new(), tier_text),
            Field::Stall(limit) => {
                limit.map_or("off".to_owned(), |it| format!("{}%", f64::from(it.ppm) / 1e4))
            }
            Field::Sizes(sizes) => sizes.as_ref().map_or(String::new(), range_text),
            Field::Overcommit(when) => word_of(when, &OVERCOMMIT),
            Field::Compress(how) => word_of(how, &COMPRESS),
        }
    }
}

fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn tier_text(tier: &SecondTier) -> String {
    let place = lossy(&tier.path);
    let alone = Given { key: "tier", text: &place, whole: None }.tier();
    match tier.size {
        STORE_SIZE_DEFAULT if alone.as_ref() == Ok(tier) => place,
        size => format!("{place}:{size}"),
    }
}

/// `64-2K`.
pub(crate) fn range_text(sizes: &RangeInclusive<usize>) -> String {
    let [min, max] = [sizes.start(), sizes.end()].map(|bytes| size::exact(*bytes as u64));
    format!("{min}-{max}")
}

fn word_of<T: PartialEq>(value: &T, words: &[(&str, T)]) -> String {
    let found = words.iter().find(|(_, meant)| meant == value);
    found.map_or(String::new(), |(word, _)| (*word).to_owned())
}

/// The text for a key's value.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) key: &'static str,
    pub(crate) text: &'a str,
    /// What a percentage is of, where it is known and there may be one.
    pub(crate) whole: Option<u64>,
}

impl<'a> Given<'a> {
    fn bad_size(self, reason: &str) -> ConfigError {
        let (key, text) = (self.key, shown(self.text));
        ConfigError::new(format!("{key} {text} is not a size: {reason}"))
    }

    fn none_of(self, words: &str) -> ConfigError {
        let (key, text) = (self.key, shown(self.text));
        ConfigError::new(format!("{key} {text} is not understood: write {words}"))
    }

    fn word(self) -> String {
        self.text.trim().to_ascii_lowercase()
    }

    fn one_of<T: Copy>(self, words: &[(&str, T)], all: &str) -> Result<T> {
        let given = self.word();
        let found = words.iter().find(|(word, _)| *word == given);
        found.map(|(_, meant)| *meant).ok_or_else(|| self.none_of(all))
    }

    fn is_off(self) -> bool {
        matches!(self.word().as_str(), "off" | "no")
    }

    pub(crate) fn flag(self) -> Result<bool> {
        match self.word().as_str() {
            "yes" | "on" | "true" | "1" => Ok(true),
            "no" | "off" | "false" | "0" => Ok(false),
            _ => Err(self.none_of("yes or no")),
        }
    }

    pub(crate) fn bytes(self) -> Result<u64> {
        size::parse(self.text, self.whole).map_err(|reason| self.bad_size(reason))
    }

    /// Too many to be possible is found by `Config::check`.
    fn count(self) -> Result<usize> {
        Ok(usize::try_from(self.bytes()?).unwrap_or(usize::MAX))
    }

    fn path(self) -> Result<PathBuf> {
        match self.text {
            "" => {
                let key = self.key;
                let text = format!("{key} is empty: give a path, or leave {key} out");
                Err(ConfigError::new(text))
            }
            path => Ok(PathBuf::from(path)),
        }
    }

    fn name(self) -> Result<String> {
        let name = self.text.trim();
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=POOL_NAME_MAX).contains(&name.len()) && name.bytes().all(is_usual);
        let words = "a name of up to 32 letters, digits, '-', '_' and '.'";
        if is_name { Ok(name.to_owned()) } else { Err(self.none_of(words)) }
    }

    pub(crate) fn share(self) -> Result<Share> {
        match self.text.trim().strip_suffix('%').map(|percent| percent.trim().parse()) {
            None => self.bytes().map(Share::Bytes),
            Some(Ok(percent @ 0..=100)) => Ok(Share::Percent(percent)),
            Some(_) => Err(self.bad_size("write a whole percentage from 1% to 100%")),
        }
    }

    /// `PATH` or `PATH:SIZE`. A path may have colons: only what reads as a size behind the last one
    /// is a size.
    fn tier(self) -> Result<SecondTier> {
        let of = |text: &'a str| Given { text, ..self };
        let parts = self.text.rsplit_once(':');
        let sized = parts.and_then(|(place, size)| Some((place, of(size).share().ok()?)));
        let (place, size) = sized.unwrap_or((self.text, STORE_SIZE_DEFAULT));
        Ok(SecondTier { path: of(place).path()?, size })
    }

    fn stall(self) -> Result<Option<StallLimit>> {
        let percent = self.text.trim().strip_suffix('%').map(|text| text.trim().parse::<f64>());
        let limit = match percent {
            None if self.is_off() => return Ok(None),
            // A text that is no number becomes 0, and one that is too large the largest.
            Some(Ok(percent)) => StallLimit::of_ppm((percent * 1e4).round() as u32),
            _ => None,
        };
        let words = "a percentage of the run time from 0.1% to 50%, or off";
        limit.map(Some).ok_or_else(|| self.none_of(words))
    }

    fn sizes(self) -> Result<RangeInclusive<usize>> {
        let bytes = |text: &'a str| Given { text, ..self }.count();
        match self.text.split_once('-') {
            Some((min, max)) if !min.trim().is_empty() && !max.contains('-') => {
                Ok(bytes(min)?..=bytes(max)?)
            }
            _ => Err(self.none_of("MIN-MAX, for example 64-2K")),
        }
    }
}
