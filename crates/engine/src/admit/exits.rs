//! Where a call may not be paired: can it be followed to the places where its function is left?
//!
//! Nothing on the stack changes then, so nobody minds who looks at return addresses: run-time systems, the function itself, the processor.
//! What is needed is that every such place is known, in the function and in the parts of it that stand elsewhere, and that a call can be
//! named until then: by its stack slot where stacks stay where they are, in Go by its goroutine (`go`), and by nothing where they are copied away.

use super::{Arrival, Facts, Functions, Known, Runtime, go};
use crate::plan::site_of;
use crate::{Function, Module, Refusal, Request, Role, Wanted};
use std::collections::HashSet;
use trapless_isa::{Exit, Identity, Leaves, Mechanism, Reason, Site};

/// The requests for the entry and the exits of a function whose calls may not be paired for the reason `refusal`, the entry first.
///
/// # Errors
/// Why there are none: `refusal`, where that is in the way of exits, too.
pub fn exits<'m>(
    facts: &Facts,
    modules: &[Module<'m>],
    request: &Request<'m>,
    refusal: Refusal,
) -> Result<Vec<Request<'m>>, Refusal> {
    let module = &modules[request.module];
    let known = module.functions.get(&request.function.address);
    let (Some(known), true) = (known, is_overcome(facts, module, &refusal)) else { return Err(refusal) };
    // What is done there for the program keeps the entry for itself.
    let is_taken = request.wanted.hooks() != Wanted::default();
    if is_taken
        || request.address != go::entry_of(module, &known.function)
        || is_generated(module, known)
        || known.arrival == Arrival::Jumped
        || request.mechanism.is_some_and(|mechanism| mechanism.traps())
    {
        return Err(refusal);
    }
    let by = go::identity(module, &known.function)?;
    let is_resumed = by == Identity::Goroutine;
    let mut parts =
        Parts { module, main: known.function, is_resumed, seen: HashSet::new(), found: Vec::new() };
    let site = site_of(request, modules);
    match module.machine.isa().exits(&site, site.function, Some(0), is_resumed) {
        Ok(exits) => parts.take(known.function, exits)?,
        // Another instruction set.
        Err(Reason::NotImplemented) => return Err(refusal),
        Err(reason) => return Err(reason.into()),
    }
    let Wanted { returns, latency, record_return, run_return, .. } = request.wanted;
    let wanted = Wanted { returns, latency, record_return, run_return, ..Wanted::default() };
    if let (true, Some((_, address, _))) = (run_return, parts.found.iter().find(|(.., result)| !result)) {
        return Err(Refusal::NoResult(*address));
    }
    let exit = |(function, address, result)| Request {
        function,
        address,
        wanted,
        role: Role::Exit { by, result },
        mechanism: None,
        semaphores: &[],
        ..*request
    };
    let mut entry = Request { role: Role::Noted { by }, ..*request };
    let mut found = parts.found;
    if let Some((index, role)) = through(module, &site, by, &found) {
        found.remove(index);
        entry.role = role;
    }
    Ok(std::iter::once(entry).chain(found.into_iter().map(exit)).collect())
}

/// The exit that is so close to the entry that both take the same instructions, by its index, if one detour can be done with both.
fn through(
    module: &Module<'_>,
    entry: &Site<'_>,
    by: Identity,
    exits: &[Place<'_>],
) -> Option<(usize, Role)> {
    let isa = module.machine.isa();
    let at = |site: &Site<'_>| isa.rung(site, Mechanism::Jump);
    let own = at(entry);
    let next = exits.iter().enumerate().filter(|(_, exit)| exit.1 >= entry.address);
    let (index, &(function, address, result)) = next.min_by_key(|(_, exit)| exit.1)?;
    let own_end = own.map_or(u64::MAX, |own| own.end());
    let there = at(&Site { address, function: function.address, code: function.code(), ..*entry });
    if holds(&function, entry.address) && there.map_or(address, |there| there.start) < own_end {
        isa.through(entry, address).ok()?;
        return Some((index, Role::Through { by, exit: address, result }));
    }
    None
}

/// A place where a function is left: the function or part that it is in, its address, and whether the result is there.
type Place<'m> = (Function<'m>, u64, bool);

/// Whether what is in the way of pairing is not in the way of exits.
fn is_overcome(facts: &Facts, module: &Module<'_>, refusal: &Refusal) -> bool {
    // A call can be named as long as it is called on a stack, and the stack is not taken away.
    if module.runtimes.contains(Runtime::Ghc)
        || facts.runtimes.with(module.runtimes).contains(Runtime::CopiedStacks)
    {
        return false;
    }
    match refusal {
        Refusal::Runtime(_)
        | Refusal::RuntimeInProcess(_)
        | Refusal::ShadowStack
        | Refusal::ChoosesByCaller
        | Refusal::ReportsCaller
        | Refusal::NotCalled
        | Refusal::GoesOn(_)
        | Refusal::Unwinder => true,
        Refusal::Verdict(reason) => {
            matches!(reason, Reason::ReadsReturnAddress | Reason::ReturnsOddly | Reason::MovesStackPointer)
        }
        _ => false,
    }
}

/// Whether V8's compiler made the function. Such code calls and returns by conventions of its own: it goes on in the handler of the next
/// bytecode, or returns with the arguments off the stack.
pub(super) fn is_generated(module: &Module<'_>, known: &Known<'_>) -> bool {
    module.runtimes.contains(Runtime::V8) && known.names.iter().any(|name| name.starts_with("Builtins_"))
}

/// The exits of a function and of its parts.
struct Parts<'a, 'm> {
    module: &'a Module<'m>,
    main: Function<'m>,
    /// Whether the run-time system may go on behind calls.
    is_resumed: bool,
    /// Where parts were entered.
    seen: HashSet<u64>,
    found: Vec<Place<'m>>,
}

impl<'m> Parts<'_, 'm> {
    /// Takes the exits of one of them.
    fn take(&mut self, function: Function<'m>, exits: Vec<Exit>) -> Result<(), Refusal> {
        for Exit { address, leaves } in exits {
            match leaves {
                Leaves::Return => self.leave(function, address, true),
                Leaves::Indirect => self.leave(function, address, false),
                Leaves::Jump { target, depth } | Leaves::Branch { target, depth } => {
                    let is_jump = matches!(leaves, Leaves::Jump { .. });
                    match self.reached(target, depth)? {
                        Reached::Itself => {}
                        Reached::Part(part) => self.go_on(part, target, depth)?,
                        Reached::Another if is_jump => self.leave(function, address, false),
                        Reached::Another => return Err(Reason::LeavesByCondition.into()),
                    }
                }
            }
        }
        Ok(())
    }

    fn leave(&mut self, function: Function<'m>, address: u64, result: bool) {
        if !self.found.iter().any(|found| found.1 == address) {
            self.found.push((function, address, result));
        }
    }

    /// Takes those of a part, which is entered with the stack as it is.
    fn go_on(&mut self, part: Function<'m>, start: u64, depth: Option<i64>) -> Result<(), Refusal> {
        if !self.seen.insert(start) {
            return Ok(());
        }
        let isa = self.module.machine.isa();
        let exits = isa.exits(&self.module.whole(&part), start, depth, self.is_resumed)?;
        self.take(part, exits)
    }

    /// What a jump out of the function or a part of it leads to.
    fn reached(&self, target: u64, depth: Option<i64>) -> Result<Reached<'m>, Refusal> {
        if holds(&self.main, target) {
            return Ok(Reached::Itself);
        }
        match containing(self.module.functions, target) {
            Some(known) if known.arrival == Arrival::Jumped => Ok(Reached::Part(known.function)),
            Some(known) if known.arrival == Arrival::Called && known.function.address == target => {
                match depth {
                    Some(0) | None => Ok(Reached::Another),
                    Some(_) => Err(Reason::LeavesUnclearly.into()),
                }
            }
            // A stub that leads to another module.
            None if depth == Some(0) => Ok(Reached::Another),
            _ => Err(Reason::LeavesUnclearly.into()),
        }
    }
}

enum Reached<'m> {
    /// The function goes on in itself.
    Itself,
    /// In a part of it that stands elsewhere.
    Part(Function<'m>),
    /// It is left.
    Another,
}

fn holds(function: &Function<'_>, address: u64) -> bool {
    address.checked_sub(function.address).is_some_and(|offset| offset < function.code().len() as u64)
}

/// The function that is known to have code at `address`.
fn containing<'a, 'm>(functions: &'a Functions<'m>, address: u64) -> Option<&'a Known<'m>> {
    let (_, known) = functions.range(..=address).next_back()?;
    holds(&known.function, address).then_some(known)
}
