//! Return verdicts: (name, mode, code of the function, expected).

use super::hex;
use crate::{BranchTargets, Exit, Leaves, Machine, Reason, Site};
use alloc::vec::Vec;

fn verdict(machine: Machine, code: &str) -> Result<(), Reason> {
    let code = hex(code);
    let targets = BranchTargets::default();
    let site = Site::new(0x1000, &code, &targets);
    machine.isa().return_verdict(&site)
}

#[test]
fn frames_of_every_usual_kind_are_followed() {
    for (name, code) in [
        ("no frame", "8d0437 c3"),
        ("stack protector", "4883ec18 64488b042528000000 4889442408 4883c418 c3"),
        ("frame pointer", "55 4889e5 4883ec10 897dfc 8b45fc c9 c3"),
        ("arguments on the stack: mov rax,[rsp+8]", "488b442408 c3"),
        ("arguments by the frame pointer: mov rax,[rbp+0x10]", "55 4889e5 488b4510 5d c3"),
        ("saved registers: lea rsp,[rbp-0x10]", "55 4889e5 4154 53 4883ec20 488d65f0 5b 415c 5d c3"),
        ("realigned: and rsp,-32", "55 4889e5 4883e4e0 4883ec40 c9 c3"),
        // lea r10,[rsp+8]; and rsp,-32; push [r10-8]; push rbp; mov rbp,rsp; push r10; pop r10; pop rbp; lea rsp,[r10-8]; ret
        (
            "realigned with a copy of the return address",
            "4c8d542408 4883e4e0 41ff72f8 55 4889e5 4152 415a 5d 498d62f8 c3",
        ),
        // push rbp; mov rbp,rsp; mov rbx,rsp; sub rsp,rax; mov rsp,rbx; leave; ret
        ("variable-length array", "55 4889e5 4889e3 4829c4 4889dc c9 c3"),
        // mov rax,[rbp-8]; mov rsp,rax
        ("stack pointer saved in the frame", "55 4889e5 4883ec20 488b45f8 4889c4 c9 c3"),
        ("stack probes: or qword [rsp],0", "4881ec00100000 48830c2400 4881c400100000 c3"),
        ("tail call", "4883ec08 4883c408 e900010000"),
        ("push of a target, ret", "50 c3"),
        ("mov rsp,rbp; pop rbp", "55 4889e5 4883ec10 4889ec 5d c3"),
        ("enter, leave", "c8100000 c9 c3"),
        ("a loop to the entry, and one with something pushed", "53 ffcf 75fc 5b ffcf 75f7 c3"),
    ] {
        assert_eq!(verdict(Machine::X86_64, code), Ok(()), "{name}");
    }
}

#[test]
fn other_ways_to_return_are_refused() {
    use Reason::{MovesStackPointer, ReadsReturnAddress, ReturnsOddly};
    for (name, code, reason) in [
        ("mov rax,[rsp]", "488b0424 c3", ReadsReturnAddress),
        (
            "setjmp: its rsp and return address saved",
            "488d542408 48895730 488b0424 48894738 31c0 c3",
            ReadsReturnAddress,
        ),
        ("mov rax,[rsp+0x28] in a frame of 0x28", "4883ec28 488b442428 4883c428 c3", ReadsReturnAddress),
        ("__builtin_return_address(0) by the frame pointer", "55 4889e5 488b4508 5d c3", ReadsReturnAddress),
        ("after a call, which keeps the depth", "53 e800100000 488b5c2408 5b c3", ReadsReturnAddress),
        ("on one of two paths", "85ff 7404 488b0424 c3", ReadsReturnAddress),
        ("vfork: pop rdi; syscall; push rdi; ret", "5f 0f05 57 c3", ReadsReturnAddress),
        ("cmp [rsp],rax", "48390424 c3", ReadsReturnAddress),
        ("mov [rsp],rax", "48890424 c3", ReturnsOddly),
        ("ret 8", "c20800", MovesStackPointer),
        ("add rsp,8; jmp rax", "4883c408 ffe0", MovesStackPointer),
        ("longjmp: mov rsp,[rdi]; jmp [rdi+8]", "488b27 ff6708", MovesStackPointer),
        ("coroutine switch: xchg rsp,rsi", "4887e6 c3", MovesStackPointer),
        ("mov rsp,rsi", "4889f4 c3", MovesStackPointer),
        ("push rdx; dec edi; jne to the entry", "52 ffcf 75fb c3", MovesStackPointer),
        ("the same behind endbr64", "f30f1efa 52 ffcf 75fb c3", MovesStackPointer),
    ] {
        assert_eq!(verdict(Machine::X86_64, code), Err(reason), "{name}");
    }
}

#[test]
fn the_same_in_32_bit_mode() {
    use Reason::{MovesStackPointer, ReadsReturnAddress, UnknownTailCall};
    for (name, code, expected) in [
        ("frame", "55 89e5 83ec18 8b4508 c9 c3", Ok(())),
        ("push; push; call; add esp,8", "6a01 6a02 e800100000 83c408 c3", Ok(())),
        ("a callee that pops 4: sub esp,8; call; add esp,4", "83ec08 e800100000 8b442404 83c404 c3", Ok(())),
        ("mov eax,[esp]", "8b0424 c3", Err(ReadsReturnAddress)),
        ("mov eax,[ebp+4]", "55 89e5 8b4504 5d c3", Err(ReadsReturnAddress)),
        ("struct return: ret 4", "8b442404 c20400", Err(MovesStackPointer)),
        // A stdcall function may be there.
        ("mov eax,[eax+4]; jmp eax", "8b4004 ffe0", Err(UnknownTailCall)),
        ("jmp [eax+4]", "ff6004", Err(UnknownTailCall)),
        ("jump table: jmp [eax*4+0x2000]", "ff248500200000", Ok(())),
    ] {
        assert_eq!(verdict(Machine::I386, code), expected, "{name}");
    }
}

/// Offsets at which code is left, of which these offsets are jumped to from elsewhere.
fn exits(code: &str, targets: &[u64]) -> Result<Vec<(u64, Leaves)>, Reason> {
    exits_of(code, targets, false)
}

fn exits_of(code: &str, targets: &[u64], is_resumed: bool) -> Result<Vec<(u64, Leaves)>, Reason> {
    let code = hex(code);
    let targets = BranchTargets::new(targets.iter().map(|target| 0x1000_u64 + *target).collect());
    let site = Site::new(0x1000, &code, &targets);
    let exits = Machine::X86_64.isa().exits(&site, 0x1000, Some(0), is_resumed)?;
    Ok(exits.into_iter().map(|Exit { address, leaves }| (address - 0x1000, leaves)).collect())
}

#[test]
fn a_function_is_left_by_its_returns_and_by_jumps_to_others() {
    use Leaves::*;
    let jump = |target: u64, depth| Jump { target: 0x1000 + target, depth: Some(depth) };
    let branch = |target: u64, depth| Branch { target: 0x1000 + target, depth: Some(depth) };
    for (name, code, targets, expected) in [
        ("no frame", "8d0437 c3", &[][..], &[(3, Return)][..]),
        // test edi,edi; jz +1; ret; sub rsp,8; add rsp,8; ret
        ("two returns", "85ff 7401 c3 4883ec08 4883c408 c3", &[5], &[(4, Return), (13, Return)]),
        ("a frame pointer", "55 4889e5 4883ec10 c9 c3", &[], &[(9, Return)]),
        ("a return address that is read", "488b0424 c3", &[], &[(4, Return)]),
        ("a tail call", "53 5b e900010000", &[], &[(2, jump(0x107, 0))]),
        (
            "a part elsewhere: push rbx; jz; pop rbx; ret",
            "53 0f8400010000 5b c3",
            &[],
            &[(1, branch(0x107, -8)), (8, Return)],
        ),
        ("a part that is jumped to", "4883ec18 e900010000", &[], &[(4, jump(0x109, -24))]),
        ("a conditional tail call", "85ff 0f8400010000 c3", &[], &[(2, branch(0x108, 0)), (8, Return)]),
        ("through a pointer: mov rax,[rdi]; jmp rax", "488b07 ffe0", &[], &[(3, Indirect)]),
        ("through memory: jmp [rip+0x100]", "ff2500010000", &[], &[(0, Indirect)]),
        // sub rsp,8; mov edi,edi; lea rdx,[rip+0x100]; movsxd rax,[rdx+rdi*4]; add rax,rdx; jmp rax; add rsp,8; ret
        (
            "a jump table",
            "4883ec08 89ff 488d1500010000 486304ba 4801d0 ffe0 4883c408 c3",
            &[22],
            &[(26, Return)],
        ),
        // call 0x2000; ret; a landing pad: mov rdi,rax; add rsp,8; ret
        (
            "a landing pad",
            "4883ec08 e8f70f0000 4883c408 c3 4889c7 4883c408 c3",
            &[14],
            &[(13, Return), (21, Return)],
        ),
        ("a call that never returns", "4883ec08 7405 e800010000 4883c408 c3", &[], &[(15, Return)]),
    ] {
        assert_eq!(exits(code, targets).as_deref(), Ok(expected), "{name}");
    }
}

#[test]
fn r4_where_panics_are_recovered_what_no_path_leads_to_returns_too() {
    use Leaves::*;
    // sub rsp,8; call; add rsp,8; ret; call deferreturn; add rsp,8; ret
    let code = "4883ec08 e800010000 4883c408 c3 e800020000 4883c408 c3";
    assert_eq!(exits(code, &[]), Err(Reason::LeavesUnclearly));
    assert_eq!(exits_of(code, &[], true).as_deref(), Ok(&[(13, Return), (23, Return)][..]));
    // What such a path does is looked at like any other: ret 16.
    assert_eq!(exits_of("c3 c21000", &[], true), Err(Reason::MovesStackPointer));
}

#[test]
fn what_is_left_in_ways_that_cannot_be_told_is_refused() {
    for (name, code, targets, expected) in [
        ("a return to what was pushed", "50 c3", &[][..], Reason::LeavesUnclearly),
        ("a jump through an indexed table: jmp [rax+rdi*8]", "ff24f8", &[], Reason::LeavesUnclearly),
        ("a computed jump: add rax,rdx; jmp rax", "4801d0 ffe0", &[], Reason::LeavesUnclearly),
        ("a return that nothing leads to", "c3 90 c3", &[], Reason::LeavesUnclearly),
        ("a return address that is popped", "59 4883c410 51 c3", &[], Reason::MovesStackPointer),
        ("a return that pops arguments", "c21000", &[], Reason::MovesStackPointer),
        ("another stack: mov rsp,rdi; ret", "4889fc c3", &[], Reason::MovesStackPointer),
    ] {
        assert_eq!(exits(code, targets), Err(expected), "{name}");
    }
    let code = hex("8d0437 c3");
    let targets = BranchTargets::default();
    let site = Site::new(0x1000, &code, &targets);
    for machine in [Machine::I386, Machine::AArch64, Machine::PowerPc64Le] {
        assert_eq!(machine.isa().exits(&site, 0x1000, Some(0), false), Err(Reason::NotImplemented));
    }
}
