//! Probes in another process, from Rust: what is asked for, and how it is armed.
//!
//! [`attach()`] opens the process, each method of [`Attach`] asks for something where a pattern says, and [`Attach::arm`] does all
//! of it in one stop. From then on the process runs alone, and a [`Session`] reads what it counts in shared memory.

mod events;
mod replace;
mod session;

pub use events::{Ending, Event, Events};
pub use replace::Replace;
#[cfg(feature = "cli")]
pub(crate) use session::ENDING;
pub use session::{Session, Summary};

use std::time::Duration;
use trapless_isa::Mechanism;
use trapless_process::{Process, StopOptions};
use trapless_session::error::Error;
use trapless_session::files::Files;
use trapless_session::live_patch::LivePatchError;
use trapless_session::resolve::{self, Kinds, MOST_SITES};
use trapless_session::session::{Asked, Hold};
use trapless_session::spec::{Exclusion, Kind, ProbeSpec, Syntax};
use trapless_session::target::{self, Image};

/// Most arguments that are recorded of a call ([`Attach::trace`]).
pub const MOST_ARGUMENTS: usize = 6;

/// Opens a process for probes. Nothing is done to it before [`Attach::arm`].
///
/// Its owner may do this where Yama lets them (`kernel.yama.ptrace_scope`), as with any debugger. Probes in one's own process are another
/// matter, and are refused here.
///
/// ```no_run
/// use std::time::Duration;
///
/// let session = trapless::attach(4242)?.count("libc.so.6:malloc")?.latency("./server:handle")?.arm()?;
/// std::thread::sleep(Duration::from_secs(1));
/// for probe in session.snapshot() {
///     println!("{} {} {}", probe.function, probe.kind, probe.hits);
/// }
/// let summary = session.remove()?;
/// println!("it stood still for {:?}", summary.stopped);
/// # Ok::<(), trapless::Error>(())
/// ```
///
/// # Errors
/// There is no such process, it may not be traced by us, or it is this one ([`Error::Open`] says which).
pub fn attach(pid: u32) -> Result<Attach, Error> {
    // No process has a number that is none of the kernel's.
    let process = target::open(i32::try_from(pid).unwrap_or(i32::MAX))?;
    let images = target::images(&process, &Files::default())?;
    Ok(Attach {
        process,
        images,
        probes: Vec::new(),
        exclusions: Vec::new(),
        syntax: Syntax::Glob,
        inlines: false,
        allowed: vec![Mechanism::Jump, Mechanism::Short],
        most: MOST_SITES,
        options: StopOptions::default(),
    })
}

/// What is to be probed in a process. Patterns are those of the command line: `MODULE:FUNCTION` with globs on both sides, USDT probes, lines of
/// the source, instructions; what several of them ask for at one function is done there once.
///
/// A pattern is read when it is given, and looked for when all are [armed](Self::arm).
#[must_use = "nothing is probed before it is armed"]
pub struct Attach {
    process: Process,
    images: Vec<Image>,
    probes: Vec<(ProbeSpec, Kinds)>,
    exclusions: Vec<Exclusion>,
    syntax: Syntax,
    inlines: bool,
    allowed: Vec<Mechanism>,
    most: usize,
    options: StopOptions,
}

impl Attach {
    /// Counts how often control comes to what the pattern means: 0.5 ns a hit. `uretprobe:` ahead counts returns.
    ///
    /// # Errors
    /// The pattern is malformed, as for all methods that take one.
    pub fn count(self, pattern: &str) -> Result<Self, Error> {
        self.asking(pattern, |kind| Kinds::hits(kind != Some(Kind::Return), kind == Some(Kind::Return)))
    }

    /// Counts returns.
    ///
    /// # Errors
    /// What the pattern names has none, or it is malformed.
    pub fn count_returns(self, pattern: &str) -> Result<Self, Error> {
        self.asking(pattern, |_| Kinds::hits(false, true))
    }

    /// Counts calls and takes the time of each, from entry to return, in a histogram.
    ///
    /// # Errors
    /// As [`Self::count_returns`].
    pub fn latency(self, pattern: &str) -> Result<Self, Error> {
        self.asking(pattern, |_| Kinds { timed: true, ..Kinds::default() })
    }

    /// Records each hit, with the first integer arguments of a function: so many, at most [`MOST_ARGUMENTS`]. At a USDT probe all of its
    /// arguments are recorded. Hits are read as [`Event::Hit`].
    ///
    /// # Errors
    /// More arguments than are recorded, or a malformed pattern.
    pub fn trace(self, pattern: &str, arguments: usize) -> Result<Self, Error> {
        let traced = Some(recorded(arguments)?);
        self.asking(pattern, |_| Kinds { traced, ..Kinds::ENTRY })
    }

    /// Records each call when it returns, with its arguments, its result and how long it took.
    ///
    /// # Errors
    /// As [`Self::trace`] and [`Self::count_returns`].
    pub fn trace_calls(self, pattern: &str, arguments: usize) -> Result<Self, Error> {
        let traced = Some(recorded(arguments)?);
        self.asking(pattern, |_| Kinds { traced, ..Kinds::hits(false, true) })
    }

    /// Has a function of a shared library called instead: `FILE:FUNCTION`, which the process loads for it. That is armed by itself
    /// ([`Replace::arm`]).
    ///
    /// ```no_run
    /// let session = trapless::attach(4242)?.replace("./app:slow", "./fix.so:slow_fixed")?.original("slow_original").arm()?;
    /// std::thread::sleep(std::time::Duration::from_secs(60));
    /// session.remove()?;
    /// # Ok::<(), trapless::Error>(())
    /// ```
    ///
    /// # Errors
    /// The pattern is malformed, or probes were asked for before.
    pub fn replace(self, function: &str, with: &str) -> Result<Replace, Error> {
        if !self.probes.is_empty() {
            return Err(LivePatchError::WithProbes.into());
        }
        let function = ProbeSpec::parse(function, self.syntax)?;
        Ok(Replace::new(self.process, self.images, function, with.to_owned(), self.options))
    }

    /// Leaves functions alone that other patterns mean: `FUNCTION` or `MODULE:FUNCTION`.
    ///
    /// # Errors
    /// The pattern is malformed.
    pub fn except(mut self, pattern: &str) -> Result<Self, Error> {
        self.exclusions.push(Exclusion::parse(pattern, self.syntax)?);
        Ok(self)
    }

    /// Patterns that are given from now on are regular expressions.
    pub fn regex(self) -> Self {
        Self { syntax: Syntax::Regex, ..self }
    }

    /// Patterns that are given from now on mean the copies of functions, too, that were inlined into others.
    pub fn inlines(self) -> Self {
        Self { inlines: true, ..self }
    }

    /// Lets sites be probed as well that take a trap. So does a pattern that names such a mechanism (`step:MODULE:FUNCTION`), for itself.
    ///
    /// Where one is probed so, a helper process stays attached as tracer until the probes are out, and each hit takes microseconds. It goes on
    /// and takes them out if this process ends. Should the helper itself be killed, [`Session::take_hits`] and [`Session::events`] take its
    /// probes out and say so; until one of them is asked, the next hit would end the process.
    pub fn allow_traps(self) -> Self {
        Self { allowed: Mechanism::ALL.to_vec(), ..self }
    }

    /// Lets system calls be made in the process although its seccomp filter might end it for them.
    pub fn allow_seccomp(mut self) -> Self {
        self.options.allow_seccomp = true;
        self
    }

    /// How long the process may take to stop, and any other single wait: 5 seconds unless this says otherwise. What takes longer fails,
    /// and nothing is done.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = patience;
        self
    }

    /// Patterns that mean more sites than this together are refused: [`MOST_SITES`] unless this says otherwise.
    pub fn at_most(self, sites: usize) -> Self {
        Self { most: sites, ..self }
    }

    /// Arms all that was asked for, while the process stands still: for some hundreds of microseconds mostly
    /// ([`Session::stopped`]). What of it cannot be probed is left alone and told ([`Session::skipped`]).
    ///
    /// This process forks a helper for it, so that the other is never left half changed, whatever happens to this one.
    ///
    /// # Errors
    /// No pattern was given; one means nothing, or too much; nothing of it can be probed; the process cannot be stopped or changed. Then it is as it was.
    pub fn arm(self) -> Result<Session, Error> {
        if self.probes.is_empty() {
            return Err(Error::NothingAsked);
        }
        let probes = self.probes.iter().map(|(spec, kinds)| (spec, *kinds));
        let sites = resolve::resolve(Some(&self.process), &self.images, probes, &self.exclusions, self.most)?;
        let hold = Hold::Stop(self.options.clone());
        let asked = Asked::of(&self.allowed);
        let armed =
            trapless_session::session::Session::attach(&self.process, &self.images, sites, asked, hold)?;
        Ok(Session::new(self.process, armed, self.options))
    }

    fn asking(mut self, pattern: &str, kinds: impl Fn(Option<Kind>) -> Kinds) -> Result<Self, Error> {
        let spec = ProbeSpec { inlines: self.inlines, ..ProbeSpec::parse(pattern, self.syntax)? };
        let kinds = kinds(spec.kind);
        if let Some(what) = spec.location.without_return().filter(|_| kinds.follows()) {
            return Err(Error::NoReturn { spec: spec.text, what });
        }
        self.probes.push((spec, kinds));
        Ok(self)
    }
}

impl std::fmt::Debug for Attach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let patterns: Vec<&str> = self.probes.iter().map(|(spec, _)| spec.text.as_str()).collect();
        f.debug_struct("Attach").field("pid", &self.process.pid()).field("patterns", &patterns).finish()
    }
}

fn recorded(arguments: usize) -> Result<u8, Error> {
    match u8::try_from(arguments) {
        Ok(few) if arguments <= MOST_ARGUMENTS => Ok(few),
        _ => Err(Error::Arguments { asked: arguments, most: MOST_ARGUMENTS }),
    }
}
