//! C3: what each mechanism says about the instructions that are easily got wrong, one by one.

use trapless_isa::{BranchTargets, Ladder, Machine, Reason, Site};

const AT: u64 = 0x40_1000;

type Says = Result<(), Reason>;

/// Yes.
const OK: Says = Ok(());
/// Shorter than a jump: the call would return into the patch.
const INSIDE: Says = Err(Reason::CallInside);
const NOT_EMULATED: Says = Err(Reason::NotEmulated("this instruction"));
const LOCKED: Says = Err(Reason::NotEmulated("a locked instruction"));
const CALL: Says = Err(Reason::NotBoosted("a call"));
const LOOP: Says = Err(Reason::NotBoosted("a loop or jcxz"));
const TRAPS: Says = Err(Reason::Traps);

const fn unmovable(what: &'static str) -> Says {
    Err(Reason::Unmovable(what))
}

const SYSCALL: Says = unmovable("syscall");
const SYSENTER: Says = unmovable("sysenter");
const INT80: Says = unmovable("int 0x80");
const HYPERVISOR: Says = unmovable("a call of the hypervisor");
const SS: Says = unmovable("a load of ss");
const CALL_RSP: Says = unmovable("call rsp");
const BELOW: Says = unmovable("a call through memory below the stack pointer");
const ITSELF: Says = unmovable("an instruction that reads the patched bytes");
const DATA16: Says = unmovable("a branch with an operand-size prefix");
const EIP: Says = unmovable("an eip-relative operand");

/// Name, bytes, and what jump, boost, emulate and step say.
type Case = (&'static str, &'static str, [Says; 4]);

/// In both modes.
const BOTH: &[Case] = &[
    ("notrack jmp rax", "3e ff e0", [OK, OK, OK, OK]),
    ("notrack call rax", "3e ff d0", [INSIDE, CALL, OK, OK]),
    ("notrack jmp through a table", "3e ff 24 85 00 00 10 00", [OK, OK, OK, OK]),
    ("bnd jmp", "f2 e9 00 01 00 00", [OK, OK, OK, OK]),
    ("bnd ret", "f2 c3", [OK, OK, OK, OK]),
    ("rep ret", "f3 c3", [OK, OK, OK, OK]),
    ("ret imm16", "c2 08 00", [OK, OK, OK, OK]),
    ("lock add", "f0 01 13", [OK, OK, LOCKED, OK]),
    ("lock dec", "f0 ff 0b", [OK, OK, LOCKED, OK]),
    ("lock cmpxchg", "f0 0f b1 13", [OK, OK, LOCKED, OK]),
    ("xchg with memory, locked by itself", "87 13", [OK, OK, NOT_EMULATED, OK]),
    ("vmovdqu, VEX of 2 bytes", "c5 fe 6f 07", [OK, OK, NOT_EMULATED, OK]),
    ("vpbroadcastb, VEX of 3 bytes", "c4 e2 7d 78 c0", [OK, OK, NOT_EMULATED, OK]),
    ("andn, VEX with general registers", "c4 e2 68 f2 d3", [OK, OK, NOT_EMULATED, OK]),
    ("vmovdqu64, EVEX", "62 f1 fe 48 6f 07", [OK, OK, NOT_EMULATED, OK]),
    ("vpaddd with a mask and a broadcast, EVEX", "62 f1 7d 59 fe 07", [OK, OK, NOT_EMULATED, OK]),
    ("call of the next instruction", "e8 00 00 00 00 5b", [OK, CALL, OK, OK]),
    ("call of a get-PC thunk", "e8 00 01 00 00", [OK, CALL, OK, OK]),
    ("call rax", "ff d0", [INSIDE, CALL, OK, OK]),
    ("call rsp", "ff d4", [CALL_RSP, CALL_RSP, CALL_RSP, CALL_RSP]),
    ("call [rsp+8]", "ff 54 24 08", [INSIDE, CALL, OK, OK]),
    ("call [rsp-8]", "ff 54 24 f8", [BELOW, BELOW, BELOW, BELOW]),
    ("loop", "e2 20", [OK, LOOP, NOT_EMULATED, OK]),
    ("loope", "e1 20", [OK, LOOP, NOT_EMULATED, OK]),
    ("loopne", "e0 20", [OK, LOOP, NOT_EMULATED, OK]),
    ("jrcxz, jecxz", "e3 20", [OK, LOOP, NOT_EMULATED, OK]),
    ("jecxz, jcxz", "67 e3 20", [OK, LOOP, NOT_EMULATED, OK]),
    ("jne", "75 20", [OK, OK, OK, OK]),
    ("push rsp", "54", [OK, OK, OK, OK]),
    ("pop rsp", "5c", [OK, OK, OK, OK]),
    ("push [rsp]", "ff 34 24", [OK, OK, OK, OK]),
    ("pop [rsp]", "8f 04 24", [OK, OK, NOT_EMULATED, OK]),
    ("pushf", "9c", [OK, OK, NOT_EMULATED, OK]),
    ("popf", "9d", [OK, OK, NOT_EMULATED, OK]),
    ("enter", "c8 20 00 00", [OK, OK, NOT_EMULATED, OK]),
    ("leave", "c9", [OK, OK, OK, OK]),
    ("cpuid", "0f a2", [OK, OK, NOT_EMULATED, OK]),
    ("rdtsc", "0f 31", [OK, OK, NOT_EMULATED, OK]),
    ("rep movsb", "f3 a4", [OK, OK, NOT_EMULATED, OK]),
    ("xbegin", "c7 f8 20 00 00 00", [OK, OK, NOT_EMULATED, OK]),
    ("syscall", "0f 05", [SYSCALL, SYSCALL, SYSCALL, SYSCALL]),
    ("sysenter", "0f 34", [SYSENTER, SYSENTER, SYSENTER, SYSENTER]),
    ("int 0x80", "cd 80", [INT80, INT80, INT80, INT80]),
    ("vmcall", "0f 01 c1", [HYPERVISOR, HYPERVISOR, HYPERVISOR, HYPERVISOR]),
    ("int3", "cc", [TRAPS, TRAPS, TRAPS, TRAPS]),
    ("int 3", "cd 03", [TRAPS, TRAPS, TRAPS, TRAPS]),
    ("int1", "f1", [TRAPS, TRAPS, TRAPS, TRAPS]),
    ("ud2", "0f 0b", [TRAPS, TRAPS, TRAPS, TRAPS]),
    ("hlt", "f4", [TRAPS, TRAPS, TRAPS, TRAPS]),
    ("mov ss,eax", "8e d0", [SS, SS, SS, SS]),
    ("data16 jne", "66 75 20", [DATA16, DATA16, DATA16, DATA16]),
];

const IN_64_BITS: &[Case] = &[
    ("imul [rip], implicit rax and rdx", "48 f7 2d 00 01 00 00", [OK, OK, NOT_EMULATED, OK]),
    ("cmpxchg16b [rip], four implicit", "48 0f c7 0d 00 01 00 00", [OK, OK, NOT_EMULATED, OK]),
    ("lock cmpxchg [rip], implicit rax", "f0 48 0f b1 15 00 01 00 00", [OK, OK, LOCKED, OK]),
    ("shl [rip],cl", "48 d3 25 00 01 00 00", [OK, OK, NOT_EMULATED, OK]),
    ("mov [rip],imm32", "48 c7 05 00 01 00 00 78 56 34 12", [OK, OK, OK, OK]),
    ("push [rip]", "ff 35 00 01 00 00", [OK, OK, OK, OK]),
    ("call [rip]", "ff 15 00 01 00 00", [OK, CALL, OK, OK]),
    ("notrack jmp [rip]", "3e ff 25 00 01 00 00", [OK, OK, OK, OK]),
    ("vmovdqu64 [rip], EVEX", "62 f1 fe 48 6f 05 00 01 00 00", [OK, OK, NOT_EMULATED, OK]),
    ("mov [rip], itself", "8b 05 fa ff ff ff", [ITSELF, ITSELF, ITSELF, ITSELF]),
    ("mov [eip]", "67 8b 05 00 01 00 00", [EIP, EIP, EIP, EIP]),
    ("data16 rex.W jne", "66 48 75 20", [OK, OK, OK, OK]),
    ("data16 rex.W call", "66 66 48 e8 00 01 00 00", [OK, CALL, OK, OK]),
];

const IN_32_BITS: &[Case] = &[
    ("imul [absolute], implicit eax and edx", "f7 2d 00 00 10 00", [OK, OK, NOT_EMULATED, OK]),
    ("cmpxchg8b [absolute], four implicit", "0f c7 0d 00 00 10 00", [OK, OK, NOT_EMULATED, OK]),
    ("call [absolute]", "ff 15 00 00 10 00", [OK, CALL, OK, OK]),
    ("call gs:[0x10], the vdso's entry", "65 ff 15 10 00 00 00", [OK, CALL, OK, OK]),
    ("mov [absolute], itself", "a1 00 10 40 00", [ITSELF, ITSELF, ITSELF, ITSELF]),
    ("inc eax, no REX", "40", [OK, OK, OK, OK]),
    ("pusha", "60", [OK, OK, NOT_EMULATED, OK]),
    ("pop ss", "17", [SS, SS, SS, SS]),
    ("into", "ce", [TRAPS, TRAPS, TRAPS, TRAPS]),
];

#[test]
fn c3_every_mechanism_decides_about_every_hard_form() {
    for (machine, alone) in [(Machine::X86_64, IN_64_BITS), (Machine::I386, IN_32_BITS)] {
        for (name, text, expected) in BOTH.iter().chain(alone) {
            let mut code: Vec<u8> =
                text.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
            // Nops behind it: a jump has room.
            code.extend([0x90; 16]);
            let targets = BranchTargets::default();
            let site = Site::new(AT, &code, &targets);
            let Ladder { jump, boost, emulate, step, .. } = machine.isa().verdict(&site);
            let said = [jump, boost, emulate, step].map(|rung| rung.map(|_| ()));
            assert_eq!(&said, expected, "{name} on {machine:?}: jump, boost, emulate, step");
        }
    }
}
