//! Manual: the man pages, made from the same words as the help.
//!
//! Guarantees: `deepheap.1` and one page for each command that is not hidden.
//! Never: makes the folder.
//! Threads: none but main.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::arguments::Arguments;
use crate::refusal::Refusal;

/// What is not in the help, in every page.
const VARIABLES: [(&str, &str); 4] = [
    (
        "DEEPHEAP_CONF",
        "Settings as key:value, separated by commas: ram, store, store_size, page_buffer, \
         objects, cache_policy, segment, pool_step, stats, show_stats, children, force. For \
         example ram:2G,store:/mnt/nvme. A comma inside a path is written \\, and a \
         backslash \\\\. Options of the command line go over it.",
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
    for command in commands.cloned() {
        let name = format!("deepheap-{}", command.get_name());
        page(folder, Man::new(command), &name)?;
    }
    page(folder, Man::new(root.clone()), "deepheap")
}

fn page(folder: &Path, man: Man, name: &str) -> Result<(), Refusal> {
    let path = folder.join(format!("{name}.1"));
    let mut text = Vec::new();
    let made = man.render(&mut text).and_then(|()| environment().to_writer(&mut text));
    let text = String::from_utf8_lossy(&text).replace("\n.SH EXTRA\n", "\n.SH NOTES\n");
    made.and_then(|()| fs::write(&path, text)).map_err(|error| {
        let shown = path.display();
        Refusal::new(format!("cannot write '{shown}': {error}: give a folder that exists"))
    })
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
