//! Detours that count where there is no stack: nothing below the stack pointer is touched, and whoever cannot be told apart is counted together.

use crate::detours::*;
use crate::machine::*;
use crate::processor::Random;
use crate::stepping::step;
use crate::vectors;
use trapless_isa::detour::*;
use trapless_isa::payload::*;
use trapless_isa::{BranchTargets, Machine as Isa, Reason, Site};

/// r12, r13: what Go's compiler leaves free at an entry.
const FREE: [usize; 2] = [12, 13];

/// Prologues of functions that read no flags, as none of Go's do.
fn prologues() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let reads_flags = |name: &str| name.starts_with("adc") || name.contains("pushf");
    let plain = PROLOGUES.iter().filter(move |(name, ..)| !reads_flags(name));
    plain.map(|&(name, prologue, epilogue)| (name, [prologue, epilogue, &[0xc3]].concat()))
}

#[test]
fn s1_nothing_of_the_stack_is_touched_and_every_hit_counts() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(41);
    let mut probed = 0;
    for (name, code) in prologues() {
        for self_pointer in [true, false] {
            let layout = layout(self_pointer);
            machine.forget();
            let thread = Machine::thread(random.next() % 8);
            let has_block = random.next().is_multiple_of(2);
            if has_block {
                // A probe that has stack claims it for the thread.
                Probed::new(&machine, &code, FUNCTION, detour_at(0), &layout, COUNT).arm();
                let start = machine.random(&mut random);
                machine.set(SLOT, EXIT);
                machine.run(thread, &start);
                assert_eq!(machine.block(1, HITS), 1, "{name}");
            }
            let Some(probe) = Probed::without_stack(&machine, &code, &layout) else { continue };
            probed += 1;
            for round in 1..=20 {
                let start = machine.random(&mut random);
                let memory = machine.read(SLOT - 1024, 2048);
                let run = || {
                    machine.write(SLOT - 1024, &memory);
                    machine.set(SLOT, EXIT);
                    let (exit, mut after) = machine.run(thread, &start);
                    FREE.into_iter().for_each(|register| after.registers[register] = 0);
                    (exit, after.registers, after.extended, machine.read(SLOT - 1024, 2048))
                };
                let expected = run();
                probe.arm();
                let found = run();
                probe.disarm();
                assert!(expected == found, "{name}, round {round}: {:x?} {:x?}", expected.1, found.1);
                let block = u64::from(has_block);
                assert_eq!(machine.block(block, HITS), round + block, "{name}");
            }
        }
    }
    assert!(probed >= 14, "{probed}");
}

/// What is read behind a probe where no register is free.
pub struct Nearby {
    pub name: &'static str,
    /// What the detour may use of the stack.
    pub stack: Stack,
    /// The function, and how far in it the probe is.
    code: &'static [u8],
    behind: usize,
    /// Whether xmm15 is all zeros, as in code of Go's compiler.
    has_zeros: bool,
}

pub const NEARBY: [Nearby; 3] = [
    Nearby {
        name: "all registers",
        stack: Stack::None,
        // nop; lea rcx,[rdi+rcx+1]; add rax,rcx; ret
        code: &[0x90, 0x48, 0x8d, 0x4c, 0x0f, 1, 0x48, 1, 0xc8, 0xc3],
        behind: 1,
        has_zeros: false,
    },
    Nearby {
        name: "the flags, and all registers but rax",
        stack: Stack::None,
        // cmp rdi,rsi; lea rcx,[rdi+rcx+1]; mov eax,5; adc rcx,rax; ret
        code: &[0x48, 0x39, 0xf7, 0x48, 0x8d, 0x4c, 0x0f, 1, 0xb8, 5, 0, 0, 0, 0x48, 0x11, 0xc1, 0xc3],
        behind: 3,
        has_zeros: false,
    },
    Nearby {
        name: "the flags and all registers",
        stack: Stack::NoneInGo,
        // cmp rdi,rsi; lea rcx,[rdi+rcx+1]; seto dl; adc rax,r12; adc rcx,r13; ret
        code: &[
            0x48, 0x39, 0xf7, 0x48, 0x8d, 0x4c, 0x0f, 1, 0x0f, 0x90, 0xc2, 0x4c, 0x11, 0xe0, 0x4c, 0x11,
            0xe9, 0xc3,
        ],
        behind: 3,
        has_zeros: true,
    },
];

impl Nearby {
    pub fn probed<'m>(&self, machine: &'m Machine, layout: &Layout) -> (&'static [u8], Probed<'m>) {
        let probed = Probed::without_stack_at(machine, self.code, self.behind, self.stack, layout);
        (self.code, probed.unwrap_or_else(|| panic!("{}", self.name)))
    }

    pub fn start(&self, machine: &Machine, random: &mut Random) -> State {
        let mut start = machine.random(random);
        if self.has_zeros {
            start.extended[vectors::xmm(15)].fill(0);
        }
        start
    }
}

#[test]
fn s2_where_no_register_is_free_all_threads_count_in_one_block() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(43);
    let layout = layout(true);
    for nearby in &NEARBY {
        machine.forget();
        let (code, probe) = nearby.probed(&machine, &layout);
        machine.write(FUNCTION, code);
        for round in 1..=200 {
            let start = nearby.start(&machine, &mut random);
            let memory = machine.read(SLOT - 1024, 2048);
            let thread = Machine::thread(random.next() % 8);
            let run = || {
                machine.write(SLOT - 1024, &memory);
                machine.set(SLOT, EXIT);
                let (exit, after) = machine.run(thread, &start);
                (exit, after.registers, after.flags, after.extended, machine.read(SLOT - 1024, 2048))
            };
            let expected = run();
            probe.arm();
            let found = run();
            probe.disarm();
            assert!(expected == found, "{}: {:x?} {:x?}", nearby.name, expected.1, found.1);
            assert_eq!(machine.block(0, HITS), round, "{}", nearby.name);
        }
    }
}

#[test]
fn where_it_is_not_known_that_xmm15_holds_nothing_a_probe_is_refused() {
    let Some(machine) = Machine::new() else { return };
    let nearby = NEARBY.iter().find(|nearby| nearby.has_zeros).unwrap();
    let layout = layout(true);
    for stack in [Stack::None, Stack::AskedInGo] {
        assert!(
            Probed::without_stack_at(&machine, nearby.code, nearby.behind, stack, &layout).is_none(),
            "{stack:?}"
        );
    }
}

#[test]
fn s1_the_stack_pointer_stays_at_every_instruction() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(42);
    for (name, code) in prologues() {
        let layout = layout(false);
        let Some(probe) = Probed::without_stack(&machine, &code, &layout) else { continue };
        // Without a thread pointer, and as a thread that nobody knows.
        for thread in [0, Machine::thread(3)] {
            let start = machine.random(&mut random);
            machine.set(SLOT, EXIT);
            probe.arm();
            let steps = step(&machine, FUNCTION, thread, &start);
            probe.disarm();
            let arena = ARENA..probe.copies;
            let inside: Vec<_> = steps.iter().filter(|step| arena.contains(&step.ip)).collect();
            assert!(inside.len() > 5, "{name}");
            assert!(inside.iter().all(|step| step.registers[4] == SLOT), "{name}");
        }
    }
}

#[test]
fn what_needs_a_stack_is_refused_without_one() {
    let (targets, layout) = (BranchTargets::default(), layout(true));
    // nop; nop; nop; nop; nop; ret: nothing tells what the registers hold.
    let code = [0x90, 0x90, 0x90, 0x90, 0x90, 0xc3];
    // xor eax,eax; mov ecx,1; xor edx,edx; ret: they are written, but for one flag.
    let writes = [0x31, 0xc0, 0xb9, 1, 0, 0, 0, 0x31, 0xd2, 0xc3];
    let asks = |isa: Isa, code: &[u8], from: u64, stack, payload| {
        let isa = isa.isa();
        let site = Site { address: FUNCTION + from, ..Site::new(FUNCTION, code, &targets) };
        let displaced = isa.verdict(&site).jump.unwrap();
        let from = from as usize;
        let request = DetourRequest {
            runs: trapless_isa::body::Runs::default(),
            address: detour_at(0),
            displaced,
            original: &code[from..from + usize::from(displaced.length)],
            site: &site,
            payload,
            stack,
            layout: &layout,
            runtime: &isa.runtime(ARENA, &layout).unwrap(),
            operands: &[],
            tells: false,
        };
        let refused = isa.detour(&request).err();
        assert_eq!(refused.is_none(), isa.counts_without_stack(&site, &displaced, stack) && payload == COUNT);
        refused
    };
    let needs = Some(Reason::NeedsStack);
    assert_eq!(asks(Isa::X86_64, &code, 0, Stack::NoneInGo, COUNT), None);
    assert_eq!(asks(Isa::X86_64, &code, 0, Stack::None, COUNT), needs);
    assert_eq!(asks(Isa::X86_64, &writes, 0, Stack::None, COUNT), None);
    assert_eq!(asks(Isa::I386, &writes, 0, Stack::None, COUNT), needs);
    // Behind the entry only the code tells; what Go's compiler has made keeps nothing in xmm15.
    let later = [&[0x90][..], &code].concat();
    assert_eq!(asks(Isa::X86_64, &later, 1, Stack::None, COUNT), needs);
    assert_eq!(asks(Isa::X86_64, &later, 1, Stack::NoneInGo, COUNT), None);
    let record = Payload { entry: Steps::of([EntryStep::Record { id: 2, arguments: 0 }]), ..COUNT };
    let hook = Payload { hooks: Steps::of([Hook::Gate]), ..COUNT };
    for payload in [FOLLOW, TIMED, record, hook] {
        assert_eq!(asks(Isa::X86_64, &code, 0, Stack::NoneInGo, payload), needs, "{payload:?}");
    }
}
