//! The routines that the detours of one arena share: what happens off their fast paths.
//!
//! They keep all registers but the ones named as results, and those of the template that they say. Each saves
//! x0 to x7 and x30 and works in x0 to x7. See [`crate::detour`] for the protocol of the tables and
//! [`super::detour`] for levels.

use super::emit::{Code, Label, instruction as a};
use super::frame::register::*;
use super::frame::{LEVEL_SHIFT, RETURN_POINT};
use crate::Reason;
use crate::detour::*;
use alloc::vec;

/// The entry of the thread table for the thread pointer in `TEMPORARY`, in `BLOCK`; one that leads to the
/// overflow block and no returns when there is none. Changes `ADDRESS`.
pub const RESOLVE: usize = 0;
/// Claims a return instance for `SLOT` and the return address in `ENTERED`, given the slot's first place in
/// `PLACE`. `PLACE` is the place or 0, `STATUS` the level in the place of [`RETURN_POINT`]. Changes `ADDRESS`
/// and `TEMPORARY`.
pub const CLAIM: usize = 1;
/// Finds the return instance of `SLOT` in `PLACE`, given its first place or 0 in `PLACE`. Does not return
/// when there is none.
pub const FIND: usize = 2;
/// Puts the next older instance of `SLOT` back in `PLACE`, whose level is in `ADDRESS`.
pub const UNNEST: usize = 3;

/// Puts back the return addresses of the followed calls in the thread's return table `PLACE` (or none, if 0),
/// for calls whose slot is not below `SLOT`, given the thread's entry in `BLOCK`. The caller's x30, unsigned,
/// is in `ENTERED` and is put back there. Changes the template's other registers.
pub const RESTORE: usize = 4;

/// Bytes of a routine's frame: x0 to x7, x30.
const FRAME: i32 = 80;

/// Refuses layouts whose sizes the templates cannot express.
pub fn check(layout: &Layout) -> Emitted<()> {
    let bits = |bits: u32| (1..=30).contains(&bits);
    let ring = layout.ring == 0 || bits(layout.ring_bits);
    if bits(layout.thread_bits) && bits(layout.return_bits) && ring && layout.block_count > 0 {
        Ok(())
    } else {
        Err(Reason::OutOfReach)
    }
}

/// The routines, to stand at `address`.
pub fn runtime(address: u64, layout: &Layout) -> Emitted<Runtime> {
    check(layout)?;
    if !address.is_multiple_of(8) {
        return Err(Reason::MidInstruction);
    }
    let mut r = Routines::new(address, layout);
    // The entry of threads that have none comes first, as data.
    r.code.emit([0, 0, layout.blocks as u32, (layout.blocks >> 32) as u32, 0, 0]);
    let routines = vec![r.resolve(), r.claim(), r.find(), r.unnest(), r.restore()];
    r.search();
    r.take();
    let Routines { code, .. } = r;
    Ok(Runtime { code: code.finish()?, routines })
}

/// The routines in the making.
pub(super) struct Routines<'a> {
    pub(super) code: Code,
    pub(super) layout: &'a Layout,
    homeless: Label,
    pub(super) search: Label,
    take: Label,
}

impl<'a> Routines<'a> {
    fn new(address: u64, layout: &'a Layout) -> Self {
        let mut code = Code::new(address);
        let (homeless, search, take) = (code.label_here(), code.label(), code.label());
        Self { code, layout, homeless, search, take }
    }

    pub(super) fn enter(&mut self) -> u64 {
        let address = self.code.here();
        self.code.emit([
            a::stp_pre(0, 1, SP, -FRAME),
            a::stp(2, 3, SP, 16),
            a::stp(4, 5, SP, 32),
            a::stp(6, 7, SP, 48),
            a::str(LINK, SP, 64),
        ]);
        address
    }

    pub(super) fn leave(&mut self) {
        self.code.emit([
            a::ldr(LINK, SP, 64),
            a::ldp(6, 7, SP, 48),
            a::ldp(4, 5, SP, 32),
            a::ldp(2, 3, SP, 16),
            a::ldp_post(0, 1, SP, FRAME),
            a::RET,
        ]);
    }

    pub(super) fn call(&mut self, label: Label) {
        self.code.emit_to(0x9400_0000, label);
    }

    pub(super) fn jump(&mut self, label: Label) {
        self.code.emit_to(0x1400_0000, label);
    }

    pub(super) fn labels<const N: usize>(&mut self) -> [Label; N] {
        core::array::from_fn(|_| self.code.label())
    }

    /// x0 = entries left, x1 = index, x2 = table, x3 = cursor's address, x4 = number of blocks.
    fn resolve(&mut self) -> u64 {
        let l = *self.layout;
        let [next, claim, homeless, done] = self.labels();
        let routine = self.enter();
        self.code.emit_to(a::cbz(TEMPORARY), homeless);
        self.code.load(2, l.threads);
        self.code.load(3, l.block_cursor);
        self.code.load(4, u64::from(l.block_count));
        self.code.load(0, 1 << l.thread_bits);
        self.code.emit([a::ubfx(1, TEMPORARY, THREAD_HASH_SHIFT, l.thread_bits)]);
        let look = self.code.label_here();
        self.code.emit([
            a::add(BLOCK, 2, 1, THREAD_SHIFT),
            a::ldar(ADDRESS, BLOCK),
            a::eor(5, ADDRESS, TEMPORARY),
        ]);
        self.code.emit_to(a::cbz(5), done);
        self.code.emit_to(a::cbz(ADDRESS), claim);
        self.code.bind(next);
        self.code.emit([
            a::add_immediate(1, 1, 1),
            a::ubfx(1, 1, 0, l.thread_bits),
            a::sub_immediate(0, 0, 1),
        ]);
        self.code.emit_to(a::cbnz(0), look);
        self.code.bind(homeless);
        self.code.emit_to(a::adr(BLOCK), self.homeless);
        self.code.bind(done);
        self.leave();

        // The block that the cursor says. Looked at first, so that the cursor stays small.
        self.code.bind(claim);
        self.code.emit([a::ldar(5, 3), a::sub(5, 5, 4, 0)]);
        self.code.emit_to(a::tbz_sign(5), homeless);
        let reserve = self.code.label_here();
        self.code.emit([a::ldxr(5, BLOCK)]);
        self.code.emit_to(a::cbnz(5), look);
        self.code.load(6, THREAD_RESERVED);
        self.code.emit([a::stxr(7, 6, BLOCK)]);
        self.code.emit_to(a::cbnz_w(7), reserve);
        let count = self.code.label_here();
        self.code.emit([a::ldxr(5, 3), a::add_immediate(6, 5, 1), a::stxr(7, 6, 3)]);
        self.code.emit_to(a::cbnz_w(7), count);
        let room = self.code.label();
        self.code.emit([a::sub(6, 5, 4, 0)]);
        self.code.emit_to(a::tbnz(6, 63), room);
        // Others took the last blocks meanwhile.
        self.code.emit([a::stlr(SP, BLOCK)]);
        self.jump(homeless);

        self.code.bind(room);
        self.code.load(6, l.block_stride);
        self.code.load(7, l.blocks);
        self.code.emit([a::madd(5, 5, 6, 7), a::str(TEMPORARY, 5, BLOCK_OWNER)]);
        self.code.load(6, l.origin);
        self.code.emit([a::ldr(6, 6, 0), a::str(6, 5, BLOCK_ORIGIN), a::str(5, BLOCK, THREAD_BLOCK)]);
        self.code.load(6, l.returns);
        self.code.emit([
            a::lsl(7, 1, l.return_bits + RETURN_SHIFT),
            a::add(6, 6, 7, 0),
            a::str(6, BLOCK, THREAD_RETURNS),
        ]);
        // Its bit among the tables that were ever used.
        self.code.load(6, l.returns_used);
        self.code.emit([a::lsr(7, 1, 6), a::add(6, 6, 7, 3)]);
        self.code.load(7, 1);
        self.code.emit([a::lslv(7, 7, 1)]);
        let set = self.code.label_here();
        self.code.emit([a::ldxr(5, 6), a::orr(5, 5, 7), a::stxr(ADDRESS, 5, 6)]);
        self.code.emit_to(a::cbnz_w(ADDRESS), set);
        self.code.emit([a::stlr(TEMPORARY, BLOCK)]);
        self.jump(done);
        routine
    }

    /// x0 = the table that the slot's first place in `PLACE` belongs to.
    fn table_of_first_place(&mut self) {
        self.code.emit([a::ubfx(0, SLOT, 4, self.layout.return_bits), a::sub(0, PLACE, 0, RETURN_SHIFT)]);
    }

    /// x3 = return point and x4 = level of the instance that is there, x7.
    fn claim(&mut self) -> u64 {
        let [fresh, nest, moved, full, done] = self.labels();
        let routine = self.enter();
        self.table_of_first_place();
        self.code.emit([a::mov(1, SLOT)]);
        self.call(self.search);
        self.code.emit_to(a::cbz(2), fresh);
        self.code.emit([a::mov(7, 2), a::ldr(3, 7, RETURN_POINT), a::lsr(4, 3, LEVEL_SHIFT)]);
        self.code.emit([a::ubfx(3, 3, 0, LEVEL_SHIFT), a::eor(2, 3, ENTERED)]);
        self.code.emit_to(a::cbz(2), nest);
        self.in_a_register(nest);
        // Left behind by longjmp, and with it all that made way for it.
        self.code.emit([a::str(SP, 7, RETURN_POINT), a::mov(PLACE, 7), a::mov(STATUS, SP)]);
        self.jump(done);

        self.code.bind(nest);
        self.code.emit([a::add_immediate(4, 4, 1)]);
        self.code.emit_to(a::tbnz(4, 4), full);
        self.code.emit([a::add(1, SLOT, 4, 0), a::mov(STATUS, 4)]);
        self.call(self.search);
        self.code.emit_to(a::cbnz(2), moved);
        self.call(self.take);
        self.code.emit_to(a::cbz(2), full);
        self.code.bind(moved);
        self.copy(7, 2);
        self.code.emit([a::str(SP, 7, RETURN_POINT), a::mov(PLACE, 7), a::lsl(STATUS, STATUS, LEVEL_SHIFT)]);
        self.jump(done);

        self.code.bind(full);
        self.code.emit([a::mov(PLACE, SP)]); // zero
        self.jump(done);

        self.code.bind(fresh);
        self.call(self.take);
        self.code.emit([a::mov(PLACE, 2), a::mov(STATUS, SP)]);
        self.code.bind(done);
        self.leave();
        routine
    }

    /// Goes to `found` when any register of the probed function but x30 holds x3. Changes x2.
    fn in_a_register(&mut self, found: Label) {
        // x0 to x7 are in the routine's frame, x9 to x16 in the template's above it.
        for offset in (0..64).chain(FRAME as u32..FRAME as u32 + 64).step_by(8) {
            self.code.emit([a::ldr(2, SP, offset), a::eor(2, 2, 3)]);
            self.code.emit_to(a::cbz(2), found);
        }
        for register in (17..30).chain([8]) {
            self.code.emit([a::eor(2, register, 3)]);
            self.code.emit_to(a::cbz(2), found);
        }
    }

    /// x3 = 0 when the instance at `younger` was entered by a tail call from the one at `older`. Changes x5.
    pub(super) fn entered_by_tail_call(&mut self, older: u32, younger: u32) {
        self.code.emit([
            a::ldr(3, older, RETURN_POINT),
            a::ubfx(3, 3, 0, LEVEL_SHIFT),
            a::ldr(5, younger, RETURN_ADDRESS),
            a::eor(3, 3, 5),
        ]);
    }

    /// x7 = number of the thread's table.
    fn find(&mut self) -> u64 {
        let [others, next, found] = self.labels();
        let l = *self.layout;
        let routine = self.enter();
        self.code.emit([a::mov(1, SLOT)]);
        self.code.emit_to(a::cbz(PLACE), others);
        self.table_of_first_place();
        self.call(self.search);
        self.code.emit_to(a::cbnz(2), found);

        self.code.bind(others);
        self.code.load(7, 0);
        let table = self.code.label_here();
        self.code.load(3, l.returns_used);
        self.code.emit([a::lsr(4, 7, 6), a::ldr_indexed(3, 3, 4), a::lsrv(3, 3, 7)]);
        self.code.emit_to(a::tbz(3, 0), next);
        self.code.load(0, l.returns);
        self.code.emit([a::lsl(4, 7, l.return_bits + RETURN_SHIFT), a::add(0, 0, 4, 0)]);
        self.call(self.search);
        self.code.emit_to(a::cbnz(2), found);
        self.code.bind(next);
        self.code.emit([a::add_immediate(7, 7, 1), a::lsr(4, 7, l.thread_bits)]);
        self.code.emit_to(a::cbz(4), table);
        // There is no address to return to.
        self.code.emit([a::UDF]);

        self.code.bind(found);
        self.code.emit([a::mov(PLACE, 2)]);
        self.leave();
        routine
    }

    fn unnest(&mut self) -> u64 {
        let l = *self.layout;
        let [none, done] = self.labels();
        let shift = l.return_bits + RETURN_SHIFT;
        let routine = self.enter();
        // The table that the place lies in, which may be another thread's.
        self.code.load(0, l.returns);
        self.code.emit([
            a::sub(2, PLACE, 0, 0),
            a::lsr(2, 2, shift),
            a::lsl(2, 2, shift),
            a::add(0, 0, 2, 0),
            a::add(1, SLOT, ADDRESS, 0),
        ]);
        self.call(self.search);
        self.code.emit_to(a::cbz(2), none);
        self.copy(2, PLACE);
        self.code.emit([a::str(SP, 2, RETURN_POINT), a::str(SP, 2, RETURN_SLOT)]);
        self.jump(done);
        self.code.bind(none);
        self.code.emit([a::str(SP, PLACE, RETURN_POINT), a::str(SP, PLACE, RETURN_SLOT)]);
        self.code.bind(done);
        self.leave();
        routine
    }

    /// Copies all but the slot of a return instance, by x3. Meanwhile it has no return point.
    pub(super) fn copy(&mut self, from: u32, to: u32) {
        self.code.emit([a::str(SP, to, RETURN_POINT)]);
        for field in [RETURN_ADDRESS, RETURN_ENTERED, RETURN_POINT] {
            self.code.emit([a::ldr(3, from, field), a::str(3, to, field)]);
        }
    }

    /// Goes through the places of `SLOT` in the table x0: `look` sees each in x2, and branches to its label
    /// to end with it. x2 = 0 when none ends it. Changes x3 to x6.
    fn places(&mut self, entry: Label, look: impl FnOnce(&mut Code, Label)) {
        let l = *self.layout;
        let done = self.code.label();
        self.code.bind(entry);
        self.code.emit([a::ubfx(3, SLOT, 4, l.return_bits)]);
        // The n-th place is n(2n + 1)·61 further: distances grow by 183, 427, 671…
        self.code.load(4, 183);
        self.code.load(5, u64::from(RETURN_PROBES) + 1);
        let place = self.code.label_here();
        self.code.emit([a::add(2, 0, 3, RETURN_SHIFT)]);
        look(&mut self.code, done);
        self.code.emit([
            a::add(3, 3, 4, 0),
            a::ubfx(3, 3, 0, l.return_bits),
            a::add_immediate(4, 4, 244),
            a::sub_immediate(5, 5, 1),
        ]);
        self.code.emit_to(a::cbnz(5), place);
        self.code.emit([a::mov(2, SP)]); // zero
        self.code.bind(done);
        self.code.emit([a::RET]);
    }

    /// x2 = the first place whose key is x1.
    fn search(&mut self) {
        self.places(self.search, |code, done| {
            code.emit([a::ldr(6, 2, RETURN_SLOT), a::eor(6, 6, 1)]);
            code.emit_to(a::cbz(6), done);
        });
    }

    /// x2 = the first free place, claimed with the key x1.
    fn take(&mut self) {
        self.places(self.take, |code, done| {
            let taken = code.label();
            let again = code.label_here();
            code.emit([a::ldxr(6, 2)]);
            code.emit_to(a::cbnz(6), taken);
            code.emit([a::stxr(6, 1, 2)]);
            code.emit_to(a::cbnz_w(6), again);
            code.emit_to(0x1400_0000, done);
            code.bind(taken);
        });
    }
}
