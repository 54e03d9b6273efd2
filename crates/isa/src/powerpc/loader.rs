//! The routine that loads a library ([`crate::loader`]), and ahead of it, where that is not there yet, the one of the code that calls functions instead of others
//! ([`super::caller`]): out of memory, as a file that has no other name than that of its descriptor.
//!
//! ```text
//!     saves everything
//!     errno
//!     memfd_create, write, dlopen, close, dlsym
//!     dlopen, dlsym, dlerror
//!     puts everything back, and goes on at the function
//!     texts, the library of the calling code
//! ```
//!
//! All general registers are saved, though the C convention has functions keep some: what a caller knows of the probed function may be more (`-fipa-ra`).
//! So are all of the vector registers, and what says how they calculate.

use super::caller::NAME_BEHIND;
use super::emit::*;
use crate::Reason;
use crate::loader::*;
use alloc::vec::Vec;

/// `RTLD_NOW`, and neither `RTLD_GLOBAL` nor anything else (`bits/dlfcn.h`): what is missing shows at once, and nobody else's names change.
const NOW: i16 = 2;
/// `RTLD_NODELETE`, beside it: nobody can know that no call returns there any more.
const STAYS: i16 = 0x1000;

/// `PTHREAD_CANCEL_DISABLE` (`pthread.h`).
const CANCEL_DISABLE: i16 = 1;

/// System calls (`arch/powerpc/kernel/syscalls/syscall.tbl`), and `MFD_CLOEXEC`.
const WRITE: i16 = 4;
const CLOSE: i16 = 6;
const MEMFD_CREATE: i16 = 360;
const CLOSED_BY_EXEC: i16 = 1;

/// Where descriptors are files. It is spelled like nobody else's, since a loader takes a file for what it has loaded by the same name.
const DESCRIPTORS: &[u8] = b"/proc/self/./fd/";
/// Where loaders have a library's name behind its handle (`struct link_map` of glibc, `struct dso` of musl): behind its base. The number of a descriptor may soon
/// be another file's, which whoever resolves addresses would open, so the name becomes one that is no file's.
const NAME_OF_HANDLE: i16 = 8;

/// The frame, behind its header and room for the arguments of what is called: the former state of cancellation, the name of a descriptor,
/// registers, what a function without a frame may use, and the system below that.
const STATE: i16 = 96;
const PATH: i16 = STATE + 8;
const PATH_LENGTH: i16 = 40;
const GENERAL: i16 = PATH + PATH_LENGTH;
const SPECIAL: i16 = GENERAL + 32 * 8;
const CONDITIONS: i16 = SPECIAL + 8 * SPECIALS.len() as i16;
const FLOAT_STATUS: i16 = CONDITIONS + 8;
const VECTOR_STATUS: i16 = (FLOAT_STATUS + 8 + 15) & !15;
const VECTORS: i16 = VECTOR_STATUS + 16;
const SIZE: i16 = VECTORS + 64 * 16 + 512;
/// Where r0 is, which is saved before there is a frame.
const FIRST_PLACE: i16 = SIZE - 304;

/// VRSAVE.
const USED_VECTORS: u32 = 256;
const SPECIALS: [u32; 4] = [LR, CTR, XER, USED_VECTORS];

/// `mfcr r0`, and `mtcr r0`.
const READ_CONDITIONS: u32 = 0x7c00_0026;
const WRITE_CONDITIONS: u32 = 0x7c0f_f120;
/// `mfvscr v0`, and `mtvscr v0`, which is the vector register 32.
const READ_VECTOR_STATUS: u32 = 0x1000_0604;
const WRITE_VECTOR_STATUS: u32 = 0x1000_0644;
const V0: u32 = 32;
/// `lxvd2x vs0,0,r3`, and `stxvd2x vs0,0,r3`.
const LOAD_VECTOR: u32 = 0x7c00_1e98;
const STORE_VECTOR: u32 = 0x7c00_1f98;
/// `bctrl`
const CALL_COUNTER: u32 = 0x4e80_0421;
/// `divdu r6,r5,r4`
const DIVIDE: u32 = 0x7cc5_2392;

/// Registers that functions keep: the words, `errno` with what was in it, and a descriptor, or what was loaded.
const WORDS: Gpr = Gpr(30);
const ERRNO: Gpr = Gpr(29);
const ERROR: Gpr = Gpr(28);
const KEPT: Gpr = Gpr(27);

/// What stands behind the code.
struct Texts {
    path: Label,
    symbol: Label,
    library: Label,
    library_symbol: Label,
    memory: Label,
    descriptors: Label,
}

pub(super) fn make(loader: &Loader<'_>, at: u64) -> Result<Vec<u8>, Reason> {
    if loader.beyond != Beyond::Nothing {
        return Err(Reason::NoReplacement);
    }
    let mut asm = Asm::new(at);
    let [path, symbol, library, library_symbol, memory, descriptors] = [(); 6].map(|()| asm.label());
    let texts = Texts { path, symbol, library, library_symbol, memory, descriptors };
    save(&mut asm);
    load(&mut asm, loader, &texts);
    put_back(&mut asm);
    asm.branch_to(loader.way)?;
    let all = [(path, loader.path), (symbol, loader.symbol)];
    let of_caller = [
        (library, loader.caller.unwrap_or_default()),
        (library_symbol, CALLER.as_bytes()),
        (memory, CALLER_MEMORY.as_bytes()),
        (descriptors, DESCRIPTORS),
    ];
    for (label, text) in all.into_iter().chain(of_caller) {
        asm.bind(label);
        let ended: Vec<u8> = text.iter().copied().chain([0; 4]).collect();
        ended.as_chunks().0.iter().for_each(|bytes| asm.word(u32::from_le_bytes(*bytes)));
    }
    asm.finish()
}

/// Registers but the stack pointer and r0.
fn general() -> impl Iterator<Item = (Gpr, i16)> {
    (2..32).map(|number| (Gpr(number), GENERAL + 8 * number as i16))
}

fn specials() -> impl Iterator<Item = (u32, i16)> {
    SPECIALS.into_iter().zip((SPECIAL..).step_by(8))
}

fn vectors() -> impl Iterator<Item = (u32, i16)> {
    (0..64).zip((VECTORS..).step_by(16))
}

/// Where `lxvd2x` and `stxvd2x` have the number of a register, whose highest bit is the instruction's lowest.
const fn vector_register(number: u32) -> u32 {
    (number & 31) << 21 | number >> 5
}

/// Saves everything. The frame's back chain ends walks.
fn save(asm: &mut Asm) {
    asm.make_frame(SIZE, R0, FIRST_PLACE);
    general().for_each(|(register, place)| asm.store(register, R1, place));
    for (special, place) in specials() {
        asm.read_special(R0, special);
        asm.store(R0, R1, place);
    }
    asm.word(READ_CONDITIONS);
    asm.store(R0, R1, CONDITIONS);
    for (vector, place) in vectors() {
        asm.addi(R3, R1, place);
        asm.word(STORE_VECTOR | vector_register(vector));
    }
    asm.read_float_status(0);
    asm.store_float(0, R1, FLOAT_STATUS);
    asm.word(READ_VECTOR_STATUS);
    asm.addi(R3, R1, VECTOR_STATUS);
    asm.word(STORE_VECTOR | vector_register(V0));
}

/// Puts it back.
fn put_back(asm: &mut Asm) {
    asm.addi(R3, R1, VECTOR_STATUS);
    asm.word(LOAD_VECTOR | vector_register(V0));
    asm.word(WRITE_VECTOR_STATUS);
    asm.load_float(0, R1, FLOAT_STATUS);
    asm.write_float_status(0);
    for (vector, place) in vectors() {
        asm.addi(R3, R1, place);
        asm.word(LOAD_VECTOR | vector_register(vector));
    }
    asm.load(R0, R1, CONDITIONS);
    asm.word(WRITE_CONDITIONS);
    for (special, place) in specials() {
        asm.load(R0, R1, place);
        asm.write_special(special, R0);
    }
    general().for_each(|(register, place)| asm.load(register, R1, place));
    asm.load(R0, R1, FIRST_PLACE);
    asm.addi(R1, R1, SIZE);
}

/// What is done meanwhile.
fn load(asm: &mut Asm, loader: &Loader<'_>, texts: &Texts) {
    let [failed, copy, copied, done] = [(); 4].map(|()| asm.label());
    asm.load_constant(WORDS, loader.words);
    stage(asm, Stage::Begun);
    call(asm, loader.errno);
    asm.copy(ERRNO, R3);
    asm.load_word(ERROR, R3, 0);
    if let Some(cancel) = loader.cancel {
        asm.load_constant(R3, CANCEL_DISABLE as u64);
        asm.addi(R4, R1, STATE);
        call(asm, cancel);
    }
    if let Some(library) = loader.caller {
        load_caller(asm, loader, library.len(), texts, [failed, done]);
    }
    asm.load_address(R3, texts.path);
    asm.load_constant(R4, NOW as u64);
    call(asm, loader.open);
    asm.store(R3, WORDS, LOAD_HANDLE as i16);
    asm.compare_immediate(R3, 0);
    asm.branch_if(When::Equal, failed);
    asm.load_address(R4, texts.symbol);
    call(asm, loader.find);
    asm.store(R3, WORDS, LOAD_ADDRESS as i16);
    asm.compare_immediate(R3, 0);
    asm.branch_if(When::NotEqual, done);

    asm.bind(failed);
    call(asm, loader.error);
    asm.compare_immediate(R3, 0);
    asm.branch_if(When::Equal, done);
    asm.load_constant(R4, 0);
    asm.bind(copy);
    asm.add(R5, R3, R4);
    asm.load_byte(R6, R5, 0);
    asm.compare_immediate(R6, 0);
    asm.branch_if(When::Equal, copied);
    asm.add(R5, WORDS, R4);
    asm.store_byte(R6, R5, LOAD_TEXT as i16);
    asm.addi(R4, R4, 1);
    asm.compare_immediate(R4, LOAD_MOST_TEXT as i16);
    asm.branch_if(When::Less, copy);
    asm.bind(copied);
    asm.store(R4, WORDS, LOAD_LENGTH as i16);

    asm.bind(done);
    if let Some(cancel) = loader.cancel {
        asm.load_word(R3, R1, STATE);
        asm.load_constant(R4, 0);
        call(asm, cancel);
    }
    asm.store_word(ERROR, ERRNO, 0);
    stage(asm, Stage::Done);
}

/// Loads the library of the calling code; or off to `failed`, or where the kernel has no such memory to `done`.
fn load_caller(asm: &mut Asm, loader: &Loader<'_>, length: usize, texts: &Texts, [failed, done]: [Label; 2]) {
    let [made, digit, prefix, known] = [(); 4].map(|()| asm.label());
    asm.load_address(R3, texts.memory);
    asm.load_constant(R4, CLOSED_BY_EXEC as u64);
    system_call(asm, MEMFD_CREATE);
    asm.branch_if(When::Succeeded, made);
    asm.branch(done);
    asm.bind(made);
    asm.copy(KEPT, R3);
    asm.load_address(R4, texts.library);
    asm.load_constant(R5, length as u64);
    // What was not written whole is no library.
    system_call(asm, WRITE);

    // Its name, from the last digit on.
    asm.addi(R3, R1, PATH + PATH_LENGTH - 1);
    asm.load_constant(R4, 0);
    asm.store_byte(R4, R3, 0);
    asm.load_constant(R4, 10);
    asm.copy(R5, KEPT);
    asm.bind(digit);
    asm.word(DIVIDE);
    asm.multiply(R7, R6, R4);
    asm.sub(R7, R5, R7);
    asm.addi(R7, R7, i16::from(b'0'));
    asm.addi(R3, R3, -1);
    asm.store_byte(R7, R3, 0);
    asm.copy(R5, R6);
    asm.compare_immediate(R5, 0);
    asm.branch_if(When::NotEqual, digit);
    asm.load_address(R4, texts.descriptors);
    asm.addi(R5, R4, DESCRIPTORS.len() as i16);
    asm.bind(prefix);
    asm.addi(R5, R5, -1);
    asm.load_byte(R6, R5, 0);
    asm.addi(R3, R3, -1);
    asm.store_byte(R6, R3, 0);
    asm.compare(R5, R4);
    asm.branch_if(When::NotEqual, prefix);
    asm.load_constant(R4, (NOW | STAYS) as u64);
    call(asm, loader.open);
    asm.copy(R9, KEPT);
    asm.copy(KEPT, R3);
    asm.copy(R3, R9);
    system_call(asm, CLOSE);
    asm.compare_immediate(KEPT, 0);
    asm.branch_if(When::Equal, failed);
    asm.copy(R3, KEPT);
    asm.load_address(R4, texts.library_symbol);
    call(asm, loader.find);
    asm.store(R3, WORDS, LOAD_CALLER as i16);
    asm.compare_immediate(R3, 0);
    asm.branch_if(When::Equal, failed);
    // It is called as what it is, if its name is where it is looked for.
    asm.load(R5, KEPT, NAME_OF_HANDLE);
    asm.load(R6, R5, 0);
    asm.load_address(R4, texts.descriptors);
    asm.load(R7, R4, 0);
    asm.compare(R6, R7);
    asm.branch_if(When::NotEqual, known);
    asm.addi(R3, R3, NAME_BEHIND);
    asm.store(R3, KEPT, NAME_OF_HANDLE);
    asm.bind(known);
}

/// What was stored before is seen by who sees this.
fn stage(asm: &mut Asm, stage: Stage) {
    asm.load_constant(R3, stage as u64);
    asm.light_sync();
    asm.store(R3, WORDS, LOAD_STAGE as i16);
}

fn call(asm: &mut Asm, address: u64) {
    asm.load_constant(R12, address);
    asm.write_special(CTR, R12);
    asm.word(CALL_COUNTER);
}

fn system_call(asm: &mut Asm, number: i16) {
    asm.load_constant(R0, number as u64);
    asm.system_call();
}
