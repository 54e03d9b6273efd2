//! Which registers and flags does the program certainly not read any more?
//!
//! A detour may use those without saving them. The scan walks every path from the site, over both sides of
//! conditional branches, and calls a register dead when each path writes it in full before reading it. Wherever a
//! path ends in something that may read anything (a call, a return, an indirect jump, the kernel, the end of the
//! bytes or of patience) whatever was not yet written is live. So nothing is assumed of calling conventions: local
//! callers compiled with `-fipa-ra`, hand-written assembly and its flags across calls are as safe as any.

use super::decode::decoder;
use super::faults::may_fault;
use super::goroutine;
use crate::{Site, Stack};
use alloc::vec::Vec;
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
const RSP: u16 = 1 << 4;
/// How many instructions are looked at, on all paths together.
const PATIENCE: u32 = 96;

/// Registers by number, and the arithmetic flags as iced numbers them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    registers: u16,
    flags: u32,
}

impl Known {
    /// What nobody reads whom functions return to that Go's compiler has made, but for results. What they call may be assembly that keeps all
    /// registers, and even the flags (`runtime.duffzero`).
    const UNREAD_BEHIND_GO: Self = Self { registers: goroutine::FREE_AT_ENTRY.0, flags: ARITHMETIC };
}

/// See [`crate::Isa::flags_are_unread`].
pub(crate) fn flags_are_unread(bits: u32, site: &Site<'_>, by_go: bool) -> bool {
    let live = match by_go {
        true => scan_in_go(bits, site, site.address),
        false => liveness(bits, site, site.address, true),
    };
    live.flags_dead
}

/// What is dead in a function that Go's compiler has made. A fault is a panic there: nothing goes on behind it.
fn scan_in_go(bits: u32, site: &Site<'_>, address: u64) -> Liveness {
    scan(bits, site, address, false, Known::UNREAD_BEHIND_GO)
}

/// What a detour may overwrite that begins with the instruction at `address`: what is dead there, and what is known of Go's functions.
pub(crate) fn spare(bits: u32, site: &Site<'_>, address: u64, stack: Stack, faults: bool) -> Liveness {
    match stack {
        Stack::NoneInGo | Stack::AskedInGo => {
            let live = scan_in_go(bits, site, address);
            if address == site.function { goroutine::at_entry(live) } else { live }
        }
        Stack::None | Stack::Enough => liveness(bits, site, address, faults),
    }
}

/// What is dead before the instruction at `address`, which lies in the site's function. `bits` is 32 or 64. `faults`: the program handles
/// faults, and may go on behind an instruction that has not written what it writes.
pub fn liveness(bits: u32, site: &Site<'_>, address: u64, faults: bool) -> Liveness {
    scan(bits, site, address, faults, Known::default())
}

fn scan(bits: u32, site: &Site<'_>, address: u64, faults: bool, unread_behind: Known) -> Liveness {
    let all = if bits == 64 { 0xffff } else { 0x00ff };
    let mut scan = Scan {
        site,
        all: Known { registers: all, flags: ARITHMETIC },
        live: Known { registers: RSP, flags: 0 },
        paths: Vec::new(),
        visited: Vec::with_capacity(PATIENCE as usize),
        seen: 0,
        patience: PATIENCE,
        bits,
        faults,
        unread_behind,
        decoder: decoder(bits, site.code, site.function),
        factory: InstructionInfoFactory::new(),
    };
    // Per path: what it has overwritten.
    scan.paths.push((address, Known { registers: RSP, flags: 0 }));
    while let Some((address, written)) = scan.paths.pop() {
        scan.path(address, written);
    }
    Liveness { dead: RegisterSet(all & !scan.live.registers), flags_dead: scan.live.flags & ARITHMETIC == 0 }
}

struct Scan<'a> {
    site: &'a Site<'a>,
    all: Known,
    /// Read on some path before being written there.
    live: Known,
    /// Where paths go on, and what was written on the way there.
    paths: Vec<(u64, Known)>,
    visited: Vec<(u64, Known)>,
    /// A bit for each remainder of a visited address: most places are passed once, and the list need not be searched for them.
    seen: u128,
    patience: u32,
    bits: u32,
    faults: bool,
    /// What nobody reads by convention whom the function returns to.
    unread_behind: Known,
    decoder: Decoder<'a>,
    factory: InstructionInfoFactory,
}

impl Scan<'_> {
    fn path(&mut self, mut address: u64, mut written: Known) {
        loop {
            if self.tells_nothing(written) || self.covered(address, written) {
                return;
            }
            self.visited.push((address, written));
            self.seen |= remainder(address);
            if self.is_outside(address) {
                return self.reads_anything(written, self.unread_at(address));
            }
            let Some(instruction) = self.fetch(address) else {
                return self.reads_anything(written, Known::default());
            };
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::UnconditionalBranch if !instruction.is_jmp_far() => {
                    address = instruction.near_branch_target();
                    continue;
                }
                FlowControl::ConditionalBranch => {}
                FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => {
                    // The kernel keeps the flags; that it leaves them in r11, too, is nothing that anybody reads.
                    self.live.registers |= !written.registers;
                    address = instruction.next_ip();
                    continue;
                }
                // What a call or a return reads of registers is covered by reading anything.
                FlowControl::Call => {
                    let unread = self.unread_at(instruction.near_branch_target());
                    return self.reads_anything(written, unread);
                }
                FlowControl::IndirectCall if self.site.targets.pointers_keep_no_flags() => {
                    return self.reads_anything(written, Known { registers: 0, flags: ARITHMETIC });
                }
                FlowControl::Return => return self.reads_anything(written, self.unread_behind()),
                // Who traps here wants to end, or is in a debugger: `runtime.abort`.
                FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => {
                    return self.reads_anything(written, Known { registers: 0, flags: ARITHMETIC });
                }
                _ => return self.reads_anything(written, Known::default()),
            }
            self.accesses(&instruction, &mut written);
            if instruction.flow_control() == FlowControl::ConditionalBranch {
                self.paths.push((instruction.near_branch_target(), written));
            }
            address = instruction.next_ip();
        }
    }

    /// Whether all that this path may yet read was read by another, or written.
    fn tells_nothing(&self, written: Known) -> bool {
        self.all.registers & !(self.live.registers | written.registers) == 0
            && self.all.flags & !(self.live.flags | written.flags) == 0
    }

    /// Whether this place was passed before with no more written than now.
    fn covered(&self, address: u64, written: Known) -> bool {
        self.seen & remainder(address) != 0
            && self.visited.iter().any(|(a, w)| {
                *a == address && w.registers & !written.registers == 0 && w.flags & !written.flags == 0
            })
    }

    fn fetch(&mut self, address: u64) -> Option<Instruction> {
        self.patience = self.patience.checked_sub(1)?;
        if address != self.decoder.ip() {
            let offset = usize::try_from(address.wrapping_sub(self.site.function)).ok()?;
            self.decoder.set_position(offset).ok()?;
            self.decoder.set_ip(address);
        }
        let instruction = self.decoder.can_decode().then(|| self.decoder.decode())?;
        (!instruction.is_invalid()).then_some(instruction)
    }

    fn is_outside(&self, address: u64) -> bool {
        address.wrapping_sub(self.site.function) >= self.site.code.len() as u64
    }

    /// What nobody reads behind the function.
    fn unread_behind(&self) -> Known {
        let is_unread = self.site.targets.returns_no_flags(self.site.function);
        let flags = if is_unread { ARITHMETIC } else { self.unread_behind.flags };
        Known { flags, ..self.unread_behind }
    }

    /// What nobody reads in another function.
    fn unread_at(&self, address: u64) -> Known {
        let flags = if self.site.targets.reads_no_flags(address) { ARITHMETIC } else { 0 };
        Known { registers: 0, flags }
    }

    /// All but what is `unread` there.
    fn reads_anything(&mut self, written: Known, unread: Known) {
        self.live.registers |= !(written.registers | unread.registers);
        self.live.flags |= ARITHMETIC & !(written.flags | unread.flags);
    }

    fn accesses(&mut self, instruction: &Instruction, written: &mut Known) {
        let before = *written;
        let may_fault = self.faults && may_fault(self.bits, instruction, &mut self.factory);
        self.live.flags |= instruction.rflags_read() & ARITHMETIC & !before.flags;
        if !may_leave_flags(instruction) && !may_fault {
            written.flags |= instruction.rflags_modified() & ARITHMETIC;
        }
        // With a source of 0 these leave the destination as it was.
        let may_leave = may_fault || matches!(instruction.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr);
        for used in self.factory.info(instruction).used_registers() {
            let (number, is_whole) = register(used.register());
            if matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            ) {
                self.live.registers |= number & !before.registers;
            }
            // A 32-bit write clears the upper half. A read-modify-write is a read first, and no end of life by itself;
            // the value it leaves is new, though.
            if matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite) && is_whole && !may_leave {
                written.registers |= number;
            }
        }
    }
}

fn remainder(address: u64) -> u128 {
    1 << (address % u64::from(u128::BITS))
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
fn register(register: Register) -> (u16, bool) {
    if !register.is_gpr() {
        return (0, false);
    }
    let full = register.full_register();
    (1 << (full.number() & 15), register.is_gpr32() || register.is_gpr64())
}
