//! What only the outside knows: the command line, the process, debug information. Whoever compiles a script answers for it.

use crate::ir::Context;
use crate::syntax::ast::ProbePoint;

/// Answers about the world outside of a script. What it does not know it says so by `None`.
pub trait Environment {
    /// The values of `$1`, `$2`, ….
    fn parameters(&self) -> &[String] {
        &[]
    }

    /// The value of the named parameter `--name=value`; an empty string if it has no value.
    fn named(&self, name: &str) -> Option<String> {
        _ = name;
        None
    }

    /// Whether functions may be used that change something outside.
    fn is_unsafe_allowed(&self) -> bool {
        false
    }

    /// The machine that the probed program runs on.
    fn machine(&self) -> Machine {
        Machine::default()
    }

    /// A register by the name that `reg` takes.
    fn register(&self, name: &str) -> Option<Context> {
        self.machine().register(name)
    }

    /// The process that was started for the script (`-c`).
    fn child(&self) -> Option<u32> {
        None
    }

    /// Whether reads that fail and keys that are missing are told (`-k`).
    fn tells_failures(&self) -> bool {
        false
    }

    /// The id of the control group (v2) at a path.
    fn cgroup(&self, path: &str) -> Option<u64> {
        _ = path;
        None
    }

    /// Types by name, for those that the script does not define.
    fn described(&self, name: &TypeName) -> Option<Described> {
        _ = name;
        None
    }

    /// The parameters of the function that an attach point names, the first one if it names several, with their places at its entry. At a
    /// return they are asked for, too.
    fn function(&self, point: &ProbePoint) -> Option<Function> {
        _ = point;
        None
    }

    /// What the functions return that an attach point names, and where it is at their return. Nothing where they return different things, or it is
    /// not known.
    fn result(&self, point: &ProbePoint) -> Option<(Described, Held)> {
        _ = point;
        None
    }

    /// Whether the notes of a USDT probe say of all its places that the argument is a floating-point number.
    fn is_float_operand(&self, point: &ProbePoint, argument: u8) -> bool {
        _ = (point, argument);
        false
    }

    /// Whether `retval` has the type of each function's own result, and a body for each, where they return different things. In bpftrace's
    /// scripts it is a word then.
    fn tells_results_apart(&self) -> bool {
        false
    }

    /// The value of a name of an enum, with the enum, for those that the script does not define.
    fn enumerator(&self, name: &str) -> Option<(Described, i64)> {
        _ = name;
        None
    }

    /// How long the symbol in the attach point's file is, in bytes; 0 if that is not known.
    fn symbol(&self, point: &ProbePoint, name: &str) -> Option<u64> {
        _ = (point, name);
        None
    }
}

/// What a script has to know of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: &'static str,
    /// How many integer arguments are in registers.
    pub arguments: u8,
    /// How many floating-point arguments are in registers.
    pub float_arguments: u8,
    /// Whether registers hold a `float` as the `double` of its value.
    pub widens_singles: bool,
    /// How far the first argument in memory is from the frame's address, in bytes.
    pub stack_arguments: i64,
    /// Its general registers in the order of DWARF, by the names that bpftrace has from the kernel.
    pub registers: &'static [&'static str],
    /// What its instruction pointer is called, besides `ip` and `pc`, which mean it everywhere.
    pub instruction_pointer: &'static str,
    /// Bytes of an address: 4 or 8.
    pub word: u8,
}

impl Machine {
    /// x86 in 64-bit mode.
    pub const X86_64: Machine = Machine {
        name: "x86_64",
        arguments: 6,
        float_arguments: 8,
        widens_singles: false,
        stack_arguments: 8,
        registers: &[
            "ax", "dx", "cx", "bx", "si", "di", "bp", "sp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
            "r15",
        ],
        instruction_pointer: "ip",
        word: 8,
    };

    /// 32-bit x86: all arguments are in memory.
    pub const I386: Machine = Machine {
        name: "i386",
        arguments: 64,
        float_arguments: 0,
        widens_singles: false,
        stack_arguments: 4,
        registers: &["ax", "cx", "dx", "bx", "sp", "bp", "si", "di"],
        instruction_pointer: "ip",
        word: 4,
    };

    /// Arm A64.
    pub const AARCH64: Machine = Machine {
        name: "aarch64",
        arguments: 8,
        float_arguments: 8,
        widens_singles: false,
        stack_arguments: 0,
        registers: &[
            "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
            "r15", "r16", "r17", "r18", "r19", "r20", "r21", "r22", "r23", "r24", "r25", "r26", "r27", "r28",
            "r29", "r30", "sp",
        ],
        instruction_pointer: "pc",
        word: 8,
    };

    /// PowerPC in 64-bit mode, by ELFv2. The row of arguments begins behind the header of the caller's frame, and has room for those in registers.
    pub const POWERPC64LE: Machine = Machine {
        name: "powerpc64le",
        arguments: 8,
        float_arguments: 8,
        widens_singles: true,
        stack_arguments: 32 + 8 * 8,
        registers: &[
            "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
            "r15", "r16", "r17", "r18", "r19", "r20", "r21", "r22", "r23", "r24", "r25", "r26", "r27", "r28",
            "r29", "r30", "r31", "link",
        ],
        instruction_pointer: "nip",
        word: 8,
    };

    /// A register by its name.
    ///
    /// ```
    /// use trapless_script::{check::environment::Machine, ir::Context};
    /// assert_eq!(Machine::X86_64.register("di"), Some(Context::Register(5)));
    /// assert_eq!(Machine::AARCH64.register("sp"), Some(Context::Register(31)));
    /// assert_eq!(Machine::AARCH64.register("x9"), Machine::AARCH64.register("r9"));
    /// assert_eq!([Machine::AARCH64, Machine::X86_64].map(|m| m.register("xmm")), [None; 2]);
    /// assert_eq!(Machine::POWERPC64LE.register("nip"), Some(Context::InstructionPointer));
    /// ```
    #[must_use]
    pub fn register(&self, name: &str) -> Option<Context> {
        if matches!(name, "ip" | "pc") || name == self.instruction_pointer {
            return Some(Context::InstructionPointer);
        }
        // The kernel's names for those of arm64 are not those that disassemblers write.
        let own = name.strip_prefix('x').filter(|_| *self == Self::AARCH64);
        let is_it = |known: &&str| *known == name || own.is_some() && known.strip_prefix('r') == own;
        let number = self.registers.iter().position(is_it)?;
        Some(Context::Register(number as u8))
    }
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::X86_64
    }
}

/// An [`Environment`] that knows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

impl Environment for Nowhere {}

/// The name of a type as the script writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TypeName {
    /// `struct name`.
    Struct(String),
    /// `union name`.
    Union(String),
    /// `enum name`.
    Enum(String),
    /// A typedef or the name of a base type; in C++ and Rust also of structs and enums, with their paths.
    Named(String),
}

/// A type of the probed program.
#[derive(Clone, Debug, PartialEq)]
pub enum Described {
    /// No type.
    Void,
    /// An integer.
    Int {
        /// Bytes: 1, 2, 4 or 8.
        size: u8,
        /// Whether it is signed.
        signed: bool,
    },
    /// A character of text, one byte. Arrays of it are strings.
    Char,
    /// A truth value.
    Bool,
    /// A float of 4 or 8 bytes.
    Float(u8),
    /// A pointer.
    Pointer(Box<Described>),
    /// So many elements.
    Array(Box<Described>, u64),
    /// A struct or union by its name, whose members are asked for when they are needed.
    Record(TypeName),
    /// An enum with the values of its names.
    Enum {
        /// Its name, without `enum`.
        name: String,
        /// Bytes: 1, 2, 4 or 8.
        size: u8,
        /// Whether it is signed.
        signed: bool,
        /// Each value with its name.
        values: Vec<(i64, String)>,
    },
    /// A struct or union with its members: the answer to [`Environment::described`] for such a name.
    Members {
        /// Bytes.
        size: u32,
        /// Each.
        members: Vec<Member>,
    },
    /// So many bytes that nothing is known of.
    Unknown(u32),
}

/// A member of a described struct or union.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name. Members of nameless members are to be listed with the others.
    pub name: String,
    /// How far from the beginning, in bytes.
    pub offset: u32,
    /// Its type.
    pub of: Described,
    /// The bits it has of the integer of its type there: the lowest one, and how many.
    pub bits: Option<(u8, u8)>,
}

/// What debug information says of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// What it returns.
    pub result: Option<Described>,
    /// Where that is at its return.
    pub returned: Option<Held>,
    /// What the probe there is called, where that is asked for.
    pub probe: Option<String>,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its type.
    pub of: Described,
    /// Where it is at the function's entry.
    pub place: Held,
}

/// Where a value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Held {
    /// In an argument register for integers, from 0 on.
    Argument(u8),
    /// In a general register by its DWARF number.
    Register(u8),
    /// In the low 64 bits of a floating-point argument register, from 0 on.
    FloatRegister(u8),
    /// In memory, so far from the address of the return address's stack slot.
    Frame(i64),
    /// In memory, so far from what a general register holds.
    Memory(u8, i64),
    /// In memory, at the address that an argument register holds: large values passed by value on some platforms.
    Behind(u8),
    /// In pieces: so many bytes each, one after the other.
    Pieces(Vec<(Held, u32)>),
    /// Known: the value itself.
    Constant(i64),
    /// At a return: in the register of integer results.
    Result,
    /// At a return: in the register of a result's second word.
    SecondResult,
    /// At a return: in the low 64 bits of the register of floating-point results.
    FloatResult,
    /// At a return: in memory, at the address that the register of integer results holds.
    BehindResult,
    /// Nowhere at this place: why.
    Gone(String),
}
