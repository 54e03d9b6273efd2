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
//! # What is kept
//!
//! Only general registers and the arithmetic flags are ever clobbered, and those are saved unless liveness proved
//! them dead. Flags are saved by `lahf`/`seto` and restored by `add al, 127`/`sahf`: `popf` costs 9 ns. The red zone is
//! skipped before anything is pushed, with `lea`, which leaves the flags alone. Counters are incremented by one
//! instruction, so a signal handler on the same thread never loses one; return instances are reserved before they are filled.

use super::{
    emit::{Assembled, Assembler, GPR32, GPR64, at, number::*, unencodable},
    frame::{Frame, RED_ZONE},
    frames,
    liveness::{Liveness, liveness},
    narrow::Narrow,
    relocate,
    runtime::Routine,
};
use crate::detour::*;
use crate::frames::{Place, Point};
use crate::payload::*;
use alloc::{borrow::ToOwned, string::String, vec::Vec};
use iced_x86::{Code, IcedError, code_asm::*};

pub(super) type Asm = Result<(), IcedError>;

/// Registers that carry integer arguments, in order.
pub(super) const ARGUMENTS: [usize; 6] = [RDI, RSI, RDX, RCX, R8, R9];

pub(super) fn detour(bits: u32, request: &DetourRequest<'_>) -> Emitted<Detour> {
    // The length of the displaced code can depend on where it lands, and where it lands on the code before it: two
    // rounds settle it, since only the first one guesses. The same goes for the return point, which 32-bit code names by its
    // address.
    let (mut displaced_at, mut point_at) = (request.address, request.address);
    for _ in 0..4 {
        let relocated = relocate::relocate(bits, &request.displaced, request.original, displaced_at)?;
        let mut template = Template::new(bits, request, &relocated.code, point_at)?;
        match bits {
            64 => template.write(),
            _ => Narrow(&mut template).write(),
        }
        .map_err(unencodable)?;
        let (assembled, labels) = template.finish()?;
        let landed = assembled.address_of(&labels.displaced)?;
        let point = match request.payload.followed {
            Some(_) => assembled.address_of(&labels.return_point)?,
            None => point_at,
        };
        if (landed, point) == (displaced_at, point_at) {
            return finished(bits, request, &relocated.places, &assembled, &labels);
        }
        (displaced_at, point_at) = (landed, point);
    }
    Err(crate::Reason::OutOfReach)
}

fn finished(
    bits: u32,
    request: &DetourRequest<'_>,
    places: &[(u64, u32)],
    assembled: &Assembled,
    labels: &Labels,
) -> Emitted<Detour> {
    let displaced = assembled.offset_of(&labels.displaced)?;
    let mut places: Vec<_> = places.iter().map(|&(original, at)| (original, displaced + at)).collect();
    places.push((request.displaced.end(), assembled.offset_of(&labels.back)?));
    let mut comments = Vec::new();
    let mut comment = |label: &CodeLabel, text: &str| -> Emitted<()> {
        comments.push((assembled.offset_of(label)?, String::from(text)));
        Ok(())
    };
    comment(&labels.displaced, "displaced instructions")?;
    comment(&labels.back, "back to the first instruction that stays")?;
    if !request.payload.needs_no_thread() {
        comment(&labels.resume, "the thread's memory is known")?;
        comment(&labels.slow, "the thread is not where its hash says")?;
    }
    let mut return_point = None;
    if request.payload.followed.is_some() {
        return_point = Some(assembled.offset_of(&labels.return_point)?);
        comment(&labels.return_point, "return point: the function is done")?;
        comment(&labels.going_home, "the caller's return address is back in its slot")?;
    }
    comments.sort_by_key(|c| c.0);
    let code = assembled.code().to_owned();
    let frames = match request.tells {
        true => frames_of(bits, request.displaced.start, &code, &places, return_point),
        false => Vec::new(),
    };
    Ok(Detour { code, places, return_point, frames, comments })
}

fn frames_of(
    bits: u32,
    site: u64,
    code: &[u8],
    places: &[(u64, u32)],
    return_point: Option<u32>,
) -> Vec<Point> {
    let (Some(first), Some(back)) = (places.first(), places.last()) else { return Vec::new() };
    let returns = return_point.map(|offset| (offset, Place::Caller));
    let roots: Vec<_> = [(0, Place::Site(0))].into_iter().chain(returns).collect();
    let own = frames::points(bits, code, &roots, &(first.1..back.1 + 1));
    frames::join(&own, frames::displaced(bits, code, places, site))
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
    relocated: &'a [u8],
}

impl<'a> Template<'a> {
    fn new(
        bits: u32,
        request: &'a DetourRequest<'a>,
        relocated: &'a [u8],
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
        };
        Ok(Self { request, relocated, asm, labels, return_point, bits })
    }

    fn finish(self) -> Emitted<(Assembled, Labels)> {
        Ok((self.asm.finish()?, self.labels))
    }

    fn write(&mut self) -> Asm {
        let payload = &self.request.payload;
        payload.hooks.iter().try_for_each(|hook| self.hook(hook))?;
        if payload.needs_no_thread() {
            return self.displaced();
        }
        let frame = Frame::choose(64, payload, self.entry_liveness());
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
                let later = self.follow(&frame, &followed)?;
                self.return_part(&followed)?;
                self.displaced()?;
                self.not_followed(&frame, &followed, later)?;
            }
        }
        self.entry_slow(&frame)
    }

    /// Registers that a step reads are not dead, whatever the function does with them.
    pub(super) fn entry_liveness(&self) -> Liveness {
        let faults = self.request.layout.handles_faults();
        let mut live = liveness(self.bits, self.request.site, self.request.displaced.start, faults);
        for register in self.request.operands.iter().flat_map(|operand| operand.registers()) {
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
        self.asm.bytes(self.relocated)?;
        self.asm.a.set_label(&mut self.labels.back)?;
        self.asm.a.jmp(self.request.displaced.end())
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
                a.call(translate)?;
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
                    a.call(translate)?;
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
        a.call(Routine::Landed.address(self.request.runtime))?;
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

    /// Finds the thread and does the steps of the entry. Leaves the thread's entry in its register.
    fn entry(&mut self, frame: &Frame) -> Asm {
        let payload = &self.request.payload;
        self.find_thread(frame.entry, frame.block, self.labels.slow)?;
        self.asm.a.set_label(&mut self.labels.resume)?;
        if payload.needs().block {
            self.asm.a.mov(GPR64[frame.block], at(frame.entry, THREAD_BLOCK))?;
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
        a.call(resolve)?;
        // In the place of where it returned to: nothing that leads to us stays behind on the stack.
        a.mov(qword_ptr(rsp - 8), r11)?;
        a.mov(GPR64[to], r11)?;
        a.pop(r11)?;
        a.test(GPR64[to], GPR64[to])
    }

    /// Finds the thread's entry where the hash did not lead, or counts for a thread that has none.
    fn entry_slow(&mut self, frame: &Frame) -> Asm {
        let payload = &self.request.payload;
        self.asm.a.set_label(&mut self.labels.slow)?;
        frame.skip_red_zone(&mut self.asm.a)?;
        self.resolve(frame.entry)?;
        frame.unskip_red_zone(&mut self.asm.a)?;
        self.asm.a.jne(self.labels.resume)?;
        payload.entry.iter().try_for_each(|step| self.entry_step_shared(step, frame.entry))?;
        let next = match payload.followed {
            Some(followed) if followed.follows_all() => self.labels.known,
            Some(followed) => {
                self.count_shared(followed.lost, frame.entry)?;
                self.labels.plain
            }
            None => self.labels.plain,
        };
        self.asm.a.jmp(next)
    }
}
