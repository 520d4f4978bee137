//! Supervisor: makes what a run needs, starts the worker, takes its report, takes everything back.
//!
//! Guarantees: when `run` returns, whichever way, the worker is gone and so is all it needed.
//! Never: measures; it is blocked in read(2) while the worker runs.
//! Threads: one.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::cgroup::Cgroup;
use crate::failure::Failure;
use crate::gauges;
use crate::ledger::Ledger;
use crate::report::Report;
use crate::signals::{self, Watched};
use crate::swap_file::{self, SwapFile};
use crate::worker::Order;
use crate::workload::{Backend, Workload};

/// Disk that stays free.
const SPARE_DISK_BYTES: u64 = 1 << 30;
const MEMORY_FILE_SYSTEMS: [i64; 3] = [0x0102_1994, 0x8584_58F6_u32 as i64, 0x9584_58F6_u32 as i64];

/// Runs one workload in a process of its own.
pub fn run(workload: &Workload) -> Result<Report, Failure> {
    workload.check()?;
    check_dir(workload)?;
    let mut ledger = Ledger::open()?;
    let cgroup = if workload.needs_cgroup() { Some(Cgroup::create(&mut ledger)?) } else { None };
    let _swap = match workload.on {
        Backend::Swap => Some(SwapFile::create(
            &mut ledger,
            &workload.dir,
            workload.dense_bytes(),
            workload.page_cluster,
        )?),
        _ => None,
    };
    signals::interrupted()?;
    let (status, output) = work(&Order { workload: workload.clone(), cgroup: cgroup.clone() })?;
    signals::interrupted()?;
    if !status.success() {
        return Err(explain(status, cgroup.as_ref()));
    }
    serde_json::from_str(&output)
        .map_err(|error| Failure::Failed(format!("the worker's report cannot be read: {error}")))
}

/// Starts the worker and waits for it.
fn work(order: &Order) -> Result<(ExitStatus, String), Failure> {
    let failed = |error: std::io::Error| Failure::os("worker", &error);
    let text = serde_json::to_string(order).map_err(|error| Failure::Failed(error.to_string()))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped());
    // The worker's runtime gets its settings from the workload, never from our environment.
    command.env_remove("DEEPHEAP_CONF").env_remove("DEEPHEAP_SHOW_STATS");
    signals::die_with_parent(&mut command);
    let mut child = command.spawn().map_err(failed)?;
    let watched = Watched::new(child.id())?;
    if let Some(mut input) = child.stdin.take() {
        // A worker that died early says why by its status.
        let _ = input.write_all(text.as_bytes());
    }
    let mut output = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut output).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    drop(watched);
    Ok((status, output))
}

fn explain(status: ExitStatus, cgroup: Option<&Cgroup>) -> Failure {
    let kills = cgroup.map_or(0, Cgroup::oom_kills);
    match (status.code(), status.signal()) {
        (Some(2), _) => Failure::Refused("the worker refused, see above".into()),
        (_, Some(signal)) if kills > 0 => Failure::Failed(format!(
            "the worker was killed by signal {signal}: out of memory in its memory cgroup \
             ({kills} kills)"
        )),
        (_, Some(signal)) => Failure::Failed(format!("the worker was killed by signal {signal}")),
        (code, None) => {
            Failure::Failed(format!("the worker failed with status {}", code.unwrap_or(-1)))
        }
    }
}

/// The folder that --dir names, in full.
pub fn folder(dir: &Path) -> Result<PathBuf, Failure> {
    let refused = |why: String| Failure::Refused(format!("--dir {}: {why}", dir.display()));
    if !dir.is_dir() {
        return Err(refused("no such folder; make it, or name another one".into()));
    }
    dir.canonicalize().map_err(|error| refused(error.to_string()))
}

fn check_dir(workload: &Workload) -> Result<(), Failure> {
    let dir = &folder(&workload.dir)?;
    let needed = match workload.on {
        Backend::Glibc => return Ok(()),
        Backend::Swap => swap_file::size_for(workload.dense_bytes()),
        // A log needs room to collect its garbage.
        Backend::Deepheap => workload.data_bytes + workload.data_bytes / 4,
        Backend::Mmap => workload.dense_bytes(),
    };
    let (free, magic) =
        gauges::file_system(dir).map_err(|error| Failure::os(dir.display(), &error))?;
    if MEMORY_FILE_SYSTEMS.contains(&magic) {
        return Err(Failure::Refused(format!(
            "--dir {}: lies in memory (tmpfs), not on a device; choose a folder on an SSD",
            dir.display()
        )));
    }
    if free < needed + SPARE_DISK_BYTES {
        return Err(Failure::Refused(format!(
            "--dir {}: {} MiB free, {} MiB needed; choose another folder or less --data",
            dir.display(),
            free >> 20,
            (needed + SPARE_DISK_BYTES) >> 20
        )));
    }
    Ok(())
}
