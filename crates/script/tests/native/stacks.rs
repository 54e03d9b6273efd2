//! Walks of stacks, beside the reference: with rules and stacks at random, damaged ones, and such as end where memory does.

use crate::machine::{ARGUMENTS, Hit, MACHINE, Mapping, Ready, SHARED, convention, reads_memory};
use trapless_isa::Machine;
use trapless_script::ir::{
    Body, BodyId, Expression, LocalId, MessageId, Part, PartKind, Program, Scalar, StackWalk, Statement,
};
use trapless_script::native::Moment;
use trapless_wire::unwind::{
    Area, Base, Facts, Method, Module, Place, Registers, Rule, Slot, Table, Tables, walk,
};
use trapless_wire::{Incomplete, KeptStacks, WordsMut};

const SP: usize = convention().stack_pointer as usize;
const FP: usize = convention().frame_pointer as usize;
const BP: usize = convention().base_pointer as usize;

/// What holds of all stacks of the machine.
const FACTS: Facts = match MACHINE {
    Machine::X86_64 => Facts::X86_64,
    Machine::PowerPc64Le => Facts::POWERPC64LE,
    _ => Facts::AARCH64,
};

/// Where the code is that the stacks tell of. Nothing is ever read there.
const CODE: u64 = 0x7000_0000_0000;

/// A program of one body, that takes a stack.
pub fn program(frames: u8, by: StackWalk) -> Program {
    let number = Part::Word(Expression::Local(LocalId(0)));
    let code = vec![
        Statement::Stack { into: LocalId(0), frames, by },
        Statement::Emit { message: MessageId(0), parts: vec![number] },
    ];
    let body = Body { locals: vec![Scalar::Int], scratch: 0, code };
    Program { bodies: vec![body], messages: vec![vec![PartKind::Word]], ..Program::default() }
}

/// Native code that walks stacks with an area.
pub fn ready(frames: u8, by: StackWalk, moment: Moment, area: &[u8]) -> Ready {
    let ready = Ready::new(&program(frames, by), &[(BodyId(0), moment)], 1).unwrap();
    lay(&ready, area);
    ready
}

fn lay(ready: &Ready, area: &[u8]) {
    let at = SHARED + ready.native.layout.unwind.unwrap();
    for (word, at) in area.chunks(8).zip((at..).step_by(8)) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        ready.region.set_word(at, u64::from_le_bytes(bytes));
    }
}

/// Walks once, and says what was found.
pub fn walked(ready: &Ready, hit: &Hit) -> Vec<u64> {
    ready.run(0, 0, hit);
    let mut number = None;
    ready.ring(0).drain(&ready.region, Incomplete::Wait, |message| number = message.words.first().copied());
    let stacks = KeptStacks::of(&ready.native.layout, &ready.region, SHARED).unwrap();
    let frames = stacks.get(number.unwrap()).unwrap();
    // Room for others.
    if stacks.count() > 8000 {
        forget(ready);
    }
    frames
}

fn forget(ready: &Ready) {
    let (at, table) = ready.native.layout.stacks.unwrap();
    let start = ready.region.address as usize + (SHARED + at) as usize;
    let (first, end) = (start.next_multiple_of(4096), (start + table.size() as usize) & !4095);
    // SAFETY: pages of the table alone, in the region, which nobody else works on. They are zeros afterwards.
    unsafe {
        libc::madvise(first as *mut _, end - first, libc::MADV_DONTNEED);
        std::ptr::write_bytes(start as *mut u8, 0, first - start);
        std::ptr::write_bytes(end as *mut u8, 0, start + table.size() as usize - end);
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

fn one_of<T: Copy, const N: usize>(all: [T; N], seed: &mut u64) -> T {
    all[random(seed) as usize % N]
}

fn rule(seed: &mut u64) -> Rule {
    if !random(seed).is_multiple_of(24) {
        // What compilers make.
        let cfa = one_of([8, 16, 24, 48, 64, 200], seed);
        let saved = one_of([Slot::UNCHANGED, Slot(-16), Slot(-24)], seed);
        let base = if random(seed).is_multiple_of(16) { Base::Frame } else { Base::Stack };
        return Rule { ra: Slot(-8), fp: saved, ..Rule::frame(base, cfa) };
    }
    let kind = one_of([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 2, 3, 9], seed);
    let base = one_of([Base::Stack, Base::Stack, Base::Frame, Base::Pointer, Base::Other], seed);
    let slot = |seed: &mut u64| {
        let at = -8 * (1 + (random(seed) % 8) as i16);
        one_of([Slot::UNCHANGED, Slot::UNCHANGED, Slot::LOST, Slot(at), Slot(at), Slot(at), Slot(-7)], seed)
    };
    let flags = [Rule::MEMORY, Rule::RA_AT_BASE, Rule::SAVED_AT_BASE, Rule::INTERRUPTED, Rule::STACK_LOST];
    let mut rule = Rule::frame(base, one_of([8, 16, 48, 128, 1000, 5000, 0, -8], seed));
    rule.kind = kind;
    for flag in flags {
        if random(seed).is_multiple_of(12) && !(base == Base::Other && flag == Rule::MEMORY) {
            rule.flags |= flag;
        }
    }
    rule.ra = one_of([Slot(-8), Slot(-8), Slot(-8), Slot(-8), Slot::UNCHANGED, Slot(16)], seed);
    (rule.fp, rule.bp) = (slot(seed), slot(seed));
    rule.plus = if base == Base::Other { random(seed) as i16 & 31 } else { one_of([0, 8, -16], seed) };
    rule
}

/// A few files with code that is told of, and others.
fn area(seed: &mut u64) -> Area {
    let mut area = Area::new(&FACTS);
    let mut modules = Vec::new();
    for file in 0..1 + random(seed) % 4 {
        let rules: Vec<Rule> = (0..1 + random(seed) % 12).map(|_| rule(seed)).collect();
        let mut key = 0;
        let mut rows = Vec::new();
        for _ in 0..30 + random(seed) % 30 {
            rows.push((key, (random(seed) as u32 % (8 * rules.len() as u32 + 1)) / 8));
            key += 1 + random(seed) as u32 % one_of([3, 40, 700], seed);
        }
        rows.push((key, 0));
        modules.push(area.add(&Table::new(rows, rules).unwrap()).unwrap().at(CODE + file * 0x1_0000));
    }
    modules.push(Module::without_table(CODE + 0x8_0000..CODE + 0x8_1000));
    area.publish(&modules).unwrap();
    area
}

/// An address of code, mostly.
fn code(seed: &mut u64) -> u64 {
    let file = one_of([0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3], seed);
    let inside =
        CODE + file * 0x1_0000 + random(seed) % one_of([30, 30, 30, 30, 30, 30, 30, 30, 0x1_0000], seed);
    match random(seed) % 32 {
        0 => one_of([CODE + 0x8_0010, 0, 1, CODE - 5, u64::MAX], seed),
        _ => inside,
    }
}

/// Pages that are gone, before and behind a stack: more than rules reach, so that what is read there is nobody else's.
const GUARD: u64 = 16;

/// A stack of some pages.
struct Stack {
    mapping: Mapping,
    pages: u64,
}

impl Stack {
    fn new(pages: u64) -> Stack {
        let mapping = Mapping::new((pages + 2 * GUARD) * 4096);
        let guard = (GUARD * 4096) as usize;
        mapping.protect(0, guard, libc::PROT_NONE);
        mapping.protect(((pages + GUARD) * 4096) as usize, guard, libc::PROT_NONE);
        Stack { mapping, pages }
    }

    fn start(&self) -> u64 {
        self.mapping.address as u64 + GUARD * 4096
    }

    fn end(&self) -> u64 {
        self.start() + self.pages * 4096
    }

    fn within(&self, seed: &mut u64) -> u64 {
        (self.start() + random(seed) % (self.pages * 4096)) & !7
    }

    /// Return addresses, places in the stack, and others, over and over.
    fn fill(&self, seed: &mut u64) {
        for at in (self.start()..self.end()).step_by(8) {
            let word = match random(seed) % 64 {
                0..58 => code(seed),
                58..60 => (at + random(seed) % 256) & !7,
                60..62 => self.within(seed),
                _ => one_of([0, self.end() - 8, self.end() - 4, self.end(), 8, 1 << 63, u64::MAX - 3], seed),
            };
            // SAFETY: a word of the mapping, which is ours.
            unsafe { (at as *mut u64).write(word) };
        }
    }

    fn word(&self, address: u64) -> Option<u64> {
        let inside = (self.start()..self.end() - 7).contains(&address);
        // SAFETY: within the mapping, which is ours.
        inside.then(|| unsafe { (address as *const u64).read_unaligned() })
    }
}

/// Registers of a hit somewhere on a stack.
fn hit(seed: &mut u64, stack: &Stack) -> Hit {
    let mut hit = Hit { instruction: code(seed), ..Hit::default() };
    for register in &mut hit.registers {
        *register = one_of([stack.within(seed), stack.within(seed), 0, code(seed)], seed);
    }
    hit.registers[SP] =
        one_of([stack.within(seed), stack.within(seed), stack.end() - 8, stack.start() + 8], seed);
    hit
}

fn expected(
    tables: &Tables<'_>,
    hit: &Hit,
    stack: &Stack,
    place: Place,
    method: Method,
    limit: u32,
) -> Vec<u64> {
    let [pc, sp, fp, bp] = [hit.instruction, hit.registers[SP], hit.registers[FP], hit.registers[BP]];
    let start = Registers {
        pc,
        sp,
        fp,
        bp,
        link: convention().link.map_or(0, |link| hit.registers[usize::from(link)]),
        general: &hit.registers,
    };
    let mut frames = Vec::new();
    let read = |address| stack.word(address);
    walk(tables, start, place, method, limit, read, |_, found| found, |pc| frames.push(pc));
    frames
}

#[test]
fn random_stacks_are_walked_as_the_reference_does() {
    // Where the kernel reads nothing, walks end with what is known to stay in memory.
    let is_whole = reads_memory();
    let mut seed = 0x5354_4143_4b53_0001;
    let stack = Stack::new(4);
    let (mut deepest, mut frames) = (0, 0);
    for (place, moment) in [(Place::Entry, Moment::Entry), (Place::Anywhere, Moment::Inside)] {
        for (by, method) in
            [(StackWalk::Tables, Method::Rows), (StackWalk::FramePointers, Method::FramePointers)]
        {
            for limit in [127, 127, 127, 3, 1] {
                let area = area(&mut seed);
                let ready = ready(limit, by, moment, area.bytes());
                // A thread whose stack this is, or somebody else's.
                if limit < 127 || random(&mut seed).is_multiple_of(2) {
                    own(&ready, &stack.mapping, stack.end() - 40);
                }
                for turn in 0..40 {
                    let area = self::area(&mut seed);
                    lay(&ready, area.bytes());
                    let tables = Tables::new(area.bytes()).unwrap();
                    for _ in 0..20 {
                        stack.fill(&mut seed);
                        let hit = hit(&mut seed, &stack);
                        let expected = expected(&tables, &hit, &stack, place, method, limit.into());
                        let found = walked(&ready, &hit);
                        let told = if is_whole { expected.len() } else { found.len().min(expected.len()) };
                        let expected = &expected[..told];
                        assert_eq!(found, expected, "{place:?} {method:?} {limit} {turn} {hit:x?}");
                        deepest = deepest.max(found.len());
                        frames += found.len();
                    }
                }
            }
        }
    }
    println!("{frames} frames, {deepest} in the deepest");
    assert!(deepest > 20 && frames > 10_000);
}

#[test]
fn damaged_areas_and_stacks_do_no_harm() {
    let mut seed = 0x5354_4143_4b53_0002;
    let stack = Stack::new(3);
    let start = area(&mut seed);
    let ready = ready(127, StackWalk::Tables, Moment::Inside, start.bytes());
    for _ in 0..3000 {
        let area = area(&mut seed);
        let mut bytes = area.bytes().to_vec();
        for _ in 0..1 + random(&mut seed) % 6 {
            let at = random(&mut seed) as usize % bytes.len();
            bytes[at] = one_of([0, 0xff, 0x7f, 0x80, 1], &mut seed);
            if random(&mut seed).is_multiple_of(3) {
                // The directory and its first module.
                bytes[24 + at % 8] = random(&mut seed) as u8;
            }
        }
        lay(&ready, &bytes);
        stack.fill(&mut seed);
        let mut hit = hit(&mut seed, &stack);
        // Registers that lead anywhere, but for the stack pointer.
        hit.registers[FP] = random(&mut seed);
        hit.registers[BP] = random(&mut seed) << (random(&mut seed) & 63);
        assert!(walked(&ready, &hit).len() <= 127);
    }
}

/// Makes this the thread pointer of the thread, whose control block says that its stack begins in `mapping`. 0: nothing is known of it.
fn own(ready: &Ready, mapping: &Mapping, thread_pointer: u64) {
    const BOUNDS: u64 = 16;
    let block = ready.block(0) - ready.region.address as u64;
    ready.region.set_word(block, thread_pointer);
    ready.region.set_word(
        SHARED + u64::from(trapless_wire::SCRIPT_BOUNDS),
        if thread_pointer == 0 { 0 } else { BOUNDS },
    );
    if thread_pointer != 0 {
        let start = mapping.address as u64;
        for (word, value) in (0..).zip([start, mapping.size as u64, 0]) {
            mapping.set_word(thread_pointer + BOUNDS - start + 8 * word, value);
        }
    }
}

/// A stack of so many frames, so far apart, from `sp` on: each calls from another place of three files. Nothing keeps frame pointers.
fn calls(stack: &Stack, sp: u64, count: u64, apart: u64) -> (Area, Hit) {
    let mut area = Area::new(&FACTS);
    let called = Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, apart as i32) };
    let saving = Rule { ra: Slot(-8), fp: Slot(-16), bp: Slot(-24), ..called };
    let rules = vec![Rule::default(), called, saving, Rule::of_kind(Rule::END)];
    let rows: Vec<_> =
        (0..4000).map(|row| (row * 16, 1 + row % 2)).chain([(64_000, 3), (64_100, 0)]).collect();
    let table = area.add(&Table::new(rows, rules).unwrap()).unwrap();
    area.publish(&[0, 1, 2].map(|file| table.at(CODE + file * 0x1_0000))).unwrap();
    let mut slot = sp;
    for frame in 0..count {
        let inside = if frame + 1 == count { 64_020 } else { (frame * 7919 + 33) % 60_000 };
        // SAFETY: words of the stack, which is ours.
        unsafe { (slot as *mut u64).write(CODE + frame / 4 % 3 * 0x1_0000 + inside) };
        slot += apart;
    }
    assert!(slot <= stack.end());
    let mut hit = Hit { instruction: CODE + 0x123, ..Hit::default() };
    hit.registers[SP] = sp;
    (area, hit)
}

#[test]
fn stacks_are_whole_wherever_they_lie_and_end_where_memory_does() {
    if !reads_memory() {
        return trapless_testing::inapplicable!("the kernel, or what emulates it, has no process_vm_readv");
    }
    let stack = Stack::new(20);
    // On one page, over several, and the thread's own.
    for (sp, count, apart, thread_pointer) in [
        (stack.start() + 8, 21, 64, 0),
        (stack.start() + 4096 - 8, 21, 64, 0),
        (stack.start() + 4088, 100, 640, 0),
        (stack.start() + 4096 - 200, 13, 4800, 0),
        (stack.start() + 4096 - 200, 13, 4800, stack.end() - 64),
        (stack.start() + 4096 - 200, 100, 640, stack.end() - 2000),
        (stack.end() - 21 * 64, 21, 64, 0),
    ] {
        let (area, hit) = calls(&stack, sp, count, apart);
        let ready = ready(127, StackWalk::Tables, Moment::Entry, area.bytes());
        own(&ready, &stack.mapping, thread_pointer);
        let tables = Tables::new(area.bytes()).unwrap();
        let all = expected(&tables, &hit, &stack, Place::Entry, Method::Rows, 127);
        assert_eq!(all.len() as u64, count + 1);
        assert_eq!(walked(&ready, &hit), all);
        assert_eq!(walked(&ready, &hit), all);
        // A page in the middle goes: what lies behind it is not found, and nothing else happens.
        if count * apart > 3 * 4096 {
            let gone = (sp / 4096 + 2) * 4096 - stack.mapping.address as u64;
            stack.mapping.protect(gone as usize, 4096, libc::PROT_NONE);
            let found = walked(&ready, &hit);
            assert!(all.starts_with(&found) && found.len() > 1 && found.len() < all.len(), "{}", found.len());
            stack.mapping.protect(gone as usize, 4096, libc::PROT_READ | libc::PROT_WRITE);
        }
        // A thread whose id nobody knows: the stack pointer's page is all that can be read.
        own(&ready, &stack.mapping, 0);
        let found = walked(&ready, &Hit { tid: 0, ..hit });
        assert!(all.starts_with(&found) && !found.is_empty());
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn calls_that_are_followed_stand_on_stacks_with_their_own_addresses() {
    use trapless_isa::detour::{
        HASH_FACTOR, RETURN_ADDRESS, RETURN_OLDER, RETURN_POINT, RETURN_SHIFT, SHADOW_INSTANCES,
        STACK_PAGE_SHIFT, shadow_block_size,
    };
    use trapless_wire::Words;
    let stack = Stack::new(4);
    let (area, hit) = calls(&stack, stack.start() + 4096 - 24, 20, 64);
    let ready = ready(127, StackWalk::Tables, Moment::Entry, area.bytes());
    let tables = Tables::new(area.bytes()).unwrap();
    let all = expected(&tables, &hit, &stack, Place::Entry, Method::Rows, 127);
    // Shadow blocks of 2^4 pages, and a list of arenas.
    let bits = 4;
    let shadows = Mapping::new(u64::from(shadow_block_size(3) as u32) << bits);
    let arenas = Mapping::new(4096);
    let arena = 0x6000_0000_0000u64;
    for (index, word) in [0x5000_0000_0000, 0x1000, arena, 0x2000, 0].into_iter().enumerate() {
        arenas.set_word(8 * index as u64, word);
    }
    for (at, value) in [
        (trapless_wire::SCRIPT_SHADOWS, shadows.address as u64),
        (trapless_wire::SCRIPT_SHADOW_BITS, bits),
        (trapless_wire::SCRIPT_ARENAS, arenas.address as u64),
    ] {
        ready.region.set_word(SHARED + u64::from(at), value);
    }
    let sp = hit.registers[SP];
    for frame in [0, 1, 5, 11, 19] {
        let slot = sp + frame * 64;
        let page = slot >> STACK_PAGE_SHIFT;
        let hash = u64::from((page as u32).wrapping_mul(HASH_FACTOR) >> (32 - bits));
        // The first block that is free or the page's own.
        let block = (0..16).map(|turn| ((hash + turn) & 15) * shadow_block_size(3));
        let block = block.into_iter().find(|block| [0, page].contains(&shadows.word(*block)));
        let block = block.unwrap();
        shadows.set_word(block, page);
        let instance = block + u64::from(SHADOW_INSTANCES) + ((slot & 4095) >> 3 << RETURN_SHIFT);
        let point = arena + 0x100 * frame + 7;
        // SAFETY: a word of the stack.
        let real = unsafe { (slot as *mut u64).replace(point) };
        if frame == 5 {
            // Reached by a tail call from another one, whose instance lies in a pool.
            let older = arenas.address as u64 + 2048;
            shadows.set_word(instance + u64::from(RETURN_ADDRESS), arena + 0x999);
            shadows.set_word(instance + u64::from(RETURN_OLDER), older);
            arenas.set_word(2048 + u64::from(RETURN_POINT), arena + 0x999);
            arenas.set_word(2048 + u64::from(RETURN_ADDRESS), real);
        } else {
            shadows.set_word(instance + u64::from(RETURN_ADDRESS), real);
        }
        shadows.set_word(instance + u64::from(RETURN_POINT), point);
    }
    assert_eq!(walked(&ready, &hit), all);
    // An instance that tells of another call is not believed.
    let slot = sp + 11 * 64;
    // SAFETY: as above.
    unsafe { (slot as *mut u64).write(arena + 1) };
    assert_eq!(walked(&ready, &hit)[..12], all[..12]);
}

#[test]
#[ignore = "measures, and takes its time"]
fn what_a_stack_costs() {
    let stack = Stack::new(20);
    for (name, sp, owner) in [
        ("on one page", stack.start() + 64, 0),
        ("on the thread's own stack", stack.start() + 4000, stack.end() - 64),
        ("on another stack", stack.start() + 4000, 0),
    ] {
        let (area, hit) = calls(&stack, sp, 20, 96);
        let ready = ready(127, StackWalk::Tables, Moment::Entry, area.bytes());
        own(&ready, &stack.mapping, owner);
        let (extras, count) = ready.extras(0, &hit);
        let mut best = f64::MAX;
        for _ in 0..300 {
            let since = std::time::Instant::now();
            ready.run_many(0, 0, &[[0; ARGUMENTS]; 64], &extras[..count]);
            best = best.min(since.elapsed().as_nanos() as f64 / 64.0);
            ready.ring(0).drain(&ready.region, Incomplete::Wait, |_| {});
        }
        println!("{name}: {best:.0} ns for 20 frames");
    }
}
