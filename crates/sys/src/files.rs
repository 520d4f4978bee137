//! Files and descriptors: direct and sparse files, rings, pipes, and descriptors that programs do
//! not see.

mod aio;
pub mod append_file;
pub mod descriptor_mail;
pub mod direct_file;
pub mod file_status;
pub mod joint_writes;
pub mod own_descriptor;
pub mod pipe;
pub mod ring;
pub mod sparse_file;
pub mod stream_list;
