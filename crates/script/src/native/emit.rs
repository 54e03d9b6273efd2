//! Making one piece of code: cranelift's builder with what all pieces need of memory, loops and calls.
//!
//! # What the code relies on
//!
//! - Cranelift's *alias analysis is off*. A load is a load, wherever it stands: what it would give may have been changed by a signal
//!   handler or by another thread in between. It also leaves `load, add, store` of one word together, which becomes one instruction
//!   ([`Emit::add_word`]).
//! - In code for a thread's own tables no other thread changes anything, so its read-modify-write instructions need no `lock` ([`unlock`]):
//!   one instruction is enough for signal handlers.
//! - On x86-64 other processors see stores in their order, and loads are done in theirs. Elsewhere that is asked for where it matters:
//!   what [`Emit::publish`] writes is seen behind what was written before, what [`Emit::watch`] reads was read before what follows, and
//!   what [`Emit::watch_again`] reads behind what came before. What follows an [`Emit::exchange`] is seen behind it.

use super::{Refusal, power};
use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F64, I8, I16, I32, I64};
use cranelift_codegen::ir::{
    AbiParam, AtomicRmwOp, Block, ExtFuncData, ExternalName, Function, GlobalValueData, InstBuilder,
    MemFlagsData, Opcode, Signature, StackSlot, StackSlotData, StackSlotKind, Type, UserExternalName,
    UserExternalNameRef, UserFuncName, Value,
};
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa};
use cranelift_codegen::{Context, FinalizedRelocTarget, control::ControlPlane};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use std::iter::StepBy;
use std::ops::Range;
use trapless_isa::body::{Code, Hole};
use trapless_isa::{Flow, Machine};

/// Namespace of cranelift's names: routines of the program.
const ROUTINE: u32 = 0;
/// Namespace of cranelift's names: the script's shared part.
const SHARED: u32 = 1;

/// Numbers of the kernel's system calls.
pub(super) struct SystemCalls {
    pub(super) process_vm_readv: i64,
    pub(super) rt_sigprocmask: i64,
    pub(super) prctl: i64,
    pub(super) getpid: i64,
    pub(super) getppid: i64,
    pub(super) kill: i64,
    pub(super) openat: i64,
    pub(super) read: i64,
    pub(super) close: i64,
    pub(super) getcpu: i64,
    pub(super) clock_gettime: i64,
    pub(super) futex: i64,
}

/// Where something lies that pieces work on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Base {
    /// At this offset of the script's shared part.
    Shared(u64),
    /// At this offset of the thread's block.
    Block(u32),
}

impl Base {
    pub(super) fn plus(self, offset: u32) -> Base {
        match self {
            Base::Shared(at) => Base::Shared(at + u64::from(offset)),
            Base::Block(at) => Base::Block(at + offset),
        }
    }

    /// Whether only the thread itself changes what lies there.
    pub(super) fn is_own(self) -> bool {
        matches!(self, Base::Block(_))
    }
}

/// A place in memory while code is made: an address, and how far behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct At(pub(super) Value, pub(super) i32);

impl At {
    pub(super) fn plus(self, offset: u32) -> At {
        At(self.0, self.1 + offset as i32)
    }
}

/// What pieces are made in, one after the other.
pub(super) struct Workshop {
    isa: OwnedTargetIsa,
    machine: Machine,
    builders: FunctionBuilderContext,
    context: Context,
}

/// A piece that was made, and which routines it calls.
pub(super) struct Piece {
    pub(super) code: Code,
    pub(super) calls: Vec<u16>,
}

/// What a piece uses of its thread: of a [`Code`], what depends on what it calls.
#[derive(Clone, Copy)]
pub(super) struct Usage {
    frame: u32,
    vectors: bool,
    calculates: bool,
}

impl Piece {
    /// By itself.
    pub(super) fn own_usage(&self) -> Usage {
        let Code { frame, vectors, calculates, .. } = self.code;
        Usage { frame, vectors, calculates }
    }

    /// With what it calls, of which each routine's is known.
    pub(super) fn usage(&self, known: &[Usage]) -> Usage {
        let own = self.own_usage();
        self.calls.iter().map(|call| known[usize::from(*call)]).fold(own, |all, called| Usage {
            frame: all.frame.max(own.frame + called.frame),
            vectors: all.vectors | called.vectors,
            calculates: all.calculates | called.calculates,
        })
    }

    /// Its code, which says what it uses with what it calls.
    pub(super) fn whole(self, known: &[Usage]) -> Code {
        let Usage { frame, vectors, calculates } = self.usage(known);
        Code { frame, vectors, calculates, ..self.code }
    }
}

impl Workshop {
    pub(super) fn new(isa: OwnedTargetIsa, machine: Machine) -> Self {
        Self { isa, machine, builders: FunctionBuilderContext::new(), context: Context::new() }
    }

    /// Makes a piece. It has so many words as arguments, of which the first are in registers; `fill` is given them. `is_own`: all that
    /// it changes is the thread's own.
    pub(super) fn piece(
        &mut self,
        words: usize,
        is_own: bool,
        fill: impl FnOnce(&mut Emit<'_>, &[Value]) -> Result<(), Refusal>,
    ) -> Result<Piece, Refusal> {
        self.context.clear();
        let signature = signature(words);
        self.context.func = Function::with_name_signature(UserFuncName::default(), signature);
        let mut builder = FunctionBuilder::new(&mut self.context.func, &mut self.builders);
        let entry = builder.create_block();
        builder.append_block_params_for_function_params(entry);
        builder.switch_to_block(entry);
        let arguments = builder.block_params(entry).to_vec();
        let machine = self.machine;
        let mut emit = Emit { b: builder, calls: Vec::new(), results: None, machine, is_own };
        let filled = fill(&mut emit, &arguments);
        let Emit { mut b, calls, .. } = emit;
        b.seal_all_blocks();
        if filled.is_ok() {
            b.finalize(self.isa.frontend_config());
        } else {
            self.builders = FunctionBuilderContext::new();
        }
        filled?;
        let calculates = calculates(&self.context.func);
        if self.machine == Machine::PowerPc64Le {
            self.context
                .optimize(&*self.isa, &mut ControlPlane::default())
                .map_err(|error| Refusal::Compiler(format!("{error:?}")))?;
            let code = power::compile(&self.context, is_own)?;
            return Ok(Piece { code: Code { calculates, ..code }, calls });
        }
        self.context
            .compile(&*self.isa, &mut ControlPlane::default())
            .map_err(|error| Refusal::Compiler(format!("{:?}", error.inner)))?;
        let compiled = self.context.compiled_code().ok_or(Refusal::Compiler("no code".into()))?;
        let mut bytes = compiled.buffer.data().to_vec();
        let mut holes = Vec::new();
        for reloc in compiled.buffer.relocs() {
            let hole = match (&reloc.kind, &reloc.target) {
                (Reloc::Abs8, FinalizedRelocTarget::ExternalName(ExternalName::User(name))) => {
                    hole(&self.context.func, *name, reloc.addend)
                }
                other => return Err(Refusal::Compiler(format!("a relocation of another kind: {other:?}"))),
            };
            holes.push((reloc.offset, hole));
        }
        if is_own && self.machine == Machine::X86_64 {
            unlock(&mut bytes)?;
        }
        // Below the return address: the saved frame pointer, and what is below that.
        let below = compiled.buffer.frame_layout().map_or(0, |layout| layout.frame_to_fp_offset);
        let vectors = self.machine == Machine::AArch64 && has_vectors(&bytes);
        let code = Code { bytes, holes, frame: 16 + below, vectors, calculates, ..Code::default() };
        Ok(Piece { code, calls })
    }
}

/// Whether a function does more with floating-point numbers than to move them.
fn calculates(function: &Function) -> bool {
    let dfg = &function.dfg;
    let is_float = |value: &Value| dfg.value_type(*value).is_float();
    let blocks = function.layout.blocks();
    blocks.flat_map(|block| function.layout.block_insts(block)).any(|at| {
        let of_floats = dfg.inst_args(at).iter().chain(dfg.inst_results(at)).any(is_float);
        let moves = matches!(
            dfg.insts[at].opcode(),
            Opcode::Load
                | Opcode::Store
                | Opcode::Bitcast
                | Opcode::F32const
                | Opcode::F64const
                | Opcode::Select
                | Opcode::Jump
                | Opcode::Brif
        );
        of_floats && !moves
    })
}

/// What a name is, and a distance from it.
pub(super) fn hole(func: &Function, name: UserExternalNameRef, distance: i64) -> Hole {
    let name = &func.params.user_named_funcs()[name];
    match name.namespace {
        ROUTINE => Hole::Routine(name.index as u16),
        _ => Hole::Shared(distance as u64),
    }
}

/// Takes the `lock` prefixes away. In their place stands a prefix that means nothing there. Code is followed from its start, since
/// constants lie behind it.
fn unlock(bytes: &mut [u8]) -> Result<(), Refusal> {
    const LOCK: u8 = 0xf0;
    const DATA_SEGMENT: u8 = 0x3e;
    let isa = Machine::X86_64.isa();
    let mut is_seen = vec![false; bytes.len()];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        let Some(seen) = is_seen.get_mut(at) else { continue };
        if std::mem::replace(seen, true) {
            continue;
        }
        let decoded = isa.decode(&bytes[at..], at as u64);
        let decoded = decoded.map_err(|_| Refusal::Compiler("an instruction that does not decode".into()))?;
        if bytes[at] == LOCK {
            bytes[at] = DATA_SEGMENT;
        }
        let next = at + usize::from(decoded.length);
        if decoded.flow.falls_through() {
            open.push(next);
        }
        if let Flow::Jump { target } | Flow::Branch { target } = decoded.flow {
            open.push(target as usize);
        }
    }
    Ok(())
}

/// Whether one of the instructions of arm64 works with vector registers, or a constant among them looks so. In the manual's main table of
/// encodings these are "Loads and Stores" with bit 26 set, and "Data Processing -- Scalar Floating-Point and Advanced SIMD".
fn has_vectors(bytes: &[u8]) -> bool {
    // Bits 26 and 27 of each word.
    bytes.chunks_exact(4).any(|word| word[3] & 0b1100 == 0b1100)
}

fn signature(words: usize) -> Signature {
    let mut signature = Signature::new(CallConv::PreserveAll);
    signature.params.extend((0..words).map(|_| AbiParam::new(I64)));
    signature
}

/// Memory that may be anything to the optimizer but faults never: addresses are computed from the block and the region.
fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// A piece that is being made.
pub(super) struct Emit<'a> {
    pub(super) b: FunctionBuilder<'a>,
    calls: Vec<u16>,
    results: Option<StackSlot>,
    machine: Machine,
    /// Whether nobody but the thread itself sees what is changed.
    is_own: bool,
}

impl Emit<'_> {
    /// Those of the machine.
    pub(super) fn system_calls(&self) -> &'static SystemCalls {
        match self.machine {
            Machine::X86_64 => &SystemCalls {
                process_vm_readv: 310,
                rt_sigprocmask: 14,
                prctl: 157,
                getpid: 39,
                getppid: 110,
                kill: 62,
                openat: 257,
                read: 0,
                close: 3,
                getcpu: 309,
                clock_gettime: 228,
                futex: 202,
            },
            Machine::PowerPc64Le => &SystemCalls {
                process_vm_readv: 351,
                rt_sigprocmask: 174,
                prctl: 171,
                getpid: 20,
                getppid: 64,
                kill: 37,
                openat: 286,
                read: 3,
                close: 6,
                getcpu: 302,
                clock_gettime: 246,
                futex: 221,
            },
            // What all have that came later.
            _ => &SystemCalls {
                process_vm_readv: 270,
                rt_sigprocmask: 135,
                prctl: 167,
                getpid: 172,
                getppid: 173,
                kill: 129,
                openat: 56,
                read: 63,
                close: 57,
                getcpu: 168,
                clock_gettime: 113,
                futex: 98,
            },
        }
    }

    pub(super) fn int(&mut self, value: i64) -> Value {
        self.b.ins().iconst(I64, value)
    }

    /// The address of something.
    pub(super) fn address(&mut self, base: Base) -> At {
        match base {
            Base::Block(offset) => At(self.b.ins().get_pinned_reg(I64), offset as i32),
            Base::Shared(offset) => {
                let name = self.name(SHARED, 0);
                let symbol = self.b.create_global_value(GlobalValueData::Symbol {
                    name,
                    offset: (offset as i64).into(),
                    colocated: false,
                    tls: false,
                });
                At(self.b.ins().symbol_value(I64, symbol), 0)
            }
        }
    }

    fn name(&mut self, namespace: u32, index: u32) -> ExternalName {
        let name = self.b.func.declare_imported_user_function(UserExternalName { namespace, index });
        ExternalName::user(name)
    }

    /// The address as one value.
    pub(super) fn pointer(&mut self, at: At) -> Value {
        if at.1 == 0 { at.0 } else { self.b.ins().iadd_imm_s(at.0, i64::from(at.1)) }
    }

    /// Bytes in the frame, a multiple of 8.
    pub(super) fn slot(&mut self, bytes: u32) -> At {
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes.next_multiple_of(8), 3);
        let slot = self.b.create_sized_stack_slot(data);
        At(self.b.ins().stack_addr(I64, slot, 0), 0)
    }

    /// Words of the frame that routines write their results to. They are read before the next routine is called.
    pub(super) fn results(&mut self) -> At {
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, 16, 3);
        let slot = match self.results {
            Some(slot) => slot,
            None => *self.results.insert(self.b.create_sized_stack_slot(data)),
        };
        At(self.b.ins().stack_addr(I64, slot, 0), 0)
    }

    /// Ends a piece with a block that nothing leads to.
    pub(super) fn end_unreached(&mut self, block: Block) {
        self.b.switch_to_block(block);
        self.finish();
    }

    pub(super) fn load(&mut self, at: At) -> Value {
        self.load_as(I64, at)
    }

    pub(super) fn load_as(&mut self, type_: Type, at: At) -> Value {
        self.b.ins().load(type_, flags(), at.0, at.1)
    }

    pub(super) fn store(&mut self, value: Value, at: At) {
        self.b.ins().store(flags(), value, at.0, at.1);
    }

    /// A word that others write, or that says something about others' words: it stays where it is among them.
    pub(super) fn watch(&mut self, at: At) -> Value {
        let pointer = self.pointer(at);
        self.b.ins().atomic_load(I64, flags(), pointer)
    }

    /// The same behind all that was read before: what was read is what it was if this word is still the same.
    pub(super) fn watch_again(&mut self, at: At) -> Value {
        if self.machine != Machine::X86_64 && !self.is_own {
            self.b.ins().fence();
        }
        self.watch(at)
    }

    /// Writes a word behind all that was written before, also for the tool, which reads what is the thread's own. (On x86-64 a plain store is one,
    /// and nothing is read behind it that has to wait for it.)
    pub(super) fn publish(&mut self, value: Value, at: At) {
        if self.machine != Machine::X86_64 {
            let pointer = self.pointer(at);
            self.b.ins().atomic_store(flags(), value, pointer);
        } else {
            self.store(value, at);
        }
    }

    /// Adds to a word that no other thread changes, so that a signal handler's addition is not lost: by one instruction, where there is one.
    pub(super) fn add_word(&mut self, at: At, amount: Value) {
        if self.machine != Machine::X86_64 {
            self.add_shared(at, amount);
            return;
        }
        let before = self.load(at);
        let sum = self.b.ins().iadd(before, amount);
        self.store(sum, at);
    }

    /// Adds to a word. What it was, where that is asked for.
    pub(super) fn add_shared(&mut self, at: At, amount: Value) -> Value {
        let pointer = self.pointer(at);
        self.b.ins().atomic_rmw(I64, flags(), AtomicRmwOp::Add, pointer, amount)
    }

    /// Adds to a word of a map. What it was is not known.
    pub(super) fn add(&mut self, is_own: bool, at: At, amount: Value) {
        if is_own {
            self.add_word(at, amount);
        } else {
            self.add_shared(at, amount);
        }
    }

    /// Adds 1 to a word of the thread's part.
    pub(super) fn count(&mut self, base: Base) {
        let at = self.address(base);
        let one = self.int(1);
        self.add(base.is_own(), at, one);
    }

    /// Replaces a word if it is what it should be; what it was.
    pub(super) fn exchange(&mut self, at: At, expected: Value, new: Value) -> Value {
        let pointer = self.pointer(at);
        let was = self.b.ins().atomic_cas(flags(), pointer, expected, new);
        if self.machine != Machine::X86_64 {
            // The store of a pair of exclusive accesses may be seen behind later ones.
            self.b.ins().fence();
        }
        was
    }

    pub(super) fn is(&mut self, condition: IntCC, left: Value, right: Value) -> Value {
        self.b.ins().icmp(condition, left, right)
    }

    pub(super) fn is_imm(&mut self, condition: IntCC, left: Value, right: i64) -> Value {
        self.b.ins().icmp_imm_s(condition, left, right)
    }

    /// Does something if a condition is not 0.
    pub(super) fn when(&mut self, condition: Value, then: impl FnOnce(&mut Self)) {
        let [yes, after] = [(); 2].map(|()| self.b.create_block());
        self.b.ins().brif(condition, yes, &[], after, &[]);
        self.b.switch_to_block(yes);
        then(self);
        self.b.ins().jump(after, &[]);
        self.b.switch_to_block(after);
    }

    /// Goes to a block if a condition is not 0, else on.
    pub(super) fn leave_if(&mut self, condition: Value, to: Block) {
        let after = self.b.create_block();
        self.b.ins().brif(condition, to, &[], after, &[]);
        self.b.switch_to_block(after);
    }

    /// Goes on in a block, which the code so far leads to.
    pub(super) fn go_on(&mut self, block: Block) {
        self.b.ins().jump(block, &[]);
        self.b.switch_to_block(block);
    }

    pub(super) fn block(&mut self) -> Block {
        self.b.create_block()
    }

    pub(super) fn jump(&mut self, to: Block) {
        self.b.ins().jump(to, &[]);
    }

    /// A block for what comes behind a jump, which nothing leads to.
    pub(super) fn unreachable(&mut self) {
        let block = self.b.create_block();
        self.b.switch_to_block(block);
    }

    pub(super) fn variable(&mut self, type_: Type) -> Variable {
        self.b.declare_var(type_)
    }

    /// A variable with a value.
    pub(super) fn set_new(&mut self, value: Value) -> Variable {
        let type_ = self.b.func.dfg.value_type(value);
        let variable = self.b.declare_var(type_);
        self.b.def_var(variable, value);
        variable
    }

    /// Does something for each number from 0 on in steps, as long as it is below the end (unsigned). It can be left for the block that is
    /// given.
    pub(super) fn each(&mut self, end: Value, step: i64, body: impl FnOnce(&mut Self, Value, Block)) {
        let zero = self.int(0);
        let index = self.set_new(zero);
        let [head, round, after] = [(); 3].map(|()| self.b.create_block());
        self.go_on(head);
        let now = self.b.use_var(index);
        let goes_on = self.is(IntCC::UnsignedLessThan, now, end);
        self.b.ins().brif(goes_on, round, &[], after, &[]);
        self.b.switch_to_block(round);
        body(self, now, after);
        let next = self.b.ins().iadd_imm_s(now, step);
        self.b.def_var(index, next);
        self.jump(head);
        self.b.switch_to_block(after);
    }

    /// The last bytes of something, 1 to 7 of them, as a word filled up with zeros.
    pub(super) fn load_tail(&mut self, at: At, bytes: u32) -> Value {
        let mut word = self.int(0);
        let mut done = 0;
        for (size, type_) in [(4, I32), (2, I16), (1, I8)] {
            if bytes & size != 0 {
                let part = self.load_as(type_, at.plus(done));
                let part = self.b.ins().uextend(I64, part);
                word = match done {
                    0 => part,
                    _ => {
                        let shifted = self.b.ins().ishl_imm_s(part, i64::from(8 * done));
                        self.b.ins().bor(word, shifted)
                    }
                };
                done += size;
            }
        }
        word
    }

    /// Writes the low bytes of a word, 1 to 7 of them.
    pub(super) fn store_tail(&mut self, word: Value, at: At, bytes: u32) {
        let mut done = 0;
        for (size, type_) in [(4, I32), (2, I16), (1, I8)] {
            if bytes & size != 0 {
                let shifted = self.b.ins().ushr_imm_s(word, i64::from(8 * done));
                let part = self.b.ins().ireduce(type_, shifted);
                self.store(part, at.plus(done));
                done += size;
            }
        }
    }

    /// Does something for so many bytes behind some places, a round after the other: with where a round's are, and the offsets of its words from
    /// there. The bytes are whole words.
    pub(super) fn rounds<const N: usize>(
        &mut self,
        bytes: u32,
        places: [At; N],
        mut body: impl FnMut(&mut Self, [At; N], StepBy<Range<u32>>),
    ) {
        let in_loop = if bytes > ROUND { bytes / ROUND * ROUND } else { 0 };
        if in_loop > 0 {
            let end = self.int(in_loop.into());
            self.each(end, ROUND.into(), |emit, index, _| {
                let places = places.map(|At(base, offset)| At(emit.b.ins().iadd(base, index), offset));
                body(emit, places, (0..ROUND).step_by(8));
            });
        }
        if bytes > in_loop {
            body(self, places, (in_loop..bytes).step_by(8));
        }
    }

    /// Copies bytes. Of the source none but these are read. `pads`: what is copied to is filled up to a whole word with zeros.
    pub(super) fn copy(&mut self, to: At, from: At, bytes: u32, pads: bool) {
        let (whole, rest) = (bytes & !7, bytes & 7);
        self.rounds(whole, [from, to], |emit, [from, to], offsets| {
            for at in offsets {
                let word = emit.load(from.plus(at));
                emit.store(word, to.plus(at));
            }
        });
        if rest != 0 {
            let word = self.load_tail(from.plus(whole), rest);
            if pads {
                self.store(word, to.plus(whole));
            } else {
                self.store_tail(word, to.plus(whole), rest);
            }
        }
    }

    /// Zeroes bytes.
    pub(super) fn zero(&mut self, to: At, bytes: u32) {
        let (whole, rest) = (bytes & !7, bytes & 7);
        let zero = self.int(0);
        self.rounds(whole, [to], |emit, [to], offsets| offsets.for_each(|at| emit.store(zero, to.plus(at))));
        if rest != 0 {
            self.store_tail(zero, to.plus(whole), rest);
        }
    }

    /// Calls a routine of the program.
    pub(super) fn call(&mut self, routine: u16, arguments: &[Value]) {
        if !self.calls.contains(&routine) {
            self.calls.push(routine);
        }
        let name = self.name(ROUTINE, routine.into());
        let signature = self.b.import_signature(signature(arguments.len()));
        let function = ExtFuncData { name, signature, colocated: false, patchable: false };
        let function = self.b.import_function(function);
        self.b.ins().call(function, arguments);
    }

    /// The end of the piece.
    pub(super) fn finish(&mut self) {
        self.b.ins().return_(&[]);
    }

    /// 0 of a type.
    pub(super) fn nothing(&mut self, type_: Type) -> Value {
        if type_ == F64 { self.b.ins().f64const(0.0) } else { self.int(0) }
    }
}

/// So many bytes are worked on in each round of a loop, and up to as many without one.
const ROUND: u32 = 64;
