//! What a script's checker asks about the world: the command line, control groups, and what files tell of functions and types.

use super::known::Known;
use super::machine;
use crate::cli::script::{Text, Warnings};
use std::os::unix::fs::MetadataExt;
use trapless_script::check::environment::{Described, Environment, Function, Held, Machine, TypeName};
use trapless_script::syntax::ast::ProbePoint;

/// The world of a command line and of the files that its script probes.
pub(super) struct Outside<'t, 'k> {
    text: &'t Text,
    machine: trapless_isa::Machine,
    known: &'k Known<'t>,
}

impl<'t, 'k> Outside<'t, 'k> {
    /// Of this one.
    pub fn new(text: &'t Text, known: &'k Known<'t>) -> Self {
        Self { text, machine: machine::of(text), known }
    }
}

impl Environment for Outside<'_, '_> {
    fn parameters(&self) -> &[String] {
        &self.text.positional
    }

    fn named(&self, name: &str) -> Option<String> {
        let of = |given: &String| match given.split_once('=') {
            Some((own, value)) if own == name => Some(value.to_owned()),
            None if given == name => Some(String::new()),
            _ => None,
        };
        self.text.named.iter().rev().find_map(of)
    }

    fn machine(&self) -> Machine {
        match self.machine {
            trapless_isa::Machine::I386 => Machine::I386,
            trapless_isa::Machine::AArch64 => Machine::AARCH64,
            trapless_isa::Machine::PowerPc64Le => Machine::POWERPC64LE,
            trapless_isa::Machine::X86_64 => Machine::X86_64,
        }
    }

    fn is_unsafe_allowed(&self) -> bool {
        self.text.is_unsafe
    }

    fn tells_failures(&self) -> bool {
        self.text.warnings == Warnings::All
    }

    fn cgroup(&self, path: &str) -> Option<u64> {
        std::fs::metadata(path).ok().filter(|about| about.is_dir()).map(|about| about.ino())
    }

    fn described(&self, name: &TypeName) -> Option<Described> {
        self.known.described(name)
    }

    fn function(&self, point: &ProbePoint) -> Option<Function> {
        self.known.function(point)
    }

    fn result(&self, point: &ProbePoint) -> Option<(Described, Held)> {
        self.known.result(point)
    }

    fn is_float_operand(&self, point: &ProbePoint, argument: u8) -> bool {
        self.known.is_float_operand(point, argument)
    }

    fn tells_results_apart(&self) -> bool {
        self.known.is_choosing()
    }

    fn enumerator(&self, name: &str) -> Option<(Described, i64)> {
        self.known.enumerator(name)
    }

    fn symbol(&self, point: &ProbePoint, name: &str) -> Option<u64> {
        self.known.symbol(point, name)
    }
}
