//! Turns of a function where every instruction is a word and a branch reaches the detour: see x86's `turns` for what they are.
//!
//! | a turn | what becomes of it |
//! |---|---|
//! | a branch that always branches | stands where it stood, with another displacement |
//! | any other direct branch | moved, and its copy leads past the probe |

use crate::{Displaced, Flow, Isa, Reason, Site};
use alloc::vec::Vec;

/// The most turns of a function. They go into the journal with it.
const MOST: usize = 64;

/// See [`Isa::turns`].
pub(crate) fn turns(
    isa: &(impl Isa + ?Sized),
    site: &Site<'_>,
    displaced: &Displaced,
) -> Result<Vec<Displaced>, Reason> {
    let entries = [site.function, displaced.start];
    if site.address != site.function {
        return Ok(Vec::new());
    }
    let unit = usize::from(isa.facts().unit);
    let (mut turns, mut first, mut is_read) = (Vec::new(), None, true);
    // There may be a table behind an instruction that control does not pass, but what somebody branches to is code.
    let (mut comes, mut at) = (true, 0);
    while let Some(rest) = site.code.get(at..).filter(|rest| !rest.is_empty()) {
        let address = site.function.wrapping_add(at as u64);
        let Ok(instruction) = isa.decode(rest, address) else {
            (is_read, comes) = (false, false);
            at += unit;
            continue;
        };
        let is_code = comes || site.targets.contains(address);
        let end = address.wrapping_add(u64::from(instruction.length));
        let is_displaced = (displaced.start..displaced.end()).contains(&address);
        if let Flow::Jump { target } | Flow::Branch { target } = instruction.flow
            && entries.contains(&target)
            && !(is_displaced && target == displaced.start)
        {
            let refused = Reason::BranchInto(target);
            first = first.or(Some(refused));
            let is_entered = site.targets.first_inside(address, end).is_some();
            if is_displaced || !is_code || is_entered || usize::from(instruction.length) != unit {
                return Err(refused);
            }
            let instructions = u8::from(!matches!(instruction.flow, Flow::Jump { .. }));
            turns.push(Displaced { start: address, length: instruction.length, instructions });
        }
        comes = is_code && instruction.flow.falls_through();
        at += usize::from(instruction.length).max(unit);
    }
    let is_all =
        is_read && !site.targets.is_computed(site.function) && !site.targets.may_begin_again(site.function);
    match first {
        Some(refused) if !is_all || turns.len() > MOST => Err(refused),
        _ => Ok(turns),
    }
}

/// See [`Isa::turned`].
pub(crate) fn turned(
    isa: &(impl Isa + ?Sized),
    turn: &Displaced,
    original: &[u8],
    to: u64,
) -> Result<Vec<u8>, Reason> {
    let flow = isa.decode(original, turn.start).map_err(|_| Reason::NotAnInstruction)?.flow;
    match (turn.instructions, flow) {
        (0, Flow::Jump { .. }) | (1.., Flow::Branch { .. }) => isa.patch(turn, to),
        _ => Err(Reason::TooShort),
    }
}

#[cfg(test)]
mod tests {
    use crate::{BranchTargets, Displaced, Flow, Machine, Past, Reason, Site};
    use alloc::{vec, vec::Vec};

    const AT: u64 = 0x1_0000;
    const COPY: u64 = 0x1_8000;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn turns(machine: Machine, words: &[u32]) -> Result<Vec<Displaced>, Reason> {
        let code = bytes(words);
        let targets = BranchTargets::new(vec![]);
        let site = Site::new(AT, &code, &targets);
        machine.isa().turns(&site, &Displaced { start: AT, length: 4, instructions: 1 })
    }

    /// One instruction, a branch back to it on a condition, one without, a return.
    const LOOPS: [(Machine, [u32; 4]); 2] = [
        // sub w0, w0, #1; cbnz w0, $-4; b $-8; ret
        (Machine::AArch64, [0x5100_0400, 0x35ff_ffe0, 0x17ff_fffe, 0xd65f_03c0]),
        // addi r3,r3,-1; bne $-4; b $-8; blr
        (Machine::PowerPc64Le, [0x3863_ffff, 0x4082_fffc, 0x4bff_fff8, 0x4e80_0020]),
    ];

    #[test]
    fn branches_back_to_an_entry_lead_past_the_probe() {
        for (machine, words) in LOOPS {
            let isa = machine.isa();
            let turn = |start: u64, instructions| Displaced { start, length: 4, instructions };
            assert_eq!(turns(machine, &words), Ok(vec![turn(AT + 4, 1), turn(AT + 8, 0)]), "{machine:?}");
            let flow = |code: &[u8], at| isa.decode(code, at).unwrap().flow;
            // The one without a condition stands where it stood; where the other one stood, one leads to its copy.
            for (index, turn) in [(1, turn(AT + 4, 1)), (2, turn(AT + 8, 0))] {
                let turned = isa.turned(&turn, &bytes(&words[index..=index]), COPY).unwrap();
                assert_eq!(flow(&turned, turn.start), Flow::Jump { target: COPY }, "{machine:?}");
            }
            let past = Past { function: AT, start: AT, copy: COPY };
            let original = bytes(&words[1..2]);
            let moved = isa.moved(&turn(AT + 4, 1), &original, COPY + 0x100, Some(past)).unwrap();
            let leads = |target| {
                (moved.code.chunks(4).zip((COPY + 0x100..).step_by(4)))
                    .any(|(word, at)| flow(word, at).target() == Some(target))
            };
            assert!(leads(COPY) && leads(AT + 8) && !leads(AT), "{machine:?}: {:x?}", moved.code);
            assert_eq!(moved.places.last().unwrap().0, AT + 8, "{machine:?}");
        }
    }

    #[test]
    fn what_may_be_no_branch_keeps_the_entry_unprobed() {
        for (machine, words) in LOOPS {
            // Behind a return nothing comes, and nobody branches there: it may be data.
            let [first, _, back, end] = words;
            assert_eq!(turns(machine, &[first, end, back]), Err(Reason::BranchInto(AT)), "{machine:?}");
            // A call is another call.
            let call = if machine == Machine::AArch64 { 0x97ff_ffff } else { 0x4bff_fffd };
            assert_eq!(turns(machine, &[first, call, end]), Ok(vec![]), "{machine:?}");
        }
    }
}
