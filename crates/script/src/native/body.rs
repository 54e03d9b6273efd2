//! A body: its statements, what it is given, and how it ends.

use super::emit::{At, Base, Emit, Piece, Workshop};
use super::layout::{MapCode, SMALL_SCRATCH, scratch_of};
use super::routines::{Registry, Routine};
use super::stacks::{ARRIVING, BY_FRAMES, START_WORDS, Start};
use super::{Abi, Common, Moment, Refusal};
use crate::ir::*;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, F64, I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, MemFlagsData, Value};
use cranelift_frontend::Variable;
use trapless_isa::body::{self, Extra, Returned, Takes};
use trapless_isa::passed::{MEMORY, MOST_PASSED, Number, SIZE, Wanted};
use trapless_wire::{SCRATCH_HEAD, SCRATCH_LEVELS, THREAD_LEVEL, THREAD_NO_SCRATCH, THREAD_OUT_OF_FUEL};

/// At what kind of hit a body runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) moment: Moment,
    pub(super) abi: Abi,
}

/// A body that is being made.
pub(super) struct Maker<'a, 'e> {
    pub(super) e: &'a mut Emit<'e>,
    pub(super) common: &'a Common<'a>,
    pub(super) registry: &'a mut Registry,
    pub(super) id: BodyId,
    pub(super) at: Hit,
    /// What it is called with: the registers of arguments, then the extras.
    pub(super) arguments: &'a [Value],
    pub(super) takes: Takes,
    operands: &'a [Wanted],
    pub(super) locals: Vec<Variable>,
    pub(super) scratch: Option<At>,
    /// How many levels of scratch were claimed before it claimed its own.
    level: Option<Variable>,
    /// How many rounds are left.
    fuel: Option<Variable>,
    /// Where it ends.
    exit: Block,
    out_of_fuel: Block,
    /// Where `break` and `continue` go, for each loop around.
    loops: Vec<(Block, Block)>,
}

/// What a body takes beside its arguments.
fn takes(common: &Common<'_>, code: &[Statement], at: Hit) -> Takes {
    let moment = at.moment;
    let mut takes = Takes::NONE;
    each_context(code, &mut |what| {
        takes = takes.or(extras_of(common, what, at));
    });
    each_statement(code, &mut |statement| match statement {
        Statement::Read { .. } | Statement::ReadBytes { .. } | Statement::ReadString { .. } => {
            takes = takes.with(Extra::Tid);
        }
        Statement::Operand { .. } => takes = takes.with(Extra::Operands).with(Extra::Tid),
        Statement::Stack { .. } => {
            takes = takes.with(Extra::Registers).with(Extra::Tid);
            if moment != Moment::Return {
                takes = takes.with(Extra::InstructionPointer);
            }
        }
        Statement::Change(Change::Errno(_), _) => {}
        Statement::Change(..) => takes = takes.with(Extra::Changes),
        Statement::Emit { .. } => takes = takes.with(Extra::Site).with(Extra::Time).with(Extra::Tid),
        Statement::Aggregate { map, .. } => {
            let value = common.program.maps.get(map.0 as usize).map(|map| map.value);
            if let Some(MapValue::Aggregate(Aggregation::TimeSeries { .. })) = value {
                takes = takes.with(Extra::Time);
            }
        }
        _ => {}
    });
    takes
}

/// The operands that a body asks for, each once.
fn operands(body: &Body) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    each_statement(&body.code, &mut |statement| {
        if let Statement::Operand { into, argument, .. } = statement {
            wanted.push(wanted_of(body, *into, *argument));
        }
    });
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

/// What a statement asks for that puts an operand into a local.
fn wanted_of(body: &Body, into: LocalId, argument: u8) -> Wanted {
    let number = match body.locals.get(into.0 as usize) {
        Some(Scalar::Float) => Number::Float,
        _ => Number::Integer,
    };
    Wanted { argument, number }
}

/// The last of the function's arguments that a body asks for.
pub(super) fn last_argument(program: &Program, id: BodyId) -> Option<u8> {
    let mut last = None;
    each_context(&program.bodies.get(id.0 as usize)?.code, &mut |what| {
        if let Context::Argument(number) = what {
            last = last.max(Some(number));
        }
    });
    last
}

/// By which extras a value of the hit is told.
fn extras_of(common: &Common<'_>, what: Context, at: Hit) -> Takes {
    let (convention, moment) = (common.convention, at.moment);
    let argument = super::expressions::argument_of(convention, what, at);
    let extra = match what {
        Context::Site => Extra::Site,
        Context::Duration if moment == Moment::Return => return Takes::of(&[Extra::Time, Extra::Entered]),
        Context::Time(_) | Context::Elapsed | Context::Duration => Extra::Time,
        Context::Cpu | Context::NumaNode if convention.tells_processor => Extra::Processor,
        Context::Tid => Extra::Tid,
        Context::InstructionPointer => Extra::InstructionPointer,
        Context::Call if at.abi == Abi::Go => {
            let slot = if moment == Moment::Return { Takes::NONE } else { Extra::StackPointer.into() };
            return slot.with(Extra::Registers);
        }
        Context::ReturnAddress if moment != Moment::Return && convention.link.is_some() => Extra::Registers,
        Context::ReturnAddress | Context::Frame | Context::Call if moment != Moment::Return => {
            Extra::StackPointer
        }
        Context::FloatRegister(number) if number != 0 || moment != Moment::Return => Extra::Floats,
        Context::Register(number) if number == convention.stack_pointer => Extra::StackPointer,
        Context::Argument(_) | Context::Register(_) | Context::SecondResult if argument.is_none() => {
            Extra::Registers
        }
        _ => return Takes::NONE,
    };
    extra.into()
}

/// Compiles a body.
pub(super) fn compile(
    workshop: &mut Workshop,
    common: &Common<'_>,
    registry: &mut Registry,
    id: BodyId,
    at: Hit,
) -> Result<Piece, Refusal> {
    let body = common.program.bodies.get(id.0 as usize).ok_or(Refusal::NoBody(id))?;
    let (takes, operands) = (takes(common, &body.code, at), operands(body));
    if operands.len() > MOST_PASSED {
        return Err(Refusal::Missing(
            "room for an argument both as an integer and as a floating-point number",
        ));
    }
    let words = common.convention.arguments.len() + takes.count() as usize;
    let mut piece = workshop.piece(words, false, |e, arguments| {
        let [exit, out_of_fuel] = [(); 2].map(|()| e.block());
        let mut locals = Vec::new();
        for scalar in &body.locals {
            let nothing = e.nothing(if *scalar == Scalar::Float { F64 } else { I64 });
            locals.push(e.set_new(nothing));
        }
        let has_loops = {
            let mut has_loops = false;
            each_statement(&body.code, &mut |statement| {
                has_loops |= matches!(statement, Statement::Loop(_) | Statement::ForEach { .. });
            });
            has_loops
        };
        let fuel = has_loops.then(|| {
            let fuel = e.int(common.program.fuel.into());
            e.set_new(fuel)
        });
        let mut maker = Maker {
            e,
            common,
            registry,
            id,
            at,
            arguments,
            takes,
            operands: &operands,
            locals,
            scratch: None,
            level: None,
            fuel,
            exit,
            out_of_fuel,
            loops: Vec::new(),
        };
        let scratch = scratch_of(body);
        maker.claim_scratch(scratch);
        maker.statements(&body.code)?;
        maker.end();
        Ok(())
    })?;
    piece.code.takes = takes;
    piece.code.operands = operands;
    Ok(piece)
}

impl Maker<'_, '_> {
    /// Something at an offset of the thread's part.
    pub(super) fn thread(&self, offset: u32) -> Base {
        Base::Block(trapless_wire::SCRIPT_BLOCK + offset)
    }

    /// Something at an offset of the shared part.
    pub(super) fn shared(&self, offset: u64) -> Base {
        Base::Shared(offset)
    }

    pub(super) fn map(&self, map: MapId) -> Result<MapCode, Refusal> {
        self.common.maps.get(map.0 as usize).copied().ok_or(Refusal::Missing("map of that number"))
    }

    /// Words in the frame that routines write their results to.
    pub(super) fn results(&mut self) -> At {
        self.e.results()
    }

    fn claim_scratch(&mut self, bytes: u32) {
        if bytes == 0 {
            return;
        }
        if bytes <= SMALL_SCRATCH {
            self.scratch = Some(self.e.slot(bytes));
            return;
        }
        let level_at = self.e.address(self.thread(THREAD_LEVEL));
        let found = self.e.load(level_at);
        let level = self.e.set_new(found);
        let own = self.e.b.ins().get_stack_pointer(I64);
        let [all_taken, no_room, room] = [(); 3].map(|()| self.e.block());
        let is_none = self.e.is_imm(IntCC::UnsignedGreaterThanOrEqual, found, SCRATCH_LEVELS.into());
        self.e.b.ins().brif(is_none, all_taken, &[], room, &[]);
        self.e.b.set_cold_block(all_taken);
        self.e.b.set_cold_block(no_room);
        // Who jumped out of a handler for good left its levels claimed. Who is still there was interrupted by us, so its frame is above ours.
        self.e.b.switch_to_block(all_taken);
        let searched = self.e.block();
        for number in (0..SCRATCH_LEVELS).rev() {
            let owner = self.level_at(number);
            let owner = self.e.load(owner);
            let is_there = self.e.is(IntCC::UnsignedGreaterThan, owner, own);
            self.e.leave_if(is_there, searched);
            let number = self.e.int(number.into());
            self.e.b.def_var(level, number);
        }
        self.e.go_on(searched);
        let free = self.e.b.use_var(level);
        let is_none = self.e.is_imm(IntCC::UnsignedGreaterThanOrEqual, free, SCRATCH_LEVELS.into());
        self.e.b.ins().brif(is_none, no_room, &[], room, &[]);
        let (lost, exit) = (self.thread(THREAD_NO_SCRATCH), self.exit);
        self.e.b.switch_to_block(no_room);
        self.e.count(lost);
        self.e.jump(exit);
        self.e.b.switch_to_block(room);
        let free = self.e.b.use_var(level);
        let next = self.e.b.ins().iadd_imm_s(free, 1);
        self.e.store(next, level_at);
        let offset = self.e.b.ins().imul_imm_s(free, i64::from(self.common.layout.scratch_level));
        let first = self.level_at(0);
        let at = At(self.e.b.ins().iadd(first.0, offset), first.1);
        self.e.store(own, at);
        self.scratch = Some(at.plus(SCRATCH_HEAD));
        self.level = Some(level);
    }

    /// Where a level begins.
    fn level_at(&mut self, number: u32) -> At {
        let layout = &self.common.layout;
        let base = self.thread(layout.scratch + number * layout.scratch_level);
        self.e.address(base)
    }

    /// The ends of a body.
    fn end(&mut self) {
        let (exit, out_of_fuel) = (self.exit, self.out_of_fuel);
        self.e.jump(exit);
        self.e.b.switch_to_block(out_of_fuel);
        let counter = self.thread(THREAD_OUT_OF_FUEL);
        if self.fuel.is_some() {
            self.e.count(counter);
        }
        self.e.jump(exit);
        self.e.b.switch_to_block(exit);
        if let Some(level) = self.level {
            // As it was: those that interrupted us and were left for good have given theirs back.
            let level_at = self.e.address(self.thread(THREAD_LEVEL));
            let level = self.e.b.use_var(level);
            self.e.store(level, level_at);
        }
        self.e.finish();
    }

    fn statements(&mut self, code: &[Statement]) -> Result<(), Refusal> {
        code.iter().try_for_each(|statement| self.statement(statement))
    }

    /// Goes elsewhere; what follows is not reached.
    fn leave(&mut self, to: Block) {
        self.e.jump(to);
        self.e.unreachable();
    }

    pub(super) fn set(&mut self, local: LocalId, value: Value) {
        if let Some(variable) = self.locals.get(local.0 as usize) {
            self.e.b.def_var(*variable, value);
        }
    }

    pub(super) fn tell(&mut self, local: Option<LocalId>, value: Value) {
        if let Some(local) = local {
            self.set(local, value);
        }
    }

    /// Takes one round's fuel.
    fn burn(&mut self) {
        let Some(fuel) = self.fuel else { return };
        let left = self.e.b.use_var(fuel);
        let is_over = self.e.is_imm(IntCC::Equal, left, 0);
        self.e.leave_if(is_over, self.out_of_fuel);
        let left = self.e.b.ins().iadd_imm_s(left, -1);
        self.e.b.def_var(fuel, left);
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), Refusal> {
        match statement {
            Statement::Set(local, value) => {
                let value = self.value(value)?;
                self.set(*local, value);
            }
            Statement::If(condition, then, other) => {
                let condition = self.value(condition)?;
                let [yes, no, after] = [(); 3].map(|()| self.e.block());
                self.e.b.ins().brif(condition, yes, &[], no, &[]);
                for (block, code) in [(yes, then), (no, other)] {
                    self.e.b.switch_to_block(block);
                    self.statements(code)?;
                    self.e.jump(after);
                }
                self.e.b.switch_to_block(after);
            }
            Statement::Loop(code) => {
                let [head, after] = [(); 2].map(|()| self.e.block());
                self.e.go_on(head);
                self.burn();
                self.loops.push((after, head));
                self.statements(code)?;
                self.loops.pop();
                self.e.jump(head);
                self.e.b.switch_to_block(after);
            }
            Statement::ForEach { map, key, value, body } => {
                let [head, after] = [(); 2].map(|()| self.e.block());
                let number_at = self.e.slot(8);
                let zero = self.e.int(0);
                self.e.store(zero, number_at);
                self.e.go_on(head);
                self.next_key(*map, number_at, key, value, after)?;
                self.burn();
                self.loops.push((after, head));
                self.statements(body)?;
                self.loops.pop();
                self.e.jump(head);
                self.e.b.switch_to_block(after);
            }
            Statement::Break => {
                let to = self.loops.last().map_or(self.exit, |(after, _)| *after);
                self.leave(to);
            }
            Statement::Continue => {
                let to = self.loops.last().map_or(self.exit, |(_, head)| *head);
                self.leave(to);
            }
            Statement::Return => self.leave(self.exit),
            Statement::Store { .. }
            | Statement::Copy { .. }
            | Statement::Zero { .. }
            | Statement::Read { .. }
            | Statement::ReadBytes { .. }
            | Statement::ReadString { .. }
            | Statement::StringLength { .. }
            | Statement::Compare { .. }
            | Statement::Find { .. }
            | Statement::ThreadName { .. }
            | Statement::ProcessName { .. }
            | Statement::Signal(_) => self.on_bytes(statement)?,
            Statement::Delay(time) => {
                let (time, routine) = (self.value(time)?, self.registry.number(Routine::Delay));
                let results = self.results();
                let over = self.e.pointer(results);
                self.e.call(routine, &[time, over]);
                let is_elsewhere = self.e.load(results);
                self.e.leave_if(is_elsewhere, self.exit);
            }
            Statement::Change(what, to) => {
                let to = self.value(to)?;
                self.change(*what, to)?;
            }
            Statement::MapGet { .. }
            | Statement::MapSet { .. }
            | Statement::MapAdd { .. }
            | Statement::MapDelete { .. }
            | Statement::MapHas { .. }
            | Statement::MapLength { .. }
            | Statement::MapClear(_)
            | Statement::MapZero(_)
            | Statement::Aggregate { .. }
            | Statement::AggregateGet { .. } => self.on_map(statement)?,
            Statement::Operand { into, argument, ok } => self.operand(*into, *argument, *ok)?,
            Statement::Stack { into, frames, by } => self.stack(*into, *frames, *by)?,
            Statement::Emit { message, parts } => self.emit(*message, parts)?,
        }
        Ok(())
    }

    /// An operand of the site's note, of which the detour has made two words.
    fn operand(&mut self, into: LocalId, argument: u8, ok: Option<LocalId>) -> Result<(), Refusal> {
        let body = self.common.program.bodies.get(self.id.0 as usize).ok_or(Refusal::NoBody(self.id))?;
        let wanted = wanted_of(body, into, argument);
        let index = self.operands.iter().position(|own| *own == wanted);
        let index = index.ok_or(Refusal::Missing("operand of that number"))?;
        let all = self.extra(Extra::Operands)?;
        let own = At(all, 16 * index as i32);
        let [word, form] = [self.e.load(own), self.e.load(own.plus(8))];
        let one = self.e.int(1);
        let (value, whole) = (self.e.set_new(word), self.e.set_new(one));
        let [in_memory, known] = [(); 2].map(|()| self.e.block());
        let is_in_memory = self.e.b.ins().band_imm_s(form, i64::from(MEMORY));
        self.e.b.ins().brif(is_in_memory, in_memory, &[], known, &[]);
        self.e.b.switch_to_block(in_memory);
        let (tid, number) = (self.extra(Extra::Tid)?, self.registry.number(Routine::ReadOperand));
        let (own, results) = (self.e.pointer(own), self.results());
        self.e.call(number, &[own, tid, results.0]);
        for (variable, word) in [(value, 0), (whole, 8)] {
            let read = self.e.load(results.plus(word));
            self.e.b.def_var(variable, read);
        }
        self.e.go_on(known);
        let value = self.e.b.use_var(value);
        match wanted.number {
            Number::Integer => self.set(into, value),
            Number::Float => self.float_operand(into, value, form),
        }
        let whole = self.e.b.use_var(whole);
        self.tell(ok, whole);
        Ok(())
    }

    /// Has the call do something else once all bodies of the hit have run.
    fn change(&mut self, what: Change, to: Value) -> Result<(), Refusal> {
        if let Change::Errno(symbol) = what {
            let offset = self.value(&Expression::Context(Context::Symbol(symbol)))?;
            let thread = self.value(&Expression::Context(Context::ThreadPointer))?;
            let at = self.e.b.ins().iadd(thread, offset);
            self.store(to, At(at, 0), Width::Unsigned(4));
            return Ok(());
        }
        let words = At(self.extra(Extra::Changes)?, 0);
        let word = |of: body::Change| 8 * of as u32;
        let (moment, arguments) = (self.at.moment, self.common.convention.arguments.len());
        match what {
            Change::Result if moment != Moment::Inside => {
                self.e.store(to, words.plus(word(body::Change::Result)));
                if moment == Moment::Entry {
                    let skip = self.e.int(body::SKIPPED.into());
                    self.e.store(skip, words.plus(word(body::Change::Skip)));
                }
            }
            Change::Skip if moment == Moment::Entry => {
                let (skip, none) = (self.e.int(body::LEFT_OUT.into()), self.e.int(0));
                let is_none = self.e.is_imm(IntCC::Equal, to, 0);
                let skip = self.e.b.ins().select(is_none, none, skip);
                self.e.store(skip, words.plus(word(body::Change::Skip)));
            }
            Change::Argument(number) if moment == Moment::Entry && usize::from(number) < arguments => {
                self.e.store(to, words.plus(word(body::Change::Arguments) + 8 * u32::from(number)));
            }
            _ => return Err(Refusal::Missing("such change of what a call does there")),
        }
        Ok(())
    }

    /// A double, by the bits of one or of a float.
    fn float_operand(&mut self, into: LocalId, bits: Value, form: Value) {
        let [single, double, known] = [(); 3].map(|()| self.e.block());
        let size = self.e.b.ins().band_imm_s(form, i64::from(SIZE));
        let is_single = self.e.is_imm(IntCC::Equal, size, 4);
        self.e.b.ins().brif(is_single, single, &[], double, &[]);
        self.e.b.switch_to_block(single);
        let low = self.e.b.ins().ireduce(I32, bits);
        let low = self.e.b.ins().bitcast(F32, MemFlagsData::new(), low);
        let value = self.e.b.ins().fpromote(F64, low);
        self.set(into, value);
        self.e.jump(known);
        self.e.b.switch_to_block(double);
        let value = self.e.b.ins().bitcast(F64, MemFlagsData::new(), bits);
        self.set(into, value);
        self.e.go_on(known);
    }

    /// The stack of the hit: at a return, as it is when the caller goes on.
    fn stack(&mut self, into: LocalId, frames: u8, by: StackWalk) -> Result<(), Refusal> {
        let own = self.common.program.bodies.get(self.id.0 as usize).map_or(0, |body| body.scratch);
        let scratch = self.scratch.ok_or(Refusal::Missing("scratch for a stack"))?;
        let scratch = self.e.pointer(scratch.plus(own.next_multiple_of(8)));
        let general = self.extra(Extra::Registers)?;
        let tid = self.extra(Extra::Tid)?;
        let start = self.e.slot(8 * START_WORDS);
        let (mut pc, mut slot) = (None, self.e.int(0));
        if self.at.moment == Moment::Return {
            pc = self.arguments.get(Returned::ReturnAddress as usize).copied();
            slot = self.arguments.get(Returned::Slot as usize).copied().unwrap_or(slot);
        }
        let pc = pc.map_or_else(|| self.extra(Extra::InstructionPointer), Ok)?;
        let convention = self.common.convention;
        let [sp, fp, bp] = [convention.stack_pointer, convention.frame_pointer, convention.base_pointer]
            .map(|number| self.e.load(At(general, 8 * i32::from(number))));
        let link = match convention.link {
            Some(link) => self.e.load(At(general, 8 * i32::from(link))),
            None => self.e.int(0),
        };
        let count = self.e.int(convention.registers.len() as i64);
        for (word, value) in [
            (Start::Instruction, pc),
            (Start::Stack, sp),
            (Start::Frame, fp),
            (Start::Pointer, bp),
            (Start::Link, link),
            (Start::General, general),
            (Start::Count, count),
            (Start::Slot, slot),
        ] {
            self.e.store(value, word.of(start));
        }
        let mut wanted = i64::from(frames);
        if by == StackWalk::FramePointers {
            wanted |= BY_FRAMES;
        }
        if self.at.moment == Moment::Entry {
            wanted |= ARRIVING;
        }
        let (wanted, start) = (self.e.int(wanted), self.e.pointer(start));
        let results = self.results();
        let routine = self.registry.number(Routine::Stack);
        let to = self.e.pointer(results);
        self.e.call(routine, &[start, wanted, tid, scratch, to]);
        let number = self.e.load(results);
        self.set(into, number);
        Ok(())
    }
}
