//! A detour that leads to another function.
//!
//! ```text
//!            autiasp               where the function has signed x30 already: the other one signs it for itself
//!            ldr x16, function
//!            br x16
//! original:  paciasp               where the site has, which the copy is behind
//!            displaced instruction
//!            b behind the site
//! ```
//!
//! Of two registers nobody expects at the entry of a function that they are kept on the way there, since linkers put veneers between (AAPCS64, 6.1.1).
//! A branch by one of them is taken for a call by the landing pads of guarded pages (`BTYPE`), and by nothing else. Our own memory is not guarded, so
//! pointers to it may lead anywhere.

use super::decode::hint;
use super::detour::Template;
use super::emit::instruction as a;
use crate::payload::Function;

/// The register by which the function is gone to (IP0).
const BY: u32 = 16;

impl Template<'_> {
    /// With nothing saved.
    pub(super) fn replace(&mut self, function: Function) {
        self.comment("to the function that is called instead");
        let check = self.signature.map(|signature| match signature {
            hint::PACIBSP => hint::AUTIBSP,
            _ => hint::AUTIASP,
        });
        self.code.emit(check.map(a::hint));
        if check.is_some() {
            // An unwinder would look for a signature at the site.
            self.stands_nowhere();
        }
        self.code.constant(BY, function.address());
        self.code.emit([a::br(BY)]);
    }

    /// Where calls of the original arrive: at what is to be done before the copy of the displaced instruction.
    pub(super) fn original(&mut self) -> u32 {
        self.comment("the original");
        let at = self.code.offset();
        if let Some(signature) = self.signature {
            self.stands_nowhere();
            self.code.emit([a::hint(signature)]);
        }
        self.stands(0);
        at
    }
}
