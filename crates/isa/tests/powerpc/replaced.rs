//! Detours that lead to another function, run by the emulator: by which way each kind of caller gets there, and that it finds its TOC pointer behind the call.

use crate::machine::layout;
use crate::state::{Fault, Memory, Registers, emulate};
use std::collections::HashMap;
use trapless_isa::{
    BranchTargets, Detour, DetourRequest, Function, Hook, Isa, Payload, Reason, Runtime, Site, Steps,
    body::Runs, detour::Stack, powerpc::POWERPC64LE,
};

const FUNCTION: u64 = 0x1_0000_0000;
const ARENA: u64 = 0x1_0100_0000;
const CALLER: u64 = 0x7f00_0000_0000;
const ANOTHER: u64 = 0x7f12_3456_7000;
/// A caller in the function's file, and one in another.
const NEAR: u64 = FUNCTION + 0x8000;
const FAR: u64 = 0x7f55_0000_0000;
const STACK: u64 = 0x7fff_0000_0000;
const TOC: u64 = FUNCTION + 0x2_8000;
const OTHER_TOC: u64 = 0x7f12_3458_8000;

const NOP: u32 = 0x6000_0000;
const BLR: u32 = 0x4e80_0020;
const LD_R2: u32 = 0xe841_0018;
/// `addi r3,r3,1`
const ADD: u32 = 0x3863_0001;
/// `addis r2,r12,2; addi r2,r2,-32768`, by which r2 becomes [`TOC`].
const SETUP: [u32; 2] = [0x3c4c_0003, 0x3842_8000];
const FUNCTIONS: [&[u32]; 2] = [&[ADD, BLR], &[SETUP[0], SETUP[1], ADD, BLR]];

/// Memory of bytes; what is not there cannot be read.
#[derive(Clone, Default)]
struct Bytes(HashMap<u64, u8>);

impl Memory for Bytes {
    fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        for (byte, at) in bytes.iter_mut().zip(address..) {
            *byte = *self.0.get(&at).ok_or(Fault)?;
        }
        Ok(())
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.0.extend((address..).zip(bytes.iter().copied()));
        Ok(())
    }
}

struct World {
    registers: Registers,
    memory: Bytes,
    original: u64,
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn payload() -> Payload {
    let hooks = [Hook::Replace(Function::at(ANOTHER)), Hook::CalledBy(Function::at(CALLER))];
    Payload { hooks: Steps::of(hooks), ..Payload::default() }
}

fn detour(code: &[u8], payload: Payload) -> Result<Detour, Reason> {
    let targets = BranchTargets::default();
    let site = Site::new(FUNCTION, code, &targets);
    let displaced = POWERPC64LE.verdict(&site).jump.unwrap();
    POWERPC64LE.detour(&DetourRequest {
        runs: Runs::default(),
        address: ARENA,
        displaced,
        original: &code[(displaced.start - FUNCTION) as usize..][..4],
        site: &site,
        payload,
        stack: Stack::Enough,
        layout: &layout(4),
        runtime: &Runtime::default(),
        operands: &[],
        tells: true,
    })
}

impl World {
    fn new(code: &[u32]) -> Self {
        let code = bytes(code);
        let detour = detour(&code, payload()).unwrap();
        let targets = BranchTargets::default();
        let displaced = POWERPC64LE.verdict(&Site::new(FUNCTION, &code, &targets)).jump.unwrap();
        let mut memory = Bytes::default();
        memory.store(ARENA, &detour.code).unwrap();
        memory.store(FUNCTION, &code).unwrap();
        memory.store(displaced.start, &POWERPC64LE.patch(&displaced, ARENA).unwrap()).unwrap();
        memory.store(CALLER, &POWERPC64LE.caller(CALLER, 0).unwrap().code).unwrap();
        memory.store(STACK, &[0xee; 64]).unwrap();
        let mut registers = Registers::default();
        for (n, register) in registers.gpr.iter_mut().enumerate() {
            *register = 0x1111 * (n as u64 + 1);
        }
        registers.gpr[1] = STACK;
        registers.gpr[2] = TOC;
        let original = ARENA + u64::from(detour.original.unwrap());
        Self { registers, memory, original }
    }

    fn run(&mut self, from: u64, to: u64) {
        self.registers.pc = from;
        for _ in 0..1000 {
            if self.registers.pc == to {
                return;
            }
            let mut word = [0; 4];
            self.memory.load(self.registers.pc, &mut word).unwrap();
            emulate(&word, &mut self.registers, &mut self.memory, None).unwrap();
        }
        panic!("it is at {:#x}", self.registers.pc);
    }

    fn word(&mut self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.load(address, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

/// Registers that linkers' stubs leave alone, but for the TOC pointer.
fn kept(registers: &Registers) -> Vec<u64> {
    (1..32).filter(|n| ![2, 12].contains(n)).map(|n| registers.gpr[n]).collect()
}

#[test]
fn each_caller_finds_its_own_toc_pointer() {
    for code in FUNCTIONS {
        let local = FUNCTION + if code.len() > 2 { 8 } else { 0 };
        for (what, entry, home, behind, by_caller) in [
            ("a caller of the same file", local, NEAR, NOP, true),
            ("one through a stub", FUNCTION, FAR, LD_R2, false),
            ("one of the same file through a pointer", FUNCTION, NEAR, LD_R2, false),
            ("one that uses no TOC, in another file", FUNCTION, FAR, NOP, false),
            ("nobody", FUNCTION, 0, NOP, false),
        ] {
            let mut world = World::new(code);
            if home != 0 {
                world.memory.store(home, &behind.to_le_bytes()).unwrap();
            }
            world.registers.lr = home;
            if entry == FUNCTION {
                world.registers.gpr[12] = FUNCTION;
            }
            let before = world.registers;
            world.run(entry, ANOTHER);
            assert_eq!(kept(&world.registers), kept(&before), "{what}");
            assert_eq!(world.registers.gpr[12], ANOTHER, "{what}: it finds its TOC by r12");
            assert_eq!(world.registers.lr != home, by_caller, "{what}");
            // The other function saves its return address, and cr in 4 bytes, and comes back with its own TOC pointer.
            let back = world.registers.lr;
            world.memory.store(STACK + 16, &back.to_le_bytes()).unwrap();
            world.memory.store(STACK + 8, &[0xcc; 4]).unwrap();
            world.registers.gpr[2] = OTHER_TOC;
            world.registers.gpr[3] = 77;
            world.run(back, home);
            assert_eq!(world.registers.gpr[3], 77, "{what}");
            assert_eq!(world.registers.gpr[1], STACK, "{what}");
            let saved = world.word(STACK + 24);
            match by_caller {
                true => assert_eq!((world.registers.gpr[2], saved), (TOC, TOC), "{what}"),
                // It is the caller that looks there, for what its stub has put there.
                false => assert_eq!(saved, 0xeeee_eeee_eeee_eeee, "{what}"),
            }
        }
    }
}

#[test]
fn the_original_is_called_by_its_address_and_has_its_own_toc_pointer() {
    for code in FUNCTIONS {
        let mut world = World::new(code);
        world.registers.lr = FAR;
        world.registers.gpr[2] = OTHER_TOC;
        world.registers.gpr[12] = world.original;
        let before = world.registers;
        world.run(world.original, FAR);
        assert_eq!(world.registers.gpr[3], before.gpr[3] + 1);
        let toc = if code.len() > 2 { TOC } else { OTHER_TOC };
        assert_eq!(world.registers.gpr[2], toc);
    }
}

#[test]
fn nothing_is_replaced_without_what_calls_the_other_function() {
    let alone = Payload { hooks: Steps::of([Hook::Replace(Function::at(ANOTHER))]), ..Payload::default() };
    assert_eq!(detour(&bytes(FUNCTIONS[0]), alone).err(), Some(Reason::NoReplacement));
    let counted = Payload { entry: Steps::of([trapless_isa::EntryStep::Count(144)]), ..payload() };
    assert_eq!(detour(&bytes(FUNCTIONS[0]), counted).err(), Some(Reason::NoReplacement));
}
