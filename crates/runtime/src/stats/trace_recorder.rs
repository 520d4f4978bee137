//! Trace recorder: writes what the pager's rings hold into the file of `trace` in the settings.
//!
//! The file is made when the heap becomes managed: before there are no faults. The process that
//! `deepheap run` started writes the file itself; a child that runs a program of its own writes one
//! with its process id behind the name. A forked child that runs nothing else is not traced.
//!
//! Guarantees: what happened before an ordinary end of the process is in the file. A file that
//! cannot be written ends the trace, not the program, and the reason is logged once.
//! Never: touches managed memory.
//! Threads: its worker, and the one that ends the process; one at a time, by the lock.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use deepheap_pager::Pager;
use deepheap_pager::trace_format::{Header, LANES};
use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::files::append_file::AppendFile;
use deepheap_sys::process::log::{Piece, say};

use crate::runtime::Runtime;
use crate::stats::observe::is_first_process;
use crate::stats::trace_file::TraceFile;

impl Runtime {
    /// Makes the file, if the process is to be traced.
    pub(crate) fn begin_trace(&self, pager: &Pager) {
        let Some(path) = self.config.trace_file.as_ref().filter(|_| pager.trace().is_on()) else {
            return;
        };
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let header = Header {
            pid: std::process::id(),
            ram: self.config.ram,
            begun,
            region_base: self.region_base as u64,
            ran_before_ns: self.stats.snapshot().uptime_ns,
        };
        let make = || -> Result<AppendFile> {
            let file = AppendFile::create(&self.trace_path(path))?;
            file.append(&header.to_bytes()).map(|()| file)
        };
        match make() {
            Ok(file) => self.trace_file.lock().file = Some(file),
            Err(errno) => give_up(pager, errno),
        }
    }

    /// The loop of the worker that drains the rings.
    pub(crate) fn record_trace(&self, pager: &Pager) {
        while pager.trace().is_on() && !pager.has_ended() {
            pager.trace().wait();
            self.drain_trace(pager);
        }
    }

    /// Writes all that is in the rings.
    pub(crate) fn drain_trace(&self, pager: &Pager) {
        let mut recorder = self.trace_file.lock();
        let TraceFile { file: Some(file), bytes, chunk } = &mut *recorder else { return };
        for lane in 0..LANES {
            let lost = pager.trace().drain(lane, |record| {
                if chunk.is_full() {
                    chunk.finish(lane, 0, bytes);
                }
                chunk.push(record);
            });
            chunk.finish(lane, lost, bytes);
        }
        let written = file.append(bytes);
        bytes.clear();
        if let Err(errno) = written {
            recorder.file = None;
            give_up(pager, errno);
        }
    }

    /// At the end of the process: what is left in the rings, too.
    pub(crate) fn end_trace(&self) {
        if let Some(pager) = self.pager().filter(|pager| pager.trace().is_on()) {
            pager.trace().note_end();
            self.drain_trace(pager);
        }
    }

    fn trace_path(&self, path: &Path) -> PathBuf {
        if is_first_process(self) {
            return path.to_owned();
        }
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        name.into()
    }
}

fn give_up(pager: &Pager, errno: Errno) {
    pager.trace().end();
    say(&[Piece::Text("the trace ends, its file cannot be written: "), Piece::Error(errno)]);
}
