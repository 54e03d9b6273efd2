//! The routine that loads a library, under qemu-user: what it calls, what it tells, and that nobody who was sent there sees a difference.

use crate::cross::Cross;
use crate::machine::{ARENA, FUNCTION, HOME, SLOT, Script, branch, registers, thread};
use crate::oracle::Random;
use trapless_isa::{Isa, loader::*, powerpc::POWERPC64LE};

const ROUTINE: u64 = ARENA + 0x8000;
/// Where a thread fills its vectors, goes on, and tells them.
const FILL: u64 = FUNCTION + 0x2000;
const WAY: u64 = FUNCTION + 0x3000;
/// The loader's functions, each this far behind the last: `errno`, `dlopen`, `dlsym`, `dlerror`, `pthread_setcancelstate`.
const FUNCTIONS: u64 = FUNCTION + 0x4000;
const NEXT: u64 = 0x400;

/// In the memory of the header: what functions were called with, `errno`, a text, the words, and vectors before and after.
const DATA: u64 = 0x2201_8000;
const ERRNO: u64 = DATA + 0x100;
const TEXT: u64 = DATA + 0x200;
const WORDS: u64 = 0x2300_0000;
const BEFORE: u64 = DATA + 0x1000;
const AFTER: u64 = DATA + 0x2000;

/// `lis r11,high; ori r11,r11,low` for an address of 31 bits, in r`register`.
fn set(register: u32, value: u64) -> [u32; 2] {
    let (high, low) = ((value >> 16) as u32, value as u32 & 0xffff);
    [0x3c00_0000 | register << 21 | high, 0x6000_0000 | register << 21 | register << 16 | low]
}

/// For each vector register, an instruction and `addi r14,r14,16`.
fn vectors(opcode: u32) -> Vec<u32> {
    // XX1-form: the register's highest bit is the instruction's lowest.
    let each = |n: u32| [opcode | (n & 31) << 21 | 14 << 11 | n >> 5, 0x39ce_0010];
    (0..64).flat_map(each).collect()
}

/// Notes r3 and r4, loses all that a function may lose, and gives `result`.
fn function(number: u64, result: u64, then: &[u32]) -> Vec<u32> {
    // It finds itself by r12, as functions do.
    let mut words = set(11, DATA + 16 * number).to_vec();
    words.extend([0xf86b_0000, 0xf88b_0008, 0xf98b_0000 | 0x80]);
    words.extend(then);
    words.extend([0, 4, 5, 6, 7, 8, 9, 10, 12].map(|register: u32| 0x3800_ffff | register << 21));
    // r2, ctr, xer, cr, FPSCR and vectors.
    words.extend([0x3840_1234, 0x7c09_03a6, 0x7c01_03a6, 0x7c0f_f120, 0xfc00_004c | 31 << 21]);
    words.extend([0, 1, 13, 31].map(|n: u32| 0xf000_04d0 | n << 21 | n << 16 | n << 11));
    words.extend([0, 1, 19].map(|n: u32| 0x1000_04c4 | n << 21 | n << 16 | n << 11));
    words.extend(set(3, result));
    words.push(0x4e80_0020);
    words
}

#[test]
fn the_routine_calls_the_loader_and_goes_on_as_if_nothing_had_happened() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(7);
    for (case, (handle, address, said, with_cancel)) in [
        (0x1000, 0x2000, &b""[..], true),
        (0x1000, 0x2000, b"", false),
        (0, 0, b"no such file", true),
        (0x1000, 0, b"no such symbol", true),
        (0, 0, &[b'x'; 3 * LOAD_MOST_TEXT as usize], true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut script = Script::new(2);
        let at = |number: u64| FUNCTIONS + NEXT * number;
        // `errno` becomes 5: stw r0,… by way of r9, which is free.
        let loses: Vec<u32> = set(9, ERRNO).into_iter().chain([0x3800_0005, 0x9009_0000]).collect();
        script.code(at(0), &function(0, ERRNO, &[]));
        script.code(at(1), &function(1, handle, &loses));
        script.code(at(2), &function(2, address, &loses));
        script.code(at(3), &function(3, TEXT, &loses));
        // It gives the former state, 0, where it is asked to.
        script.code(at(4), &function(4, 0, &[0x2c24_0000, 0x4182_000c, 0x3800_0000, 0x9004_0000]));
        script.write(DATA, &[0; 0x80]);
        script.write(ERRNO, &77u64.to_le_bytes());
        script.write(TEXT, &[said, &[0]].concat()[..(said.len() + 1).min(0xe00)]);
        script.write(WORDS, &[0; 0x1000]);
        let filled: Vec<u8> = (0..64 * 2).flat_map(|_| random.next().to_le_bytes()).collect();
        script.write(BEFORE, &filled);
        script.write(AFTER, &vec![0; filled.len()]);
        let mut fill = set(14, BEFORE).to_vec();
        fill.extend(vectors(0x7c00_0698));
        fill.push(branch(FILL + 4 * fill.len() as u64, ROUTINE));
        script.code(FILL, &fill);
        let mut way = set(14, AFTER).to_vec();
        way.extend(vectors(0x7c00_0798));
        way.push(branch(WAY + 4 * way.len() as u64, HOME));
        script.code(WAY, &way);
        let loader = Loader {
            caller: None,
            beyond: Beyond::Nothing,
            way: WAY,
            words: WORDS,
            open: at(1),
            find: at(2),
            error: at(3),
            errno: at(0),
            cancel: with_cancel.then_some(at(4)),
            path: b"/lib/fix.so",
            symbol: b"slow_fixed",
        };
        script.write(ROUTINE, &POWERPC64LE.loader(&loader, ROUTINE).unwrap());
        let mut before = registers(&mut random, FILL, SLOT, 0x1234_5678, thread(1));
        before.pc = FILL;
        let below = script.read(SLOT - 288, 288);
        let ran = script.run(&before);
        let still = script.read(SLOT - 288, 288);
        let after = script.read(AFTER, filled.len() as u64);
        let errno = script.read(ERRNO, 8);
        let calls = script.read(DATA, 0x50);
        let words = script.read(WORDS, 0x1000);
        let answers = script.play(&cross, &format!("loading_{case}"));
        let mut went = answers.registers(ran);
        assert_eq!(went.pc, HOME, "case {case}: it goes on at the function");
        (went.pc, went.gpr[14]) = (before.pc, before.gpr[14]);
        assert_eq!(went, before, "case {case}: all registers are what they were");
        assert!(answers.bytes(after) == filled, "case {case}: vectors are what they were");
        assert_eq!(
            answers.bytes(below),
            answers.bytes(still),
            "case {case}: what lies below the stack pointer"
        );
        assert_eq!(answers.number(errno), 77, "case {case}: errno is kept");
        let word = |bytes: &[u8], at: u32| {
            u64::from_le_bytes(bytes[at as usize..at as usize + 8].try_into().unwrap())
        };
        let (calls, words) = (answers.bytes(calls), answers.bytes(words));
        // What functions were called with: the mode of loading, the handle, and states of cancellation.
        assert_eq!(word(calls, 16 + 8), 2, "case {case}");
        assert_eq!(word(calls, 32), handle, "case {case}");
        assert_eq!(word(calls, 64), 0, "case {case}: it can be cancelled again");
        assert_eq!(Stage::from_raw(word(words, LOAD_STAGE)), Some(Stage::Done), "case {case}");
        assert_eq!([LOAD_HANDLE, LOAD_ADDRESS].map(|at| word(words, at)), [handle, address], "case {case}");
        let told = if address == 0 { said.len().min(LOAD_MOST_TEXT as usize) } else { 0 };
        assert_eq!(word(words, LOAD_LENGTH), told as u64, "case {case}");
        let text = &words[LOAD_TEXT as usize..];
        assert!(text[..told] == said[..told], "case {case}");
        assert!(text[told..].iter().take(64).all(|byte| *byte == 0), "case {case}: no more is written");
    }
}
