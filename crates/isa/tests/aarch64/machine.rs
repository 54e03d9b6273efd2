//! A machine with one thread, for tests that must stop a detour at every single instruction.
//!
//! It runs on the crate's own emulator (which `aarch64_oracle` proves) and adds what that leaves out:
//! exclusive and ordered accesses, the thread pointer, the clock.

#[path = "state.rs"]
pub mod state;

use state::{Fault, Memory, Registers, emulate};
use std::{collections::HashMap, ops::Range};
use trapless_isa::{
    BranchTargets, DetourRequest, EmulateError, Layout, Machine as Isas, Operand, Payload, Reason, Site,
    aarch64::decode::word,
    body::Runs,
    detour::{Stack, return_sizes},
};

/// Where a function stands that is called, and its arena.
#[allow(dead_code, reason = "not every test calls that one")]
pub const FUNCTION: u64 = 0x40_0000;
#[allow(dead_code, reason = "not every test calls that one")]
pub const ARENA: u64 = 0x100_0000;

/// A machine about to call a function of this code whose detour does that; or why there is none.
#[allow(dead_code, reason = "not every test has one that is all alike")]
pub fn detoured(
    code: &[u32],
    payload: Payload,
    runs: Runs<'_>,
    operands: &[Operand],
) -> Result<Machine, Reason> {
    detoured_at(0, layout(), code, payload, runs, operands)
}

/// The same with a probe so many bytes behind the function's beginning, and other memory.
#[allow(dead_code, reason = "not every test has one that is all alike")]
pub fn detoured_at(
    behind: u64,
    layout: Layout,
    code: &[u32],
    payload: Payload,
    runs: Runs<'_>,
    operands: &[Operand],
) -> Result<Machine, Reason> {
    let isa = Isas::AArch64.isa();
    let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    let runtime = isa.runtime(ARENA, &layout).unwrap();
    let targets = BranchTargets::default();
    let site = Site { address: FUNCTION + behind, ..Site::new(FUNCTION, &code, &targets) };
    let displaced = isa.verdict(&site).jump.unwrap();
    let address = ARENA + runtime.code.len() as u64;
    let detour = isa.detour(&DetourRequest {
        runs,
        address,
        displaced,
        original: &code[(displaced.start - FUNCTION) as usize..][..4],
        site: &site,
        payload,
        stack: Stack::Enough,
        layout: &layout,
        runtime: &runtime,
        operands,
        tells: false,
    })?;
    let mut machine = Machine { thread_pointer: 0x7f_1234_5000, ..Machine::default() };
    machine.load(ARENA, &runtime.code);
    machine.load(address, &detour.code);
    machine.load(FUNCTION, &code);
    machine.load(displaced.start, &isa.patch(&displaced, address).unwrap());
    machine.load(layout.origin, &[1]);
    machine.load(layout.block_cursor, &[1]);
    Ok(machine)
}

/// The memory of its detours, with rings and without thread numbers.
#[allow(dead_code, reason = "not every test has the same")]
pub fn layout() -> Layout {
    Layout {
        threads: 0x10_0000_0000,
        thread_bits: 4,
        origin: 0x11_0000_0000,
        block_cursor: 0x11_0000_0008,
        blocks: 0x12_0000_0000,
        block_stride: 0x10_0000,
        block_count: 8,
        ring: 0x1_0000,
        ring_bits: 9,
        self_pointer: false,
        tid_offset: None,
        selector: 0x63,
        pages: 0x13_0000_0000,
        returns: 0x13_0000_0000 + return_sizes(6, 4)[0],
        return_bits: 6,
        slot_shift: 4,
        arenas: 0x15_0000_0000,
        signals: None,
        gate: 0,
        near: 0,
        stacks: 0,
        points: 0,
        additions: trapless_isa::Additions::Loops,
    }
}

/// Memory in 8-byte words; what was never written is 0, and code is what was loaded.
#[derive(Clone, Default)]
pub struct Words(HashMap<u64, u64>);

impl Words {
    /// How many words that are not free lie in a range, a number of bytes apart.
    #[allow(dead_code, reason = "not every test counts")]
    pub fn in_use(&self, range: Range<u64>, apart: u64, is_free: impl Fn(u64) -> bool) -> usize {
        let counts = |(&at, &word): (&u64, &u64)| {
            !is_free(word) && range.contains(&at) && (at - range.start).is_multiple_of(apart)
        };
        self.0.iter().filter(|&entry| counts(entry)).count()
    }

    /// The word at a multiple of 8.
    pub fn get(&self, address: u64) -> u64 {
        self.0.get(&address).copied().unwrap_or(0)
    }
}

impl Memory for Words {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        for (byte, at) in bytes.iter_mut().zip(address..) {
            *byte = self.get(at & !7).to_le_bytes()[at as usize % 8];
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        for (&byte, at) in bytes.iter().zip(address..) {
            let mut word = self.get(at & !7).to_le_bytes();
            word[at as usize % 8] = byte;
            self.0.insert(at & !7, u64::from_le_bytes(word));
        }
        Ok(())
    }
}

/// The machine.
#[derive(Clone, Default)]
pub struct Machine {
    /// Its registers.
    pub registers: Registers,
    /// Its memory.
    pub memory: Words,
    /// `tpidr_el0`.
    pub thread_pointer: u64,
    /// `cntvct_el0`; counts instructions.
    pub time: u64,
    /// The low halves of the vector registers.
    pub vectors: [u64; 32],
    /// The address of the exclusive monitor.
    pub monitor: Option<u64>,
    /// What `paciasp` writes into the upper bits of x30; 0 where there is no pointer authentication.
    pub signature: u16,
    /// The stack pointer with which it has done so last.
    pub signed_with: u64,
}

impl Machine {
    /// Puts code or data into memory.
    pub fn load(&mut self, address: u64, bytes: &[u8]) {
        self.memory.write(address, bytes).unwrap();
    }

    /// Executes one instruction.
    pub fn step(&mut self) {
        self.time += 1;
        let pc = self.registers.pc;
        let mut code = [0; 4];
        self.memory.read(pc, &mut code).unwrap();
        let word = word(&code).unwrap();
        let (rt, rn, rs) = ((word & 31) as u8, (word >> 5 & 31) as u8, (word >> 16 & 31) as usize);
        match word & 0xffe0_fc00 {
            // stadd
            0xf820_0000 if rt == 31 => {
                let address = self.registers.get(rn);
                let sum = self.memory.get(address).wrapping_add(self.registers.x[rs]);
                self.memory.write(address, &sum.to_le_bytes()).unwrap();
            }
            0xc840_7c00 => {
                self.monitor = Some(self.registers.get(rn));
                self.set(rt, self.memory.get(self.registers.get(rn)));
            }
            0xc800_7c00 => {
                let address = self.registers.get(rn);
                let fails = self.monitor.take() != Some(address);
                if !fails {
                    self.memory.write(address, &self.registers.get(rt).to_le_bytes()).unwrap();
                }
                self.registers.x[rs] = u64::from(fails);
            }
            0xc8c0_fc00 => self.set(rt, self.memory.get(self.registers.get(rn))),
            0xc880_fc00 => {
                let value = self.registers.get(rt).to_le_bytes();
                self.memory.write(self.registers.get(rn), &value).unwrap();
            }
            // dmb ish: one thread sees its own stores in order.
            _ if word == 0xd503_3bbf => {}
            // paciasp, autiasp, xpaclri
            _ if matches!(word, 0xd503_233f | 0xd503_23bf | 0xd503_20ff) => self.authenticate(word),
            // pacia1716, pacib1716: only x30 is signed here.
            _ if matches!(word, 0xd503_211f | 0xd503_215f) => {}
            _ if word & !31 == 0xd53b_d040 => self.set(rt, self.thread_pointer),
            _ if word & !31 == 0xd53b_e040 => self.set(rt, self.time),
            // mrs and msr of the flags; of fpsr, which nothing here changes.
            _ if word & !31 == 0xd53b_4200 => self.set(rt, self.registers.pstate & 0xf000_0000),
            _ if word & !31 == 0xd51b_4200 => {
                self.registers.pstate = self.registers.pstate & !0xf000_0000 | self.registers.get(rt);
            }
            _ if word & !31 == 0xd53b_4420 => self.set(rt, 0),
            _ if word & !31 == 0xd51b_4420 => {}
            // fmov xt, dn
            _ if word >> 10 == 0x9e66_0000 >> 10 => self.set(rt, self.vectors[usize::from(rn)]),
            _ => match emulate(word, &mut self.registers, &mut self.memory) {
                Ok(()) => return,
                Err(EmulateError::Refused(reason)) => panic!("{word:#010x} at {pc:#x}: {reason}"),
                Err(EmulateError::Fault) => panic!("{word:#010x} at {pc:#x}: no access"),
            },
        }
        self.registers.pc = pc + 4;
    }

    /// Signs x30, checks and takes off the signature, or takes it off.
    fn authenticate(&mut self, word: u32) {
        let (signature, sp) = (u64::from(self.signature) << 48, self.registers.sp);
        if signature == 0 {
            return;
        }
        let link = &mut self.registers.x[30];
        match word {
            0xd503_233f => {
                assert_eq!(*link >> 48, 0, "signed twice");
                (*link, self.signed_with) = (*link | signature, sp);
            }
            0xd503_23bf => {
                assert_eq!((*link & 0xffff << 48, self.signed_with), (signature, sp), "not what was signed");
                *link ^= signature;
            }
            _ => *link &= (1 << 48) - 1,
        }
    }

    fn set(&mut self, register: u8, value: u64) {
        if let Some(place) = self.registers.x.get_mut(usize::from(register)) {
            *place = value;
        }
    }

    /// Executes until the program counter is `end`; returns how many instructions that took.
    pub fn run_to(&mut self, end: u64) -> u32 {
        for count in 0..100_000 {
            if self.registers.pc == end {
                return count;
            }
            self.step();
        }
        panic!("it does not end; at {:#x}", self.registers.pc);
    }
}
