//! Where children are made that share the memory.

use super::hex;
use crate::payload::Sharing;
use crate::x86::sharing::{candidates, sharing_calls, starts_threads};
use crate::{Machine, SharingCalls};
use alloc::vec;

const START: u64 = 0x1000;

#[test]
fn the_c_libraries_ways_to_make_children_are_found() {
    use SharingCalls::{None as Nothing, One, Two, Unclear};
    let vfork = |at| One(START + at, Sharing::Vfork);
    let clone = |at| One(START + at, Sharing::Clone);
    let clone3 =
        |ahead, behind| Two((START + ahead, Sharing::BeforeClone3), (START + behind, Sharing::Clone3));
    let cases = [
        ("glibc: vfork", 64, "5f b83a000000 0f05 57 3d01f0ffff 7301 c3", vfork(8)),
        ("glibc: clone", 64, "4c8b542408 b838000000 0f05 4885c0 7c10 7401 c3", clone(12)),
        ("glibc: clone3", 64, "4989c8 b8b3010000 0f05 4885c0 7c18 7401 c3", clone3(3, 10)),
        ("glibc, 32 bits: vfork", 32, "59 b8be000000 cd80 51 3d01f0ffff 7301 c3", vfork(8)),
        ("glibc, 32 bits: clone", 32, "b878000000 8919 cd80 5f5e5b 85c0 7c10", clone(9)),
        ("glibc, 32 bits: clone3", 32, "b8b3010000 cd80 85c0 7409", clone3(0, 7)),
        ("all of rax: vfork", 64, "48c7c03a000000 0f05 c3", vfork(9)),
        ("eax by the longer form: vfork", 64, "c7c03a000000 0f05 c3", vfork(8)),
        ("musl: vfork", 64, "5a b83a000000 0f05 52 4889c7 e900000000", vfork(8)),
        (
            "musl: clone",
            64,
            "31c0 b038 4989fb 4889d7 4c89c2 4d89c8 4c8b542408 4d89d9 4883e6f0 4883ee08 48890e 0f05 85c0 7501",
            clone(37),
        ),
        ("fork by clone", 64, "bf11002001 b838000000 0f05 c3", Nothing),
        ("vfork by clone", 64, "bf11410000 b838000000 0f05 c3", clone(12)),
        ("the number changes after", 64, "b83a000000 ffc0 0f05 c3", Unclear),
        ("another number after", 64, "b83a000000 b827000000 0f05 c3", Nothing),
        ("jumped to in between", 64, "7405 b83a000000 0f05 c3", Unclear),
        ("jumped to from behind", 64, "b83a000000 90 0f05 75fb c3", Unclear),
        ("a call in between", 64, "b83a000000 e800000000 0f05 c3", Unclear),
        ("arguments of clone3 after its number", 64, "b8b3010000 4889f7 0f05 c3", Unclear),
    ];
    for (name, bits, code, expected) in cases {
        let code = hex(code);
        let found = candidates(bits, &code);
        let [at] = found[..] else { panic!("{name}: {found:?}") };
        assert_eq!(sharing_calls(bits, &code, START, START + at as u64), expected, "{name}");
    }
}

#[test]
fn other_system_calls_are_no_candidates() {
    for (bits, code) in [
        (64, "b827000000 0f05 c3"),
        (64, "89f8 0f05 c3"),
        (64, "b83a000000 c3"),
        (32, "b83a000000 cd80 c3"),
        (32, "b8be000000 0f05 c3"),
        (64, ""),
        (64, "0f"),
    ] {
        assert_eq!(candidates(bits, &hex(code)), vec![], "{code}");
    }
    // In the middle of an instruction, and outside.
    let code = hex("b83a000000 48b80f05000000000000 c3");
    assert_eq!(sharing_calls(64, &code, START, START + 7), SharingCalls::Unclear);
    assert_eq!(sharing_calls(64, &code, START, START + 100), SharingCalls::Unclear);
}

#[test]
fn what_may_run_with_the_pointer_of_another_thread_is_told() {
    let cases = [
        ("Go: settls", "48c7c702100000 48c7c09e000000 0f05 c3", true),
        ("Go: clone", "b838000000 0f05 4883f800 7405 c3", true),
        ("vfork", "b83a000000 0f05 c3", true),
        ("write", "b801000000 0f05 c3", false),
        ("the number alone", "b89e000000 c3", false),
    ];
    for (name, code, expected) in cases {
        assert_eq!(starts_threads(&hex(code)), expected, "{name}");
    }
}

#[test]
fn who_cannot_tell_children_apart_says_so() {
    for machine in [Machine::AArch64, Machine::PowerPc64Le] {
        let isa = machine.isa();
        assert_eq!(isa.sharing_candidates(&[0; 64]), vec![]);
        assert_eq!(isa.sharing_calls(&[0; 64], START, START), SharingCalls::Unclear);
    }
}
