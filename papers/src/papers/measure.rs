//! Measure: how one point is measured once, whatever program it is of.
//!
//! Guarantees: when it returns, whichever way, programs, cgroup, swap file and socket are gone.
//! Never: measures less than what the settings say.
//! Threads: one, and those of `launch`.

use std::path::Path;
use std::process::Command;

use clap::Parser;
use serde_json::Value;

use super::enclosure::{Enclosure, must_be_there};
use super::experiments::{Contender, Program};
use super::launch::Running;
use super::numbers::Numbers;
use super::point::{Outcome, Point};
use super::settings::Settings;
use deepheap_bench::failure::Failure;
use deepheap_bench::ledger::{Entry, Ledger};
use deepheap_bench::raw_reads::{self, RawReads};
use deepheap_bench::supervisor;
use deepheap_bench::workload::Workload;

/// Threads of memcached: no connection waits for another's page.
const SERVER_THREADS: &str = "8";

#[derive(Debug, Parser)]
struct WorkloadLine {
    #[command(flatten)]
    workload: Workload,
}

#[derive(Debug, Parser)]
struct ReadsLine {
    #[command(flatten)]
    reads: RawReads,
}

impl Point {
    /// Measures once. `peak_bytes` is what the object variant used, if that is known.
    pub fn measure(
        &self,
        settings: &Settings,
        peak_bytes: Option<u64>,
    ) -> Result<Outcome, Failure> {
        match self.program {
            Program::App(name) => self.application(settings, name, peak_bytes),
            Program::Memcached => self.served(settings, peak_bytes),
            Program::Memory => self.memory(settings),
            Program::Overheads => overheads(settings),
            Program::Device => self.device(settings),
        }
    }

    /// A program of target/apps with the options that all of them have.
    fn app(&self, settings: &Settings, name: &str) -> Command {
        let mut command = Command::new(settings.apps.join(name));
        command.args(["--memory", self.memory_word()]).arg("--json");
        command.args(["--data", &settings.data_bytes.to_string()]);
        command.args(["--seconds", &settings.seconds.to_string()]);
        command.arg("--dir").arg(&settings.dir);
        if let Some(operations) = self.warm_up(settings) {
            command.args(["--warm-up", &operations.to_string()]);
        }
        if self.contender == Contender::Calls {
            command.arg("--calls");
        }
        for (name, value) in &self.options {
            command.arg(format!("--{name}")).arg(value);
        }
        let (ram, store) = (self.ram_bytes(settings), in_conf(&settings.dir));
        let more = if self.contender == Contender::MicroPages { ",micro_pages:yes" } else { "" };
        command.env("DEEPHEAP_CONF", format!("ram:{ram},store:{store}{more}"));
        command.env_remove("DEEPHEAP_SHOW_STATS").env_remove("LD_PRELOAD");
        command.current_dir(&settings.dir);
        command
    }

    fn memory_word(&self) -> &'static str {
        match self.contender {
            Contender::Objects | Contender::MicroPages | Contender::Calls => "objects",
            Contender::Pages => "pages",
            Contender::Swap => "malloc",
            Contender::Mmap | Contender::Bare => "file",
        }
    }

    fn application(
        &self,
        settings: &Settings,
        name: &str,
        peak_bytes: Option<u64>,
    ) -> Result<Outcome, Failure> {
        let mut command = self.app(settings, name);
        must_be_there(Path::new(command.get_program()))?;
        let mut ledger = Ledger::open()?;
        let enclosure = Enclosure::new(self, settings, &mut ledger, peak_bytes)?;
        enclosure.enclose(&mut command)?;
        enclosure.outcome(Running::start(&mut command)?, settings.limit())
    }

    /// A server in the enclosure, the loader outside of it.
    fn served(&self, settings: &Settings, peak_bytes: Option<u64>) -> Result<Outcome, Failure> {
        let mut loader = self.app(settings, "memcached_load");
        must_be_there(Path::new(loader.get_program()))?;
        let mut ledger = Ledger::open()?;
        let socket = std::env::temp_dir().join(Ledger::name("memcached.sock"));
        ledger.note(Entry::File(socket.clone()))?;
        let enclosure = Enclosure::new(self, settings, &mut ledger, peak_bytes)?;

        let mut command = Command::new(&settings.memcached);
        command.arg(self.memory_word()).arg("-s").arg(&socket).args(["-t", SERVER_THREADS]);
        // Enough that it never evicts an item by itself.
        command.args(["-m", &((settings.data_bytes >> 20) * 2).to_string(), "-c", "64"]);
        // No thread goes through all items in the background, and no growing hash table either.
        let power = self.hash_power(settings)?;
        command.args(["-o", &format!("no_lru_crawler,no_lru_maintainer,hashpower={power}")]);
        command.env("MEMCACHED_RAM", self.ram_bytes(settings).to_string());
        command.env("MEMCACHED_STORE", &settings.dir).env("MEMCACHED_SOCKET", &socket);
        command.env("OUT", settings.apps.join("memcached"));
        if let Some(folder) = settings.deepheap.parent() {
            command.env("DEEPHEAP", folder);
        }
        command.env_remove("DEEPHEAP_CONF").env_remove("LD_PRELOAD");
        enclosure.enclose(&mut command)?;
        let mut server = Running::start(&mut command)?;
        server.listens_on(&socket)?;

        loader.env("MEMCACHED_SOCKET", &socket);
        let outcome = enclosure.outcome(Running::start(&mut loader)?, settings.limit());
        drop(server);
        outcome
    }

    /// The logarithm of the buckets of memcached's hash table: it grows from three items in two
    /// buckets on.
    fn hash_power(&self, settings: &Settings) -> Result<u32, Failure> {
        let size = self.object_size();
        let size = size.ok_or_else(|| Failure::Failed("memcached: no --object".into()))?;
        let items = settings.data_bytes / size.mean_bytes();
        Ok((items * 2 / 3 + 1).next_power_of_two().ilog2().max(16))
    }

    fn memory(&self, settings: &Settings) -> Result<Outcome, Failure> {
        let on = match self.contender {
            Contender::Swap => ["swap", "array"],
            Contender::Mmap => ["mmap", "array"],
            Contender::Pages => ["deepheap", "array"],
            _ => ["deepheap", "object-array"],
        };
        let mut line = vec!["run".to_string()];
        let mut put = |name: &str, value: String| line.extend([format!("--{name}"), value]);
        put("on", on[0].into());
        put("allocate", on[1].into());
        if on[1] == "object-array" {
            // The same objects in the same places, sooner.
            put("fill", "scatter".into());
        }
        put("data", settings.data_bytes.to_string());
        put("ram", self.ram_bytes(settings).to_string());
        put("seconds", settings.seconds.to_string());
        put("dir", settings.dir.display().to_string());
        if let Some(operations) = self.warm_up(settings) {
            put("warm-up", operations.to_string());
        }
        self.options.iter().for_each(|(name, value)| put(name, value.clone()));
        if self.contender == Contender::Calls {
            line.push("--calls".into());
        }
        let WorkloadLine { workload } = parse(&line)?;
        let report = serde_json::to_value(supervisor::run(&workload)?)
            .map_err(|error| Failure::Failed(error.to_string()))?;
        let limit_bytes = report.pointer("/memory_cgroup/limit_bytes").and_then(Value::as_u64);
        Ok(Outcome { numbers: Numbers::of_memory(&report), limit_bytes })
    }

    fn device(&self, settings: &Settings) -> Result<Outcome, Failure> {
        let mut line = vec!["device".to_string()];
        let mut put = |name: &str, value: String| line.extend([format!("--{name}"), value]);
        put("data", settings.data_bytes.to_string());
        put("seconds", settings.seconds.to_string());
        put("dir", settings.dir.display().to_string());
        self.options.iter().for_each(|(name, value)| put(name, value.clone()));
        let ReadsLine { reads } = parse(&line)?;
        let report = serde_json::to_value(raw_reads::measure(&reads)?)
            .map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(Outcome { numbers: Numbers::of_memory(&report), limit_bytes: None })
    }
}

fn overheads(settings: &Settings) -> Result<Outcome, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::os("own path", &error))?;
    let mut command = Command::new(own);
    command.args(["overheads", "--json", "--dir"]).arg(&settings.dir);
    command.args(["--seconds", &settings.seconds.to_string()]);
    let line = Running::start(&mut command)?.wait(settings.limit())?.success()?;
    let report: Value = serde_json::from_str(line.trim())
        .map_err(|error| Failure::Failed(format!("no line of JSON: {error}")))?;
    Ok(Outcome { numbers: Numbers::of_anything(&report), limit_bytes: None })
}

fn parse<T: Parser>(line: &[String]) -> Result<T, Failure> {
    T::try_parse_from(line).map_err(|error| Failure::Failed(error.to_string()))
}

/// A path as DEEPHEAP_CONF takes it.
fn in_conf(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
mod tests {
    use super::super::experiments;
    use super::*;

    #[test]
    fn the_hash_table_of_memcached_need_not_grow() {
        for (size, power) in [("512", 20), ("4-4K", 18), ("128-512", 21)] {
            let options = vec![("object".to_string(), size.to_string())];
            let (program, contender) = (Program::Memcached, Contender::Swap);
            let point = Point { program, contender, options, ram_part: 16 };
            let reached = point.hash_power(&Settings::example());
            assert_eq!(reached.ok(), Some(power), "{size}");
        }
    }

    #[test]
    fn every_memory_point_is_a_workload() {
        let points = experiments::all().flat_map(|e| e.cases.iter());
        for case in points.filter(|case| case.program == Program::Memory) {
            let mut line = vec!["run".to_string(), "--on".into(), "swap".into()];
            for (name, value) in case.options {
                line.extend([format!("--{name}"), value.to_string()]);
            }
            let parsed: Result<WorkloadLine, Failure> = parse(&line);
            assert!(parsed.is_ok_and(|line| line.workload.check().is_ok()), "{case:?}");
        }
    }
}
