//! Strict tests: walks that compare every structure with its neighbours; only builds with debug
//! assertions have them.

pub(crate) mod objects;
pub(crate) mod runs;
