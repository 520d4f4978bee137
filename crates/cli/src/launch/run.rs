//! Run: checks everything that could go wrong, then becomes the program with deepheap preloaded.
//!
//! Guarantees: either the program starts with working settings, or it does not start and the
//! reason is told.
//! Never: stays around, unless it is to tell how it went (`parent`): exit status, signals and the
//! process id are the program's.
//! Threads: none but main.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use deepheap::Config;
use deepheap::internal::config::SHOW_STATS_VARIABLE;
use deepheap::internal::machine::Machine;
use deepheap::internal::obstacles;
use deepheap::internal::profile::PROFILE_VARIABLE;
use deepheap::internal::store_location::{self, StoreLocation};
use deepheap::internal::{FIRST_PROCESS_VARIABLE, PARENT_VARIABLE};

use crate::arguments::{Run, Settings};
use crate::launch::parent::Waiting;
use crate::launch::{image, library, program};
use crate::random::random_text;
use crate::refusal::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Refusal, warn};

/// Becomes the program; returns only with the reason why not.
pub fn run(arguments: &Run) -> Refusal {
    start(&arguments.settings, &arguments.program, None)
}

/// What `deepheap profile` adds to a run.
pub struct Profiled<'a> {
    /// The value of `PROFILE_VARIABLE`.
    pub number: OsString,
    /// What is done when the program has ended.
    pub tells: Box<dyn FnOnce() + 'a>,
}

/// Becomes the program, or waits for its end if there is something to tell then; returns with its
/// exit status, or with the reason why it was not started.
pub fn start(settings: &Settings, program: &[OsString], profiled: Option<Profiled>) -> Refusal {
    let started = prepare(settings, &program[0]).and_then(|(config, path, variables)| {
        let tells = config.show_stats || config.stats_file.is_some() || profiled.is_some();
        let waiting = tells.then(|| Waiting::open(&random_text()?)).transpose()?;
        Ok((config, path, variables, waiting))
    });
    let (config, path, mut variables, waiting) = match started {
        Ok(started) => started,
        Err(refusal) => return refusal,
    };
    // Inside of a run that is told of, the parent of that tells.
    variables.extend(waiting.iter().map(|it| (PARENT_VARIABLE, OsString::from(&it.name))));
    variables.extend(profiled.iter().map(|it| (PROFILE_VARIABLE, it.number.clone())));
    let becomes = || become_program(&path, program, variables);
    match waiting {
        Some(waiting) => waiting.run(&config, becomes, || {
            if let Some(Profiled { tells, .. }) = profiled {
                tells();
            }
        }),
        None => becomes(),
    }
}

/// Becomes the program; returns only with the reason why not.
fn become_program(path: &Path, program: &[OsString], mut variables: Variables) -> Refusal {
    // exec keeps the process id.
    let first = OsString::from(std::process::id().to_string());
    variables.push((FIRST_PROCESS_VARIABLE, first));
    let error = image::replace(path, program, &variables);
    let status = match error.kind() {
        std::io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_NOT_EXECUTABLE,
    };
    let text = format!("cannot execute '{}': {error}: check the program", path.display());
    Refusal::with_status(status, text)
}

type Variables = Vec<(&'static str, OsString)>;

fn prepare(settings: &Settings, program: &OsStr) -> Result<(Config, PathBuf, Variables), Refusal> {
    let mut config = merged(settings)?;
    let path = program::find(program)?;
    program::check(&path)?;
    let library = library::find()?;
    if let Some(finding) = obstacles::first_obstacle() {
        return Err(Refusal::of(finding));
    }
    let location = StoreLocation::find(&config).map_err(Refusal::of)?;
    if let Some(as_store) = config.of_tier() {
        let found = StoreLocation::find(&as_store);
        found.map_err(|error| Refusal::new(format!("the second tier: {error}")))?;
    }
    if let Some((problem, fix)) = location.shortened_by_limit(&config) {
        warn(&format!("store '{}' {problem}: {fix}", location.path().display()));
    }
    // Absolute: the program and its children may change folders.
    config.store = Some(absolute(location.path())?);
    if let Some(tier) = &mut config.tier {
        tier.path = absolute(&tier.path)?;
    }
    if let Some(file) = &config.stats_file {
        config.stats_file = Some(check_output_file(file, "statistics", "--stats")?);
    }
    if let Some(file) = &config.trace_file {
        config.trace_file = Some(check_output_file(file, "the trace", "--trace")?);
    }
    let preload = library::preloading(&library, env::var_os("LD_PRELOAD").as_deref());
    let mut variables =
        vec![("LD_PRELOAD", preload), ("DEEPHEAP_CONF", OsString::from(config.to_conf()))];
    if config.show_stats && env::var_os(SHOW_STATS_VARIABLE).is_some() {
        // It goes over DEEPHEAP_CONF, and the option over it.
        variables.push((SHOW_STATS_VARIABLE, OsString::from("1")));
    }
    Ok((config, path, variables))
}

/// The options over what DEEPHEAP_CONF says.
fn merged(settings: &Settings) -> Result<Config, Refusal> {
    let machine = Machine::read();
    let mut config = Config::from_environment().map_err(Refusal::of)?;
    for (key, value) in &settings.0 {
        let refuse = |error| Refusal::new(format!("in {}: {error}", key.option()));
        config.set(machine, key.name, utf8(value)?).map_err(refuse)?;
    }
    config.check(machine).map_err(Refusal::of)?;
    Ok(config)
}

/// DEEPHEAP_CONF is text; so must be what goes into it.
fn utf8(text: &OsStr) -> Result<&str, Refusal> {
    text.to_str().ok_or_else(|| {
        let shown = text.display();
        Refusal::new(format!("'{shown}' is not UTF-8: use a path without foreign bytes"))
    })
}

fn absolute(path: &Path) -> Result<PathBuf, Refusal> {
    let absolute = std::path::absolute(path).map_err(|error| {
        let shown = path.display();
        Refusal::new(format!("cannot tell where '{shown}' is ({error}): give an absolute path"))
    })?;
    utf8(absolute.as_os_str())?;
    Ok(absolute)
}

/// The file need not exist, but must be possible to write.
pub(crate) fn check_output_file(file: &Path, what: &str, option: &str) -> Result<PathBuf, Refusal> {
    let file = absolute(file)?;
    let folder = file.parent().unwrap_or(Path::new("/"));
    let shown = file.display();
    let is_possible = if file.exists() {
        !file.is_dir() && store_location::is_accessible(&file, libc::W_OK)
    } else {
        store_location::is_accessible(folder, libc::W_OK | libc::X_OK)
    };
    if is_possible {
        return Ok(file);
    }
    Err(Refusal::new(format!(
        "{what} cannot be written to '{shown}': give {option} a file in a folder that exists and \
         that this user may write to"
    )))
}
