//! A thread for the emulator: its registers as the kernel's `user_pt_regs` orders them, and any memory.

use std::cell::RefCell;
use trapless_isa::{EmulateError, Thread, aarch64};

/// General registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// x0 to x30.
    pub x: [u64; 31],
    /// Stack pointer.
    pub sp: u64,
    /// Program counter.
    pub pc: u64,
    /// Processor state: N, Z, C and V in bits 31 to 28, BTYPE in bits 11 and 10.
    pub pstate: u64,
}

#[allow(dead_code, reason = "not every test asks for one")]
impl Registers {
    /// Register `number`; 31 is zero.
    pub fn get(&self, number: u8) -> u64 {
        self.x.get(usize::from(number)).copied().unwrap_or(0)
    }
}

/// No access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// The memory of a thread.
pub trait Memory {
    /// Fills `bytes` from `address`.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault>;
    /// Stores `bytes` at `address`, all or none.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault>;
}

/// Both.
pub struct State<'a> {
    /// The registers.
    pub registers: &'a mut Registers,
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
        self.registers.x.get(usize::from(number)).copied().unwrap_or(self.registers.sp)
    }

    fn set_register(&mut self, number: u8, value: u64) {
        *self.registers.x.get_mut(usize::from(number)).unwrap_or(&mut self.registers.sp) = value;
    }

    fn flags(&self) -> u64 {
        self.registers.pstate
    }

    fn set_flags(&mut self, flags: u64) {
        self.registers.pstate = flags;
    }

    fn set_ip(&mut self, address: u64) {
        self.registers.pc = address;
    }

    fn segment_base(&self, _gs: bool) -> Option<u64> {
        None
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.borrow_mut().read(address, bytes.get_mut(..size.into())?).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn write(&mut self, address: u64, size: u8, value: u64) -> Option<()> {
        self.memory.borrow_mut().write(address, value.to_le_bytes().get(..size.into())?).ok()
    }
}

/// Does what `word` does where the program counter is.
pub fn emulate(word: u32, registers: &mut Registers, memory: &mut dyn Memory) -> Result<(), EmulateError> {
    let pc = registers.pc;
    aarch64::emulate::emulate(word, pc, &mut State::new(registers, memory))
}
