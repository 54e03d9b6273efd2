//! The detour of a site: count, time or record, run the displaced instructions, go back.
//!
//! # Entry only
//!
//! ```text
//!     [save scratch registers and flags that are not dead]
//!     find the thread's entry in the thread table            ── miss ──▶ resolve ── none ──▶ locked count
//!     count, record
//!     [restore]
//!     displaced instructions
//!     jmp site + displaced length
//! ```
//!
//! # Entry and return, call-paired
//!
//! The caller's return address leaves the stack for a return instance, and the displaced code is *called*. So the
//! function's own `ret` comes back here, where a second `ret` goes home: every call has its return, as the CPU's
//! return predictor and shadow stacks expect.
//!
//! ```text
//!     … as above, then reserve a return instance             ── taken ──▶ claim ── none ──▶ count as lost
//!     [restore]
//!     lea rsp, [rsp+8]          the return address is in the instance now
//!     call displaced            and its slot holds the return point
//! return point:
//!     save; find the thread's entry and the instance         ── miss ──▶ resolve, find
//!     count, time, record; put the return address back into its slot; free the instance
//!     restore; ret
//! displaced:
//!     displaced instructions
//!     jmp site + displaced length
//! ```
//!
//! # Entry noted, and exit
//!
//! Where the return address has to stay where it is, the entry claims the instance and notes the call in it, and runs the displaced code in
//! its own place, as entry only. At each instruction by which the function is left stands another detour:
//!
//! ```text
//!     [instructions that stand ahead of it, which make room for the patch]
//!     save; find the instance of the slot at the stack pointer     ── not there ──▶ leave ── none ──┐
//!     free it; find the thread's entry; count, time, record                                         │
//!     restore  ◀────────────────────────────────────────────────────────────────────────────────────┘
//!     displaced instructions: the `ret`, or the jump to another function
//! ```
//!
//! # Instructions ahead
//!
//! A patch may begin ahead of the probed instruction. What stands between runs first, as a copy, and then all that is told above.
//!
//! # What is kept
//!
//! Where Go may have left too little of the stack, that is asked ahead of all else: `ask_for_room`. Where it is too little the displaced
//! instructions run at once, and what is counted is counted by a locked increment.
//!
//! Only general registers and the arithmetic flags are ever clobbered, and those are saved unless liveness proved
//! them dead. Flags are saved by `lahf`/`seto` and restored by `add al, 127`/`sahf`: `popf` costs 9 ns. The red zone is
//! skipped before anything is pushed, with `lea`, which leaves the flags alone. Counters are incremented by one
//! instruction, so a signal handler on the same thread never loses one; return instances are reserved before they are filled.

use super::{
    emit::{Assembled, Assembler, GPR32, GPR64, at, call_runtime, number::*, unencodable},
    frame::{Frame, RED_ZONE, Stacks},
    goroutine,
    liveness::{Liveness, spare},
    narrow::Narrow,
    pieces::{Pieces, RUNS, parts},
    relocate::Relocated,
    runtime::Routine,
    stackless::{Flags, Stackless, stackless},
};
use crate::detour::*;
use crate::payload::*;
use crate::{Displaced, Site};
use alloc::{borrow::ToOwned, string::String, vec::Vec};
use iced_x86::{Code, IcedError, code_asm::*};

pub(super) type Asm = Result<(), IcedError>;

/// Registers that carry integer arguments, in order.
pub(super) const ARGUMENTS: [usize; 6] = [RDI, RSI, RDX, RCX, R8, R9];

/// How a detour that counts does without a stack.
pub(super) fn counts_without_stack(
    site: &Site<'_>,
    displaced: &Displaced,
    stack: Stack,
) -> Option<Stackless> {
    let payload = Payload { entry: Steps::of([EntryStep::Count(0)]), ..Payload::default() };
    stackless(&payload, stack, site.code, spare(64, site, displaced.start.max(site.address), stack))
}

/// What the detour of `request` may overwrite.
fn to_spare(bits: u32, request: &DetourRequest<'_>) -> Liveness {
    let DetourRequest { site, displaced, stack, .. } = request;
    spare(bits, site, displaced.start.max(site.address), *stack)
}

/// The registers of the operands that steps and bodies are given.
fn read(request: &DetourRequest<'_>) -> impl Iterator<Item = u8> {
    let fetched = request.operands.iter().flat_map(|operand| operand.registers());
    let passed = request.runs.entry.iter().flat_map(|run| run.operands);
    fetched.chain(passed.flat_map(|operand| operand.registers()))
}

/// Whether what a detour may use of the stack is what it needs.
fn has_stack(bits: u32, request: &DetourRequest<'_>) -> bool {
    let DetourRequest { site, payload, stack, .. } = request;
    let is_exit = payload.followed.is_some_and(|followed| matches!(followed.way, Way::Left(_)));
    match stack {
        Stack::Enough => true,
        _ if bits == 32 => false,
        Stack::None | Stack::NoneInGo => {
            let way = stackless(payload, *stack, site.code, to_spare(bits, request));
            way.is_some_and(|way| way == Stackless::Own || request.layout.near != 0)
        }
        Stack::AskedInGo => {
            let is_entry = site.address == site.function;
            let is_read = read(request).any(|register| goroutine::FREE_AT_ENTRY.contains(register));
            let way = payload.followed.map(|followed| followed.way);
            // By convention nobody does, but a jump may go by any register.
            let [_, probed, exit] = parts(request);
            let first = if matches!(way, Some(Way::Through { .. })) { exit } else { probed };
            let asks = [probed, first]
                .iter()
                .all(|part| goroutine::reads_nothing_free(part.original, part.displaced.start));
            asks && payload.hooks.is_empty() && (is_exit || is_entry && !is_read)
        }
    }
}

/// What becomes of the flags where the detour counts in memory nearby; `None` where it does not.
fn counts_nearby(bits: u32, request: &DetourRequest<'_>) -> Option<Flags> {
    if bits == 32 || !matches!(request.stack, Stack::None | Stack::NoneInGo) {
        return None;
    }
    match stackless(&request.payload, request.stack, request.site.code, to_spare(bits, request))? {
        Stackless::Own => None,
        Stackless::Near(flags) => Some(flags),
    }
}

pub(super) fn detour(bits: u32, request: &DetourRequest<'_>) -> Emitted<Detour> {
    // The length of the displaced code can depend on where it lands, and where it lands on the code before it: two
    // rounds settle it, since only the first one guesses. The same goes for the return point, which 32-bit code names by its
    // address.
    let [ahead, probed, exit] = parts(request);
    if bits == 32 && (ahead.displaced.length > 0 || request.payload.follows_by_notes()) {
        return Err(crate::Reason::NotImplemented);
    }
    if bits == 32 && request.payload.runs() {
        return Err(crate::Reason::NoBodies);
    }
    if !has_stack(bits, request) {
        return Err(crate::Reason::NeedsStack);
    }
    if !request.lets_change() {
        return Err(crate::Reason::NoChanges);
    }
    if bits == 32 && request.payload.replaced_by().is_some() || !request.lets_replace() {
        return Err(crate::Reason::NoReplacement);
    }
    let ahead = ahead.moved(bits, request.address)?;
    let mut copies = [ahead, Relocated::default(), Relocated::default()];
    let mut guessed = [request.address; 3];
    for _ in 0..4 {
        let [displaced_at, exit_at, point_at] = guessed;
        copies[1] = probed.moved(bits, displaced_at)?;
        copies[2] = exit.moved(bits, exit_at)?;
        let mut template = Template::new(bits, request, &copies, point_at)?;
        match bits {
            64 => template.write(),
            _ => Narrow(&mut template).write(),
        }
        .map_err(unencodable)?;
        let (assembled, labels) = template.finish()?;
        let placed = |label: &CodeLabel, is_there: bool| match is_there {
            true => assembled.address_of(label),
            false => Ok(request.address),
        };
        let landed = [
            assembled.address_of(&labels.displaced)?,
            placed(&labels.exit, exit.displaced.length > 0)?,
            placed(&labels.return_point, request.payload.pairs())?,
        ];
        if landed == guessed {
            return finished(bits, request, &copies, &assembled, &labels);
        }
        guessed = landed;
    }
    Err(crate::Reason::OutOfReach)
}

fn finished(
    bits: u32,
    request: &DetourRequest<'_>,
    copies: &[Relocated; RUNS],
    assembled: &Assembled,
    labels: &Labels,
) -> Emitted<Detour> {
    let back = assembled.offset_of(&labels.back)?;
    let exit = if copies[2].code.is_empty() { back } else { assembled.offset_of(&labels.exit)? };
    let pieces = Pieces::new(request, copies, [0, assembled.offset_of(&labels.displaced)?, exit], back);
    let mut comments = Vec::new();
    if !copies[0].code.is_empty() {
        comments.push((0, String::from("instructions ahead of the probed one")));
    }
    let mut comment = |label: &CodeLabel, text: &str| -> Emitted<()> {
        comments.push((assembled.offset_of(label)?, String::from(text)));
        Ok(())
    };
    comment(&labels.displaced, "displaced instructions")?;
    comment(&labels.back, "back to the first instruction that stays")?;
    let way = request.payload.followed.map(|followed| followed.way);
    if counts_nearby(bits, request).is_some() {
        comment(&labels.nearby, "all threads count in one place")?;
    } else if !request.payload.needs_no_thread() && !matches!(way, Some(Way::Left(_))) {
        comment(&labels.resume, "the thread's memory is known")?;
        comment(&labels.slow, "the thread is not where its hash says")?;
    }
    if request.stack == Stack::AskedInGo && !matches!(way, Some(Way::Left(_))) {
        comment(&labels.scarce, "there is too little of the stack")?;
    }
    if way.is_some_and(|way| way.left().is_some()) {
        comment(&labels.left, "the function is left: was its call noted?")?;
        comment(&labels.over, "it was, and is over")?;
    }
    let mut return_point = None;
    if request.payload.pairs() {
        return_point = Some(assembled.offset_of(&labels.return_point)?);
        comment(&labels.return_point, "return point: the function is done")?;
        comment(&labels.going_home, "the caller's return address is back in its slot")?;
    }
    comments.sort_by_key(|c| c.0);
    let code = assembled.code().to_owned();
    let frames = match request.tells {
        true => pieces.frames(bits, request, &code, return_point),
        false => Vec::new(),
    };
    // No landing pad is needed there: nobody guards our memory.
    let is_replaced = request.payload.replaced_by().is_some();
    let is_first = |place: &&(u64, u32)| is_replaced && place.0 == request.displaced.start;
    let original = pieces.places.iter().find(is_first).map(|place| place.1);
    Ok(Detour { code, places: pieces.places, return_point, original, frames, comments })
}

/// The places of a detour that code or its readers refer to.
pub(super) struct Labels {
    /// The thread's entry is known.
    pub resume: CodeLabel,
    /// Done with counting.
    pub known: CodeLabel,
    /// Done with the entry; the call is not followed.
    pub plain: CodeLabel,
    /// The copies of the displaced instructions.
    pub displaced: CodeLabel,
    /// The jump behind them.
    pub back: CodeLabel,
    /// The thread's entry is not where the hash leads.
    pub slow: CodeLabel,
    /// Where a followed call returns.
    pub return_point: CodeLabel,
    /// Done with the return.
    pub going_home: CodeLabel,
    /// Where the function is left, and there the copies of the instructions that leave it.
    pub left: CodeLabel,
    pub exit: CodeLabel,
    /// The call that leaves is known.
    pub over: CodeLabel,
    /// Its thread's entry is known.
    pub found: CodeLabel,
    /// Done with what leaves.
    pub leaving: CodeLabel,
    /// Its thread's entry is not where the hash leads.
    pub unknown: CodeLabel,
    /// Its note is not at hand.
    pub elsewhere: CodeLabel,
    /// There is too little of the stack at the entry.
    pub scarce: CodeLabel,
    /// All threads count in memory nearby.
    pub nearby: CodeLabel,
}

/// A detour being written.
pub(super) struct Template<'a> {
    pub request: &'a DetourRequest<'a>,
    pub asm: Assembler,
    pub labels: Labels,
    /// Address of the return point, as far as it is known.
    pub return_point: u64,
    /// 32 or 64.
    pub bits: u32,
    /// Bytes below what a frame has saved.
    pub pushed: i32,
    /// The register that the program's stack pointer is in: another one than that while bodies are called on a stack of ours.
    pub base: usize,
    /// Where children come that call no bodies, and where they go on.
    pub children: Vec<[CodeLabel; 2]>,
    /// Where threads come whose stack for bodies has no level left, the register that its address is in, and where they go on.
    pub crowded: Vec<(CodeLabel, usize, CodeLabel)>,
    /// The copies of each run of displaced instructions.
    copies: &'a [Relocated; RUNS],
}

impl<'a> Template<'a> {
    fn new(
        bits: u32,
        request: &'a DetourRequest<'a>,
        copies: &'a [Relocated; RUNS],
        return_point: u64,
    ) -> Emitted<Self> {
        let mut asm = Assembler::new(bits, request.address)?;
        let mut label = || asm.a.create_label();
        let labels = Labels {
            resume: label(),
            known: label(),
            plain: label(),
            displaced: label(),
            back: label(),
            slow: label(),
            return_point: label(),
            going_home: label(),
            left: label(),
            exit: label(),
            over: label(),
            found: label(),
            leaving: label(),
            unknown: label(),
            elsewhere: label(),
            scarce: label(),
            nearby: label(),
        };
        let (children, crowded) = (Vec::new(), Vec::new());
        Ok(Self { request, copies, asm, labels, return_point, bits, pushed: 0, base: RSP, children, crowded })
    }

    fn finish(self) -> Emitted<(Assembled, Labels)> {
        Ok((self.asm.finish()?, self.labels))
    }

    fn write(&mut self) -> Asm {
        self.write_all()?;
        self.count_children()
    }

    fn write_all(&mut self) -> Asm {
        let payload = &self.request.payload;
        self.asm.bytes(&self.copies[0].code)?;
        payload.hooks.iter().try_for_each(|hook| self.hook(hook))?;
        if payload.needs_no_thread() {
            return self.displaced();
        }
        if let Some(followed) = payload.followed
            && let Way::Left(noted) = followed.way
        {
            self.left(&followed, noted)?;
            self.displaced()?;
            return self.left_otherwise(&followed, noted);
        }
        if let Some(flags) = counts_nearby(self.bits, self.request) {
            self.asm.a.set_label(&mut self.labels.nearby)?;
            self.count_nearby(flags)?;
            return self.displaced();
        }
        let frame = Frame::choose(64, Stacks::of(self.request), payload, self.entry_liveness());
        self.ask_for_room(self.labels.scarce)?;
        frame.save(&mut self.asm.a)?;
        self.entry(&frame)?;
        match payload.followed {
            None => {
                self.asm.a.set_label(&mut self.labels.plain)?;
                // There may be nothing to restore, and a label needs an instruction of its own.
                self.asm.a.zero_bytes()?;
                frame.restore(&mut self.asm.a)?;
                self.displaced()?;
            }
            Some(followed) => {
                let later = match followed.way.noted() {
                    Some(noted) => self.note(&frame, &followed, noted)?,
                    None => {
                        let later = self.follow(&frame, &followed)?;
                        self.return_part(&followed)?;
                        later
                    }
                };
                match followed.way {
                    Way::Through { noted, .. } => self.displaced_through(&followed, noted)?,
                    _ => self.displaced()?,
                }
                self.not_followed(&frame, &followed, later)?;
            }
        }
        self.entry_slow(&frame)?;
        if self.request.stack == Stack::AskedInGo {
            self.asm.a.set_label(&mut self.labels.scarce)?;
            self.asm.a.zero_bytes()?;
            if payload.followed.is_some() {
                self.forget_note()?;
            }
            self.entry_shared(R12, None, self.labels.displaced)?;
        }
        Ok(())
    }

    /// Registers that a step reads are not dead, whatever the function does with them.
    pub(super) fn entry_liveness(&self) -> Liveness {
        let mut live = to_spare(self.bits, self.request);
        for register in read(self.request) {
            live.dead.0 &= !1u16.checked_shl(register.into()).unwrap_or(0);
        }
        if self.bits == 32 {
            // Arguments are on the stack.
            return live;
        }
        let read = usize::from(self.request.payload.needs().arguments);
        for &register in ARGUMENTS.iter().take(read) {
            live.dead.0 &= !(1 << register);
        }
        live
    }

    pub(super) fn displaced(&mut self) -> Asm {
        self.asm.a.set_label(&mut self.labels.displaced)?;
        self.asm.bytes(&self.copies[1].code)?;
        self.asm.a.set_label(&mut self.labels.back)?;
        self.asm.a.jmp(self.request.displaced.end())
    }

    /// The same with what is done where the function is left, ahead of the instruction that leaves it.
    fn displaced_through(&mut self, followed: &Followed, noted: Noted) -> Asm {
        self.asm.a.set_label(&mut self.labels.displaced)?;
        // The exit may come first of all.
        self.asm.a.zero_bytes()?;
        self.asm.bytes(&self.copies[1].code)?;
        self.left(followed, noted)?;
        self.asm.a.set_label(&mut self.labels.exit)?;
        self.asm.bytes(&self.copies[2].code)?;
        self.asm.a.set_label(&mut self.labels.back)?;
        self.asm.a.jmp(self.request.displaced.end())?;
        self.left_otherwise(followed, noted)
    }

    /// The functions that unwinders ask about an address: it becomes the real one, wherever the unwinder has it.
    pub(super) fn translate(&mut self, lookup: Lookup) -> Asm {
        let translate = Routine::Translate.address(self.request.runtime);
        let a = &mut self.asm.a;
        a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
        a.pushfq()?;
        a.push(r10)?;
        a.push(r11)?;
        let stack = qword_ptr(rsp + (RED_ZONE + 24));
        match lookup {
            Lookup::FindObject => {
                a.mov(r10, rdi)?;
                a.lea(r11, stack)?;
                call_runtime(a, true, translate)?;
                a.mov(rdi, r10)?;
            }
            Lookup::IteratePhdr => {
                let mut elsewhere = a.create_label();
                a.mov(r10, rsi)?;
                a.sub(r10, rsp)?;
                a.cmp(r10, UNWINDER_STACK as i32)?;
                a.jae(elsewhere)?;
                for word in 0..LOOKED_UP_WORDS as i32 {
                    a.mov(r10, qword_ptr(rsi + 8 * word))?;
                    a.lea(r11, stack)?;
                    call_runtime(a, true, translate)?;
                }
                a.set_label(&mut elsewhere)?;
                a.zero_bytes()?;
            }
        }
        a.pop(r11)?;
        a.pop(r10)?;
        a.popfq()?;
        a.lea(rsp, qword_ptr(rsp + RED_ZONE))
    }

    /// The function by which unwinders land.
    pub(super) fn land(&mut self, code_address: u32) -> Asm {
        let a = &mut self.asm.a;
        a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
        a.pushfq()?;
        a.push(r10)?;
        a.push(r11)?;
        a.lea(r10, qword_ptr(rdi + code_address))?;
        // Where rax is, for which libgcc has number 0.
        a.mov(r11, qword_ptr(rdi))?;
        call_runtime(a, true, Routine::Landed.address(self.request.runtime))?;
        a.pop(r11)?;
        a.pop(r10)?;
        a.popfq()?;
        a.lea(rsp, qword_ptr(rsp + RED_ZONE))
    }

    /// `entry` = address of the thread's entry in the thread table, or off to `slow`.
    pub fn find_thread(&mut self, entry: usize, thread: usize, slow: CodeLabel) -> Asm {
        let mask = ((1i32 << self.request.layout.thread_bits) - 1) << THREAD_SHIFT;
        let threads = Routine::Threads.address(self.request.runtime);
        if self.request.layout.self_pointer {
            self.asm.a.mov(GPR64[thread], qword_ptr(0).fs())?;
        } else {
            self.asm.a.rdfsbase(GPR64[thread])?;
        }
        self.asm.a.imul_3(GPR64[entry], GPR64[thread], HASH_FACTOR as i32)?;
        self.asm.a.shr(GPR64[entry], 32 - THREAD_SHIFT as i32)?;
        self.asm.a.and(GPR32[entry], mask)?;
        self.asm.rip_relative(Code::Add_r64_rm64, GPR64[entry], threads)?;
        // Owners are stored complemented: a thread whose first TLS word is 0, as Go's are, matches no free entry.
        self.asm.a.not(GPR64[thread])?;
        self.asm.a.cmp(at(entry, THREAD_OWNER), GPR64[thread])?;
        self.asm.a.jne(slow)
    }

    /// `block` = that of the thread's `entry`; or off to `wiped`, in a child that a handler of the thread's has forked since the owner was
    /// looked at.
    pub fn load_block(&mut self, block: AsmRegister64, entry: usize, wiped: CodeLabel) -> Asm {
        let a = &mut self.asm.a;
        a.mov(block, at(entry, THREAD_BLOCK))?;
        a.test(block, block)?;
        a.je(wiped)
    }

    /// Finds the thread and does the steps of the entry. Leaves the thread's entry in its register.
    fn entry(&mut self, frame: &Frame) -> Asm {
        let payload = &self.request.payload;
        self.find_thread(frame.entry, frame.block, self.labels.slow)?;
        self.asm.a.set_label(&mut self.labels.resume)?;
        if payload.needs().block {
            self.load_block(GPR64[frame.block], frame.entry, self.labels.slow)?;
        }
        payload.entry.iter().try_for_each(|step| self.entry_step(step, frame))?;
        // A label may follow at once, and needs an instruction of its own.
        self.asm.a.zero_bytes()
    }

    /// `to` = the thread's entry by way of the runtime, 0 when the thread has none. Needs the red zone out of the way.
    pub fn resolve(&mut self, to: usize) -> Asm {
        let resolve = Routine::Resolve.address(self.request.runtime);
        let a = &mut self.asm.a;
        a.push(r11)?;
        call_runtime(a, true, resolve)?;
        a.mov(GPR64[to], r11)?;
        a.pop(r11)?;
        a.test(GPR64[to], GPR64[to])
    }

    /// Finds the thread's entry where the hash did not lead, or counts for a thread that has none; and for any, if there is no stack to find it.
    fn entry_slow(&mut self, frame: &Frame) -> Asm {
        self.asm.a.set_label(&mut self.labels.slow)?;
        if matches!(self.request.stack, Stack::Enough | Stack::AskedInGo) {
            frame.skip_red_zone(&mut self.asm.a)?;
            self.resolve(frame.entry)?;
            frame.unskip_red_zone(&mut self.asm.a)?;
            self.asm.a.jne(self.labels.resume)?;
        }
        self.entry_shared(frame.entry, Some(self.labels.known), self.labels.plain)
    }

    /// The steps of the entry where there is no block, and on to where the call is `followed`, if it can be, or to where it is `not`.
    fn entry_shared(&mut self, scratch: usize, followed: Option<CodeLabel>, not: CodeLabel) -> Asm {
        let payload = &self.request.payload;
        let records = if followed.is_some() { BLOCK_RING_LOST } else { BLOCK_UNRECORDED };
        payload.entry.iter().try_for_each(|step| self.entry_step_shared(step, records, scratch))?;
        let next = match (payload.followed, followed) {
            (Some(call), Some(next)) if call.follows_all() => next,
            (Some(call), _) => {
                self.count_shared(call.lost, scratch)?;
                not
            }
            (None, _) => not,
        };
        self.asm.a.jmp(next)
    }

    /// Goes on where Go has left so much of the stack as a detour needs, or off to `scarce`.
    pub(super) fn ask_for_room(&mut self, scarce: CodeLabel) -> Asm {
        match self.request.stack {
            Stack::AskedInGo => {
                goroutine::ask_for_room(&mut self.asm.a, super::bodies::room(self.request), scarce)
            }
            Stack::Enough | Stack::None | Stack::NoneInGo => Ok(()),
        }
    }
}
