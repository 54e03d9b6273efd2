//! A detour that leads to another function.
//!
//! ```text
//!            lr is 0, or lr - r2 has more than 32 bits            ──▶ plain
//!            ld r2,24(r1) stands at lr                            ──▶ plain
//!            12(r1) = lr - r2; 24(r1) = r2
//!            ctr = the code that calls it; r12 = function; bctr
//! plain:     ctr = r12 = function; bctr
//! original:  r12 = the function that is replaced
//!            its TOC set-up
//!            displaced instruction
//!            b behind the site
//! ```
//!
//! # Whose the TOC pointer is
//!
//! The other function is in another file, and has its own TOC pointer in r2, from its global entry point on, which it finds by r12. What its caller has to find in
//! r2 afterwards depends on how the caller has called (ELFv2, 2.2.1.1 and 3.4.1):
//!
//! - Through another module's stub, or a pointer. Then `ld r2,24(r1)` stands behind the call, and nothing is to be done: linkers write it in the place of a
//!   `nop`, and compilers for pointers. It may be that of a caller further out, whose call was passed on by a tail call.
//! - From the same file, with the same TOC pointer, which the callee leaves alone. Then it is in r2 here, and has to be again.
//! - As one that uses no TOC. Then it does not matter.
//!
//! The latter two are told apart by nothing, and need not be. For both the function is called by code that brings r2 back ([`super::caller`]). Where a caller's own
//! TOC pointer is in r2, it lies within 2 GiB of its code, since that finds it so; so the return address is told in 32 bits from there on. Where it
//! does not, the caller is another file's, and needs nothing.
//!
//! What the detour writes are two words of the header of the caller's frame. One is there for the TOC pointer, which is what is written: a caller that has put it
//! there, for calls to other modules, finds it. The other is reserved, and nobody's: functions save cr in the four bytes ahead of it. So nothing is anywhere to be
//! found again or to be given back, whether the call returns, is left by an exception or `longjmp`, or goes on in a forked child.
//!
//! Registers that are changed are those that linkers' stubs change between caller and callee: r0, r12, ctr and cr0.

use super::caller::{RESTORES_TOC, RETURN, TOC_SAVE};
use super::decode::word_at;
use super::detour::Template;
use super::emit::*;
use super::verdict::toc_setup;
use crate::Reason;
use crate::detour::{Detour, Emitted};

/// The TOC pointer.
pub(super) const TOC: Gpr = Gpr(2);

/// `bctr`
const BRANCH_COUNTER: u32 = 0x4e80_0420;

impl Template<'_> {
    /// All of a detour that leads to `function`, by `caller`.
    pub(super) fn replaced(mut self, function: u64, caller: u64) -> Emitted<Detour> {
        let plain = self.asm.label();
        self.stands(0);
        self.comment("whose is the TOC pointer?");
        self.asm.read_special(R12, LR);
        self.asm.compare_immediate(R12, 0);
        self.asm.branch_if(When::Equal, plain);
        self.asm.sub(R12, R12, TOC);
        self.asm.extend_sign(R0, R12, 4);
        self.asm.compare(R0, R12);
        self.asm.branch_if(When::NotEqual, plain);
        // Only what is so near is read: who never comes back may have been called with any address.
        self.asm.add(R12, R12, TOC);
        self.asm.load_word(R0, R12, 0);
        self.asm.flip_high(R0, R0, (RESTORES_TOC >> 16) as u16);
        self.asm.compare_immediate(R0, RESTORES_TOC as i16);
        self.asm.branch_if(When::Equal, plain);
        self.asm.sub(R12, R12, TOC);
        self.asm.store_word(R12, R1, RETURN);
        self.asm.store(TOC, R1, TOC_SAVE);
        self.comment("to the function that is called instead, and back with the TOC pointer");
        self.asm.load_constant(R12, caller);
        self.asm.write_special(CTR, R12);
        self.asm.load_constant(R12, function);
        self.asm.word(BRANCH_COUNTER);
        self.asm.bind(plain);
        self.comment("to the function that is called instead");
        self.asm.load_constant(R12, function);
        self.asm.write_special(CTR, R12);
        self.asm.word(BRANCH_COUNTER);

        let original = self.asm.offset();
        self.comment("the original");
        let site = self.request.site;
        self.asm.load_constant(R12, site.function);
        for offset in (0..toc_setup(site.code).map_or(0, |setup| usize::from(setup.length))).step_by(4) {
            self.asm.word(word_at(site.code, offset).ok_or(Reason::NotAnInstruction)?);
        }
        self.displaced()?;
        self.stands_nowhere();
        self.finish(None, Some(original))
    }
}
