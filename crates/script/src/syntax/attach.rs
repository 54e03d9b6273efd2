//! The parts of an attach point: from the words between its colons to what it means.
//!
//! `provider:part:part`, where a part may be in quotes, and `$1` outside of quotes stands for a parameter of
//! the command line. The source line of `uprobe:file@source:line` is set off by an `@` in the target; behind
//! it, an `@` belongs to the name, as in `memcpy@@GLIBC_2.14`.

mod error;

pub use error::{AttachError, refusal};

use super::ast::{Frequency, ProbePoint, UserPlace, UserPoint};
use super::number;
use crate::nearest::nearest;

/// What an attach point needs to know of the command line.
#[derive(Clone, Debug, Default)]
pub struct AttachContext {
    /// The values of `$1`, `$2`, ….
    pub parameters: Vec<String>,
    /// Whether a process is given, whose file is then the target if none is named.
    pub process: bool,
}

/// An attach point taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The name in `name=provider:…`.
    pub name: Option<String>,
    /// What it means; several if the provider is a pattern.
    pub points: Vec<ProbePoint>,
}

/// The providers of user space and the kernel's, with their short names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Provider {
    Begin,
    End,
    Uprobe,
    Uretprobe,
    Usdt,
    Interval,
    Profile,
    SelfTrigger,
    Test,
    Bench,
    /// Its full name, how many parts it takes as told, the least and the most.
    Kernel(&'static str, &'static str, usize, usize),
}

const PROVIDERS: [(&[&str], Provider); 19] = [
    (&["begin"], Provider::Begin),
    (&["end"], Provider::End),
    (&["uprobe", "u"], Provider::Uprobe),
    (&["uretprobe", "ur"], Provider::Uretprobe),
    (&["usdt", "U"], Provider::Usdt),
    (&["interval", "i"], Provider::Interval),
    (&["profile", "p"], Provider::Profile),
    (&["self"], Provider::SelfTrigger),
    (&["test"], Provider::Test),
    (&["bench"], Provider::Bench),
    (&["kprobe", "k"], Provider::Kernel("kprobe", "1 or 2", 1, 2)),
    (&["kretprobe", "kr"], Provider::Kernel("kretprobe", "1 or 2", 1, 2)),
    (&["tracepoint", "t"], Provider::Kernel("tracepoint", "2", 2, 2)),
    (&["rawtracepoint", "rt"], Provider::Kernel("rawtracepoint", "2 or 1", 1, 2)),
    (&["fentry", "f", "kfunc"], Provider::Kernel("fentry", "1 or 3", 1, 3)),
    (&["fexit", "fr", "kretfunc"], Provider::Kernel("fexit", "1 or 3", 1, 3)),
    (&["software", "s"], Provider::Kernel("software", "1 or 2", 1, 2)),
    (&["hardware", "h"], Provider::Kernel("hardware", "1 or 2", 1, 2)),
    (&["iter", "it"], Provider::Kernel("iter", "1 or 2", 1, 2)),
];

/// The provider that was probably meant by a name that is none.
pub fn nearest_provider(name: &str) -> Option<&'static str> {
    nearest(name, PROVIDERS.iter().map(|(names, _)| names[0]))
}

/// Older names of the kernel's providers, and those that take whatever is behind them.
const WATCHPOINTS: [&str; 4] = ["watchpoint", "w", "asyncwatchpoint", "aw"];

/// Takes `text` apart.
///
/// # Errors
/// See [`AttachError`].
pub fn parse(text: &str, context: &AttachContext) -> Result<Parsed, AttachError> {
    let mut parts = split(text, &context.parameters)?;
    let mut provider = parts.remove(0);
    let name = match provider.split_once('=') {
        Some((name, rest)) if !rest.is_empty() => {
            let name = name.to_string();
            provider = rest.to_string();
            Some(name)
        }
        _ => None,
    };
    if provider.is_empty() {
        return Err(AttachError::Empty);
    }
    if !is_pattern(&provider) {
        let point = point(by_name(&provider)?, parts, context)?;
        return Ok(Parsed { name, points: vec![point] });
    }
    // A pattern stands for the providers of user space if the target is a path or there is a process, else
    // for the kernel's. Those whose parts do not fit are left out.
    let user = context.process || parts.first().is_some_and(|target| target.contains('/'));
    let pattern = if parts.is_empty() { "*" } else { provider.as_str() };
    let fitting: Vec<Provider> = PROVIDERS
        .iter()
        .filter(|(names, provider)| {
            let candidate = match provider {
                Provider::Uprobe | Provider::Usdt => user,
                Provider::Kernel(..) => !user,
                _ => false,
            };
            candidate && fits(pattern, names[0])
        })
        .map(|&(_, provider)| provider)
        .collect();
    if fitting.is_empty() {
        return Err(AttachError::NoProviderFits(provider));
    }
    let mut points = Vec::new();
    for provider in fitting {
        match point(provider, parts.clone(), context) {
            Ok(point) => points.push(point),
            Err(AttachError::Count { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Parsed { name, points })
}

/// The words between colons, without quotes and with parameters put in. At least one.
fn split(text: &str, parameters: &[String]) -> Result<Vec<String>, AttachError> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    // A value may hold several parts, as in `$1` = `libc:malloc`. Its quotes and dollars are plain text.
    while let Some(c) = chars.next() {
        let last = parts.len() - 1;
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => parts[last].extend(chars.next()),
            ':' if !quoted => parts.push(String::new()),
            '@' if !quoted && last == 1 => parts.extend(["@".to_string(), String::new()]),
            '$' if !quoted => {
                let mut digits = String::new();
                while let Some(digit) =
                    chars.peek().filter(|c| c.is_ascii_digit() && !(digits.is_empty() && **c == '0'))
                {
                    digits.push(*digit);
                    chars.next();
                }
                if digits.is_empty() {
                    return Err(AttachError::ParameterName(chars.next().unwrap_or(' ')));
                }
                let number = number::parse(&digits).map_err(AttachError::ParameterNumber)?;
                let value = usize::try_from(number - 1).ok().and_then(|index| parameters.get(index));
                // A parameter that was not given is empty.
                for word in value.map(String::as_str).unwrap_or("").split(':').enumerate() {
                    if word.0 > 0 {
                        parts.push(String::new());
                    }
                    let last = parts.len() - 1;
                    parts[last].push_str(word.1);
                }
            }
            c => parts[last].push(c),
        }
    }
    if quoted { Err(AttachError::Quote) } else { Ok(parts) }
}

fn is_pattern(text: &str) -> bool {
    text.contains('*')
}

/// Whether `name` fits `pattern`, in which `*` is any run of characters.
fn fits(pattern: &str, name: &str) -> bool {
    let mut words = pattern.split('*');
    let Some(mut rest) = words.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let words: Vec<&str> = words.collect();
    let Some((last, middle)) = words.split_last() else { return rest.is_empty() };
    for word in middle {
        let Some(at) = rest.find(word) else { return false };
        rest = &rest[at + word.len()..];
    }
    rest.ends_with(last)
}

/// The provider of that name. Full names may be in capitals; `u` and `U` differ.
fn by_name(name: &str) -> Result<Provider, AttachError> {
    let find =
        |name: &str| PROVIDERS.iter().find(|(names, _)| names.contains(&name)).map(|&(_, provider)| provider);
    let lower = name.to_ascii_lowercase();
    if WATCHPOINTS.contains(&lower.as_str()) {
        let full = if lower.starts_with('a') { "asyncwatchpoint" } else { "watchpoint" };
        return Ok(Provider::Kernel(full, "3", 3, 3));
    }
    find(name).or_else(|| find(&lower)).ok_or_else(|| AttachError::Provider(name.to_string()))
}

fn point(
    provider: Provider,
    mut parts: Vec<String>,
    context: &AttachContext,
) -> Result<ProbePoint, AttachError> {
    let count = parts.len();
    let wrong = |provider, expected| Err(AttachError::Count { provider, expected, found: count });
    match provider {
        Provider::Begin | Provider::End => {
            let (name, point) = match provider {
                Provider::Begin => ("begin", ProbePoint::Begin),
                _ => ("end", ProbePoint::End),
            };
            let plain = parts.is_empty() || parts == ["*"];
            if plain { Ok(point) } else { wrong(name, "0") }
        }
        Provider::Uprobe => user("uprobe", parts, context).map(ProbePoint::Uprobe),
        Provider::Uretprobe => {
            let point = user("uretprobe", parts, context)?;
            match point.place {
                UserPlace::Line { .. } => Err(AttachError::LineNotAllowed),
                _ => Ok(ProbePoint::Uretprobe(point)),
            }
        }
        Provider::Usdt => usdt(parts, context),
        Provider::Interval => frequency("interval", &parts).map(ProbePoint::Interval),
        Provider::Profile => frequency("profile", &parts).map(ProbePoint::Profile),
        Provider::SelfTrigger => match parts.as_slice() {
            [trigger, signal] if trigger == "signal" => match signal.as_str() {
                "SIGUSR1" => Ok(ProbePoint::SelfSignal(parts.remove(1))),
                _ => Err(AttachError::Signal(parts.remove(1))),
            },
            [_, _] => Err(AttachError::Trigger(parts.remove(0))),
            _ => wrong("self", "2"),
        },
        Provider::Test | Provider::Bench => {
            let (name, wrap) = match provider {
                Provider::Test => ("test", ProbePoint::Test as fn(String) -> ProbePoint),
                _ => ("bench", ProbePoint::Bench as fn(String) -> ProbePoint),
            };
            match parts.as_slice() {
                [word] if word.is_empty() => Err(AttachError::NoName(name)),
                [_] => Ok(wrap(parts.remove(0))),
                _ => wrong(name, "1"),
            }
        }
        Provider::Kernel(name, expected, least, most) => {
            // `tracepoint:*word*` lists by the event's name.
            let listed = name == "tracepoint" && count == 1 && is_pattern(&parts[0]);
            if (least..=most).contains(&count) || listed {
                Ok(ProbePoint::Kernel(name))
            } else {
                wrong(name, expected)
            }
        }
    }
}

fn user(
    provider: &'static str,
    mut parts: Vec<String>,
    context: &AttachContext,
) -> Result<UserPoint, AttachError> {
    let is_language = |word: &str| word == "cpp";
    if context.process && (parts.len() == 1 || (parts.len() == 2 && is_language(&parts[0]))) {
        parts.insert(0, String::new());
    }
    let by_line = parts.get(1).is_some_and(|part| part == "@");
    if !by_line && !(2..=3).contains(&parts.len()) {
        return Err(AttachError::Count { provider, expected: "2 or 3", found: parts.len() });
    }
    let target = parts.remove(0);
    if target.is_empty() && !context.process {
        return Err(AttachError::NoTarget(provider));
    }
    let in_pattern = is_pattern(&target);
    let target = Some(target).filter(|target| !target.is_empty());
    if by_line {
        if provider != "uprobe" {
            return Err(AttachError::LineNotAllowed);
        }
        if in_pattern {
            return Err(AttachError::LineInPattern);
        }
        let place = line(&parts[1..])?;
        return Ok(UserPoint { target, language: None, place });
    }
    let language = (parts.len() == 2).then(|| parts.remove(0));
    if let Some(language) = language.as_ref().filter(|language| !is_language(language)) {
        return Err(AttachError::Language(language.clone()));
    }
    let place = place(provider, &parts[0], in_pattern)?;
    Ok(UserPoint { target, language, place })
}

/// A function with or without an offset, or an address.
fn place(provider: &'static str, text: &str, in_pattern: bool) -> Result<UserPlace, AttachError> {
    let function = |name: &str, offset| UserPlace::Function { name: name.to_string(), offset };
    if text.is_empty() {
        return Err(AttachError::NoPlace(provider));
    }
    if let Some((name, offset)) = text.split_once('+') {
        if provider == "uretprobe" {
            return Err(AttachError::OffsetNotAllowed);
        }
        if offset.contains('+') {
            return Err(AttachError::TwoOffsets);
        }
        let offset = number::parse(offset).map_err(AttachError::Offset)?;
        if name.is_empty() {
            return Err(AttachError::NoPlace(provider));
        }
        return Ok(function(name, offset));
    }
    match number::parse(text) {
        Ok(_) if in_pattern => Err(AttachError::AddressInPattern),
        Ok(address) => Ok(UserPlace::Address(address)),
        // A name may begin with a digit.
        Err(_) => Ok(function(text, 0)),
    }
}

fn line(parts: &[String]) -> Result<UserPlace, AttachError> {
    let (file, line, column) = match parts {
        [file, line] => (file, line, None),
        [file, line, column] => (file, line, Some(column)),
        _ => return Err(AttachError::LineForm),
    };
    if file.is_empty() || line.is_empty() {
        return Err(AttachError::LineForm);
    }
    let column = column.map(|column| number::parse(column).map_err(AttachError::Column)).transpose()?;
    let line = number::parse(line).map_err(AttachError::Line)?;
    if line == 0 {
        return Err(AttachError::LineForm);
    }
    Ok(UserPlace::Line { file: file.clone(), line, column })
}

fn usdt(mut parts: Vec<String>, context: &AttachContext) -> Result<ProbePoint, AttachError> {
    if context.process && parts.len() == 1 {
        parts.insert(0, String::new());
    }
    if !(2..=3).contains(&parts.len()) {
        return Err(AttachError::Count { provider: "usdt", expected: "2 or 3", found: parts.len() });
    }
    let mut parts = parts.into_iter();
    let target = parts.next().filter(|target| !target.is_empty());
    let name = parts.next_back().filter(|name| !name.is_empty()).ok_or(AttachError::NoStaticProbe)?;
    if target.is_none() && !context.process {
        return Err(AttachError::NoStaticTarget);
    }
    Ok(ProbePoint::Usdt { target, namespace: parts.next().filter(|namespace| !namespace.is_empty()), name })
}

fn frequency(provider: &'static str, parts: &[String]) -> Result<Frequency, AttachError> {
    let rate = |text: &str| number::parse(text).map_err(|error| AttachError::Rate { provider, error });
    let (unit, number) = match parts {
        [any] if is_pattern(any) => return Ok(Frequency::Any),
        [time] => {
            return match rate(time)? {
                found @ ..1000 => Err(AttachError::TooOften { provider, found }),
                time => Ok(Frequency::Every(time)),
            };
        }
        [unit, number] => (unit, number),
        _ => return Err(AttachError::Count { provider, expected: "1 or 2", found: parts.len() }),
    };
    let number = rate(number)?;
    let every = match unit.as_str() {
        "s" => number.checked_mul(1_000_000_000),
        "ms" => number.checked_mul(1_000_000),
        "us" => number.checked_mul(1000),
        "hz" if number > 0 => return Ok(Frequency::Hertz(number)),
        "hz" => None,
        _ => return Err(AttachError::Unit(unit.clone())),
    };
    every.filter(|&every| every > 0).map(Frequency::Every).ok_or(AttachError::Frequency(provider))
}

#[cfg(test)]
mod tests;
