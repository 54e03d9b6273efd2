//! Functions whose return must be left alone: for what they are, and for where they go on.
//!
//! Following a call takes the return address from the top of the stack. That is only right where a call arrives: a
//! part that is jumped to (`.cold`) has some word of its function's frame there. The symbol table says which is which;
//! a stripped file does not, so what only its unwind table knows must be seen to be called.
//!
//! What a function must not do with its return address, it must not have done by another either: `_setjmp` jumps to
//! `__sigsetjmp`, which would save a return point. So the functions that are reached by tail jumps are judged, too.

use super::Prepared;
use crate::resolve::{self, Site};
use crate::survey::{self, Flows};
use crate::target::{self, Image};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use trapless_engine::{Request, Wanted};
use trapless_isa::{BranchTargets, Flow, Isa, Site as Code};
use trapless_process::Process;
use trapless_symbols::{Function, Kind, Module, ModuleKind, Origin};

/// Takes out requests that follow functions which do not return plainly. An unwinder's entry stays, to be hooked.
pub(super) fn without_odd_returns<'m>(
    prepared: &Prepared<'_>,
    process: &Process,
    requests: Vec<Request<'m>>,
    refused: &mut Vec<(u32, String)>,
) -> Vec<Request<'m>> {
    let mut files: BTreeMap<usize, Option<File<'_>>> = BTreeMap::new();
    let mut kept = Vec::with_capacity(requests.len());
    for mut request in requests {
        let site = &prepared.sites.sites[request.id as usize];
        let open = || File::open(&prepared.images[site.image], process, prepared.targets.get(&site.image)?);
        let reason = match files.entry(site.image).or_insert_with(open) {
            Some(file) if request.wanted.follows() => file.odd(site),
            _ => None,
        };
        match reason {
            Some(reason) => {
                refused.push((request.id, reason));
                request.wanted = Wanted { restore_returns: site.unwinder, ..Wanted::default() };
                if site.unwinder {
                    kept.push(request);
                }
            }
            None => kept.push(request),
        }
    }
    kept
}

/// A file and what was found out about its functions.
struct File<'i> {
    module: &'i Module,
    isa: &'static dyn Isa,
    /// Of the file as it is loaded.
    targets: &'i BranchTargets,
    bias: u64,
    flows: OnceCell<Option<Flows>>,
    pointers: OnceCell<Vec<u64>>,
    /// Functions that return plainly, and so does all that they jump to.
    plain: BTreeSet<usize>,
}

impl<'i> File<'i> {
    fn open(image: &'i Image, process: &Process, targets: &'i BranchTargets) -> Option<Self> {
        let module = image.module(Some(process)).ok()?;
        Some(File {
            module,
            isa: target::machine(module).isa(),
            targets,
            bias: image.bias(Some(process)).ok()?,
            flows: OnceCell::new(),
            pointers: OnceCell::new(),
            plain: BTreeSet::new(),
        })
    }

    /// Why the function at `site` must not be followed to its return.
    fn odd(&mut self, site: &Site) -> Option<String> {
        if self.module.is_go() {
            return Some("Go moves its stacks, and knows every return address on them".to_owned());
        }
        if self.module.entry() == site.address {
            return Some("nobody calls the entry point".to_owned());
        }
        if site.unwinder {
            return Some("it walks the stack from its own return address on".to_owned());
        }
        let function = self.module.functions().get(site.function)?;
        if let Some(reason) = function.names().find_map(|name| resolve::returns_oddly(name.plain())) {
            return Some(reason.to_owned());
        }
        if !self.is_called(function) {
            return Some(
                "the function is not seen to be called: it may be a part that is jumped to".to_owned(),
            );
        }
        self.odd_end(function)
    }

    /// Whether calls arrive at the function, so that the return address is on top of the stack.
    fn is_called(&self, function: Function<'_>) -> bool {
        let address = function.address();
        match (function.kind(), function.origin()) {
            (Kind::Part, _) => false,
            (_, Origin::UnwindTable) => {
                let flows = self.flows.get_or_init(|| survey::flows(self.module, self.isa).ok());
                let Some(flows) = flows else { return false };
                flows.calls(address) || !flows.jumps(address) && self.is_pointed_to(address)
            }
            _ => true,
        }
    }

    /// Whether the loader makes a pointer to `address`. Not asked of fixed executables: their pointers are not
    /// told from jump tables.
    fn is_pointed_to(&self, address: u64) -> bool {
        let pointers = self.pointers.get_or_init(|| match self.module.kind() {
            ModuleKind::FixedExecutable => Vec::new(),
            _ => self.module.code_pointers(),
        });
        pointers.binary_search(&address).is_ok()
    }

    /// Why a function that is reached by tail jumps from `first` makes it return oddly.
    fn odd_end(&mut self, first: Function<'_>) -> Option<String> {
        let mut seen = BTreeSet::from([first.index()]);
        let mut ways = vec![first];
        while let Some(function) = ways.pop() {
            for next in self.jumps_of(function) {
                if self.plain.contains(&next.index()) || !seen.insert(next.index()) {
                    continue;
                }
                if self.returns_oddly(next) {
                    return Some(format!("it goes on in {}, which cannot be followed", next.name().plain()));
                }
                ways.push(next);
            }
        }
        // Of the first one only the planner's verdict will tell.
        seen.remove(&first.index());
        self.plain.extend(seen);
        None
    }

    fn returns_oddly(&self, function: Function<'_>) -> bool {
        let named = function.names().any(|name| resolve::returns_oddly(name.plain()).is_some());
        let seen = || {
            let address = function.address().wrapping_add(self.bias);
            let code = self.module.code(function.range()).unwrap_or_default();
            let code = Code { address, function: address, code, padding: &[], targets: self.targets };
            self.isa.return_verdict(&code).is_err()
        };
        // The stack of a part is not that of a function's start, so its code alone says nothing.
        named || self.is_called(function) && seen()
    }

    /// The functions and parts that a function's direct jumps lead to.
    fn jumps_of(&self, function: Function<'_>) -> Vec<Function<'i>> {
        let range = function.range();
        let Some(code) = self.module.code(range.clone()) else { return Vec::new() };
        let functions = self.module.functions();
        let mut found = Vec::new();
        survey::each_flow(self.isa, code, range.start, |flow| {
            if let Flow::Jump { target } | Flow::Branch { target } = flow
                && !range.contains(&target)
            {
                found.extend(functions.containing(target));
            }
        });
        found
    }
}
