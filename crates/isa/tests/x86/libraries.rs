//! Every function of several real libraries: verdicts, return probes, liveness.

use crate::files::{LIBRARIES, Library};
use std::collections::BTreeMap;
use trapless_isa::x86::liveness;
use trapless_isa::{Machine, Reason};

pub fn bits(machine: Machine) -> u32 {
    if machine == Machine::X86_64 { 64 } else { 32 }
}

fn percent(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

/// Names by reason.
#[derive(Default)]
struct Refused(BTreeMap<String, Vec<String>>);

impl Refused {
    fn add(&mut self, reason: Reason, name: &str) {
        let reason = format!("{reason:?}");
        let kind = reason.split(['(', ' ']).next().unwrap_or_default();
        let kind = if kind == "BranchInto" { kind } else { &reason };
        self.0.entry(kind.to_owned()).or_default().push(name.to_owned());
    }

    fn print(&self) {
        for (reason, names) in &self.0 {
            println!("    {:6} {reason}: {}", names.len(), names[..names.len().min(16)].join(" "));
        }
    }
}

#[test]
fn nearly_every_function_can_have_a_jump() {
    for (name, paths) in LIBRARIES {
        let Some(library) = Library::open(paths) else { continue };
        // With a symbol, and without: among the latter are `.cold` parts, which are no functions.
        let (mut all, mut jumps, mut refused) = ([0, 0], [0, 0], Refused::default());
        library.each(|name, site| {
            let unnamed = usize::from(name.starts_with("sub_"));
            all[unnamed] += 1;
            match library.machine.isa().verdict(site).jump {
                Ok(_) => jumps[unnamed] += 1,
                Err(reason) => refused.add(reason, name),
            }
        });
        for (i, kind) in ["functions", "parts without a symbol"].into_iter().enumerate() {
            println!("{name}: jump at {} of {} {kind}, {:.2} %", jumps[i], all[i], percent(jumps[i], all[i]));
        }
        refused.print();
        assert!(percent(jumps[0], all[0]) >= 98.0, "{name}");
        assert!(percent(jumps[1], all[1].max(1)) >= 97.0 || all[1] == 0, "{name}");
    }
}

#[test]
fn functions_that_look_at_their_return_address_carry_no_return_probe() {
    let must_be_refused: &[(&str, &[&str])] = &[
        (
            "libc",
            &[
                "__sigsetjmp",
                "getcontext",
                "setcontext",
                "swapcontext",
                "vfork",
                "dlsym",
                "dlopen",
                "dlvsym",
                "mcount",
                "__fentry__",
            ],
        ),
        (
            "libc 32",
            &[
                "__sigsetjmp",
                "setjmp",
                "getcontext",
                "setcontext",
                "swapcontext",
                "__vfork",
                "dlsym",
                "dlopen",
            ],
        ),
    ];
    for (name, paths) in LIBRARIES {
        let Some(library) = Library::open(paths) else { continue };
        let (mut all, mut refused) = (0, Refused::default());
        library.each(|name, site| {
            // A part without a symbol may be a `.cold` part, which is no function and has no return address.
            if name.starts_with("sub_") {
                return;
            }
            all += 1;
            if let Err(reason) = library.machine.isa().return_verdict(site) {
                refused.add(reason, name);
            }
        });
        let names: Vec<&String> = refused.0.values().flatten().collect();
        println!(
            "{name}: no return probe at {} of {all} functions, {:.2} %",
            names.len(),
            percent(names.len(), all)
        );
        refused.print();
        assert!(percent(names.len(), all) < 3.0, "{name}");
        for expected in must_be_refused.iter().filter(|(n, _)| n == name).flat_map(|(_, e)| *e) {
            let known = library.functions.values().any(|(n, _)| n == expected);
            assert!(!known || names.iter().any(|n| n == expected), "{expected} is not refused");
        }
    }
}

#[test]
fn most_entries_have_registers_and_flags_to_spare() {
    for (name, paths) in LIBRARIES {
        let Some(library) = Library::open(paths) else { continue };
        let (mut all, mut registers, mut flags, mut both) = (0, 0, 0, 0);
        library.each(|_, site| {
            let Ok(displaced) = library.machine.isa().verdict(site).jump else { return };
            let liveness = liveness(bits(library.machine), site, displaced.start);
            assert!(!liveness.dead.contains(4), "rsp is never dead");
            all += 1;
            registers += usize::from(liveness.dead.len() >= 2);
            flags += usize::from(liveness.flags_dead);
            both += usize::from(liveness.dead.len() >= 2 && liveness.flags_dead);
        });
        println!(
            "{name}: of {all} entries {:.1} % have two dead registers, {:.1} % dead flags, {:.1} % both",
            percent(registers, all),
            percent(flags, all),
            percent(both, all)
        );
        assert!(percent(registers, all) > 9.0 && percent(flags, all) > 30.0, "{name}");
    }
}

#[test]
fn most_entries_can_be_emulated() {
    for (name, paths) in LIBRARIES {
        let Some(library) = Library::open(paths) else { continue };
        let (mut all, mut emulated) = (0, 0);
        library.each(|_, site| {
            all += 1;
            emulated += usize::from(library.machine.isa().verdict(site).emulate.is_ok());
        });
        println!("{name}: {emulated} of {all} entries can be emulated, {:.2} %", percent(emulated, all));
        assert!(percent(emulated, all) >= 97.0, "{name}");
    }
}
