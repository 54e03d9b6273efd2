//! A thread for the emulator: its registers, and any memory.

use std::cell::RefCell;
use trapless_isa::{
    EmulateError, Thread,
    powerpc::{self, Version},
};

/// A thread's registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// r0 to r31.
    pub gpr: [u64; 32],
    /// Address of the instruction.
    pub pc: u64,
    /// Link register.
    pub lr: u64,
    /// Count register.
    pub ctr: u64,
    /// Target address register.
    pub tar: u64,
    /// Condition register; cr0 is the most significant nibble.
    pub cr: u32,
    /// Fixed-point exception register.
    pub xer: u64,
}

/// No access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// The memory of a thread.
pub trait Memory {
    /// Fills `bytes` from `address` on.
    fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault>;
    /// Stores `bytes` from `address` on, all or none.
    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault>;
}

/// Both.
pub struct State<'a> {
    registers: &'a mut Registers,
    memory: RefCell<&'a mut dyn Memory>,
}

impl<'a> State<'a> {
    /// A thread with these registers and this memory.
    pub fn new(registers: &'a mut Registers, memory: &'a mut dyn Memory) -> Self {
        Self { registers, memory: RefCell::new(memory) }
    }
}

impl Thread for State<'_> {
    fn register(&self, number: u8) -> u64 {
        match number {
            35 => self.registers.ctr,
            36 => self.registers.lr,
            37 => self.registers.xer,
            _ => self.registers.gpr[usize::from(number)],
        }
    }

    fn set_register(&mut self, number: u8, value: u64) {
        *match number {
            35 => &mut self.registers.ctr,
            36 => &mut self.registers.lr,
            37 => &mut self.registers.xer,
            _ => &mut self.registers.gpr[usize::from(number)],
        } = value;
    }

    fn flags(&self) -> u64 {
        self.registers.cr.into()
    }

    fn set_flags(&mut self, flags: u64) {
        self.registers.cr = u32::try_from(flags).expect("cr has 32 bits");
    }

    fn set_ip(&mut self, address: u64) {
        self.registers.pc = address;
    }

    fn segment_base(&self, _gs: bool) -> Option<u64> {
        None
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.borrow_mut().load(address, bytes.get_mut(..size.into())?).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn write(&mut self, address: u64, size: u8, value: u64) -> Option<()> {
        self.memory.borrow_mut().store(address, value.to_le_bytes().get(..size.into())?).ok()
    }
}

/// Does what the instruction that `code` starts with does where the pc is.
pub fn emulate(
    code: &[u8],
    registers: &mut Registers,
    memory: &mut dyn Memory,
    version: Option<Version>,
) -> Result<(), EmulateError> {
    let pc = registers.pc;
    powerpc::emulate(code, pc, &mut State::new(registers, memory), version).map(drop)
}
