//! Which registers of a machine hold what, by DWARF's numbers.

use trapless_isa::body::{ARGUMENTS_IN_GO, Convention};
use trapless_symbols::Machine;
use trapless_symbols::types::Language;

/// Those of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    /// Those of arguments.
    pub arguments: &'static [u8],
    /// The stack pointer.
    pub stack_pointer: u16,
    /// How many are general ones: the first.
    pub general: u16,
    /// The first of floating-point numbers, and how many of them take arguments; a result is in the first one.
    pub floats: (u16, u16),
    /// How many of those take a result in parts.
    pub float_results: u16,
    /// Whether these hold a `float` as the `double` of its value.
    pub widens_singles: bool,
    /// Those of a result in two words.
    pub results: [u16; 2],
    /// Bytes of a general register.
    pub word: u64,
}

impl Registers {
    /// Those of functions in this language.
    pub fn of(machine: Machine, language: Language) -> &'static Registers {
        match (machine, language) {
            (Machine::I386, _) => &I386,
            (Machine::AArch64, _) => &AARCH64,
            (Machine::PowerPc64Le, _) => &POWERPC64LE,
            (_, Language::Go) => &GO,
            (_, Language::C | Language::Cpp | Language::Rust) => &X86_64,
        }
    }

    /// Those of C's functions in the tool's own machine.
    pub fn here() -> &'static Registers {
        match trapless_isa::Machine::beside(false) {
            trapless_isa::Machine::AArch64 => &AARCH64,
            trapless_isa::Machine::PowerPc64Le => &POWERPC64LE,
            _ => &X86_64,
        }
    }

    /// The number of the argument that is in this register.
    pub fn argument(&self, register: u16) -> Option<u8> {
        self.arguments.iter().position(|number| u16::from(*number) == register).map(|number| number as u8)
    }

    /// The number of this register among those of floating-point numbers.
    pub fn float(&self, register: u16) -> Option<u8> {
        let number = register.checked_sub(self.floats.0).filter(|number| *number < self.floats.1);
        number.map(|number| number as u8)
    }
}

/// Those of a machine whose detours call bodies, which have its arguments where functions have them.
const fn with_bodies(machine: trapless_isa::Machine, floats: (u16, u16), float_results: u16) -> Registers {
    let Convention { arguments, registers, stack_pointer, results, .. } = Convention::of(machine).unwrap();
    let results = [results[0] as u16, results[1] as u16];
    let (stack_pointer, general) = (*stack_pointer as u16, registers.len() as u16);
    let widens_singles = false;
    Registers { arguments, stack_pointer, general, floats, float_results, widens_singles, results, word: 8 }
}

/// xmm0 and those behind it; rax and rdx.
const X86_64: Registers = with_bodies(trapless_isa::Machine::X86_64, (17, 8), 2);

/// Results are told as arguments are, by the compiler of Go.
const GO: Registers = Registers { arguments: &ARGUMENTS_IN_GO, ..X86_64 };

/// v0 and those behind it; x0 and x1.
const AARCH64: Registers = with_bodies(trapless_isa::Machine::AArch64, (64, 8), 4);

/// f1 and those behind it; r3 and r4. Behind r31 DWARF has f0.
const POWERPC64LE: Registers = Registers {
    general: 32,
    widens_singles: true,
    ..with_bodies(trapless_isa::Machine::PowerPc64Le, (33, 8), 8)
};

/// No arguments in registers; eax and edx. Floating-point numbers are on the x87's stack, of which nothing is read.
const I386: Registers = Registers {
    arguments: &[],
    stack_pointer: 4,
    general: 8,
    floats: (u16::MAX, 0),
    float_results: 0,
    widens_singles: false,
    results: [0, 2],
    word: 4,
};
