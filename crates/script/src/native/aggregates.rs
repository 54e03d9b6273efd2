//! Adding a value to the words of an aggregation.

use super::emit::{At, Emit};
use super::mask;
use crate::ir::*;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F64, I64};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};

/// Who else changes the words meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// Other threads and signal handlers.
    Threads,
    /// Signal handlers of the same thread.
    Handlers,
    /// Nobody.
    Nobody,
}

/// Adds a value, an integer or a double as the aggregation has it, with a weight if there is one. Not of time series.
pub(super) fn add(
    e: &mut Emit<'_>,
    aggregation: Aggregation,
    others: Others,
    at: At,
    value: Value,
    weight: Option<Value>,
) {
    let is_own = others != Others::Threads;
    let times = |e: &mut Emit<'_>, value: Value| match weight {
        Some(weight) => e.b.ins().imul(value, weight),
        None => value,
    };
    let float_times = |e: &mut Emit<'_>, value: Value| match weight {
        Some(weight) => {
            let weight = e.b.ins().fcvt_from_uint(F64, weight);
            e.b.ins().fmul(value, weight)
        }
        None => value,
    };
    let count = |e: &mut Emit<'_>, at: At| {
        let weight = weight.unwrap_or_else(|| e.int(1));
        e.add(is_own, at, weight);
    };
    match aggregation {
        Aggregation::Count => count(e, at),
        Aggregation::Sum => {
            let value = times(e, value);
            e.add(is_own, at, value);
        }
        Aggregation::SumOfFloats => {
            let value = float_times(e, value);
            add_float(e, others, at, value);
        }
        Aggregation::Average => {
            let value = times(e, value);
            e.add(is_own, at.plus(8), value);
            count(e, at);
        }
        Aggregation::AverageOfFloats => {
            let value = float_times(e, value);
            add_float(e, others, at.plus(8), value);
            count(e, at);
        }
        Aggregation::Min { .. }
        | Aggregation::Max { .. }
        | Aggregation::MinOfFloats
        | Aggregation::MaxOfFloats => {
            let far = |e: &mut Emit<'_>| {
                exchange_if_beyond(e, aggregation, at.plus(8), value);
                count(e, at);
            };
            // Of no hits there is no least one.
            match weight {
                Some(weight) => e.when(weight, far),
                None => far(e),
            }
        }
        Aggregation::Hist { bits } => {
            let bucket = hist_bucket(e, value, bits);
            count_bucket(e, at, bucket, count);
        }
        Aggregation::LinearHist { min, max, step } => {
            let bucket = linear_bucket(e, value, min, max, step);
            count_bucket(e, at, bucket, count);
        }
        Aggregation::TimeSeries { .. } => {}
    }
}

fn count_bucket(e: &mut Emit<'_>, at: At, bucket: Value, count: impl Fn(&mut Emit<'_>, At)) {
    let offset = e.b.ins().ishl_imm_s(bucket, 3);
    let word = e.b.ins().iadd(at.0, offset);
    count(e, At(word, at.1));
}

/// As [`crate::ir::hist_bucket`]: for all that is not negative, one formula.
fn hist_bucket(e: &mut Emit<'_>, value: Value, bits: u8) -> Value {
    let least = e.b.ins().bor_imm_s(value, 1 << bits);
    let above = e.b.ins().clz(least);
    let most = e.int(63 - i64::from(bits));
    let shift = e.b.ins().isub(most, above);
    let part = e.b.ins().ushr(value, shift);
    let powers = e.b.ins().ishl_imm_s(shift, i64::from(bits));
    let sum = e.b.ins().iadd(powers, part);
    let bucket = e.b.ins().iadd_imm_s(sum, 1);
    let is_negative = e.is_imm(IntCC::SignedLessThan, value, 0);
    let zero = e.int(0);
    e.b.ins().select(is_negative, zero, bucket)
}

/// As [`crate::ir::linear_bucket`].
fn linear_bucket(e: &mut Emit<'_>, value: Value, min: i64, max: i64, step: i64) -> Value {
    let last = e.int(i64::from(linear_buckets(min, max, step)) - 1);
    let (zero, least, step) = (e.int(0), e.int(min), e.int(step.max(1)));
    let beyond = e.b.ins().isub(value, least);
    let steps = e.b.ins().udiv(beyond, step);
    let bucket = e.b.ins().iadd_imm_s(steps, 1);
    let is_below = e.is(IntCC::SignedLessThan, value, least);
    let is_above = e.is_imm(IntCC::SignedGreaterThanOrEqual, value, max);
    let bucket = e.b.ins().select(is_above, last, bucket);
    e.b.ins().select(is_below, zero, bucket)
}

fn bitcast(e: &mut Emit<'_>, to: cranelift_codegen::ir::Type, value: Value) -> Value {
    e.b.ins().bitcast(to, MemFlagsData::new(), value)
}

/// Adds to a double. Who is overtaken tries again: each time somebody else has added.
fn add_float(e: &mut Emit<'_>, others: Others, at: At, value: Value) {
    let [again, done] = [(); 2].map(|()| e.block());
    e.go_on(again);
    let before = e.watch(at);
    let sum = bitcast(e, F64, before);
    let sum = e.b.ins().fadd(sum, value);
    let sum = bitcast(e, I64, sum);
    if others == Others::Nobody {
        e.store(sum, at);
        e.jump(done);
    } else {
        let was = e.exchange(at, before, sum);
        let is_in = e.is(IntCC::Equal, was, before);
        e.b.ins().brif(is_in, done, &[], again, &[]);
    }
    e.b.switch_to_block(done);
}

/// Makes a value the least or the greatest if it is. Who is overtaken looks again.
fn exchange_if_beyond(e: &mut Emit<'_>, aggregation: Aggregation, at: At, value: Value) {
    let mask = mask(aggregation).unwrap_or(0) as i64;
    let [again, beyond, done] = [(); 3].map(|()| e.block());
    e.go_on(again);
    let stored = e.watch(at);
    let before = e.b.ins().bxor_imm_s(stored, mask);
    let is_better = match aggregation {
        Aggregation::Min { signed: true } => e.is(IntCC::SignedLessThan, value, before),
        Aggregation::Min { signed: false } => e.is(IntCC::UnsignedLessThan, value, before),
        Aggregation::Max { signed: true } => e.is(IntCC::SignedGreaterThan, value, before),
        Aggregation::Max { signed: false } => e.is(IntCC::UnsignedGreaterThan, value, before),
        _ => {
            let before = bitcast(e, F64, before);
            let is_least = aggregation == Aggregation::MinOfFloats;
            let condition = if is_least { FloatCC::LessThan } else { FloatCC::GreaterThan };
            e.b.ins().fcmp(condition, value, before)
        }
    };
    e.b.ins().brif(is_better, beyond, &[], done, &[]);
    e.b.switch_to_block(beyond);
    let bits = if aggregation.is_of_floats() { bitcast(e, I64, value) } else { value };
    let new = e.b.ins().bxor_imm_s(bits, mask);
    let was = e.exchange(at, stored, new);
    let is_in = e.is(IntCC::Equal, was, stored);
    e.b.ins().brif(is_in, done, &[], again, &[]);
    e.b.switch_to_block(done);
}

/// Adds a value to a time series that nobody else changes meanwhile.
#[expect(clippy::too_many_arguments, reason = "what a series is and what is added")]
pub(super) fn add_to_series(
    e: &mut Emit<'_>,
    interval: u64,
    buckets: u32,
    of: SeriesOf,
    at: At,
    value: Value,
    weight: Value,
    time: Value,
) {
    let [newer, current, late, done] = [(); 4].map(|()| e.block());
    let (length, many) = (e.int(interval.max(1) as i64), e.int(buckets.max(1).into()));
    let index = e.b.ins().udiv(time, length);
    let number = e.b.ins().iadd_imm_s(index, 1);
    let bucket = e.b.ins().urem(index, many);
    let offset = e.b.ins().imul_imm_s(bucket, 24);
    let words = At(e.b.ins().iadd(at.0, offset), at.1);
    let there = e.load(words);
    let is_late = e.is(IntCC::UnsignedLessThan, number, there);
    e.leave_if(is_late, late);
    let is_newer = e.is(IntCC::UnsignedGreaterThan, number, there);
    e.b.ins().brif(is_newer, newer, &[], current, &[]);
    e.b.switch_to_block(newer);
    let zero = e.int(0);
    e.store(number, words);
    e.store(zero, words.plus(8));
    e.store(zero, words.plus(16));
    e.go_on(current);
    let (count, value_there) = (e.load(words.plus(8)), e.load(words.plus(16)));
    let is_first = e.is_imm(IntCC::Equal, count, 0);
    let new = match of {
        SeriesOf::Latest => value,
        SeriesOf::Sum | SeriesOf::Average => {
            let value = e.b.ins().imul(value, weight);
            e.b.ins().iadd(value_there, value)
        }
        SeriesOf::Min | SeriesOf::Max => {
            let condition = match of {
                SeriesOf::Min => IntCC::SignedLessThan,
                _ => IntCC::SignedGreaterThan,
            };
            let is_better = e.is(condition, value, value_there);
            let is_taken = e.b.ins().bor(is_first, is_better);
            e.b.ins().select(is_taken, value, value_there)
        }
    };
    e.store(new, words.plus(16));
    let count = e.b.ins().iadd(count, weight);
    e.store(count, words.plus(8));
    e.jump(done);
    e.b.switch_to_block(late);
    e.jump(done);
    e.b.switch_to_block(done);
}

/// Copies the words of an aggregation as they are stored to those that the IR says.
pub(super) fn copy_words(e: &mut Emit<'_>, aggregation: Aggregation, from: At, to: At) {
    e.copy(to, from, 8 * aggregation.words(), false);
    if let Some(mask) = mask(aggregation) {
        let (count, stored) = (e.load(to), e.load(to.plus(8)));
        let value = e.b.ins().bxor_imm_s(stored, mask as i64);
        let zero = e.int(0);
        let value = e.b.ins().select(count, value, zero);
        e.store(value, to.plus(8));
    }
}
