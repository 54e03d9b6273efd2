//! The return where nothing on the stack is changed: the note at the entry, and what is done where the function is left.

use super::{
    detour::{Asm, Template},
    emit::{at, number::*},
    follow::{Later, depth, restore, save},
    frame::{Frame, red_zone},
    goroutine::ask_for_stack,
    steps::{Stacked, read_clock},
};
use crate::detour::*;
use crate::payload::*;
use iced_x86::{IcedError, code_asm::*};

/// What stands in an instance for a noted call, as an operand that is sign-extended.
fn mark(probe: u32) -> i32 {
    note(probe) as i32
}

impl Template<'_> {
    /// Notes the call in a return instance, and goes on.
    pub(super) fn note(
        &mut self,
        frame: &Frame,
        followed: &Followed,
        noted: Noted,
    ) -> Result<Later, IcedError> {
        let instance = frame.x;
        let later = self.reserve(frame)?;
        let a = &mut self.asm.a;
        a.mov(at(instance, RETURN_POINT), mark(noted.probe))?;
        if followed.needs().entered {
            read_clock(a)?;
            a.mov(at(instance, RETURN_ENTERED), rax)?;
        }
        frame.restore(a)?;
        Ok(later)
    }

    /// Where a call cannot be noted, since there is too little of the stack: none that was left by a panic is taken for it where it is left.
    pub(super) fn forget_note(&mut self) -> Asm {
        let mut out = self.asm.a.create_label();
        ask_for_stack(&mut self.asm.a, out)?;
        self.instance_of_slot([R12, R13], 0, out)?;
        let a = &mut self.asm.a;
        a.cmp(at(R12, RETURN_OLDER), 0)?;
        a.jne(out)?;
        a.mov(at(R12, RETURN_POINT), 0)?;
        a.set_label(&mut out)?;
        a.zero_bytes()
    }

    /// Where a call is left: the steps, if it is noted.
    ///
    /// Everything is saved: what the function leaves behind is for whom it goes to.
    pub(super) fn left(&mut self, followed: &Followed, noted: Noted) -> Asm {
        let call = followed.needs().is_of_the_call();
        let red_zone = red_zone(64, self.request.stack);
        let depth = depth(followed) + red_zone;
        let stacked = Stacked::above(depth, red_zone);

        self.asm.a.set_label(&mut self.labels.left)?;
        self.asm.a.zero_bytes()?;
        self.ask_for_room(match followed.way {
            Way::Left(_) => self.labels.displaced,
            _ => self.labels.exit,
        })?;
        let a = &mut self.asm.a;
        if red_zone > 0 {
            a.lea(rsp, qword_ptr(rsp - red_zone))?;
        }
        save(a, followed)?;
        if noted.by == Identity::Goroutine {
            // A function that ends a thread's being Go's (`runtime.dropm`) leaves without one.
            a.test(r14, r14)?;
            a.je(self.labels.leaving)?;
        }
        self.instance_of_slot([RCX, RDX], depth, self.labels.elsewhere)?;
        let a = &mut self.asm.a;
        a.cmp(at(RCX, RETURN_POINT), mark(noted.probe))?;
        a.jne(self.labels.elsewhere)?;
        a.cmp(at(RCX, RETURN_OLDER), 0)?;
        a.jne(self.labels.elsewhere)?;

        a.set_label(&mut self.labels.over)?;
        if followed.needs().entered {
            a.mov(r8, at(RCX, RETURN_ENTERED))?;
        }
        a.mov(at(RCX, RETURN_POINT), 0)?;
        self.find_thread(RDX, RCX, self.labels.unknown)?;
        let a = &mut self.asm.a;
        a.set_label(&mut self.labels.found)?;
        self.load_block(if call { rdi } else { rdx }, RDX, self.labels.unknown)?;
        let block = if call { RDI } else { RDX };
        let mut steps = followed.steps.iter().peekable();
        while let Some(step) = steps.next() {
            self.return_step(step, block, stacked, steps.peek().is_none())?;
        }
        let a = &mut self.asm.a;
        a.set_label(&mut self.labels.leaving)?;
        a.zero_bytes()?;
        restore(a, followed)?;
        if red_zone > 0 {
            a.lea(rsp, qword_ptr(rsp + red_zone))?;
        }
        Ok(())
    }

    /// The ways out of `left`: a thread or a note that is not at hand, or none at all.
    pub(super) fn left_otherwise(&mut self, followed: &Followed, noted: Noted) -> Asm {
        let depth = depth(followed) + red_zone(64, self.request.stack);
        self.asm.a.set_label(&mut self.labels.unknown)?;
        self.resolve(RDX)?;
        self.asm.a.jne(self.labels.found)?;
        // A thread without memory of its own.
        followed.steps.iter().try_for_each(|step| self.return_step_shared(step))?;
        let a = &mut self.asm.a;
        a.jmp(self.labels.leaving)?;
        a.set_label(&mut self.labels.elsewhere)?;
        self.older_instance(depth, |a| a.mov(r11, i64::from(mark(noted.probe))))?;
        let a = &mut self.asm.a;
        a.jne(self.labels.over)?;
        a.jmp(self.labels.leaving)
    }
}
