//! Runs code under detours on this processor, with every register of every kind set before and read after, as a thread
//! of the test's choosing.
//!
//! Memory is laid out as in a probed process, at fixed addresses. Code ends by returning to an exit, or by reaching one
//! in its body; an exit notes the state and touches nothing else.

use crate::processor::Random;
use crate::vectors::{self, SIZE as XSAVE};
use std::sync::{Mutex, MutexGuard};
use trapless_isa::detour::*;
use trapless_isa::{Machine as Isa, model};

/// Where the function under test stands.
pub const FUNCTION: u64 = 0x7100_0000;
/// Where detours and their shared routines stand.
pub const ARENA: u64 = 0x7200_0000;
pub const ARENA_SIZE: u64 = 0x1_0000;
/// Where code under test returns to.
pub const EXIT: u64 = 0x7300_0000;
const CONTROL: u64 = 0x7400_0000;
pub const STACK: u64 = 0x7500_0000;
const STACK_SIZE: u64 = 0x10_0000;
/// First of the threads' TLS blocks, which lie 2 KiB apart.
pub const TLS: u64 = 0x7600_0000;
const THREADS: u64 = 0x7700_0000;
const RETURNS: u64 = 0x7800_0000;
/// Stacks for bodies.
const STACKS: u64 = 0x7900_0000;
const STACKS_SIZE: u64 = (BLOCK_COUNT as u64) << STACK_SHIFT;
const REGION: u64 = 0x7a00_0000;
const BLOCKS: u64 = REGION + 0x1000;
const STRIDE: u64 = 0x8000;
/// Where a `syscall`-less exit keeps the vector state: before and after.
const BEFORE: u64 = CONTROL + 0x1000;
const AFTER: u64 = CONTROL + 0x4000;

pub const BLOCK_COUNT: u32 = 4;
pub const RING: u32 = 0x4000;
pub const RING_BITS: u32 = 7;

/// Log2 of the number of shadow blocks.
pub const RETURN_BITS: u32 = 4;
pub const RETURNS_SIZE: u64 = {
    let [pages, pool, blocks] = return_sizes(RETURN_BITS, 3);
    pages + pool + blocks
};

/// The initial stack pointer: the slot of the return address.
pub const SLOT: u64 = STACK + STACK_SIZE / 2 + 8;

pub const fn layout(self_pointer: bool) -> Layout {
    Layout {
        threads: THREADS + 0x1000,
        thread_bits: 3,
        origin: THREADS,
        block_cursor: REGION,
        blocks: BLOCKS,
        block_stride: STRIDE,
        block_count: BLOCK_COUNT,
        ring: RING,
        ring_bits: RING_BITS,
        self_pointer,
        tid_offset: if self_pointer { Some(0x2d0) } else { None },
        selector: 0x63,
        pages: RETURNS,
        returns: RETURNS + return_sizes(RETURN_BITS, 3)[0],
        return_bits: RETURN_BITS,
        slot_shift: 3,
        arenas: REGION + 0x100,
        signals: None,
        gate: 0,
        near: BLOCKS,
        stacks: 0,
        points: 0,
        additions: trapless_isa::Additions::Loops,
    }
}

/// The same where bodies run on stacks of their own.
pub const fn with_stacks(layout: Layout) -> Layout {
    Layout { stacks: STACKS, ..layout }
}

/// General registers by number, flags, and the vector, mask and x87 state.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    pub registers: [u64; 16],
    pub flags: u64,
    pub extended: Vec<u8>,
}

// The control page: registers, flags at 128, which exit at 136, host rsp at 256, entry at 264, fs base of the test's
// thread at 272, of the host at 280.
core::arch::global_asm!(
    ".globl trapless_detour_run, trapless_detour_exit",
    "trapless_detour_run:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15",
    "sub rsp, 16; stmxcsr [rsp]; fnstcw [rsp + 8]",
    "mov r15d, {control}",
    "mov [r15 + 256], rsp",
    "rdfsbase rax; mov [r15 + 280], rax",
    "mov rax, [r15 + 272]; wrfsbase rax",
    "mov eax, [r15 + 288]; mov edx, [r15 + 292]",
    "xrstor64 [{before}]",
    "push qword ptr [r15 + 128]",
    "popfq",
    "mov rax, [r15]; mov rcx, [r15 + 8]; mov rdx, [r15 + 16]; mov rbx, [r15 + 24]",
    "mov rsp, [r15 + 32]; mov rbp, [r15 + 40]; mov rsi, [r15 + 48]; mov rdi, [r15 + 56]",
    "mov r8, [r15 + 64]; mov r9, [r15 + 72]; mov r10, [r15 + 80]; mov r11, [r15 + 88]",
    "mov r12, [r15 + 96]; mov r13, [r15 + 104]; mov r14, [r15 + 112]; mov r15, [r15 + 120]",
    "jmp qword ptr [{control} + 264]",
    "trapless_detour_exit:",
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
    "cld",
    "mov eax, [r15 + 288]; mov edx, [r15 + 292]",
    "xsave64 [{after}]",
    "mov rax, [r15 + 280]; wrfsbase rax",
    "fninit; fldcw [rsp + 8]; ldmxcsr [rsp]; add rsp, 16",
    "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
    "ret",
    control = const CONTROL,
    before = const BEFORE,
    after = const AFTER,
);

unsafe extern "C" {
    fn trapless_detour_run();
    fn trapless_detour_exit();
}

/// The processor and the memory of a probed process. There is one, at fixed addresses.
pub struct Machine {
    /// State components that are set and compared.
    components: u64,
    _one: MutexGuard<'static, ()>,
}

static ONE: Mutex<()> = Mutex::new(());

impl Machine {
    /// `None` where the processor or kernel lacks what detours need.
    pub fn new() -> Option<Self> {
        // SAFETY: getauxval takes a number.
        let fsgsbase = unsafe { libc::getauxval(libc::AT_HWCAP2) } & 2 != 0;
        if !fsgsbase || !is_x86_feature_detected!("xsave") {
            trapless_testing::inapplicable!("no fsgsbase or no xsave");
            return None;
        }
        let one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (address, size) in [
            (FUNCTION, 0x2000),
            (ARENA, ARENA_SIZE),
            (EXIT, 0x1000),
            (CONTROL, 0x8000),
            (STACK, STACK_SIZE),
            (TLS, 0x10_0000),
            (THREADS, 0x2000),
            (RETURNS, RETURNS_SIZE),
            // What lies above a stack pointer can be read.
            (STACKS, STACKS_SIZE + 0x1000),
            (REGION, 0x10_0000),
        ] {
            // SAFETY: nothing of this process is at these low addresses, or the flag makes mmap fail; a second call
            // finds the pages mapped and keeps them.
            let at = unsafe {
                libc::mmap(
                    address as *mut _,
                    size as usize,
                    libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            let error = std::io::Error::last_os_error().raw_os_error();
            assert!(at as u64 == address || error == Some(libc::EEXIST), "no memory at {address:#x}");
        }
        let machine = Machine { components: vectors::components(), _one: one };
        machine.write_exit(EXIT, 1);
        machine.forget();
        Some(machine)
    }

    /// How much is in use of all stacks for bodies.
    pub fn stacks_in_use(&self) -> u64 {
        let used = |number: u64| STACKS + (number << STACK_SHIFT) + u64::from(STACK_USED);
        (0..u64::from(BLOCK_COUNT)).map(|number| self.get(used(number))).sum()
    }

    /// Makes the probe memory new.
    pub fn forget(&self) {
        for (address, size) in
            [(THREADS, 0x2000), (RETURNS, RETURNS_SIZE), (STACKS, STACKS_SIZE), (REGION, 0x4_0000)]
        {
            // SAFETY: pages of this object, private and anonymous: they are zero again.
            unsafe { libc::madvise(address as *mut _, size as usize, libc::MADV_DONTNEED) };
        }
        self.set(THREADS, 1);
        self.set(REGION, 1);
        self.set(REGION + 0x100, ARENA);
        self.set(REGION + 0x108, ARENA_SIZE);
        for thread in 0..64 {
            let tls = Self::thread(thread);
            self.set(tls, tls);
            self.set(tls + 0x2d0, 1000 + thread);
        }
    }

    /// Writes the routines that detours share.
    pub fn runtime(&self, layout: &Layout) -> Runtime {
        let runtime = Isa::X86_64.isa().runtime(ARENA, layout).unwrap();
        self.write(ARENA, &runtime.code);
        runtime
    }

    /// Address of the entry of the thread table that a thread looks at first.
    pub fn entry_of(layout: &Layout, thread_pointer: u64) -> u64 {
        let hash = thread_pointer.wrapping_mul(HASH_FACTOR.into()) >> 32;
        layout.threads + ((hash & ((1 << layout.thread_bits) - 1)) << THREAD_SHIFT)
    }

    /// Thread pointer of a thread.
    pub fn thread(number: u64) -> u64 {
        TLS + (number << 11)
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        // SAFETY: callers pass addresses in the pages mapped by `new`, which only this object uses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
    }

    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        // SAFETY: as in `write`.
        unsafe { std::slice::from_raw_parts(address as *const u8, length) }.to_vec()
    }

    pub fn set(&self, address: u64, word: u64) {
        self.write(address, &word.to_le_bytes());
    }

    pub fn get(&self, address: u64) -> u64 {
        // SAFETY: as in `write`; a word that only this thread writes.
        unsafe { (address as *const u64).read_unaligned() }
    }

    /// A word of a block; 0 is the overflow block.
    pub fn block(&self, number: u64, offset: u32) -> u64 {
        self.get(BLOCKS + number * STRIDE + u64::from(offset))
    }

    pub fn set_block(&self, number: u64, offset: u32, word: u64) {
        self.set(BLOCKS + number * STRIDE + u64::from(offset), word);
    }

    /// A counter's sum over all blocks.
    pub fn sum(&self, offset: u32) -> u64 {
        (0..u64::from(BLOCK_COUNT)).map(|number| self.block(number, offset)).sum()
    }

    /// `size` bytes at `address`, which nothing may change while they are looked at.
    fn in_place(&self, address: u64, size: u64) -> &[u64] {
        // SAFETY: aligned pages of this object, which only this thread writes.
        unsafe { std::slice::from_raw_parts(address as *const u64, size as usize / 8) }
    }

    /// The same, as they are now.
    pub fn words(&self, address: u64, size: u64) -> Vec<u64> {
        self.in_place(address, size).to_vec()
    }

    /// Return instances in use, in the pool and in all shadow blocks.
    pub fn open_calls(&self) -> usize {
        let layout = layout(true);
        let in_use = |address: u64, size: u64| {
            let words = self.in_place(address, size);
            words.iter().step_by(1 << (RETURN_SHIFT - 3)).filter(|&&point| point != 0).count()
        };
        let instances = layout.block_size() - u64::from(SHADOW_INSTANCES);
        let in_block =
            |block: u64| in_use(layout.shadow_block(block) + u64::from(SHADOW_INSTANCES), instances);
        in_use(layout.returns, POOL_SIZE) + (0..1 << RETURN_BITS).map(in_block).sum::<usize>()
    }

    /// The instance of a slot, which has a shadow block.
    pub fn instance(&self, slot: u64) -> u64 {
        model::instance_of(&mut Native(self), &layout(true), slot).expect("a shadow block")
    }

    /// Writes the exit with this number.
    pub fn write_exit(&self, address: u64, number: u32) {
        let mut code = vec![0x48, 0xa3]; // mov [control.rax], rax
        code.extend(CONTROL.to_le_bytes());
        code.push(0xb8); // mov eax, number
        code.extend(number.to_le_bytes());
        code.extend([0x48, 0xa3]); // mov [control.exit], rax
        code.extend((CONTROL + 136).to_le_bytes());
        code.extend([0x48, 0xb8]); // mov rax, exit; jmp rax
        code.extend((trapless_detour_exit as *const () as u64).to_le_bytes());
        code.extend([0xff, 0xe0]);
        self.write(address, &code);
    }

    /// A random state on the test's stack, which is filled, too.
    pub fn random(&self, random: &mut Random) -> State {
        let mut state = State {
            registers: std::array::from_fn(|_| random.next()),
            flags: random.next() & 0xcd5 | 0x202,
            extended: vectors::random(random),
        };
        state.registers[4] = SLOT;
        for word in (SLOT - 1024..SLOT + 1024).step_by(8) {
            self.set(word, random.next());
        }
        state
    }

    /// Runs from [`FUNCTION`] on as a thread, until an exit; its number comes first.
    pub fn run(&self, thread_pointer: u64, state: &State) -> (u64, State) {
        self.run_from(FUNCTION, thread_pointer, state)
    }

    pub fn run_from(&self, entry: u64, thread_pointer: u64, state: &State) -> (u64, State) {
        for (number, &register) in (0..).zip(&state.registers) {
            self.set(CONTROL + 8 * number, register);
        }
        for (at, word) in [(128, state.flags), (264, entry), (272, thread_pointer), (288, self.components)] {
            self.set(CONTROL + at, word);
        }
        self.write(BEFORE, &state.extended);
        self.write(AFTER, &[0; XSAVE]);
        // SAFETY: the code saves and restores what the ABI says it must, also the thread pointer and control words; no
        // code that needs TLS runs in between. What the code under test may write is this object's memory.
        unsafe { trapless_detour_run() };
        let after = State {
            registers: std::array::from_fn(|number| self.get(CONTROL + 8 * number as u64)),
            flags: self.get(CONTROL + 128) & 0xcd5 | 0x202,
            extended: vectors::compared(&self.read(AFTER, XSAVE)),
        };
        (self.get(CONTROL + 136), after)
    }
}

impl Machine {
    /// All flags as the last run left them.
    pub fn flags(&self) -> u64 {
        self.get(CONTROL + 128)
    }
}

/// The machine's memory for the model.
pub struct Native<'m>(pub &'m Machine);

impl model::Read for Native<'_> {
    fn load(&mut self, address: u64) -> u64 {
        self.0.get(address)
    }
}

impl model::Memory for Native<'_> {
    fn store(&mut self, address: u64, value: u64) {
        self.0.set(address, value);
    }
}
