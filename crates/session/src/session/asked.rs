//! What is asked for in a session, and what that means at each site.

use crate::name::SiteName;
use crate::resolve::{Kinds, Site, Sites};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use trapless_engine::{Clause, LivePatch, Script, Wanted};
use trapless_isa::Mechanism;
use trapless_isa::body::Extra;
use trapless_isa::detour::MOST_FETCHED;
use trapless_isa::passed;

/// What is done with sites, besides what each of them says.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The mechanisms that may be used.
    pub allowed: Vec<Mechanism>,
    /// What is asked for at sites that may be added later ([`Session::add`](super::Session::add)), if there may be any.
    pub later: Option<Kinds>,
    /// The script whose bodies are called at what sites ask for, if there is one.
    pub run: Option<Arc<Run>>,
    /// Whether hits are counted, too, where there is one.
    pub counts: bool,
    /// What is done at a function to have another one called, if it is for that.
    pub live_patch: Option<Arc<LivePatch>>,
}

/// A script, and which of its bodies are called where.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Its code and memory.
    pub script: Script,
    /// For each of the specifications that sites were resolved from, in their order, the number of the body that is called at what it means: at
    /// the entry or the instruction where it asks for that, and at the return where it asks for that. Several may mean one site, and are
    /// called in this order. Of one without a body nothing is called.
    pub clauses: Vec<RunAt>,
    /// What bodies are told of where they are called.
    pub numbers: Arc<SiteNumbers>,
    /// What becomes of sites at which they would have to read an argument of a USDT probe from memory.
    pub memory_operands: MemoryOperands,
    /// What becomes of a body that several specifications call at one site.
    pub overlap: Overlap,
    /// The same bodies for functions of Go's, if the process has such.
    pub in_go: Option<InGo>,
}

/// Bodies for functions that Go's compiler has made, which get their arguments in other registers.
#[derive(Clone, Debug)]
pub struct InGo {
    /// What is added to the number of a body for that of the same one in such a function.
    pub first: u16,
    /// By the number of each body, the last of the function's arguments that it asks for, if it does for any.
    pub arguments: Vec<Option<u8>>,
}

/// By which convention a function gets its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Convention {
    /// That of C.
    C,
    /// That of Go's compiler, 1.18 or later.
    Go,
    /// In a program of Go's, one that is not known: assembly, or an older compiler.
    Unknown,
}

/// Whether bodies read arguments of USDT probes that are in memory. Where one is not on the detour's own page of the stack, this takes a system
/// call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryOperands {
    /// They do.
    #[default]
    Read,
    /// Such sites are left out: the process might be killed for the call.
    LeftOut,
}

/// What becomes of a body that several specifications call at one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// It is called for each of them, as scripts mean it.
    #[default]
    Each,
    /// It is called once: a site is meant or it is not.
    Once,
}

/// Numbers of sites, which bodies are told: one for each name in a file, the same in all processes that are given these.
///
/// The ids of probes are a session's own: what one process calls 3 is something else in the next.
#[derive(Debug, Default)]
pub struct SiteNumbers(Mutex<HashMap<(String, String), u32>>);

impl SiteNumbers {
    /// The number of the site with this name in the file at this path.
    ///
    /// ```
    /// use trapless_session::name::SiteName;
    /// use trapless_session::session::SiteNumbers;
    ///
    /// let (numbers, main) = (SiteNumbers::default(), SiteName::new("main", 0));
    /// let first = numbers.of("/bin/ls", &main);
    /// assert_ne!(numbers.of("/bin/cat", &main), first);
    /// assert_eq!(numbers.of("/bin/ls", &main), first);
    /// ```
    pub fn of(&self, path: &str, name: &SiteName) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // There is no memory for as many names as there are numbers.
        let next = known.len() as u32;
        *known.entry((path.to_owned(), name.text().to_owned())).or_insert(next)
    }
}

/// Where the body of a clause is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAt {
    /// At an entry, an instruction or a USDT probe.
    Entry(u16),
    /// At the return.
    Return(u16),
    /// One at the entry and one at the return, as far as the specification asks for them.
    Call(u16, u16),
}

impl Asked {
    /// To measure what sites ask for, by these mechanisms, at the sites that there are.
    pub fn of(allowed: &[Mechanism]) -> Self {
        Self { allowed: allowed.to_vec(), later: None, run: None, counts: true, live_patch: None }
    }

    /// To call bodies of a script where its clauses say, and measure nothing: by jumps alone, unless other mechanisms are allowed.
    pub fn run(run: Run) -> Self {
        let allowed = vec![Mechanism::Jump, Mechanism::Short];
        Self { allowed, later: None, run: Some(Arc::new(run)), counts: false, live_patch: None }
    }
}

impl Run {
    /// Whether one of its bodies changes what calls do.
    pub(super) fn changes_calls(&self) -> bool {
        self.script.program.bodies.iter().any(|body| body.takes.has(Extra::Changes))
    }

    /// The clauses of a site that these specifications mean, in a function of such a convention.
    pub(super) fn clauses(&self, asked: &[u32], convention: Convention) -> [Vec<Clause>; 2] {
        let mut all = [const { Vec::new() }; 2];
        let mut called: Vec<RunAt> = Vec::new();
        for number in asked {
            let at = self.at(*number);
            if self.overlap == Overlap::Once && at.is_some_and(|at| called.contains(&at)) {
                continue;
            }
            called.extend(at);
            let [entry, at_return] = match at {
                Some(RunAt::Entry(body)) => [Some(body), None],
                Some(RunAt::Return(body)) => [None, Some(body)],
                Some(RunAt::Call(entry, at_return)) => [Some(entry), Some(at_return)],
                None => continue,
            };
            let first = self.in_go.as_ref().filter(|_| convention != Convention::C).map_or(0, |go| go.first);
            for (list, body) in all.iter_mut().zip([entry, at_return]) {
                list.extend(body.and_then(|body| self.script.clause(body.checked_add(first)?)));
            }
        }
        all
    }

    /// An argument that some body asks for at the entry of what these specifications mean.
    pub(super) fn argument_asked(&self, asked: &[u32]) -> Option<u8> {
        let go = self.in_go.as_ref()?;
        asked.iter().find_map(|number| match self.at(*number)? {
            RunAt::Entry(body) | RunAt::Call(body, _) => {
                go.arguments.get(usize::from(body)).copied().flatten()
            }
            RunAt::Return(_) => None,
        })
    }

    /// For each of the entry's clauses of such a site, in their order: the specification's number, and the operands that its body asks for.
    pub(super) fn operands<'a>(
        &'a self,
        asked: &'a [u32],
    ) -> impl Iterator<Item = (u32, &'a [passed::Wanted])> {
        asked.iter().filter_map(|number| match self.at(*number) {
            Some(RunAt::Entry(body)) => {
                let code = self.script.program.bodies.get(usize::from(body))?;
                Some((*number, code.operands.as_slice()))
            }
            _ => None,
        })
    }

    fn at(&self, number: u32) -> Option<RunAt> {
        usize::try_from(number).ok().and_then(|number| self.clauses.get(number)).copied()
    }
}

/// Whether calls are followed to their return.
pub(super) fn follows(sites: &Sites) -> bool {
    sites.sites.iter().any(|site| site.kinds.follows())
}

impl Asked {
    /// Whether it is to load a library: then nothing else is touched.
    pub(crate) fn loads(&self) -> bool {
        matches!(self.live_patch.as_deref(), Some(LivePatch::Load(_)))
    }

    pub(crate) fn wanted(&self, site: &Site) -> Wanted {
        if let Some(LivePatch::Replace(_)) = self.live_patch.as_deref().filter(|_| site.kinds.are_any()) {
            return Wanted::default();
        }
        let wanted = Wanted { unwinder: site.unwinder, ..self.wanted_of(site.kinds) };
        let records = site.kinds.traced.is_some() && site.kinds.are_any() && self.run.is_none();
        match records && !site.usdt.is_empty() {
            // As many as its notes name.
            true => Wanted { record_entry: Some(MOST_FETCHED as u8), record_return: false, ..wanted },
            false => wanted,
        }
    }

    /// What is wanted at a site that is no USDT probe's.
    pub(super) fn wanted_of(&self, kinds: Kinds) -> Wanted {
        let Kinds { entry, returns, timed, traced } = kinds;
        if self.run.is_some() {
            let of_bodies = Wanted { run_entry: entry, run_return: returns, ..Wanted::default() };
            return match self.counts {
                true => Wanted { entries: entry, returns, ..of_bodies },
                false => of_bodies,
            };
        }
        Wanted {
            entries: entry || timed,
            record_entry: traced.filter(|&arguments| entry || (kinds.follows() && arguments > 0)),
            returns: kinds.follows(),
            record_return: kinds.follows() && traced.is_some(),
            latency: timed,
            ..Wanted::default()
        }
    }
}
