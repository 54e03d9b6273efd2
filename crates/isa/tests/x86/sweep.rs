//! Every instruction of real programs and libraries: verdict, relocation near and as far as a patch reaches, slots, and
//! whether the copies mean the same; of every form that is found, some are run. Where an instruction says the same wherever it stands, it is looked
//! at once for each file.
//!
//! A sample of the programs of this machine is swept; all of them with `TRAPLESS_SWEEP=1`, which takes minutes.

use crate::files::{LIBRARIES, Library};
use crate::forms::{self, Forms};
use crate::fuzz::Thread;
use crate::libraries::bits;
use crate::proof::{is_emulated, is_relocated, prove_emulated, prove_relocated};
use crate::same::assert_same;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use trapless_isa::x86::{emulate, relocate};
use trapless_isa::{BranchTargets, Displaced, Machine, Reason, Site};

/// Cases that are run of each code.
const CASES: u64 = 200;

/// What was looked at, and what was found.
#[derive(Default)]
struct Counts {
    files: usize,
    instructions: usize,
    /// Those of them that were looked at before, elsewhere.
    repeated: usize,
    entries: usize,
    /// Copies, within 1 GB and at the end of reach; operands that were out of reach.
    near: usize,
    far: usize,
    out_of_reach: usize,
    boosted: usize,
    emulated: usize,
    /// Instructions that cannot be moved, by reason.
    refused: BTreeMap<String, usize>,
    problems: Vec<String>,
    /// Forms that can be moved, by bits.
    forms: BTreeMap<u32, Forms>,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        for (sum, part) in [
            (&mut self.files, other.files),
            (&mut self.instructions, other.instructions),
            (&mut self.repeated, other.repeated),
            (&mut self.entries, other.entries),
            (&mut self.near, other.near),
            (&mut self.far, other.far),
            (&mut self.out_of_reach, other.out_of_reach),
            (&mut self.boosted, other.boosted),
            (&mut self.emulated, other.emulated),
        ] {
            *sum += part;
        }
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
        self.problems.extend(other.problems);
        for (bits, forms) in other.forms {
            forms::merge(self.forms.entry(bits).or_default(), forms);
        }
    }

    fn refuse(&mut self, reason: Reason) {
        let reason = match reason {
            Reason::BranchInto(_) => "a branch into itself".to_owned(),
            reason => reason.to_string(),
        };
        *self.refused.entry(reason).or_default() += 1;
    }
}

/// 1 GB away, and as far as the patch can branch, both ways.
fn destinations(machine: Machine, displaced: &Displaced) -> [u64; 4] {
    let reach = machine.isa().facts().reach.min((1 << 31) - 9);
    let wrap = |a: u64| if machine == Machine::I386 { a & 0xffff_ffff } else { a };
    [1 << 30, reach, (1u64 << 30).wrapping_neg(), reach.wrapping_neg()]
        .map(|distance| wrap(displaced.start.wrapping_add(distance)))
}

/// Relocates to every destination and compares.
fn relocated(machine: Machine, name: &str, displaced: &Displaced, original: &[u8], counts: &mut Counts) {
    let bits = bits(machine);
    for (i, destination) in destinations(machine, displaced).into_iter().enumerate() {
        match relocate(bits, displaced, original, destination) {
            Ok(relocated) => {
                assert_same(bits, displaced, original, destination, &relocated, name);
                *(if i % 2 == 0 { &mut counts.near } else { &mut counts.far }) += 1;
            }
            Err(Reason::OutOfReach) => {
                assert!(is_out_of_reach(bits, displaced, original, destination), "{name}");
                counts.out_of_reach += 1;
            }
            Err(reason) => panic!("{name} at {:x} to {destination:x}: {reason}", displaced.start),
        }
    }
}

/// Whether an operand really is further from where its copy would be than 31 bits say.
fn is_out_of_reach(bits: u32, displaced: &Displaced, original: &[u8], destination: u64) -> bool {
    Decoder::with_ip(bits, original, displaced.start, DecoderOptions::NONE).iter().any(|instruction| {
        let operand = match instruction.mnemonic() {
            Mnemonic::Xbegin => instruction.near_branch_target(),
            _ if instruction.is_ip_rel_memory_operand() => instruction.ip_rel_memory_address(),
            _ => return false,
        };
        // The copy's end is at most the relocated length behind its start.
        (operand.wrapping_sub(destination) as i64).unsigned_abs() > (1 << 31) - 64
    })
}

/// A boosted slot is the copy that relocation makes, and a jump to the next instruction.
fn boosted(machine: Machine, displaced: &Displaced, original: &[u8]) {
    let beyond = displaced.start ^ 1 << 45;
    for destination in destinations(machine, displaced).into_iter().chain([beyond]) {
        let slot = match machine.isa().slot(displaced, original, destination, true) {
            Ok(slot) => slot,
            // A branch whose target is too far for one instruction.
            Err(Reason::NotBoosted(_)) if machine == Machine::X86_64 => continue,
            Err(reason) => {
                assert_eq!(reason, Reason::OutOfReach);
                assert!(is_out_of_reach(64, displaced, original, destination));
                continue;
            }
        };
        let (copy, rest) = slot.code.split_at(slot.copy as usize);
        assert_eq!(copy, relocate(bits(machine), displaced, original, destination).unwrap().code);
        let behind = destination.wrapping_add(slot.copy.into());
        let jump = Decoder::with_ip(bits(machine), rest, behind, DecoderOptions::NONE).decode();
        let target = if jump.is_jmp_near() {
            jump.near_branch_target()
        } else {
            assert_eq!(jump.ip_rel_memory_address(), jump.next_ip());
            u64::from_le_bytes(rest[jump.len()..].try_into().unwrap())
        };
        assert_eq!(target, displaced.end());
    }
}

/// Whether what an instruction says depends on where it stands.
fn is_relative(bits: u32, code: &[u8]) -> bool {
    let instruction = Decoder::with_ip(bits, code, 0, DecoderOptions::NONE).decode();
    instruction.is_ip_rel_memory_operand() || instruction.flow_control() != FlowControl::Next
}

/// One instruction by itself. Its length. `seen`: those that say the same wherever they stand.
fn instruction<'c>(
    machine: Machine,
    name: &str,
    (code, address): (&'c [u8], u64),
    seen: &mut HashSet<&'c [u8]>,
    counts: &mut Counts,
) -> usize {
    let isa = machine.isa();
    let Ok(instruction) = isa.decode(code, address) else { return 1 };
    let length = usize::from(instruction.length);
    if seen.contains(&code[..length]) {
        counts.instructions += 1;
        counts.repeated += 1;
        return length;
    }
    let targets = BranchTargets::default();
    let alone = Site::new(address, code, &targets);
    let ladder = isa.verdict(&alone);
    counts.instructions += 1;
    let step = match ladder.step {
        // Behind an endbr, which is no instruction of its own for a probe.
        Ok(displaced) if displaced.start != address => return length,
        Ok(displaced) => {
            relocated(machine, name, &displaced, &code[..length], counts);
            Ok(displaced)
        }
        Err(reason) => {
            counts.refuse(reason);
            Err(reason)
        }
    };
    match ladder.boost {
        Ok(displaced) => {
            assert_eq!(Ok(displaced), step);
            boosted(machine, &displaced, &code[..length]);
            counts.boosted += 1;
        }
        Err(Reason::NotBoosted(_)) => assert!(step.is_ok()),
        Err(reason) => assert_eq!(step, Err(reason)),
    }
    // What memory and fs hold is no matter.
    let mut thread = Thread::default();
    let emulated = emulate(bits(machine), code, address, &mut thread);
    assert_eq!(emulated.is_ok(), ladder.emulate.is_ok_and(|d| d.start == address), "{emulated:?}");
    if emulated.is_ok() {
        // A branch into its own bytes: where it stands a trap leaves those behind the first.
        assert!(matches!(step, Ok(_) | Err(Reason::BranchInto(_))) && thread.ip.is_some());
        counts.emulated += 1;
    }
    // Not if anything was wrong with it: each place of that is told.
    if !is_relative(bits(machine), code) {
        seen.insert(&code[..length]);
    }
    length
}

/// Every instruction of a file, and the displaced instructions of every function's entry.
fn sweep(library: &Library, path: &str) -> Counts {
    let machine = library.machine;
    let mut counts = Counts { files: 1, ..Counts::default() };
    let forms = counts.forms.entry(bits(machine)).or_default();
    forms::in_library(forms, library, bits(machine), &is_relocated);
    let mut seen = HashSet::new();
    for section in &library.text {
        let mut offset = 0;
        while offset < section.bytes.len() {
            let code = &section.bytes[offset..section.bytes.len().min(offset + 16)];
            let address = section.address + offset as u64;
            let swept = catch_unwind(AssertUnwindSafe(|| {
                instruction(machine, path, (code, address), &mut seen, &mut counts)
            }));
            offset += swept.unwrap_or_else(|_| {
                counts.problems.push(format!("{path} at {address:#x}: {code:02x?}"));
                1
            });
        }
    }
    library.each(|name, site| {
        let swept = catch_unwind(AssertUnwindSafe(|| {
            let _ = machine.isa().return_verdict(site);
            let Ok(displaced) = machine.isa().verdict(site).jump else { return };
            let offset = (displaced.start - site.function) as usize;
            let mut original = [site.code, site.padding].concat().split_off(offset);
            original.truncate(displaced.length.into());
            relocated(machine, name, &displaced, &original, &mut counts);
            counts.entries += 1;
        }));
        if swept.is_err() {
            counts.problems.push(format!("{path}: the entry of {name}, {:#x}", site.address));
        }
    });
    counts
}

/// The libraries and programs to look at, each file once. Of the programs every sixteenth, unless all are asked for.
fn files() -> Vec<PathBuf> {
    let all = std::env::var_os("TRAPLESS_SWEEP").is_some();
    let mut programs: Vec<PathBuf> = ["/usr/bin", "/usr/sbin"]
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flat_map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())))
        .collect();
    programs.sort();
    let libraries = LIBRARIES.iter().flat_map(|(_, paths)| paths.iter().map(PathBuf::from));
    let sample = programs.into_iter().step_by(if all { 1 } else { 16 });
    let mut known = BTreeSet::new();
    libraries
        .chain(sample)
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .filter(|path| path.is_file() && known.insert(path.clone()))
        .collect()
}

#[test]
fn every_instruction_of_the_programs_here_is_moved_or_refused_with_a_reason() {
    let (files, next, sum) = (files(), AtomicUsize::new(0), Mutex::new(Counts::default()));
    let worker = || {
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(library) = std::fs::read(path).ok().and_then(|bytes| Library::parse(&bytes)) else {
                continue;
            };
            let counts = sweep(&library, &path.to_string_lossy());
            sum.lock().unwrap().add(counts);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    let counts = sum.into_inner().unwrap();
    println!(
        "{} files, {} instructions, of which {} are repeated and not looked at again, and {} entries; of all others: {} copies \
         within 1 GB, {} at the end of reach, {} operands out of reach; {} instructions can be boosted, {} emulated",
        counts.files,
        counts.instructions,
        counts.repeated,
        counts.entries,
        counts.near,
        counts.far,
        counts.out_of_reach,
        counts.boosted,
        counts.emulated
    );
    for (reason, count) in &counts.refused {
        println!("    {count:8} {reason}");
    }
    assert!(counts.problems.is_empty(), "{:#?}", counts.problems);
    for (bits, mut forms) in counts.forms {
        prove_relocated(bits, &forms, CASES);
        for found in forms.values_mut() {
            found.encodings.retain(|bytes| is_emulated(bits, bytes));
        }
        forms.retain(|_, found| !found.encodings.is_empty());
        prove_emulated(bits, &forms, CASES);
    }
}
