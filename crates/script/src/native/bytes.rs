//! Statements on bytes: scratch, strings and foreign memory.

use super::Refusal;
use super::body::Maker;
use super::emit::{At, Emit};
use super::routines::Routine;
use crate::ir::*;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I64};
use cranelift_codegen::ir::{InstBuilder, Value};
use trapless_isa::body::Extra;

/// Most digits of a process's id.
const PID_DIGITS: u32 = 7;
/// Of `openat`: the descriptor ends with the program.
const O_CLOEXEC: i64 = 0x8_0000;
/// Of `prctl`: ask for the thread's name.
const GET_NAME: i64 = 16;

/// A byte, extended with zeros.
pub(super) fn byte(e: &mut Emit<'_>, base: At, index: Value) -> Value {
    let at = e.b.ins().iadd(base.0, index);
    let byte = e.load_as(I8, At(at, base.1));
    e.b.ins().uextend(I64, byte)
}

fn store_byte(e: &mut Emit<'_>, word: Value, to: At) {
    let byte = e.b.ins().ireduce(I8, word);
    e.store(byte, to);
}

/// Length of a string in so many bytes.
fn string_length(e: &mut Emit<'_>, of: At, size: u32) -> Value {
    let end = e.int(size.into());
    let length = e.set_new(end);
    e.each(end, 1, |e, index, after| {
        let byte = byte(e, of, index);
        let next = e.block();
        let is_over = e.is_imm(IntCC::Equal, byte, 0);
        let is_inside = e.is_imm(IntCC::Equal, is_over, 0);
        e.leave_if(is_inside, next);
        e.b.def_var(length, index);
        e.jump(after);
        e.b.switch_to_block(next);
    });
    e.b.use_var(length)
}

impl Maker<'_, '_> {
    pub(super) fn on_bytes(&mut self, statement: &Statement) -> Result<(), Refusal> {
        match statement {
            Statement::Store { to, as_, value } => {
                let value = self.value(value)?;
                let to = self.place(to, as_.size())?;
                self.store(value, to, *as_);
            }
            Statement::Copy { to, from, size } => {
                let (to, from) = (self.place(to, *size)?, self.place(from, *size)?);
                self.e.copy(to, from, *size, false);
            }
            Statement::Zero { to, size } => {
                let to = self.place(to, *size)?;
                self.e.zero(to, *size);
            }
            Statement::Read { into, from, as_, ok } => {
                let address = self.value(from)?;
                let word = self.e.slot(8);
                let zero = self.e.int(0);
                self.e.store(zero, word);
                let length = self.e.int(as_.size().into());
                let read = self.read(word.0, address, length)?;
                let whole = self.e.is(IntCC::Equal, read, length);
                let value = self.scalar(word, *as_);
                let type_ = self.e.b.func.dfg.value_type(value);
                let nothing = self.e.nothing(type_);
                let value = self.e.b.ins().select(whole, value, nothing);
                self.set(*into, value);
                let whole = self.e.b.ins().uextend(I64, whole);
                self.tell(*ok, whole);
            }
            Statement::ReadBytes { to, size, from, length, ok } => {
                let address = self.value(from)?;
                let (length, most) = (self.value(length)?, self.e.int((*size).into()));
                let length = self.e.b.ins().umin(length, most);
                let to = self.place(to, *size)?;
                self.e.zero(to, *size);
                let to = self.e.pointer(to);
                let read = self.read(to, address, length)?;
                let whole = self.e.is(IntCC::Equal, read, length);
                let whole = self.e.b.ins().uextend(I64, whole);
                self.tell(*ok, whole);
            }
            Statement::ReadString { to, size, from, most, length } => {
                let address = self.value(from)?;
                let (most, room) = (self.value(most)?, self.e.int((*size).into()));
                let most = self.e.b.ins().umin(most, room);
                let to = self.place(to, *size)?;
                self.e.zero(to, *size);
                let to = self.e.pointer(to);
                let tid = self.extra(Extra::Tid)?;
                let number = self.registry.number(Routine::ReadString);
                let results = self.results();
                self.e.call(number, &[to, address, most, tid, results.0]);
                let told = self.e.load(results);
                self.tell(*length, told);
            }
            Statement::StringLength { into, of, size } => {
                let of = self.place(of, *size)?;
                let length = string_length(self.e, of, *size);
                self.set(*into, length);
            }
            Statement::Compare { into, left, right, size, most, strings } => {
                let most = most.as_ref().map(|most| self.value(most)).transpose()?;
                let size_value = self.e.int((*size).into());
                let most = most.map_or(size_value, |most| self.e.b.ins().umin(most, size_value));
                let (left, right) = (self.place(left, *size)?, self.place(right, *size)?);
                let differs = compare(self.e, left, right, most, *strings);
                self.set(*into, differs);
            }
            Statement::Find { into, haystack, haystack_size, needle, needle_size } => {
                let (haystack, needle) =
                    (self.place(haystack, *haystack_size)?, self.place(needle, *needle_size)?);
                let found = find(self.e, haystack, *haystack_size, needle, *needle_size);
                self.set(*into, found);
            }
            Statement::ThreadName { to } => {
                let to = self.place(to, 16)?;
                self.e.zero(to, 16);
                let calls = self.e.system_calls();
                let words = [GET_NAME, 0].map(|word| self.e.int(word));
                let to = self.e.pointer(to);
                self.system(calls.prctl, &[words[0], to]);
            }
            Statement::ProcessName { of, to } => {
                let to = self.place(to, 16)?;
                self.e.zero(to, 16);
                self.process_name(*of, to);
            }
            Statement::Signal(signal) => {
                let signal = self.value(signal)?;
                let from_first = self.e.b.ins().iadd_imm_s(signal, -1);
                let is_one = self.e.is_imm(IntCC::UnsignedLessThan, from_first, 64);
                let [yes, after] = [(); 2].map(|()| self.e.block());
                self.e.b.ins().brif(is_one, yes, &[], after, &[]);
                self.e.b.switch_to_block(yes);
                let calls = self.e.system_calls();
                let process = self.system(calls.getpid, &[]);
                self.system(calls.kill, &[process, signal]);
                self.e.go_on(after);
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads the name of a process into 16 bytes that are zeros, from where the kernel tells it in the process's own view: with one
    /// descriptor for a moment, which no other program inherits.
    fn process_name(&mut self, of: Kin, to: At) {
        let calls = self.e.system_calls();
        let path = self.e.slot(24);
        let put = |e: &mut Emit<'_>, at: u32, text: &[u8]| {
            for (index, byte) in text.iter().enumerate() {
                let byte = e.int((*byte).into());
                store_byte(e, byte, path.plus(at + index as u32));
            }
        };
        match of {
            Kin::Own => put(self.e, 0, b"/proc/self/comm\0"),
            Kin::Parent => {
                put(self.e, 0, b"/proc/");
                put(self.e, 6 + PID_DIGITS, b"/comm\0");
                let mut rest = self.system(calls.getppid, &[]);
                // Slashes in the place of leading zeros: several are one.
                for place in (0..PID_DIGITS).rev() {
                    // A tenth of any word of 32 bits.
                    let above = self.e.b.ins().imul_imm_s(rest, 0xcccc_cccd);
                    let above = self.e.b.ins().ushr_imm_s(above, 35);
                    let tens = self.e.b.ins().imul_imm_s(above, 10);
                    let digit = self.e.b.ins().isub(rest, tens);
                    let digit = self.e.b.ins().iadd_imm_s(digit, i64::from(b'0'));
                    let (is_none, slash) =
                        (self.e.is_imm(IntCC::Equal, rest, 0), self.e.int(i64::from(b'/')));
                    let letter = self.e.b.ins().select(is_none, slash, digit);
                    store_byte(self.e, letter, path.plus(6 + place));
                    rest = above;
                }
            }
        }
        let [nowhere, close_on_exec, most] = [0, O_CLOEXEC, 16].map(|word| self.e.int(word));
        let path = self.e.pointer(path);
        let file = self.system(calls.openat, &[nowhere, path, close_on_exec]);
        let after = self.e.block();
        let failed = self.e.is_imm(IntCC::SignedLessThan, file, 0);
        self.e.leave_if(failed, after);
        let into = self.e.pointer(to);
        let read = self.system(calls.read, &[file, into, most]);
        self.system(calls.close, &[file]);
        // The last byte is the end of the line.
        let is_nothing = self.e.is_imm(IntCC::SignedLessThanOrEqual, read, 0);
        self.e.leave_if(is_nothing, after);
        let end = self.e.b.ins().iadd(into, read);
        let zero = self.e.int(0);
        store_byte(self.e, zero, At(end, -1));
        self.e.go_on(after);
    }

    /// Reads foreign memory. How many bytes were read.
    fn read(&mut self, to: Value, address: Value, length: Value) -> Result<Value, Refusal> {
        let tid = self.extra(Extra::Tid)?;
        let number = self.registry.number(Routine::ReadMemory);
        let results = self.results();
        self.e.call(number, &[to, address, length, tid, results.0]);
        Ok(self.e.load(results))
    }

    /// On which processor the thread is, or its node: all ones of 32 bits where the kernel does not tell.
    pub(super) fn processor_by_call(&mut self, what: Context) -> Value {
        let (word, told) = (self.e.slot(8), self.e.int(-1));
        self.e.store(told, word);
        let (pointer, nothing) = (self.e.pointer(word), self.e.int(0));
        let arguments = if what == Context::NumaNode { [nothing, pointer] } else { [pointer, nothing] };
        let call = self.e.system_calls().getcpu;
        self.system(call, &arguments);
        let told = self.e.load(word);
        self.e.b.ins().band_imm_s(told, i64::from(u32::MAX))
    }

    /// A system call. Its result.
    fn system(&mut self, call: i64, arguments: &[Value]) -> Value {
        let number = self.registry.number(Routine::System);
        let words = self.e.slot(48);
        let zero = self.e.int(0);
        for index in 0..6 {
            let value = arguments.get(index).copied().unwrap_or(zero);
            self.e.store(value, words.plus(8 * index as u32));
        }
        let call = self.e.int(call);
        self.e.call(number, &[call, words.0]);
        self.e.load(words)
    }
}

/// Whether two runs of bytes differ: 1 or 0.
fn compare(e: &mut Emit<'_>, left: At, right: At, most: Value, strings: bool) -> Value {
    let zero = e.int(0);
    let differs = e.set_new(zero);
    let over = e.block();
    e.each(most, 1, |e, index, _| {
        let [one, other] = [left, right].map(|base| byte(e, base, index));
        let [unlike, next] = [(); 2].map(|()| e.block());
        let differ = e.is(IntCC::NotEqual, one, other);
        e.leave_if(differ, unlike);
        if strings {
            let is_over = e.is_imm(IntCC::Equal, one, 0);
            e.leave_if(is_over, over);
        }
        e.jump(next);
        e.b.switch_to_block(unlike);
        let one = e.int(1);
        e.b.def_var(differs, one);
        e.jump(over);
        e.b.switch_to_block(next);
    });
    e.go_on(over);
    e.b.use_var(differs)
}

/// Where a string is first found in another one, or -1.
fn find(e: &mut Emit<'_>, haystack: At, haystack_size: u32, needle: At, needle_size: u32) -> Value {
    let needle_length = string_length(e, needle, needle_size);
    let length = string_length(e, haystack, haystack_size);
    let none = e.int(-1);
    let found = e.set_new(none);
    let over = e.block();
    let is_longer = e.is(IntCC::UnsignedGreaterThan, needle_length, length);
    e.leave_if(is_longer, over);
    let last = e.b.ins().isub(length, needle_length);
    let end = e.b.ins().iadd_imm_s(last, 1);
    e.each(end, 1, |e, index, _| {
        let start = At(e.b.ins().iadd(haystack.0, index), haystack.1);
        let differs = compare(e, start, needle, needle_length, false);
        let next = e.block();
        e.leave_if(differs, next);
        e.b.def_var(found, index);
        e.jump(over);
        e.b.switch_to_block(next);
    });
    e.go_on(over);
    e.b.use_var(found)
}
