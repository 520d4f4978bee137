//! Memory: mappings and what the kernel tells and moves of them; arrays and allocators that stay in
//! RAM.

pub mod aligned_buffer;
pub mod byte_copy;
pub mod index_pool;
pub mod large_stack;
pub mod mapping;
pub mod memory_file;
pub mod own_memory;
pub mod padded;
pub mod page_extractor;
pub mod page_mover;
pub mod page_pipe;
pub mod pagemap;
pub mod pinned_allocator;
pub mod pinned_array;
pub mod userfaultfd;
pub mod zap;
