//! Settings: what a user sets, and what machine, limits and places these settings meet.

pub(crate) mod check;
pub mod config;
pub(crate) mod error;
pub(crate) mod limits;
pub mod machine;
pub mod obstacles;
pub mod store_location;
pub(crate) mod text;
pub(crate) mod value;
