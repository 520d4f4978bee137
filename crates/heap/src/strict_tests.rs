//! Strict tests: walks that compare every structure with its neighbours, in strict builds only.

pub(crate) mod objects;
pub(crate) mod runs;
