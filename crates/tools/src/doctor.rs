//! Doctor: what deepheap needs of a machine, probed one by one, with the fix for what is missing.
//!
//! Guarantees: every probe does the thing itself where that is possible, instead of asking for
//! versions; nothing of the machine is changed.
//! Never: writes to a block device or to a file that exists; runs longer than about two seconds.
//! Threads: one.

pub mod store;

use deepheap::Config;
use deepheap::internal::machine::Machine;
use deepheap::internal::obstacles::{Finding, PROBES, number_in};
use deepheap::internal::stats_report::bytes;
use deepheap_sys::PAGE;
use deepheap_sys::files::ring::Ring;
use deepheap_sys::memory::page_extractor::{BATCH_MAX, PageExtractor};
use deepheap_sys::memory::zap::Zapper;
use deepheap_sys::memory::{mapping, pagemap};

/// The kernel's default of vm.max_map_count.
const USUAL_MAP_COUNT: u64 = 65_530;
/// Bytes that a program and its libraries need beside the heap, when a memory cgroup is judged.
const PROGRAM_BYTES: u64 = 64 << 20;

/// Examines everything but the store: first that without which nothing runs.
pub fn examine_machine(config: &Config, tell: &mut dyn FnMut(Finding)) {
    let more = [batched_zap, page_pipe, page_scan, io_uring, map_count];
    PROBES.into_iter().chain(more).for_each(|probe| tell(probe()));
    tell(memory(config));
}

fn batched_zap() -> Finding {
    const NAME: &str = "batched zap";
    if Zapper::new().is_batched() {
        return Finding::pass(NAME, "process_madvise(MADV_DONTNEED) on oneself");
    }
    Finding::warn(
        NAME,
        "process_madvise(MADV_DONTNEED) is refused, so pages leave one by one, or by runs of \
         neighbours",
        "use Linux 6.13 or later, and allow process_madvise in the container's seccomp profile",
    )
}

fn page_pipe() -> Finding {
    const NAME: &str = "pipe size";
    const FIX: &str = "sudo sysctl fs.pipe-max-size=1048576 fs.pipe-user-pages-soft=65536";
    match PageExtractor::new().map(|pipe| pipe.batch()) {
        Ok(pages) if pages >= BATCH_MAX => {
            Finding::pass(NAME, format!("{pages} pages are evicted at a time"))
        }
        Ok(pages) => {
            Finding::warn(NAME, format!("only {pages} of {BATCH_MAX} pages at a time"), FIX)
        }
        Err(error) => Finding::fail(NAME, format!("no pipe can be made ({error})"), FIX),
    }
}

fn page_scan() -> Finding {
    const NAME: &str = "PAGEMAP_SCAN";
    const FIX: &str = "use Linux 6.7 or later, and mount /proc";
    let Ok(page) = mapping::map_pinned(PAGE) else {
        return Finding::fail(NAME, "no memory can be mapped", "lift ulimit -v and ulimit -m");
    };
    let mut is_told_from_zero = false;
    // SAFETY: one page mapped above; unmapped below, after the last use.
    unsafe { page.write_volatile(1) };
    let scanned = pagemap::present_pages(page as usize, PAGE, &mut |_, _, is_zero_page| {
        is_told_from_zero = !is_zero_page;
    });
    // SAFETY: as mapped.
    let _ = unsafe { mapping::unmap(page, PAGE) };
    match scanned {
        Ok(()) if is_told_from_zero => Finding::pass(NAME, "zero pages are told from others"),
        Ok(()) => Finding::warn(NAME, "missing: going under pressure takes longer", FIX),
        Err(error) => Finding::fail(NAME, format!("/proc/self/pagemap: {error}"), FIX),
    }
}

fn io_uring() -> Finding {
    const NAME: &str = "io_uring";
    const FIX: &str =
        "sudo sysctl kernel.io_uring_disabled=0, and allow it in the container's seccomp profile";
    match Ring::new(2) {
        Ok(ring) if ring.is_uring() => Finding::pass(NAME, "many reads and writes at a time"),
        Ok(_) => Finding::pass(
            NAME,
            "not allowed here; the kernel's AIO has many reads and writes under way in its place",
        ),
        Err(_) => Finding::warn(
            NAME,
            "neither it nor the kernel's AIO is allowed here, so reads and writes go one by one",
            FIX,
        ),
    }
}

fn map_count() -> Finding {
    const NAME: &str = "map count";
    match number_in("/proc/sys/vm/max_map_count") {
        Some(count) if count < USUAL_MAP_COUNT => Finding::warn(
            NAME,
            format!("vm.max_map_count is {count}, less than is usual"),
            format!("sudo sysctl vm.max_map_count={USUAL_MAP_COUNT}"),
        ),
        Some(count) => Finding::pass(NAME, format!("vm.max_map_count is {count}")),
        None => Finding::pass(NAME, "the kernel does not tell vm.max_map_count"),
    }
}

fn memory(config: &Config) -> Finding {
    const NAME: &str = "memory";
    let machine = Machine::read();
    let budget = bytes(config.ram);
    let Some(limit) = machine.cgroup_limit_bytes else {
        let all = bytes(machine.memory_bytes);
        return Finding::pass(NAME, format!("{all}, no cgroup limit; budget {budget}"));
    };
    let shown = bytes(limit);
    if config.ram.saturating_add(PROGRAM_BYTES) <= limit {
        return Finding::pass(NAME, format!("cgroup limit {shown}; budget {budget}"));
    }
    Finding::warn(
        NAME,
        format!("a budget of {budget} fills the memory cgroup of {shown}"),
        format!("give a smaller --ram, or raise the limit by {}", bytes(PROGRAM_BYTES)),
    )
}
