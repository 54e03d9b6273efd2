//! Looking up the rule of an address in the unwind area.

use super::super::emit::{At, Emit};
use super::walk::{MODULE, MODULE_INDEX, MODULE_ROWS, MODULE_RULES, Walk};
use super::{leave_unless, short};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, Value};
use cranelift_frontend::Variable;
use trapless_wire::unwind::{BUCKET_BITS, DIRECTORY_OFFSET, RULE_BITS, Rule};

impl Walk<'_> {
    /// Looks for the module of an address in the directory; goes to a block if there is none.
    pub(super) fn search(&self, e: &mut Emit<'_>, at: Value, known: Variable, unknown: Block) {
        let area = self.area(e);
        let directory = e.watch(At(area, DIRECTORY_OFFSET as i32));
        let low = e.b.ins().ireduce(I32, directory);
        let offset = e.b.ins().uextend(I64, low);
        let count = e.b.ins().ushr_imm_s(directory, 32);
        leave_unless(e, count, unknown);
        let size = e.b.ins().imul_imm_s(count, MODULE);
        let end = e.b.ins().iadd(offset, size);
        self.in_area(e, end, 0);
        let first = e.b.ins().iadd(area, offset);
        let (from, rest) = (e.set_new(first), e.set_new(count));
        let [again, over] = [(); 2].map(|()| e.block());
        e.go_on(again);
        let left = e.b.use_var(rest);
        let is_one = e.is_imm(IntCC::UnsignedLessThanOrEqual, left, 1);
        e.leave_if(is_one, over);
        let half = e.b.ins().ushr_imm_s(left, 1);
        let middle = e.b.ins().imul_imm_s(half, MODULE);
        let now = e.b.use_var(from);
        let middle = e.b.ins().iadd(now, middle);
        let start = e.load(At(middle, 0));
        let is_before = e.is(IntCC::UnsignedLessThanOrEqual, start, at);
        let now = e.b.ins().select(is_before, middle, now);
        e.b.def_var(from, now);
        let left = e.b.ins().isub(left, half);
        e.b.def_var(rest, left);
        e.jump(again);
        e.b.switch_to_block(over);
        let now = e.b.use_var(from);
        let is_in = Self::is_in(e, now, at);
        leave_unless(e, is_in, unknown);
        e.b.def_var(self.module, now);
        e.b.def_var(known, is_in);
    }

    /// The address of the rule that holds at an address in a module; goes to a block if it has no table.
    pub(super) fn rule(&self, e: &mut Emit<'_>, module: Value, at: Value, rule: Variable, none: Block) {
        let start = e.load(At(module, 0));
        let [index, rows, rules] =
            [MODULE_INDEX, MODULE_ROWS, MODULE_RULES].map(|field| short(e, I32, At(module, field)));
        leave_unless(e, rows, none);
        let key = e.b.ins().isub(at, start);
        let bucket = e.b.ins().ushr_imm_s(key, i64::from(BUCKET_BITS));
        let entry = e.b.ins().ishl_imm_s(bucket, 2);
        let entry = e.b.ins().iadd(index, entry);
        let entry = self.in_area(e, entry, 8);
        let [earlier, to] = [0, 4].map(|word| short(e, I32, At(entry, word)));
        // The last row of an earlier bucket holds if all of this one's are greater.
        leave_unless(e, earlier, self.done);
        let from = e.b.ins().iadd_imm_s(earlier, -1);
        let is_less = e.is(IntCC::UnsignedLessThan, to, from);
        e.leave_if(is_less, self.done);
        let count = e.b.ins().isub(to, from);
        let end = e.b.ins().ishl_imm_s(to, 2);
        let end = e.b.ins().iadd(rows, end);
        self.in_area(e, end, 4);
        let area = self.area(e);
        let first = e.b.ins().ishl_imm_s(from, 2);
        let first = e.b.ins().iadd(first, rows);
        let first = e.b.ins().iadd(area, first);
        let low = e.b.ins().ishl_imm_s(key, i64::from(RULE_BITS));
        let wanted = e.b.ins().bor_imm_s(low, (1 << RULE_BITS) - 1);
        let wanted = e.b.ins().ireduce(I32, wanted);
        let (row, rest) = (e.set_new(first), e.set_new(count));
        let [again, over] = [(); 2].map(|()| e.block());
        e.go_on(again);
        let left = e.b.use_var(rest);
        let is_one = e.is_imm(IntCC::UnsignedLessThanOrEqual, left, 1);
        e.leave_if(is_one, over);
        let half = e.b.ins().ushr_imm_s(left, 1);
        let middle = e.b.ins().ishl_imm_s(half, 2);
        let now = e.b.use_var(row);
        let middle = e.b.ins().iadd(now, middle);
        let value = e.load_as(I32, At(middle, 0));
        let is_before = e.is(IntCC::UnsignedLessThanOrEqual, value, wanted);
        let now = e.b.ins().select(is_before, middle, now);
        e.b.def_var(row, now);
        let left = e.b.ins().isub(left, half);
        e.b.def_var(rest, left);
        e.jump(again);
        e.b.switch_to_block(over);
        let now = e.b.use_var(row);
        let value = short(e, I32, At(now, 0));
        let number = e.b.ins().band_imm_s(value, (1 << RULE_BITS) - 1);
        let offset = e.b.ins().imul_imm_s(number, Rule::SIZE as i64);
        let offset = e.b.ins().iadd(rules, offset);
        let found = self.in_area(e, offset, Rule::SIZE as i64);
        e.b.def_var(rule, found);
    }
}
