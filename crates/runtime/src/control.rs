//! Control: the workers of a managed heap, and how they divide the RAM budget, hold a bound on
//! stalls, share a pool's RAM and fill a second tier.

pub(crate) mod budget;
pub(crate) mod ceiling;
pub(crate) mod least_ram;
pub(crate) mod pool;
pub(crate) mod pool_share;
pub(crate) mod stall_share;
pub(crate) mod thrashing;
pub(crate) mod tier_bound;
pub(crate) mod viewer;
pub(crate) mod workers;
