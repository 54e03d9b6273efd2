//! What holds of every plan: no two sites share a byte, and every request has one answer.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use trapless_engine::admit::{Arrival, Facts, Functions, Known, Marks, Runtimes, Vectors};
use trapless_engine::{
    Clause, Clauses, Function, Home, Interpreter, Meant, Module, Plan, Refusal, Request, Role, Script,
    TrapHit, TrapMemory, Unwinder, Wanted,
};
use trapless_isa::body::{Code, Extra, Hole, Program, Takes};
use trapless_isa::{
    BranchTargets, Exit, LARGEST_PAGE as PAGE, Leaves, Lookup, Machine, Mechanism, Reason, Site,
};

/// A small generator (xorshift64*), so that every run sees the same plans.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const TEXT: u64 = 0x40_0000;

/// Instructions that functions are made of.
const PIECES: &[&[u8]] = &[
    &[0x55],                         // push rbp
    &[0x48, 0x89, 0xe5],             // mov rbp,rsp
    &[0x31, 0xc0],                   // xor eax,eax
    &[0x48, 0x8b, 0x07],             // mov rax,[rdi]
    &[0x48, 0xf7, 0xfe],             // idiv rsi
    &[0xe8, 0x10, 0x00, 0x00, 0x00], // call
    &[0xeb, 0x02],                   // jmp
    &[0x90],                         // nop
    &[0xc3],                         // ret
    &[0x0f, 0x05],                   // syscall
    &[0x06],                         // no instruction
];

/// The opcodes of jumps, and how long their displacements are: jmp and jne, short and long.
const JUMPS: [(&[u8], usize); 4] = [(&[0xeb], 1), (&[0x75], 1), (&[0xe9], 4), (&[0x0f, 0x85], 4)];

/// Some instructions.
fn pieces(random: &mut Random, count: u64) -> Vec<u8> {
    (0..count).flat_map(|_| random.choose(PIECES).to_vec()).collect()
}

/// The code of a function, and whether it jumps back to its entry.
fn code(random: &mut Random) -> (Vec<u8>, bool) {
    let count = 1 + random.below(8);
    let mut code = pieces(random, count);
    let jumps_back = random.below(3) == 0;
    if jumps_back {
        let (opcode, size) = random.choose(&JUMPS);
        code.extend_from_slice(opcode);
        let distance = -((code.len() + size) as i32);
        code.extend_from_slice(&distance.to_le_bytes()[..size]);
        let count = random.below(4);
        code.extend(pieces(random, count));
    }
    (code, jumps_back)
}

fn wanted(random: &mut Random) -> Wanted {
    let entry = Wanted { entries: true, ..Wanted::default() };
    let lookup = Some(Unwinder::Lookup(Lookup::FindObject));
    let unwinder = random.choose(&[None, None, None, lookup]);
    random.choose(&[
        entry,
        Wanted { returns: true, ..entry },
        Wanted { returns: true, latency: true, ..entry },
        Wanted { record_entry: Some(2), ..entry },
        Wanted { returns: true, unwinder: Some(Unwinder::Entry), ..entry },
        Wanted { returns: true, ..entry },
        Wanted { unwinder, ..entry },
    ])
}

fn facts(random: &mut Random) -> Facts {
    Facts {
        handled: random.choose(&[0, 0, 1 << 7, 1 << 10, u64::MAX]),
        shadow_stack: random.below(7) == 0,
        runtimes: Runtimes::default(),
        throws_unhooked: random.below(9) == 0,
        shows: random.below(3) == 0,
        hops: false,
        stops: 0,
        vectors: Vectors::Kept,
    }
}

/// Functions that are all there is of a file.
#[derive(Debug)]
struct All<'t>(Vec<Function<'t>>);

impl trapless_engine::Code for All<'_> {
    fn functions(&self, range: Range<u64>) -> Vec<Function<'_>> {
        let near = |function: &&Function<'_>| {
            let end = function.address + function.bytes.len() as u64;
            function.address < range.end && end > range.start
        };
        self.0.iter().filter(near).copied().collect()
    }

    fn is_compiled_by_go(&self, _: u64) -> bool {
        false
    }

    fn may_hold_vectors(&self, _: u64, inside: bool) -> bool {
        inside
    }
}

/// A module with these functions.
fn module<'m>(
    machine: Machine,
    targets: &'m BranchTargets,
    functions: &'m Functions<'m>,
    code: &'m dyn trapless_engine::Code,
) -> Module<'m> {
    Module {
        machine,
        start: TEXT,
        end: TEXT + 0x1000,
        targets,
        observed: Vec::new(),
        runtimes: Runtimes::default(),
        entry: 0,
        goroutines: None,
        functions,
        code,
    }
}

/// A request for a site of that module, by any mechanism.
fn request(id: u32, function: Function<'_>, address: u64, wanted: Wanted) -> Request<'_> {
    Request {
        id,
        role: Role::Whole,
        module: 0,
        function,
        address,
        wanted,
        mechanism: None,
        semaphores: &[],
        operands: None,
        clauses: Clauses::default(),
        live_patch: None,
        unread: None,
        meant: Meant::Calls,
    }
}

#[test]
fn no_two_sites_share_a_byte_and_every_request_has_one_answer() {
    let mut random = Random(20_261_121);
    let mut turns = [0, 0];
    let (mut planned, mut exits, mut through, mut beside, mut refused) = (0, 0, 0, 0, BTreeSet::new());
    for round in 0..400 {
        // Functions one behind the other, without padding, so that jumps come close.
        let mut text = Vec::new();
        let (mut ranges, mut jumped_to) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let start = text.len();
            let (code, jumps_back) = code(&mut random);
            text.extend(code);
            ranges.push(start..text.len());
            jumped_to.extend(jumps_back.then_some(TEXT + start as u64));
        }
        let function = |range: &Range<usize>| Function {
            address: TEXT + range.start as u64,
            // What follows it counts as padding now and then, so that jumps reach into the next.
            bytes: &text[range.start..(range.end + 4 * usize::from(round % 2 == 0)).min(text.len())],
            size: range.len(),
        };
        let mut functions = Functions::new();
        for range in &ranges {
            let function = function(range);
            let name = random.choose(&["f", "g", "_setjmp", "dlsym", "_Unwind_RaiseException"]);
            let end = TEXT + ranges[3].start as u64;
            let goes_on = if random.below(4) == 0 { vec![end] } else { Vec::new() };
            let called = Arrival::Called;
            let arrival = random.choose(&[called, called, called, Arrival::Jumped, Arrival::Unclear]);
            functions.insert(
                function.address,
                Known { function, names: vec![name], arrival, is_told: true, goes_on },
            );
        }
        jumped_to.extend((0..4).map(|_| TEXT + random.below(text.len() as u64)));
        let targets = BranchTargets::new(jumped_to).with_computed(vec![TEXT + ranges[5].start as u64]);
        let mut marks = Marks::default();
        let is_ocaml = round % 10 == 0;
        if is_ocaml {
            marks.symbol(b"caml_frametable");
        }
        let all = All(ranges.iter().map(function).collect());
        let module = Module {
            observed: Vec::new(),
            runtimes: marks.runtimes(),
            entry: TEXT,
            ..module(Machine::X86_64, &targets, &functions, &all)
        };
        let requests: Vec<Request<'_>> = (0..)
            // Some functions are asked for twice, at other instructions perhaps.
            .zip(ranges.iter().chain(&ranges[..8]))
            .map(|(id, range)| {
                let address = TEXT + (range.start as u64 + random.choose(&[0, 0, 0, 1, 3]));
                let wanted = wanted(&mut random);
                Request {
                    mechanism: random.choose(&[None, None, None, Some(Mechanism::Step)]),
                    unread: random.choose(&[None, None, None, None, Some("a table")]),
                    meant: random.choose(&[Meant::Calls, Meant::Calls, Meant::Calls, Meant::All]),
                    ..request(id, function(range), address, wanted)
                }
            })
            .collect();
        let allowed = random.choose(&[&[Mechanism::Jump][..], &Mechanism::ALL]);
        let facts = facts(&mut random);
        let plan = Plan::new(&facts, vec![module], &requests, allowed, Home::default());

        for pair in plan.sites.windows(2) {
            assert!(pair[0].displaced.end() <= pair[1].displaced.start, "{pair:?}");
        }
        let changed = plan.sites.iter().flat_map(|site| {
            let beside = site.room.iter().chain(&site.turns).map(|stretch| stretch.displaced);
            [site.displaced].into_iter().chain(beside)
        });
        let mut changed: Vec<_> = changed.map(|at| (at.start, at.end())).collect();
        changed.sort_unstable();
        assert!(changed.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{changed:x?}");
        for site in &plan.sites {
            assert_eq!(site.room.is_some(), site.mechanism == Mechanism::Short, "{site:?}");
            for turn in &site.turns {
                assert_eq!(site.request.meant, Meant::Calls);
                assert!(!site.traps() && site.request.address == site.request.function.address, "{site:?}");
                let at = (turn.displaced.start - TEXT) as usize;
                assert_eq!(turn.original, &text[at..][..turn.displaced.length.into()]);
                turns[usize::from(turn.displaced.instructions > 0)] += 1;
            }
            if let Some(room) = site.room {
                let at = (room.displaced.start - TEXT) as usize;
                assert_eq!(room.original, &text[at..][..room.displaced.length.into()]);
                let own = &site.request.function;
                let offset = room.displaced.start.wrapping_sub(own.address);
                beside += usize::from(offset >= own.bytes.len() as u64);
            }
        }
        assert_eq!(plan.answers().len(), requests.len(), "each request has an answer");
        let asked = plan.told().filter(|site| !site.request.wanted.is_hook()).count();
        assert_eq!(asked + plan.skipped.len(), requests.len(), "and only one");
        for site in plan.sites.iter().filter(|site| site.request.pairs()) {
            let known = &functions[&site.request.function.address];
            assert_eq!(known.arrival, Arrival::Called, "{known:?}");
            assert!(known.names == ["f"] || known.names == ["g"], "{known:?}");
            assert!(!facts.shadow_stack && !facts.throws_unhooked && !is_ocaml);
        }
        for site in plan.sites.iter().filter(|site| site.request.role != Role::Whole) {
            assert!(!site.traps() && site.request.wanted.follows(), "{site:?}");
            let entry = plan.answers()[&site.request.id].expect("exits have their entry");
            assert_eq!((entry.places.returns, entry.places.lost), (site.places.returns, site.places.lost));
            let known = &functions[&site.request.function.address];
            assert_ne!(known.arrival, Arrival::Jumped, "{known:?}");
            match site.request.role {
                Role::Exit { .. } => exits += 1,
                Role::Through { .. } => through += 1,
                _ => {
                    // All of its own returns are there.
                    let returns = |exit: &&Exit| exit.leaves == Leaves::Return;
                    let at = |address| Site {
                        padding: known.function.padding(),
                        ..Site::new(address, known.function.code(), &targets)
                    };
                    let all = Machine::X86_64.isa().exits(
                        &at(known.function.address),
                        known.function.address,
                        Some(0),
                        false,
                    );
                    let own: Vec<u64> =
                        plan.exits(site.request.id).map(|exit| exit.request.address).collect();
                    assert!(
                        all.unwrap().iter().filter(returns).all(|exit| own.contains(&exit.address)),
                        "{own:x?}"
                    );
                }
            }
        }
        if !plan.pairs() {
            assert!(plan.sites.iter().all(|site| !site.request.wanted.is_hook()), "a hook for nothing");
        }
        planned += plan.sites.len();
        refused.extend(plan.skipped.iter().map(|(_, refusal)| refusal.code()));
    }
    assert!(planned > 500 && exits + through > 0 && beside > 0, "{planned} {exits} {through} {beside}");
    assert!(turns.iter().all(|&turns| turns >= 10), "{turns:?}");
    // The generator reaches what it is for.
    for code in [
        "branch_into",
        "overlaps",
        "may_fault",
        "shadow_stack",
        "unwinder",
        "runtime",
        "entry_point",
        "walks_stack",
        "returns_oddly",
        "chooses_by_caller",
        "part",
        "not_called",
        "tail_call_unknown",
        "unread",
        "computed_jump",
    ] {
        assert!(refused.contains(code), "{code} was never met: {refused:?}");
    }
}

#[test]
fn a_reason_has_a_name_and_a_text_without_addresses() {
    for (refusal, code, group) in [
        (
            Refusal::Verdict(Reason::BranchInto(0x1234)),
            "branch_into",
            "a branch leads inside the displaced instructions",
        ),
        (Refusal::Overlaps(0x1234), "overlaps", "another probe displaces these instructions"),
        (
            Refusal::GoesOn("_setjmp".to_owned()),
            "tail_call_unknown",
            "it goes on in a function that cannot be followed",
        ),
        (Refusal::Verdict(Reason::Unmovable("syscall")), "unmovable", "syscall cannot be moved"),
    ] {
        assert_eq!((refusal.code(), refusal.group().as_str()), (code, group));
    }
}

#[test]
fn of_sites_that_share_bytes_the_first_that_was_asked_for_is_armed() {
    // push rax, many times: a jump displaces five of them, from wherever it begins.
    let text = [0x50; 200];
    let function = Function { address: TEXT, bytes: &text, size: text.len() };
    let targets = BranchTargets::default();
    let functions = Functions::new();
    let mut random = Random(20_261_122);
    for _ in 0..200 {
        let module = module(Machine::X86_64, &targets, &functions, &());
        let addresses: Vec<u64> = (0..30).map(|_| TEXT + random.below(150)).collect();
        let wanted = Wanted { entries: true, ..Wanted::default() };
        let all = (0..).zip(&addresses).map(|(id, &address)| request(id, function, address, wanted));
        let requests: Vec<Request<'_>> = all.collect();
        let plan = Plan::new(&Facts::default(), vec![module], &requests, &[Mechanism::Jump], Home::default());
        let mut armed: Vec<u64> = Vec::new();
        for (id, &address) in (0..).zip(&addresses) {
            match (plan.answers()[&id], armed.iter().find(|other| other.abs_diff(address) < 5)) {
                (Ok(site), None) => armed.push(site.displaced.start),
                (Err(Refusal::Overlaps(other)), Some(_)) => {
                    assert!(armed.contains(other) && other.abs_diff(address) < 5);
                }
                other => panic!("{address:#x}: {other:?}"),
            }
        }
        assert!(armed.len() > 10);
    }
}

/// A script with one body, that returns at once.
fn script() -> Script {
    let body = Code { bytes: vec![0xc3], takes: Takes::NONE, frame: 8, ..Code::default() };
    let program = Program { routines: Vec::new(), bodies: vec![body] };
    Script { program, shared: vec![1], shared_size: 5000, block_size: 100, walks: None, interpreter: None }
}

#[test]
fn a_scripts_code_runs_by_jumps_and_where_there_is_native_code() {
    // push rax, many times; then 0 for arm64.
    let text = [0x50; 64];
    let function = Function { address: TEXT, bytes: &text, size: text.len() };
    let (targets, functions, script) = (BranchTargets::default(), Functions::new(), script());
    let clause = [script.clause(0).unwrap()];
    assert_eq!(script.clause(1), None);
    assert!(script.check().is_ok());
    let plan = |machine, mechanism, allowed: &[Mechanism], script| {
        let module = module(machine, &targets, &functions, &());
        let wanted = Wanted { run_entry: true, ..Wanted::default() };
        let clauses = Clauses { entry: &clause, ..Clauses::default() };
        let request = Request { mechanism, clauses, ..request(3, function, TEXT, wanted) };
        let facts = Facts::default();
        let plan = Plan::with_script(&facts, vec![module], &[request], allowed, Home::default(), script);
        (plan.skipped, plan.geometry.block_stride(), plan.sites.len())
    };
    let jump = [Mechanism::Jump];
    let x86 = Machine::X86_64;
    assert_eq!(plan(x86, None, &jump, Some(&script)), (vec![], 2 * PAGE, 1));
    let refused = |refusal| vec![(3, refusal)];
    let traps = [Mechanism::Boost, Mechanism::Step];
    for (mechanism, allowed) in [(None, &traps[..]), (Some(Mechanism::Boost), &jump)] {
        let skipped = plan(x86, mechanism, allowed, Some(&script)).0;
        assert!(matches!(skipped[..], [(3, Refusal::BodyTraps(_))]), "nobody interprets it: {skipped:?}");
    }
    let interpreted =
        |refuses| Script { interpreter: Some(Arc::new(Interprets { refuses })), ..script.clone() };
    let (runs, refuses) = (interpreted(false), interpreted(true));
    for machine in [x86, Machine::I386] {
        assert_eq!(plan(machine, None, &traps, Some(&runs)), (vec![], 2 * PAGE, 1), "{machine:?}");
        let skipped = plan(machine, None, &traps, Some(&refuses)).0;
        assert_eq!(skipped, refused(Refusal::BodyTraps("it does not like it")), "{machine:?}");
    }
    // Where a jump fits it does not matter what a trap could not do.
    assert_eq!(plan(x86, None, &Mechanism::ALL, Some(&refuses)).2, 1);
    assert_eq!(plan(Machine::I386, None, &jump, Some(&runs)).0, refused(Reason::NoBodies.into()));
    assert_eq!(plan(x86, None, &jump, None).0, refused(Refusal::NoCounters));
    assert_eq!(plan(Machine::I386, None, &jump, Some(&script)).0, refused(Reason::NoBodies.into()));
}

#[test]
fn code_that_loses_scalable_vectors_runs_where_nothing_is_in_them() {
    let text = [0x1f, 0x20, 0x03, 0xd5].repeat(8);
    let function = Function { address: TEXT, bytes: &text, size: text.len() };
    let (targets, functions, script) = (BranchTargets::default(), Functions::new(), script());
    let code = All(vec![function]);
    let plan = |vectors, loses, address| {
        let module = module(Machine::AArch64, &targets, &functions, &code);
        let clause = [Clause { vectors: loses, ..script.clause(0).unwrap() }];
        let wanted = Wanted { run_entry: true, ..Wanted::default() };
        let clauses = Clauses { entry: &clause, ..Clauses::default() };
        let request = Request { clauses, ..request(3, function, address, wanted) };
        let (facts, jump) = (Facts { vectors, ..Facts::default() }, [Mechanism::Jump]);
        Plan::with_script(&facts, vec![module], &[request], &jump, Home::default(), Some(&script)).skipped
    };
    let refused = vec![(3, Refusal::from(Reason::ScalableVectors))];
    let inside = TEXT + 8;
    for (vectors, loses, address, expected) in [
        (Vectors::Kept, true, inside, vec![]),
        (Vectors::Scalable, false, inside, vec![]),
        (Vectors::Scalable, true, TEXT, vec![]),
        (Vectors::Scalable, true, inside, refused.clone()),
        (Vectors::Streaming, true, TEXT, refused.clone()),
        (Vectors::Streaming, false, TEXT, vec![]),
    ] {
        assert_eq!(plan(vectors, loses, address), expected, "{vectors:?} {loses} {address:#x}");
    }
}

/// What would run bodies at traps.
#[derive(Debug)]
struct Interprets {
    refuses: bool,
}

impl Interpreter for Interprets {
    fn refuses(&self, _body: u16, _machine: Machine) -> Option<&'static str> {
        self.refuses.then_some("it does not like it")
    }

    fn run(&self, _body: u16, _memory: &TrapMemory<'_>, _hit: &TrapHit<'_>) {}
}

#[test]
fn a_script_that_is_not_well_formed_is_refused() {
    let with = |change: fn(&mut Script)| {
        let mut script = script();
        change(&mut script);
        script.check().is_ok()
    };
    assert!(with(|_| {}));
    let cases: [fn(&mut Script); 6] = [
        |script| script.program.bodies[0].bytes.clear(),
        |script| script.program.bodies[0].frame = 1 << 20,
        |script| script.program.bodies[0].holes.push((0, Hole::Shared(0))),
        |script| script.program.bodies[0].bytes.resize(65 << 20, 0x90),
        |script| script.shared.resize(6000, 0),
        |script| {
            let takes = Takes::of(&[Extra::Tid]);
            script.program.routines.push(Code { takes, ..script.program.bodies[0].clone() });
        },
    ];
    for (number, case) in cases.into_iter().enumerate() {
        assert!(!with(case), "{number}");
    }
}
