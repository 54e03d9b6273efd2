//! Unwind tables as rows: for each range of instructions, one rule that leads from a frame to its caller's.
//!
//! `.eh_frame` and `.debug_frame` hold little programs, which are run here once, so that whoever walks a stack looks up an address and
//! has a rule (DWARF 5, section 6.4; System V ABI, each processor's supplement, "DWARF register numbers"). Only what a walk needs is
//! followed: the CFA, the return address, the frame pointer, and on x86-64 rbx, from which the CFA is found where glibc binds a symbol at
//! its first call.
//!
//! Of DWARF's expressions those are known that occur:
//!
//! - the linker's for stubs of a PLT, by the instruction pointer: they become rows of their own, two for each stub;
//! - the CFA in memory, at a distance from a register: functions that align their stacks, and hand-written code that keeps its caller's
//!   stack pointer on its stack;
//! - registers in memory at a distance from a register: the same functions, and frames of signals.
//!
//! Everything else is [`Rule::Unknown`], with the reason. Where several tables tell of an instruction, `.eh_frame` is believed, and the
//! entry that begins first. Stubs of a PLT, which not all linkers write entries for, and trampolines that handlers of signals return to are
//! known by their instructions where no entry tells of them, as in musl.
//!
//! On powerpc64le the word at the stack pointer is the caller's stack pointer as soon as there is a frame, so the rules say that, whatever
//! register the CFA was told by: that holds in every frame, where rows are only needed to know whether there is one and whether the link
//! register is saved yet.

mod expression;
mod program;
mod rules;
mod spans;
mod stubs;
mod trampolines;

use gimli::{DebugFrame, LittleEndian};

use crate::{Machine, Module, dwarf, frames};
use program::Compiler;
use spans::Spans;

/// The register that a rule starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnwindBase {
    /// The stack pointer.
    Stack,
    /// The frame pointer: rbp, ebp, x29, r31.
    Frame,
    /// rbx on x86-64. On other machines no third register is followed.
    Pointer,
    /// Another one, by DWARF's number, below [`UnwindBase::MOST`]: where a function aligns its stack, and in hand-written code. Only in the
    /// innermost frame it has the value that it had there.
    Other(u8),
}

impl UnwindBase {
    /// General registers have lower numbers, on all machines.
    pub const MOST: u8 = 32;
}

/// The CFA: the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// base + offset
    Register {
        /// The register.
        base: UnwindBase,
        /// In bytes.
        offset: i32,
    },
    /// \[base + offset\] + plus
    Memory {
        /// The register.
        base: UnwindBase,
        /// In bytes.
        offset: i32,
        /// In bytes.
        plus: i16,
    },
}

/// Where the caller's value of a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Saved {
    /// Still in the register. Of a return address: in the link register.
    Unchanged,
    /// \[CFA + bytes\]
    AtCfa(i16),
    /// \[base + bytes\], with the base of the CFA.
    AtBase(i16),
    /// Nowhere that a rule can tell.
    Lost,
}

/// How a frame leads to its caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameRule {
    /// The caller's stack pointer.
    pub cfa: Cfa,
    /// The return address, or in a signal's frame the interrupted instruction's. Never [`Saved::Lost`].
    pub return_address: Saved,
    /// The caller's frame pointer.
    pub frame_pointer: Saved,
    /// The caller's rbx, on x86-64.
    pub base_pointer: Saved,
    /// A signal's frame: it was not called, and the link register is saved in it.
    pub interrupted: Option<Saved>,
}

/// What holds for a range of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// No table tells of this code.
    Nothing,
    /// There is a caller.
    Frame(FrameRule),
    /// There is none: here the stack of a thread ends.
    End,
    /// There is one, but no [`FrameRule`] for it.
    Unknown(UnknownRule),
}

/// Why there is no rule where a table tells of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum UnknownRule {
    /// The CFA is found from a register that is not followed, and not as [`UnwindBase::Other`] can be.
    Register = 0,
    /// An expression of DWARF is not one of those that occur.
    Expression = 1,
    /// A distance is too large for a row.
    Distance = 2,
    /// The return address is not in memory.
    ReturnAddress = 3,
    /// The entry is damaged from here on.
    Damaged = 4,
}

impl UnknownRule {
    /// All of them, by number.
    pub const ALL: [UnknownRule; 5] =
        [Self::Register, Self::Expression, Self::Distance, Self::ReturnAddress, Self::Damaged];

    /// The reason, to be read behind "the stack cannot be followed further: ".
    pub fn reason(self) -> &'static str {
        match self {
            Self::Register => "the frame is found from a register that is not followed",
            Self::Expression => "the frame is found by an expression of DWARF that is not known",
            Self::Distance => "the frame is too large",
            Self::ReturnAddress => "the return address is not in memory",
            Self::Damaged => "the unwind table is damaged",
        }
    }
}

/// From this instruction on a rule holds, until the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwindRow {
    /// Bytes from [`UnwindRows::base`].
    pub offset: u32,
    /// Which of [`UnwindRows::rules`].
    pub rule: u32,
}

/// The rows of one module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwindRows {
    /// Virtual address that rows are relative to.
    pub base: u64,
    /// Where the file's code ends. Up to there rows tell something, if only that there is no rule.
    pub end: u64,
    /// Ascending, no two of one offset. Between functions, and behind the last one, are rows of [`Rule::Nothing`].
    pub rows: Vec<UnwindRow>,
    /// All different; the first one is [`Rule::Nothing`].
    pub rules: Vec<Rule>,
    /// What could not be read, to be told.
    pub defects: Vec<String>,
}

impl UnwindRows {
    /// What holds at a virtual address.
    pub fn rule(&self, address: u64) -> Rule {
        let Some(offset) = address.checked_sub(self.base) else { return Rule::Nothing };
        let index = self.rows.partition_point(|row| u64::from(row.offset) <= offset);
        index.checked_sub(1).map_or(Rule::Nothing, |index| self.rules[self.rows[index].rule as usize])
    }
}

impl Module {
    /// Its unwind tables as rows: `.eh_frame`, and `.debug_frame` here or in the debug file. Worked out anew by each call.
    ///
    /// ```
    /// # fn main() -> Result<(), trapless_symbols::ModuleError> {
    /// use trapless_symbols::{Module, Rule};
    ///
    /// let module = Module::open(std::env::current_exe().unwrap())?;
    /// let rows = module.unwind_rows();
    /// let function = module.function_named("main").unwrap();
    /// assert!(matches!(rows.rule(function.address()), Rule::Frame(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn unwind_rows(&self) -> UnwindRows {
        let machine = self.image.machine;
        let code: u64 = self.code.iter().map(|section| section.range.end - section.range.start).sum();
        let mut compiler = Compiler::new(machine, code.min(self.source.len() as u64));
        let mut defects = Vec::new();
        match frames::table(&self.image, &self.source) {
            Ok(Some((mut table, bases))) => {
                if machine == Machine::AArch64 {
                    table.set_vendor(gimli::Vendor::AArch64);
                }
                defects.extend(compiler.read(&table, &bases).err());
            }
            Ok(None) => {}
            Err(defect) => defects.push(defect),
        }
        let mut spans = Spans::default();
        spans.add(compiler.take_spans());
        let own = dwarf::find(&self.image, ".debug_frame");
        let apart = if own.is_some() { None } else { self.debug_file() };
        let debug_frame = match (&own, &apart) {
            (Some(section), _) => dwarf::unpack(&self.image, section, &self.source),
            (None, Some(file)) => dwarf::find(&file.image, ".debug_frame")
                .and_then(|section| dwarf::unpack(&file.image, section, &file.source)),
            (None, None) => None,
        };
        if let Some(bytes) = debug_frame {
            let mut table = DebugFrame::new(&bytes, LittleEndian);
            table.set_address_size(self.image.pointer_size() as u8);
            if machine == Machine::AArch64 {
                table.set_vendor(gimli::Vendor::AArch64);
            }
            defects.extend(compiler.read(&table, &gimli::BaseAddresses::default()).err());
            spans.add(compiler.take_spans());
        }
        for section in self.code.iter().filter(|section| section.is_plt) {
            let bytes = self.code(section.range.clone()).unwrap_or_default();
            let found = stubs::rows(machine, section.range.start, bytes);
            spans.add(
                compiler.spans_of(section.range.start..section.range.start + bytes.len() as u64, &found),
            );
        }
        let found = trampolines::find(machine, &self.code, |range| self.code(range), &spans);
        spans.add(found.into_iter().map(|(range, rule)| compiler.span_of(range, rule)).collect());
        let ends = self.code.iter().map(|section| section.range.clone());
        let all = ends.reduce(|all, next| all.start.min(next.start)..all.end.max(next.end));
        let mut rows = spans.rows(compiler, all.unwrap_or(0..0));
        rows.defects.splice(0..0, defects);
        rows
    }
}
