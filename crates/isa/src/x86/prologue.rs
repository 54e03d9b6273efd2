//! Which instructions are emulated together in one trap, and where does one lead that changes nothing else?
//!
//! The thread has trapped and its registers have been read, so more of a prologue may be emulated at once, as long as that
//! makes the hit no dearer: pushes join a push, since all they write is one piece of the stack, and instructions that
//! work on registers join one that does. (Where a push alone leads to two registers to be set, a `mov` behind it would
//! lead to all of them, and costs a tenth of the hit.) An instruction that a branch may lead to begins a new trap's worth, and so
//! does another probe's: the caller says where the next one is.

use super::decode::decode_one;
use super::emulate::{emulate_one, emulated};
use crate::{Displaced, EmulateError, Site, Thread};
use iced_x86::{Instruction, Mnemonic, OpKind};

/// Most instructions in one trap: more than any prologue that compilers write.
const MOST: u8 = 12;

/// What an instruction changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changes {
    /// Nothing; it leads on.
    Nothing,
    /// The stack, by a push that reads no memory.
    Stack,
    /// Registers and flags, and it leads on.
    Registers,
    /// Memory, or where the thread goes on; or it reads memory, which may fail.
    More,
}

/// The instructions of `site`'s function that are emulated together when a thread traps at `first`: up to the `next` probed
/// instruction, and to the next one that a branch leads to.
pub fn prologue(bits: u32, site: &Site<'_>, first: Displaced, next: Option<u64>) -> Displaced {
    let offset = usize::try_from(first.start.wrapping_sub(site.function)).ok();
    let code = offset.and_then(|offset| site.code.get(offset..)).unwrap_or_default();
    let end = next.unwrap_or(u64::MAX);
    let end = site.targets.first_inside(first.start, end).unwrap_or(end);
    together(bits, first, code, end)
}

/// Those of `code`, which starts with `first`. None of them but the first reaches beyond `end`.
pub(super) fn together(bits: u32, first: Displaced, code: &[u8], end: u64) -> Displaced {
    let mut together = first;
    let Some(kind) = changes(bits, code, first.start).map(|(kind, _)| kind) else { return first };
    if matches!(kind, Changes::Stack | Changes::Registers) {
        while together.instructions < MOST {
            let rest = code.get(usize::from(together.length)..).unwrap_or_default();
            match changes(bits, rest, together.end()) {
                Some((also, length))
                    if (also == kind || also == Changes::Nothing)
                        && together.end().saturating_add(length.into()) <= end =>
                {
                    together.length += length;
                    together.instructions += 1;
                }
                _ => break,
            }
        }
    }
    together
}

/// Does to `state` what all instructions of `code`, which stands at `address`, do: those that [`prologue`] has put together.
///
/// # Errors
/// Those of [`emulate`](super::emulate()) for one of them; `state` has to be dropped then.
pub fn emulate_all(bits: u32, code: &[u8], address: u64, state: &mut dyn Thread) -> Result<(), EmulateError> {
    let mut done = 0;
    while let rest @ [_, ..] = code.get(done..).unwrap_or_default() {
        done += emulate_one(bits, rest, address.wrapping_add(done as u64), state)?;
    }
    Ok(())
}

/// Where the instruction that `code` starts with leads, if it is emulated and changes nothing but the instruction pointer.
pub fn leads_to(bits: u32, code: &[u8], address: u64) -> Option<u64> {
    if let (Changes::Nothing, length) = changes(bits, code, address)? {
        return Some(address.wrapping_add(length.into()));
    }
    let (instruction, _) = decode_one(bits, code, address).ok()?;
    let is_direct = matches!(instruction.op0_kind(), OpKind::NearBranch32 | OpKind::NearBranch64);
    (instruction.mnemonic() == Mnemonic::Jmp && is_direct).then(|| instruction.near_branch_target())
}

/// What the instruction that `code` starts with changes, and its length; `None` if it is not emulated.
fn changes(bits: u32, code: &[u8], address: u64) -> Option<(Changes, u8)> {
    use Mnemonic::*;
    let (instruction, _) = decode_one(bits, code, address).ok()?;
    emulated(bits, &instruction, code.get(..instruction.len())?).ok()?;
    let kind = match instruction.mnemonic() {
        Nop | Endbr32 | Endbr64 => Changes::Nothing,
        Lea => Changes::Registers,
        Pop | Leave | Ret | Call | Jmp => Changes::More,
        _ if instruction.is_jcc_short_or_near() || has_memory(&instruction) => Changes::More,
        Push => Changes::Stack,
        _ => Changes::Registers,
    };
    Some((kind, instruction.len() as u8))
}

fn has_memory(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory)
}
