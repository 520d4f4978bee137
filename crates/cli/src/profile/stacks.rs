//! Stacks: the functions of each sample, from its registers and the bytes of its stack.
//!
//! Guarantees: hostile bytes give wrong stacks, never a panic, nor more than `FRAMES_MAX`
//! functions.
//! Threads: pure, apart from reading the files of the program.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::rc::Rc;

use deepheap::internal::profile::{Head, Recorded, is_module};
use deepheap::internal::stats_report::{bytes, duration};
use deepheap::stats::FaultKind;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{FrameAddress, Unwinder};

use crate::profile::modules::{Files, Mapped};

/// Functions of a stack; those above are left out.
const FRAMES_MAX: usize = 1024;
/// How Python's names begin, in its file of functions that are made at run time.
const PYTHON: &str = "py::";
/// How the files of ours begin that give memory.
const OURS: &str = "libdeepheap";

/// What the weight of a sample is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Measure {
    /// Nanoseconds waited in faults.
    #[default]
    Waited,
    /// Bytes that were cold.
    Cold,
}

impl Measure {
    /// A weight, for people.
    pub fn shown(self, weight: u64) -> String {
        match self {
            Measure::Waited => duration(weight),
            Measure::Cold => bytes(weight),
        }
    }

    /// What all weights together are.
    pub fn title(self) -> &'static str {
        match self {
            Measure::Waited => "Time waited in faults",
            Measure::Cold => "Cold memory by what allocated it",
        }
    }
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Its name, or where it is.
    pub name: String,
    /// The file that it is in, without folders; empty if that is not known.
    pub file: String,
}

/// A sample.
pub struct Sample {
    /// Its process and thread.
    pub pid: u64,
    /// See `pid`.
    pub thread: u64,
    /// The kind of the fault.
    pub kind: Option<FaultKind>,
    /// What it stands for, in the measure of the stacks.
    pub weight: u64,
    /// Faults that it stands for.
    pub faults: u64,
    /// Of an allocation, bytes in RAM, compressed there, and on SSD.
    pub places: [u64; 3],
    /// Functions, by their places in `Stacks::functions`; the one that faulted or allocated is the
    /// last.
    pub frames: Vec<usize>,
}

/// All samples of a measure.
#[derive(Default)]
pub struct Stacks {
    /// What their weights are.
    pub measure: Measure,
    /// Functions that occur.
    pub functions: Vec<Function>,
    /// Samples, in the order in which they were taken.
    pub samples: Vec<Sample>,
    /// The processes, and what was executed in each.
    pub processes: BTreeMap<u64, String>,
    /// Samples that are missing.
    pub lost: u64,
    places: HashMap<Function, usize>,
}

impl Stacks {
    /// Unwinds and names them: those of faults, and those of allocations.
    pub fn of(recorded: &Recorded) -> [Stacks; 2] {
        let Recorded { samples, allocations, lost, allocations_lost, .. } = recorded;
        let mut images = images(recorded);
        [(Measure::Waited, samples, *lost), (Measure::Cold, allocations, *allocations_lost)]
            .map(|of| Stacks::of_measure(of, &mut images))
    }

    fn of_measure(
        (measure, samples, lost): (Measure, &Vec<(Head, Vec<u8>)>, u64),
        images: &mut HashMap<u64, Image>,
    ) -> Stacks {
        let mut stacks = Stacks { measure, lost, ..Stacks::default() };
        let mut made: HashMap<u64, Made> = HashMap::new();
        let mut names: HashMap<(u64, u64), usize> = HashMap::new();
        for (head, bytes) in samples {
            let Some(image) = images.get_mut(&head.image) else { continue };
            let made = made.entry(head.pid).or_insert_with(|| Made::read(head.pid));
            let addresses = unwind(image, made, head, bytes);
            let name = |&address: &u64| {
                let found = names.entry((head.pid, address));
                *found.or_insert_with(|| stacks.place(function(image, made, address)))
            };
            let mut frames: Vec<_> = addresses.iter().rev().map(name).collect();
            if measure == Measure::Cold {
                let is_ours = |at: &usize| stacks.functions[*at].file.starts_with(OURS);
                frames.truncate(frames.iter().rposition(|at| !is_ours(at)).map_or(1, |at| at + 1));
            }
            let [_, compressed, stored] = head.places;
            stacks.processes.entry(head.pid).or_insert_with(|| image.program());
            stacks.samples.push(Sample {
                pid: head.pid,
                thread: head.thread,
                kind: head.kind(),
                weight: match measure {
                    Measure::Waited => head.waited_ns,
                    Measure::Cold => compressed.saturating_add(stored),
                },
                faults: head.faults,
                places: head.places,
                frames,
            });
        }
        stacks
    }

    fn place(&mut self, function: Function) -> usize {
        let functions = &mut self.functions;
        *self.places.entry(function).or_insert_with_key(|function| {
            functions.push(function.clone());
            functions.len() - 1
        })
    }

    /// All that the samples stand for.
    pub fn weight(&self) -> u64 {
        self.samples.iter().map(|sample| sample.weight).sum()
    }

    /// The names of a stack, outermost first; the process before them if there are several.
    pub fn names(&self, sample: &Sample) -> impl Iterator<Item = String> {
        let name = self.processes.get(&sample.pid).filter(|_| self.processes.len() > 1);
        let process = name.map(|name| format!("{name} ({})", sample.pid));
        process.into_iter().chain(sample.frames.iter().map(|at| self.functions[*at].name.clone()))
    }
}

/// What processes have mapped that have the same modules.
struct Image {
    mapped: Vec<Mapped>,
    unwinder: UnwinderX86_64<Rc<[u8]>>,
    cache: CacheX86_64,
}

impl Image {
    fn at(&self, address: u64) -> Option<&Mapped> {
        self.mapped.iter().find(|mapped| mapped.range.contains(&address))
    }

    /// The name of the program: the file that is lowest, for the kernel maps it first.
    fn program(&self) -> String {
        self.mapped.first().map_or_else(String::new, |mapped| mapped.name.clone())
    }
}

fn images(recorded: &Recorded) -> HashMap<u64, Image> {
    let heads = recorded.samples.iter().chain(&recorded.allocations).map(|(head, _)| head);
    let pids: BTreeMap<u64, u64> = heads.map(|head| (head.image, head.pid)).collect();
    let mut files = Files::default();
    let mut images = HashMap::new();
    for (image, pid) in pids {
        let texts = recorded.modules.iter().filter(|(of, _)| *of == image);
        let lines = texts.flat_map(|(_, text)| text.lines()).filter(|line| is_module(line));
        let mut starts = BTreeSet::new();
        let mut mapped: Vec<Mapped> = lines.filter_map(|line| files.mapped(line, pid)).collect();
        mapped.retain(|mapped| starts.insert(mapped.range.start));
        mapped.sort_by_key(|mapped| mapped.range.start);
        let (mut unwinder, cache) = (UnwinderX86_64::new(), CacheX86_64::new());
        let modules = mapped.iter().filter_map(Mapped::module);
        modules.for_each(|module| unwinder.add_module(module));
        images.insert(image, Image { mapped, unwinder, cache });
    }
    images
}

/// Addresses of the functions, from the one that faulted outwards.
fn unwind(image: &mut Image, made: &Made, head: &Head, bytes: &[u8]) -> Vec<u64> {
    let mut read = |address: u64| {
        let at = address.checked_sub(head.sp).and_then(|at| usize::try_from(at).ok());
        let word = at.and_then(|at| bytes.get(at..at.checked_add(8)?)?.try_into().ok());
        word.map(u64::from_le_bytes).ok_or(())
    };
    let mut registers = UnwindRegsX86_64::new(head.ip, head.sp, head.bp);
    let mut frame = FrameAddress::from_instruction_pointer(head.ip);
    let mut addresses = Vec::new();
    while addresses.len() < FRAMES_MAX {
        let address = frame.address_for_lookup();
        addresses.push(address);
        let is_trampoline =
            frame.is_return_address() && made.at(address).is_some_and(|it| it.starts_with(PYTHON));
        let caller = match is_trampoline {
            true => leave_trampoline(&mut registers, &mut read),
            false => {
                let Image { unwinder, cache, .. } = image;
                unwinder.unwind_frame(frame, &mut registers, cache, &mut read).ok().flatten()
            }
        };
        let Some(caller) = caller.and_then(FrameAddress::from_return_address) else { break };
        frame = caller;
    }
    addresses
}

/// Python's trampolines have no tables. Each has eight bytes on the stack below its return address:
/// none of ours up to Python 3.12, and the caller's rbp, to which rbp points, later.
fn leave_trampoline(
    registers: &mut UnwindRegsX86_64,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<u64> {
    let sp = registers.sp();
    let caller = read(sp.checked_add(8)?).ok()?;
    if registers.bp() == sp {
        registers.set_bp(read(sp).ok()?);
    }
    registers.set_sp(sp.checked_add(16)?);
    registers.set_ip(caller);
    Some(caller)
}

fn function(image: &Image, made: &Made, address: u64) -> Function {
    if let Some(name) = made.at(address) {
        return python(name);
    }
    match image.at(address) {
        Some(mapped) => Function { name: mapped.function_at(address), file: mapped.name.clone() },
        None => Function { name: "[unknown]".to_owned(), file: String::new() },
    }
}

/// A name of a function that was made at run time: `py::NAME:FILE`, or any other.
fn python(name: &str) -> Function {
    let parts = name.strip_prefix(PYTHON).and_then(|rest| rest.split_once(':'));
    let (name, file) = parts.unwrap_or((name, ""));
    Function { name: name.to_owned(), file: file.rsplit('/').next().unwrap_or(file).to_owned() }
}

/// Functions that a process made at run time, as it wrote them down: /tmp/perf-PID.map.
struct Made(BTreeMap<u64, (u64, String)>);

impl Made {
    fn read(pid: u64) -> Made {
        let path = format!("/tmp/perf-{pid}.map");
        // Anybody may have put something else there, which has no end.
        let is_file = fs::metadata(&path).is_ok_and(|it| it.is_file());
        let text = is_file.then(|| fs::read(&path).ok()).flatten().unwrap_or_default();
        Made(String::from_utf8_lossy(&text).lines().filter_map(Made::line).collect())
    }

    fn line(line: &str) -> Option<(u64, (u64, String))> {
        let mut fields = line.splitn(3, ' ');
        let mut hex = || {
            let field = fields.next()?;
            u64::from_str_radix(field.strip_prefix("0x").unwrap_or(field), 16).ok()
        };
        let (start, length) = (hex()?, hex()?);
        Some((start, (start.saturating_add(length), fields.next()?.to_owned())))
    }

    fn at(&self, address: u64) -> Option<&str> {
        let (_, (end, name)) = self.0.range(..=address).next_back()?;
        (address < *end).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::symbols::tests::noise;

    #[test]
    fn functions_made_at_run_time_are_named_and_their_trampolines_left() {
        let lines = "7f00 20 py::spam:/srv/eggs.py\n0x8000 10 LazyCompile:~go\nnonsense\n";
        let made = Made(lines.lines().filter_map(Made::line).collect());
        assert_eq!(
            made.at(0x7f1f).map(python),
            Some(Function { name: "spam".to_owned(), file: "eggs.py".to_owned() })
        );
        assert_eq!(made.at(0x7f20), None);
        assert_eq!(made.at(0x8000), Some("LazyCompile:~go"));
        for (bp, expected_bp) in [(0x5000, 0x5000), (0x1000, 0x6000)] {
            let stack = [0x6000, 0x9000];
            let mut read = |at: u64| stack.get((at - 0x1000) as usize / 8).copied().ok_or(());
            let mut registers = UnwindRegsX86_64::new(0x7f08, 0x1000, bp);
            assert_eq!(leave_trampoline(&mut registers, &mut read), Some(0x9000));
            assert_eq!((registers.sp(), registers.bp()), (0x1010, expected_bp));
        }
    }

    #[test]
    fn hostile_stacks_end() {
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let code = hostile_stacks_end as *const () as u64;
        let mut next = noise();
        let mut samples = Vec::new();
        for _ in 0..200 {
            let near = |n: u64| code.wrapping_add(n % 65_536);
            let (ip, sp) = (near(next()), [0, u64::MAX - 8, next()][next() as usize % 3]);
            let mut head = Head::default();
            (head.image, head.ip, head.sp, head.bp) = (1, ip, sp, sp.wrapping_add(16));
            let words = (0..512).flat_map(|_| {
                match next() % 3 {
                    0 => near(next()),
                    1 => sp.wrapping_add(next() % 4096),
                    _ => next(),
                }
                .to_le_bytes()
            });
            samples.push((head, words.collect()));
        }
        let allocations = samples.clone();
        let modules = vec![(1, maps)];
        let recorded = Recorded { samples, allocations, modules, ..Recorded::default() };
        for stacks in Stacks::of(&recorded) {
            assert_eq!(stacks.samples.len(), 200);
            assert!(stacks.samples.iter().all(|it| (1..=FRAMES_MAX).contains(&it.frames.len())));
        }
    }
}
