//! Manual: the man pages, made from the same words as the help.
//!
//! Guarantees: `deepheap.1` and one page for each command that is not hidden.
//! Never: makes the folder.
//! Threads: none but main.

use std::path::Path;
use std::{fs, io};

use clap::{Arg, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use deepheap::internal::config::KEYS;

use crate::arguments::Arguments;
use crate::refusal::Refusal;

/// Between an option and its value.
const UNBROKEN_BLANK: &str = "\u{a0}";

/// Variables that are not in the help, in every page.
const VARIABLES: [(&str, &str); 4] = [
    (
        "DEEPHEAP_CONF",
        "Settings as key:value, separated by commas, each once; deepheap-run(1) lists them. For \
         example ram:2G,store:/mnt/nvme. Blanks around keys and values do not count; a comma \
         inside a path is written \\,, and a backslash \\\\. Options of the command line go over \
         it.",
    ),
    (
        "DEEPHEAP_SHOW_STATS",
        "If 1, a summary on stderr at exit; if 0, none. Goes over DEEPHEAP_CONF.",
    ),
    ("TMPDIR", "The folder of the store, unless one is given."),
    ("NO_COLOR", "If not empty, no colours."),
];

/// Writes the pages into a folder.
pub fn write(folder: &Path) -> Result<(), Refusal> {
    let mut root = Arguments::command();
    root.build();
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set());
    for command in commands {
        let name = format!("deepheap-{}", command.get_name());
        page(folder, command, &name)?;
    }
    page(folder, &root, "deepheap")
}

fn page(folder: &Path, command: &Command, name: &str) -> Result<(), Refusal> {
    let path = folder.join(format!("{name}.1"));
    text(command).and_then(|text| fs::write(&path, text)).map_err(|error| {
        let shown = path.display();
        Refusal::new(format!("cannot write '{shown}': {error}: give a folder that exists"))
    })
}

fn text(command: &Command) -> io::Result<Vec<u8>> {
    let source = concat!("deepheap ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    synopsis(command).to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    notes(command).to_writer(&mut text)?;
    if command.get_name() == "run" {
        settings().to_writer(&mut text)?;
    }
    environment().to_writer(&mut text)?;
    Ok(text)
}

/// With the values of the options, which `Man` leaves out; nothing is broken inside brackets.
fn synopsis(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).control("nh", []).control("ad", ["l"]);
    let mut line = vec![bold(command.get_bin_name().unwrap_or(command.get_name()))];
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "help";
    for option in command.get_arguments().filter(is_shown) {
        let Some(long) = option.get_long() else { continue };
        let value = option.get_value_names().unwrap_or_default().join(" ");
        line.extend([roman(" ["), bold(format!("--{long}"))]);
        match (option.get_action().takes_values(), option.is_require_equals_set()) {
            (false, _) => {}
            (true, true) => line.extend([roman("[="), italic(value), roman("]")]),
            (true, false) => line.extend([roman(UNBROKEN_BLANK), italic(value)]),
        }
        line.push(roman("]"));
    }
    for argument in command.get_positionals() {
        let name = argument.get_value_names().unwrap_or_default().join(" ");
        let has_more = argument.is_trailing_var_arg_set();
        line.push(roman(if has_more { " [--] " } else { " " }));
        line.push(italic(name));
        if has_more {
            line.extend([roman(" ["), italic("ARGUMENTS"), roman("]...")]);
        }
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("COMMAND"), roman(" ...")]);
    }
    roff.text(line).control("ad", ["b"]).control("hy", []);
    roff
}

/// The notes under the help. Indented lines are commands or tables: they stay as they are.
fn notes(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let notes = command.get_after_long_help().or_else(|| command.get_after_help());
    let Some(notes) = notes.map(ToString::to_string) else { return roff };
    roff.control("SH", ["NOTES"]);
    let mut was_indented = false;
    for line in notes.lines() {
        let is_indented = line.starts_with("  ");
        if is_indented != was_indented {
            roff.control(if is_indented { "nf" } else { "fi" }, []);
            was_indented = is_indented;
        }
        match line {
            "" => roff.control("PP", []),
            line => roff.text([roman(line)]),
        };
    }
    if was_indented {
        roff.control("fi", []);
    }
    roff
}

/// The keys of `DEEPHEAP_CONF`.
fn settings() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SETTINGS"]);
    for key in &KEYS {
        let name = [bold(format!("{}:", key.name)), italic(key.value)];
        let meaning = format!("{}. Without it: {}.", key.what, key.without);
        roff.control("TP", []).text(name).text([roman(meaning)]);
    }
    roff
}

fn environment() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, meaning) in VARIABLES {
        let name: Inline = bold(name);
        roff.control("TP", []).text([name]).text([roman(meaning)]);
    }
    roff
}
