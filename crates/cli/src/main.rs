//! The deepheap command: run, doctor, stat, set, top, serve, profile, simulate, advise, maps,
//! inspect, fsck, rollback, rm-snapshot, compact, completions, man.
//!
//! Guarantees: every failure is one message on stderr that says what is wrong and what to do;
//! wrong use ends with status 2.
//! Never: panics at a user; prints colours into a file.
//! Threads: one.

mod arguments;
mod doctor;
mod files;
mod launch;
mod live;
mod manual;
mod profile;
mod random;
mod refusal;
mod trace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::arguments::{Arguments, Command};
use crate::files::{durable, map_log, maps};
use crate::launch::{image, run};
use crate::live::{serve, set, stat, top};
use crate::refusal::{EXIT_REFUSED, Refusal};
use crate::trace::{advise, simulate};

fn main() -> ExitCode {
    image::restore_pipe_signal();
    image::leave_deepheap();
    let result = match arguments() {
        Ok(arguments) => carry_out(arguments.command),
        Err(refusal) => Err(refusal),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            refusal.print();
            ExitCode::from(refusal.status)
        }
    }
}

/// The arguments, unless they ask for help, which is printed.
fn arguments() -> Result<Arguments, Refusal> {
    Arguments::try_parse().map_err(|error| {
        let status = if error.use_stderr() { EXIT_REFUSED } else { 0 };
        match error.print() {
            Ok(()) => Refusal::with_status(status, ""),
            Err(error) => Refusal::unprinted(error),
        }
    })
}

fn carry_out(command: Command) -> Result<(), Refusal> {
    match command {
        Command::Run(run) => Err(run::run(&run)),
        Command::Doctor(doctor) => doctor::doctor(&doctor),
        Command::Stat(stat) => stat::stat(&stat),
        Command::Set(set) => set::set(&set),
        Command::Top(top) => top::top(&top),
        Command::Serve(serve) => serve::serve(&serve),
        Command::Profile(of) => profile::profile(&of),
        Command::Simulate(of) => simulate::simulate(&of),
        Command::Advise(of) => advise::advise(&of),
        Command::Maps => maps::maps(),
        Command::Inspect(of) => map_log::inspect(&of),
        Command::Fsck(fsck) if fsck.repair => durable::repair(&fsck.of),
        Command::Fsck(fsck) => map_log::fsck(&fsck.of),
        Command::Rollback(to) => durable::roll_back(&to.of, &to.name),
        Command::RmSnapshot(to) => durable::remove_snapshot(&to.of, &to.name),
        Command::Compact(of) => durable::compact(&of),
        Command::Completions { shell } => completions(shell),
        Command::Man { folder } => manual::write(&folder),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Refusal> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "deepheap", &mut script);
    refusal::print_out(script)
}
