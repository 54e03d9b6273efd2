//! What a search pattern means: `provider:target:name`, several with commas, a program's path, a type.

use std::path::Path;
use trapless_running::files::pattern;
use trapless_script::syntax::ast::{ProbePoint, UserPlace, UserPoint};
use trapless_script::syntax::attach::{self, AttachContext, AttachError};

/// One thing that is looked for.
#[derive(Debug, PartialEq)]
pub(super) enum Wanted {
    /// Probes that need no target: their lines.
    Own(Vec<String>),
    /// Probes of programs.
    Point(ProbePoint),
    /// A type, by its name with its word.
    Types(String),
    /// Probes of the kernel: their provider.
    Kernel(String),
}

/// Units of time, in their order.
const UNITS: [&str; 4] = ["hz:", "ms:", "s:", "us:"];

/// Providers that need no target, their short names, and what follows them.
const OWN: [(&str, &str, &[&str]); 7] = [
    ("begin", "", &[]),
    ("bench", "", &[]),
    ("end", "", &[]),
    ("interval", "i", &UNITS),
    ("profile", "p", &UNITS),
    ("self", "", &["signal:SIGUSR1"]),
    ("test", "", &[]),
];

/// What `searched` means. `process`: whether one is given, whose files are then looked at.
///
/// # Errors
/// Why it means nothing.
pub(super) fn wanted(searched: &str, process: bool) -> Result<Vec<Wanted>, String> {
    let mut all = Vec::new();
    for one in commas(searched) {
        let one = one.split_whitespace().collect::<Vec<_>>().join(" ");
        all.extend(one_wanted(&one, process)?);
    }
    Ok(all)
}

fn one_wanted(text: &str, process: bool) -> Result<Vec<Wanted>, String> {
    if ["struct ", "union ", "enum ", "class "].iter().any(|word| text.starts_with(word)) {
        return Ok(vec![Wanted::Types(text.to_owned())]);
    }
    if Path::new(text).is_file() {
        return Ok(whole_file(text));
    }
    let (provider, rest) =
        text.split_once(':').map_or((None, text), |(provider, rest)| (Some(provider), rest));
    let (provider, rest) =
        if provider.is_none() && is_own(rest) { (Some(rest), "") } else { (provider, rest) };
    // A name alone is looked for with every provider.
    let provider = provider.filter(|provider| !provider.is_empty()).unwrap_or("*");
    let is_pattern = provider.contains('*');
    let mut found = Vec::new();
    if !is_pattern || !process {
        let own = own(provider, rest);
        if !own.is_empty() {
            found.push(Wanted::Own(own));
        }
        if !is_pattern && is_own(provider) {
            return Ok(found);
        }
    }
    let context = AttachContext { parameters: Vec::new(), process };
    let parsed = match attach::parse(&format!("{provider}:{rest}"), &context) {
        Ok(parsed) => parsed.points,
        // Nobody's provider is like that; those of this process may be.
        Err(AttachError::NoProviderFits(_)) if is_pattern => Vec::new(),
        Err(AttachError::Count { .. }) if !process && !rest.contains(':') => {
            return Err(format!(
                "{provider}:{rest} names no file; write {provider}:FILE:{rest}, or give -p PID"
            ));
        }
        Err(error) => return Err(format!("{text}: {error}")),
    };
    let is_kernel = |point: &ProbePoint| matches!(point, ProbePoint::Kernel(_));
    if parsed.iter().any(is_kernel) {
        let provider = match parsed.as_slice() {
            [ProbePoint::Kernel(provider)] => (*provider).to_owned(),
            _ => "Other".to_owned(),
        };
        found.push(Wanted::Kernel(provider));
    }
    found.extend(parsed.into_iter().filter(|point| !is_kernel(point)).map(Wanted::Point));
    Ok(found)
}

/// All functions and static probes of a file.
fn whole_file(path: &str) -> Vec<Wanted> {
    let target = Some(path.to_owned());
    let place = UserPlace::Function { name: "*".to_owned(), offset: 0 };
    vec![
        Wanted::Point(ProbePoint::Uprobe(UserPoint { target: target.clone(), language: None, place })),
        Wanted::Point(ProbePoint::Usdt { target, namespace: None, name: "*".to_owned() }),
    ]
}

fn is_own(provider: &str) -> bool {
    let lower = provider.to_ascii_lowercase();
    OWN.iter().any(|(name, short, _)| lower == *name || !short.is_empty() && provider == *short)
}

/// The lines of what needs no target.
fn own(provider: &str, rest: &str) -> Vec<String> {
    let (wanted, rest) = (pattern(&provider.to_ascii_lowercase()), if rest.is_empty() { "*" } else { rest });
    let rest = pattern(rest);
    let meant =
        OWN.iter().filter(|(name, short, _)| wanted.matches(name) || !short.is_empty() && provider == *short);
    let mut lines = Vec::new();
    for (name, _, endings) in meant {
        if endings.is_empty() && (rest.text() == "*" || rest.text() == "*:*") {
            lines.push((*name).to_owned());
        }
        let fits = |ending: &&&str| rest.matches(ending) || rest.matches(ending.trim_end_matches(':'));
        lines.extend(endings.iter().filter(fits).map(|ending| format!("{name}:{ending}")));
    }
    lines
}

/// What an attach point of a script means, which was written as `text`. What runs once and at no place is not listed.
pub(super) fn of_point(text: &str, point: &ProbePoint) -> Option<Wanted> {
    let timed = |provider: &str| {
        let unit = text
            .split(':')
            .nth(1)
            .filter(|unit| UNITS.iter().any(|known| known.trim_end_matches(':') == *unit));
        Wanted::Own(vec![format!("{provider}:{}:", unit.unwrap_or("us"))])
    };
    Some(match point {
        ProbePoint::Begin | ProbePoint::End | ProbePoint::SelfSignal(_) | ProbePoint::Chosen { .. } => {
            return None;
        }
        ProbePoint::Interval(_) => timed("interval"),
        ProbePoint::Profile(_) => timed("profile"),
        ProbePoint::Test(name) => Wanted::Own(vec![format!("test:{name}")]),
        ProbePoint::Bench(name) => Wanted::Own(vec![format!("bench:{name}")]),
        ProbePoint::Kernel(provider) => Wanted::Kernel((*provider).to_owned()),
        ProbePoint::Uprobe(_) | ProbePoint::Uretprobe(_) | ProbePoint::Usdt { .. } => {
            Wanted::Point(point.clone())
        }
    })
}

/// The parts between commas that are in no quotes and no parentheses: C++ names have commas, too.
fn commas(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quoted) = (Vec::new(), 0, 0u32, false);
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' | '<' if !quoted => depth += 1,
            ')' | '>' if !quoted => depth = depth.saturating_sub(1),
            ',' if !quoted && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, process: bool) -> String {
        let wanted = match wanted(text, process) {
            Ok(wanted) => wanted,
            Err(why) => return why,
        };
        let one = |wanted: &Wanted| match wanted {
            Wanted::Own(lines) => lines.join(" "),
            Wanted::Point(point) => trapless_running::points::written(point),
            Wanted::Types(name) => format!("[{name}]"),
            Wanted::Kernel(provider) => format!("({provider})"),
        };
        wanted.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn patterns_name_providers_files_and_functions() {
        for (text, meant) in [
            ("interval:*", "interval:hz: interval:ms: interval:s: interval:us:"),
            ("i:ms", "interval:ms:"),
            ("BEGIN", "begin"),
            ("begin:", "begin"),
            ("interval", "interval:hz: interval:ms: interval:s: interval:us:"),
            ("vfs_read", "(Other)"),
            ("self:*", "self:signal:SIGUSR1"),
            (
                "*",
                "begin bench end interval:hz: interval:ms: interval:s: interval:us: profile:hz: profile:ms: profile:s: profile:us: self:signal:SIGUSR1 test (Other)",
            ),
            ("kprobe:vfs_*", "(kprobe)"),
            ("uprobe:./app:f*", "uprobe:./app:f*"),
            ("u:./app:f,ur:./app:cpp:\"g(int, int)\"", "uprobe:./app:f uretprobe:./app:cpp:g(int, int)"),
            ("usdt:./app:*", "usdt:./app:*"),
            ("usdt:./app:mine:*", "usdt:./app:mine:*"),
            ("*:./app:*", "uprobe:./app:* usdt:./app:*"),
            ("struct  point, union u", "[struct point] [union u]"),
            ("uprobe:malloc", "uprobe:malloc names no file; write uprobe:FILE:malloc, or give -p PID"),
            ("foo:bar", "foo:bar: Invalid probe type: foo"),
        ] {
            assert_eq!(told(text, false), meant, "{text}");
        }
        for (text, meant) in [
            ("*:*", "uprobe:*:* usdt:*:*"),
            ("uprobe:*", "uprobe:*:*"),
            ("usdt:mine:*", "usdt:mine:*"),
            ("usdt:*:mine:*", "usdt:*:mine:*"),
            ("malloc", "uprobe:*:malloc usdt:*:malloc"),
        ] {
            assert_eq!(told(text, true), meant, "{text}");
        }
    }
}
