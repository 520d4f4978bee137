//! Room for staging: new bytes of a staging buffer take room of the page buffer, until the limits
//! include them.
//!
//! Never: allocates, evicts.
//! Threads: any, also in a signal handler. Those that take a buffer may own objects, and so cannot
//! make room: the next thread that needs a page does.

use crate::PAGE;
use crate::edges::Residency;
use crate::page_buffer::Reserved;
use crate::staging::StagingBuffer;

impl Residency {
    /// A staging buffer of pages, of which `bytes` will be used.
    pub fn take_staging(&self, bytes: usize) -> StagingBuffer<'_> {
        self.adopt_staging(self.staging.pages.take(), bytes)
    }

    /// As `take_staging`, for the copies of a checkpoint.
    pub fn take_staging_for_checkpoint(&self, bytes: usize) -> StagingBuffer<'_> {
        self.adopt_staging(self.staging.access.take(), bytes)
    }

    fn adopt_staging<'a>(&self, buffer: StagingBuffer<'a>, bytes: usize) -> StagingBuffer<'a> {
        let pages = buffer.unnoted(bytes).div_ceil(PAGE);
        if pages > 0 {
            self.stage(&buffer, bytes, self.frames.page_buffer.adopt(pages));
        }
        buffer
    }

    /// Notes that the first `bytes` of a staging buffer will be used; false if there is no room.
    pub fn try_stage(&self, buffer: &StagingBuffer<'_>, bytes: usize) -> bool {
        let pages = buffer.unnoted(bytes).div_ceil(PAGE);
        if pages > 0 {
            let Some(reserved) = self.frames.page_buffer.try_reserve(pages) else { return false };
            self.stage(buffer, bytes, reserved);
        }
        true
    }

    /// As `try_stage`, with the pages for it.
    pub fn stage(&self, buffer: &StagingBuffer<'_>, bytes: usize, reserved: Reserved<'_>) {
        buffer.note(bytes);
        self.staging.note_staged(reserved);
    }
}
