//! What one file says by itself, worked out when it is first asked for. All addresses are the file's.

use super::{Root, goroutines, sharing, signals};
use crate::survey::{self, Flows};
use crate::target;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use trapless_engine::admit::{Marks, Runtimes};
use trapless_engine::spread::both;
use trapless_isa::{BranchTargets, SharingCalls, SignalCall};
use trapless_symbols::{Function, Module, ModuleError, ModuleKind, Origin};
use trapless_wire::unwind::{Table, TooLarge};

/// An ELF file, and what was found out about it.
#[derive(Debug)]
pub struct File {
    module: Module,
    /// What its paths begin with, so they lead somewhere as long as this is there.
    _root: Option<Arc<Root>>,
    /// `None`: its code could not be read whole.
    targets: OnceLock<Option<BranchTargets>>,
    flows: OnceLock<Option<Flows>>,
    pointers: OnceLock<Vec<u64>>,
    runtimes_by_name: OnceLock<Runtimes>,
    runtimes_by_text: OnceLock<Runtimes>,
    signal_places: OnceLock<Vec<(u64, SignalCall)>>,
    sharing_calls: OnceLock<Vec<(u64, SharingCalls)>>,
    goroutines: OnceLock<Option<[u64; 2]>>,
    has_scalable_vectors: OnceLock<bool>,
    pub(crate) unwind: OnceLock<Result<(Table, u64), TooLarge>>,
}

impl File {
    pub(super) fn new(module: Module, root: Option<Arc<Root>>) -> Self {
        Self {
            module,
            _root: root,
            targets: OnceLock::new(),
            flows: OnceLock::new(),
            pointers: OnceLock::new(),
            runtimes_by_name: OnceLock::new(),
            runtimes_by_text: OnceLock::new(),
            signal_places: OnceLock::new(),
            sharing_calls: OnceLock::new(),
            goroutines: OnceLock::new(),
            has_scalable_vectors: OnceLock::new(),
            unwind: OnceLock::new(),
        }
    }

    /// Reads the file at `path`, which no process needs to map.
    ///
    /// # Errors
    /// As [`Module::open`].
    pub fn open(path: &Path) -> Result<Self, ModuleError> {
        Ok(Self::new(Module::open(path)?, None))
    }

    /// Its headers, symbols and code.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Where control can arrive; `None` if its code could not be read whole.
    pub fn targets(&self) -> Option<&BranchTargets> {
        let isa = target::machine(&self.module).isa();
        self.targets.get_or_init(|| survey::branch_targets(&self.module, isa).ok()).as_ref()
    }

    /// The same, and the run-time systems that it shows by anything, where `name` is its path's last.
    pub(crate) fn surveyed(&self, name: &str) -> (Option<&BranchTargets>, Runtimes) {
        if self.targets.get().is_some() {
            return (self.targets(), self.all_runtimes(name));
        }
        let (runtimes, targets) = both(|| self.all_runtimes(name), || self.targets());
        (targets, runtimes.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Where its direct calls and conditional branches lead; `None` if its code could not be read whole.
    pub(crate) fn flows(&self) -> Option<&Flows> {
        let isa = target::machine(&self.module).isa();
        self.flows.get_or_init(|| survey::flows(&self.module, isa).ok()).as_ref()
    }

    /// Whether anything in it may be an instruction that works with scalable vectors; what could not be read may.
    pub(crate) fn has_scalable_vectors(&self) -> bool {
        let isa = target::machine(&self.module).isa();
        let has = |range| self.module.code(range).is_none_or(|code| isa.has_scalable_vectors(code));
        *self.has_scalable_vectors.get_or_init(|| self.module.executable_ranges().any(has))
    }

    /// Whether what the unwind table has for a function is a part of another one. One that needs no frame looks the same, but conditional
    /// branches lead to it and nothing else does.
    pub fn is_part(&self, function: Function<'_>) -> bool {
        let address = function.address();
        let is_pointed_to = || self.pointers().binary_search(&address).is_ok();
        function.origin() == Origin::UnwindTable
            && self
                .flows()
                .is_none_or(|flows| flows.branches(address) && !flows.calls(address) && !is_pointed_to())
    }

    /// Where the loader makes pointers to, sorted. Not asked of fixed executables: their pointers are not told from jump tables.
    pub(crate) fn pointers(&self) -> &[u64] {
        self.pointers.get_or_init(|| match self.module.kind() {
            ModuleKind::FixedExecutable => Vec::new(),
            _ => self.module.code_pointers(),
        })
    }

    /// The run-time systems that it shows by names, where `name` is its path's last.
    pub(crate) fn runtimes(&self, name: &str) -> Runtimes {
        let mut of_path = Marks::default();
        of_path.file(name);
        let by_name = self.runtimes_by_name.get_or_init(|| {
            let mut marks = Marks::default();
            self.module.soname().iter().for_each(|soname| marks.file(soname));
            self.module.section_names().for_each(|section| marks.section(section));
            self.module.each_symbol_name(|symbol| marks.symbol(symbol));
            marks.runtimes()
        });
        of_path.runtimes().with(*by_name)
    }

    /// Those, and what only texts show where symbols were stripped. It takes reading the file's constant data.
    fn all_runtimes(&self, name: &str) -> Runtimes {
        let shown = self.runtimes(name);
        if shown != Runtimes::default() || !self.module.is_stripped() {
            return shown;
        }
        *self.runtimes_by_text.get_or_init(|| {
            let texts = Marks::texts().filter(|(text, _)| self.module.has_text(text));
            texts.fold(Runtimes::default(), |all, (_, runtime)| all.with(runtime.into()))
        })
    }

    /// Where handlers are installed, and where they return to.
    pub(crate) fn signal_places(&self) -> &[(u64, SignalCall)] {
        self.signal_places.get_or_init(|| signals::places(&self.module))
    }

    /// Whether [`Self::signal_places`] was asked before: a thread to work it out is worth nothing then.
    pub(crate) fn knows_signal_places(&self) -> bool {
        self.signal_places.get().is_some()
    }

    /// System calls that may make children which share the memory, each with where these are told from their parent.
    pub(crate) fn sharing_calls(&self) -> &[(u64, SharingCalls)] {
        self.sharing_calls.get_or_init(|| sharing::calls(&self.module))
    }

    /// Where it lists its goroutines, if it is a Go program: the list and its length.
    pub(crate) fn goroutines(&self) -> Option<[u64; 2]> {
        *self.goroutines.get_or_init(|| goroutines::list(&self.module))
    }

    /// Whether [`Self::sharing_calls`] was asked before.
    pub(crate) fn knows_sharing_calls(&self) -> bool {
        self.sharing_calls.get().is_some()
    }
}

/// A function's code with the padding behind it, or without where that is not in the file; `None` where not all of the code is.
pub(crate) fn code_of<'m>(module: &'m Module, function: Function<'_>) -> Option<&'m [u8]> {
    let code = function.range();
    module.code(code.start..function.padding().end).or_else(|| module.code(code))
}

/// The function that `address` is in, or which ends before it where only its unwind entry is known: assembly ends those ahead of the
/// system call.
pub(crate) fn function_around(module: &Module, address: u64) -> Option<Function<'_>> {
    let functions = module.functions();
    functions.containing(address).or_else(|| {
        let (mut from, mut to) = (0, functions.len());
        while from < to {
            let middle = from.midpoint(to);
            match functions.get(middle) {
                Some(function) if function.address() <= address => from = middle + 1,
                _ => to = middle,
            }
        }
        let before = functions.get(from.checked_sub(1)?)?;
        before.padding().contains(&address).then_some(before)
    })
}
