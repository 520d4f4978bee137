//! Contender: a program of `threads` with all that its memory needs: cgroup, zram, swap file.
//!
//! Guarantees: dropping it ends the program; what was made for it is in the ledger. The program on
//! the kernel's swap has a memory cgroup of the RAM, less what zram's pool takes. deepheap keeps to
//! the RAM itself, and its cgroup only keeps it from being swapped.
//! Threads: the supervising one.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::pages::{Kind, PAGE};
use super::program::{Measured, On, Order, Setup, Touches};
use crate::backend::deepheap;
use crate::cgroup::{Cgroup, Swapping};
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::lender::Lender;
use crate::signals::{self, Watched};
use crate::swap_file::SwapFile;
use crate::zram::Zram;

/// How well the pages are expected to compress, before the pool says.
const FIRST_RATIO: f64 = 0.25;
/// Limit and pool may differ from the RAM by so much.
const OFF: f64 = 0.01;
const TRIES: u32 = 10;
/// Where data fits compressed, fewer touches than this read the device once all is settled.
const DEVICE_READS: f64 = 0.001;
const SETTLE_MAX: Duration = Duration::from_secs(60);
const SETTLE_THREADS: usize = 16;
/// The first seed of these touches; those that are measured have smaller ones.
const SETTLE_SEED: u64 = 1 << 32;
/// How often it is seen whether the program waits for memory, milliseconds.
const LOOK_EVERY_MS: i32 = 10;

/// A program and its memory.
pub struct Contender {
    pub on: On,
    setup: Setup,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    watched: Watched,
    cgroup: Cgroup,
    /// What the program took before it had any pages.
    own_bytes: u64,
    limit_bytes: u64,
    /// The program waits for a lender where others would be killed.
    is_spared: bool,
    zram: Option<Zram>,
    _swap: Option<SwapFile>,
}

impl Drop for Contender {
    fn drop(&mut self) {
        self.watched.kill();
        let _ = self.child.wait();
    }
}

impl Contender {
    /// Starts the program, has it fill its pages, and waits until they are where they stay.
    pub fn start(on: On, setup: &Setup, ledger: &mut Ledger) -> Result<Contender, Failure> {
        let data = setup.data_bytes;
        let zram = (on == On::Zram).then(|| Zram::create(ledger, data)).transpose()?;
        let swap = (on == On::Swap).then(|| SwapFile::create(ledger, &setup.dir, data, 0));
        let swap = swap.transpose()?;
        let cgroup = Cgroup::create(ledger)?;
        let failed = |error: std::io::Error| Failure::os("the program", &error);
        let mut command = command(on, setup)?;
        command.arg("threads-program").stdin(Stdio::piped()).stdout(Stdio::piped());
        cgroup.enclose(&mut command)?;
        signals::die_with_parent(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let watched = Watched::new(child.id())?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| Failure::Failed("no pipes".into()))?;
        let output = BufReader::new(output);
        let mut contender = Contender {
            on,
            setup: setup.clone(),
            child,
            input,
            output,
            watched,
            cgroup,
            own_bytes: 0,
            limit_bytes: 0,
            is_spared: false,
            zram,
            _swap: swap,
        };
        contender.answer::<()>()?;
        contender.own_bytes = contender.cgroup.usage_bytes()?;
        contender.limit_bytes = match on {
            On::Deepheap | On::Run => 2 * setup.ram_bytes,
            On::Swap => setup.ram_bytes,
            On::Zram => contender.left_by_pool(FIRST_RATIO)?,
        };
        let swapping = if on.is_kernels() { Swapping::Eager } else { Swapping::Off };
        contender.cgroup.limit(contender.limit_bytes + contender.own_bytes, swapping)?;
        contender.is_spared = on.is_kernels() && contender.cgroup.spare();
        contender.ask::<()>(&Order::Fill(on, setup.clone()))?;
        contender.settle()?;
        if on == On::Zram {
            contender.balance()?;
        }
        Ok(contender)
    }

    /// Touches pages.
    pub fn touch(&mut self, touches: Touches) -> Result<Measured, Failure> {
        let measured: Measured = self.ask(&Order::Touch(touches))?;
        let ram_bytes = self.cgroup.usage_bytes()?.saturating_sub(self.own_bytes) + self.pool();
        Ok(Measured { ram_bytes, ..measured })
    }

    /// Has the program compare every word of its pages.
    pub fn audit(&mut self) -> Result<(), Failure> {
        self.ask(&Order::Audit)
    }

    /// How zram shares the RAM with the program, in words.
    pub fn shares(&self) -> Option<String> {
        let zram = self.zram.as_ref()?;
        Some(format!(
            "zram: a cgroup of {} MiB and a pool of {} MiB, compressors {}.\n",
            self.limit_bytes >> 20,
            zram.pool_bytes() >> 20,
            zram.compressors(),
        ))
    }

    fn pool(&self) -> u64 {
        self.zram.as_ref().map_or(0, Zram::pool_bytes)
    }

    /// Touches until every page was touched twice, on average, and where the pages fit compressed,
    /// until the device is hardly read any more.
    fn settle(&mut self) -> Result<(), Failure> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(SETTLE_THREADS) as u32;
        let enough = 2 * self.setup.data_bytes / PAGE as u64;
        let reads_device = self.setup.kind == Kind::RandomPages && self.setup.idle_bytes == 0;
        let (started, mut touches, mut reads) = (Instant::now(), 0, 1.0);
        let mut order = Touches { threads, write_percent: 0, seconds: 1.0, seed: SETTLE_SEED };
        let is_settled =
            |touches, reads| touches >= enough && (reads_device || reads < DEVICE_READS);
        while !is_settled(touches, reads) && started.elapsed() < SETTLE_MAX {
            let measured = self.touch(order)?;
            order.seed += 1;
            touches += measured.touches;
            reads = measured.device_faults_per_touch;
        }
        eprintln!(
            "{}: {touches} touches in {:.0} s, at last {reads:.4} of them read the device",
            self.on.name(),
            started.elapsed().as_secs_f64(),
        );
        Ok(())
    }

    /// Finds the limit with which cgroup and pool are the RAM.
    fn balance(&mut self) -> Result<(), Failure> {
        let ram = self.setup.ram_bytes as f64;
        for _ in 0..TRIES {
            let taken = self.limit_bytes + self.pool();
            eprint!("{}", self.shares().unwrap_or_default());
            if (taken as f64 / ram - 1.0).abs() <= OFF {
                return Ok(());
            }
            let outside = self.setup.data_bytes.saturating_sub(self.limit_bytes).max(1);
            self.limit_bytes = self.left_by_pool(self.pool() as f64 / outside as f64)?;
            // The kernel gives up after a few rounds of reclaim.
            let set = |_| self.cgroup.set_limit(self.limit_bytes + self.own_bytes);
            if !(0..TRIES).any(set) {
                return Err(Failure::Failed("the limit of the cgroup cannot be set".into()));
            }
            self.settle()?;
        }
        Err(Failure::Failed("no limit was found with which cgroup and pool are the RAM".into()))
    }

    /// The limit that leaves room for the pool, if `ratio` of what is outside is its size.
    fn left_by_pool(&self, ratio: f64) -> Result<u64, Failure> {
        let (ram, data) = (self.setup.ram_bytes as f64, self.setup.data_bytes as f64);
        let left = (ram - ratio * data) / (1.0 - ratio);
        if ratio >= 1.0 || left < ram / 16.0 {
            return Err(Failure::Refused(format!(
                "--ram {}: too little for {} bytes in zram",
                self.setup.ram_bytes, self.setup.data_bytes
            )));
        }
        Ok(left as u64)
    }

    fn ask<T: DeserializeOwned>(&mut self, order: &Order) -> Result<T, Failure> {
        let failed = |error: serde_json::Error| Failure::Failed(error.to_string());
        let text = serde_json::to_string(order).map_err(failed)?;
        // A program that has ended gives no answer.
        let _ = writeln!(self.input, "{text}");
        self.answer()
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<T, Failure> {
        if self.is_spared {
            let limit_bytes = self.limit_bytes + self.own_bytes;
            let mut lender = Lender::new(&self.cgroup, limit_bytes);
            while !is_readable(self.output.get_ref()) {
                lender.look();
            }
            if lender.times() > 0 {
                eprintln!("{}: memory was lent {} times", self.on.name(), lender.times());
                self.cgroup.set_limit(limit_bytes);
            }
        }
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        signals::interrupted()?;
        read.map_err(|error| Failure::os("the program", &error))?;
        if line.is_empty() {
            let status = self.child.wait().map_err(|error| Failure::os("the program", &error))?;
            let (name, kills) = (self.on.name(), self.cgroup.oom_kills());
            return Err(Failure::Failed(format!(
                "the program on {name} ended: {status}, {kills} kills for memory in its cgroup"
            )));
        }
        serde_json::from_str(&line).map_err(|error| Failure::Failed(format!("{line}: {error}")))
    }
}

/// This program, where it is to run.
fn command(on: On, setup: &Setup) -> Result<Command, Failure> {
    if on != On::Run {
        let mut command = Command::new("/proc/self/exe");
        command.env_remove("DEEPHEAP_CONF").env_remove("DEEPHEAP_SHOW_STATS");
        return Ok(command);
    }
    let this = std::env::current_exe().map_err(|error| Failure::os("this program", &error))?;
    let path = this.with_file_name("deepheap");
    if !path.exists() {
        return Err(Failure::Refused(format!("{}: missing; `make build`", path.display())));
    }
    let mut command = Command::new(path);
    command.args(["run", "--"]).arg(this).env_remove("DEEPHEAP_SHOW_STATS");
    command.env("DEEPHEAP_CONF", deepheap::settings(setup.ram_bytes, &setup.dir, &setup.conf));
    Ok(command)
}

/// Whether a pipe has something, or has ended; waits for it a little.
fn is_readable(pipe: &ChildStdout) -> bool {
    let mut poll = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut poll, 1, LOOK_EVERY_MS) > 0 }
}
