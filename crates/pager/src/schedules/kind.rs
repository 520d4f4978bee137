//! Kinds of worlds, and what is done in each.

/// What kind of world it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ordinary,
    /// One thread is careless, so that a wrong number must be found.
    Careless,
    /// Small objects lie in lanes; there are no checkpoints.
    InLanes,
    /// There are no workers, and no checkpoints.
    Alone,
}

impl Kind {
    pub(super) fn makes_checkpoints(self) -> bool {
        matches!(self, Kind::Ordinary | Kind::Careless)
    }
}
