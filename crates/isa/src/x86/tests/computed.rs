//! Where code computes a place to jump to, and what that means for the function there.

use super::hex;
use crate::x86::X86_64;
use crate::{BranchTargets, Isa, ReadOnlyData, Reason, Site, Swept};
use alloc::{vec, vec::Vec};

const AT: u64 = 0x40_1000;

fn computed(code: &str, fixed: bool) -> Vec<u64> {
    struct File(bool);
    impl ReadOnlyData for File {
        fn at(&self, _address: u64) -> &[u8] {
            &[]
        }
        fn is_fixed(&self) -> bool {
            self.0
        }
    }
    let mut found = Swept::default();
    X86_64.sweep(&hex(code), AT, &File(fixed), &mut found);
    found.computed
}

#[test]
fn arithmetic_on_the_address_of_code_is_a_computed_jump() {
    let f = AT + 0x107;
    for (name, code, expected) in [
        ("lea rax,[f]; lea rax,[rax+rdi*2+2]; jmp rax", "488d0500010000 488d447802 ffe0", vec![f]),
        ("lea rax,[f]; add rax,rdi; jmp rax", "488d0500010000 4801f8 ffe0", vec![f]),
        ("lea rax,[f]; add rdi,rax; notrack jmp rdi", "488d0500010000 4801c7 3effe7", vec![f]),
        ("lea rax,[f]; mov rdx,rax; sub rdx,8; jmp rdx", "488d0500010000 4889c2 4883ea08 ffe2", vec![f]),
        ("lea rax,[f]; jmp rax: the address itself", "488d0500010000 ffe0", vec![]),
        ("lea rdi,[f]; mov rax,[rsi]; jmp rax: a pointer", "488d3d00010000 488b06 ffe0", vec![]),
        ("lea rax,[f]; add rax,8; mov rax,[rax]; jmp rax", "488d0500010000 4883c008 488b00 ffe0", vec![]),
        ("lea rax,[f]; add rax,8; call g; jmp rax", "488d0500010000 4883c008 e800000000 ffe0", vec![]),
        ("lea rax,[f]; add rax,8; ret", "488d0500010000 4883c008 c3", vec![]),
    ] {
        assert_eq!(computed(code, false), expected, "{name}");
    }
}

#[test]
fn constants_are_addresses_only_in_fixed_files() {
    // mov eax,0x402000; lea rax,[rax+rdi]; jmp rax  /  lea rax,[rdi*4+0x402000]; jmp rax
    for code in ["b800204000 488d0438 ffe0", "488d04bd00204000 ffe0"] {
        assert_eq!(computed(code, true), [0x40_2000], "{code}");
        assert_eq!(computed(code, false), [0; 0], "{code}");
    }
}

#[test]
fn a_function_that_a_jump_may_enter_anywhere_keeps_its_instructions() {
    let code = hex("50 58 ffc1 ffc1 ffc1 89c8 c3");
    let site = |targets| Site { address: AT, function: AT, code: &code, padding: &[], targets };
    let free = BranchTargets::new(vec![AT]);
    assert!(X86_64.verdict(&site(&free)).jump.is_ok());
    let entered = BranchTargets::new(vec![AT]).with_computed(vec![AT]);
    let ladder = X86_64.verdict(&site(&entered));
    assert_eq!(ladder.jump, Err(Reason::ComputedJump));
    // What the function computes from its own labels does not lead to its entry.
    let own = BranchTargets::new(vec![AT]).with_computed_inside(vec![AT]);
    assert!(X86_64.verdict(&site(&own)).jump.is_ok());
    assert_eq!(X86_64.verdict(&Site { address: AT + 2, ..site(&own) }).jump, Err(Reason::ComputedJump));
    // A trap takes one byte, and nothing arrives inside an instruction.
    assert!(ladder.step.is_ok());
}
