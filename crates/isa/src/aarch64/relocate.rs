//! Which instructions do at another address what one instruction does where it stands.
//!
//! The nearest form that fits is taken: the same instruction with a new offset; else, for conditional
//! branches, the inverted condition over a `b`; for addresses, the constant in `movz`, `movk`; for literals,
//! a load through their address. Nothing is clobbered: a load into a general register uses that register for
//! the address, the others save x16 below sp.
//!
//! A displaced `bl` keeps x30 as it was, the address behind the *site*: `x30` is loaded and the target
//! branched to, so that backtraces, unwinding tables and a later removal of the detour see no difference.
//! (The callee's `ret` misses the CPU's return prediction once per hit, and a guarded control stack,
//! FEAT_GCS, would not accept it: the engine must not arm displaced calls in a process that has one.)

use super::decode::{Form, LENGTH, Literal, RegisterBranch, form, word};
use super::emit::{Code, instruction as a};
use super::frames::of_copy;
use crate::{Displaced, Moved, Past, Reason, detour::Emitted};
use alloc::vec;

/// Appends to `code` what does the same as `word` does at `from`.
///
/// # Errors
/// [`Reason::OutOfReach`] when a branch target is more than 128 MB from the copy, else the reason why the
/// instruction cannot be moved at all.
pub fn relocate(word: u32, from: u64, code: &mut Code) -> Emitted<()> {
    relocate_past(word, from, code, None)
}

/// The same of a branch back to an entry, which leads `past` the probe there.
fn relocate_past(word: u32, from: u64, code: &mut Code, past: Option<Past>) -> Emitted<()> {
    let form = form(word);
    let target = |offset: i64| {
        let target = from.wrapping_add_signed(offset);
        past.filter(|past| past.leads_back(target)).map_or(target, |past| past.copy)
    };
    match form {
        Form::Branch { link, offset } => {
            if link {
                code.load(30, from.wrapping_add(LENGTH));
            }
            code.branch(target(offset))
        }
        // They mean always.
        Form::ConditionalBranch { condition: 14.., offset } => code.branch(target(offset)),
        Form::ConditionalBranch { offset, .. } => conditional(word, word ^ 1, 19, target(offset), code),
        Form::CompareBranch { offset, .. } => conditional(word, word ^ 1 << 24, 19, target(offset), code),
        Form::TestBranch { offset, .. } => conditional(word, word ^ 1 << 24, 14, target(offset), code),
        Form::RegisterBranch { kind: RegisterBranch::Call, rn, authenticated } => {
            call_register(word, rn, authenticated, from, code)
        }
        Form::Address { rd: 31, .. } => {
            code.emit([a::NOP]);
            Ok(())
        }
        Form::Address { page, rd, offset } => {
            let base = if page { from & !0xfff } else { from };
            address(u32::from(rd), base.wrapping_add_signed(offset), code);
            Ok(())
        }
        Form::Literal { kind, rt, offset } => {
            literal(word, kind, u32::from(rt), target(offset), code);
            Ok(())
        }
        _ => {
            movable(form)?;
            code.emit([word]);
            Ok(())
        }
    }
}

/// See [`crate::Isa::moved`].
pub fn moved(turn: &Displaced, original: &[u8], address: u64, past: Option<Past>) -> Emitted<Moved> {
    let word = word(original).ok_or(Reason::NotAnInstruction)?;
    let mut code = Code::new(address);
    relocate_past(word, turn.start, &mut code, past)?;
    let back = code.offset();
    code.branch(turn.end())?;
    let code = code.finish()?;
    let frames = of_copy(&code, 0, back).to_vec();
    Ok(Moved { code, places: vec![(turn.start, 0), (turn.end(), back)], frames })
}

/// Why an instruction of this form cannot run at another address, if so.
pub fn movable(form: Form) -> Result<(), Reason> {
    use super::decode::hint;
    match form {
        Form::Unallocated => Err(Reason::NotAnInstruction),
        Form::Exception(_) => Err(Reason::Traps),
        Form::Privileged => Err(Reason::Unmovable("a privileged instruction")),
        Form::SignsWithPc => Err(Reason::Unmovable("a signature made with the program counter")),
        // They wait for an event that the detour's own exclusive accesses would produce.
        Form::Hint(hint::WFE) => Err(Reason::Unmovable("wfe")),
        Form::Hint(hint::WFI) => Err(Reason::Unmovable("wfi")),
        Form::TimedWait => Err(Reason::Unmovable("wfet")),
        Form::Prefix => Err(Reason::Unmovable("movprfx, which must stand ahead of its instruction,")),
        Form::LaterStage => Err(Reason::Unmovable("a stage of a copy that must stand behind the first")),
        _ => Ok(()),
    }
}

/// The field of a conditional branch that has its distance, as its lowest bit and its width; `None` for what is none. 14 and 15 mean
/// always, and have no inverse: they are copied as `b`.
pub(super) fn field_of_branch(form: Form) -> Option<(u32, u32)> {
    match form {
        Form::ConditionalBranch { condition: ..14, .. } | Form::CompareBranch { .. } => Some((5, 19)),
        Form::TestBranch { .. } => Some((5, 14)),
        _ => None,
    }
}

/// A conditional branch: directly when the field of `width` bits at bit 5 reaches, else `inverse` over a `b`.
fn conditional(word: u32, inverse: u32, width: u32, target: u64, code: &mut Code) -> Emitted<()> {
    let mask = ((1 << width) - 1) << 5;
    let offset = target.wrapping_sub(code.here()) as i64;
    if let Ok(field) = a::branch_field(offset, 5, width) {
        code.emit([word & !mask | field]);
        return Ok(());
    }
    let skip = a::branch_field(8, 5, width)?;
    // Checked before anything is appended.
    a::b(target.wrapping_sub(code.here().wrapping_add(4)) as i64)?;
    code.emit([inverse & !mask | skip]);
    code.branch(target)
}

/// `blr`: x30 is the address behind the site, as for `bl`, so the branch itself must not link.
///
/// `ret` branches like `br` does, but sets BTYPE to 0 and so arrives at `bti c` (which `br` may only by x16
/// and x17) and, with FEAT_BTI, anywhere that `blr` arrives at.
fn call_register(word: u32, rn: u8, authenticated: bool, from: u64, code: &mut Code) -> Emitted<()> {
    let branch = match (authenticated, rn) {
        (_, 30) => return Err(Reason::Unmovable("a call through the link register")),
        (false, _) => a::RET & !(31 << 5) | u32::from(rn) << 5,
        // BLRAA to BRAA: bit 21 is the link.
        (true, 16 | 17) if word & 31 != 30 => word & !(1 << 21),
        (true, _) => return Err(Reason::Unmovable("an authenticated call")),
    };
    code.load(30, from.wrapping_add(LENGTH));
    code.emit([branch]);
    Ok(())
}

/// Loads the address `value`: by `adr`, by `adrp` for a page, or as a constant.
fn address(rd: u32, value: u64, code: &mut Code) {
    let distance = value.wrapping_sub(code.here()) as i64;
    let pages = (value.wrapping_sub(code.here() & !0xfff) as i64) >> 12;
    if (-(1 << 20)..1 << 20).contains(&distance) {
        code.emit([0x1000_0000 | immediate21(distance) | rd]);
    } else if value & 0xfff == 0 && (-(1 << 20)..1 << 20).contains(&pages) {
        code.emit([0x9000_0000 | immediate21(pages) | rd]);
    } else {
        code.load(rd, value);
    }
}

/// The 21-bit immediate of `adr` and `adrp`.
fn immediate21(value: i64) -> u32 {
    (value as u32 & 3) << 29 | (value as u32 >> 2 & 0x7_ffff) << 5
}

/// A literal load: with a new offset when it reaches, else through the literal's address.
fn literal(word: u32, kind: Literal, rt: u32, target: u64, code: &mut Code) {
    if let Ok(field) = a::branch_field(target.wrapping_sub(code.here()) as i64, 5, 19) {
        code.emit([word & !(0x7_ffff << 5) | field]);
        return;
    }
    let load = match kind {
        Literal::Word => a::ldr_w(rt, 0, 0),
        Literal::Double => a::ldr(rt, 0, 0),
        Literal::SignedWord => 0xb980_0000 | rt,
        Literal::Prefetch => 0xf980_0000 | rt,
        // ldr s, d: size 2, 3; ldr q: size 0 with the upper bit of opc.
        Literal::Vector { size: 2 } => 0x3dc0_0000 | rt,
        Literal::Vector { size } => 0xbd40_0000 | u32::from(size) << 30 | rt,
    };
    let through = |base: u32| load | base << 5;
    if rt != 31 && matches!(kind, Literal::Word | Literal::Double | Literal::SignedWord) {
        code.load(rt, target);
        code.emit([through(rt)]);
    } else {
        code.emit([a::stp_pre(16, 17, 31, -16)]);
        code.load(16, target);
        code.emit([through(16), a::ldp_post(16, 17, 31, 16)]);
    }
}
