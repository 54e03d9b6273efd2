//! What the registers of a function may hold of addresses of code.
//!
//! The function is read from its start on, again and again: what registers may hold where a branch leads is kept for the next time. Where nobody
//! knows who arrives, a register may hold whatever any instruction puts there.
//!
//! Memory is one place, and vector registers belong to it; what is pushed is another, and comes back by `pop`. Only labels inside the function are
//! followed there (and none from the one to the other), and around branches that are not known: programs store pointers to functions everywhere,
//! and none computes with those that it has loaded. Neither does one that stores where it is, as V8's code does for whoever unwinds its
//! stack.
//!
//! What comes from elsewhere is foreign: what is loaded, arguments, results of calls. A function that others point into, or that hands out a label
//! of its own, may be told in that way where to go. It is followed like a label, but through memory only in the frame, where compilers keep
//! what they have no register for.
//!
//! What is not seen: places that others compute from labels that only data names, another part of the function among them, as compilers split off
//! what is rarely run; and those that the function itself computes from such labels and fills a table with. Tables are what most of what is
//! computed goes through, and what is loaded from them is mostly no place.

use super::super::decode::{decoder, flow, is_filler};
use super::super::offsets::ByOffset;
use super::labels::{FOREIGN, LABELS, LOCAL, Labels, OTHERS, Registers, Value, join};
use super::{is_returned, thunk::thunk};
use crate::{Flow, ReadOnlyData, Told};
use alloc::{collections::BTreeSet, vec::Vec};
use iced_x86::{Instruction, InstructionInfoFactory, OpKind, Register};

/// How many entries of tables are looked at, and places that jumps lead to, for each byte of a function, since nobody has to write what
/// compilers do; how many in any case, and how many at most.
const MOST_FOR_A_BYTE: usize = 256;
const MOST_AT_LEAST: usize = 1 << 14;
const MOST: usize = 1 << 21;

/// The opcodes of `pop r`.
const POP_FIRST: u8 = 0x58;
const POP_LAST: u8 = 0x5f;

/// The registers of arguments, and those of results, as calling conventions have them.
const ARGUMENTS: [usize; 8] = [0, 1, 2, 6, 7, 8, 9, 10];
const RESULTS: [usize; 2] = [0, 2];
/// Those that a part of a function may get from another; r11 is for what is done with at once.
const PARTS: [usize; 14] = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15];

/// How many places are told apart to which branches lead.
const BRANCHES: usize = 1 << 16;

/// A function being read.
pub(super) struct Reading<'a> {
    pub(super) code: &'a [u8],
    pub(super) address: u64,
    pub(super) data: &'a dyn ReadOnlyData,
    pub(super) got: Option<u64>,
    /// Whether addresses have 32 bits.
    pub(super) is_low: bool,
    /// Whether callees get what is pushed.
    pub(super) pushes_arguments: bool,
    /// Labels with bits of their own.
    pub(super) known: Vec<u64>,
    /// Those of them that are followed through memory.
    pub(super) local: u64,
    /// What is held where direct branches lead.
    branches: ByOffset<Registers>,
    /// What is held where control leaves for a place that is not known: by a jump through a register, or to another part of the function.
    leaving: Registers,
    /// What any instruction puts into each register.
    pub(super) anywhere: Registers,
    /// The same for memory, and for registers that are not general ones.
    pub(super) memory: Labels,
    /// What is not known, as far as it matters: where the function jumps to what it is not known to hold.
    pub(super) foreign: Labels,
    /// The same for what is pushed.
    pub(super) pushed: Labels,
    /// What was computed from what is not known and put into the frame: compilers do so with what they have no register for.
    pub(super) frame: Labels,
    /// What others get in registers: whoever is called, or calls.
    pub(super) escaped: Labels,
    /// Whether any of these has got more.
    pub(super) is_more: bool,

    /// How many entries of tables were looked at, and places that jumps lead to, and how many may be.
    pub(super) looked_at: usize,
    pub(super) most: usize,
    /// Where instructions begin, once the function was read.
    pub(super) starts: Vec<u64>,
    /// Whether something was left out for that.
    is_too_much: bool,

    // Of this reading:
    /// The instruction being read.
    ip: u64,
    /// The registers at this instruction.
    pub(super) values: [Value; 16],
    /// Behind the last direct call.
    behind: u64,
    /// Where the straight line of code began that they were set in.
    pub(super) line: u64,
    /// Labels that more than constants name.
    pub(super) spelt: u64,
    /// Labels without bits of their own.
    pub(super) others: BTreeSet<u64>,
    /// What is on top of the stack, if the instruction before put it there.
    pub(super) top: Option<Value>,
    /// The labels that jumps lead around.
    jumps: u64,
    /// Whether a jump leads to what is not known.
    is_led: bool,
    /// The places that tables tell by their distances from labels, and the stretches of code that do so.
    pub(super) places: Vec<(u64, u64)>,
    /// Of which tables these are, with the labels.
    pub(super) tables: BTreeSet<(u64, u64)>,
    pub(super) told: Vec<Told>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        bits: u32,
        code: &'a [u8],
        address: u64,
        data: &'a dyn ReadOnlyData,
        got: Option<u64>,
    ) -> Self {
        Self {
            code,
            address,
            data,
            got,
            is_low: bits == 32 || data.is_fixed(),
            pushes_arguments: bits == 32,
            known: Vec::new(),
            local: 0,
            branches: ByOffset::new(code.len()),
            leaving: [Labels::default(); 16],
            anywhere: [Labels::default(); 16],
            memory: Labels::default(),
            foreign: Labels::default(),
            pushed: Labels::default(),
            frame: Labels::default(),
            escaped: Labels::default(),
            is_more: false,
            starts: Vec::new(),
            is_too_much: false,
            ip: address,
            values: [Value::NOTHING; 16],
            behind: address,
            line: address,
            spelt: OTHERS,
            others: BTreeSet::new(),
            top: None,
            jumps: 0,
            is_led: false,
            places: Vec::new(),
            tables: BTreeSet::new(),
            told: Vec::new(),
            looked_at: 0,
            most: (MOST_AT_LEAST + MOST_FOR_A_BYTE * code.len()).min(MOST),
        }
    }

    /// Reads the function, at whose `arrivals` control may arrive from jumps to places that are not known. Whether it has to be read again,
    /// since more is known.
    pub(super) fn read(&mut self, bits: u32, arrivals: &[u64]) -> bool {
        self.values = [Value::Any(self.foreign); 16];
        self.line = self.address;
        (self.jumps, self.is_led, self.is_more) = (0, false, false);
        self.others.clear();
        self.places.clear();
        self.tables.clear();
        self.told.clear();
        let mut factory = InstructionInfoFactory::new();
        let mut decoder = decoder(bits, self.code, self.address);
        let mut instruction = Instruction::default();
        let mut falls_through = true;
        let mut starts = Vec::new();
        while decoder.can_decode() {
            let next = decoder.position() + 1;
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                // Data in text: try again at the next byte.
                if decoder.set_position(next).is_err() {
                    break;
                }
                decoder.set_ip(self.address.wrapping_add(next as u64));
                falls_through = false;
                continue;
            }
            let ip = instruction.ip();
            self.ip = ip;
            starts.push(ip);
            let is_arrival = arrivals.binary_search(&ip).is_ok();
            let by_branch = self.branches.get(ip.wrapping_sub(self.address)).copied();
            if !falls_through && !is_arrival && is_filler(&instruction) && by_branch.is_none() {
                // Between two blocks.
                continue;
            }
            self.arrive(ip, falls_through, by_branch, is_arrival);
            falls_through = true;
            let top = self.top.take();
            match flow(&instruction) {
                Flow::IndirectJump => {
                    self.jump(&instruction);
                    falls_through = false;
                }
                Flow::Jump { target } => {
                    if let Some(register) = thunk(bits, self.data.code_at(target)) {
                        let place = self.get(register);
                        self.lead(place, ip);
                    } else {
                        self.branch(target);
                    }
                    falls_through = false;
                }
                Flow::Branch { target } => {
                    self.effect(&mut factory, &instruction);
                    match thunk(bits, self.data.code_at(target)) {
                        Some(register) => {
                            let place = self.get(register);
                            self.lead(place, ip);
                        }
                        None => self.branch(target),
                    }
                }
                Flow::Return => {
                    // Not to the caller, if something was put there for it.
                    if let Some(place) = top {
                        self.follow_foreign();
                        self.lead(place, ip);
                    }
                    self.escape(&RESULTS);
                    falls_through = false;
                }
                Flow::Stop => falls_through = false,
                Flow::Call { target } => {
                    self.behind = instruction.next_ip();
                    if target == self.behind {
                        // To find out where it is, on the stack.
                        self.spelt |= self.bit(target);
                        self.push(Value::Address(target));
                        self.top = Some(Value::Address(target));
                        if !matches!(self.code.get(decoder.position()), Some(POP_FIRST..=POP_LAST)) {
                            self.set(Register::None, Value::Address(target));
                        }
                    } else if self.is_inside(target) {
                        self.branch(target);
                    }
                    self.call();
                }
                // What is called are functions.
                Flow::IndirectCall => self.call(),
                Flow::Next | Flow::System => self.effect(&mut factory, &instruction),
            }
        }
        // A first reading does not know where instructions begin, nor to which of them no branch leads.
        let is_guess = !self.tables.is_empty() || self.anywhere != [Labels::default(); 16];
        self.is_more |= self.starts.is_empty() && is_guess;
        self.starts = starts;
        self.is_more && !self.is_too_much
    }

    /// Makes what is not known matter.
    pub(super) fn follow_foreign(&mut self) {
        self.is_more |= self.foreign == Labels::default();
        self.foreign = Labels { exact: FOREIGN, around: 0 };
    }

    /// What is held at `ip`, where control arrives from the instruction before it, or by branches, or in a way that is `unknown`.
    fn arrive(&mut self, ip: u64, falls_through: bool, by_branch: Option<Registers>, unknown: bool) {
        if falls_through && !unknown && by_branch.is_none() {
            return;
        }
        let mut held = [Labels::default(); 16];
        if falls_through {
            held = self.values();
        }
        if let Some(more) = by_branch {
            join(&mut held, &more);
        }
        if unknown {
            join(&mut held, &self.leaving);
        } else if !falls_through && by_branch.is_none() && !self.starts.is_empty() {
            // And no branch will lead there: all have been seen.
            join(&mut held, &self.anywhere);
        }
        self.values = held.map(Value::Any);
        self.top = None;
        self.line = ip;
    }

    fn values(&mut self) -> Registers {
        self.values.map(|value| self.labels_of(value))
    }

    /// A direct branch.
    fn branch(&mut self, target: u64) {
        if !self.is_inside(target) {
            self.escape(&PARTS);
        }
        let values = self.values();
        self.go(target, &values);
    }

    /// Control goes there, with these `values`.
    fn go(&mut self, target: u64, values: &Registers) {
        if self.branches.len() >= BRANCHES {
            self.is_too_much = true;
            return;
        }
        if !self.is_inside(target) {
            self.is_more |= join(&mut self.leaving, &values.map(Labels::named));
            return;
        }
        let offset = target.wrapping_sub(self.address);
        let is_more = match self.branches.get_mut(offset) {
            Some(held) => join(held, values),
            None => join(self.branches.insert(offset, Registers::default()), values),
        };
        // What is read later has it anyway.
        self.is_more |= is_more && target <= self.ip;
    }

    /// A jump through a register or memory.
    fn jump(&mut self, instruction: &Instruction) {
        let place = self.operand(instruction, 0);
        if is_returned(instruction, self.behind) {
            let behind = self.bit(self.behind);
            self.jumps |= behind;
            self.spelt |= behind;
        }
        if matches!(place, Value::Place(_)) && instruction.op0_kind() == OpKind::Register {
            // Where it leads nobody needs it any more.
            self.values[instruction.op0_register().number()] = Value::NOTHING;
        }
        self.lead(place, instruction.ip());
    }

    /// Control goes to this place, from `ip`.
    fn lead(&mut self, place: Value, ip: u64) {
        let to = self.labels_of(place);
        self.jumps |= to.around;
        self.is_led |= to.is_foreign();
        let values = self.values();
        let Value::Place(from) = place else {
            self.escape(&ARGUMENTS);
            self.is_more |= join(&mut self.leaving, &values);
            return;
        };
        self.told.push(Told { from, behind: self.line, last: ip });
        self.looked_at += self.places.len();
        if self.looked_at > self.most {
            self.is_too_much = true;
            return;
        }
        let places = core::mem::take(&mut self.places);
        places.iter().filter(|(label, _)| *label == from).for_each(|(_, place)| self.go(*place, &values));
        self.places = places;
    }

    /// Nothing is certain behind a call. Compilers know of callees that keep registers which they need not keep (the System V ABI, 3.2.1: rbx, rbp
    /// and r12 to r15 have to be kept): labels may be there.
    fn call(&mut self) {
        self.escape(&ARGUMENTS);
        let mut held = self.values();
        for lost in [0, 1, 2, 6, 7, 8, 9, 10, 11] {
            held[lost].exact &= self.local;
            held[lost] = held[lost].and(self.foreign);
        }
        self.values = held.map(Value::Any);
    }

    pub(super) fn is_inside(&self, place: u64) -> bool {
        place.wrapping_sub(self.address) < self.code.len() as u64
    }

    /// The bit of a label; none of what is no code.
    pub(super) fn bit(&mut self, label: u64) -> u64 {
        if !self.data.may_be_code(label) {
            return 0;
        }
        if let Some(bit) = self.known.iter().position(|known| *known == label) {
            return 1 << bit;
        }
        let is_local = label != self.address && self.is_inside(label);
        if self.known.len() < if is_local { LABELS } else { LABELS - LOCAL } {
            let bit = 1 << self.known.len();
            self.known.push(label);
            self.local |= if is_local { bit } else { 0 };
            return bit;
        }
        self.others.insert(label);
        self.local |= if is_local { OTHERS } else { 0 };
        OTHERS
    }

    /// Somebody else gets what is in these registers.
    fn escape(&mut self, registers: &[usize]) {
        for register in registers {
            self.escaped = self.escaped.and(self.labels_of(self.values[*register]));
        }
    }

    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        self.places.iter().map(|(_, place)| *place)
    }

    /// Whether all is known of where it jumps to what it computes; once it was read often enough.
    pub(super) fn is_clear(&self) -> bool {
        !self.is_more && !self.is_too_much
    }

    /// Whether it may jump around one of the `pointers`, being led to what it does not name.
    pub(super) fn leads_around(&self, pointers: &[u64]) -> bool {
        // Of a program that does not move, any number may be taken for a pointer.
        let is_meant = |pointer: &u64| !self.data.is_fixed() || self.is_start(*pointer);
        (self.jumps & FOREIGN != 0 || !self.is_clear()) && pointers.iter().any(is_meant)
    }

    /// The labels that it jumps around; that others may, who get a place around them; and those that others get, if it jumps to what it gets
    /// from them. What 64-bit code pushes as it is comes back as it is: the handlers of OCaml's exceptions do.
    ///
    /// And whether nothing but a constant names it.
    pub(super) fn computed(&self) -> impl Iterator<Item = (u64, bool)> {
        let mut bits = self.jumps | self.memory.around | self.pushed.around | self.escaped.around;
        if self.is_led {
            bits |= (self.memory.exact | self.escaped.exact) & self.local;
        }
        if !self.is_clear() {
            bits = u64::MAX;
        }
        let known = self.known.iter().enumerate().filter(move |(bit, _)| bits & 1 << bit != 0);
        let is_constant = |bit: usize| self.data.is_fixed() && self.spelt & 1 << bit == 0;
        let known = known.map(move |(bit, label)| (*label, is_constant(bit)));
        known.chain(self.others.iter().filter(move |_| bits & OTHERS != 0).map(|label| (*label, false)))
    }

    pub(super) fn labels_of(&mut self, value: Value) -> Labels {
        match value {
            Value::Any(labels) => labels,
            Value::Address(label) | Value::Place(label) => Labels { exact: self.bit(label), around: 0 },
            Value::Entry(_) | Value::EntryBy(_) => Labels::default(),
        }
    }
}
