//! Detours that lead to another function, run by the emulator: who arrives there with what, and what the original's own address leads to.

#[path = "aarch64/machine.rs"]
mod machine;

use machine::{ARENA, FUNCTION, Machine, layout};
use trapless_isa::{
    BranchTargets, Detour, DetourRequest, Function, Hook, Machine as Isas, Payload, Reason, Runtime, Site,
    Steps, body::Runs, detour::Stack,
};

const ANOTHER: u64 = 0x7f12_3456_7890;
const HOME: u64 = 0x50_0000;

const PACIASP: u32 = 0xd503_233f;
const AUTIASP: u32 = 0xd503_23bf;
const BTI_C: u32 = 0xd503_245f;
/// `add x0, x0, #1`
const ADD: u32 = 0x9100_0400;
const RET: u32 = 0xd65f_03c0;

/// A function of this code, replaced.
fn replaced(code: &[u32], payload: Payload, behind: u64) -> Result<(Machine, Detour, u64), Reason> {
    let isa = Isas::AArch64.isa();
    let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    let targets = BranchTargets::default();
    let site = Site { address: FUNCTION + behind, ..Site::new(FUNCTION, &code, &targets) };
    let displaced = isa.verdict(&site).jump.unwrap();
    let detour = isa.detour(&DetourRequest {
        runs: Runs::default(),
        address: ARENA,
        displaced,
        original: &code[(displaced.start - FUNCTION) as usize..][..4],
        site: &site,
        payload,
        stack: Stack::Enough,
        layout: &layout(),
        runtime: &Runtime::default(),
        operands: &[],
        tells: true,
    })?;
    let mut machine = Machine { signature: 0xabc, ..Machine::default() };
    machine.load(ARENA, &detour.code);
    machine.load(FUNCTION, &code);
    machine.load(displaced.start, &isa.patch(&displaced, ARENA).unwrap());
    for (n, register) in machine.registers.x.iter_mut().enumerate() {
        *register = 0x1111 * (n as u64 + 1);
    }
    machine.registers.sp = 0x60_0000;
    machine.registers.x[30] = HOME;
    let original = ARENA + u64::from(detour.original.unwrap());
    Ok((machine, detour, original))
}

fn payload() -> Payload {
    Payload { hooks: Steps::of([Hook::Replace(Function::at(ANOTHER))]), ..Payload::default() }
}

const FUNCTIONS: [&[u32]; 4] =
    [&[ADD, RET], &[BTI_C, ADD, RET], &[PACIASP, ADD, AUTIASP, RET], &[BTI_C, PACIASP, ADD, AUTIASP, RET]];

#[test]
fn callers_arrive_at_the_other_function_as_they_have_called_this_one() {
    for code in FUNCTIONS {
        let (mut machine, ..) = replaced(code, payload(), 0).unwrap();
        let before = machine.registers;
        machine.registers.pc = FUNCTION;
        machine.run_to(ANOTHER);
        let mut after = machine.registers;
        // What a linker's veneer changes.
        after.x[16] = before.x[16];
        assert_eq!((after.x, after.sp), (before.x, before.sp), "{code:x?}");
    }
}

#[test]
fn landing_pads_stay_and_the_other_function_is_come_to_by_a_branch_that_they_take_for_a_call() {
    let (machine, detour, _) = replaced(&[BTI_C, ADD, RET], payload(), 0).unwrap();
    assert_eq!(machine.memory.get(FUNCTION) as u32, BTI_C);
    // br x16
    assert!(detour.code.as_chunks().0.contains(&0xd61f_0200_u32.to_le_bytes()));
}

#[test]
fn the_originals_address_runs_the_original() {
    for code in FUNCTIONS {
        let (mut machine, _, original) = replaced(code, payload(), 0).unwrap();
        let before = machine.registers;
        machine.registers.pc = original;
        machine.run_to(HOME);
        let mut after = machine.registers;
        assert_eq!(after.x[0], before.x[0] + 1);
        after.x[0] = before.x[0];
        assert_eq!((after.x, after.sp), (before.x, before.sp), "{code:x?}");
    }
}

#[test]
fn nothing_else_is_done_there_and_nothing_is_replaced_inside_of_functions() {
    let counted = Payload { entry: Steps::of([trapless_isa::EntryStep::Count(144)]), ..payload() };
    assert_eq!(replaced(FUNCTIONS[0], counted, 0).err(), Some(Reason::NoReplacement));
    assert_eq!(replaced(&[ADD, ADD, RET], payload(), 4).err(), Some(Reason::NoReplacement));
}
