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

use std::path::Path;

use deepheap_pager::Pager;
use deepheap_pager::trace::format::{Chunk, Header, LANES};
use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::files::append_file::AppendFile;
use deepheap_sys::say;
use deepheap_sys::threads::lock::Lock;

/// The trace of a process.
#[derive(Default)]
pub(crate) struct TraceRecorder(Lock<Output>);

#[derive(Default)]
struct Output {
    /// Without a file nothing is recorded.
    file: Option<AppendFile>,
    /// Finished chunks that are not written yet.
    bytes: Vec<u8>,
    chunk: Chunk,
}

impl TraceRecorder {
    /// Makes the file.
    pub(crate) fn begin(&self, pager: &Pager, path: &Path, header: &Header) {
        let make = || -> Result<AppendFile> {
            let file = AppendFile::create(path)?;
            file.append(&header.to_bytes()).map(|()| file)
        };
        match make() {
            Ok(file) => self.0.lock().file = Some(file),
            Err(errno) => give_up(pager, errno),
        }
    }

    /// The loop of the worker that drains the rings.
    pub(crate) fn record(&self, pager: &Pager) {
        while pager.trace().is_on() && !pager.workers.have_ended() {
            pager.trace().wait();
            self.drain(pager);
        }
    }

    /// Writes all that is in the rings.
    fn drain(&self, pager: &Pager) {
        let mut output = self.0.lock();
        let Output { file: Some(file), bytes, chunk } = &mut *output else { return };
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
            output.file = None;
            give_up(pager, errno);
        }
    }

    /// At the end of the process: writes what is left in the rings, too.
    pub(crate) fn end(&self, pager: &Pager) {
        if pager.trace().is_on() {
            pager.trace().note_end();
            self.drain(pager);
        }
    }
}

fn give_up(pager: &Pager, errno: Errno) {
    pager.trace().end();
    say!("the trace ends, its file cannot be written: ", errno);
}
