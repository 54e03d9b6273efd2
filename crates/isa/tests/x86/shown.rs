//! What is told of each instruction of a detour (hard case W1): a handler that interrupts it there is shown the program's registers.

use crate::asked;
use crate::detours::*;
use crate::exits::{PROBE, goroutine, noted_by, probed};
use crate::machine::*;
use crate::processor::Random;
use crate::stackless::NEARBY;
use crate::stepping::{Step, step};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, RflagsBits};
use trapless_isa::detour::*;
use trapless_isa::frames::*;
use trapless_isa::payload::*;

/// OF, SF, ZF, AF, PF, CF.
const ARITHMETIC: u64 = 0x8d5;

/// What an arena tells: pieces of code with where they stand, their sites and their points.
pub struct Told(Vec<(u64, u64, Vec<Point>)>);

impl Told {
    fn of(machine: &Machine, layout: &Layout, probed: &[Probed<'_>]) -> Told {
        let runtime = machine.runtime(layout);
        let detours = probed.iter().map(|probed| (probed.detour, probed.at, probed.frames.clone()));
        Told([(ARENA, 0, runtime.frames)].into_iter().chain(detours).collect())
    }

    /// The site and the point of an instruction.
    fn point(&self, ip: u64) -> Option<(u64, Point)> {
        let (start, site, points) = self.0.iter().rev().find(|piece| piece.0 <= ip)?;
        let known = points.partition_point(|point| start + u64::from(point.offset) <= ip);
        Some((*site, *points.get(known.checked_sub(1)?)?))
    }
}

/// What a handler is shown: registers and flags, of which some are lost.
#[derive(Clone)]
struct Shown {
    ip: Option<u64>,
    registers: [Option<u64>; 16],
    flags: Option<u64>,
}

impl Shown {
    /// What was saved below `sp` is put back.
    fn restore(&mut self, saved: &Saved, sp: u64, step: &Step) {
        let [rax, ..] = self.registers;
        let word = |at: u8| step.word(sp - 8 * u64::from(at));
        let of_lahf = |rax: u64| {
            let overflow = if rax & 0xff != 0 { 0x800 } else { 0 };
            rax >> 8 & 0xd5 | overflow
        };
        match saved.0[SAVED_FLAGS] {
            0 => {}
            SAVED_LOST => self.flags = None,
            SAVED_IN_RAX => self.flags = rax.map(of_lahf),
            SAVED_IN_AH => self.flags = rax.map(|rax| rax >> 8 & 0xd5 | step.flags & 0x800),
            at => self.flags = Some(of_lahf(word(at))),
        }
        for (number, &at) in saved.0.iter().enumerate().filter(|&(number, _)| number != SAVED_FLAGS) {
            match at {
                0 => {}
                SAVED_LOST => self.registers[number] = None,
                SAVED_IN_XMM15 => self.registers[number] = Some(step.xmm15),
                at => self.registers[number] = Some(word(at)),
            }
        }
    }
}

/// What is shown of a step in an arena; `None` where nothing is known.
fn shown(told: &Told, step: &Step) -> Option<Shown> {
    let mut shown =
        Shown { ip: None, registers: step.registers.map(Some), flags: Some(step.flags & ARITHMETIC) };
    let (mut ip, mut sp) = (step.ip, step.registers[4]);
    loop {
        let (site, point) = told.point(ip)?;
        let (place, depth) = point.stands?;
        let at = sp.wrapping_add_signed(depth.into());
        shown.restore(&point.saved, at, step);
        match place {
            Place::Routine | Place::Body => (ip, sp) = (step.word(at), at + 8),
            Place::Site(behind) | Place::SiteForHandlers(behind) => {
                shown.ip = Some(site + u64::from(behind));
            }
            Place::Switched => (ip, sp) = (step.word(at), step.word(at + 8)),
            Place::Caller | Place::CallerForHandlers => shown.ip = Some(EXIT),
        }
        shown.registers[4] = Some(at);
        if !matches!(place, Place::Routine | Place::Body | Place::Switched) {
            return Some(shown);
        }
    }
}

/// The registers, by number, and flags that code writes: a copy of it may find anything in them.
fn written(code: &[u8]) -> (u16, u64) {
    let mut info = InstructionInfoFactory::new();
    let mut all = (0, 0);
    for instruction in &mut Decoder::new(64, code, DecoderOptions::NONE) {
        let used = info.info(&instruction).used_registers().iter();
        let written = used.filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead));
        let registers =
            written.map(|used| used.register().full_register()).filter(|register| register.is_gpr());
        all.0 |= registers.fold(0, |all, register| all | 1 << register.number());
        let flags = instruction.rflags_modified();
        let bits = [
            (RflagsBits::OF, 0x800),
            (RflagsBits::SF, 0x80),
            (RflagsBits::ZF, 0x40),
            (RflagsBits::AF, 0x10),
            (RflagsBits::PF, 4),
            (RflagsBits::CF, 1),
        ];
        all.1 |= bits.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bit)| bit).sum::<u64>();
    }
    (all.0 & !(1 << 4), all.1)
}

/// Compares what is shown at each step in the arena with what the instruction found that it stands for, without a probe. How many
/// steps there were, and of how many nothing is known.
fn compare(
    told: &Told,
    plain: &[Step],
    probed: &[Step],
    writes: (u16, u64),
    context: &str,
) -> (usize, usize) {
    let inside: Vec<&Step> =
        probed.iter().filter(|step| (ARENA..ARENA + ARENA_SIZE).contains(&step.ip)).collect();
    let mut unknown = 0;
    for step in &inside {
        let Some(shown) = shown(told, step) else {
            unknown += 1;
            continue;
        };
        let context = format!("{context}, at {:#x} for {:x?}", step.ip, shown.ip);
        let real = plain.iter().find(|plain| Some(plain.ip) == shown.ip);
        let real = real.unwrap_or_else(|| panic!("{context}: {:x?}", shown.ip));
        for (number, (shown, real)) in shown.registers.iter().zip(real.registers).enumerate() {
            let is_right = shown.is_none_or(|shown| shown == real) || writes.0 & 1 << number != 0;
            assert!(is_right, "{context}: register {number}: {shown:x?} for {real:x}");
        }
        let real = real.flags & ARITHMETIC;
        let is_right = shown.flags.is_none_or(|shown| (shown ^ real) & !writes.1 == 0);
        assert!(is_right, "{context}: flags {:x?} for {real:x}", shown.flags);
    }
    (inside.len(), unknown)
}

/// What may stand in the thread table where a thread looks for itself.
#[derive(Clone, Copy, Debug)]
enum Table {
    Empty,
    /// Whoever was here first is about to claim its entry.
    Reserved,
    /// Another's.
    Taken,
    /// The thread's own, which it shares with a child.
    Shared,
    /// There is no block left.
    Exhausted,
}

impl Table {
    const ALL: [Table; 5] = [Table::Empty, Table::Reserved, Table::Taken, Table::Shared, Table::Exhausted];

    /// `thread` is a thread pointer that is not 0.
    fn prepare(self, machine: &Machine, layout: &Layout, thread: u64) {
        machine.forget();
        let first = Machine::entry_of(layout, thread);
        match self {
            Table::Empty => {}
            Table::Reserved => machine.set(first, THREAD_RESERVED),
            Table::Taken => machine.set(first, !0x1230),
            Table::Shared => {
                machine.set(first, !thread - 1);
                machine.set(first + u64::from(THREAD_BLOCK), layout.blocks + layout.block_stride);
                machine.set(first + u64::from(THREAD_CHILDREN + THREAD_BLOCK), layout.blocks);
            }
            Table::Exhausted => machine.set(layout.block_cursor, layout.block_count.into()),
        }
    }
}

/// Some payloads, others each time.
fn some_payloads(random: &mut Random) -> Vec<Payload> {
    let all = all_payloads().into_iter().filter(|payload| payload.hooks.is_empty());
    all.skip(random.next() as usize % 9).step_by(9).collect()
}

/// What was looked at.
#[derive(Default)]
pub struct Looked {
    steps: usize,
    unknown: usize,
    /// Registers, by number, and flags that hold nothing, and may be shown as anything.
    free: (u16, u64),
    /// Bodies and their routines.
    pieces: Vec<(u64, Vec<Point>)>,
}

impl Looked {
    /// What else stands in the arena.
    pub fn with(mut self, piece: (u64, Vec<Point>)) -> Self {
        self.pieces.push(piece);
        self
    }

    /// Looks at all steps of a function at [`FUNCTION`], with each way that a thread may find its entry. `goroutine` is what r14 is to hold.
    pub fn at_each(
        &mut self,
        machine: &Machine,
        random: &mut Random,
        layout: &Layout,
        (code, probed): (&[u8], &[Probed<'_>]),
        goroutine: Option<u64>,
        context: &str,
    ) {
        let start = |random: &mut Random| {
            let mut start = machine.random(random);
            start.registers[14] = goroutine.unwrap_or(start.registers[14]);
            start
        };
        self.from(machine, random, layout, (code, probed), start, context);
    }

    /// The same, from states that `start` makes.
    fn from(
        &mut self,
        machine: &Machine,
        random: &mut Random,
        layout: &Layout,
        (code, probed): (&[u8], &[Probed<'_>]),
        start: impl Fn(&mut Random) -> State,
        context: &str,
    ) {
        let mut told = Told::of(machine, layout, probed);
        told.0.extend(self.pieces.iter().map(|(at, points)| (*at, 0, points.clone())));
        for table in Table::ALL {
            let thread = Machine::thread(random.next() % 8);
            table.prepare(machine, layout, thread);
            // Twice: a thread's first hit goes another way.
            for round in 0..2 {
                let start = start(random);
                let memory = machine.read(SLOT - 1024, 2048);
                let run = || {
                    machine.write(SLOT - 1024, &memory);
                    machine.set(SLOT, EXIT);
                    step(machine, FUNCTION, thread, &start)
                };
                let plain = run();
                probed.iter().for_each(Probed::arm);
                let armed = run();
                probed.iter().for_each(Probed::disarm);
                let context = format!("{context}, {table:?}, round {round}");
                let writes = written(code);
                let lost = (writes.0 | self.free.0, writes.1 | self.free.1);
                let (steps, unknown) = compare(&told, &plain, &armed, lost, &context);
                self.steps += steps;
                self.unknown += unknown;
            }
        }
    }

    /// That there was much to look at, and hardly anything is unknown.
    #[track_caller]
    pub fn tell(self) {
        let Looked { steps, unknown, .. } = self;
        assert!(steps > 50_000 && unknown * 50 < steps, "{unknown} of {steps} steps are unknown");
    }
}

#[test]
fn w1_at_every_instruction_of_a_detour_a_handler_is_shown_the_programs_registers() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(31);
    let mut looked = Looked::default();
    for &(name, prologue, epilogue) in PROLOGUES {
        let code = [prologue, epilogue, &[0xc3][..]].concat();
        for payload in some_payloads(&mut random) {
            let layout = layout(random.next().is_multiple_of(2));
            let probed = [Probed::new(&machine, &code, FUNCTION, detour_at(0), &layout, payload)];
            let context = format!("{name}, {payload:?}");
            looked.at_each(&machine, &mut random, &layout, (&code, &probed), None, &context);
        }
    }
    looked.tell();
}

#[test]
fn w1_so_it_is_where_exits_are_probed() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(32);
    let mut looked = Looked::default();
    for (&(name, prologue, epilogue), by) in
        PROLOGUES.iter().flat_map(|prologue| [(prologue, Identity::Slot), (prologue, Identity::Goroutine)])
    {
        // Room in front of the exit.
        let mut code = [prologue, &[0x0f, 0x1f, 0x44, 0, 0], epilogue, &[0xc3]].concat();
        let exit = code.len() - 1;
        code.resize(code.len() + 7, 0xcc);
        for payload in some_payloads(&mut random) {
            let Some(Followed { steps, .. }) = payload.followed else { continue };
            let layout = layout(random.next().is_multiple_of(2));
            let payloads = noted_by(by, payload.entry, steps, PROBE);
            let probed = probed(&machine, &code, (FUNCTION, exit), detour_at(0), &layout, payloads);
            let end = SLOT + 8 * (random.next() % (1 << 27));
            let goroutine = (by == Identity::Goroutine).then(|| goroutine(&machine, random.next() % 8, end));
            let context = format!("{name}, {by:?}, {payload:?}");
            looked.at_each(&machine, &mut random, &layout, (&code, &probed), goroutine, &context);
        }
    }
    looked.tell();
}

#[test]
fn w1_so_it_is_where_the_goroutine_is_asked_for_room() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(34);
    let mut looked = Looked { free: (1 << 12 | 1 << 13, ARITHMETIC), ..Looked::default() };
    for (name, code, exit) in asked::functions() {
        for payload in some_payloads(&mut random).into_iter().filter(asked::does_something) {
            let layout = layout(random.next().is_multiple_of(2));
            let probes = asked::probed(&machine, (&code, exit), &layout, payload);
            for (goroutine, _) in asked::Goroutine::ALL {
                let context = format!("{name}, {goroutine:?}, {payload:?}");
                let at = Some(goroutine.address(&machine));
                looked.at_each(&machine, &mut random, &layout, (&code, &probes), at, &context);
            }
        }
    }
    looked.tell();
}

#[test]
fn w1_so_it_is_where_there_is_no_stack_to_save_anything() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(33);
    let mut looked = Looked { free: (1 << 12 | 1 << 13, ARITHMETIC), ..Looked::default() };
    let begins_with_flags = |name: &&str| name.starts_with("adc") || name.contains("pushf");
    for _ in 0..60 {
        for &(name, prologue, epilogue) in PROLOGUES.iter().filter(|(name, ..)| !begins_with_flags(name)) {
            let code = [prologue, epilogue, &[0xc3][..]].concat();
            let layout = layout(random.next().is_multiple_of(2));
            let Some(probed) = Probed::without_stack(&machine, &code, &layout) else { continue };
            looked.at_each(&machine, &mut random, &layout, (&code, &[probed]), None, name);
        }
    }
    looked.tell();
}

#[test]
fn w1_so_it_is_where_not_even_a_register_is_free() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(35);
    let mut looked = Looked::default();
    let layout = layout(true);
    for nearby in NEARBY.iter().cycle().take(1500) {
        let (code, probed) = nearby.probed(&machine, &layout);
        machine.write(FUNCTION, code);
        let start = |random: &mut Random| nearby.start(&machine, random);
        looked.from(&machine, &mut random, &layout, (code, &[probed]), start, nearby.name);
    }
    looked.tell();
}
