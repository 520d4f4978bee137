//! Trace file: the file of a traced process, and what is on its way to it.
//!
//! Never: does I/O by itself; `trace_recorder` does.
//! Threads: one at a time, by the lock that the runtime keeps it in.

use deepheap_pager::trace_format::Chunk;
use deepheap_sys::files::append_file::AppendFile;

/// Without a file nothing is recorded.
#[derive(Default)]
pub(crate) struct TraceFile {
    pub(crate) file: Option<AppendFile>,
    /// Finished chunks that are not written yet.
    pub(crate) bytes: Vec<u8>,
    pub(crate) chunk: Chunk,
}
