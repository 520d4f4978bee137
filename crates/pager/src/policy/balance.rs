//! Balance: whether RAM is worth more in the page buffer or in the object cache.
//!
//! A page of the page buffer saves the fault that an object in the cache costs (SSDAlloc, section
//! 3.2, fixes its size at 25 MB instead); a byte of the cache saves a part of a read from the
//! device. Both savings are observed at the margin: what a little more page buffer would have
//! kept came back soon after it had left; what more cache would have kept is known to the ghost.
//!
//! Pure: observations in, a decision out.

/// What was observed since the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// Faults on cached objects that had left the page buffer among its last `margin_bytes`.
    pub young_faults: u64,
    /// What such a fault costs, nanoseconds.
    pub fault_ns: u64,
    /// Bytes of page buffer, page tables included, that would have saved them.
    pub margin_bytes: u64,
    /// Reads of objects that the ghost remembered.
    pub ghost_reads: u64,
    /// What a read costs, nanoseconds.
    pub read_ns: u64,
    /// Bytes of cache that would have saved them.
    pub ghost_bytes: u64,
}

/// Where RAM should move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// From the object cache to the page buffer.
    ToPageBuffer,
    /// From the page buffer to the object cache.
    ToObjectCache,
    /// Neither is clearly better.
    Stay,
}

/// Events of either kind below which nothing is decided.
pub const EVENTS_LEAST: u64 = 64;

/// By how much one side must be better, in eighths: moving costs as well.
const CLEARLY_EIGHTHS: u128 = 10;

/// Which side saves more time a byte.
pub fn shift(observed: &Observed) -> Shift {
    if observed.young_faults + observed.ghost_reads < EVENTS_LEAST {
        return Shift::Stay;
    }
    let saved = |events: u64, ns: u64| u128::from(events) * u128::from(ns);
    // a / margin against b / ghost, without division.
    let page_buffer =
        saved(observed.young_faults, observed.fault_ns) * u128::from(observed.ghost_bytes.max(1));
    let object_cache =
        saved(observed.ghost_reads, observed.read_ns) * u128::from(observed.margin_bytes.max(1));
    if page_buffer * 8 > object_cache * CLEARLY_EIGHTHS {
        Shift::ToPageBuffer
    } else if object_cache * 8 > page_buffer * CLEARLY_EIGHTHS {
        Shift::ToObjectCache
    } else {
        Shift::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Observed = Observed {
        young_faults: 1000,
        fault_ns: 4_000,
        margin_bytes: 4 << 20,
        ghost_reads: 1000,
        read_ns: 100_000,
        ghost_bytes: 100 << 20,
    };

    #[test]
    fn ram_goes_where_a_byte_saves_more_time() {
        assert_eq!(shift(&EVEN), Shift::Stay);
        assert_eq!(shift(&Observed { young_faults: 1300, ..EVEN }), Shift::ToPageBuffer);
        assert_eq!(shift(&Observed { ghost_reads: 1300, ..EVEN }), Shift::ToObjectCache);
        assert_eq!(shift(&Observed { read_ns: 200_000, ..EVEN }), Shift::ToObjectCache);
    }

    #[test]
    fn little_evidence_moves_nothing() {
        let little = Observed { young_faults: 60, ghost_reads: 0, ..EVEN };
        assert_eq!(shift(&little), Shift::Stay);
        assert_eq!(shift(&Observed::default()), Shift::Stay);
    }
}
