//! Children that share the memory, run by this processor: the mark and the shared entry tell them from their parent, whoever passes the
//! probe behind the system call first, and nothing else changes.

use crate::detours::{HITS, Probed, detour_at};
use crate::machine::*;
use crate::processor::Random;
use trapless_isa::detour::*;
use trapless_isa::payload::*;

/// EFLAGS.ID.
const MARK: u64 = 1 << 21;
const VM_VFORK: u64 = 0x4111;
const COUNTED: u64 = FUNCTION + 0x1000;
/// The arguments of `clone3`.
const ARGUMENTS: u64 = SLOT + 256;
/// What stands behind the call: push rdi; cmp eax, -4095; pop rdi; ret.
const BEHIND: [u8; 8] = [0x57, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x5f, 0xc3];
const BODY: [u8; 6] = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];

const RAX: usize = 0;
const RDI: usize = 7;

struct Scene<'m> {
    machine: &'m Machine,
    hooks: Vec<(Sharing, Probed<'m>)>,
    random: Random,
    thread: u64,
}

impl<'m> Scene<'m> {
    fn new(machine: &'m Machine, self_pointer: bool) -> Self {
        machine.forget();
        let layout = layout(self_pointer);
        let all = [Sharing::Vfork, Sharing::Clone, Sharing::BeforeClone3, Sharing::Clone3];
        let hooks = all.into_iter().zip(0..).map(|(sharing, n)| {
            let payload = Payload { hooks: Steps::of([Hook::Share(sharing)]), ..Payload::default() };
            let hook = Probed::new(machine, &BEHIND, FUNCTION + 0x100 * n, detour_at(n), &layout, payload);
            hook.arm();
            (sharing, hook)
        });
        let hooks = hooks.collect();
        let count = Payload { entry: Steps::of([EntryStep::Count(HITS)]), ..Payload::default() };
        Probed::new(machine, &BODY, COUNTED, detour_at(8), &layout, count).arm();
        Self { machine, hooks, random: Random(7), thread: Machine::thread(3) }
    }

    /// Passes a hook with what is in rax and rdi. Whether the mark is there afterwards.
    fn pass(&mut self, sharing: Sharing, rax: i64, rdi: u64, is_marked: bool) -> bool {
        let index = self.hooks.iter().position(|(hook, _)| *hook == sharing).unwrap();
        let hook = &self.hooks[index].1;
        let mut start = self.machine.random(&mut self.random);
        (start.registers[RAX], start.registers[RDI]) = (rax as u64, rdi);
        start.flags = start.flags & !MARK | if is_marked { MARK } else { 0 };
        self.machine.set(ARGUMENTS, VM_VFORK);
        self.machine.set(SLOT, EXIT);
        let (stack, function) = (self.machine.read(SLOT - 128, 1024), FUNCTION + 0x100 * index as u64);
        hook.disarm();
        let expected = self.machine.run_from(function, self.thread, &start);
        let stack_after = self.machine.read(SLOT - 128, 1024);
        self.machine.write(SLOT - 128, &stack);
        hook.arm();
        let found = self.machine.run_from(function, self.thread, &start);
        assert!(expected == found, "{sharing:?} {rax} {rdi:#x}: something else has changed");
        assert_eq!(stack_after, self.machine.read(SLOT - 128, 1024), "{sharing:?}: the stack");
        self.machine.flags() & MARK != 0
    }

    /// One hit; then how many there were in blocks of the thread's own and of its children.
    fn hit(&mut self, is_marked: bool) -> [u64; 2] {
        let mut start = self.machine.random(&mut self.random);
        start.flags = start.flags & !MARK | if is_marked { MARK } else { 0 };
        self.machine.set(SLOT, EXIT);
        self.machine.run_from(COUNTED, self.thread, &start);
        assert_eq!(self.machine.flags() & MARK != 0, is_marked);
        let of = |child: bool| {
            let blocks = (1..u64::from(BLOCK_COUNT))
                .filter(|&block| (self.machine.block(block, BLOCK_ORIGIN) == 0) == child);
            blocks.map(|block| self.machine.block(block, HITS)).sum()
        };
        [of(false), of(true)]
    }

    fn shared(&self) -> bool {
        let layout = layout(true);
        let entry = layout.threads + (layout.thread_index(self.thread, 8) << THREAD_SHIFT);
        self.machine.get(entry + u64::from(THREAD_OWNER)) == !self.thread - 1
    }
}

#[test]
fn s6_a_child_that_shares_the_memory_counts_apart_until_its_parent_is_back() {
    let Some(machine) = Machine::new() else { return };
    for self_pointer in [true, false] {
        for (sharing, rdi) in [(Sharing::Vfork, 5), (Sharing::Clone, VM_VFORK), (Sharing::Clone3, ARGUMENTS)]
        {
            let mut scene = Scene::new(&machine, self_pointer);
            for round in 0..3 {
                assert_eq!(scene.hit(false), [4 * round + 1, 2 * round], "{sharing:?}");
                if sharing == Sharing::Clone3 {
                    assert!(!scene.pass(Sharing::BeforeClone3, 435, rdi, false));
                }
                assert!(scene.pass(sharing, 0, rdi, false), "{sharing:?}: the child is marked");
                assert!(scene.shared());
                assert_eq!(scene.hit(true), [4 * round + 1, 2 * round + 1], "{sharing:?}: in the child");
                // A signal handler of the parent's.
                assert_eq!(scene.hit(false), [4 * round + 2, 2 * round + 1], "{sharing:?}: in the parent");
                // A child of the child's, which comes back to the child.
                assert!(scene.pass(sharing, 0, rdi, true) && scene.pass(sharing, 77, rdi, true));
                assert_eq!(
                    scene.hit(true),
                    [4 * round + 2, 2 * round + 2],
                    "{sharing:?}: in the child again"
                );
                // No system call lies between for a handler that leaves by longjmp.
                if round == 1 {
                    assert!(scene.pass(sharing, 0, rdi, false), "{sharing:?}: shared once more");
                }
                assert!(!scene.pass(sharing, 77, rdi, false), "{sharing:?}: the parent is not marked");
                assert!(!scene.shared());
                assert_eq!(scene.hit(false), [4 * round + 3, 2 * round + 2]);
                // None was made this time.
                assert!(!scene.pass(sharing, -11, rdi, false));
                assert_eq!(scene.hit(false), [4 * round + 4, 2 * round + 2]);
            }
        }
    }
}

#[test]
fn s6_who_shares_no_memory_is_not_marked() {
    let Some(machine) = Machine::new() else { return };
    let mut scene = Scene::new(&machine, true);
    // A fork, a thread, a child with a thread pointer of its own.
    for flags in [0x11, 0x100, 0x4011, 0x3d_0f00, VM_VFORK | 0x8_0000] {
        assert!(!scene.pass(Sharing::Clone, 0, flags, false), "{flags:#x}");
        assert!(!scene.shared());
    }
    // Nothing was shared ahead of the call, or it was for another one: a thread that has the pointer of one that is gone.
    assert!(!scene.pass(Sharing::Clone3, 0, ARGUMENTS, false));
    scene.pass(Sharing::BeforeClone3, 435, ARGUMENTS, false);
    assert!(scene.shared());
    assert!(!scene.pass(Sharing::Clone3, 0, ARGUMENTS + 64, false));
    assert_eq!(scene.hit(false), [1, 0]);
    // In a forked child everything is a child's.
    scene = Scene::new(&machine, true);
    machine.set(layout(true).origin, 0);
    assert!(!scene.pass(Sharing::Vfork, 0, 5, false));
    assert!(!scene.shared());
    assert_eq!(scene.hit(false), [0, 1]);
    // There is no block left for children: they are counted as the thread, and nothing breaks.
    scene = Scene::new(&machine, true);
    scene.hit(false);
    machine.set(layout(true).block_cursor, BLOCK_COUNT.into());
    assert!(!scene.pass(Sharing::Vfork, 0, 5, false));
    assert!(!scene.shared());
    assert_eq!(scene.hit(false), [2, 0]);
    // A thread without a thread pointer.
    scene = Scene::new(&machine, false);
    scene.thread = 0;
    assert!(!scene.pass(Sharing::Vfork, 0, 5, false) && !scene.pass(Sharing::Vfork, 77, 5, false));
}
