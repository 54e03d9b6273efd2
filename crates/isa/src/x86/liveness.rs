//! Which registers and flags does an instruction read and write, and who reads none of them? The scan is `crate::liveness`.

use super::decode::decoder;
use super::faults::{may_fault, sets_frame};
use super::goroutine;
use crate::liveness::{Known, Next, Step, Steps, dead};
use crate::{Site, Stack};
use iced_x86::{
    Decoder, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, RflagsBits,
};

/// General-purpose registers, a bit for each by its number in the instruction encoding: rax 0, rcx 1, rdx 2, rbx 3,
/// rsp 4, rbp 5, rsi 6, rdi 7, r8 to r15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegisterSet(pub u16);

impl RegisterSet {
    /// Whether the register with this number is in the set.
    pub fn contains(self, number: u8) -> bool {
        number < 16 && self.0 >> number & 1 != 0
    }

    /// The numbers of its registers, in order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |n| self.contains(*n))
    }

    /// How many registers there are.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What may be overwritten before an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Liveness {
    /// Registers whose value nobody reads. Never rsp.
    pub dead: RegisterSet,
    /// Whether nobody reads the arithmetic flags: OF, SF, ZF, AF, CF and PF. DF and the others are never dead.
    pub flags_dead: bool,
}

const ARITHMETIC: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;
const RSP: u32 = 1 << 4;
/// What nobody reads whom functions return to that Go's compiler has made, but for results. What they call may be assembly that keeps all
/// registers, and even the flags (`runtime.duffzero`).
const UNREAD_BEHIND_GO: Known = Known { registers: goroutine::FREE_AT_ENTRY.0 as u32, flags: ARITHMETIC };

/// See [`crate::Isa::flags_are_unread`].
pub(crate) fn flags_are_unread(bits: u32, site: &Site<'_>, by_go: bool) -> bool {
    let live = match by_go {
        true => scan_in_go(bits, site, site.address),
        false => liveness(bits, site, site.address),
    };
    live.flags_dead
}

/// What is dead in a function that Go's compiler has made. A fault is a panic there: nothing goes on behind it.
fn scan_in_go(bits: u32, site: &Site<'_>, address: u64) -> Liveness {
    scan(bits, site, address, Language::Go)
}

/// What a detour may overwrite that begins with the instruction at `address`: what is dead there, and what is known of Go's functions.
pub(crate) fn spare(bits: u32, site: &Site<'_>, address: u64, stack: Stack) -> Liveness {
    match stack {
        Stack::NoneInGo | Stack::AskedInGo => {
            let live = scan_in_go(bits, site, address);
            if address == site.function { goroutine::at_entry(live) } else { live }
        }
        Stack::None | Stack::Enough => liveness(bits, site, address),
    }
}

/// What is dead before the instruction at `address`, which lies in the site's function. `bits` is 32 or 64.
pub fn liveness(bits: u32, site: &Site<'_>, address: u64) -> Liveness {
    scan(bits, site, address, Language::Any)
}

/// What is known of who has made a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Any,
    Go,
}

fn scan(bits: u32, site: &Site<'_>, address: u64, language: Language) -> Liveness {
    let registers = if bits == 64 { 0xffff } else { 0x00ff } & !RSP;
    let decoder = decoder(bits, site.code, site.function);
    let factory = InstructionInfoFactory::new();
    let reader = Reader { site, bits, start: address, language, decoder, factory, has_frame: None };
    let dead = dead(Known { registers, flags: ARITHMETIC }, site, address, reader);
    Liveness { dead: RegisterSet(dead.registers as u16), flags_dead: dead.flags == ARITHMETIC }
}

struct Reader<'a> {
    site: &'a Site<'a>,
    bits: u32,
    start: u64,
    language: Language,
    decoder: Decoder<'a>,
    factory: InstructionInfoFactory,
    /// Whether the function begins with making rbp point to its frame, once that was asked.
    has_frame: Option<bool>,
}

/// How far into a function that is looked for.
const PROLOGUE: usize = 16;

impl Steps for Reader<'_> {
    fn step(&mut self, address: u64) -> Option<Step> {
        let instruction = self.fetch(address)?;
        let (next, target) = (instruction.next_ip(), instruction.near_branch_target());
        let next = match instruction.flow_control() {
            FlowControl::Next => Next::At(next),
            FlowControl::UnconditionalBranch if !instruction.is_jmp_far() => Next::At(target),
            FlowControl::ConditionalBranch => Next::Either(next, target),
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => {
                // The kernel keeps the flags; that it leaves them in r11, too, is nothing that anybody reads.
                let reads = Known { registers: u32::MAX, flags: 0 };
                let writes = Known::default();
                return Some(Step { reads, writes, may_fault: false, next: Next::At(next) });
            }
            flow => {
                let unread = self.unread_behind(flow, &instruction);
                return Some(Step {
                    reads: Known::default(),
                    writes: Known::default(),
                    may_fault: false,
                    next: Next::Elsewhere { unread },
                });
            }
        };
        let (mut reads, writes) = self.accesses(&instruction);
        if self.may_be_static_probe(&instruction) {
            reads.registers = u32::MAX;
        }
        let may_fault = self.language != Language::Go && self.may_fault(&instruction);
        Some(Step { reads, writes, may_fault, next })
    }

    fn unread_at(&self, address: u64) -> Known {
        let flags = if self.site.targets.reads_no_flags(address) { ARITHMETIC } else { 0 };
        Known { registers: 0, flags }
    }
}

impl Reader<'_> {
    fn fetch(&mut self, address: u64) -> Option<Instruction> {
        if address != self.decoder.ip() {
            let offset = usize::try_from(address.wrapping_sub(self.site.function)).ok()?;
            self.decoder.set_position(offset).ok()?;
            self.decoder.set_ip(address);
        }
        let instruction = self.decoder.can_decode().then(|| self.decoder.decode())?;
        (!instruction.is_invalid()).then_some(instruction)
    }

    fn may_fault(&mut self, instruction: &Instruction) -> bool {
        let has_frame = instruction.memory_base().full_register() == Register::RBP && self.has_frame();
        may_fault(self.bits, instruction, &mut self.factory, has_frame)
    }

    fn has_frame(&mut self) -> bool {
        let (bits, site) = (self.bits, self.site);
        let prologue = || decoder(bits, site.code, site.function).into_iter().take(PROLOGUE);
        *self.has_frame.get_or_insert_with(|| prologue().any(|instruction| sets_frame(&instruction)))
    }

    /// Whether a static probe may be there, of which another detour tells what is in its registers: a nop
    /// of one, five or ten bytes. At the detour's own place everything is told before anything is
    /// overwritten, and Go has no static probes.
    fn may_be_static_probe(&self, instruction: &Instruction) -> bool {
        instruction.mnemonic() == Mnemonic::Nop
            && matches!(instruction.len(), 1 | 5 | 10)
            && instruction.ip() != self.start
            && self.language != Language::Go
    }

    /// What nobody reads where an instruction leads that ends a path. What a call or a return reads of registers is covered by reading anything.
    fn unread_behind(&self, flow: FlowControl, instruction: &Instruction) -> Known {
        let no_flags = Known { registers: 0, flags: ARITHMETIC };
        match flow {
            FlowControl::Call => self.unread_at(instruction.near_branch_target()),
            FlowControl::IndirectCall if self.site.targets.pointers_keep_no_flags() => no_flags,
            FlowControl::Return if self.site.targets.returns_no_flags(self.site.function) => {
                self.unread_by_callers().and(no_flags)
            }
            FlowControl::Return => self.unread_by_callers(),
            // Who traps here wants to end, or is in a debugger: `runtime.abort`.
            FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => no_flags,
            _ => Known::default(),
        }
    }

    /// What nobody reads by convention whom the function returns to.
    fn unread_by_callers(&self) -> Known {
        match self.language {
            Language::Go => UNREAD_BEHIND_GO,
            Language::Any => Known::default(),
        }
    }

    fn accesses(&mut self, instruction: &Instruction) -> (Known, Known) {
        let mut reads = Known { registers: 0, flags: instruction.rflags_read() & ARITHMETIC };
        let mut writes = Known::default();
        if !may_leave_flags(instruction) {
            writes.flags = instruction.rflags_modified() & ARITHMETIC;
        }
        // With a source of 0 these leave the destination as it was.
        let may_leave = matches!(instruction.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr);
        for used in self.factory.info(instruction).used_registers() {
            let (number, is_whole) = register(used.register());
            if matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            ) {
                reads.registers |= number;
            }
            // A 32-bit write clears the upper half.
            if matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite) && is_whole && !may_leave {
                writes.registers |= number;
            }
        }
        (reads, writes)
    }
}

/// Whether the flags may stay as they were: a shift by 0, a repeated comparison of nothing.
fn may_leave_flags(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd => {
            let count = instruction.op_count() - 1;
            !matches!(instruction.try_immediate(count), Ok(1..=31))
        }
        _ => {
            instruction.is_string_instruction()
                && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
        }
    }
}

/// The bit of a general-purpose register, and whether writing this part of it writes it all.
fn register(register: Register) -> (u32, bool) {
    if !register.is_gpr() {
        return (0, false);
    }
    let full = register.full_register();
    (1 << (full.number() & 15), register.is_gpr32() || register.is_gpr64())
}
