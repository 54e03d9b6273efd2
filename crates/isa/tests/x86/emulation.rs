//! Emulated instructions end in the state that the processor ends in.

use crate::conditions::flags_of;
use crate::execution::{AWAY, ON, ROUNDS, TAKEN, assemble, random_state};
use crate::processor::{self, DATA, FLAGS, ORIGINAL, Processor, Random, WINDOW};
use trapless_isa::x86::emulate;
use trapless_isa::{EmulateError, Machine, Thread};

/// Saved registers and the two windows of memory that the processor's runs have.
pub struct Saved {
    pub registers: [u64; 16],
    pub flags: u64,
    pub ip: u64,
    pub memory: [u8; 2 * WINDOW],
    /// Base of fs, where it is known. The base of gs is [`DATA`].
    pub fs: Option<u64>,
}

impl Saved {
    fn index(&self, address: u64, size: u8) -> Option<usize> {
        let stack = Processor::stack() - WINDOW as u64 / 2;
        [(DATA, 0), (stack, WINDOW)].iter().find_map(|(start, offset)| {
            let at = usize::try_from(address.checked_sub(*start)?).ok()?;
            (at + usize::from(size) <= WINDOW).then_some(at + offset)
        })
    }
}

impl Thread for Saved {
    fn register(&self, number: u8) -> u64 {
        self.registers[usize::from(number)]
    }

    fn set_register(&mut self, number: u8, value: u64) {
        self.registers[usize::from(number)] = value;
    }

    fn flags(&self) -> u64 {
        self.flags
    }

    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
    }

    fn set_ip(&mut self, address: u64) {
        self.ip = address;
    }

    fn segment_base(&self, gs: bool) -> Option<u64> {
        if gs { Some(DATA) } else { self.fs }
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        let at = self.index(address, size)?;
        let mut bytes = [0; 8];
        bytes[..size.into()].copy_from_slice(&self.memory[at..at + usize::from(size)]);
        Some(u64::from_le_bytes(bytes))
    }

    fn write(&mut self, address: u64, size: u8, value: u64) -> Option<()> {
        let at = self.index(address, size)?;
        self.memory[at..at + usize::from(size)].copy_from_slice(&value.to_le_bytes()[..size.into()]);
        Some(())
    }
}

/// Operands that carry, overflow and cancel out.
pub fn edge(random: &mut Random) -> u64 {
    const EDGES: [u64; 12] =
        [0, 1, 0xf, 0x10, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0x8000_0000, u64::MAX, 1 << 63, i64::MAX as u64];
    EDGES[random.next() as usize % EDGES.len()]
}

/// The exit that stands where an emulated instruction, which ends at `end`, leads.
pub fn exit_of(ip: u64, end: u64) -> u64 {
    match ip {
        _ if ip == end => ON.into(),
        TAKEN => AWAY.into(),
        _ => panic!("goes to {ip:#x}"),
    }
}

fn prove(processor: &Processor, bits: u32, name: &str, text: &str, rounds: u32) {
    let bytes = assemble(text);
    let end = ORIGINAL + bytes.len() as u64;
    processor.write(ORIGINAL, &bytes);
    processor.write_exit(end, ON);
    processor.write_exit(TAKEN, AWAY);
    let mut random = Random(u64::from(bits) + 1);
    for round in 0..rounds {
        let mut memory = [0; 2 * WINDOW];
        let mut state = random_state(&mut random, bits, &mut memory);
        if round < 64 {
            state.flags = flags_of(round.into());
        }
        if round % 2 == 0 {
            state.registers[2] = edge(&mut random);
            state.registers[5] = edge(&mut random);
            if bits == 32 {
                state.registers = state.registers.map(|r| r & 0xffff_ffff);
            }
        }
        let mut saved =
            Saved { registers: state.registers, flags: state.flags & FLAGS, ip: ORIGINAL, memory, fs: None };
        let expected = processor.run(ORIGINAL, &state, &mut memory);
        while (ORIGINAL..end).contains(&saved.ip) {
            let at = saved.ip;
            let emulated = emulate(bits, &bytes[(at - ORIGINAL) as usize..], at, &mut saved);
            assert_eq!(emulated, Ok(()), "{name}");
        }
        let exit = exit_of(saved.ip, end);
        let found = processor::State { registers: saved.registers, flags: saved.flags, exit, fault: 0 };
        assert_eq!(expected, found, "{name} from {state:x?}");
        assert!(memory == saved.memory, "{name}: memory differs");
    }
}

/// Forms that mean the same in both modes.
const FORMS: &[(&str, &str)] = &[
    ("nop", "90"),
    ("2-byte nop", "66 90"),
    ("3-byte nop", "0f 1f 00"),
    ("4-byte nop", "0f 1f 40 00"),
    ("5-byte nop", "0f 1f 44 00 00"),
    ("6-byte nop", "66 0f 1f 44 00 00"),
    ("7-byte nop", "0f 1f 80 00 00 00 00"),
    ("8-byte nop", "0f 1f 84 00 00 00 00 00"),
    ("9-byte nop", "66 0f 1f 84 00 00 00 00 00"),
    ("10-byte nop", "66 2e 0f 1f 84 00 00 00 00 00"),
    ("endbr64", "f3 0f 1e fa"),
    ("endbr32", "f3 0f 1e fb"),
    ("jmp short", "eb T8"),
    ("jmp near", "e9 T"),
    ("jmp rax", "ff e0"),
    ("notrack jmp rax", "3e ff e0"),
    ("jmp [rsp]", "ff 24 24"),
    ("call", "e8 T"),
    ("call rax", "ff d0"),
    ("call [rsp]", "ff 14 24"),
    ("call [rsp+0x40]", "ff 54 24 40"),
    ("ret", "c3"),
    ("rep ret", "f3 c3"),
    ("ret 8", "c2 08 00"),
    ("push imm8", "6a 80"),
    ("push imm32", "68 78 56 34 92"),
    ("push16 imm16", "66 68 34 92"),
    ("push dx", "66 52"),
    ("pop dx", "66 5a"),
    ("push [rsp]", "ff 34 24"),
    ("push [rbx+8]", "ff 73 08"),
    ("push rsp; pop rsp", "54 5c"),
    ("push rbp; mov rbp,rsp; leave", "55 89 e5 c9"),
    ("mov ebp,edx", "89 d5"),
    ("mov dl,bh", "88 fa"),
    ("mov dh,bl", "88 de"),
    ("mov bp,dx", "66 89 d5"),
    ("mov edx,imm32", "ba 78 56 34 92"),
    ("mov dh,imm8", "b6 92"),
    ("mov [rbx],edx", "89 13"),
    ("mov [rbx],dh", "88 33"),
    ("mov edx,[rbx+rcx*0+4]", "8b 53 04"),
    ("mov byte [rbx],imm8", "c6 03 92"),
    ("mov dword [rbx],imm32", "c7 03 78 56 34 92"),
    ("mov word [rbx],imm16", "66 c7 03 34 92"),
    ("movzx edx,bl", "0f b6 d3"),
    ("movzx edx,word [rbx]", "0f b7 13"),
    ("movsx edx,bl", "0f be d3"),
    ("movsx dx,byte [rbx]", "66 0f be 13"),
    ("movsx edx,word [rbx]", "0f bf 13"),
    ("lea edx,[rbx+rbp*4-8]", "8d 54 ab f8"),
    ("lea dx,[rbx+rbp]", "66 8d 14 2b"),
    ("lea rsp,[rsp+8]", "8d 64 24 08 8b dc"),
    ("inc edx", "ff c2"),
    ("dec edx", "ff ca"),
    ("inc byte [rbx]", "fe 03"),
    ("test edx,edx", "85 d2"),
    ("test dl,imm8", "f6 c2 80"),
    ("test al,imm8", "a8 80"),
];

#[test]
fn emulated_forms_do_what_the_processor_does() {
    for bits in [64, 32] {
        let processor = Processor::new(bits);
        for (name, text) in FORMS {
            // In 64-bit mode rsp would lose its upper half in lea esp, and it has none here.
            prove(&processor, bits, name, text, ROUNDS);
        }
        for condition in 0..16 {
            prove(&processor, bits, "jcc short", &format!("{:x} T8", 0x70 + condition), ROUNDS);
            prove(&processor, bits, "jcc near", &format!("0f {:x} T", 0x80 + condition), ROUNDS);
            prove(&processor, bits, "cmov", &format!("0f {:x} d5", 0x40 + condition), ROUNDS);
            prove(&processor, bits, "cmov from memory", &format!("0f {:x} 13", 0x40 + condition), ROUNDS);
        }
        for register in 0..8 {
            prove(&processor, bits, "push", &format!("{:x}", 0x50 + register), ROUNDS);
            prove(&processor, bits, "pop", &format!("{:x}", 0x58 + register), ROUNDS);
        }
    }
}

#[test]
fn emulated_arithmetic_sets_every_flag_as_the_processor_does() {
    // add, or, and, sub, xor, cmp; test is above.
    for bits in [64, 32] {
        let processor = Processor::new(bits);
        let wide: &[&str] = if bits == 64 { &["48 "] } else { &[] };
        for prefix in ["", "66 "].iter().chain(wide) {
            for operation in [0, 1, 4, 5, 6, 7] {
                let opcode = |n: u32| operation * 8 + n;
                for (form, text) in [
                    ("r/m8,r8", format!("{prefix}{:02x} ea", opcode(0))),
                    ("r/m,r", format!("{prefix}{:02x} d5", opcode(1))),
                    ("r,m", format!("{prefix}{:02x} 13", opcode(3))),
                    ("m,r", format!("{prefix}{:02x} 13", opcode(1))),
                    ("al,imm8", format!("{prefix}{:02x} 92", opcode(4))),
                    ("r/m,imm8", format!("{prefix}83 {:02x} f0", 0xc2 + operation * 8)),
                    ("m8,imm8", format!("{prefix}80 {:02x} 7f", 0x03 + operation * 8)),
                    ("itself", format!("{prefix}{:02x} d2", opcode(1))),
                ] {
                    prove(&processor, bits, &format!("{prefix}{operation} {form}"), &text, ROUNDS);
                }
            }
        }
    }
}

#[test]
fn emulated_64_bit_forms_do_what_the_processor_does() {
    let processor = Processor::new(64);
    for register in 0..8 {
        prove(&processor, 64, "push r8-r15", &format!("41 {:x}", 0x50 + register), ROUNDS);
        prove(&processor, 64, "pop r8-r15", &format!("41 {:x}", 0x58 + register), ROUNDS);
    }
    for (name, text) in [
        ("mov rbp,rsp", "48 89 e5"),
        ("mov r15,rdx", "49 89 d7"),
        ("mov r9d,edx", "41 89 d1"),
        ("mov r9w,dx", "66 41 89 d1"),
        ("mov spl,dl", "40 88 d5"),
        ("mov rax,imm64", "48 b8 f1 de bc 9a 78 56 34 92"),
        ("mov rdx,imm32", "48 c7 c2 78 56 34 92"),
        ("mov rdx,[rip]", "48 8b 15 D"),
        ("mov dword [rip],imm32", "c7 05 D4 78 56 34 12"),
        ("cmp byte [rip],imm8", "80 3d D1 05"),
        ("lea rdx,[rip]", "48 8d 15 D"),
        ("lea edx,[edx+ebp]", "67 8d 14 2a"),
        ("movsxd rdx,ebp", "48 63 d5"),
        ("movsxd rdx,[rbx]", "48 63 13"),
        ("call [rip]", "ff 15 D"),
        ("jmp [rip]", "ff 25 D"),
        ("push [rip]", "ff 35 D"),
        ("call r8", "41 ff d0"),
        ("sub rsp,0x18", "48 83 ec 18"),
        ("and rsp,-32", "48 83 e4 e0"),
        ("add rsp,0x20", "48 83 c4 20"),
        ("cmove r9,r10", "4d 0f 44 ca"),
        ("a prologue", "f3 0f 1e fa 55 48 89 e5 41 57 53 48 83 ec 18 31 c0"),
    ] {
        prove(&processor, 64, name, text, ROUNDS);
    }
}

#[test]
fn what_faults_changes_nothing() {
    for (name, text) in [
        ("push", "53"),
        ("pop", "5b"),
        ("ret", "c3"),
        ("leave", "c9"),
        ("call", "e8 T"),
        ("mov [rax],edx", "89 10"),
        ("add [rax],edx", "01 10"),
        ("fs, whose base is unknown", "64 48 8b 04 25 28 00 00 00"),
    ] {
        // Registers that point nowhere.
        let mut saved =
            Saved { registers: [1 << 40; 16], flags: 0x202, ip: 7, memory: [0; 2 * WINDOW], fs: None };
        assert_eq!(emulate(64, &assemble(text), ORIGINAL, &mut saved), Err(EmulateError::Fault), "{name}");
        assert_eq!((saved.registers, saved.flags, saved.ip), ([1 << 40; 16], 0x202, 7), "{name}");
    }
    // gs has a base.
    let mut saved = Saved { registers: [0; 16], flags: 0x202, ip: 7, memory: [0x5a; 2 * WINDOW], fs: None };
    assert_eq!(emulate(64, &assemble("65 8b 04 25 28 00 00 00"), ORIGINAL, &mut saved), Ok(()));
    assert_eq!((saved.registers[0], saved.ip), (0x5a5a_5a5a, ORIGINAL + 8));
}

#[test]
fn what_is_not_emulated_says_so() {
    for (bits, text) in [
        (64, "f0 01 13"),
        (64, "0f 05"),
        (64, "cc"),
        (64, "66 c9"),
        (64, "8e d8"),
        (64, "0f a2"),
        (64, "64 ff 34 24"),
        (32, "06"),
        (32, "2e 01 13"),
        (32, "67 8b 07"),
        (32, "67 8b 16 34 12"),
    ] {
        let mut saved = Saved { registers: [0; 16], flags: 0, ip: 7, memory: [0; 2 * WINDOW], fs: None };
        let refused = emulate(bits, &assemble(text), ORIGINAL, &mut saved);
        assert!(matches!(refused, Err(EmulateError::Refused(_))), "{text}: {refused:?}");
        let machine = if bits == 64 { Machine::X86_64 } else { Machine::I386 };
        assert!(machine.isa().decode(&assemble(text), ORIGINAL).is_ok(), "{text}");
    }
}
