//! Statements on maps. What is mostly so is done in the body: words of maps of one value, and keys of one or two words that stand in their
//! preferred slot. All else is a routine's.

use super::Refusal;
use super::aggregates::{self, Others};
use super::body::Maker;
use super::emit::At;
use super::layout::MapCode;
use super::routines::Routine;
use crate::ir::*;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, Value};
use trapless_wire::{MapKind, TABLE_LIVE, TABLE_ONE_META};

/// Keys of no more words are looked up in the body.
const WORDS_IN_BODY: u32 = 2;

impl MapCode {
    fn others(&self) -> Others {
        if self.base.is_own() { Others::Handlers } else { Others::Threads }
    }

    /// Whether keys are looked up in the body first.
    fn is_in_body(&self) -> bool {
        self.is_by_word() && (1..=8 * WORDS_IN_BODY).contains(&self.key)
    }
}

impl Maker<'_, '_> {
    /// A value's bytes as one word.
    fn word_of(&mut self, at: At, bytes: u32) -> Value {
        if bytes == 8 { self.e.load(at) } else { self.e.load_tail(at, bytes) }
    }

    fn put_word(&mut self, word: Value, at: At, bytes: u32) {
        if bytes == 8 { self.e.store(word, at) } else { self.e.store_tail(word, at, bytes) }
    }

    /// Says that a map of one value has one; the place of the value.
    fn mark(&mut self, map: &MapCode) -> At {
        let at = self.e.address(map.base);
        let one = self.e.int(1);
        self.e.publish(one, at);
        at.plus(8)
    }

    /// Looks a key up in the body where that is done, and asks a routine else. `here` is given the address of the value, `there` does what
    /// the routine does.
    fn look_up(
        &mut self,
        map: &MapCode,
        key: At,
        here: impl FnOnce(&mut Self, At),
        there: impl FnOnce(&mut Self),
    ) {
        let Some(table) = map.table().filter(|_| map.is_in_body()) else { return there(self) };
        let [other, done] = [(); 2].map(|()| self.e.block());
        let words = table.key_words(self.e, key);
        let value_at = table.preferred(self.e, &words, other);
        here(self, At(value_at, 0));
        self.e.jump(done);
        self.e.b.set_cold_block(other);
        self.e.b.switch_to_block(other);
        there(self);
        self.e.jump(done);
        self.e.b.switch_to_block(done);
    }

    /// Calls a routine, and gives the first word that it wrote.
    fn ask(&mut self, routine: Routine, arguments: &[Value]) -> Value {
        let number = self.registry.number(routine);
        let results = self.results();
        let mut arguments = arguments.to_vec();
        arguments.push(results.0);
        self.e.call(number, &arguments);
        self.e.load(results)
    }

    /// The same with a variable for each way that leads to a result.
    fn variable(&mut self) -> cranelift_frontend::Variable {
        self.e.variable(I64)
    }

    pub(super) fn on_map(&mut self, statement: &Statement) -> Result<(), Refusal> {
        match statement {
            Statement::MapGet { map: id, key, to, found }
            | Statement::AggregateGet { map: id, key, to, found } => {
                let map = self.map(*id)?;
                let (key, to) = (self.place(key, map.key)?, self.place(to, map.value.size())?);
                let is_there = self.get(id.0, &map, key, to);
                self.tell(*found, is_there);
            }
            Statement::MapSet { map: id, key, value, ok } => {
                let map = self.map(*id)?;
                let (key, value) = (self.place(key, map.key)?, self.place(value, map.value.size())?);
                let ok_value = self.set_value(id.0, &map, key, value);
                self.tell(*ok, ok_value);
            }
            Statement::MapAdd { map: id, key, amount, before } => {
                let map = self.map(*id)?;
                let amount = self.value(amount)?;
                let key = self.place(key, map.key)?;
                let was = self.add_value(id.0, &map, key, amount, before.is_some());
                self.tell(*before, was);
            }
            Statement::MapDelete { map: id, key, found } => {
                let map = self.map(*id)?;
                let key = self.place(key, map.key)?;
                let key = self.e.pointer(key);
                let was_there = self.ask(Routine::Delete(id.0), &[key]);
                self.tell(*found, was_there);
            }
            Statement::MapHas { map: id, key, found } => {
                let map = self.map(*id)?;
                let key = self.place(key, map.key)?;
                let is_there = match map.kind {
                    MapKind::Words(_) => self.is_marked(&map),
                    MapKind::Table(_) => {
                        let key = self.e.pointer(key);
                        self.ask(Routine::Has(id.0), &[key])
                    }
                };
                self.set(*found, is_there);
            }
            Statement::MapLength { map: id, into } => {
                let map = self.map(*id)?;
                let length = match map.kind {
                    MapKind::Words(_) => self.is_marked(&map),
                    MapKind::Table(table) if table.key == 0 => {
                        let nothing = self.e.address(map.base.plus(TABLE_ONE_META));
                        let nothing = self.e.pointer(nothing);
                        self.ask(Routine::Has(id.0), &[nothing])
                    }
                    MapKind::Table(_) => {
                        let at = self.e.address(map.base.plus(TABLE_LIVE));
                        self.e.load(at)
                    }
                };
                self.set(*into, length);
            }
            Statement::MapClear(id) => {
                self.ask(Routine::Clear(id.0), &[]);
            }
            Statement::MapZero(id) => {
                self.ask(Routine::Zero(id.0), &[]);
            }
            Statement::Aggregate { map, key, value, weight } => {
                self.aggregate(*map, key, value, weight.as_ref())?
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a map of one value has one.
    fn is_marked(&mut self, map: &MapCode) -> Value {
        let at = self.e.address(map.base);
        let mark = self.e.watch(at);
        let is_there = self.e.is_imm(IntCC::NotEqual, mark, 0);
        self.e.b.ins().uextend(I64, is_there)
    }

    fn get(&mut self, id: u32, map: &MapCode, key: At, to: At) -> Value {
        if let MapKind::Words(_) = map.kind {
            let is_there = self.is_marked(map);
            let from = self.e.address(map.base.plus(8));
            match map.value {
                MapValue::Bytes(size) => {
                    let word = self.e.load(from);
                    self.put_word(word, to, size);
                }
                MapValue::Aggregate(aggregation) => aggregates::copy_words(self.e, aggregation, from, to),
            }
            return is_there;
        }
        let result = self.variable();
        let size = map.value.size();
        let is_word = matches!(map.value, MapValue::Bytes(_)) && size <= 8;
        let ask = |maker: &mut Self| {
            let pointers = [key, to].map(|at| maker.e.pointer(at));
            let is_there = maker.ask(Routine::Get(id), &pointers);
            maker.e.b.def_var(result, is_there);
        };
        let table = map
            .table()
            .filter(|_| !map.is_by_word() && is_word && (1..=8 * WORDS_IN_BODY).contains(&map.key));
        if let Some(table) = table {
            let [other, done] = [(); 2].map(|()| self.e.block());
            let words = table.key_words(self.e, key);
            let word = table.preferred_word(self.e, &words, other);
            self.put_word(word, to, size);
            let one = self.e.int(1);
            self.e.b.def_var(result, one);
            self.e.jump(done);
            self.e.b.set_cold_block(other);
            self.e.b.switch_to_block(other);
            ask(self);
            self.e.go_on(done);
        } else if is_word {
            self.look_up(
                map,
                key,
                |maker, from| {
                    let word = maker.e.load(from);
                    maker.put_word(word, to, size);
                    let one = maker.e.int(1);
                    maker.e.b.def_var(result, one);
                },
                ask,
            );
        } else {
            ask(self);
        }
        self.e.b.use_var(result)
    }

    fn set_value(&mut self, id: u32, map: &MapCode, key: At, value: At) -> Value {
        let size = map.value.size();
        if let MapKind::Words(_) = map.kind {
            let word = self.word_of(value, size);
            let at = self.e.address(map.base.plus(8));
            self.e.store(word, at);
            self.mark(map);
            return self.e.int(1);
        }
        let result = self.variable();
        self.look_up(
            map,
            key,
            |maker, to| {
                let word = maker.word_of(value, size);
                maker.e.store(word, to);
                let one = maker.e.int(1);
                maker.e.b.def_var(result, one);
            },
            |maker| {
                let pointers = [key, value].map(|at| maker.e.pointer(at));
                let ok = maker.ask(Routine::Set(id), &pointers);
                maker.e.b.def_var(result, ok);
            },
        );
        self.e.b.use_var(result)
    }

    /// Adds to a word, and gives what it was if that is asked for.
    fn add_to_word(&mut self, map: &MapCode, at: At, amount: Value, wants_before: bool) -> Value {
        if wants_before {
            return self.e.add_shared(at, amount);
        }
        self.e.add(map.base.is_own(), at, amount);
        self.e.int(0)
    }

    fn add_value(&mut self, id: u32, map: &MapCode, key: At, amount: Value, wants_before: bool) -> Value {
        if let MapKind::Words(_) = map.kind {
            let at = self.mark(map);
            return self.add_to_word(map, at, amount, wants_before);
        }
        let result = self.variable();
        self.look_up(
            map,
            key,
            |maker, at| {
                let before = maker.add_to_word(map, at, amount, wants_before);
                maker.e.b.def_var(result, before);
            },
            |maker| {
                let key = maker.e.pointer(key);
                let before = maker.ask(Routine::Add(id), &[key, amount]);
                maker.e.b.def_var(result, before);
            },
        );
        self.e.b.use_var(result)
    }

    fn aggregate(
        &mut self,
        id: MapId,
        key: &Place,
        value: &Expression,
        weight: Option<&Expression>,
    ) -> Result<(), Refusal> {
        let map = self.map(id)?;
        let MapValue::Aggregate(aggregation) = map.value else {
            return Err(Refusal::Missing("aggregation in a map of bytes"));
        };
        let value = self.value(value)?;
        let weight = weight.map(|weight| self.value(weight)).transpose()?;
        let key = self.place(key, map.key)?;
        if map.is_by_word() {
            if let MapKind::Words(_) = map.kind {
                let at = self.mark(&map);
                aggregates::add(self.e, aggregation, map.others(), at, value, weight);
                return Ok(());
            }
            let result = self.variable();
            self.look_up(
                &map,
                key,
                |maker, at| {
                    let at = maker.e.pointer(at);
                    maker.e.b.def_var(result, at);
                },
                |maker| {
                    let key = maker.e.pointer(key);
                    let at = maker.ask(Routine::Enter(id.0), &[key]);
                    maker.e.b.def_var(result, at);
                },
            );
            let at = self.e.b.use_var(result);
            self.e.when(at, |e| aggregates::add(e, aggregation, map.others(), At(at, 0), value, weight));
            return Ok(());
        }
        let value = if aggregation.is_of_floats() { self.bits(value) } else { value };
        let weight = weight.unwrap_or_else(|| self.e.int(1));
        let time = match aggregation {
            Aggregation::TimeSeries { .. } => self.time(ClockKind::Tai)?,
            _ => self.e.int(0),
        };
        let key = self.e.pointer(key);
        self.ask(Routine::Aggregate(id.0), &[key, value, weight, time]);
        Ok(())
    }

    /// The next key of a loop over a map, in the scratch that the loop names; leaves for a block when there is none.
    pub(super) fn next_key(
        &mut self,
        id: MapId,
        number_at: At,
        key: &Place,
        value: &Place,
        after: cranelift_codegen::ir::Block,
    ) -> Result<(), Refusal> {
        let map = self.map(id)?;
        let (key, value) = (self.place(key, map.key)?, self.place(value, map.value.size())?);
        if let MapKind::Words(_) = map.kind {
            let number = self.e.load(number_at);
            let one = self.e.int(1);
            self.e.store(one, number_at);
            self.e.leave_if(number, after);
            let is_there = self.get(id.0, &map, key, value);
            let is_missing = self.e.is_imm(IntCC::Equal, is_there, 0);
            self.e.leave_if(is_missing, after);
            return Ok(());
        }
        let number = self.registry.number(Routine::Next(id.0));
        let pointers = [number_at, key, value].map(|at| self.e.pointer(at));
        self.e.call(number, &pointers);
        let next = self.e.load(number_at);
        let is_over = self.e.is_imm(IntCC::Equal, next, -1);
        self.e.leave_if(is_over, after);
        Ok(())
    }
}
