//! Verdicts: (name, mode, code of the function, offset of the site, targets, expected).

use super::hex;
use crate::{BranchTargets, Displaced, Machine, Reason, Site};
use alloc::vec::Vec;

const AT: u64 = 0x40_1000;

struct Case {
    name: &'static str,
    code: &'static str,
    padding: &'static str,
    site: u64,
    targets: &'static [u64],
}

const fn case(name: &'static str, code: &'static str) -> Case {
    Case { name, code, padding: "", site: 0, targets: &[] }
}

impl Case {
    const fn padding(self, padding: &'static str) -> Self {
        Self { padding, ..self }
    }

    const fn site(self, site: u64) -> Self {
        Self { site, ..self }
    }

    const fn targets(self, targets: &'static [u64]) -> Self {
        Self { targets, ..self }
    }

    fn jump(&self, machine: Machine) -> Result<Displaced, Reason> {
        let (code, padding) = (hex(self.code), hex(self.padding));
        let targets = BranchTargets::new(self.targets.iter().map(|t| AT + t).collect::<Vec<_>>());
        let site = Site { address: AT + self.site, padding: &padding, ..Site::new(AT, &code, &targets) };
        machine.isa().verdict(&site).jump
    }
}

#[test]
fn a_jump_takes_whole_instructions_that_nothing_enters() {
    // Expected: offset of the first displaced instruction, length, number of instructions.
    let cases: &[(Case, (u64, u8, u8))] = &[
        (case("one long instruction: sub rsp,0x118", "4881ec18010000 c3"), (0, 7, 1)),
        (case("push rbp; mov rbp,rsp; push rbx", "55 4889e5 53 c3"), (0, 5, 3)),
        (case("behind endbr64", "f30f1efa 55 4889e5 53 c3"), (4, 5, 3)),
        (case("in the middle of the function", "55 4881ec18010000 c3").site(1), (1, 7, 1)),
        (case("a branch to the patch itself", "55 4889e5 53 c3").targets(&[0]), (0, 5, 3)),
        (case("a branch behind the patch", "55 4889e5 53 c3").targets(&[5]), (0, 5, 3)),
        (case("ret and nops behind", "c3").padding("0f1f8000000000"), (0, 8, 1)),
        (case("ret and int3 behind", "31c0 c3").padding("cccc"), (0, 5, 2)),
        (case("ret and zeros behind", "31c0 c3").padding("0000"), (0, 5, 2)),
        (case("jmp, then alignment inside", "eb0e 0f1f8000000000 90 c3"), (0, 9, 1)),
        (case("a call that ends the region", "53 e800000000 c3"), (0, 6, 2)),
        (case("call [rsp+0x40] that ends it", "55 ff542440 c3"), (0, 5, 2)),
        (case("jrcxz", "e310 4889c8 c3"), (0, 5, 2)),
        (case("rep ret and padding", "f3c3").padding("66 90 66 90"), (0, 6, 1)),
        (case("a thread's word: mov rax,fs:[0x28]", "64488b042528000000 c3"), (0, 9, 1)),
        (case("__tls_get_addr's data16 rex.W call", "50 666648e800000000 c3"), (0, 9, 2)),
    ];
    for (case, (offset, length, instructions)) in cases {
        let expected = Displaced { start: AT + offset, length: *length, instructions: *instructions };
        assert_eq!(case.jump(Machine::X86_64), Ok(expected), "{}", case.name);
    }
}

#[test]
fn a_jump_may_begin_ahead_of_the_site() {
    // Expected: offset of the first displaced instruction, length, number of instructions; `None` where the site alone decides.
    type Expected = Option<(u64, u8, u8)>;
    let cases: &[(Case, Expected)] = &[
        (case("add rsp,8; pop rbx; ret", "53 4883ec08 4883c408 5b c3").site(10), Some((5, 6, 3))),
        (case("the nearest that makes room", "53 5b 53 5b 4883c408 5b c3").site(9), Some((4, 6, 3))),
        (case("with filler behind it", "53 5b 53 5b c3").site(4).padding("cccc"), Some((2, 5, 3))),
        (
            case("a jump to its first instruction", "53 5b 4883c408 5b c3").site(7).targets(&[2]),
            Some((2, 6, 3)),
        ),
        (case("a branch away ahead of it", "53 5b 7505 4883c4 08 c3").site(8), Some((4, 5, 2))),
        (case("jne, then the site", "53 5b 4885c0 7510 c3").site(7), Some((2, 6, 3))),
        (case("a jump to the site", "53 5b 4883c408 5b c3").site(7).targets(&[7]), None),
        (case("a jump between them", "53 5b 4883c408 5b c3").site(7).targets(&[6]), None),
        (case("a call ahead of it", "53 e800010000 5b c3").site(7), None),
        (case("a return ahead of it", "53 5b 5b c3 90 90 c3").site(6), None),
        (case("only the entry ahead of it", "4883ec08 c3").site(4), None),
    ];
    for (case, expected) in cases {
        let found = case.jump(Machine::X86_64);
        match expected {
            Some((offset, length, instructions)) => {
                let displaced =
                    Displaced { start: AT + offset, length: *length, instructions: *instructions };
                assert_eq!(found, Ok(displaced), "{}", case.name);
            }
            None => assert!(
                matches!(found, Err(Reason::TooShort | Reason::LeavesTooEarly | Reason::BranchInto(_))),
                "{}: {found:?}",
                case.name
            ),
        }
    }
}

#[test]
fn what_is_displaced_may_not_lead_to_the_filler_behind_it() {
    // je +2; jmp +0; nop: found by drawing bytes at random.
    let code = "0fc58d0000c08d48107402eb009000 00";
    let jump = case("branches to filler", code).site(9).jump(Machine::I386);
    assert_eq!(jump, Err(Reason::BranchInto(AT + 13)));
    let jump = case("je +2; jmp +0; nop; nop", "7402 eb00 90 90 c3").jump(Machine::I386);
    assert_eq!(jump, Err(Reason::BranchInto(AT + 4)));
}

/// The check of a function, as offsets of what is behind it and of where it begins again.
fn stack_check(code: &str) -> Option<(u64, core::ops::Range<u64>)> {
    let (bytes, targets) = (hex(code), BranchTargets::new(alloc::vec![AT]));
    let site = Site::new(AT, &bytes, &targets);
    let check = crate::Machine::X86_64.isa().stack_check(&site)?;
    Some((check.behind - AT, check.restart.start - AT..check.restart.end - AT))
}

#[test]
fn r4_functions_that_grow_their_stack_begin_again() {
    for (code, check) in [
        ("493b6610 7601 c3 e800000000 488b442408 ebed", Some((6, 7..19))),
        ("493b6610 7601 c3 e800000000 ebf2", Some((6, 7..14))),
        // With arguments saved, and a large frame.
        ("493b6610 7601 c3 4889442408 e800000000 488b442408 ebe8", Some((6, 7..24))),
        ("4c8da42420ffffff 4d3b6610 7601 c3 e800000000 ebea", Some((14, 15..22))),
        // mov r12,rsp; sub r12,4096; jb; cmp; jbe
        ("4989e4 4981ec00100000 7207 4d3b6610 7601 c3 e800000000 ebe6", Some((18, 19..26))),
        ("493b6610 7601 c3 e800000000 ffe0", None),
        // Another word than a limit, and no word of memory.
        ("493b6620 7601 c3 e800000000 ebf2", None),
        ("4c39f490 7601 c3 e800000000 ebf2", None),
        ("493b6610 7601 c3 e800000000 e800000000 ebed", None),
        ("493b6610 7601 c3 ebf7", None),
        ("4889e5 ffc8 75f9 c3", None),
        ("4889e5 ffc8 c3", None),
        // The branch is not among the first.
        ("90909090 90909090 90909090 493b6610 7601 c3 e800000000 ebea", None),
    ] {
        assert_eq!(stack_check(code), check, "{code}");
    }
}

#[test]
fn r4_a_goroutine_is_in_its_register_where_nothing_writes_it() {
    for (code, is_kept) in [
        ("493b6610 7601 c3 e800000000 ebf2", true),
        // mov r12,[r14+16] reads it.
        ("493b6610 7606 4d8b6610 90 c3 e800000000 ebed", true),
        // By rcx, which was loaded from the thread's memory.
        ("483b6110 7601 c3 e800000000 ebf2", false),
        // mov r14,fs:[-8], mov r14,[rip]; mov r14,fs:[r14]
        ("493b6610 760a 644c8b3425f8ffffff c3 e800000000 ebe9", true),
        ("493b6610 760c 4c8b3500000000 644d8b36 c3 e800000000 ebe7", true),
        // The same without its end, with another thing in between, and from memory that is not the thread's.
        ("493b6610 7608 4c8b3500000000 c3 e800000000 ebeb", false),
        ("493b6610 760d 4c8b3500000000 90 644d8b36 c3 e800000000 ebe6", false),
        ("493b6610 7605 4d8b7608 c3 e800000000 ebee", false),
        // For threads' own stacks.
        ("493b6618 7601 c3 e800000000 ebf2", true),
        // xor r14d,r14d; pop r14; bts r14,rax
        ("493b6610 7604 4531f6 c3 e800000000 ebef", false),
        ("493b6610 7603 415e c3 e800000000 ebf0", false),
        ("493b6610 7605 490fabc6 c3 e800000000 ebee", false),
        // push rax; cmp
        ("50 493b6610 7601 c3 e800000000 ebf1", false),
    ] {
        let (bytes, targets) = (hex(code), BranchTargets::new(alloc::vec![AT]));
        let site = Site::new(AT, &bytes, &targets);
        let isa = crate::Machine::X86_64.isa();
        let check = isa.stack_check(&site).expect(code);
        assert_eq!(isa.keeps_goroutine(&site, Some(&check)), is_kept, "{code}");
        assert!(!crate::Machine::AArch64.isa().keeps_goroutine(&site, Some(&check)));
    }
}

#[test]
fn r4_without_a_check_it_is_there_unless_it_is_loaded_ahead_of_all_calls() {
    for (code, is_kept) in [
        ("488d0440 48ffc0 c3", true),
        // call; xorps xmm15,xmm15; mov r14,fs:[-8], as behind calls of assembly; call [rip]
        ("e800000000 450f57ff 644c8b3425f8ffffff c3", true),
        ("ff1500000000 4c8b3500000000 644d8b36 c3", true),
        // mov r14,-8, which a linker has put there
        ("e800000000 49c7c6f8ffffff 644d8b36 c3", true),
        ("e800000000 49c7c6f8ffffff c3", false),
        ("49c7c6f8ffffff 644d8b36 e800000000 c3", false),
        // The same ahead of the call, as where assembly calls.
        ("450f57ff 644c8b3425f8ffffff e800000000 c3", false),
        ("4c8b3500000000 644d8b36 e800000000 c3", false),
        // xor r14d,r14d; mov r14,[r14+8]; what is no instruction
        ("e800000000 4531f6 c3", false),
        ("e800000000 4d8b7608 c3", false),
        ("06 c3", false),
    ] {
        let (bytes, targets) = (hex(code), BranchTargets::default());
        let site = Site::new(AT, &bytes, &targets);
        assert_eq!(crate::Machine::X86_64.isa().keeps_goroutine(&site, None), is_kept, "{code}");
        assert!(!crate::Machine::I386.isa().keeps_goroutine(&site, None));
    }
}

#[test]
fn a_refused_jump_has_its_reason() {
    let unmovable = Reason::Unmovable;
    let cases: &[(Case, Reason)] = &[
        (case("outside", "c3").site(1), Reason::OutsideFunction),
        (case("inside an instruction", "4881ec18010000 c3").site(3), Reason::MidInstruction),
        (case("no instruction", "06 9090909090"), Reason::NotAnInstruction),
        (case("cut off", "4881ec18"), Reason::NotAnInstruction),
        (case("no instruction among the displaced", "55 06 90909090"), Reason::NotAnInstruction),
        (case("too short, no padding", "31c0 c3"), Reason::TooShort),
        (case("too short, padding too", "31c0 c3").padding("90"), Reason::TooShort),
        (case("what follows is no padding", "31c0 c3").padding("554889e5"), Reason::TooShort),
        (
            case("as many zeros as a table has", "31c0 c3").padding("00000000000000000000000000000000"),
            Reason::TooShort,
        ),
        (case("a table that begins with zeros", "31c0 c3").padding("0000000001000000"), Reason::TooShort),
        (case("falls through its end", "31c0").padding("90909090"), Reason::TooShort),
        (case("code behind the ret", "c3 55 4889e5 c3"), Reason::LeavesTooEarly),
        (case("code behind the jmp", "31c0 eb02 55 5d c3"), Reason::LeavesTooEarly),
        (case("branched into", "55 4889e5 53 c3").targets(&[1]), Reason::BranchInto(AT + 1)),
        (
            case("branched into, mid instruction", "4881ec18010000 c3").targets(&[3]),
            Reason::BranchInto(AT + 3),
        ),
        (
            case("its own padding branched into", "c3").padding("90909090").targets(&[2]),
            Reason::BranchInto(AT + 2),
        ),
        (case("a displaced branch into it", "7501 90 4889e5 c3"), Reason::BranchInto(AT + 3)),
        (case("a loop back to the entry", "4889e5 ffc8 75f9 c3").targets(&[0]), Reason::BranchInto(AT)),
        (case("a loop that calls", "0f1f00 e800000000 ebf6").targets(&[0]), Reason::BranchInto(AT)),
        (
            case("a loop back behind endbr64", "f30f1efa 4889e5 ffc8 75f9 c3").targets(&[4]),
            Reason::BranchInto(AT + 4),
        ),
        (case("a call that returns into it", "ffd0 31c0 90 c3"), Reason::CallInside),
        (case("syscall", "31c0 0f05 c3 90"), unmovable("syscall")),
        (case("sysenter", "0f34 909090"), unmovable("sysenter")),
        (case("int 0x80", "cd80 909090"), unmovable("int 0x80")),
        (case("int3", "cc 90909090"), Reason::Traps),
        (case("int 3", "cd03 909090"), Reason::Traps),
        (case("int1", "f1 90909090"), Reason::Traps),
        (case("ud2", "55 0f0b 9090"), Reason::Traps),
        (case("ud1", "0fb9c0 9090"), Reason::Traps),
        (case("hlt", "f4 90909090"), Reason::Traps),
        (case("sti", "fb 90909090"), Reason::Traps),
        (case("rdmsr", "0f32 909090"), Reason::Traps),
        (case("vmcall", "0f01c1 9090"), unmovable("a call of the hypervisor")),
        (case("mov ss,eax", "8ed0 909090"), unmovable("a load of ss")),
        (case("lss rax,[rdi]", "480fb207 9090"), unmovable("a load of ss")),
        (case("jmp far [rax]", "ff28 909090"), unmovable("a far branch")),
        (case("call far [rax]", "ff18 909090"), unmovable("a far branch")),
        (case("retf", "cb 90909090").padding("90"), unmovable("a far branch")),
        (case("iretq", "48cf 909090"), unmovable("a return from an interrupt")),
        (case("sysret", "0f07 909090"), unmovable("a return from an interrupt")),
        (case("data16 jne", "6675 10 9090 90"), unmovable("a branch with an operand-size prefix")),
        (case("rex data16 jmp", "4066e900000000 c3"), unmovable("a branch with misplaced prefixes")),
        (case("mov eax,[eip+8]", "678b0508000000 c3"), unmovable("an eip-relative operand")),
        (
            case("mov eax,[rip-6], itself", "8b05faffffff c3"),
            unmovable("an instruction that reads the patched bytes"),
        ),
        (case("call rsp", "90 90 90 ffd4 c3"), unmovable("call rsp")),
    ];
    for (case, reason) in cases {
        assert_eq!(case.jump(Machine::X86_64), Err(*reason), "{}", case.name);
    }
}

#[test]
fn other_reasons_in_32_bit_mode() {
    type Expected = Result<(u64, u8, u8), Reason>;
    let cases: &[(Case, Expected)] = &[
        (case("push ebp; mov ebp,esp; push ebx; push esi", "55 89e5 53 56 c3"), Ok((0, 5, 4))),
        (case("behind endbr32", "f30f1efb 55 89e5 53 56 c3"), Ok((4, 5, 4))),
        (case("get-PC: call next; pop ebx", "e800000000 5b c3").targets(&[5]), Ok((0, 5, 1))),
        (case("push; call of a get-PC thunk", "53 e8fb000000 5b c3"), Ok((0, 6, 2))),
        (case("call gs:[0x10]", "65ff1510000000 c3"), Ok((0, 7, 1))),
        (case("lea esi,[esi+0] behind ret", "c3").padding("8d742600 8d742600"), Ok((0, 5, 1))),
        (case("inc; dec; ret, in 32-bit mode only", "40 48 c3").padding("6690"), Ok((0, 5, 3))),
        (case("pop ss", "17 90909090"), Err(Reason::Unmovable("a load of ss"))),
        (case("into", "ce 90909090"), Err(Reason::Traps)),
        (case("jmp far", "ea000000002300"), Err(Reason::Unmovable("a far branch"))),
        (case("int 0x80", "90 cd80 9090"), Err(Reason::Unmovable("int 0x80"))),
        (
            case("reads itself", "a100104000"),
            Err(Reason::Unmovable("an instruction that reads the patched bytes")),
        ),
    ];
    for (case, expected) in cases {
        let expected = expected.map(|(offset, length, instructions)| Displaced {
            start: AT + offset,
            length,
            instructions,
        });
        assert_eq!(case.jump(Machine::I386), expected, "{}", case.name);
    }
}
