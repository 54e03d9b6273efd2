//! Clauses: the probes of a script, apart by what kind of place they are at. What a body may use depends on it.

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::source::Span;
use crate::syntax::ast::{ChosenAt, Probe, ProbePoint, UserPlace};

/// Attach points of one kind with their body.
#[derive(Clone, Debug, Default)]
pub struct Clause {
    /// Which probe of the script.
    pub probe: usize,
    /// What kind of place it is at.
    pub kind: ClauseKind,
    /// Where.
    pub points: Vec<Point>,
}

/// An attach point.
#[derive(Clone, Debug)]
pub struct Point {
    /// As the script has it.
    pub text: String,
    /// What it is.
    pub point: ProbePoint,
    /// Where it stands.
    pub span: Span,
}

/// What kind of place a body runs at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClauseKind {
    /// Before anything is attached.
    #[default]
    Begin,
    /// When everything is detached.
    End,
    /// At the entries of functions.
    Entry,
    /// When functions return.
    Return,
    /// At any instruction.
    Inside,
    /// At static probes.
    Usdt,
    /// At regular times, once.
    Interval,
    /// At regular times, on each processor.
    Profile,
    /// When the tool gets a signal.
    SelfSignal,
    /// When tests are run.
    Test,
    /// When benchmarks are run.
    Bench,
}

impl ClauseKind {
    /// The kind of an attach point; `None` for the kernel's.
    pub fn of(point: &ProbePoint) -> Option<ClauseKind> {
        Some(match point {
            ProbePoint::Begin => ClauseKind::Begin,
            ProbePoint::End => ClauseKind::End,
            ProbePoint::Uprobe(user) => match user.place {
                UserPlace::Function { offset: 0, .. } => ClauseKind::Entry,
                _ => ClauseKind::Inside,
            },
            ProbePoint::Uretprobe(_) => ClauseKind::Return,
            ProbePoint::Usdt { .. } => ClauseKind::Usdt,
            ProbePoint::Interval(_) => ClauseKind::Interval,
            ProbePoint::Profile(_) => ClauseKind::Profile,
            ProbePoint::SelfSignal(_) => ClauseKind::SelfSignal,
            ProbePoint::Test(_) => ClauseKind::Test,
            ProbePoint::Bench(_) => ClauseKind::Bench,
            ProbePoint::Chosen { at, .. } => match at {
                ChosenAt::Entry => ClauseKind::Entry,
                ChosenAt::Return => ClauseKind::Return,
                ChosenAt::Inside => ClauseKind::Inside,
                ChosenAt::Usdt => ClauseKind::Usdt,
            },
            ProbePoint::Kernel(_) => return None,
        })
    }

    /// Whether it is in a program, and not in the tool itself.
    pub fn is_in_program(self) -> bool {
        matches!(self, ClauseKind::Entry | ClauseKind::Inside | ClauseKind::Return | ClauseKind::Usdt)
    }

    /// Its provider, as `probetype` tells it.
    pub fn provider(self) -> &'static str {
        match self {
            ClauseKind::Begin | ClauseKind::End => "special",
            ClauseKind::Entry | ClauseKind::Inside => "uprobe",
            ClauseKind::Return => "uretprobe",
            ClauseKind::Usdt => "usdt",
            ClauseKind::Interval => "interval",
            ClauseKind::Profile => "profile",
            ClauseKind::SelfSignal => "self",
            ClauseKind::Test => "test",
            ClauseKind::Bench => "bench",
        }
    }

    /// Its provider, as a script writes it.
    pub fn name(self) -> &'static str {
        match self {
            ClauseKind::Begin => "begin",
            ClauseKind::End => "end",
            other => other.provider(),
        }
    }

    /// Whether its body runs in the probed process.
    pub fn is_in_target(self) -> bool {
        matches!(self, ClauseKind::Entry | ClauseKind::Return | ClauseKind::Inside | ClauseKind::Usdt)
    }

    /// Whether it may ask for registers and what else comes from where something was interrupted.
    pub fn has_registers(self) -> bool {
        self.is_in_target() || self == ClauseKind::Profile
    }
}

/// The clauses of a script. The kernel's probes are refused.
pub fn clauses(probes: &[Probe], told: &mut Diagnostics) -> Vec<Clause> {
    let mut clauses: Vec<Clause> = Vec::new();
    for (number, probe) in probes.iter().enumerate() {
        let first = clauses.len();
        for attach in &probe.attach {
            for point in &attach.points {
                let Some(kind) = ClauseKind::of(point) else {
                    if let ProbePoint::Kernel(provider) = point {
                        told.push(refusal(provider, attach.span));
                    }
                    continue;
                };
                let text = text_of(&attach.text, point);
                let point = Point { text, point: point.clone(), span: attach.span };
                match clauses[first..].iter_mut().find(|clause| clause.kind == kind) {
                    Some(clause) => clause.points.push(point),
                    None => clauses.push(Clause { probe: number, kind, points: vec![point] }),
                }
            }
        }
    }
    clauses
}

/// Tests and benchmarks are told apart by their names.
pub fn check_names(clauses: &[Clause], told: &mut Diagnostics) {
    let mut known: Vec<(&ProbePoint, Span)> = Vec::new();
    for point in clauses.iter().flat_map(|clause| &clause.points) {
        let (name, kind) = match &point.point {
            ProbePoint::Test(name) => (name, "TEST"),
            ProbePoint::Bench(name) => (name, "BENCH"),
            _ => continue,
        };
        match known.iter().find(|(other, _)| **other == point.point) {
            Some((_, other)) => told.push(
                Diagnostic::error(
                    point.span,
                    format!("\"{name}\" was used as the name for more than one {kind} probe"),
                )
                .related(*other, "this is the other instance"),
            ),
            None => known.push((&point.point, point.span)),
        }
    }
}

/// The kernel is not ours.
fn refusal(provider: &str, span: Span) -> Diagnostic {
    Diagnostic::error(
        span,
        format!("{provider} probes are in the kernel, and only user programs are probed here"),
    )
    .hint("bpftrace, perf and ftrace probe the kernel")
}

/// An attach point as `probe` tells it where that is known before it is attached.
fn text_of(text: &str, point: &ProbePoint) -> String {
    use crate::syntax::ast::Frequency;
    let time = |provider: &str, frequency: &Frequency| match frequency {
        Frequency::Any => format!("{provider}:*"),
        Frequency::Hertz(times) => format!("{provider}:hz:{times}"),
        Frequency::Every(nanoseconds) => {
            // As it is written, where the unit is told apart.
            let parts: Vec<&str> = text.split(':').collect();
            match parts[..] {
                [_, unit @ ("s" | "ms" | "us"), count] => format!("{provider}:{unit}:{count}"),
                _ => format!("{provider}:us:{}", nanoseconds / 1000),
            }
        }
    };
    match point {
        ProbePoint::Begin => "begin".to_owned(),
        ProbePoint::End => "end".to_owned(),
        ProbePoint::Interval(frequency) => time("interval", frequency),
        ProbePoint::Profile(frequency) => time("profile", frequency),
        ProbePoint::SelfSignal(name) => format!("self:signal:{name}"),
        ProbePoint::Test(name) => format!("test:{name}"),
        ProbePoint::Bench(name) => format!("bench:{name}"),
        _ => text.to_owned(),
    }
}
