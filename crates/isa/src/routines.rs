//! The cold routines of detours, written once: what is too rare or too long to stand in every detour.
//!
//! They are bodies: each instruction set wraps them in its own way to be called, and says which registers play which role.
//! The memory they work on is described in [`crate::detour::memory`]; [`crate::model`] does the same in Rust, and tests hold the two
//! against each other. They wait for nothing and may be interrupted by a signal handler that runs them again.

mod interrupted;
mod returns;
mod threads;
mod translate;
mod walks;

pub(crate) use returns::{Instances, Missing, claim, instance_of, leave, oldest};
pub(crate) use threads::{Threads, join, resolve, share, unshare};
pub(crate) use translate::{Context, LOCALS, translate};
pub(crate) use walks::{count_left, ends_thread, landed};

use crate::assemble::Assemble;
use crate::detour::*;

/// Goes to `inside` when `address` lies in an arena. Changes the scratch registers.
pub(crate) fn in_arena<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    address: A::Reg,
    [at, x, y]: [A::Reg; 3],
    inside: A::Label,
) {
    let [arena, outside] = [(); 2].map(|()| a.label());
    a.set(at, layout.arenas);
    a.bind(arena);
    a.load(x, at, 0);
    a.jump_if_zero(x, outside);
    a.copy(y, address);
    a.sub(y, x);
    a.load(x, at, 8);
    a.jump_if_below(y, x, inside);
    a.add_small(at, 16);
    a.jump(arena);
    a.bind(outside);
}
