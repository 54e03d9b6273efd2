//! Scripts of the probe language on one's own process.
//!
//! A script is what the command `trapless script` takes, and is compiled by the same compiler to the same native code: functions that are probed call its bodies by
//! the same detours as from outside, on the thread that is in them, without a trap or a system call. Whoever from outside would read what they tell is a thread of
//! ours here ([`ours`]), which compiles scripts, too, puts their probes in and out and prints.
//!
//! | module | question it answers |
//! |---|---|
//! | `source` | which code is a text, where does it run, or what is wrong with it? |
//! | `part` | where does it work, and what becomes of that? |
//! | `running` | what happens when? |
//! | `ours` | who does it? |

pub(crate) mod ours;
mod part;
mod running;
mod source;

use crate::site::{self, Linked};
use crate::{Error, Inside};
use running::Running;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trapless_script::output::Layout;
use trapless_session::outcome::Skipped;

pub use trapless_script::output::{Bucket as ScriptBucket, MapShown as ScriptMap, Shown, Value};

/// How a script is run.
pub struct ScriptOptions {
    parameters: Vec<String>,
    layout: Layout,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
}

/// Standard output or standard error, past the library's locks: who holds one may wait for a script, and a child may be forked while our thread prints.
struct Standard(i32);

impl Standard {
    fn buffered(number: i32) -> io::BufWriter<Self> {
        io::BufWriter::new(Self(number))
    }
}

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the bytes live across the call.
        match unsafe { libc::write(self.0, bytes.as_ptr().cast(), bytes.len()) } {
            -1 => match io::Error::last_os_error() {
                // As the library has it where there is none.
                error if error.raw_os_error() == Some(libc::EBADF) => Ok(bytes.len()),
                error => Err(error),
            },
            written => Ok(written as usize),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Default for ScriptOptions {
    /// As the command does it: texts go to standard output, and what is wrong at a hit to standard error.
    fn default() -> Self {
        Self {
            parameters: Vec::new(),
            layout: Layout::Text,
            out: Box::new(Standard::buffered(1)),
            err: Box::new(Standard::buffered(2)),
        }
    }
}

impl ScriptOptions {
    /// The values of `$1`, `$2` and so on.
    #[must_use]
    pub fn parameters<S: Into<String>>(mut self, parameters: impl IntoIterator<Item = S>) -> Self {
        self.parameters = parameters.into_iter().map(Into::into).collect();
        self
    }

    /// Where the script prints. It is called on the thread that collects what scripts tell, whose calls are none of the program's; it may not wait for scripts
    /// itself ([`Error::Within`]).
    #[must_use]
    pub fn output(mut self, output: impl Write + Send + 'static) -> Self {
        self.out = Box::new(output);
        self
    }

    /// Where it goes what was wrong at a hit, and `errorf` and `warnf`: on the same thread.
    #[must_use]
    pub fn errors(mut self, errors: impl Write + Send + 'static) -> Self {
        self.err = Box::new(errors);
        self
    }

    /// Prints JSON, an object a line.
    #[must_use]
    pub fn json(mut self) -> Self {
        self.layout = Layout::Json;
        self
    }
}

impl fmt::Debug for ScriptOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptOptions").field("parameters", &self.parameters).finish_non_exhaustive()
    }
}

/// What a script's maps hold at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// All of them, in the order of their names.
    pub maps: Vec<ScriptMap>,
    /// Those that are printed at the end, as the command prints them.
    pub text: String,
    /// The same as JSON, an object a line.
    pub json: String,
    /// What was not done, or not told.
    pub losses: Losses,
}

impl Results {
    /// The map with this name, with or without the `@`.
    pub fn map(&self, name: &str) -> Option<&ScriptMap> {
        let plain = |name: &str| name.strip_prefix('@').unwrap_or(name).to_owned();
        self.maps.iter().find(|map| plain(&map.name) == plain(name))
    }
}

/// What was not done, or not told, since the script was armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// Messages that found a ring full, or were left half written.
    pub messages: u64,
    /// Runs of probes that were ended, because their loops went round too often.
    pub out_of_fuel: u64,
    /// Hits that ran nothing, because too many handlers of signals had interrupted each other in probes, or had left them for good.
    pub interrupted: u64,
    /// Reads of memory that were not tried, because it is not known which thread they were for.
    pub unread: u64,
    /// Hits of threads that found no memory: more than 1022 with different thread pointers, over all the time.
    pub without_memory: u64,
    /// Hits in forked children, in which nothing runs.
    pub in_children: u64,
    /// Of the hits that are counted, those on threads without memory of their own, which may have been in forked children.
    pub of_anybody: u64,
    /// Calls that were not followed to their return.
    pub not_followed: u64,
    /// Hits of the thread that collects what scripts tell: they are none of the program's.
    pub ours: u64,
}

/// What has become of a script that was armed.
struct Started {
    functions: usize,
    skipped: Vec<Skipped>,
    warnings: String,
    links: Vec<Linked>,
}

/// A script that runs on its own process, until this is stopped or dropped.
#[must_use = "the script runs until this is dropped"]
pub struct Script {
    number: u64,
    process: u32,
    started: Started,
    is_over: Arc<AtomicBool>,
}

impl Inside {
    /// Runs a script of the probe language on this process: it is armed when this returns. It costs what it costs from outside, and prints to standard output.
    ///
    /// ```
    /// # if !trapless_inside::is_possible() || matches!(trapless_inside::inside(), Err(trapless_inside::Error::Seccomp)) { return Ok(()); }
    /// let script = trapless_inside::inside()?.script("uprobe:libc:getppid { @calls = count(); }")?;
    /// std::os::unix::process::parent_id();
    /// assert_eq!(script.results()?.text, "@calls: 1\n");
    /// script.stop()?;
    /// # Ok::<(), trapless_inside::Error>(())
    /// ```
    ///
    /// There are `uprobe` and `uretprobe` at functions, `begin`, `end`, `interval` and `profile`; without a file's name the program's own file is meant. Probes of other kinds
    /// and call stacks are refused ([`Error::NotInside`]), and functions that change what the program does, as without `--unsafe`; `exit()` ends the script, and not the program. Nothing
    /// is asked of debug information.
    ///
    /// One thread of ours reads what probes tell, and prints it; it is made for the first script and stays, until the last thread of the program's own has ended, for which it looks once a second. What it calls is not counted by scripts ([`Losses::ours`]), and calls no handlers; counts
    /// and latencies ([`Inside::count`]) have it. What handlers of the program's own call is counted as all else. A script that prints what it is told of `write` hears nothing of its own
    /// printing, therefore. In forked children nothing runs; what would have is told ([`Losses::in_children`]).
    ///
    /// Memory that a script reads through pointers is read by the kernel, and may not be there. Returns are followed as by [`Inside::latency`], and what is said there holds; a function
    /// has a script's probe or a handler at its return, and not both. All else may be at a function at the same time.
    ///
    /// Code and memory of a script stay, and serve the next one with the same code. So a call that was under way when the first was stopped may be seen by the second at its return.
    ///
    /// # Errors
    /// The script is wrong ([`Error::Script`], with its lines), or means nothing that can be probed; as [`Inside::latency`].
    pub fn script(self, text: &str) -> Result<Script, Error> {
        self.script_with(text, ScriptOptions::default())
    }

    /// The same, run in another way.
    ///
    /// # Errors
    /// As [`Self::script`].
    pub fn script_with(self, text: &str, options: ScriptOptions) -> Result<Script, Error> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        // Of this thread, which may have come to have a filter that ours has not.
        crate::patch::refuse_seccomp()?;
        crate::times::may_read_clock()?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let is_over = Arc::new(AtomicBool::new(false));
        let (text, over) = (text.to_owned(), is_over.clone());
        let started = ours::ask(move |ours| {
            let (running, started) = Running::start(&text, options, &mut ours.parts, over)?;
            ours.scripts.insert(number, running);
            Ok(started)
        })?;
        Ok(Script { number, process: std::process::id(), started, is_over })
    }
}

impl Script {
    /// How many functions it probes.
    pub fn functions(&self) -> usize {
        self.started.functions
    }

    /// Functions that it means and that were left alone, and why.
    pub fn skipped(&self) -> &[Skipped] {
        &self.started.skipped
    }

    /// What might be wrong with it, as the command says it.
    pub fn warnings(&self) -> &str {
        &self.started.warnings
    }

    /// Whether it has ended itself by `exit()`: its probes are out, and its end has run.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// What its maps hold now. What was printed until now has been given to its output, but for what was told within the last milliseconds.
    ///
    /// # Errors
    /// It is asked for within the script's own output, or in a forked child.
    pub fn results(&self) -> Result<Results, Error> {
        self.here()?;
        let number = self.number;
        ours::ask(move |ours| {
            let ours::Ours { scripts, parts } = ours;
            let running = scripts.get_mut(&number);
            running.map(|running| running.results(parts)).ok_or(Error::Forked)
        })
    }

    /// Takes its probes out, runs its end, prints its maps, and gives them. What a thread was in the midst of at that moment may be missing.
    ///
    /// # Errors
    /// As [`Self::results`]; what it has printed could not be written.
    pub fn stop(self) -> Result<Results, Error> {
        self.here()?;
        let number = self.number;
        let stopped = ours::ask(move |ours| {
            let ours::Ours { scripts, parts } = ours;
            scripts.remove(&number).ok_or(Error::Forked)?.stop(parts)
        });
        stopped.map(|(results, _)| results)
    }

    fn here(&self) -> Result<(), Error> {
        if self.process == std::process::id() { Ok(()) } else { Err(Error::Forked) }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if self.here().is_err() {
            // The child's own code is changed, and nothing else is here.
            return site::alone(|all| all.unlink(&self.started.links));
        }
        let number = self.number;
        let stop = move |ours: &mut ours::Ours| {
            let ours::Ours { scripts, parts } = ours;
            // Nobody is told what came of it.
            if let Some(running) = scripts.remove(&number) {
                running.stop(parts)?;
            }
            Ok(())
        };
        if ours::is_here() {
            _ = ours::post(move |ours| _ = ours::guarded(|| stop(ours)));
        } else {
            _ = ours::ask(stop);
        }
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("functions", &self.functions()).finish_non_exhaustive()
    }
}
