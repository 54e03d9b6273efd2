//! Scripts in turn, each without probes, with trapless and with bpftrace.

use super::catalog::{self, ARMED, ARMED_BUDGET_MS, ARMED_SCRIPT, Script, Tells};
use super::tool::{Kind, Running, Tool};
use crate::OWN_BITS;
use crate::child::Work;
use crate::error::Error;
use crate::rounds::{median, rounded};
use crate::target::Target;
use serde::Serialize;

/// Time of one sample, in nanoseconds.
const SAMPLE_NS: f64 = 8e6;
/// Time of calls by which the number of calls of a sample is found, in nanoseconds.
const TRIAL_NS: f64 = 4e5;
/// Calls of the first trial, and of a sample at least.
const FEWEST: u64 = 64;
/// Calls of a sample at most.
const MOST: f64 = 2e7;
/// Calls between which a tool is waited for that prints at each: rings hold some thousand records.
const BURST: u64 = 1000;
/// Calls of a sample of a script that prints at each.
const PRINTED: u64 = 20 * BURST;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Scripts.
    pub scripts: Vec<Script>,
    /// How long it takes until one is armed.
    pub arming: Arming,
    /// Rounds.
    pub rounds: u32,
}

/// Whether arming is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arming {
    /// It is.
    Measured,
    /// It is left out.
    Left,
}

/// A script at hits, by one tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hit {
    /// The script's name.
    pub name: String,
    /// Its text.
    pub script: String,
    /// The tool that ran it.
    pub tool: Kind,
    /// A call without probes, in nanoseconds.
    pub bare_ns: f64,
    /// A call with them.
    pub call_ns: f64,
    /// The hit alone: less the unprobed call of the same round.
    pub hit_ns: f64,
    /// What it may be; of trapless.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_ns: Option<f64>,
    /// Hits that were made, and counted or printed to the last one; `None` where the script is somebody's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    /// Samples that these are the medians of.
    pub rounds: u32,
}

/// From a tool's start to an attached probe.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Armed {
    /// The script's text.
    pub script: &'static str,
    /// The tool.
    pub tool: Kind,
    /// How long, in milliseconds.
    pub ms: f64,
    /// What it may be; of trapless.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_ms: Option<f64>,
    /// Samples that this is the median of.
    pub rounds: u32,
}

/// What could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// By this tool.
    pub tool: Kind,
    /// Of this script; of all for `*`.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Everything that was measured of scripts.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// What bpftrace calls itself, where it is there.
    pub bpftrace: Option<String>,
    /// Hits, script by script.
    pub hits: Vec<Hit>,
    /// Arming.
    pub armed: Vec<Armed>,
    /// What is missing, and why.
    pub missing: Vec<Missing>,
}

/// Measures what was chosen. `progress` is told how far it is, from 0 to 1.
///
/// # Errors
/// A child ended, trapless did not run a script, or told of other hits than there were.
pub fn measure(choice: &Choice, progress: &mut dyn FnMut(f64)) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    let mut tools = vec![Tool::trapless()?];
    match Tool::bpftrace() {
        Ok(tool) => {
            measured.bpftrace = Some(tool.version.clone());
            tools.push(tool);
        }
        Err(reason) => {
            measured.missing.push(Missing { tool: Kind::Bpftrace, name: "*".to_owned(), reason });
        }
    }
    let arms = choice.arming == Arming::Measured;
    let parts = (choice.scripts.len() + usize::from(arms)) as f64;
    for (done, script) in choice.scripts.iter().enumerate() {
        progress(done as f64 / parts);
        one(script, choice.rounds, &tools, &mut measured)?;
    }
    if arms {
        progress((parts - 1.0) / parts);
        arming(choice.rounds, &tools, &mut measured)?;
    }
    progress(1.0);
    Ok(measured)
}

/// A child, and what probes it.
struct Contender {
    /// Before the child, so that it is out of it when that ends.
    running: Option<Running>,
    target: Target,
    kind: Option<Kind>,
    tells: Tells,
    times: u64,
    samples: Vec<f64>,
    /// Hits so far that a tool has to tell of, and those of them that it has printed.
    hits: Option<u64>,
    printed: u64,
}

impl Contender {
    fn start(script: &Script, tool: Option<&Tool>) -> Result<Contender, Error> {
        let target = Target::start(OWN_BITS)?;
        let running = tool.map(|tool| tool.run(script, target.process.pid().0)).transpose()?;
        let kind = tool.map(|tool| tool.kind);
        let hits = script.tells.of(0);
        Ok(Contender {
            running,
            target,
            kind,
            tells: script.tells,
            times: 0,
            samples: vec![],
            hits,
            printed: 0,
        })
    }

    /// One call, in nanoseconds, by `times` of them; with pauses where what is printed has to be read.
    fn sample(&mut self, times: u64) -> Result<f64, Error> {
        let burst = if self.tells.is_at_hits() { BURST } else { times };
        let (mut left, mut time) = (times, 0.0);
        while left > 0 {
            let now = left.min(burst);
            time += self.target.work(1, Work::Called, now)?.cpu_ns * now as f64;
            left -= now;
            let hits = self.tells.of(now);
            self.hits = self.hits.zip(hits).map(|(all, more)| all + more);
            if let Some(running) = self.running.as_mut().filter(|_| self.tells.is_at_hits()) {
                self.printed += running.take(hits)?;
            }
        }
        Ok(time / times as f64)
    }

    /// Finds out how many calls make a sample, from few to as many as that takes.
    fn trial(&mut self) -> Result<(), Error> {
        if self.tells.is_at_hits() {
            self.sample(BURST)?;
            self.times = PRINTED;
            return Ok(());
        }
        let mut times = FEWEST;
        loop {
            let call = self.sample(times)?.max(0.1);
            if call * times as f64 >= TRIAL_NS || times as f64 >= MOST {
                self.times = (SAMPLE_NS / call).clamp(FEWEST as f64, MOST) as u64;
                return Ok(());
            }
            times *= 4;
        }
    }

    fn round(&mut self) -> Result<(), Error> {
        let sample = self.sample(self.times)?;
        self.samples.push(sample);
        Ok(())
    }

    /// Ends the tool. A benchmark of probes that miss hits is worth nothing.
    fn end(&mut self, script: &Script) -> Result<(), Error> {
        let (Some(running), Some(kind)) = (self.running.take(), self.kind) else { return Ok(()) };
        let counted = running.end()?;
        let told = if self.tells.is_at_hits() { self.printed } else { counted };
        match self.hits {
            Some(made) if made != told => {
                Err(Error::Told { tool: kind.name(), script: script.name.clone(), made, told })
            }
            _ => Ok(()),
        }
    }
}

/// Measures a script: what trapless does has to go well, what bpftrace cannot is noted.
fn one(script: &Script, rounds: u32, tools: &[Tool], measured: &mut Measured) -> Result<(), Error> {
    let mut contenders = vec![Contender::start(script, None)?];
    let mut failed = |kind: Kind, error: Error| match kind {
        Kind::Trapless => Err(error),
        Kind::Bpftrace => {
            let reason = match error {
                Error::Script { said, .. } => said,
                error => error.to_string(),
            };
            measured.missing.push(Missing { tool: kind, name: script.name.clone(), reason });
            Ok(())
        }
    };
    for tool in tools {
        match Contender::start(script, Some(tool)) {
            Ok(contender) => contenders.push(contender),
            Err(error) => failed(tool.kind, error)?,
        }
    }
    // What fails is out of the running.
    let mut each = |contenders: &mut Vec<Contender>, act: &dyn Fn(&mut Contender) -> Result<(), Error>| {
        let mut kept = Vec::new();
        for mut contender in contenders.drain(..) {
            match (act(&mut contender), contender.kind) {
                (Ok(()), _) => kept.push(contender),
                (Err(error), None) => return Err(error),
                (Err(error), Some(kind)) => failed(kind, error)?,
            }
        }
        *contenders = kept;
        Ok(())
    };
    each(&mut contenders, &Contender::trial)?;
    for _ in 0..rounds {
        each(&mut contenders, &Contender::round)?;
    }
    each(&mut contenders, &|contender| contender.end(script))?;
    let bare = contenders[0].samples.clone();
    for contender in &contenders {
        let Some(tool) = contender.kind else { continue };
        let above = contender.samples.iter().zip(&bare).map(|(probed, bare)| probed - bare);
        measured.hits.push(Hit {
            name: script.name.clone(),
            script: script.text.clone(),
            tool,
            bare_ns: rounded(median(bare.iter().copied())),
            call_ns: rounded(median(contender.samples.iter().copied())),
            hit_ns: rounded(median(above)),
            budget_ns: script.budget_ns.filter(|_| tool == Kind::Trapless),
            hits: contender.hits,
            rounds,
        });
    }
    Ok(())
}

/// Measures from a tool's start to an attached probe.
fn arming(rounds: u32, tools: &[Tool], measured: &mut Measured) -> Result<(), Error> {
    let script = Script { name: ARMED.to_owned(), ..catalog::typed(ARMED_SCRIPT) };
    let target = Target::start(OWN_BITS)?;
    let pid = target.process.pid().0;
    let mut samples = vec![Some(Vec::new()); tools.len()];
    for _ in 0..rounds {
        for (tool, samples) in tools.iter().zip(&mut samples) {
            let Some(times) = samples else { continue };
            let armed = tool.run(&script, pid).and_then(|running| {
                let armed = running.armed;
                running.end().map(|_| armed)
            });
            match armed {
                Ok(armed) => times.push(armed.as_secs_f64() * 1e3),
                Err(error) if tool.kind == Kind::Trapless => return Err(error),
                Err(error) => {
                    let (tool, name) = (tool.kind, ARMED.to_owned());
                    measured.missing.push(Missing { tool, name, reason: error.to_string() });
                    *samples = None;
                }
            }
        }
    }
    for (tool, samples) in tools.iter().zip(samples) {
        let Some(samples) = samples else { continue };
        measured.armed.push(Armed {
            script: ARMED_SCRIPT,
            tool: tool.kind,
            ms: rounded(median(samples.into_iter())),
            budget_ms: Some(ARMED_BUDGET_MS).filter(|_| tool.kind == Kind::Trapless),
            rounds,
        });
    }
    Ok(())
}
