//! From expressions to a script: each is parsed where it was written, and put into a frame.

use super::super::load;
use crate::cli::inject::{Injection, Moment};
use crate::cli::quick::{Form, Format, Linear, Lines, Quick};
use crate::cli::script::Text;
use crate::cli::validated::{Probe, Run, Selection};
use crate::error::Error;
use crate::spec::{Kind, Location, ProbeSpec};
use std::sync::Arc;
use trapless_script::diagnostics::{Diagnostic, Diagnostics};
use trapless_script::source::{Sources, Span};
use trapless_script::syntax::ast::visit::{self, VisitMut};
use trapless_script::syntax::ast::{ChosenAt, Expr, ExprIds, ExprKind, ProbePoint};
use trapless_script::syntax::{self, Frame, Script, parse_expression};

/// Maps of frames that mean something in one process alone.
pub(super) const OF_PROCESS: [&str; 5] = ["@taken", "@done", "@since", "@shown", "@meant"];

/// Log2 of the buckets that each power of two has in histograms of times: percentiles are exact to a sixteenth.
pub(super) const TIME_BITS: u8 = 4;

/// Groups that are kept of each thread, where the user says nothing: of numbers, and of histograms, which take kilobytes each.
const MOST_KEYS: (u32, u32) = (4096, 1024);

/// Threads whose lines are limited, at most.
const MOST_THREADS: u32 = 1 << 16;

/// Attach points by the name of the frame's probe that they are of.
pub(super) type Places = Vec<(&'static str, Vec<(String, ProbePoint)>)>;

/// What people have written, as far as it was read.
pub(super) struct Written {
    pub sources: Sources,
    pub ids: ExprIds,
    pub told: Diagnostics,
    /// What has to hold.
    pub filters: Vec<Expr>,
    /// What rows are grouped by, each with its text.
    pub by: Vec<(Arc<str>, Expr)>,
    /// What lines show.
    pub values: Vec<(Arc<str>, Expr, Format)>,
    /// The expression of a histogram, or what the caller gets.
    pub value: Option<Expr>,
    /// Arguments that are set.
    pub sets: Vec<(u8, Expr)>,
}

impl Written {
    /// Reads all expressions.
    ///
    /// # Errors
    /// One is none, which has been told.
    pub fn parse(text: &Text, asked: &Quick) -> Result<Self, Error> {
        let (mut sources, mut ids, mut told): (Sources, ExprIds, Diagnostics) = Default::default();
        let mut read = |flag: &str, text: &str| -> Result<Option<Expr>, Error> {
            let source = sources.add(flag, text).map_err(|error| Error::Usage(error.to_string()))?;
            Ok(parse_expression(&sources, source, &mut ids, &mut told))
        };
        let (mut filters, mut values, mut grouped) = (Vec::new(), Vec::new(), Vec::new());
        for text in &asked.filters {
            filters.extend(read("--where", text)?);
        }
        for text in &asked.by {
            grouped.extend(read("--by", text)?);
        }
        let (mut value, mut sets) = (None, Vec::new());
        match &asked.form {
            Form::Trace(lines) => {
                for shown in &lines.values {
                    let name: Arc<str> = shown.text.trim().into();
                    values.extend(read("--arg", &shown.text)?.map(|expr| (name, expr, shown.format)));
                }
            }
            Form::Hist { value: text, .. } => value = read("EXPR", text)?,
            Form::Inject(injection) => {
                let flag = if injection.at == Moment::Entry { "--return" } else { "--result" };
                if let Some(text) = &injection.result {
                    value = read(flag, text)?;
                }
                for set in &injection.sets {
                    sets.extend(read("--set", &set.to)?.map(|expr| (set.argument, expr)));
                }
            }
            Form::Count | Form::Latency => {}
        }
        let mut effects = Effects(&mut told);
        let shown = values.iter().map(|(_, expr, _)| expr).chain(sets.iter().map(|(_, expr)| expr));
        let all = filters.iter().chain(&grouped).chain(shown).chain(&value);
        all.for_each(|expr| effects.expr(&mut expr.clone()));
        if told.has_errors() {
            return Err(load::refused(text, &told, &sources));
        }
        let mut by = Vec::new();
        for expr in grouped {
            let parts = match expr {
                // A list of keys, as in a map's.
                Expr { kind: ExprKind::Tuple(parts), .. } if !parts.is_empty() => parts,
                other => vec![other],
            };
            by.extend(parts.into_iter().map(|part| (Arc::from(sources.text(part.span).trim()), part)));
        }
        Ok(Self { sources, ids, told, filters, by, values, value, sets })
    }

    /// All expressions.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Expr> {
        let by = self.by.iter_mut().map(|(_, expr)| expr);
        let values = self.values.iter_mut().map(|(_, expr, _)| expr);
        let values = values.chain(self.sets.iter_mut().map(|(_, expr)| expr));
        self.filters.iter_mut().chain(by).chain(values).chain(&mut self.value)
    }

    /// Where something is asked that only a return knows.
    fn of_return(&self) -> Option<Span> {
        let by = self.by.iter().map(|(_, expr)| expr);
        let values = self.values.iter().map(|(_, expr, _)| expr);
        let values = values.chain(self.sets.iter().map(|(_, expr)| expr));
        let mut all = self.filters.iter().chain(by).chain(values).chain(&self.value);
        all.find_map(|expr| {
            let mut returns = Returns(None);
            returns.expr(&mut expr.clone());
            returns.0
        })
    }
}

/// Refuses what belongs to scripts: an expression has a value and does nothing else, as it may be computed or not.
struct Effects<'a>(&'a mut Diagnostics);

/// Functions that do something.
const DEEDS: [&str; 26] = [
    "print",
    "printf",
    "errorf",
    "warnf",
    "time",
    "join",
    "cat",
    "exit",
    "system",
    "signal",
    "clear",
    "zero",
    "signal_thread",
    "delay",
    "override",
    "setarg",
    "seterrno",
    "delete",
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "stats",
    "hist",
    "lhist",
];

impl VisitMut for Effects<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        let what = match &expr.kind {
            ExprKind::Map(_) | ExprKind::MapElement { .. } | ExprKind::MapAddress(_) => Some("maps"),
            ExprKind::Variable(_) | ExprKind::VariableAddress(_) | ExprKind::Step { .. } => Some("variables"),
            ExprKind::Positional(_) | ExprKind::PositionalCount => Some("parameters"),
            ExprKind::Block(_) | ExprKind::If { .. } => Some("statements"),
            ExprKind::Call { name, .. } if DEEDS.contains(&name.text.as_str()) => {
                Some("functions that do something")
            }
            _ => None,
        };
        if let Some(what) = what {
            let message =
                format!("{what} are for scripts; an expression tells a value and does nothing else");
            let hint = "a script does more: trapless -e 'uprobe:FILE:FUNCTION /FILTER/ { … }' -p PID";
            self.0.push(Diagnostic::error(expr.span, message).hint(hint));
            return;
        }
        visit::expr_parts(self, expr);
    }
}

/// Finds what only a return knows.
struct Returns(Option<Span>);

impl VisitMut for Returns {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Identifier(name) | ExprKind::Builtin(name) = &expr.kind
            && matches!(name.strip_prefix("__builtin_").unwrap_or(name), "retval" | "fretval" | "duration")
        {
            self.0 = self.0.or(Some(expr.span));
        }
        visit::expr_parts(self, expr);
    }
}

/// Where a specification's hits are looked at: at entries, and at returns.
fn moments(asked: &Quick, probe: &Probe, of_return: bool) -> (bool, bool) {
    let of_return = of_return || asked.slower.is_some();
    match asked.form {
        Form::Latency => (false, true),
        Form::Inject(_) => (probe.entry, probe.returns),
        Form::Trace(_) if of_return || probe.returns => (false, true),
        _ if of_return => (false, true),
        _ => (probe.entry, probe.returns),
    }
}

/// The specifications that are meant, by number, and the attach points of the frame's probes.
///
/// # Errors
/// What only a return knows is asked of what has none.
pub(super) fn places(
    selection: &Selection,
    asked: &Quick,
    written: &Written,
) -> Result<(Vec<ProbeSpec>, Places), Error> {
    let of_return = written.of_return();
    if let (Form::Inject(Injection { at: Moment::Entry, .. }), Some(span)) = (&asked.form, of_return) {
        let what = written.sources.text(span);
        return Err(Error::Usage(format!(
            "'{what}' is known when functions return, and only --result waits for that"
        )));
    }
    let mut specs: Vec<ProbeSpec> = Vec::new();
    let (mut entries, mut returns) = (Vec::new(), Vec::new());
    for probe in &selection.probes {
        let (at_entry, at_return) = moments(asked, probe, of_return.is_some());
        let is_function = matches!(probe.spec.location, Location::Function { offset: 0, .. });
        if matches!(asked.form, Form::Inject(_)) && !is_function {
            let text = &probe.spec.text;
            return Err(Error::Usage(format!(
                "'{text}' names no whole function, and only calls of those are changed; name the function"
            )));
        }
        if at_return && !is_function {
            let why = match of_return {
                Some(span) => format!("'{}' is known when functions return", written.sources.text(span)),
                None => "calls are looked at when they return".to_owned(),
            };
            let text = &probe.spec.text;
            return Err(Error::Usage(format!(
                "'{text}' names no whole function, and {why}; name the function"
            )));
        }
        let at = match probe.spec.location {
            _ if is_function => ChosenAt::Entry,
            Location::Usdt { .. } => ChosenAt::Usdt,
            _ => ChosenAt::Inside,
        };
        let mut choose = |list: &mut Vec<(String, ProbePoint)>, kind: Kind, at: ChosenAt| {
            let number = specs.len() as u32;
            specs.push(ProbeSpec { kind: Some(kind), ..probe.spec.clone() });
            list.push((probe.spec.text.clone(), ProbePoint::Chosen { number, at }));
        };
        if at_entry {
            choose(&mut entries, Kind::Entry, at);
        }
        if at_return {
            choose(&mut returns, Kind::Return, ChosenAt::Return);
        }
    }
    Ok((specs, vec![("entry", entries), ("return", returns)]))
}

/// What the maps and messages of the script mean.
#[derive(Clone, Debug, Default)]
pub(super) struct Meaning {
    /// The names of what rows are grouped by.
    pub by: Vec<Arc<str>>,
    /// What stands in a message behind the site and the thread.
    pub parts: Vec<Part>,
    /// After so many hits of a process no more are taken.
    pub most: Option<u64>,
    /// How many keys there may be.
    pub keys: u32,
    pub form: Form,
    /// Whether hits are looked at when functions are called, and when they return.
    pub looks: Looks,
    /// What was taken off the values of a linear histogram, since buckets begin at 0.
    pub shift: i64,
}

/// When hits are looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    pub at_entry: bool,
    pub at_return: bool,
}

/// A part of a message about a hit.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    /// An argument as a word.
    Word,
    /// The value of an expression.
    Value { name: Arc<str>, format: Format, is_word: bool },
    /// What the function returns.
    Result,
    /// How long it took.
    Duration,
    /// The call stack.
    Stack,
}

/// The script, with the expressions in it.
///
/// # Errors
/// It has errors, which have been told.
pub(super) fn script(
    text: &Text,
    written: &mut Written,
    asked: &Quick,
    run: &Run,
    places: &Places,
) -> Result<(Script, Meaning), Error> {
    let has = |name: &str| places.iter().any(|(known, points)| *known == name && !points.is_empty());
    let looks = Looks { at_entry: has("entry"), at_return: has("return") };
    let mut fillings: Vec<(String, Expr)> = Vec::new();
    let mut fill = |expr: &Expr| {
        let hole = format!("hole_{}", fillings.len());
        fillings.push((hole.clone(), expr.clone()));
        hole
    };
    let mut conditions: Vec<String> = Vec::new();
    if !asked.threads.is_empty() {
        let threads: Vec<String> = asked.threads.iter().map(|thread| format!("tid == {thread}")).collect();
        conditions.push(format!("({})", threads.join(" || ")));
    }
    conditions.extend(asked.slower.map(|slower| format!("duration >= {slower}")));
    let mut filters = written.filters.iter().map(&mut fill).collect::<Vec<String>>().into_iter();
    // Each has a place of its own, so that what is wrong with it is told there.
    conditions.extend(filters.next().map(|filter| format!("({filter})")));
    let mut by: Vec<(Arc<str>, String)> =
        written.by.iter().map(|(name, expr)| (Arc::clone(name), fill(expr))).collect();
    let is_trace = matches!(asked.form, Form::Trace(_));
    if let Some(frames) = asked.stack.filter(|_| !is_trace) {
        by.push(("ustack".into(), format!("ustack({frames})")));
    }
    let (numbers, histograms) = MOST_KEYS;
    let keys = match asked.max_keys {
        0 if matches!(asked.form, Form::Latency) => histograms,
        0 => numbers,
        keys => keys,
    };
    let key = |probe: &str| match by.is_empty() {
        true => probe.to_owned(),
        false => {
            let parts: Vec<&str> = by.iter().map(|(_, text)| text.as_str()).collect();
            format!("({probe}, {})", parts.join(", "))
        }
    };
    let mut declarations = String::new();
    let mut declare = |kind: &str, map: &str, keys: u32| {
        declarations.push_str(&format!("let {map} = {kind}({keys});\n"));
    };
    // What stands ahead of what is done with a hit that is meant.
    let mut head: String = filters.map(|filter| format!("if ({filter}) {{ }} else {{ return; }} ")).collect();
    if let Some(share) = asked.sample {
        let (taken, of) = (share.taken, share.of);
        head.push_str(&format!("if (rand % {of} >= {taken}) {{ @unsampled = count(); return; }} "));
    }
    if let Form::Trace(Lines { rate: Some(rate), .. }) = &asked.form {
        declare("hash", "@since", MOST_THREADS);
        declare("hash", "@shown", MOST_THREADS);
        head.push_str(&format!(
            "$now = nsecs; if ($now - @since[tid] >= {}) {{ @since[tid] = $now; @shown[tid] = (uint64)0; }} \
             @shown[tid] += 1; if (@shown[tid] > {}) {{ @limited = count(); return; }} ",
            rate.per, rate.hits
        ));
    }
    if let Form::Inject(injection) = &asked.form {
        if let Some(times) = injection.probability {
            head.push_str(&format!("if (rand >= {times}) {{ return; }} "));
        }
        if injection.every > 1 {
            head.push_str(&format!(
                "$meant = ++@meant; if ($meant % {} != 0) {{ return; }} ",
                injection.every
            ));
        }
    }
    if let Some(most) = run.limits.max_events.filter(|_| !is_trace) {
        head.push_str(&format!("$taken = ++@taken; if ($taken > {most}) {{ return; }} "));
    }
    let (mut parts, mut shift) = (Vec::new(), 0);
    let (at_entry, at_return) = match &asked.form {
        Form::Count => {
            declare("percpuhash", "@hits", keys);
            let body = format!("{head}@hits[{}] = count();", key("probe"));
            (body.clone(), body)
        }
        Form::Latency => {
            ["@times", "@sums", "@longest"].iter().for_each(|map| declare("percpuhash", map, keys));
            let body = format!(
                "{head}$key = {}; @times[$key] = hist(duration, {TIME_BITS}); @sums[$key] = stats(duration); \
                 @longest[$key] = max(duration);",
                key("probe")
            );
            (String::new(), body)
        }
        Form::Hist { linear, .. } => {
            declare("percpuhash", "@values", keys);
            let value = written.value.as_ref().map(&mut fill).unwrap_or_default();
            let value = match linear {
                Some(Linear { low: low @ ..0, high, step }) => {
                    shift = *low;
                    let high = high.saturating_sub(*low);
                    format!("lhist((int64)({value}) + {}, 0, {high}, {step})", low.unsigned_abs())
                }
                Some(Linear { low, high, step }) => format!("lhist({value}, {low}, {high}, {step})"),
                None => format!("hist({value})"),
            };
            let body = format!("{head}@values[{}] = {value};", key("probe"));
            (body.clone(), body)
        }
        Form::Inject(injection) => {
            declare("percpuhash", "@hits", keys);
            let result = written.value.as_ref().map(&mut fill);
            let result = match result {
                Some(hole) => format!("override({hole}); "),
                None if injection.skips => "override(); ".to_owned(),
                None => String::new(),
            };
            let sets =
                written.sets.iter().map(|(number, expr)| format!("setarg({number}, {}); ", fill(expr)));
            let sets: String = sets.collect();
            let errno = injection.errno.map(|errno| format!("seterrno({errno}); ")).unwrap_or_default();
            let signal = injection.signal.map(|signal| format!("signal({signal}); ")).unwrap_or_default();
            let deeds = [result, sets, errno, signal].concat();
            // Never: but what cannot be done is not counted either.
            let done = |deeds: String| match injection.is_dry {
                true => format!("if (nsecs == 0) {{ {deeds} }} "),
                false => deeds,
            };
            // A delay is counted when it is over, so that the last of some is not cut short. All else ahead, since it may end the process.
            let delay = injection.delay.map(|time| {
                let over = if run.limits.max_events.is_some() { "++@done; " } else { "" };
                format!("{}{over}", done(format!("delay({time}); ")))
            });
            let delay = delay.unwrap_or_default();
            let body = format!("{head}{delay}@hits[{}] = count(); {}", key("probe"), done(deeds));
            match injection.at {
                Moment::Entry => (body, String::new()),
                Moment::Return => (String::new(), body),
            }
        }
        Form::Trace(lines) => {
            let mut values: Vec<String> = (0..lines.args).map(|number| format!("arg{number}")).collect();
            parts.extend(values.iter().map(|_| Part::Word));
            for (name, expr, format) in &written.values {
                let hole = fill(expr);
                values.push(match format {
                    Format::Text => format!("str({hole})"),
                    Format::Bytes(Some(count)) => format!("buf({hole}, {count})"),
                    Format::Bytes(None) => format!("buf({hole})"),
                    _ => hole,
                });
                let is_word = is_word(expr);
                parts.push(Part::Value { name: Arc::clone(name), format: *format, is_word });
            }
            let mut more = Vec::new();
            more.extend(asked.stack.map(|frames| (Part::Stack, format!("ustack({frames})"))));
            let line = |values: &[String], more: &[(Part, String)]| {
                let all = values.iter().chain(more.iter().map(|(_, text)| text));
                let all: Vec<&str> = ["probe", "tid"].into_iter().chain(all.map(String::as_str)).collect();
                format!("{head}printf(\"{}\", {});", "%s".repeat(all.len()), all.join(", "))
            };
            let entry = line(&values, &more);
            if looks.at_return {
                let results = [(Part::Result, "retval"), (Part::Duration, "duration")];
                more.splice(0..0, results.map(|(part, text)| (part, text.to_owned())));
            }
            let exit = line(&values, &more);
            parts.extend(more.into_iter().map(|(part, _)| part));
            (entry, exit)
        }
    };
    let filter = match conditions.is_empty() {
        true => String::new(),
        false => format!("/{}/ ", conditions.join(" && ")),
    };
    let frame =
        format!("{declarations}test:entry {filter}{{ {at_entry} }}\ntest:return {filter}{{ {at_return} }}\n");
    let frame = Frame { text: &frame, places, fillings: &fillings };
    let options = load::options(text);
    let Written { sources, ids, told, .. } = written;
    let script = syntax::fill(sources, &frame, ids, &options, told);
    let script = script.ok_or_else(|| load::refused(text, told, sources))?;
    let by = by.into_iter().map(|(name, _)| name).collect();
    let form = asked.form.clone();
    Ok((script, Meaning { by, parts, most: None, keys, form, looks, shift }))
}

/// Whether an expression is a word of the call, of which no type is known.
pub(super) fn is_word(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Builtin(name) | ExprKind::Identifier(name) => {
            let digits = name.strip_prefix("arg").or_else(|| name.strip_prefix("sarg"));
            digits
                .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
        }
        _ => false,
    }
}

/// Whether an expression is the result of the call.
pub(super) fn is_result(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Builtin(name) | ExprKind::Identifier(name)
        if matches!(name.as_str(), "retval" | "__builtin_retval"))
}
