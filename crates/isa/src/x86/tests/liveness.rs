//! Liveness: (name, code of the function, registers that must be dead, flags dead).

use super::hex;
use crate::x86::{RegisterSet, liveness, spare};
use crate::{BranchTargets, Site, Stack};

const RAX: u16 = 1 << 0;
const RCX: u16 = 1 << 1;
const RDX: u16 = 1 << 2;
const RBX: u16 = 1 << 3;
const R8: u16 = 1 << 8;

#[test]
fn only_what_every_path_overwrites_is_dead() {
    let cases: &[(&str, &str, u16, bool)] = &[
        ("ret reads anything", "c3", 0, false),
        ("call reads anything", "e800000000 31c0", 0, false),
        ("syscall reads registers, and keeps the flags", "0f05 31c0 c3", 0, true),
        ("syscall, and somebody reads the flags", "0f05 11c8 c3", 0, false),
        ("the end reads anything", "90", 0, false),
        ("xor eax,eax", "31c0 c3", RAX, true),
        ("mov eax,1: no flags", "b801000000 c3", RAX, false),
        ("sub r8,r8", "4d29c0 c3", R8, true),
        ("mov al,1 is not all of rax", "b001 c3", 0, false),
        ("mov ax,1 is not all of rax", "66b80100 c3", 0, false),
        ("movzx eax,al reads it", "0fb6c0 c3", 0, false),
        ("mov rax,rcx; mov rcx,rdx", "4889c8 4889d1 c3", RAX, false),
        ("cmove rax,rcx may not write", "480f44c1 c3", 0, false),
        ("bsf ecx,edx may not write", "0fbcca c3", 0, true),
        ("add eax,ecx reads eax", "01c8 c3", 0, true),
        ("inc keeps CF", "ffc3 c3", 0, false),
        ("adc reads CF", "11c8 c3", 0, false),
        ("shl edx,cl may keep the flags", "d3e2 c3", 0, false),
        ("shl edx,2", "c1e202 c3", 0, true),
        ("test; both sides write rax", "85ff 7403 31c0 c3 b801000000 c3", RAX, true),
        ("test; one side only", "85ff 7403 31c0 c3 c3", 0, true),
        ("je first reads ZF", "7403 31c0 c3 31c0 c3", RAX, false),
        ("a loop that ends in a write", "ffcf 75fc 31d2 31db c3", RDX | RBX, true),
        ("an endless loop reads nothing", "ebfe", 0xffef, true),
        ("jmp out of the function", "31c9 e900010000", RCX, true),
        ("load through rax", "488b00 c3", 0, false),
        ("repe cmpsb may compare nothing", "f3a6 c3", 0, false),
        ("pushfq reads all", "9c 31c0 c3", RAX, false),
        ("cpuid may be one that faults", "0fa2 c3", 0, false),
        ("a nop that may be a static probe", "89c1 90 31c0 31c9 c3", RCX, true),
        ("the same of five bytes, behind a write", "31c0 0f1f440000 31c9 c3", RAX, true),
        ("a nop that is none", "89c1 6690 31c0 c3", RCX, true),
        ("the same of ten bytes", "662e0f1f840000000000 31c9 c3", RCX, true),
        ("another one of ten bytes", "31c0 662e0f1f840000000000 31c9 c3", RAX, true),
        ("the place itself", "90 31c0 c3", RAX, true),
        ("rsp is never dead", "488d642408 c3", 0, false),
    ];
    for (name, code, dead, flags_dead) in cases {
        let code = hex(code);
        let targets = BranchTargets::default();
        let site = Site::new(0x1000, &code, &targets);
        let found = liveness(64, &site, 0x1000);
        assert_eq!((found.dead, found.flags_dead), (RegisterSet(*dead), *flags_dead), "{name}");
    }
}

/// A handler may go on behind it. In Go a fault is a panic.
#[test]
fn what_may_fault_writes_nothing_but_in_go() {
    // (name, code, of rax and rdx the dead ones anywhere and in Go)
    let cases: &[(&str, &str, u16, u16)] = &[
        ("a load", "6690 488b07 c3", 0, RAX),
        ("a load from the stack", "6690 488b442408 c3", RAX, RAX),
        ("a load of the program's data", "6690 488b0500100000 c3", RAX, RAX),
        ("a load from a frame", "6690 8b4508 c3", 0, RAX),
        ("a load, and a write behind it", "6690 488b07 31c0 c3", RAX, RAX),
        ("a division, and what is read by it", "6690 31d2 48f7f7 c3", RDX, RDX),
        ("a conversion that may raise an exception", "6690 f2480f2cc0 c3", 0, RAX),
    ];
    for (name, code, anywhere, in_go) in cases {
        let code = hex(code);
        let targets = BranchTargets::default();
        let site = Site { address: 0x1002, ..Site::new(0x1000, &code, &targets) };
        for (stack, dead) in [(Stack::Enough, anywhere), (Stack::None, anywhere), (Stack::NoneInGo, in_go)] {
            let found = spare(64, &site, site.address, stack).dead.0 & (RAX | RDX);
            assert_eq!(found, *dead, "{name} {stack:?}");
        }
    }
}

/// Elsewhere rbp is a register like any other.
#[test]
fn frames_are_there_where_functions_make_them() {
    // push rbp; mov rbp,rsp or mov rbp,rdi; mov eax,[rbp+8]; ret
    for (name, code, dead) in [
        ("rbp points to the frame", "55 4889e5 8b4508 c3", RAX),
        ("rbp points to something else", "55 4889fd 8b4508 c3", 0),
    ] {
        let code = hex(code);
        let targets = BranchTargets::default();
        let site = Site::new(0x1000, &code, &targets);
        assert_eq!(liveness(64, &site, 0x1000).dead.0 & RAX, dead, "{name}");
    }
}

/// Where a probe tells of registers, all are read that were not written, and so are flags.
#[test]
fn what_a_probe_tells_is_live() {
    // mov ecx,1; mov edx,2; xor eax,eax; xor esi,esi; ret
    let code = hex("b901000000 ba02000000 31c0 31f6 c3");
    let targets = BranchTargets::default();
    let site = Site {
        address: 0x1000,
        function: 0x1000,
        code: &code,
        padding: &[],
        targets: &targets,
        observed: &[0xfff, 0x100a, 0x2000],
    };
    let found = liveness(64, &site, 0x1000);
    assert_eq!((found.dead, found.flags_dead), (RegisterSet(RCX | RDX), false));
    let found = liveness(64, &Site { observed: &[], ..site }, 0x1000);
    assert_eq!((found.dead, found.flags_dead), (RegisterSet(RAX | RCX | RDX | 1 << 6), true));
    // A loop may lead to the place itself once more.
    assert!(liveness(64, &site, 0x100a).dead.is_empty());
}

#[test]
fn the_scan_is_bounded() {
    let mut code = hex(&"6690".repeat(200));
    code.extend(hex("31c0c3"));
    let targets = BranchTargets::default();
    let site = Site::new(0x1000, &code, &targets);
    assert!(liveness(64, &site, 0x1000).dead.is_empty());
    assert_eq!(liveness(64, &site, 0x1000 + 2 * 150).dead.iter().next(), Some(0));
}
