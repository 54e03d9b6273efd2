//! What the judge must know, read once: of the process, of its files, and of the functions that are to be followed.
//!
//! Nothing is decided here: [`trapless_engine::admit`] does.

use crate::error::Error;
use crate::files;
use crate::target::{self, Image};
use trapless_engine::Function as Code;
use trapless_engine::admit::{Arrival, Facts, Functions, Known, Runtimes, Vectors};
use trapless_engine::spread;
use trapless_isa::{Flow, Isa, Machine};
use trapless_process::Process;
use trapless_symbols::{Arrival as Told, Function, Kind, Module, Origin};

/// What is known of `process`. `follows`: whether calls are to be followed, which more things are in the way of.
pub(super) fn of_process(process: Option<&Process>, images: &[Image], follows: bool) -> Result<Facts, Error> {
    let Some(process) = process else { return Ok(Facts::default()) };
    let status = process.status().map_err(Error::other)?;
    let mut runtimes = Runtimes::default();
    // Go's runtime stops goroutines by this signal, and makes them go on from wherever they are seen to be. A program that has just been
    // launched has yet to say so.
    const SIGURG: u32 = 23;
    const FAULTS: [u32; 3] = [7, 8, 11];
    let mut modules = images.iter().filter_map(|image| image.module(Some(process)).ok());
    let is_stopped = modules.any(Module::is_go);
    for image in images.iter().filter(|_| follows) {
        // What is no ELF file, such as a font or the code that a program has made, is no run-time system either.
        if let Ok(file) = image.opened(Some(process)) {
            runtimes = runtimes.with(file.runtimes(image.name()));
        }
    }
    // SIGBUS, SIGFPE and SIGSEGV are panics there.
    let gos = if is_stopped { FAULTS.iter().map(|signal| 1_u64 << (signal - 1)).sum() } else { 0 };
    Ok(Facts {
        handled: status.sig_caught | gos,
        shadow_stack: status.shadow_stack,
        runtimes,
        shows: false,
        hops: false,
        stops: if is_stopped { SIGURG } else { 0 },
        throws_unhooked: false,
        vectors: vectors(process)?,
    })
}

/// What the processor has beyond vectors of 128 bits. Where no processor has anything, the kernel is not asked.
fn vectors(process: &Process) -> Result<Vectors, Error> {
    let [scalable, streaming] = Machine::beside(process.is_32bit()).isa().facts().scalable_vectors;
    if scalable | streaming == 0 {
        return Ok(Vectors::Kept);
    }
    let auxv = process.auxv().map_err(Error::other)?;
    Ok(if auxv.has_capability(libc::AT_HWCAP2, streaming) {
        Vectors::Streaming
    } else if auxv.has_capability(libc::AT_HWCAP, scalable) {
        Vectors::Scalable
    } else {
        Vectors::Kept
    })
}

/// The functions of a file that are to be followed, and all that they go on in.
pub(super) struct File<'i> {
    file: &'i files::File,
    isa: &'static dyn Isa,
    bias: u64,
}

impl<'i> File<'i> {
    pub(super) fn new(file: &'i files::File, bias: u64) -> Self {
        Self { file, isa: target::machine(file.module()).isa(), bias }
    }

    /// Those with the indices `first`, and what is reached from them by jumps.
    pub(super) fn functions(&self, first: impl IntoIterator<Item = usize>) -> Functions<'i> {
        let functions = self.file.module().functions();
        let mut known = Functions::new();
        let mut ways: Vec<_> = first.into_iter().filter_map(|index| functions.get(index)).collect();
        while !ways.is_empty() {
            ways.sort_unstable_by_key(Function::address);
            ways.dedup_by_key(|function| function.address());
            ways.retain(|function| !known.contains_key(&self.place(*function)));
            let looked_at = spread::map(&ways, |function| self.look_at(*function));
            let mut reached = Vec::new();
            known.extend(looked_at.into_iter().flatten().map(|(function, goes_on)| {
                reached.extend(goes_on);
                (function.function.address, function)
            }));
            ways = reached;
        }
        known
    }

    /// Where a function stands in the process.
    fn place(&self, function: Function<'_>) -> u64 {
        function.address().wrapping_add(self.bias)
    }

    /// A function of which all code is there, and what its jumps lead to.
    fn look_at(&self, function: Function<'i>) -> Option<(Known<'i>, Vec<Function<'i>>)> {
        let code = code_of(self.file.module(), function, self.bias)?;
        let reached = self.reached_from(function);
        let names = function.names().filter(|_| function.is_named()).map(|name| name.plain());
        let known = Known {
            function: code,
            names: names.collect(),
            arrival: self.arrival(function),
            is_told: function.arrival() == Told::Called,
            goes_on: reached.iter().map(|next| self.place(*next)).collect(),
        };
        Some((known, reached))
    }

    /// How control arrives at a function, by its symbol, by the unwind table, and by what leads there.
    fn arrival(&self, function: Function<'_>) -> Arrival {
        match (function.kind(), function.arrival(), function.origin()) {
            (Kind::Part, ..) | (_, Told::SetUp, _) => Arrival::Jumped,
            (_, Told::Unclear, _) | (_, Told::Untold, Origin::UnwindTable) => Arrival::Unclear,
            (_, Told::Called, _) if self.file.is_part(function) => Arrival::Jumped,
            _ => Arrival::Called,
        }
    }

    /// The functions and parts that a function's direct jumps lead to.
    fn reached_from(&self, function: Function<'_>) -> Vec<Function<'i>> {
        let range = function.range();
        let Some(code) = self.file.module().code(range.clone()) else { return Vec::new() };
        let functions = self.file.module().functions();
        let mut found = Vec::new();
        self.isa.flows(code, range.start, &mut |flow| {
            if let Flow::Jump { target } | Flow::Branch { target } = flow
                && !range.contains(&target)
            {
                found.extend(functions.containing(target));
            }
        });
        found
    }
}

/// A function's code in the engine's terms, where all of it is in the file.
pub(super) fn code_of<'i>(module: &'i Module, function: Function<'_>, bias: u64) -> Option<Code<'i>> {
    let bytes = files::code_of(module, function)?;
    let code = function.range();
    Some(Code { address: code.start.wrapping_add(bias), bytes, size: (code.end - code.start) as usize })
}
