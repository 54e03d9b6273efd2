//! Every form that is emulated, boosted or relocated, run by this processor and by our code from the same random states.
//!
//! Each code gets some thousand cases, spread over its forms; `TRAPLESS_SOAK=n` multiplies them by n.

use crate::emulation::{Saved, exit_of};
use crate::execution::{AWAY, ON, TAKEN};
use crate::files::{LIBRARIES, Library};
use crate::forms::{self, Forms};
use crate::processor::{self, BEYOND, DATA, FAULT, FLAGS, NEAR, ORIGINAL, Processor, REACH, Random, WINDOW};
use crate::steered::{self, Steered};
use crate::vectors;
use iced_x86::Code;
use std::collections::{BTreeMap, BTreeSet};
use trapless_isa::x86::{emulate, relocate};
use trapless_isa::{Displaced, EmulateError, Machine, Reason};

/// Of no form may this be the reason that it was not run.
const LEADS_OUT: &str = "it leads out of the windows";

/// Cases of each code and mode.
const CASES: u64 = 3000;

fn cases() -> u64 {
    CASES * std::env::var("TRAPLESS_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

fn machine(bits: u32) -> Machine {
    if bits == 64 { Machine::X86_64 } else { Machine::I386 }
}

pub fn is_emulated(bits: u32, bytes: &[u8]) -> bool {
    // A thread whose memory cannot be accessed.
    let mut nothing = Saved { registers: [0; 16], flags: 0, ip: 0, memory: [0; 2 * WINDOW], fs: None };
    !matches!(emulate(bits, bytes, ORIGINAL, &mut nothing), Err(EmulateError::Refused(_)))
}

pub fn is_relocated(bits: u32, bytes: &[u8]) -> bool {
    matches!(relocate(bits, &alone(bytes), bytes, NEAR), Ok(_) | Err(Reason::OutOfReach))
}

fn alone(bytes: &[u8]) -> Displaced {
    Displaced { start: ORIGINAL, length: bytes.len() as u8, instructions: 1 }
}

/// The forms that are `accepted`, of the opcode maps and of the libraries.
fn gather(bits: u32, accepted: &dyn Fn(u32, &[u8]) -> bool) -> Forms {
    let mut forms = Forms::new();
    forms::in_opcode_maps(&mut forms, bits, accepted);
    for (_, paths) in LIBRARIES {
        let Some(library) = Library::open(paths) else { continue };
        if library.machine == machine(bits) {
            forms::in_library(&mut forms, &library, bits, accepted);
        }
    }
    forms
}

/// What was run, and what was not.
#[derive(Default)]
struct Tally {
    cases: u64,
    faults: u64,
    forms: usize,
    not_run: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Tally {
    fn print(&self, bits: u32, what: &str, codes: usize) {
        println!(
            "{bits} bits: {} cases of {} {what} forms of {codes} codes, {} of them faults",
            self.cases, self.forms, self.faults
        );
        for (why, names) in &self.not_run {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            println!("    not run, {why}: {}", names.join(" "));
        }
    }
}

/// Calls `run` with each form's encodings and how many cases each is to run, spread over the code's forms.
fn for_each_form(
    processor: &Processor,
    bits: u32,
    what: &str,
    forms: &Forms,
    cases: u64,
    mut run: impl FnMut(&Steered, u64, &mut Tally) -> bool,
) -> Tally {
    let mut forms_of: BTreeMap<Code, u64> = BTreeMap::new();
    for (code, _) in forms.keys() {
        *forms_of.entry(*code).or_default() += 1;
    }
    let mut tally = Tally::default();
    for ((code, _), found) in forms {
        let share = cases / forms_of[code] / found.encodings.len() as u64 + 1;
        let mut ran = false;
        let mut why = LEADS_OUT;
        for bytes in &found.encodings {
            match Steered::new(processor, bits, bytes) {
                Ok(steered) => ran |= run(&steered, share, &mut tally),
                Err(reason) => why = reason,
            }
        }
        if ran {
            tally.forms += 1;
        } else {
            tally.not_run.entry(why).or_default().insert(format!("{code:?}"));
            if why == LEADS_OUT {
                panic!("{code:?} {:02x?}: no state found from which it can run", found.encodings[0]);
            }
        }
    }
    tally.print(bits, what, forms_of.len());
    tally
}

#[test]
fn every_form_that_is_emulated_does_what_the_processor_does() {
    for bits in [64, 32] {
        prove_emulated(bits, &gather(bits, &is_emulated), cases());
    }
}

/// Runs forms that are emulated, each code `cases` times. None may be left out.
pub fn prove_emulated(bits: u32, forms: &Forms, cases: u64) {
    let processor = Processor::new(bits);
    let mut random = Random(u64::from(bits) + 4);
    let tally = for_each_form(&processor, bits, "emulated", forms, cases, |steered, share, tally| {
        prove_emulation(&processor, steered, share, &mut random, tally)
    });
    let left: Vec<_> = tally.not_run.keys().filter(|why| **why != steered::NO_SEGMENT).collect();
    assert!(left.is_empty(), "emulated, and never run: {left:?}");
}

fn prove_emulation(
    processor: &Processor,
    steered: &Steered,
    share: u64,
    random: &mut Random,
    tally: &mut Tally,
) -> bool {
    let bytes = &steered.bytes;
    let end = ORIGINAL + bytes.len() as u64;
    processor.set_vectors(None);
    processor.write(ORIGINAL, bytes);
    processor.write_exit(end, ON);
    processor.write_exit(TAKEN, AWAY);
    let mut ran = false;
    for _ in 0..share {
        let mut memory = [0; 2 * WINDOW];
        let Some(state) = steered.state(random, &mut memory) else { continue };
        let mut saved = Saved {
            registers: state.registers,
            flags: state.flags & FLAGS,
            ip: ORIGINAL,
            memory,
            fs: Some(DATA),
        };
        let expected = processor.run(ORIGINAL, &state, &mut memory);
        let name = || format!("{} {:02x?} from {state:x?}", steered.instruction, bytes);
        assert_eq!(emulate(steered.bits, bytes, ORIGINAL, &mut saved), Ok(()), "{}", name());
        let exit = exit_of(saved.ip, end);
        let found = processor::State { registers: saved.registers, flags: saved.flags, exit, fault: 0 };
        assert_eq!(expected, found, "{}", name());
        assert!(memory == saved.memory, "{}: memory differs", name());
        tally.cases += 1;
        ran = true;
    }
    ran
}

#[test]
fn every_form_that_is_relocated_or_boosted_does_what_the_original_does() {
    for bits in [64, 32] {
        prove_relocated(bits, &gather(bits, &is_relocated), cases());
    }
}

/// Runs forms that are relocated, each code `cases` times, over all places and kinds of copies.
pub fn prove_relocated(bits: u32, forms: &Forms, cases: u64) {
    let processor = Processor::new(bits);
    let mut random = Random(u64::from(bits) + 5);
    let mut boosted = 0;
    for_each_form(&processor, bits, "relocated", forms, cases, |steered, share, tally| {
        prove_relocation(&processor, steered, share, &mut random, tally, &mut boosted)
    });
    println!("{bits} bits: {boosted} of these cases in boosted slots");
}

/// The code that runs in place of the instruction, and where: the copy, before an exit, and the boosted slot (`true`).
pub fn copies(bits: u32, bytes: &[u8]) -> Vec<(u64, Vec<u8>, bool)> {
    let displaced = alone(bytes);
    let destinations = if bits == 64 { &[NEAR, REACH, BEYOND][..] } else { &[NEAR, REACH] };
    let mut copies = Vec::new();
    for &destination in destinations {
        match relocate(bits, &displaced, bytes, destination) {
            Ok(relocated) => copies.push((destination, relocated.code, false)),
            Err(reason) => assert_eq!(reason, Reason::OutOfReach, "{bytes:02x?}"),
        }
        match machine(bits).isa().slot(&displaced, bytes, destination, true) {
            Ok(slot) => copies.push((destination, slot.code, true)),
            Err(Reason::OutOfReach | Reason::NotBoosted(_)) => {}
            Err(reason) => panic!("{bytes:02x?}: {reason}"),
        }
    }
    copies
}

fn prove_relocation(
    processor: &Processor,
    steered: &Steered,
    share: u64,
    random: &mut Random,
    tally: &mut Tally,
    boosted: &mut u64,
) -> bool {
    let (bits, bytes) = (steered.bits, &steered.bytes);
    processor.write(ORIGINAL, bytes);
    processor.write_exit(ORIGINAL + bytes.len() as u64, ON);
    processor.write_exit(TAKEN, AWAY);
    let copies = copies(bits, bytes);
    let mut ran = false;
    let area = steered.has_vectors().then(|| vectors::random(random));
    processor.set_vectors(area.as_deref());
    for (destination, code, slot) in &copies {
        processor.write(*destination, code);
        if !slot {
            processor.write_exit(destination + code.len() as u64, ON);
        }
        for _ in 0..share.div_ceil(copies.len() as u64) {
            let mut memory = [0; 2 * WINDOW];
            let Some(state) = steered.state(random, &mut memory) else { continue };
            let mut copied_memory = memory;
            let expected = processor.run(ORIGINAL, &state, &mut memory);
            let vectors = processor.vectors();
            let mut found = processor.run(*destination, &state, &mut copied_memory);
            let name = || format!("{} {bytes:02x?} at {destination:#x} from {state:x?}", steered.instruction);
            if found.exit >= FAULT {
                found.fault = found.fault - destination + ORIGINAL;
                tally.faults += 1;
            }
            assert_eq!(expected, found, "{}", name());
            assert!(memory == copied_memory, "{}: memory differs", name());
            assert!(vectors == processor.vectors(), "{}: vector or x87 state differs", name());
            tally.cases += 1;
            *boosted += u64::from(*slot);
            ran = true;
        }
    }
    ran
}
