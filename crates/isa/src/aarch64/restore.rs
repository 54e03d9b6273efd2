//! The routine that puts back the real return addresses, for the entry points of unwinders.
//!
//! On arm64 the return address is wherever the callee saved x30. The detour knows where that is relative to
//! the slot ([`super::returns::saved`]), so the routine goes through the thread's return table, and where the
//! saved word of a live instance is the return point, writes the real address, signed as the function does.
//! An instance of the very slot of the unwinder's caller is one whose function came by a tail call; its
//! return address is still in x30.
//!
//! Instances left behind by longjmp or a dead coroutine may refer to stacks that are gone. So a saved word is
//! looked at only after the kernel has: `rt_sigprocmask` with an operation that does not exist copies the 8
//! bytes it would use, says `EFAULT` when it cannot, and changes nothing. Instances whose function keeps its
//! return address in a place that is not known stay.
//!
//! The returns of these calls will not be seen, and are counted as lost, those of a whole chain of tail calls.
//! Calls that a coroutine began on another thread are not looked for.

use super::decode::hint;
use super::emit::{Label, instruction as a};
use super::frame::register::*;
use super::frame::{LEVEL_SHIFT, RETURN_POINT};
use super::runtime::Routines;
use crate::detour::*;

const RT_SIGPROCMASK: u64 = 135;
const NO_OPERATION: u64 = 99;
const EFAULT: u32 = 14;
/// Bytes of the kernel's signal set.
const SIGNAL_SET: u64 = 8;

/// Low bits of the key of an instance while it is put back: no level, so that a signal handler leaves it
/// alone.
const BUSY: u32 = 15;

// The routine's own use of the template's registers.
const END: u32 = TEMPORARY;
const KEY: u32 = ADDRESS;
const WORD: u32 = STATUS;
const FLOOR: u32 = TIME;

impl Routines<'_> {
    pub(super) fn restore(&mut self) -> u64 {
        let [look, register, found, next, done] = self.labels();
        let size = 1u64 << (self.layout.return_bits + RETURN_SHIFT);
        let routine = self.enter();
        self.code.emit_to(a::cbz(PLACE), done);
        self.code.emit([a::mov(FLOOR, SLOT)]);
        self.code.load(END, size);
        self.code.emit([a::add(END, PLACE, END, 0)]);

        self.code.bind(look);
        self.code.emit([a::ldr(SLOT, PLACE, RETURN_SLOT)]);
        self.code.emit_to(a::cbz(SLOT), next);
        // Those that were moved aside come with the one they made way for.
        self.code.emit([a::ubfx(2, SLOT, 0, 4)]);
        self.code.emit_to(a::cbnz(2), next);
        self.code.emit([a::sub(2, SLOT, FLOOR, 0)]);
        self.code.emit_to(a::tbnz(2, 63), next);
        self.describe(next);
        self.code.emit_to(a::cbz(2), register);
        self.code.emit_to(a::cbz(5), next);
        self.code.emit([
            a::ubfx(KEY, 5, 0, 3),
            a::add(WORD, SLOT, 5, 0),
            a::sub(WORD, WORD, KEY, 0),
            a::sub(2, WORD, FLOOR, 0),
        ]);
        self.code.emit_to(a::tbnz(2, 63), next);
        self.is_readable(next);
        self.code.emit([a::ldr(LINK, WORD, 0), a::hint(hint::XPACLRI), a::eor(2, 3, LINK)]);
        self.code.emit_to(a::cbnz(2), next);
        self.jump(found);
        self.code.bind(register);
        self.code.emit([a::eor(2, 3, ENTERED)]);
        self.code.emit_to(a::cbnz(2), next);
        self.code.emit([a::mov(WORD, SP)]); // zero: in the register

        self.code.bind(found);
        let own = self.code.label_here();
        self.code.emit([a::ldxr(2, PLACE), a::eor(2, 2, SLOT)]);
        self.code.emit_to(a::cbnz(2), next);
        self.code.emit([a::add_immediate(2, SLOT, BUSY), a::stxr(4, 2, PLACE)]);
        self.code.emit_to(a::cbnz_w(4), own);
        self.unwind();
        self.put_back();
        self.code.emit([a::str(1, PLACE, RETURN_SLOT)]);
        self.code.bind(next);
        self.code.emit([a::add_immediate(PLACE, PLACE, 1 << RETURN_SHIFT), a::sub(2, PLACE, END, 0)]);
        self.code.emit_to(a::cbnz(2), look);
        self.code.bind(done);
        self.leave();
        routine
    }

    /// x3 = the return point of the instance, x6 = its counter of lost returns, x5 = where the return address
    /// is. Changes x4.
    /// Goes to `filling` when the instance has no return point yet.
    fn describe(&mut self, filling: Label) {
        self.code.emit([a::ldr(3, PLACE, RETURN_POINT), a::ubfx(3, 3, 0, LEVEL_SHIFT)]);
        self.code.emit_to(a::cbz(3), filling);
        self.code.emit([
            // The `bl` in front of the return point leads to the body, in front of which the two words stand.
            a::sub_immediate(4, 3, 4),
            a::ldr_w(5, 4, 0),
            a::sbfx(5, 5, 0, 26),
            a::add(4, 4, 5, 2),
            a::sub_immediate(4, 4, 8),
            a::ldr_w(6, 4, 0),
            a::ldrsw(5, 4, 4),
        ]);
    }

    /// Goes to `otherwise` when there is no memory at `WORD`.
    fn is_readable(&mut self, otherwise: Label) {
        self.code.emit([a::mov(7, 3), a::mov(4, 8)]);
        self.code.load(0, NO_OPERATION);
        self.code.emit([a::mov(1, WORD), a::mov(2, SP)]);
        self.code.load(3, SIGNAL_SET);
        self.code.load(8, RT_SIGPROCMASK);
        self.code.emit([a::SVC, a::mov(8, 4), a::mov(3, 7), a::add_immediate(0, 0, EFAULT)]);
        self.code.emit_to(a::cbz(0), otherwise);
    }

    /// x30 = the real return address: that of the first call in the chain of tail calls. All of the chain are
    /// counted as lost. x1 = 0, or the slot when an older instance that is not part of the chain comes back
    /// to `PLACE`.
    fn unwind(&mut self) {
        let [free, done] = self.labels();
        let level = self.code.label_here();
        self.code.emit([a::ldr(4, BLOCK, THREAD_BLOCK), a::add(4, 4, 6, 0)]);
        let count = self.code.label_here();
        self.code.emit([a::ldxr(2, 4), a::add_immediate(2, 2, 1), a::stxr(5, 2, 4)]);
        self.code.emit_to(a::cbnz_w(5), count);
        self.code.emit([a::ldr(7, PLACE, RETURN_ADDRESS)]);
        self.code.emit([a::ldr(4, PLACE, RETURN_POINT), a::lsr(4, 4, LEVEL_SHIFT)]);
        self.code.emit_to(a::cbz(4), free);
        self.code.load(0, 1 << (self.layout.return_bits + RETURN_SHIFT));
        self.code.emit([a::sub(0, END, 0, 0), a::add(1, SLOT, 4, 0)]);
        self.call(self.search);
        self.code.emit_to(a::cbz(2), free);
        self.entered_by_tail_call(2, PLACE);
        self.code.emit([a::mov(1, 3)]);
        self.copy(2, PLACE);
        self.code.emit([a::str(SP, 2, RETURN_POINT), a::str(SP, 2, RETURN_SLOT)]);
        self.describe(free);
        self.code.emit_to(a::cbz(1), level);
        self.code.emit([a::mov(1, SLOT)]);
        self.jump(done);
        self.code.bind(free);
        self.code.emit([a::str(SP, PLACE, RETURN_POINT), a::mov(1, SP)]); // zero
        self.code.bind(done);
        self.code.emit([a::mov(LINK, 7)]);
    }

    /// Writes x30 to where the return address is. Keeps x1.
    fn put_back(&mut self) {
        let [register, plain, key_b, signed, done] = self.labels();
        self.code.emit_to(a::cbz(WORD), register);
        self.code.emit_to(a::cbz(KEY), plain);
        self.code.emit([a::mov(3, 17), a::mov(2, 16), a::mov(17, LINK), a::mov(16, SLOT)]);
        self.code.emit_to(a::tbnz(KEY, 1), key_b);
        self.code.emit([a::hint(hint::PACIA1716)]);
        self.jump(signed);
        self.code.bind(key_b);
        self.code.emit([a::hint(hint::PACIB1716)]);
        self.code.bind(signed);
        self.code.emit([a::mov(LINK, 17), a::mov(17, 3), a::mov(16, 2)]);
        self.code.bind(plain);
        self.code.emit([a::str(LINK, WORD, 0)]);
        self.jump(done);
        self.code.bind(register);
        self.code.emit([a::mov(ENTERED, LINK)]);
        self.code.bind(done);
    }
}
