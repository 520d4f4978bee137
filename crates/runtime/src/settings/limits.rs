//! Limits: which limits of `ulimit` (setrlimit) deepheap may meet in this process.
//!
//! Guarantees: a limit that deepheap can never reach is no limit (`None`).
//! Never: changes a limit: the program inherits them as its user set them.
//! Threads: plain functions, for start-up.

/// One limit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit that holds.
    pub soft: u64,
    /// Up to where this user may raise it; `None`: without end.
    pub hard: Option<u64>,
}

impl Limit {
    /// The advice that makes `option` of ulimit allow `wanted`, as the shell takes it.
    pub fn fix(&self, option: &str, wanted: &str, needed: u64) -> String {
        match self.hard {
            Some(hard) if hard < needed => format!(
                "have root raise the hard limit (limits.conf, or the Limit settings of a \
                 service), then ulimit {option} {wanted}"
            ),
            _ => format!("ulimit {option} {wanted}"),
        }
    }
}

/// Bytes of the largest file that this process may write: `ulimit -f`.
pub(crate) fn file_size() -> Option<Limit> {
    limit(libc::RLIMIT_FSIZE)
}

/// Descriptors that it may have open: `ulimit -n`.
pub(crate) fn open_files() -> Option<Limit> {
    limit(libc::RLIMIT_NOFILE)
}

/// Bytes of address space that it may use: `ulimit -v`.
pub(crate) fn address_space() -> Option<Limit> {
    limit(libc::RLIMIT_AS)
}

fn limit(resource: libc::__rlimit_resource_t) -> Option<Limit> {
    let mut found = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for one rlimit, which the call fills in.
    let failed = unsafe { libc::getrlimit(resource, &mut found) } != 0;
    let finite = |value| (value != libc::RLIM_INFINITY).then_some(value);
    if failed {
        return None;
    }
    finite(found.rlim_cur).map(|soft| Limit { soft, hard: finite(found.rlim_max) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_out_depends_on_what_the_user_may_do_alone() {
        let limit = |hard| Limit { soft: 10, hard };
        assert_eq!(limit(None).fix("-n", "1024", 64), "ulimit -n 1024");
        assert_eq!(limit(Some(4096)).fix("-n", "1024", 64), "ulimit -n 1024");
        assert!(limit(Some(20)).fix("-n", "1024", 64).contains("have root raise the hard limit"));
    }

    #[test]
    fn every_process_has_a_limit_of_open_files() {
        assert!(open_files().is_none_or(|limit| limit.soft >= 3));
    }
}
