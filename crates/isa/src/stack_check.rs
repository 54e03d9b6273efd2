//! Where does a function check for stack space?
//!
//! Go's functions do so ahead of all else, unless they are `nosplit`. If there is not enough they call `runtime.morestack`, which moves the stack
//! to a larger place, and begin again:
//!
//! ```text
//!          compare the stack pointer with the goroutine's limit
//!          branch, if it is below ─────────▶ restart: save the arguments
//!   behind: the frame is made                         call runtime.morestack
//!          …                                          load the arguments
//!                                                     jump to the function's first instruction
//! ```
//!
//! On powerpc64le that stands between the two, and the branch leads past it if there is enough.

use crate::{Flow, Isa, Site, StackCheck};

/// The check is among so many instructions at a function's beginning, those of large frames, too.
const MOST_AHEAD: usize = 12;

/// Making more of the stack takes so many at most: each argument in a register is saved and loaded.
const MOST_RESTARTING: usize = 64;

/// The check of the function at `site`.
pub(crate) fn find<I: Isa + ?Sized>(isa: &I, site: &Site<'_>) -> Option<StackCheck> {
    let mut found: Option<(u64, u64)> = None;
    let mut address = site.function;
    for _ in 0..MOST_AHEAD {
        let Some(instruction) = at(isa, site, address) else { break };
        address = instruction.end();
        match instruction.flow {
            Flow::Next => {}
            Flow::Branch { target } if target > address && restarts(isa, site, address) == Some(target) => {
                let is_all = found.is_none_or(|(to, _)| to == address) && !is_led_to(isa, site, target);
                return is_all.then_some(StackCheck { behind: target, restart: address..target });
            }
            Flow::Branch { target } if target >= address && found.is_none_or(|(to, _)| to == target) => {
                found = Some((target, address));
            }
            _ => break,
        }
    }
    let (restart, behind) = found?;
    restarts(isa, site, restart).map(|end| StackCheck { behind, restart: restart..end })
}

/// The end of what calls something at `address` and then begins the function again, with nothing else in between.
fn restarts<I: Isa + ?Sized>(isa: &I, site: &Site<'_>, mut address: u64) -> Option<u64> {
    let mut called = false;
    for _ in 0..MOST_RESTARTING {
        let instruction = at(isa, site, address)?;
        address = instruction.end();
        match instruction.flow {
            Flow::Next => {}
            Flow::Call { .. } if !called => called = true,
            Flow::Jump { target } if called && target == site.function => return Some(address),
            _ => return None,
        }
    }
    None
}

/// Whether the function goes on at `address` from somewhere behind that, too.
fn is_led_to<I: Isa + ?Sized>(isa: &I, site: &Site<'_>, address: u64) -> bool {
    let mut from = address;
    while let Some(instruction) = at(isa, site, from) {
        from = instruction.end();
        match instruction.flow {
            Flow::Branch { target } | Flow::Jump { target } if target == address => return true,
            _ => {}
        }
    }
    // Up to its end.
    from.checked_sub(site.function) != Some(site.code.len() as u64)
}

fn at<I: Isa + ?Sized>(isa: &I, site: &Site<'_>, address: u64) -> Option<crate::Instruction> {
    let offset = usize::try_from(address.checked_sub(site.function)?).ok()?;
    isa.decode(site.code.get(offset..)?, address).ok()
}
