//! Random statements.

use super::{INTS, Maker, WORK};
use crate::ir::*;

impl Maker<'_> {
    pub(super) fn block(&mut self, depth: u32) -> Vec<Statement> {
        let mut code = Vec::new();
        let most = if depth == 0 { u32::MAX } else { 1 + self.random.below(6) };
        while self.left > 0 && (code.len() as u32) < most {
            self.left -= 1;
            self.statement(&mut code, depth);
        }
        code
    }

    fn statement(&mut self, code: &mut Vec<Statement>, depth: u32) {
        match self.random.below(21) {
            0..=2 => {
                let into = self.int_local();
                code.push(Statement::Set(into, self.int(0)));
            }
            3 => {
                let into = self.float_local();
                self.set_float(code, into);
            }
            4 | 5 if depth < 4 => {
                let condition = self.int(1);
                let then = self.block(depth + 1);
                let other = if self.random.below(2) == 0 { self.block(depth + 1) } else { Vec::new() };
                code.push(Statement::If(condition, then, other));
            }
            6 if depth < 3 => {
                self.loops += 1;
                let mut body = self.block(depth + 1);
                self.loops -= 1;
                let way = self.way_out();
                body.push(Statement::If(self.int(1), vec![way], Vec::new()));
                if self.random.below(4) > 0 {
                    // Most loops end soon.
                    body.push(Statement::If(self.int(1), vec![Statement::Break], vec![Statement::Break]));
                }
                code.push(Statement::Loop(body));
            }
            7 => {
                let way = self.way_out();
                code.push(Statement::If(self.int(1), vec![way], Vec::new()));
            }
            8..=12 => self.bytes(code),
            13..=16 => self.map(code),
            17 => self.emit(code),
            18 if self.options.is_of_threads => self.thread(code),
            19 if self.options.changes_calls => {
                let what = match self.random.below(5) as u8 {
                    0 => Change::Result,
                    1 => Change::Skip,
                    more => Change::Argument(more),
                };
                code.push(Statement::Change(what, self.int(1)));
            }
            // Loops of them would take long.
            20 if self.options.sleeps && self.loops == 0 => {
                // Four microseconds at most, or none: negative numbers are none.
                let (operation, bits) =
                    if self.random.below(3) == 0 { (Binary::Or, i64::MIN) } else { (Binary::And, 0xfff) };
                let time = Box::new(self.int(1));
                code.push(Statement::Delay(Expression::Binary(
                    operation,
                    time,
                    Box::new(Expression::Int(bits)),
                )));
            }
            _ if !self.options.addresses.is_empty() => self.read(code),
            _ => self.bytes(code),
        }
    }

    /// Locals of doubles always hold numbers, so that their bits may be looked at.
    fn set_float(&mut self, code: &mut Vec<Statement>, into: LocalId) {
        code.push(Statement::Set(into, self.float(0)));
        code.push(self.number(into));
    }

    fn number(&mut self, local: LocalId) -> Statement {
        let is_number = Expression::Binary(
            Binary::FloatEqual,
            Box::new(Expression::Local(local)),
            Box::new(Expression::Local(local)),
        );
        let value = Expression::Select(
            Box::new(is_number),
            Box::new(Expression::Local(local)),
            Box::new(Expression::Float(0.0)),
        );
        Statement::Set(local, value)
    }

    fn way_out(&mut self) -> Statement {
        match self.random.below(8) {
            0 => Statement::Return,
            choice if self.loops > 0 && choice < 5 => Statement::Continue,
            _ if self.loops > 0 => Statement::Break,
            // Few bodies end early.
            _ => Statement::Set(LocalId(0), Expression::Int(1)),
        }
    }

    fn optional(&mut self) -> Option<LocalId> {
        (self.random.below(3) > 0).then(|| self.int_local())
    }

    fn run(&mut self) -> u32 {
        self.random.below(3)
    }

    fn bytes(&mut self, code: &mut Vec<Statement>) {
        let run = self.run();
        let size = self.random.below(33);
        code.push(match self.random.below(7) {
            0 => {
                let as_ = self.width();
                Statement::Store { to: self.writable(run, as_.size(), 1), as_, value: self.int(1) }
            }
            1 => {
                let as_ = self.float_width();
                let value = Expression::Local(self.float_local());
                Statement::Store { to: self.writable(run, as_.size(), 1), as_, value }
            }
            2 => {
                let to = self.writable(run, size, 1);
                // Of another run, so that they do not overlap.
                let other = (run + 1 + self.random.below(2)) % 3;
                let from = self.writable(other, size, 1);
                let constant = Place::Constant(ConstantId(3));
                let from = if self.random.below(3) == 0 { constant } else { from };
                Statement::Copy { to, from, size }
            }
            3 => Statement::Zero { to: self.writable(run, size, 1), size },
            4 => Statement::StringLength { into: self.int_local(), of: self.readable(size, 1), size },
            5 => Statement::Compare {
                into: self.int_local(),
                left: self.readable(size, 1),
                right: self.readable(size, 1),
                size,
                most: (self.random.below(2) == 0).then(|| self.int(2)),
                strings: self.random.below(2) == 0,
            },
            _ => {
                let needle_size = self.random.below(8);
                Statement::Find {
                    into: self.int_local(),
                    haystack: self.readable(size, 1),
                    haystack_size: size,
                    needle: self.readable(needle_size, 1),
                    needle_size,
                }
            }
        });
    }

    fn address(&mut self) -> Expression {
        let near = self.random.pick(&self.options.addresses).unwrap_or(0);
        let offset = i64::from(self.random.below(24)) - 12;
        match self.random.below(8) {
            0 => self.int(1),
            _ => Expression::Int((near as i64).wrapping_add(offset)),
        }
    }

    fn read(&mut self, code: &mut Vec<Statement>) {
        let (run, from) = (self.run(), self.address());
        match self.random.below(6) {
            4 => {
                let (into, argument) = (self.int_local(), self.random.below(4) as u8);
                code.push(Statement::Operand { into, argument, ok: self.optional() });
            }
            5 => {
                let (into, argument) = (self.float_local(), self.random.below(4) as u8);
                code.push(Statement::Operand { into, argument, ok: self.optional() });
                code.push(self.number(into));
            }
            0 => {
                let (into, as_) = (self.int_local(), self.width());
                code.push(Statement::Read { into, from, as_, ok: self.optional() });
            }
            1 => {
                let (into, as_) = (self.float_local(), self.float_width());
                code.push(Statement::Read { into, from, as_, ok: self.optional() });
                code.push(self.number(into));
            }
            2 => {
                let size = self.random.below(33);
                code.push(Statement::ReadBytes {
                    to: self.writable(run, size, 1),
                    size,
                    from,
                    length: self.length(size),
                    ok: self.optional(),
                });
            }
            _ => {
                let size = 1 + self.random.below(32);
                code.push(Statement::ReadString {
                    to: self.writable(run, size, 1),
                    size,
                    from,
                    most: self.length(size),
                    length: self.optional(),
                });
            }
        }
    }

    fn length(&mut self, size: u32) -> Expression {
        match self.random.below(3) {
            0 => self.int(2),
            1 => Expression::Int(size.into()),
            _ => Expression::Int(self.random.below(size + 2).into()),
        }
    }

    fn map(&mut self, code: &mut Vec<Statement>) {
        let index = self.random.below(self.program.maps.len() as u32);
        let Some(declared) = self.program.maps.get(index as usize) else { return };
        let map = MapId(index);
        let key = self.readable(declared.key, 1);
        match (declared.value, declared.sharing) {
            (MapValue::Aggregate(aggregation), sharing) => {
                if sharing == MapSharing::Shared && self.random.below(3) == 0 {
                    return self.on_any_map(code, map, declared);
                }
                let value = match aggregation.is_of_floats() {
                    true => self.finite(code),
                    false => self.int(1),
                };
                let weight = (self.random.below(4) == 0).then(|| self.int(2));
                // A weight is a number of hits.
                let weight = weight.map(|weight| {
                    Expression::Binary(Binary::And, Box::new(weight), Box::new(Expression::Int(7)))
                });
                code.push(Statement::Aggregate { map, key, value, weight });
            }
            (MapValue::Bytes(size), _) => match self.random.below(4) {
                0 => {
                    let (run, found) = (self.run(), self.optional());
                    code.push(Statement::MapGet { map, key, to: self.writable(run, size, 1), found });
                }
                1 => {
                    let (value, ok) = (self.readable(size, 1), self.optional());
                    code.push(Statement::MapSet { map, key, value, ok });
                }
                2 if size == 8 => {
                    let (amount, before) = (self.int(1), self.optional());
                    code.push(Statement::MapAdd { map, key, amount, before });
                }
                _ => self.on_any_map(code, map, declared),
            },
        }
    }

    /// A double whose sums stay numbers, in a local.
    fn finite(&mut self, code: &mut Vec<Statement>) -> Expression {
        let local = self.float_local();
        self.set_float(code, local);
        let less = |left, right| Expression::Binary(Binary::FloatLess, Box::new(left), Box::new(right));
        let (low, high) = (Expression::Float(-1e290), Expression::Float(1e290));
        let within = Expression::Binary(
            Binary::And,
            Box::new(less(low, Expression::Local(local))),
            Box::new(less(Expression::Local(local), high)),
        );
        let value = Expression::Select(
            Box::new(within),
            Box::new(Expression::Local(local)),
            Box::new(Expression::Float(1.0)),
        );
        code.push(Statement::Set(local, value));
        Expression::Local(local)
    }

    fn on_any_map(&mut self, code: &mut Vec<Statement>, map: MapId, declared: &Map) {
        let key = self.readable(declared.key, 1);
        let kinds = if declared.sharing == MapSharing::PerThread { 2 } else { 7 };
        match self.random.below(kinds) {
            0 => code.push(Statement::MapDelete { map, key, found: self.optional() }),
            1 => code.push(Statement::MapHas { map, key, found: self.int_local() }),
            2 => code.push(Statement::MapLength { map, into: self.int_local() }),
            3 => code.push(Statement::MapClear(map)),
            4 => code.push(Statement::MapZero(map)),
            5 if matches!(declared.value, MapValue::Aggregate(_)) => {
                let run = self.run();
                let to = self.writable(run, declared.value.size(), 1);
                code.push(Statement::AggregateGet { map, key, to, found: self.optional() });
            }
            _ => self.for_each(code, map, declared),
        }
    }

    /// What it does comes to the same in whichever order the keys come: it sums and counts, and leaves no trace of the last key.
    fn for_each(&mut self, code: &mut Vec<Statement>, map: MapId, declared: &Map) {
        let value_size = declared.value.size();
        let (key, value) = (Place::Scratch(WORK), Place::Scratch(WORK + 32));
        let sum = LocalId(self.random.below(INTS));
        let word = |offset: u32, size: u32| match size {
            0 => Expression::Int(1),
            4 => Expression::Load { from: Place::Scratch(offset), as_: Width::Signed(4) },
            _ => Expression::Load { from: Place::Scratch(offset), as_: Width::Unsigned(8) },
        };
        let both = Expression::Binary(
            Binary::Xor,
            Box::new(word(WORK, declared.key)),
            Box::new(word(WORK + 32, value_size)),
        );
        let added = Expression::Binary(Binary::Add, Box::new(Expression::Local(sum)), Box::new(both));
        let mut body = vec![Statement::Set(sum, added)];
        if self.random.below(2) == 0 {
            body.push(Statement::Continue);
        }
        code.push(Statement::ForEach { map, key: key.clone(), value, body });
        code.push(Statement::Zero { to: key, size: 64 });
    }

    fn emit(&mut self, code: &mut Vec<Statement>) {
        let index = self.random.below(self.program.messages.len() as u32);
        let kinds = self.program.messages.get(index as usize).cloned().unwrap_or_default();
        let parts = kinds
            .into_iter()
            .map(|kind| match kind {
                PartKind::Word if self.random.below(3) == 0 => {
                    Part::Word(Expression::Local(self.float_local()))
                }
                PartKind::Word => Part::Word(self.int(1)),
                PartKind::Bytes(size) => Part::Bytes(self.readable(size, 1), size),
                PartKind::Text(most) => {
                    let size = self.random.below(most + 1);
                    Part::Text { from: self.readable(size, 1), size, length: self.length(size) }
                }
            })
            .collect();
        code.push(Statement::Emit { message: MessageId(index), parts });
    }

    fn thread(&mut self, code: &mut Vec<Statement>) {
        let run = self.run();
        code.push(match self.random.below(4) {
            0 => Statement::Stack {
                into: self.int_local(),
                frames: 1 + self.random.below(127) as u8,
                by: if self.random.below(2) == 0 { StackWalk::Tables } else { StackWalk::FramePointers },
            },
            1 => Statement::ThreadName { to: self.writable(run, 16, 1) },
            2 => Statement::ProcessName {
                of: if self.random.below(2) == 0 { Kin::Own } else { Kin::Parent },
                to: self.writable(run, 16, 1),
            },
            _ => Statement::Signal(self.int(1)),
        });
    }
}
