//! A verdict on every request of a plan: by which mechanism, and how calls are followed.
//!
//! What a site is asked for decides which mechanisms come into question. A script's bodies are code that detours call, where there is code for
//! the machine; at a trap an interpreter runs them, as far as it does.

use crate::admit::{Best, Facts, Vectors, best, entry_of, exits, judge_returns, lets_change};
use crate::plan::TRAPLESS;
use crate::{Clause, LivePatch, Module, Refusal, Request, Role, Script, Wanted, spread};
use trapless_isa::body::Extra;
use trapless_isa::{Mechanism, Reason};

/// What verdicts depend on, beside the request.
#[derive(Clone, Copy)]
pub(crate) struct Judge<'a, 'm> {
    pub facts: &'a Facts,
    pub modules: &'a [Module<'m>],
    /// The mechanisms that may be used where a request does not name one.
    pub allowed: &'a [Mechanism],
    /// Whose bodies run.
    pub script: Option<&'a Script>,
}

/// By which mechanisms bodies can run at a site.
pub(crate) struct BodyWays {
    /// At least one.
    pub mechanisms: Vec<Mechanism>,
    /// Why those are not among them that trap, though they were allowed.
    untraced: Option<&'static str>,
}

impl<'m> Judge<'_, 'm> {
    /// The requests, with how calls are followed: where they cannot be paired, by the exits, which come last. Those for which neither can be are
    /// missing. An unwinder's entry stays, to be hooked.
    pub fn with_ways(&self, requests: &[Request<'m>], skipped: &mut Vec<(u32, Refusal)>) -> Vec<Request<'m>> {
        let Judge { facts, modules, allowed, .. } = *self;
        let follows = |request: &&Request<'m>| request.wanted.follows();
        let followed: Vec<Request<'m>> = requests.iter().filter(follows).copied().collect();
        let verdicts = judge_returns(facts, modules, &followed);
        let verdicts: Vec<_> = followed.into_iter().zip(verdicts).collect();
        let jumps = allowed.iter().any(|mechanism| !mechanism.traps());
        let ways = spread::map(&verdicts, |(request, verdict)| match verdict {
            Ok(()) => Ok(vec![*request]),
            Err(refusal) if !jumps && request.mechanism.is_none() => Err(refusal.clone()),
            // What is left by a jump to another function has no result yet.
            Err(refusal) if takes_changes(request.clauses.at_return) => Err(refusal.clone()),
            // Exits are probed by jumps.
            Err(refusal) if self.is_interpreted(request) => Err(refusal.clone()),
            Err(refusal) => exits(facts, modules, request, refusal.clone()),
        });
        let mut ways = ways.into_iter();
        let mut left = Vec::new();
        let mut judged = Vec::with_capacity(requests.len());
        for request in requests {
            if !request.wanted.follows() {
                judged.push(*request);
                continue;
            }
            match ways.next() {
                Some(Ok(sites)) => {
                    judged.extend(sites.first());
                    left.extend(sites.into_iter().skip(1));
                }
                Some(Err(refusal)) => {
                    skipped.push((request.id, refusal));
                    let hook = request.wanted.hooks();
                    judged.extend(hook.is_hook().then_some(Request { wanted: hook, ..*request }));
                }
                None => {}
            }
        }
        judged.extend(left);
        judged
    }

    /// A verdict on each.
    pub fn all(&self, requests: &[Request<'m>]) -> Vec<Result<Best<'m>, Refusal>> {
        spread::map(requests, |request| self.verdict(request))
    }

    fn verdict(&self, request: &Request<'m>) -> Result<Best<'m>, Refusal> {
        let best = |mechanisms: &[Mechanism]| best(self.facts, self.modules, request, mechanisms);
        match (request.wanted.unwinder, request.mechanism) {
            // What is only noted is not served by a tracer.
            (_, None) if request.role != Role::Whole => {
                let jumps = self.allowed.iter().copied().filter(|mechanism| !mechanism.traps());
                let jumps: Vec<Mechanism> = jumps.collect();
                if jumps.is_empty() { best(&TRAPLESS) } else { best(&jumps) }
            }
            (Some(unwinder), _) => best(unwinder.mechanisms()),
            (None, _) if request.wanted.gate => best(&TRAPLESS),
            (None, _) if request.live_patch.is_some() => best(self.ways_of_live_patch(request)?),
            (None, _) if request.wanted.runs() => {
                let BodyWays { mechanisms, untraced } = self.ways_of_bodies(request)?;
                // What may be had by another script says more than what may not be had by any.
                best(&mechanisms).map_err(|refusal| untraced.map_or(refusal, Refusal::BodyTraps))
            }
            (None, Some(only)) => best(&[only]),
            (None, None) => best(self.allowed),
        }
    }

    /// By which mechanisms a function can be replaced, or a thread be caught at one: where the first can be.
    ///
    /// # Errors
    /// It is none that calls alone arrive at, or the instruction set has not the code.
    fn ways_of_live_patch(&self, request: &Request<'m>) -> Result<&'static [Mechanism], Refusal> {
        let machine = self.modules[request.module].machine;
        if !machine.isa().replaces() || request.role != Role::Whole {
            return Err(Reason::NoReplacement.into());
        }
        lets_change(self.modules, request)?;
        match request.live_patch {
            Some(LivePatch::Load(_)) => Ok(&[Mechanism::Boost, Mechanism::Emulate, Mechanism::Step]),
            // What is done there for others is not to be lost.
            _ if request.wanted != Wanted::default() => Err(Reason::NoReplacement.into()),
            _ => Ok(&TRAPLESS),
        }
    }

    /// Whether there is no code for the bodies of a request that detours could call.
    fn is_interpreted(&self, request: &Request<'m>) -> bool {
        request.wanted.runs() && self.bodies(request).is_err()
    }

    /// Whether detours can call the bodies of a request.
    fn bodies(&self, request: &Request<'m>) -> Result<(), Refusal> {
        let module = &self.modules[request.module];
        let has_code = self.script.is_none_or(|script| script.has_code(&request.clauses));
        if !(has_code && module.machine.isa().runs_bodies()) {
            return Err(Reason::NoBodies.into());
        }
        if changes_calls(request) {
            lets_change(self.modules, request)?;
        }
        let loses_vectors = match self.facts.vectors {
            Vectors::Kept => false,
            _ if !request.clauses.all().any(|clause| clause.vectors) => false,
            Vectors::Scalable => {
                let inside = request.address != entry_of(module, &request.function);
                module.code.may_hold_vectors(request.function.address, inside)
            }
            Vectors::Streaming => true,
        };
        if loses_vectors { Err(Reason::ScalableVectors.into()) } else { Ok(()) }
    }

    /// By which of the allowed mechanisms the bodies of a request can run.
    ///
    /// # Errors
    /// By none of them.
    pub fn ways_of_bodies(&self, request: &Request<'m>) -> Result<BodyWays, Refusal> {
        let allowed = request.mechanism.as_ref().map_or(self.allowed, std::slice::from_ref);
        let traps = allowed.iter().any(|mechanism| mechanism.traps());
        let machine = self.modules[request.module].machine;
        let untraced = match (traps, self.script) {
            (true, Some(script)) => script.untraced(&request.clauses, machine),
            _ => None,
        };
        let bodies = self.bodies(request);
        let is_way =
            |mechanism: &Mechanism| if mechanism.traps() { untraced.is_none() } else { bodies.is_ok() };
        let mechanisms: Vec<Mechanism> = allowed.iter().copied().filter(is_way).collect();
        match (mechanisms.is_empty(), bodies, untraced) {
            (false, ..) => Ok(BodyWays { mechanisms, untraced }),
            // No trap would help.
            (true, Err(refusal), _) if changes_calls(request) => Err(refusal),
            (true, _, Some(why)) => Err(Refusal::BodyTraps(why)),
            (true, bodies, None) => Err(bodies.err().unwrap_or(Reason::NoBodies.into())),
        }
    }
}

/// Whether one of its bodies changes what a call does.
fn changes_calls(request: &Request<'_>) -> bool {
    takes_changes(request.clauses.entry) || takes_changes(request.clauses.at_return)
}

fn takes_changes(clauses: &[Clause]) -> bool {
    clauses.iter().any(|clause| clause.takes.has(Extra::Changes))
}
