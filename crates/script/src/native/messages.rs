//! Telling the tool: records in the thread's ring, as [`trapless_wire::Message`]s come out of it.

use super::Refusal;
use super::body::Maker;
use super::emit::At;
use super::routines::Routine;
use crate::ir::*;
use cranelift_codegen::ir::{InstBuilder, Value};
use trapless_isa::body::Extra;
use trapless_wire::RECORD_HEAD;

/// A part, before it is written.
enum Ready {
    Word(Value),
    Bytes(At, u32),
    /// Where, how many bytes, and how many with the padding.
    Text(At, Value, Value),
}

impl Maker<'_, '_> {
    pub(super) fn emit(&mut self, message: MessageId, parts: &[Part]) -> Result<(), Refusal> {
        let mut fixed = RECORD_HEAD;
        let mut ready = Vec::new();
        for part in parts {
            ready.push(match part {
                Part::Word(value) => {
                    fixed += 8;
                    let value = self.value(value)?;
                    let is_float = self.e.b.func.dfg.value_type(value).is_float();
                    Ready::Word(if is_float { self.bits(value) } else { value })
                }
                Part::Bytes(from, size) => {
                    fixed = fixed.saturating_add(size.next_multiple_of(8));
                    Ready::Bytes(self.place(from, *size)?, *size)
                }
                Part::Text { from, size, length } => {
                    fixed += 8;
                    let (length, most) = (self.value(length)?, self.e.int((*size).into()));
                    let length = self.e.b.ins().umin(length, most);
                    let up = self.e.b.ins().iadd_imm_s(length, 7);
                    let padded = self.e.b.ins().band_imm_s(up, !7);
                    Ready::Text(self.place(from, *size)?, length, padded)
                }
            });
        }
        let mut size = self.e.int(fixed.into());
        for part in &ready {
            if let Ready::Text(_, _, padded) = part {
                size = self.e.b.ins().iadd(size, *padded);
            }
        }
        let first = self.e.b.ins().bor_imm_s(size, (i64::from(message.0) + 1) << 32);
        let number = self.registry.number(Routine::Reserve);
        let results = self.results();
        self.e.call(number, &[first, results.0]);
        let record = self.e.load(results);
        let (time, tid, site) = (self.extra(Extra::Time)?, self.extra(Extra::Tid)?, self.extra(Extra::Site)?);
        self.e.when(record, |e| {
            e.store(time, At(record, 8));
            let low = e.b.ins().band_imm_s(tid, 0xffff_ffff);
            let high = e.b.ins().ishl_imm_s(site, 32);
            let who = e.b.ins().bor(low, high);
            e.store(who, At(record, 16));
            let mut to = At(record, RECORD_HEAD as i32);
            for part in ready {
                match part {
                    Ready::Word(value) => {
                        e.store(value, to);
                        to = to.plus(8);
                    }
                    Ready::Bytes(from, bytes) => {
                        e.copy(to, from, bytes, true);
                        to = to.plus(bytes.next_multiple_of(8));
                    }
                    Ready::Text(from, length, padded) => {
                        e.store(length, to);
                        let to_bytes = to.plus(8);
                        // By whole words: behind a place lies memory of ours, and what is in the padding nobody looks at.
                        e.each(padded, 8, |e, index, _| {
                            let [source, target] =
                                [from.0, to_bytes.0].map(|base| e.b.ins().iadd(base, index));
                            let word = e.load(At(source, from.1));
                            e.store(word, At(target, to_bytes.1));
                        });
                        to = At(e.b.ins().iadd(to.0, padded), to.1).plus(8);
                    }
                }
            }
            e.publish(first, At(record, 0));
        });
        Ok(())
    }
}
