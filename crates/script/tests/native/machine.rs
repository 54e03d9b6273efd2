//! A target in our own process: a region, a thread's block and code that can be run.

#[cfg_attr(target_arch = "aarch64", path = "machine/aarch64.rs")]
#[cfg_attr(target_arch = "powerpc64", path = "machine/powerpc64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "machine/x86_64.rs")]
mod own;

pub use own::{ARGUMENTS, MACHINE, STATE};

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use trapless_isa::body::{Change, Convention, Extra, Takes};
use trapless_isa::passed::{FLOAT, MEMORY, MOST_PASSED, Number, Wanted};
use trapless_script::ir::{BodyId, Program};
use trapless_script::native::{Abi, Moment, NativeProgram, Refusal, Target, compile};
use trapless_wire::{Atomics, Clock, MessageRing, PAGE, Words, WordsMut};

/// Where the script's parts are.
pub const SHARED: u64 = PAGE;
pub const BLOCK: u32 = trapless_wire::SCRIPT_BLOCK;
pub const RING_BITS: u32 = 16;

pub const TARGET: Target = Target { machine: MACHINE, ring_bits: RING_BITS, abis: &[Abi::C] };

/// How many general registers a body is told of.
pub const REGISTERS: usize = convention().registers.len();

/// How bodies are called here.
pub const fn convention() -> &'static Convention {
    Convention::of(MACHINE).unwrap()
}

/// Whether the kernel reads memory for us: emulators of programs mostly do not.
pub fn reads_memory() -> bool {
    let (from, mut to) = (1u64, 0u64);
    let local = libc::iovec { iov_base: (&raw mut to).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: (&raw const from).cast_mut().cast(), iov_len: 8 };
    // SAFETY: the kernel writes eight bytes to `to`, or nothing.
    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == 8 }
}

/// Memory from `mmap`.
pub struct Mapping {
    pub address: *mut u8,
    pub size: usize,
}

// SAFETY: all access to what threads share goes by atomic words or by the code under test.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(size: u64) -> Self {
        let size = (size as usize).next_multiple_of(4096).max(4096);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which nobody else knows of.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Self { address: address.cast(), size }
    }

    pub fn protect(&self, offset: usize, size: usize, protection: i32) {
        assert!(offset + size <= self.size);
        // SAFETY: within the mapping, which holds no Rust object.
        let done = unsafe { libc::mprotect(self.address.add(offset).cast(), size, protection) };
        assert_eq!(done, 0);
    }

    fn word_at(&self, offset: u64) -> Option<&AtomicU64> {
        let end = offset.checked_add(8)?;
        // SAFETY: an aligned word within the mapping, which lives as long as `self`.
        (end <= self.size as u64 && offset.is_multiple_of(8))
            .then(|| unsafe { &*self.address.add(offset as usize).cast::<AtomicU64>() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nothing borrows from it any more.
        unsafe { libc::munmap(self.address.cast(), self.size) };
    }
}

impl Words for Mapping {
    fn word(&self, offset: u64) -> u64 {
        self.word_at(offset).map_or(0, |word| word.load(SeqCst))
    }
}

impl WordsMut for Mapping {
    fn set_word(&self, offset: u64, value: u64) {
        if let Some(word) = self.word_at(offset) {
            word.store(value, SeqCst);
        }
    }
}

impl Atomics for Mapping {
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.word_at(offset).map_or(Err(0), |word| word.compare_exchange(current, new, SeqCst, SeqCst))
    }

    fn fetch_add(&self, offset: u64, value: u64) -> u64 {
        self.word_at(offset).map_or(0, |word| word.fetch_add(value, SeqCst))
    }
}

/// Operands as a body is given them, in one page.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(256))]
pub struct Passed(pub [[u64; 2]; MOST_PASSED]);

/// How many arguments USDT probes have here.
pub const OPERANDS: usize = 4;

/// How many words there are of what bodies change.
pub const CHANGES: usize = Change::Arguments as usize + ARGUMENTS;

/// A hit: what a detour would hand over.
#[derive(Clone, Debug)]
pub struct Hit {
    pub arguments: [u64; ARGUMENTS],
    pub registers: [u64; REGISTERS],
    pub floats: [u64; 8],
    /// What a detour makes of the first arguments of a USDT probe: a word and its form.
    pub operands: [[u64; 2]; OPERANDS],
    /// Where they are for the body that is called: those that it asks for.
    pub passed: Cell<Passed>,
    /// What a body has changed: [`CHANGES`] words.
    pub changed: Cell<[u64; CHANGES]>,
    pub site: u64,
    pub ticks: u64,
    pub entered: u64,
    pub processor: u64,
    pub tid: u64,
    pub instruction: u64,
    /// What lies at the stack pointer of the hit.
    pub stack: [u64; 2],
}

/// Has the thread stay on the processor that it runs on, and tells which that is, and its node from bit 12 on.
fn stay_on_this_one() -> u64 {
    let [mut processor, mut node] = [0u32; 2];
    // SAFETY: the calls read and write the variables that they are given, with their sizes.
    unsafe {
        libc::syscall(libc::SYS_getcpu, &mut processor, &mut node, 0);
        let mut only: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor as usize, &mut only);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&only), &only), 0);
    }
    u64::from(node) << 12 | u64::from(processor)
}

impl Default for Hit {
    fn default() -> Self {
        // SAFETY: it has no preconditions.
        let tid = unsafe { libc::gettid() } as u64;
        Self {
            arguments: [0; ARGUMENTS],
            registers: [0; REGISTERS],
            floats: [0; 8],
            operands: [[0; 2]; OPERANDS],
            passed: Cell::default(),
            changed: Cell::default(),
            site: 3,
            ticks: 1_000_000,
            entered: 999_000,
            processor: if convention().tells_processor { 1 << 12 | 5 } else { stay_on_this_one() },
            tid,
            instruction: 0x40_1000,
            stack: [0x1234, 0],
        }
    }
}

impl Hit {
    /// With these first arguments.
    pub fn with(first: &[u64]) -> Self {
        let mut hit = Self::default();
        hit.arguments[..first.len()].copy_from_slice(first);
        hit
    }

    /// What lies on the stack. Takes no memory of the heap: handlers ask for it, too.
    pub fn extras(&self, takes: Takes, wanted: &[Wanted]) -> ([u64; Extra::ALL.len()], usize) {
        let mut passed = self.passed.get();
        for (to, wanted) in passed.0.iter_mut().zip(wanted) {
            *to = self.operand(*wanted);
        }
        self.passed.set(passed);
        let address = |words: &[u64]| words.as_ptr() as u64;
        let mut extras = [0; Extra::ALL.len()];
        for (place, extra) in extras.iter_mut().zip(takes.iter()) {
            *place = match extra {
                Extra::Site => self.site,
                Extra::Time => self.ticks,
                Extra::Entered => self.entered,
                Extra::Processor => self.processor,
                Extra::Tid => self.tid,
                Extra::StackPointer => address(&self.stack),
                Extra::InstructionPointer => self.instruction,
                Extra::Registers => address(&self.registers),
                Extra::Floats => address(&self.floats),
                Extra::Operands => self.passed.as_ptr() as u64,
                Extra::Changes => self.changed.as_ptr() as u64,
            };
        }
        (extras, takes.count() as usize)
    }

    /// An operand as it is passed for what it is taken for: a note that says otherwise would have been refused.
    pub fn operand(&self, wanted: Wanted) -> [u64; 2] {
        let [word, form] = self.operands[usize::from(wanted.argument) % OPERANDS];
        let size = form & 8 | if form & 12 == 4 { 4 } else { 0 };
        let memory = form & u64::from(MEMORY);
        let form = match wanted.number {
            Number::Integer if memory == 0 => 0,
            Number::Integer => form & !u64::from(FLOAT),
            // A double in a register, a float in one, or either in memory.
            Number::Float if memory == 0 && size == 8 => 0,
            Number::Float if memory == 0 => 4 | u64::from(FLOAT),
            Number::Float if size == 8 => memory | u64::from(FLOAT) | 8,
            Number::Float => memory | u64::from(FLOAT) | 4,
        };
        [word, form]
    }
}

/// A program that is ready to run, with memory for some threads.
pub struct Ready {
    pub native: NativeProgram,
    pub region: Mapping,
    #[expect(dead_code, reason = "it is run")]
    code: Mapping,
    bodies: Vec<(usize, Takes, Vec<Wanted>)>,
    blocks: u64,
    stride: u64,
}

pub fn clock(number: u32) -> Clock {
    Clock { ticks_base: 77, base: 1_000 * u64::from(number), scale: (1 << 32) + (u64::from(number) << 30) }
}

impl Ready {
    pub fn new(program: &Program, bodies: &[(BodyId, Moment)], threads: u64) -> Result<Self, Refusal> {
        let native = compile(program, bodies, &TARGET)?;
        let blocks = (SHARED + native.layout.shared).next_multiple_of(PAGE);
        let stride = (u64::from(BLOCK) + u64::from(native.layout.thread)).next_multiple_of(PAGE);
        let region = Mapping::new(blocks + stride * threads);
        // It serves as the origin word itself.
        let origin = SHARED + u64::from(trapless_wire::SCRIPT_ORIGIN);
        region.set_word(origin, region.address as u64 + origin);
        for number in 0..5 {
            for (word, at) in clock(number).words().into_iter().zip((0..).step_by(8)) {
                region.set_word(SHARED + u64::from(Clock::offset(number)) + at, word);
            }
        }
        for (bytes, at) in program.constants.iter().zip(&native.layout.constants) {
            // SAFETY: the layout has room for the constants there, and nobody else has the region.
            unsafe { region.address.add((SHARED + at) as usize).copy_from(bytes.as_ptr(), bytes.len()) };
        }
        let pieces: Vec<_> = native.code.routines.iter().chain(&native.code.bodies).collect();
        let mut starts = Vec::new();
        let mut next = 0usize;
        for piece in &pieces {
            assert!(piece.is_sound(native.code.routines.len()), "{piece:?}");
            starts.push(next);
            next = (next + piece.bytes.len()).next_multiple_of(16);
        }
        let code = Mapping::new(next as u64);
        for (piece, start) in pieces.iter().zip(&starts) {
            let address = code.address as u64;
            let routine = |number: u16| address + starts[usize::from(number)] as u64;
            let bytes = piece.placed(address + *start as u64, region.address as u64 + SHARED, routine);
            // SAFETY: the mapping has room for all pieces.
            unsafe { code.address.add(*start).copy_from(bytes.as_ptr(), bytes.len()) };
        }
        code.protect(0, code.size, libc::PROT_READ | libc::PROT_EXEC);
        let first = native.code.routines.len();
        let bodies = starts[first..].iter().zip(&native.code.bodies);
        let bodies = bodies
            .map(|(start, body)| (code.address as usize + start, body.takes, body.operands.clone()))
            .collect();
        Ok(Self { native, region, code, bodies, blocks, stride })
    }

    pub fn block(&self, thread: u64) -> u64 {
        self.region.address as u64 + self.blocks + thread * self.stride
    }

    /// Offset of a thread's part in the region.
    pub fn part(&self, thread: u64) -> u64 {
        self.blocks + thread * self.stride + u64::from(BLOCK)
    }

    pub fn ring(&self, thread: u64) -> MessageRing {
        MessageRing { at: self.part(thread), bits: self.native.layout.ring_bits }
    }

    pub fn run(&self, body: usize, thread: u64, hit: &Hit) {
        let (code, (extras, count)) = (self.bodies[body].0, self.extras(body, hit));
        // SAFETY: code that was compiled for this region, called as it asks for.
        unsafe { call_body(code, self.block(thread), &hit.arguments, extras.as_ptr(), count) };
    }

    /// The same, with a SIGTRAP after each instruction.
    #[cfg(target_arch = "x86_64")]
    pub fn run_stepped(&self, body: usize, thread: u64, hit: &Hit) {
        let (code, (extras, count)) = (self.bodies[body].0, self.extras(body, hit));
        // SAFETY: the trap flag is set and taken away again; a handler is there. The rest as above.
        unsafe {
            std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
            call_body(code, self.block(thread), &hit.arguments, extras.as_ptr(), count);
            std::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq");
        }
    }

    /// The same with registers and vectors full of patterns; those afterwards.
    pub fn run_watched(&self, body: usize, thread: u64, hit: &Hit, before: &[u64; STATE]) -> [u64; STATE] {
        let (code, (extras, count)) = (self.bodies[body].0, self.extras(body, hit));
        let mut state = *before;
        state[usize::from(convention().block)] = self.block(thread);
        let mut after = [0; STATE];
        // SAFETY: as above.
        unsafe { call_watched(code, &state, &mut after, extras.as_ptr(), count) };
        after
    }

    /// Runs a body many times with arguments that `next` gives, without anything around it. For measurements.
    pub fn run_many(&self, body: usize, thread: u64, hits: &[[u64; ARGUMENTS]], extras: &[u64]) {
        for arguments in hits {
            // SAFETY: as above.
            unsafe {
                call_body(self.bodies[body].0, self.block(thread), arguments, extras.as_ptr(), extras.len())
            };
        }
    }

    /// What lies on the stack of a body's hit.
    pub fn extras(&self, body: usize, hit: &Hit) -> ([u64; Extra::ALL.len()], usize) {
        hit.extras(self.bodies[body].1, &self.bodies[body].2)
    }
}

// Of each machine.
unsafe extern "C" {
    fn call_body(body: usize, block: u64, arguments: &[u64; ARGUMENTS], extras: *const u64, count: usize);
    fn call_watched(
        body: usize,
        before: &[u64; STATE],
        after: &mut [u64; STATE],
        extras: *const u64,
        count: usize,
    );
}
