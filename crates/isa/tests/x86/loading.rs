//! The routine that loads a library, run by this processor: what it calls, what it tells, and that nobody who was sent there sees a difference.

use std::arch::asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use trapless_isa::Machine;
use trapless_isa::loader::*;

/// Memory that can be written and run, at an address of the kernel's choice.
struct Memory(*mut u8);

const SIZE: usize = 0x1_0000;
/// Where the words are in it, behind the function and the routine.
const WORDS: usize = 0x8000;
const ROUTINE: usize = 0x40;

/// `lea rax, [rdi+1]` and `ret`: the function that the thread stood at.
const FUNCTION: [u8; 5] = [0x48, 0x8d, 0x47, 0x01, 0xc3];

impl Memory {
    fn new() -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, rights, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }

    fn at(&self, offset: usize) -> u64 {
        self.0.expose_provenance() as u64 + offset as u64
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SIZE);
        // SAFETY: within the mapping, which nobody else has.
        unsafe { self.0.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn bytes(&self, offset: u32, length: usize) -> Vec<u8> {
        // SAFETY: within the mapping, of which nobody writes now.
        unsafe { std::slice::from_raw_parts(self.0.add(WORDS + offset as usize), length).to_vec() }
    }

    fn word(&self, offset: u32) -> u64 {
        u64::from_le_bytes(self.bytes(offset, 8).try_into().unwrap())
    }
}

static CALLED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static HANDLE: AtomicU64 = AtomicU64::new(0);
static ADDRESS: AtomicU64 = AtomicU64::new(0);
static CANCEL: AtomicI32 = AtomicI32::new(0);
static SAID: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn called(what: String) {
    CALLED.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    // SAFETY: the thread's own. What a loader leaves in registers that functions need not keep is nobody's.
    unsafe {
        *libc::__errno_location() = 5;
        asm!("pcmpeqd xmm0, xmm0", "pcmpeqd xmm7, xmm7", "pcmpeqd xmm15, xmm15", out("xmm0") _, out("xmm7") _, out("xmm15") _);
        asm!("or rcx, -1", "mov rdx, rcx", "mov r8, rcx", "mov r10, rcx", "mov r11, rcx", out("rcx") _, out("rdx") _, out("r8") _, out("r10") _, out("r11") _);
    }
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int) -> u64 {
    let at = (&raw const flags).addr();
    // SAFETY: the routine hands over a text that ends.
    let path = unsafe { CStr::from_ptr(path) };
    called(format!("open {} {flags} {}", path.to_str().unwrap(), CANCEL.load(Ordering::Relaxed)));
    assert_ne!(at, 0);
    HANDLE.load(Ordering::Relaxed)
}

unsafe extern "C" fn find(handle: u64, symbol: *const c_char) -> u64 {
    // SAFETY: as above.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    called(format!("find {handle:#x} {}", symbol.to_str().unwrap()));
    ADDRESS.load(Ordering::Relaxed)
}

unsafe extern "C" fn error() -> *const c_void {
    called("error".to_owned());
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.is_empty() { std::ptr::null() } else { said.as_ptr().cast() }
}

unsafe extern "C" fn cancel(state: c_int, old: *mut c_int) -> c_int {
    let before = CANCEL.swap(state, Ordering::Relaxed);
    if !old.is_null() {
        // SAFETY: where the routine has room for it.
        unsafe { *old = before };
    }
    0
}

/// What is in registers that callers may know to be left alone.
type Kept = ([u64; 6], [u128; 3]);

/// Calls the routine as the function itself would be called, and gives what that returns, with what was in registers before and behind it.
fn call(entry: u64, argument: u64) -> (u64, Kept, Kept) {
    let before: Kept = (
        [1, 2, 3, 4, 5, 6].map(|n| n * 0x1111_2222_3333),
        [7, 8, 9].map(|n| n * 0x1_2345_6789_abcd_ef01_2345),
    );
    let mut after: Kept = Default::default();
    let mut result = argument;
    // SAFETY: the routine keeps all registers, and the function behind it changes rax. The stack is the caller's own, behind its red zone.
    unsafe {
        asm!(
            "movdqu xmm0, [r13]", "movdqu xmm7, [r13 + 16]", "movdqu xmm15, [r13 + 32]",
            "lea rsp, [rsp - 128]",
            "call r12",
            "lea rsp, [rsp + 128]",
            "movdqu [r14], xmm0", "movdqu [r14 + 16], xmm7", "movdqu [r14 + 32], xmm15",
            in("r12") entry,
            in("r13") &raw const before.1,
            in("r14") &raw mut after.1,
            inlateout("rax") 0u64 => result,
            in("rdi") argument,
            inlateout("rcx") before.0[0] => after.0[0],
            inlateout("rdx") before.0[1] => after.0[1],
            inlateout("rsi") before.0[2] => after.0[2],
            inlateout("r8") before.0[3] => after.0[3],
            inlateout("r10") before.0[4] => after.0[4],
            inlateout("r11") before.0[5] => after.0[5],
            out("xmm0") _, out("xmm7") _, out("xmm15") _,
        );
    }
    (result, before, after)
}

#[test]
fn the_routine_calls_the_loader_and_goes_on_as_if_nothing_had_happened() {
    let isa = Machine::X86_64.isa();
    let memory = Memory::new();
    memory.write(0, &FUNCTION);
    let long = vec![b'x'; 3 * LOAD_MOST_TEXT as usize];
    for (handle, address, said, with_cancel, calls) in [
        (0x1000, 0x2000, &b""[..], true, &["open /lib/fix.so 2 1", "find 0x1000 slow_fixed"][..]),
        (0x1000, 0x2000, b"", false, &["open /lib/fix.so 2 0", "find 0x1000 slow_fixed"]),
        (0, 0, b"no such file", true, &["open /lib/fix.so 2 1", "error"]),
        (0x1000, 0, b"no such symbol", true, &["open /lib/fix.so 2 1", "find 0x1000 slow_fixed", "error"]),
        (0, 0, b"", true, &["open /lib/fix.so 2 1", "error"]),
        (0, 0, &long, true, &["open /lib/fix.so 2 1", "error"]),
    ] {
        memory.write(WORDS, &[0; 0x2000]);
        HANDLE.store(handle, Ordering::Relaxed);
        ADDRESS.store(address, Ordering::Relaxed);
        CANCEL.store(0, Ordering::Relaxed);
        CALLED.lock().unwrap().clear();
        *SAID.lock().unwrap() = if said.is_empty() { Vec::new() } else { [said, &[0]].concat() };
        let address_of = |function: *const ()| function.expose_provenance() as u64;
        let loader = Loader {
            beyond: Beyond::Nothing,
            caller: None,
            way: memory.at(0),
            words: memory.at(WORDS),
            open: address_of(open as *const ()),
            find: address_of(find as *const ()),
            error: address_of(error as *const ()),
            errno: address_of(libc::__errno_location as *const ()),
            cancel: with_cancel.then(|| address_of(cancel as *const ())),
            path: b"/lib/fix.so",
            symbol: b"slow_fixed",
        };
        let code = isa.loader(&loader, memory.at(ROUTINE)).unwrap();
        memory.write(ROUTINE, &code);
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = 77 };
        let (result, before, after) = call(memory.at(ROUTINE), 41);
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 77, "errno is kept");
        assert_eq!(result, 42, "it goes on at the function");
        assert_eq!(before, after, "and all registers are what they were");
        assert_eq!(*CALLED.lock().unwrap(), calls);
        assert_eq!(CANCEL.load(Ordering::Relaxed), 0, "the thread can be cancelled again");
        assert_eq!(Stage::from_raw(memory.word(LOAD_STAGE)), Some(Stage::Done));
        assert_eq!([LOAD_HANDLE, LOAD_ADDRESS].map(|word| memory.word(word)), [handle, address]);
        let told = said.len().min(LOAD_MOST_TEXT as usize);
        assert_eq!(memory.word(LOAD_LENGTH), told as u64);
        assert_eq!(memory.bytes(LOAD_TEXT, told), said[..told]);
        assert!(
            memory.bytes(LOAD_TEXT + LOAD_MOST_TEXT, 64).iter().all(|byte| *byte == 0),
            "no more is written"
        );
    }
}

/// A detour that leads to another function does nothing else, and has the original behind the jump.
#[test]
fn a_detour_leads_to_another_function_and_keeps_the_original() {
    use trapless_isa::{
        BranchTargets, DetourRequest, Displaced, Function, Hook, Payload, Reason, Runtime, Site, Stack,
        Steps, body::Runs,
    };
    let isa = Machine::X86_64.isa();
    let code = [0x48, 0x8d, 0x47, 0x01, 0x90, 0x90, 0xc3];
    let targets = BranchTargets::default();
    let site = Site {
        address: 0x1000,
        function: 0x1000,
        code: &code,
        padding: &[],
        targets: &targets,
        observed: &[],
    };
    let replaced =
        Payload { hooks: Steps::of([Hook::Replace(Function::at(0x7fff_1234_5678))]), ..Payload::default() };
    let request = |site: &Site<'_>, payload| {
        isa.detour(&DetourRequest {
            address: 0x5000,
            displaced: Displaced { start: site.address, length: 5, instructions: 2 },
            original: &code[..5],
            site,
            payload,
            operands: &[],
            runs: Runs::default(),
            stack: Stack::Enough,
            layout: &crate::machine::layout(true),
            runtime: &Runtime::default(),
            tells: true,
        })
    };
    let detour = request(&site, replaced).unwrap();
    let jump = [&[0xff, 0x25, 0, 0, 0, 0][..], &0x7fff_1234_5678u64.to_le_bytes()].concat();
    assert_eq!(detour.code[..jump.len()], jump);
    assert_eq!(detour.copy_of(0x1000), Some(jump.len() as u32));
    assert_eq!(detour.code[jump.len()..][..5], code[..5]);
    // In the middle of a function there is none to be replaced, and nothing is counted where one is.
    let inside = Site { function: 0xff0, ..site };
    assert_eq!(request(&inside, replaced).unwrap_err(), Reason::NoReplacement);
    let counted = Payload { entry: Steps::of([trapless_isa::EntryStep::Count(144)]), ..replaced };
    assert_eq!(request(&site, counted).unwrap_err(), Reason::NoReplacement);
    for machine in [Machine::AArch64, Machine::PowerPc64Le] {
        assert!(machine.isa().inside().is_none());
    }
}
