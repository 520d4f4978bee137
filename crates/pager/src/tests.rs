//! What tests of several files use.

mod invariants;
