//! Where code computes a place to jump to, and what that means for the function there.

use super::hex;
use crate::x86::{I386, X86_64};
use crate::{BranchTargets, Isa, ReadOnlyData, Reason, Site, Swept, Told};
use alloc::{vec, vec::Vec};

const AT: u64 = 0x40_1000;

fn computed(code: &str, fixed: bool) -> Swept {
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
    found
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
        ("lea rax,[f]; add rax,8; xor eax,eax; jmp rax", "488d0500010000 4883c008 31c0 ffe0", vec![]),
        ("lea rax,[f]; add rax,8; ret: for the caller", "488d0500010000 4883c008 c3", vec![f]),
        ("lea rax,[f]; add rax,8; mov [rsi],rax; ret", "488d0500010000 4883c008 488906 31c0 c3", vec![f]),
        ("lea rdi,[f]; add rdi,8; call", "488d3d00010000 4883c708 e8f40f0000 c3", vec![f]),
        ("lea rax,[f]; add rax,rdi; push rax; ret", "488d0500010000 4801f8 50 c3", vec![f]),
        (
            "lea rax,[f]; add rax,rdi; call, over ud2; mov [rsp],rax; ret",
            "488d0500010000 4801f8 e802000000 0f0b 48890424 c3",
            vec![f],
        ),
        ("lea rax,[f]; sub eax,edi; ret: a distance", "488d0500010000 29f8 c3", vec![f]),
        ("lea rax,[f]; imul rax,rdi; ret", "488d0500010000 480fafc7 c3", vec![]),
        ("lea rdi,[f]; call; jmp [rsi]: handed on", "488d3d00010000 e8f40f0000 ff26", vec![]),
    ] {
        assert_eq!(computed(code, false).computed, expected, "{name}");
    }
}

const TABLE: u64 = 0x50_0000;
/// Where the code ends, with room for labels behind what is given; nothing behind it is code.
const LENGTH: usize = 0x100;
/// The label that code of these tests computes from.
const LABEL: u64 = AT + 0x80;

struct File {
    table: Vec<u8>,
    is_fixed: bool,
}

impl ReadOnlyData for File {
    fn at(&self, address: u64) -> &[u8] {
        let at = usize::try_from(address.wrapping_sub(TABLE)).ok();
        at.and_then(|at| self.table.get(at..)).unwrap_or_default()
    }
    fn is_fixed(&self) -> bool {
        self.is_fixed
    }
    fn may_be_code(&self, address: u64) -> bool {
        // And a function behind it.
        (AT..AT + LENGTH as u64).contains(&address) || address == AT + 0x1000
    }
}

fn swept(isa: &dyn Isa, code: &str, table: &[i32], is_fixed: bool) -> Swept {
    let mut code = hex(code);
    code.resize(LENGTH, 0x90);
    let table = table.iter().flat_map(|distance| distance.to_le_bytes()).collect();
    let mut found = Swept::default();
    isa.sweep(&code, AT, &File { table, is_fixed }, &mut found);
    found
}

/// What the code leads to inside of it, and what it computes from, where there is a table.
fn places(code: &str, table: &[i32]) -> (Vec<u64>, Vec<u64>) {
    let found = swept(&X86_64, code, table, false);
    (inside(&found), found.computed)
}

/// Where control may arrive behind the code that is given.
fn inside(found: &Swept) -> Vec<u64> {
    let mut inside: Vec<u64> = found.targets.iter().map(|target| target.wrapping_sub(AT)).collect();
    inside.retain(|target| (0x40..0x100).contains(target));
    inside.sort_unstable();
    inside.dedup();
    inside
}

#[test]
fn labels_are_followed_wherever_compilers_keep_them() {
    for (name, code) in [
        (
            "lea r14,[L]; jne X; pop r14; ret; X: add rax,r14; jmp rax",
            "4c8d3579000000 85ff 7503 415e c3 488b06 4c01f0 ffe0",
        ),
        ("je X; lea rcx,[L]; add rcx,rax; X: jmp rcx", "488b0e 85ff 740a 488d0d72000000 4801c1 ffe1"),
        ("X: add rax,rdx; lea rdx,[L]; je X; jmp rax", "31c9 488b040e 4801d0 85ff 488d156e000000 74ee ffe0"),
        ("over nops", "488d0579000000 eb04 660f1f00 4801f8 ffe0"),
        ("computed, and kept", "488d0579000000 4801f8 48894424f8 31c0 488b4c24f8 ffe1"),
        ("computed, and in a table that is filled", "488d0579000000 4801f8 488906 ff24ca"),
        ("kept, and added from there", "488d0579000000 48894424f8 4889f9 48034c24f8 ffe1"),
        ("pushed", "488d0579000000 50 59 4801f9 ffe1"),
        ("in a register that the callee is known to leave alone", "488d0d79000000 e8f40f0000 4801f9 ffe1"),
        ("movq xmm0,rax; movq rcx,xmm0", "488d0579000000 66480f6ec0 66480f7ec1 4801f9 ffe1"),
        ("cmove rcx,rax", "488d0579000000 39f7 480f44c8 4801f9 ffe1"),
        ("xchg rax,rcx", "488d0579000000 4891 4801f9 ffe1"),
        ("mov al,cl", "488d0579000000 88c8 ffe0"),
    ] {
        assert_eq!(places(code, &[]).1, [LABEL], "{name}");
    }
}

#[test]
fn what_is_no_label_any_more_or_a_function_is_not_computed_with() {
    for (name, code) in [
        (
            "a pointer to a function is stored, and another one moved on",
            "488d05f90f0000 488907 488b0e 4883c108 48890f 488b12 ffe2",
        ),
        ("what a callee has returned is added to", "488d05f90f0000 e8f40f0000 4883c008 488907 ff22"),
        ("code that stores where it is", "4c8d1500000000 4d895500 488b06 4883c002 488906 488b12 ffe2"),
        ("sete al", "488d0579000000 85ff 0f94c0 ffe0"),
        ("the label itself, kept, and nobody else's place", "488d0579000000 48894424f8 c3"),
        ("the label itself, and nobody else gets it", "488d1d79000000 ff26"),
        (
            "OCaml: lea r11,[L]; push r11; push [r14]; pop [r14]; mov rax,[r14]; add rax,2",
            "4c8d1d79000000 4153 41ff36 418f06 4883c408 498b06 4883c002 488906 488b3b ffe7",
        ),
    ] {
        assert_eq!(places(code, &[]).1, [0; 0], "{name}");
    }
}

#[test]
fn what_others_may_compute_from_a_label_is_computed_if_the_code_goes_where_they_say() {
    for (name, code) in [
        ("lea rax,[L]; call; nop; jmp rax", "488d0579000000 e8f40f0000 90 ffe0"),
        ("lea rdi,[L]; mov [rsi],rdi; jmp [rdx]", "488d3d79000000 48893e ff22"),
        ("lea rax,[L]; jz, to jmp [rsi]; ret", "488d0579000000 7401 c3 ff26"),
        ("lea rax,[L]; mov [rsp-8],rax; jmp [rsp-8]", "488d0579000000 48894424f8 ff6424f8"),
        ("lea rdi,[L]; call; push rax; ret", "488d3d79000000 e8f40f0000 50 c3"),
        ("lea rdi,[L]; call; push rax; rep ret", "488d3d79000000 e8f40f0000 50 f3c3"),
    ] {
        assert_eq!(places(code, &[]).1, [LABEL], "{name}");
    }
}

#[test]
fn code_that_others_point_into_is_computed_if_it_jumps_around_what_they_say() {
    let leads_around = |code: &str| {
        let (mut code, mut found) = (hex(code), Swept::default());
        code.resize(LENGTH, 0x90);
        let file = File { table: vec![], is_fixed: false };
        X86_64.sweep_pointed_into(&code, AT, &[LABEL], &file, &mut found);
        assert_eq!(found.computed, [0; 0]);
        found.leads_around
    };
    for (expected, name, code) in [
        (true, "mov rax,[rsi]; add rax,rdi; jmp rax", "488b06 4801f8 ffe0"),
        (true, "lea rax,[rdi+4]; push rax; ret", "488d4704 50 c3"),
        (true, "mov rax,[rsi]; add rax,4; mov [rbp-8],rax; jmp [rbp-8]", "488b06 4883c004 488945f8 ff65f8"),
        (
            true,
            "call; add rax,4; mov rbx,rax; call, into the code; ud2; mov [rsp],rbx; ret",
            "e8fb0f0000 4883c004 4889c3 e802000000 0f0b 48891c24 c3",
        ),
        (true, "push [rsi]; add [rsp],rdi; ret", "ff36 48013c24 c3"),
        (false, "mov rax,[rsi]; jmp rax", "488b06 ffe0"),
        (false, "mov rax,[rsi+rax*8]; jmp rax; add rax,4", "488b04c6 ffe0 4883c004"),
        (false, "add rsi,4; jmp [rsi+rax*8]", "4883c604 ff24c6"),
        (false, "movsxd rcx,[rdx+rcx*4]; add rcx,rdx; jmp rcx", "48630c8a 4801d1 ffe1"),
        (false, "movsxd rcx,[rdx+rcx*4]; lea rcx,[rcx+rdx]; jmp rcx", "48630c8a 488d0c11 ffe1"),
        (true, "movsxd rcx,[rdx+rcx*4]; mov rdx,[rsi]; add rcx,rdx; jmp rcx", "48630c8a 488b16 4801d1 ffe1"),
        (false, "xor eax,eax; jmp rax", "31c0 ffe0"),
        (false, "ret", "c3"),
    ] {
        assert_eq!(leads_around(code), expected, "{name}");
    }
}

#[test]
fn what_tells_a_place_is_a_stretch_of_code() {
    // lea rdi,[TABLE]; lea rcx,[L]; je, to behind it; movsxd rax,[rdi+rax*4]; lea rdi,[TABLE]; …
    let code = "7400 488d3df7ef0f00 488d0d70000000 48630487 4801c8 90 ffe0";
    let told = |last| Told { from: LABEL, behind: AT + 2, last: AT + last };
    assert_eq!(swept(&X86_64, code, &[0, 0x10], false).told, [told(0x14), told(0x18)]);
    // Nothing is told of what is computed around the label by any other way.
    assert_eq!(swept(&X86_64, "488d0d79000000 4801c8 ffe0", &[0], false).told, []);
}

#[test]
fn thirty_two_bit_code_names_labels_by_their_distance_from_the_got() {
    // call; add ebx,GOT; mov eax,[ebx+eax*4+T]; lea edx,[ebx+L]; add eax,edx; jmp eax
    let code = "e8fb0f0000 81c3fb2f0000 8b848300c00f00 8d9380d0ffff 01d0 ffe0";
    // lea edx,[ebx+L]; jmp edx
    let exact = "e8fb0f0000 81c3fb2f0000 8d9380d0ffff ffe2";
    for is_fixed in [false, true] {
        assert_eq!(swept(&I386, code, &[0], is_fixed).computed, [LABEL], "{is_fixed}");
        let found = swept(&I386, exact, &[0], is_fixed);
        assert_eq!((inside(&found), found.computed), (vec![0x80], vec![]), "{is_fixed}");
    }
    // call; add esp,16; lea eax,[ecx+0x79]; add eax,4; jmp eax: no GOT.
    let returned = "e8fb0f0000 83c410 8d4179 83c004 ffe0";
    assert_eq!(swept(&I386, returned, &[0], false).computed, [0; 0]);
}

#[test]
fn return_addresses_are_labels() {
    // call F; jmp eax, as in glibc's __mpn_add_n  /  call next; pop edx; lea edx,[edx+ecx]; jmp edx
    let returned = swept(&I386, "e8fb0f0000 ffe0", &[], false);
    let taken = swept(&I386, "e800000000 5a 8d140a ffe2", &[], false);
    assert_eq!((returned.computed, taken.computed), (vec![AT + 5], vec![AT + 5]));
    // call next; add eax,[esp]; add esp,4; jmp eax
    let read = swept(&I386, "e800000000 030424 83c404 ffe0", &[], false);
    assert_eq!(read.computed, [AT + 5]);
    // call next; pop ebx; add ebx,GOT; mov eax,[ebx+eax*4+T]; add eax,ebx; jmp eax
    let got = swept(&I386, "e800000000 5b 81c3fb2f0000 8b848300c00f00 01d8 ffe0", &[], false);
    assert_eq!(got.computed, [0; 0]);
}

#[test]
fn tables_have_entries_that_are_never_used_and_some_below_where_they_are_named() {
    // lea rdi,[TABLE]; lea rcx,[L]; movsxd rax,[rdi+rax*4]; add rax,rcx; jmp rax
    let jumps = "488d3df9ef0f00 488d0d72000000 48630487 4801c8 ffe0";
    let mut table = vec![0; 300];
    (table[1], table[298]) = (i32::MIN, 0x10);
    assert_eq!(places(jumps, &table), (vec![0x80, 0x90], vec![]));
    // The same with the table's third entry named.
    let middle = "488d3d01f00f00 488d0d72000000 48630487 4801c8 ffe0";
    assert_eq!(places(middle, &[0x20, 0x30, 0, 0x10]), (vec![0x80, 0x90, 0xa0, 0xb0], vec![]));
}

#[test]
fn how_much_of_tables_is_looked_at_is_bounded() {
    // Every jump of many may lead to every place of a table.
    let table = vec![0x10; 1 << 16];
    let mut code = alloc::string::String::new();
    for jump in 0..8 {
        // lea rdi,[TABLE]; lea rcx,[L]; movsxd rax,[rdi+rax*4]; add rax,rcx; jmp rax
        let [to_table, to_label] = [(TABLE, 7), (LABEL, 14)].map(|(to, next)| {
            let distance = (to as u32).wrapping_sub(AT as u32 + jump * 23 + next);
            alloc::format!("{:08x}", distance.swap_bytes())
        });
        code += &alloc::format!("488d3d{to_table} 488d0d{to_label} 48630487 4801c8 ffe0");
    }
    let found = swept(&X86_64, &code, &table, false);
    assert_eq!(found.computed, [LABEL]);
    assert!(found.targets.len() < 1 << 18, "{}", found.targets.len());
}

#[test]
fn what_a_table_adds_to_a_label_is_where_the_table_says() {
    // lea rdi,[TABLE]; lea rcx,[L]; movsxd rax,[rdi+rax*4]; add rax,rcx; jmp rax
    let begin = "488d3df9ef0f00 488d0d72000000";
    let jumps = &alloc::format!("{begin} 48630487 4801c8 ffe0");
    // The second one leads out of the function, and is not the last.
    let table = [0, 0x7fff_ffff, 0x10, -0x20, 0x7f, 0x80];
    assert_eq!(places(jumps, &table), (vec![0x60, 0x80, 0x90, 0xff], vec![]));
    let sums = alloc::format!("{begin} 48630487 488d0408 ffe0");
    assert_eq!(places(&sums, &table), (vec![0x60, 0x80, 0x90, 0xff], vec![]));
    // Where the program lies where it was linked for: movsxd rax,[rax*4+TABLE]; and add rax,L; or lea rdx,[rax+L]
    for fixed in ["4863048500005000 480580104000 ffe0", "4863048500005000 488d9080104000 ffe2"] {
        let found = swept(&X86_64, fixed, &table, true);
        assert_eq!((inside(&found), found.computed), (vec![0x60, 0x80, 0x90, 0xff], vec![]), "{fixed}");
    }
    // Whose table is not known is led anywhere, also if there is one.
    let unknown = "488d3df9ef0f00 488d0d72000000 31ff 48630487 4801c8 ffe0";
    assert_eq!(places(unknown, &table).1, [LABEL]);
    // No table of this label, a load that is none of an array, and a place around the one that is known.
    assert_eq!(places(jumps, &[0x7fff_ffff]).1, [LABEL]);
    for otherwise in ["486307 4801c8 ffe0", "48630487 4801c8 4883c008 ffe0", "48630487 4829c8 ffe0"] {
        assert_eq!(places(&alloc::format!("{begin} {otherwise}"), &table).1, [LABEL], "{otherwise}");
    }
    // je, to between the two.
    let arrives = alloc::format!("{begin} 48630487 7400 4801c8 ffe0");
    assert_eq!(places(&arrives, &table).1, [LABEL]);
}

#[test]
fn constants_are_addresses_only_in_fixed_files() {
    // mov eax,F; lea rax,[rax+rdi]; jmp rax  /  lea rax,[rdi*4+F]; jmp rax  /  mov eax,[rsi]; add eax,F; jmp rax
    for (code, is_guess) in
        [("b800204000 488d0438 ffe0", true), ("488d04bd00204000 ffe0", false), ("8b06 0500204000 ffe0", true)]
    {
        let found = computed(code, true);
        // What `lea` names is meant.
        let (empty, named) = match is_guess {
            true => (found.computed, found.guessed),
            false => (found.guessed, found.computed),
        };
        assert_eq!((empty, named), (vec![], vec![0x40_2000]), "{code}");
        let found = computed(code, false);
        assert_eq!((found.computed, found.guessed), (vec![], vec![]), "{code}");
    }
}

#[test]
fn a_function_that_a_jump_may_enter_anywhere_keeps_its_instructions() {
    let code = hex("50 58 ffc1 ffc1 ffc1 89c8 c3");
    let site = |targets| Site::new(AT, &code, targets);
    let free = BranchTargets::new(vec![AT]);
    assert!(X86_64.verdict(&site(&free)).jump.is_ok());
    let entered = BranchTargets::new(vec![AT]).with_computed(vec![AT]);
    let ladder = X86_64.verdict(&site(&entered));
    assert_eq!(ladder.jump, Err(Reason::ComputedJump));
    assert_eq!(X86_64.verdict(&Site { address: AT + 2, ..site(&entered) }).jump, Err(Reason::ComputedJump));
    // A trap takes one byte, and nothing arrives inside an instruction.
    assert!(ladder.step.is_ok());
}
