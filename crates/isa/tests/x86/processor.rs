//! Runs machine code on this processor, from a given state to one of several exits, in 64-bit or 32-bit mode.
//!
//! Everything lies at fixed low addresses that 32-bit code reaches too. Code that is run ends at an *exit*: a few
//! instructions that note their own number and leave without touching a flag or a register that was not saved.

use crate::{faults, vectors};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

/// Where original code stands.
pub const ORIGINAL: u64 = 0x2000_0000;
/// Where relocated code may stand: within 1 GB, and at the end of what a `jmp rel32` reaches.
pub const NEAR: u64 = 0x6000_0000;
pub const REACH: u64 = 0x9fff_e000;
/// Beyond the reach of any rel32.
pub const BEYOND: u64 = 0x20_0000_0000;
/// Data, in reach of everything but BEYOND.
pub const DATA: u64 = 0x5000_0000;
const STACK: u64 = 0x5100_0000;
/// The control page: the state, then words that the assembly below names.
pub const CONTROL: u64 = 0x5200_0000;
/// Vector state before and after.
const BEFORE: u64 = 0x5300_0000;
const AFTER: u64 = BEFORE + 0x4000;
/// The stack of signal handlers.
const SIGNALS: u64 = 0x5400_0000;
const SIGNAL_STACK: usize = 0x1_0000;
/// Bytes of data and of stack that a run may change.
pub const WINDOW: usize = 1024;
pub const PAGE: usize = 4096;
/// A run that ended with a signal has the exit `FAULT + signal`.
pub const FAULT: u64 = 0x100;
/// Arithmetic flags and DF.
pub const FLAGS: u64 = 0xcd5;

/// Registers by number, flags, and how the run ended. The layout is known to the assembly below.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub registers: [u64; 16],
    pub flags: u64,
    pub exit: u64,
    /// Where it stopped, when a signal ended it.
    pub fault: u64,
}

// The control page starts with the state; then host rsp at 256, the entry at 264, the base of fs and gs at 272 (0: leave
// them), the host's fs base at 280, vector state components at 288 (0: leave them), and a selector for fs and gs at 304.
core::arch::global_asm!(
    ".globl trapless_test_run, trapless_test_exit, trapless_test_fault",
    "trapless_test_run:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15",
    "sub rsp, 16; stmxcsr [rsp]; fnstcw [rsp + 8]",
    "mov r15d, {control}",
    "mov [r15 + 256], rsp",
    "cmp qword ptr [r15 + 272], 0",
    "je 3f",
    "rdfsbase rax; mov [r15 + 280], rax",
    "mov eax, [r15 + 304]",
    "test eax, eax",
    "je 2f",
    "mov fs, eax; mov gs, eax",
    "jmp 3f",
    "2:",
    "mov rax, [r15 + 272]; wrfsbase rax; wrgsbase rax",
    "3:",
    "cmp qword ptr [r15 + 288], 0",
    "je 4f",
    "mov eax, [r15 + 288]; mov edx, [r15 + 292]",
    "xrstor64 [{before}]",
    "4:",
    "push qword ptr [r15 + 128]",
    "popfq",
    "mov rax, [r15]; mov rcx, [r15 + 8]; mov rdx, [r15 + 16]; mov rbx, [r15 + 24]",
    "mov rsp, [r15 + 32]; mov rbp, [r15 + 40]; mov rsi, [r15 + 48]; mov rdi, [r15 + 56]",
    "mov r8, [r15 + 64]; mov r9, [r15 + 72]; mov r10, [r15 + 80]; mov r11, [r15 + 88]",
    "mov r12, [r15 + 96]; mov r13, [r15 + 104]; mov r14, [r15 + 112]; mov r15, [r15 + 120]",
    "jmp qword ptr [{control} + 264]",
    "trapless_test_exit:",
    // rax was saved and holds nothing; r15 next, through rax.
    "mov eax, {control}",
    "mov [rax + 120], r15",
    "mov r15, rax",
    "mov [r15 + 8], rcx; mov [r15 + 16], rdx; mov [r15 + 24], rbx; mov [r15 + 32], rsp",
    "mov [r15 + 40], rbp; mov [r15 + 48], rsi; mov [r15 + 56], rdi; mov [r15 + 64], r8",
    "mov [r15 + 72], r9; mov [r15 + 80], r10; mov [r15 + 88], r11; mov [r15 + 96], r12",
    "mov [r15 + 104], r13; mov [r15 + 112], r14",
    "mov rsp, [r15 + 256]",
    "pushfq",
    "pop qword ptr [r15 + 128]",
    "jmp 5f",
    // A signal handler has noted the state, and goes on here.
    "trapless_test_fault:",
    "mov r15d, {control}",
    "mov rsp, [r15 + 256]",
    "5:",
    // Without DF, AC and the like.
    "push 0x202; popfq",
    "cmp qword ptr [r15 + 288], 0",
    "je 6f",
    "mov eax, [r15 + 288]; mov edx, [r15 + 292]",
    "xsave64 [{after}]",
    "6:",
    "cmp qword ptr [r15 + 272], 0",
    "je 7f",
    "xor eax, eax; mov fs, eax; mov gs, eax",
    "mov rax, [r15 + 280]; wrfsbase rax",
    "7:",
    "fninit; fldcw [rsp + 8]; ldmxcsr [rsp]; add rsp, 16",
    "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
    "ret",
    control = const CONTROL,
    before = const BEFORE,
    after = const AFTER,
);

unsafe extern "C" {
    fn trapless_test_run();
    fn trapless_test_exit();
    pub fn trapless_test_fault();
}

/// The processor, with the pages mapped. There is one: the pages are.
pub struct Processor {
    bits: u32,
    /// Whether fs and gs have the base [`DATA`] in runs. Without, instructions that use them must not be run.
    pub segments: bool,
    components: u64,
    has_vectors: Cell<bool>,
    _one: MutexGuard<'static, ()>,
}

static ONE: Mutex<()> = Mutex::new(());

impl Processor {
    pub fn new(bits: u32) -> Self {
        let one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for page in [ORIGINAL, NEAR, REACH, BEYOND, DATA, STACK, CONTROL] {
            map(page, 2 * PAGE);
        }
        map(BEFORE, 8 * PAGE);
        map(SIGNALS, SIGNAL_STACK);
        faults::catch(SIGNALS, SIGNAL_STACK);
        // SAFETY: getauxval takes a number.
        let bases = unsafe { libc::getauxval(libc::AT_HWCAP2) } & 2 != 0;
        let segments = bases && (bits == 64 || describe_segment());
        let components = if is_x86_feature_detected!("xsave") { vectors::components() } else { 0 };
        let processor = Self { bits, segments, components, has_vectors: Cell::new(false), _one: one };
        let selector: u64 = if segments && bits == 32 { SELECTOR } else { 0 };
        for (at, word) in [(272, if segments { DATA } else { 0 }), (288, 0), (304, selector)] {
            processor.write(CONTROL + at, &word.to_le_bytes());
        }
        // The way out of 32-bit exits: below 4 GB, in 64-bit mode.
        let mut out = vec![0xff, 0x25, 0, 0, 0, 0];
        out.extend((trapless_test_exit as *const () as u64).to_le_bytes());
        processor.write(CONTROL + 1024, &out);
        processor
    }

    /// The initial stack pointer: room above and below.
    pub fn stack() -> u64 {
        STACK + WINDOW as u64 / 2
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        // SAFETY: callers pass addresses in the pages mapped by `new`, which only this object uses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
    }

    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        // SAFETY: as in `write`.
        unsafe { std::slice::from_raw_parts(address as *const u8, length) }.to_vec()
    }

    /// Writes the exit with this number to `address`.
    pub fn write_exit(&self, address: u64, number: u32) {
        let mut code = Vec::new();
        if self.bits == 64 {
            code.extend([0x48, 0xa3]); // mov [control.rax], rax
            code.extend(CONTROL.to_le_bytes());
            code.push(0xb8); // mov eax, number
            code.extend(number.to_le_bytes());
            code.extend([0x48, 0xa3]); // mov [control.exit], rax
            code.extend((CONTROL + 136).to_le_bytes());
            code.extend([0x48, 0xb8]); // mov rax, exit; jmp rax
            code.extend((trapless_test_exit as *const () as u64).to_le_bytes());
            code.extend([0xff, 0xe0]);
        } else {
            code.push(0xa3); // mov [control.eax], eax
            code.extend((CONTROL as u32).to_le_bytes());
            code.extend([0xc7, 0x05]); // mov dword ptr [control.exit], number
            code.extend((CONTROL as u32 + 136).to_le_bytes());
            code.extend(number.to_le_bytes());
            code.push(0xea); // jmp far 0x33:out
            code.extend((CONTROL as u32 + 1024).to_le_bytes());
            code.extend([0x33, 0]);
        }
        self.write(address, &code);
    }

    /// Lets all runs from now on start with `area` as their vector state; with `None`, with any.
    pub fn set_vectors(&self, area: Option<&[u8]>) {
        self.write(BEFORE, area.unwrap_or_default());
        let components = area.map_or(0, |_| self.components);
        self.has_vectors.set(components != 0);
        self.write(CONTROL + 288, &components.to_le_bytes());
    }

    /// The vector state after the last run, if runs have one.
    pub fn vectors(&self) -> Vec<u8> {
        // SAFETY: pages mapped by `new`, which only this object uses.
        let area = unsafe { std::slice::from_raw_parts(AFTER as *const u8, vectors::SIZE) };
        if self.has_vectors.get() { vectors::compared(area) } else { Vec::new() }
    }

    /// Runs from `entry` until an exit or a signal. `memory` is the data and the stack before, and becomes what they are after.
    pub fn run(&self, entry: u64, state: &State, memory: &mut [u8; 2 * WINDOW]) -> State {
        self.write(DATA, &memory[..WINDOW]);
        self.write(STACK, &memory[WINDOW..]);
        // SAFETY: State is plain numbers, and the control page holds nothing else there.
        unsafe {
            (CONTROL as *mut State).write(State { flags: state.flags & FLAGS | 0x202, fault: 0, ..*state })
        };
        let mut start = entry;
        if self.bits == 32 {
            // jmp far m16:32, whose operand lies at CONTROL + 512.
            self.write(CONTROL + 512, &[&(entry as u32).to_le_bytes()[..], &[0x23, 0]].concat());
            self.write(
                CONTROL + 528,
                &[&[0xff, 0x2c, 0x25][..], &(CONTROL as u32 + 512).to_le_bytes()].concat(),
            );
            start = CONTROL + 528;
            // SAFETY: flat data segments mean nothing to 64-bit code, and 32-bit code needs them.
            unsafe { core::arch::asm!("mov ds, {0:x}", "mov es, {0:x}", in(reg) 0x2b) };
        }
        self.write(CONTROL + 264, &start.to_le_bytes());
        // SAFETY: the code saves and restores what the ABI says it must, switches to its own stack before the code
        // under test runs, and comes back by an exit. That code under test writes to the data and stack windows only
        // is what the tests' tables are written for.
        let mut after = unsafe {
            trapless_test_run();
            (CONTROL as *const State).read()
        };
        memory[..WINDOW].copy_from_slice(&self.read(DATA, WINDOW));
        memory[WINDOW..].copy_from_slice(&self.read(STACK, WINDOW));
        after.flags &= FLAGS;
        after
    }
}

/// Selector of the segment with the base [`DATA`]: the first of the local descriptor table.
const SELECTOR: u64 = 7;

/// Makes that segment; whether the kernel can.
fn describe_segment() -> bool {
    // struct user_desc: a 32-bit data segment of 4 GB, writable, present, usable.
    let descriptor: [u32; 4] = [0, DATA as u32, 0xf_ffff, 0x51];
    // SAFETY: adds an entry to the process's descriptor table, which nothing else uses.
    unsafe { libc::syscall(libc::SYS_modify_ldt, 1, &descriptor, size_of_val(&descriptor)) == 0 }
}

/// Maps memory that is readable, writable and executable at `address`, unless it is there.
pub fn map(address: u64, size: usize) {
    // SAFETY: these addresses are below where the kernel places anything of this process (or the flag makes mmap fail),
    // so no memory in use is touched. A second call finds the pages mapped and keeps them.
    let at = unsafe {
        libc::mmap(
            address as *mut _,
            size,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    assert!(at as u64 == address || errno() == libc::EEXIST, "no page at {address:#x}: {}", errno());
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
