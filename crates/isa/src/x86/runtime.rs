//! The routines that the detours of one arena share, in both modes: all that is too rare or too long to stand in every detour.
//!
//! | routine | in | out |
//! |---|---|---|
//! | resolve | – | second: the thread's entry of the thread table, or 0 |
//! | claim | first: stack slot | second: a return instance for its call, or 0 |
//! | leave | first: stack slot, second: return point | second: the instance of its call, or 0 if the slot holds the way home |
//! | share | first: the call to come or 0 | second: the flag to mark a child by, or 0 if nothing is shared |
//! | join | first: the call that a child comes back from | the same |
//! | unshare | – | second: undefined |
//! | translate | first: code address, second: stack pointer at the entry | first: the real code address |
//! | landed | first: where an unwinder's context has its code address, second: the place of its exception | both: undefined |
//!
//! First and second are r10 and r11; in 32-bit mode, where the result is always in eax, they are eax and edx.
//! Each keeps every register but its result, changes the flags, needs little stack, makes no system call, waits for nothing, and may be
//! interrupted by a signal handler that runs it again. What they do is told in [`crate::routines`], the memory they work
//! on in [`crate::detour::memory`].

use super::emit::number::*;
use super::facts::{I386, X86_64};
use super::frames;
use super::lower::{Lower, MARK};
use crate::assemble::Assemble;
use crate::detour::*;
use crate::frames::Place;
use crate::routines::{self, Instances, LOCALS, Missing, Threads};
use alloc::vec::Vec;
use iced_x86::code_asm::*;

/// Where the routines are, by index into [`Runtime::routines`].
#[derive(Clone, Copy)]
pub(super) enum Routine {
    /// Address of a 64-bit constant: the thread table's address. No routine, and in 32-bit mode not there.
    Threads,
    /// The same for the shadow blocks.
    Shadows,
    Resolve,
    Claim,
    Leave,
    Translate,
    Share,
    Join,
    Unshare,
    Landed,
}

impl Routine {
    pub fn address(self, runtime: &Runtime) -> u64 {
        runtime.routines[self as usize]
    }
}

/// Who plays which role in a mode.
struct Roles {
    threads: Threads<usize>,
    instances: Instances<usize>,
    /// The call's return address, or its return point. Not one of `instances`.
    caller: usize,
    /// A system call that makes a child. Not one of `threads`.
    call: usize,
    first: usize,
    second: usize,
    /// Where results are.
    result: usize,
    /// An unwinder's address and stack pointer.
    looked_up: (usize, usize),
    /// What `resolve`, `claim` and `leave` save.
    saved: &'static [usize],
    /// Saved by functions for their callers, lowest on the stack first; and the second argument, where it is in a register.
    kept: &'static [usize],
    /// What `translate` saves besides.
    lost: &'static [usize],
    /// From the stack pointer to the code address in LLVM's `Registers_x86_64` and `Registers_x86`, in words.
    registers_apart: i32,
}

static WIDE: Roles = Roles {
    threads: Threads { pointer: RDI, owner: R8, entry: R11, index: RSI, left: RCX, x: RAX, y: RDX },
    instances: Instances { slot: R10, instance: R11, page: RCX, index: RDX, left: RSI, scratch: RAX },
    caller: RDI,
    call: R10,
    first: R10,
    second: R11,
    result: R11,
    looked_up: (R8, R9),
    saved: &[RAX, RCX, RDX, RSI, RDI, R8],
    kept: &[RSI, RBX, RBP, R12, R13, R14, R15],
    lost: &[RAX, RCX, RDX, R8, R9, R11],
    registers_apart: X86_64.contexts[1] as i32,
};

static NARROW: Roles = Roles {
    threads: Threads { pointer: RDI, owner: RDI, entry: RBX, index: RSI, left: RCX, x: RAX, y: RDX },
    instances: Instances { slot: RSI, instance: RDI, page: RCX, index: RDX, left: RBX, scratch: RAX },
    caller: RBP,
    call: RBP,
    first: RAX,
    second: RDX,
    result: RAX,
    looked_up: (RBP, RDX),
    saved: &[RCX, RDX, RBX, RSI, RDI, RBP],
    kept: &[RBX, RSI, RDI, RBP],
    lost: &[RCX, RDX],
    registers_apart: I386.contexts[1] as i32,
};

pub(super) fn runtime(bits: u32, address: u64, layout: &Layout) -> Emitted<Runtime> {
    let roles = if bits == 64 { &WIDE } else { &NARROW };
    let mut a = Lower::new(bits, address)?;
    let places = [(); 10].map(|()| a.label());
    for (routine, constant) in
        [(Routine::Threads, layout.threads), (Routine::Shadows, layout.shadow_block(0))]
    {
        a.bind(places[routine as usize]);
        a.put(|a, wide| if wide { a.dq(&[constant]) } else { Ok(()) });
    }
    a.bind(places[Routine::Resolve as usize]);
    resolve(&mut a, layout, roles);
    a.bind(places[Routine::Claim as usize]);
    claim(&mut a, layout, roles);
    a.bind(places[Routine::Leave as usize]);
    leave(&mut a, layout, roles);
    a.bind(places[Routine::Translate as usize]);
    translate(&mut a, layout, roles);
    a.bind(places[Routine::Share as usize]);
    share(&mut a, layout, roles, routines::share);
    a.bind(places[Routine::Join as usize]);
    share(&mut a, layout, roles, routines::join);
    a.bind(places[Routine::Unshare as usize]);
    unshare(&mut a, layout, roles);
    a.bind(places[Routine::Landed as usize]);
    landed(&mut a, layout, roles);
    let (code, routines) = a.finish(&places)?;
    let entry = |routine: Routine| (routines[routine as usize].wrapping_sub(address) as u32, Place::Routine);
    let counting = [Routine::Resolve, Routine::Claim, Routine::Leave];
    let others = [Routine::Translate, Routine::Share, Routine::Join, Routine::Unshare, Routine::Landed];
    let roots: Vec<_> = counting.into_iter().chain(others).map(entry).collect();
    let frames = frames::points(bits, Stack::Enough, &code, &roots, &[]);
    Ok(Runtime { code, routines, frames })
}

/// The roles of the routines that look for return instances in 64-bit mode.
pub(super) fn instances() -> Instances<usize> {
    WIDE.instances
}

fn save(a: &mut Lower, registers: &[usize]) {
    registers.iter().rev().for_each(|&register| a.push(register));
}

fn restore(a: &mut Lower, registers: &[usize]) {
    registers.iter().for_each(|&register| a.pop(register));
}

/// `entry` = that of the thread that runs, or 0 where it has no thread pointer.
fn own_entry(a: &mut Lower, layout: &Layout, roles: &Roles) {
    let [none, done] = [(); 2].map(|()| a.label());
    let r = &roles.threads;
    thread(a, layout, none);
    routines::resolve(a, layout, r, Missing::Claim);
    a.jump(done);
    a.bind(none);
    a.set(r.entry, 0);
    a.bind(done);
}

fn resolve(a: &mut Lower, layout: &Layout, roles: &Roles) {
    let r = &roles.threads;
    save(a, roles.saved);
    own_entry(a, layout, roles);
    a.copy(roles.result, r.entry);
    restore(a, roles.saved);
    a.put(|a, _| a.ret());
}

/// The thread's pointer and owner, or off to `none`.
fn thread(a: &mut Lower, layout: &Layout, none: usize) {
    let nobody = a.place(none);
    a.put(|a, wide| {
        if wide {
            a.rdfsbase(rdi)?;
            a.mov(r8, rdi)?;
            a.not(r8)?;
            a.test(rdi, rdi)?;
            return a.je(nobody);
        }
        a.mov(ecx, gs)?;
        a.cmp(ecx, u32::from(layout.selector))?;
        a.jne(nobody)?;
        a.mov(edi, dword_ptr(0).gs())?;
        // A control block points to itself.
        a.test(edi, edi)?;
        a.je(nobody)?;
        a.test(edi, 3)?;
        a.jne(nobody)?;
        a.cmp(dword_ptr(edi), edi)?;
        a.jne(nobody)
    });
}

/// `share` and `join`, which `tell` whether there is a child to be marked.
fn share(
    a: &mut Lower,
    layout: &Layout,
    roles: &Roles,
    tell: fn(&mut Lower, &Layout, &Threads<usize>, usize, usize),
) {
    let [no, done] = [(); 2].map(|()| a.label());
    save(a, roles.saved);
    a.copy(roles.call, roles.first);
    thread(a, layout, no);
    tell(a, layout, &roles.threads, roles.call, no);
    a.set(roles.result, MARK.into());
    a.jump(done);
    a.bind(no);
    a.set(roles.result, 0);
    a.bind(done);
    restore(a, roles.saved);
    a.put(|a, _| a.ret());
}

fn unshare(a: &mut Lower, layout: &Layout, roles: &Roles) {
    let done = a.label();
    save(a, roles.saved);
    thread(a, layout, done);
    routines::unshare(a, layout, &roles.threads, done);
    a.bind(done);
    restore(a, roles.saved);
    a.put(|a, _| a.ret());
}

fn claim(a: &mut Lower, layout: &Layout, roles: &Roles) {
    let r = &roles.instances;
    save(a, roles.saved);
    a.copy(r.slot, roles.first);
    let claim = a.label();
    if a.word() == 8 {
        a.set(roles.caller, 0);
        if_goroutine(a, claim);
    }
    a.load(roles.caller, r.slot, 0);
    a.bind(claim);
    routines::claim(a, layout, r, roles.caller);
    a.copy(roles.result, r.instance);
    restore(a, roles.saved);
    a.put(|a, _| a.ret());
}

/// Off to `then` where the slot stands for a goroutine's ([`goroutine_slot`]): it is no address then.
fn if_goroutine(a: &mut Lower, then: usize) {
    let then = a.place(then);
    a.put(|a, _| {
        a.test(r10, r10)?;
        a.js(then)
    });
}

fn leave(a: &mut Lower, layout: &Layout, roles: &Roles) {
    let [unknown, done] = [(); 2].map(|()| a.label());
    let r = &roles.instances;
    save(a, roles.saved);
    a.copy(r.slot, roles.first);
    a.copy(roles.caller, roles.second);
    routines::leave(a, layout, r, roles.caller, unknown);
    a.jump(done);
    a.bind(unknown);
    a.set(r.instance, 0);
    if a.word() == 8 {
        if_goroutine(a, done);
    }
    a.load(r.scratch, r.slot, 0);
    a.jump_if_not_equal(r.scratch, roles.caller, done);
    // The stack was moved to another place, behind everybody's back: there is no address to go to.
    a.put(|a, _| a.ud2());
    a.bind(done);
    a.copy(roles.result, r.instance);
    restore(a, roles.saved);
    a.put(|a, _| a.ret());
}

fn translate(a: &mut Lower, layout: &Layout, roles: &Roles) {
    let (address, stack) = roles.looked_up;
    let locals = (LOCALS * a.word()) as i32;
    save(a, roles.lost);
    save(a, roles.kept);
    a.address(RSP, RSP, -locals);
    a.copy(address, roles.first);
    a.copy(stack, roles.second);
    let kept = roles.kept.len() as u32;
    routines::translate(a, layout, &roles.instances, RSP, (address, stack), kept, roles.registers_apart);
    a.copy(roles.first, address);
    a.address(RSP, RSP, locals);
    restore(a, roles.kept);
    restore(a, roles.lost);
    a.put(|a, _| a.ret());
}

fn landed(a: &mut Lower, layout: &Layout, roles: &Roles) {
    let [unknown, told, nothing, done] = [(); 4].map(|()| a.label());
    let (r, instances, calls, is_end) = (&roles.threads, &roles.instances, roles.caller, roles.second);
    save(a, roles.saved);
    a.copy(instances.slot, roles.first);
    thread(a, layout, unknown);
    routines::ends_thread(a, [instances.slot, is_end, RSP, r.pointer], [r.x, r.left], told);
    a.jump(told);
    a.bind(unknown);
    a.set(is_end, 0);
    a.bind(told);
    a.push(is_end);
    routines::landed(a, layout, instances, calls, nothing);
    a.pop(r.x);
    a.jump_if_not_zero(r.x, done);
    a.copy(roles.call, calls);
    own_entry(a, layout, roles);
    routines::count_left(a, layout, r.entry, roles.call, [r.x, r.y, r.left]);
    a.jump(done);
    a.bind(nothing);
    a.pop(r.x);
    a.bind(done);
    restore(a, roles.saved);
    a.put(|a, _| a.ret());
}
