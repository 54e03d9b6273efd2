//! From a text to code and to where that is to run; or to what is wrong with the text, as the command says it.

use super::ScriptOptions;
use super::part::Parts;
use crate::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use trapless_isa::Machine;
use trapless_running::course::own_probes;
use trapless_running::{files, points, texts};
use trapless_script::check;
use trapless_script::check::clauses::ClauseKind;
use trapless_script::check::environment::{self, Environment};
use trapless_script::diagnostics::Diagnostics;
use trapless_script::ir::{BodyId, Program};
use trapless_script::lower::{self, Clause};
use trapless_script::machine::OwnProbe;
use trapless_script::message::Messages;
use trapless_script::native::{self, Abi, Moment, NativeProgram};
use trapless_script::source::Sources;
use trapless_script::syntax::ast::{ProbePoint, UserPlace, UserPoint};
use trapless_script::syntax::attach::AttachContext;
use trapless_script::syntax::config::Settings;
use trapless_script::syntax::{self, c};
use trapless_session::resolve::Kinds;
use trapless_session::session::RunAt;
use trapless_session::spec::{Kind, Pattern, ProbeSpec};

/// What the text is called in what is said of it.
const NAME: &str = "script";

/// Log2 of the size of each thread's ring of messages: as from outside.
const RING_BITS: u32 = 17;

/// A script that can run.
pub(super) struct Ready {
    pub program: Program,
    pub messages: Messages,
    pub settings: Settings,
    /// What runs on our thread, with what it is called.
    pub own: Vec<(OwnProbe, String)>,
    /// What runs in functions, and where that is.
    pub native: NativeProgram,
    pub bodies: Vec<(BodyId, Moment)>,
    pub specs: Vec<(ProbeSpec, Kinds)>,
    pub runs: Vec<RunAt>,
    /// What might be wrong with it.
    pub warnings: String,
}

/// What a script's checker asks about the world.
struct World<'o>(&'o ScriptOptions);

impl Environment for World<'_> {
    fn cgroup(&self, path: &str) -> Option<u64> {
        std::fs::metadata(path).ok().filter(|about| about.is_dir()).map(|about| about.ino())
    }

    fn parameters(&self) -> &[String] {
        &self.0.parameters
    }

    fn machine(&self) -> environment::Machine {
        environment::Machine::X86_64
    }
}

/// Reads and compiles a script.
///
/// # Errors
/// It is wrong, or asks for what there is only from outside.
pub(super) fn read(text: &str, options: &ScriptOptions, parts: &Parts) -> Result<Ready, Error> {
    let mut sources = Sources::default();
    let source = sources.add(NAME, text).map_err(|error| Error::Script(format!("{NAME}: {error}\n")))?;
    let mut told = Diagnostics::default();
    let with = syntax::Options {
        attach: AttachContext { parameters: options.parameters.clone(), process: true },
        import_paths: Vec::new(),
        environment: Vec::new(),
        c: c::Options::default().machine(std::env::consts::ARCH),
        is_native: &check::is_native,
        files: &texts::Disk,
    };
    let script = syntax::load(&mut sources, source, &with, &mut told);
    let wrong = |told: &Diagnostics| Error::Script(told.render(&sources));
    let Some(script) = script.filter(|_| !told.has_errors()) else { return Err(wrong(&told)) };
    let compiled = match lower::compile(&script, &sources, &World(options)) {
        Ok(compiled) => compiled,
        Err(mut errors) => {
            told.append(std::mem::take(&mut errors));
            return Err(wrong(&told));
        }
    };
    told.append(compiled.warnings.clone());
    let own = own_probes(&compiled);
    let mut bodies: Vec<(BodyId, Moment)> = Vec::new();
    let (mut specs, mut runs) = (Vec::new(), Vec::new());
    for clause in &compiled.clauses {
        let Some(moment) = moment(clause)? else { continue };
        let many = |_| Error::Script(format!("{NAME}: its probes need more than 65,536 bodies\n"));
        let number = u16::try_from(bodies.len()).map_err(many)?;
        bodies.push((clause.body, moment));
        for point in &clause.points {
            refuse_places(&point.point)?;
            let Some(mut spec) = specification(&point.point)? else { continue };
            let returns = moment == Moment::Return;
            spec.kind = Some(if returns { Kind::Return } else { Kind::Entry });
            specs.push((spec, Kinds::hits(!returns, returns)));
            runs.push(if returns { RunAt::Return(number) } else { RunAt::Entry(number) });
        }
    }
    if specs.is_empty() && own.is_empty() {
        return Err(Error::Script(format!("{NAME}: No probes to attach\n")));
    }
    let native = match parts.compiled(&compiled.program, &bodies) {
        Some(native) => native,
        None => compiled_now(&compiled.program, &bodies)?,
    };
    if native.layout.stacks.is_some() {
        let why = "stacks are walked by tables that whoever probes from outside keeps of all that is loaded";
        return Err(Error::NotInside { what: "ustack()".to_owned(), why });
    }
    Ok(Ready {
        program: compiled.program,
        messages: compiled.messages,
        settings: script.settings,
        own,
        native,
        bodies,
        specs,
        runs,
        warnings: told.render(&sources),
    })
}

fn compiled_now(program: &Program, bodies: &[(BodyId, Moment)]) -> Result<NativeProgram, Error> {
    let machine = Machine::HOST.ok_or(Error::Machine)?;
    let target = native::Target { machine, ring_bits: RING_BITS, abis: &[Abi::C] };
    native::compile(program, bodies, &target).map_err(|refusal| Error::Script(format!("{NAME}: {refusal}\n")))
}

/// When the body of a clause runs in functions; `None` for those that run on our thread.
///
/// # Errors
/// There is none of the kind in one's own process.
fn moment(clause: &Clause) -> Result<Option<Moment>, Error> {
    let why = match clause.kind {
        ClauseKind::Entry => return Ok(Some(Moment::Entry)),
        ClauseKind::Return => return Ok(Some(Moment::Return)),
        ClauseKind::Begin | ClauseKind::End | ClauseKind::Interval | ClauseKind::Profile => return Ok(None),
        ClauseKind::Inside => INSIDE,
        ClauseKind::Usdt => {
            "its probes stand at instructions inside of functions, and their semaphores are raised from outside"
        }
        ClauseKind::SelfSignal => "signals of the program are the program's",
        ClauseKind::Test | ClauseKind::Bench => "tests and benchmarks are run by the command",
    };
    let what = clause.points.first().map_or_else(String::new, |point| point.text.clone());
    Err(Error::NotInside { what, why })
}

/// Why none stands at an instruction, an address or a line.
const INSIDE: &str = "only entries and returns of functions are probed";

fn refuse_places(point: &ProbePoint) -> Result<(), Error> {
    match point {
        ProbePoint::Uprobe(UserPoint { place: UserPlace::Function { offset: 0, .. }, .. })
        | ProbePoint::Uretprobe(UserPoint { place: UserPlace::Function { offset: 0, .. }, .. }) => Ok(()),
        _ => Err(Error::NotInside { what: points::written(point), why: INSIDE }),
    }
}

/// The specification of an attach point in this process.
///
/// # Errors
/// It names no file, and the program's own is not known.
fn specification(point: &ProbePoint) -> Result<Option<ProbeSpec>, Error> {
    let module = match points::target(point) {
        None => {
            let own = std::env::current_exe();
            let own = own.map_err(|source| Error::System { what: "/proc/self/exe", source })?;
            Pattern::literal(&own.display().to_string())
        }
        // What is loaded under that name is meant, and not what a shell or the loader would find first.
        Some(target) if !target.contains('/') => files::pattern(target),
        Some(target) if target.contains('*') => {
            files::pattern_of_paths(target).unwrap_or_else(|| files::pattern(target))
        }
        Some(target) => {
            let path = std::path::absolute(Path::new(target));
            Pattern::literal(&path.map_or_else(|_| target.to_owned(), |path| path.display().to_string()))
        }
    };
    Ok(points::specification(point, module))
}
