//! A script's code for processes: compiled once, and told of each process what it is to know.

use super::machine;
use super::probed::Points;
use super::traced::Traced;
use super::walks::Tables;
use crate::cli::script::Text;
use crate::cli::validated::CodeFor;
use crate::error::Error;
use crate::resolve::Sites;
use crate::target::Image;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use trapless_engine::Script;
use trapless_isa::{Machine, returned_local};
use trapless_process::{Process, RemoteAddr, Seccomp};
use trapless_running::beginning::{Beginning, address_of, is_go};
use trapless_running::store::Store;
use trapless_script::ir::{BodyId, MapSharing, MapValue, Program, Readers, Symbol};
use trapless_script::native::{self, Abi, Moment, NativeProgram, memory};
use trapless_script::traced;
use trapless_session::session::{InGo, MemoryOperands, Overlap, Run, RunAt, SiteNumbers};
use trapless_wire::ScriptLayout;

/// Log2 of the size of each thread's ring of messages.
const RING_BITS: u32 = 17;

/// The code of a script, and where it runs.
pub(in crate::commands) struct Scripted {
    program: Program,
    bodies: Vec<(BodyId, Moment)>,
    /// What detours call; nothing where there is no code for the machine.
    native: NativeProgram,
    /// The same with bodies for functions of Go's, once a process has some.
    with_go: OnceLock<NativeProgram>,
    machine: Machine,
    runs: Vec<RunAt>,
    overlap: Overlap,
    /// What sites are told as in all processes.
    pub(super) numbers: Arc<SiteNumbers>,
    /// Whether a seccomp filter may be risked.
    allow_seccomp: bool,
    /// Whether it may run in processes by itself, and not only be interpreted for threads that stand.
    may_jump: bool,
    traced: Arc<Traced>,
    pub(super) store: Arc<Mutex<Store>>,
    /// Where stacks are walked, what that needs of each process.
    tables: Option<Mutex<Tables>>,
    beginning: Beginning,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").field("runs", &self.runs).finish_non_exhaustive()
    }
}

impl Scripted {
    /// Compiles the bodies of a script that run in processes.
    ///
    /// # Errors
    /// There is no native code for one of them.
    pub fn new(program: &Program, points: &Points, text: &Text) -> Result<Self, Error> {
        let machine = machine::of(text);
        let named = points.probes.iter().filter_map(|probe| probe.spec.mechanism.as_ref());
        let mechanisms = || text.mechanisms.iter().chain(named.clone());
        let may_trap = mechanisms().any(|mechanism| mechanism.traps());
        let program = &placed(program.clone(), machine, may_trap);
        let native = made(program, &points.bodies, machine, &[Abi::C])?;
        let store = Store::new(program, native.layout.clone());
        let bodies = points.bodies.iter().enumerate().map(|(index, (body, moment))| {
            let wanted = native.code.bodies.get(index).map_or(Vec::new(), |code| code.operands.clone());
            (*body, *moment, wanted)
        });
        let traced = Arc::new(Traced::new(program, &native.layout, bodies.collect()));
        let may_jump = mechanisms().any(|mechanism| !mechanism.traps());
        Ok(Self {
            program: program.clone(),
            bodies: points.bodies.clone(),
            runs: points.runs.clone(),
            overlap: points.overlap,
            numbers: Arc::default(),
            allow_seccomp: text.allow_seccomp,
            may_jump,
            traced,
            store: Arc::new(Mutex::new(store)),
            tables: native.layout.unwind.map(|at| Mutex::new(Tables::new(at))),
            native,
            with_go: OnceLock::new(),
            machine,
            beginning: Beginning::now(),
        })
    }

    /// How the memory of the script is laid out.
    pub fn layout(&self) -> &ScriptLayout {
        &self.native.layout
    }

    /// The script's maps.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What walks of stacks need, if there are any.
    pub fn tables(&self) -> Option<MutexGuard<'_, Tables>> {
        Some(self.tables.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The code for a process, which has files of Go's or not.
    ///
    /// # Errors
    /// There is no native code for functions of Go's.
    fn code_for(&self, is_go: bool) -> Result<&NativeProgram, Error> {
        if !is_go {
            return Ok(&self.native);
        }
        if let Some(known) = self.with_go.get() {
            return Ok(known);
        }
        let with_go = made(&self.program, &self.bodies, self.machine, &[Abi::C, Abi::Go])?;
        Ok(self.with_go.get_or_init(|| with_go))
    }

    /// What becomes of sites at which an argument of a USDT probe would have to be read from memory.
    ///
    /// # Errors
    /// A sandbox might kill the process for what the script does wherever it runs.
    fn memory_operands(&self, process: &Process) -> Result<MemoryOperands, Error> {
        if !self.may_jump {
            // The process makes no system call for it.
            return Ok(MemoryOperands::Read);
        }
        if self.native.makes_system_calls {
            let without = "let the script do without str(), what pointers lead to, delay(), and, on arm64, cpu and numaid";
            check_sandbox(process, self.allow_seccomp, without)?;
            return Ok(MemoryOperands::Read);
        }
        let asks = self.native.code.bodies.iter().any(|body| !body.operands.is_empty());
        Ok(match asks && sandbox(process, self.allow_seccomp)?.is_some() {
            true => MemoryOperands::LeftOut,
            false => MemoryOperands::Read,
        })
    }

    /// Refuses a process of another machine than the one that the script was compiled for.
    fn check_machine(&self, process: &Process) -> Result<(), Error> {
        let bits = |is_narrow: bool| if is_narrow { 32 } else { 64 };
        let (own, theirs) = (bits(self.machine == Machine::I386), bits(process.is_32bit()));
        if own == theirs {
            return Ok(());
        }
        let pid = process.pid();
        Err(Error::Usage(format!(
            "process {pid} is a {theirs}-bit program, and the script was read for a {own}-bit one: run it for {pid} alone"
        )))
    }

    /// What code is told of a process.
    ///
    /// # Errors
    /// It is not known where the process has its `errno`, which the code changes.
    fn about(&self, process: &Process, images: &[Image]) -> Result<memory::About, Error> {
        let symbol = |symbol: &Symbol| match symbol.is_of_thread {
            false => Ok(address_of(symbol, process, images)),
            true => self.errno(process, images),
        };
        let symbols = self.program.symbols.iter().map(symbol).collect::<Result<_, _>>()?;
        Ok(self.beginning.about(process, symbols))
    }

    /// How far the `errno` of a thread of a process is from its thread pointer.
    ///
    /// # Errors
    /// The C library does not tell.
    fn errno(&self, process: &Process, images: &[Image]) -> Result<u64, Error> {
        /// As glibc and musl call it.
        const LOCATION: &str = "__errno_location";
        let mut read = |address| process.read_word(RemoteAddr(address)).ok();
        let mut find = |image: &Image| {
            let (module, bias) = (image.module(Some(process)).ok()?, image.bias(Some(process)).ok()?);
            let (address, size) = (module.symbol_address(LOCATION)?, module.symbol_size(LOCATION)?);
            let code = module.code(address..address.checked_add(size)?)?;
            returned_local(self.machine, code, address.wrapping_add(bias), &mut read)
        };
        let mut found: Vec<i64> = images.iter().filter_map(&mut find).collect();
        found.sort_unstable();
        found.dedup();
        let pid = process.pid();
        let why = match found[..] {
            [offset] => return Ok(offset as u64),
            [] => format!("has no {LOCATION} that tells where its errno is"),
            _ => "has several C libraries, each with an errno of its own".to_owned(),
        };
        Err(Error::Usage(format!("process {pid} {why}: do without seterrno() or --errno")))
    }
}

/// Who serves traps has one part for all threads that trap, and may have to find there what a thread has put into its own by a jump: so plain
/// values are each process's where there may be traps. Where there is no code at all, a part of each thread's block would take what a 32-bit program has
/// of addresses, and his maps are in the shared part.
fn placed(mut program: Program, machine: Machine, may_trap: bool) -> Program {
    for map in program.maps.iter_mut().filter(|map| map.sharing == MapSharing::PerThread) {
        match map.value {
            MapValue::Bytes(_) if may_trap || machine == Machine::I386 => {
                map.sharing = MapSharing::PerProcess(Readers::Tool);
            }
            MapValue::Aggregate(_) if machine == Machine::I386 => map.sharing = MapSharing::Shared,
            _ => {}
        }
    }
    program
}

/// The code of a script's bodies and the memory that they work in; without code, where the machine has none.
fn made(
    program: &Program,
    bodies: &[(BodyId, Moment)],
    machine: Machine,
    abis: &'static [Abi],
) -> Result<NativeProgram, Error> {
    if machine != Machine::I386 {
        let target = native::Target { machine, ring_bits: RING_BITS, abis };
        return native::compile(program, bodies, &target).map_err(Error::other);
    }
    let runs = |(body, moment): &&(BodyId, Moment)| traced::check(program, *body, *moment, machine).is_ok();
    let bodies: Vec<BodyId> = bodies.iter().filter(runs).map(|(body, _)| *body).collect();
    native::laid_out(program, &bodies, RING_BITS).map_err(Error::other)
}

impl CodeFor for Scripted {
    fn check_shared(&self) -> Result<(), Error> {
        if self.store().may_attach() {
            return Ok(());
        }
        let text = "the script's maps hold plain values, which one process at a time can have: name one with -p, use keys with tid or pid, only add to them (@n++), or use count(), sum() and the like alone";
        Err(Error::Usage(text.to_owned()))
    }

    fn run_in(&self, process: &Process, images: &[Image], _sites: &Sites) -> Result<Run, Error> {
        self.check_shared()?;
        self.check_machine(process)?;
        let memory_operands = self.memory_operands(process)?;
        let is_go = is_go(process, images);
        let native = self.code_for(is_go)?;
        let about = self.about(process, images)?;
        let shared = memory::image(&self.program, &self.native.layout, &about, self.store().own());
        let script = Script {
            program: native.code.clone(),
            shared,
            shared_size: self.native.layout.shared,
            block_size: self.native.layout.thread,
            // Functions of Go's have their arguments elsewhere than it looks for them.
            interpreter: if is_go { None } else { Some(self.traced.clone()) },
            walks: self.tables().map(|mut tables| tables.prepare(process, images)).transpose()?,
        };
        let (clauses, numbers) = (self.runs.clone(), self.numbers.clone());
        let has_go = native.code.bodies.len() > self.bodies.len();
        let in_go =
            has_go.then(|| InGo { first: self.bodies.len() as u16, arguments: native.arguments.clone() });
        Ok(Run { script, clauses, numbers, overlap: self.overlap, memory_operands, in_go })
    }
}

/// A sandbox of a thread that might kill the process for system calls of a script's.
fn sandbox(process: &Process, allow_seccomp: bool) -> Result<Option<Seccomp>, Error> {
    // A thread that has ended meanwhile is in no sandbox.
    let threads = process.threads().map_err(Error::other)?;
    let mut modes =
        threads.into_iter().filter_map(|thread| Some(process.thread_status(thread).ok()?.seccomp));
    Ok(modes.find(|mode| match mode {
        Seccomp::Off => false,
        Seccomp::Filter => !allow_seccomp,
        Seccomp::Strict => true,
    }))
}

/// Refuses a process that a sandbox might kill for system calls of a script's. `without`: what else could be done.
pub(in crate::commands) fn check_sandbox(
    process: &Process,
    allow_seccomp: bool,
    without: &str,
) -> Result<(), Error> {
    let pid = process.pid();
    let reads = "and the script makes system calls there, for which the process might be killed";
    match sandbox(process, allow_seccomp)? {
        None | Some(Seccomp::Off) => Ok(()),
        Some(Seccomp::Filter) => Err(Error::Usage(format!(
            "process {pid} is under a seccomp filter, {reads}: accept that with --allow-seccomp, or {without}"
        ))),
        Some(Seccomp::Strict) => {
            Err(Error::Usage(format!("process {pid} is in seccomp's strict mode, {reads}")))
        }
    }
}
